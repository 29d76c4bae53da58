"""The options of the PySpark source: what they mean, and one sentence for what cannot be meant."""

import pytest

from ottla.protocol.errors import InvalidConfig
from ottla.remote.spark_source.options import TierOptions, Time

BUCKET = "s3://b/p?region=eu"


def options(**given):
    return TierOptions.of({"subscribe": "orders", "path": BUCKET} | given)


def test_defaults():
    found = options()
    assert found.topics == ("orders",)
    assert found.store["remote.log.storage.manager.class.name"] == "s3"
    assert (found.store["rsm.config.bucket"], found.store["rsm.config.prefix"]) == ("b", "p")
    assert found.client is None
    assert found.is_read_committed
    assert found.fails_on_data_loss
    assert not found.has_headers
    assert not found.pushes_filters
    assert found.starting.of("orders", 0) is None
    assert found.ending.of("orders", 0) is None


def test_names_are_in_small_letters_in_spark():
    assert options(includeheaders="TRUE").has_headers
    assert options(maxPartitionBytes="7").max_partition_bytes == 7


def test_the_store_as_a_broker_names_it(tmp_path):
    given = {
        "subscribe": "a, b",
        "remote.log.storage.manager.class.name": "directory",
        "rsm.config.dir": str(tmp_path),
    }
    found = TierOptions.of(given)
    assert found.topics == ("a", "b")
    assert found.store == {name: text for name, text in given.items() if name != "subscribe"}
    assert TierOptions.of({"subscribe": "a", "path": str(tmp_path)}).store["rsm.config.dir"] == str(tmp_path)


def test_settings_of_the_client():
    found = options(**{
        "kafka.bootstrap.servers": "h:1", "kafka.security.protocol": "SSL", "kafka.isolation.level": "read_uncommitted"
    })  # fmt: skip
    assert found.client == {"bootstrap.servers": "h:1", "security.protocol": "SSL"}
    assert not found.is_read_committed


def test_offsets_and_times():
    found = options(startingOffsets='{"orders": {"0": 23, "1": -2}}', endingTimestamp="1700000000000")
    assert [found.starting.of("orders", each) for each in range(3)] == [23, None, None]
    assert found.ending.of("orders", 2) == Time(1700000000000)
    assert options(startingOffsets="earliest", endingOffsets="latest").starting.of("orders", 0) is None


@pytest.mark.parametrize(("given", "sentence"), [
    ({"subscribe": " , "},                 "subscribe is missing: name the topics"),
    ({"startingOfsets": "earliest"},       "startingofsets is unknown: did you mean startingOffsets"),
    ({"zzz": "1"},                         "zzz is unknown: known are subscribe"),
    ({"path": "/no/such/folder"},          "/no/such/folder is no directory on this machine"),
    ({"path": "gs://b"},                   "gs://b is no remote tier"),
    ({"kafka.security.protocol": "SSL"},   "kafka.bootstrap.servers is missing, but kafka.security.protocol is set"),
    ({"startingOffsets": "latest"},        "startingOffsets is 'latest': it must be earliest, or offsets as"),
    ({"startingOffsets": '{"orders": 3}'}, "it must be earliest, or offsets as"),
    ({"startingOffsets": '{"orders": {"0": -1}}'}, "-1 of orders-0: it must be an offset, or -2 .earliest"),
    ({"endingOffsets": '{"orders": {"0": "x"}}'},  "'x' of orders-0: it must be an offset, or -1 .latest"),
    ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "Both startingOffsets and startingTimestamp"),
    ({"endingTimestamp": "now"},           "endingTimestamp is 'now': it must be an integer"),
    ({"includeHeaders": "yes"},            "includeHeaders is 'yes': it must be true or false"),
    ({"maxPartitionBytes": "0"},           "maxPartitionBytes is 0: it must be at least 1"),
    ({"kafka.isolation.level": "x"},       ("kafka.isolation.level is 'x': "
                                            "it must be read_committed or read_uncommitted")),
    ({"topicId": "x"},                     "topicId is 'x': it must be an id of 22 characters"),
    ({"topicId": "AAAAAAAAAAAAAAAAAAAAAQ", "subscribe": "a,b"}, "topicId is one topic's, but subscribe names 2"),
])  # fmt: skip
def test_refused(given, sentence):
    with pytest.raises(InvalidConfig, match=sentence):
        options(**given)


def test_no_store():
    with pytest.raises(InvalidConfig, match=r"No store is named: .load\('s3"):
        TierOptions.of({"subscribe": "orders"})
