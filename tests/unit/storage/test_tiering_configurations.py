"""Every configuration that decides about deletion or tiering, as a topic's own, as a default, before and
after each other.

A log start moves only where retention or DeleteRecords moves it, or where tiering is switched off, which takes
`remote.log.delete.on.disable`: no default, and no order of changes, makes a log begin behind what the remote tier has.
"""

from dataclasses import replace
from itertools import product

import pytest

from ottla.config.log_config import TOPIC_CONFIGS, LogConfig, default_topic_values, validate_topic_configs
from ottla.protocol.errors import InvalidConfig
from tests.unit.storage.storage_support import NOW_MS, batch, open_log

pytestmark = pytest.mark.logs("below the high watermark")

LONG_AGO = NOW_MS + 1_000_000
#: Both are exceeded by far.
SHORT = {"retention.ms": "1", "retention.bytes": "1"}
SHORT_LOCALLY = {"local.retention.ms": "0", "local.retention.bytes": "0"}
UNSET = {}

#: A choice of each: a broker's default (by its name of a topic configuration), or the topic's own.
DEFAULTS = [
    policy | retention | local
    for policy, retention, local in product(
        [{"cleanup.policy": each} for each in ("delete", "compact", "compact,delete", "")],
        [UNSET, SHORT],
        [UNSET, SHORT_LOCALLY],
    )
]
OVERRIDES = [
    policy | retention | copying | deleting
    for policy, retention, copying, deleting in product(
        [UNSET, {"cleanup.policy": "delete"}, {"cleanup.policy": ""}],
        [UNSET, SHORT],
        [UNSET, {"remote.log.copy.disable": "true"}],
        [UNSET, {"remote.log.delete.on.disable": "true"}],
    )
]


def config_of(defaults, overrides, **fields):
    parsed = {name: TOPIC_CONFIGS[name].parse(text) for name, text in defaults.items()}
    config = LogConfig.from_overrides(default_topic_values() | parsed, overrides)
    return replace(config, segment_bytes=300, index_interval_bytes=1, **fields)


TIERED = config_of(UNSET, {"retention.ms": "-1", "local.retention.ms": "1000"}, remote_storage_enable=True)
LOCAL = config_of(UNSET, UNSET, retention_ms=None)


@pytest.fixture
def log(tmp_path):
    """[0, 2) is in the remote tier only, [2, 4) in both, [4, 6) and [6, 7), the active segment, in none but
    the local one.
    """
    log = open_log(tmp_path / "orders-0", config=TIERED)
    for _ in range(7):
        log.append_as_leader(batch(value=b"x" * 50), leader_epoch=0, now_ms=NOW_MS)
    log.update_high_watermark(7)
    log.update_remote_end_offset(2)
    log.apply_retention(LONG_AGO)
    log.update_remote_end_offset(4)
    assert starts(log) == (0, 2)
    yield log
    log.close_files()


def starts(log):
    return log.log_start_offset, log.local_log_start_offset


def is_kept(log):
    """Each record from the log start on is in a tier, and no other was removed."""
    start, local_start = starts(log)
    return start == 0 and local_start in (2, 4) and log.log_end_offset == 7


@pytest.mark.parametrize("defaults", DEFAULTS, ids=str)
def test_no_configuration_of_a_tiered_topic_loses_what_the_remote_tier_has(log, tmp_path, defaults):
    for overrides in OVERRIDES:
        config = config_of(defaults, overrides, remote_storage_enable=True)
        # The default changes while the topic is tiered, then retention runs; and it changes back.
        log.update_config(config)
        assert log.is_tiered
        assert not config.is_compacted
        log.apply_retention(LONG_AGO)
        assert is_kept(log), (overrides, log.offsets)
        policy = (defaults | overrides)["cleanup.policy"]
        assert (config.total_retention_ms is not None) is ("delete" in policy), overrides
        log.update_config(TIERED)
        assert is_kept(log), (overrides, log.offsets)


@pytest.mark.parametrize("defaults", DEFAULTS, ids=str)
def test_nor_does_one_that_the_broker_starts_with(log, defaults):
    """The static properties, or a change that was made while the broker was down."""
    log.close()
    for overrides in OVERRIDES[::5]:
        config = config_of(defaults, overrides, remote_storage_enable=True)
        again = open_log(log.directory, config=config, log_start_offset=0)
        again.update_high_watermark(7)
        again.apply_retention(LONG_AGO)  # the remote end is unknown
        assert starts(again) == (0, 2), (overrides, again.offsets)
        again.close()


@pytest.mark.parametrize("defaults", DEFAULTS, ids=str)
def test_a_topic_that_is_not_tiered_any_more_begins_with_its_local_part(log, defaults):
    """The controller has accepted it with `remote.log.delete.on.disable=true`, in this change or before."""
    log.update_config(config_of(defaults, {"remote.log.delete.on.disable": "true"}))
    assert starts(log) == (2, 2)
    log.update_config(LOCAL)
    assert starts(log) == (2, 2)


def test_expiration_moves_the_log_start_before_total_retention_removes_what_is_not_copied(log):
    """`remote.log.copy.disable`: local segments may be older than what the remote tier keeps before them."""
    log.update_config(config_of(SHORT, {"remote.log.copy.disable": "true"}, remote_storage_enable=True))
    log.apply_retention(LONG_AGO)
    assert starts(log) == (0, 4)
    log.maybe_increment_log_start_offset(4, reason="remote retention")
    log.apply_retention(LONG_AGO)
    assert starts(log) == (7, 7)


def validate(overrides, *, defaults=UNSET, existing=None):
    parsed = {name: TOPIC_CONFIGS[name].parse(text) for name, text in defaults.items()}
    validate_topic_configs(
        overrides,
        defaults=default_topic_values() | parsed,
        existing=existing,
        is_remote_storage_system_enabled=True,
    )


ON = {"remote.storage.enable": "true"}
OFF = {"remote.storage.enable": "false"}
DELETING = {"remote.log.delete.on.disable": "true"}
COMPACT = {"cleanup.policy": "compact"}


@pytest.mark.parametrize(("defaults", "existing", "overrides", "refused"), [
    # After a default that a tiered topic cannot have: the topic needs its own value.
    (COMPACT, {},                             ON,                            "needs cleanup.policy to be delete"),
    (COMPACT, {},                             ON | {"cleanup.policy": "delete"}, None),
    (COMPACT, {},                             ON | {"cleanup.policy": ""},   None),
    # It is switched off with the consent only: however its value is written, and in one change or two.
    (UNSET,   ON,                             {},                            "would leave its data behind"),
    (UNSET,   ON,                             OFF,                           "would leave its data behind"),
    (UNSET,   {"remote.storage.enable": " TRUE "}, {},                       "would leave its data behind"),
    (UNSET,   ON,                             COMPACT,                       "would leave its data behind"),
    (UNSET,   ON,                             DELETING,                      None),
    (UNSET,   ON | DELETING,                  DELETING,                      None),
    (UNSET,   ON | DELETING,                  {},                            "would leave its data behind"),
    (UNSET,   ON,                             DELETING | COMPACT,            None),
    # Switched off: what has begun is completed without the key.
    (UNSET,   OFF | DELETING,                 OFF,                           None),
    (UNSET,   {"remote.storage.enable": "never valid"}, {},                  None),
])  # fmt: skip
def test_in_both_orders_of_change(defaults, existing, overrides, refused):
    if refused is None:
        validate(overrides, defaults=defaults, existing=existing)
    else:
        with pytest.raises(InvalidConfig, match=refused):
            validate(overrides, defaults=defaults, existing=existing)
