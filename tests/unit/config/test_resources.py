"""Values that groups, client metrics subscriptions and loggers accept."""

import logging

import pytest

from ottla.config.broker_config import BrokerConfig
from ottla.config.config_def import AlterOperation, ConfigOperation
from ottla.config.load import standalone_profile
from ottla.config.loggers import (
    alter_loggers,
    check_logger_resource,
    logger_levels,
    validate_logger_alter,
)
from ottla.config.resources import validate_client_metrics_alter, validate_group_alter
from ottla.protocol.errors import InvalidConfig, InvalidRequest, KafkaError


# KIP-848
@pytest.mark.parametrize(("overrides", "refused"), [
    ({},                                               None),
    ({"consumer.session.timeout.ms": "50000"},         None),
    ({"streams.num.standby.replicas": "0"},            None),
    ({"share.auto.offset.reset": "by_duration:PT1H"},  None),
    ({"consumer.session.timeout.ms": "1"},             r"at least group.consumer.min.session.timeout.ms \(45000\)"),
    ({"share.heartbeat.interval.ms": "99999"},         r"at most group.share.max.heartbeat.interval.ms \(15000\)"),
    ({"streams.num.standby.replicas": "9"},            r"at most group.streams.max.standby.replicas \(2\)"),
    ({"share.partition.max.record.locks": "9999"},     r"at most group.share.max.partition.max.record.locks \(4000\)"),
    ({"share.auto.offset.reset": "by_duration:soon"},  "by_duration:PnDTnHnMn.nS"),
    ({"share.isolation.level": "none"},                "read_committed, read_uncommitted"),
    ({"nope": "1"},                                    "Unknown group config name: nope"),
])  # fmt: skip
def test_groups(overrides, refused):
    config = BrokerConfig(standalone_profile())
    if refused is None:
        validate_group_alter(config, overrides)
    else:
        with pytest.raises(InvalidConfig, match=refused):
            validate_group_alter(config, overrides)


def test_a_groups_session_outlives_its_heartbeats():
    config = BrokerConfig(
        standalone_profile()
        | {
            "group.consumer.min.session.timeout.ms": "1000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
        }
    )
    with pytest.raises(InvalidConfig, match=r"greater than consumer.heartbeat.interval.ms \(5000\)"):
        validate_group_alter(config, {"consumer.session.timeout.ms": "5000"})


# KIP-714
@pytest.mark.parametrize(("name", "overrides", "refused"), [
    ("m", {"interval.ms": "1000", "metrics": "a,b", "match": "client_id=x.*"}, None),
    ("m", {"interval.ms": "99"},               "between 100 and 3600000"),
    ("m", {"nope": "1"},                       "Unknown client metrics configuration: nope"),
    ("m", {"match": "colour=red"},             "Illegal client matching pattern: colour=red"),
    ("m", {"match": "client_id=("},            "Illegal client matching pattern"),
    ("m", {"match": "client_id"},              "Illegal client matching pattern"),
    ("",  {},                                  "can't be empty"),
])  # fmt: skip
def test_client_metrics(name, overrides, refused):
    if refused is None:
        validate_client_metrics_alter(name, overrides)
    else:
        with pytest.raises(KafkaError, match=refused):
            validate_client_metrics_alter(name, overrides)


SET, DELETE, APPEND, SUBTRACT = AlterOperation


@pytest.fixture
def logger():
    logger = logging.getLogger("broker.test.level")
    yield logger
    logger.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("logger")
@pytest.mark.parametrize(("operation", "refused", "error"), [
    (ConfigOperation("broker.test.level", SET, "DEBUG"),   None, None),
    (ConfigOperation("broker.test.level", DELETE, None),   None, None),
    (ConfigOperation("root", SET, "WARN"),                 None, None),
    (ConfigOperation("root", DELETE, None),                "root logger is not allowed", InvalidRequest),
    (ConfigOperation("broker.nowhere", SET, "DEBUG"),      "broker.nowhere does not exist", InvalidConfig),
    (ConfigOperation("broker.test.level", SET, "LOUD"),
     "one of DEBUG, ERROR, FATAL, INFO, TRACE, WARN", InvalidConfig),
    (ConfigOperation("broker.test.level", APPEND, "INFO"), "APPEND operation is not allowed", InvalidRequest),
])  # fmt: skip
def test_what_may_be_done_to_a_level(operation, refused, error):
    if refused is None:
        validate_logger_alter([operation])
    else:
        with pytest.raises(error, match=refused):
            validate_logger_alter([operation])


# KIP-412
def test_levels_are_set_and_taken_back(logger):
    assert logger_levels()["broker.test.level"] == logger_levels()["root"]
    for level, number in (("TRACE", 5), ("DEBUG", logging.DEBUG), ("FATAL", logging.CRITICAL)):
        alter_loggers([ConfigOperation(logger.name, SET, level)])
        assert (logger.level, logger_levels()[logger.name]) == (number, level)
    alter_loggers([ConfigOperation(logger.name, DELETE, None)])
    assert logger.level == logging.NOTSET


def test_the_level_of_a_package_is_that_of_its_modules(logger):
    operation = ConfigOperation("broker.test", SET, "ERROR")
    validate_logger_alter([operation])
    alter_loggers([operation])
    assert logger_levels()[logger.name] == "ERROR"
    alter_loggers([ConfigOperation("broker.test", DELETE, None)])
    assert logger_levels()[logger.name] == logger_levels()["root"]


@pytest.mark.parametrize(("name", "refused"), [
    ("1", None), ("", "must not be empty"), ("one", "must be an integer"), ("2", "expected 1 but received 2"),
])  # fmt: skip
def test_loggers_are_asked_of_their_own_node(name, refused):
    config = BrokerConfig(standalone_profile())
    if refused is None:
        check_logger_resource(config, name)
    else:
        with pytest.raises(InvalidRequest, match=refused):
            check_logger_resource(config, name)
