"""The Python of docs/TESTING.md, run as it is written, with what each of its blocks takes for granted."""

import json
import re
from pathlib import Path

import confluent_kafka
import pytest

import ottla.testing

GUIDE = Path(__file__).parents[3] / "docs/TESTING.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)


class Shop:
    """The project under test."""

    def __init__(self, *, bootstrap_servers, topic):
        self._producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers})
        self._topic = topic

    def order(self, item):
        self._producer.produce(self._topic, f'{{"item": "{item}"}}')
        assert self._producer.flush(10) == 0


def producing(broker, topic):
    """`send` of the recipes: a producer that retries at once, and does not write twice."""
    producer = confluent_kafka.Producer(broker.config(retry_backoff_ms=1, enable_idempotence=True))

    def send(value):
        producer.produce(topic, value)
        assert producer.flush(20) == 0

    return send


def filling(broker):
    """The `...` of a full disk: a record that cannot be written."""
    with pytest.raises(ottla.testing.ClusterError):
        broker._do(lambda do: do.produce("orders", "x"))


@pytest.fixture
def names():
    """The names that the blocks use."""
    with ottla.testing.Broker(strict=False) as broker:
        names = {
            "ottla": ottla, "confluent_kafka": confluent_kafka, "Shop": Shop, "broker": broker,
            "send": producing(broker, "orders"), "json": json, "print": lambda *_: None,
            "KafkaContainer": lambda: ottla.testing.Broker(),
        }  # fmt: skip
        yield names


def block(part):
    """The one block with this part."""
    [found] = [each for each in BLOCKS if part in each]
    return found


def run(part, names):
    exec(compile(block(part), str(GUIDE), "exec"), names)


@pytest.mark.parametrize(
    "part",
    [
        "import ottla.testing",
        'inject_error("PRODUCE", "NOT_LEADER_OR_FOLLOWER")',
        "disconnect_on",
        "advance(hours=25)",
        "broker.kill()",
        "# before",
    ],
)
def test_a_recipe(names, part):
    run(part, names)


@pytest.mark.logs(
    "Fetch from broker",
    "its session has expired",
    "a heartbeat to the controller failed",
    "AlterPartition for",
)
def test_the_recipe_of_a_cluster(names):
    run("Cluster(brokers=3", names)


def test_the_recipe_of_a_slow_consumer(names):
    names["broker"].produce("t", "x")
    consumer = confluent_kafka.Consumer(names["broker"].consumer_config("g", client_id="checkout-1"))
    consumer.subscribe(["t"])
    assert consumer.poll(20) is not None
    run("expire_member", names)
    assert names["broker"].groups() == {"g": "Empty"}
    consumer.close()


@pytest.mark.logs("")
def test_the_recipe_of_a_full_disk(names):
    broker = names["broker"]
    broker.produce("orders", "before")
    text = block("disk.fill()").replace("    ...\n", "    fill()\n")
    assert "fill()" in text
    names["fill"] = lambda: filling(broker)
    exec(compile(text, str(GUIDE), "exec"), names)
    assert broker.values("orders") == [b"before"]


def test_the_test_of_a_project(names):
    broker = names["broker"]
    run("def test_an_order_is_stored", names)
    names["test_an_order_is_stored"](broker, broker.create_topic("its-topic"))


def test_no_block_is_left_out():
    parts = (
        "import ottla.testing", "NOT_LEADER_OR_FOLLOWER", "disconnect_on", "advance(hours=25)", "broker.kill()",
        "# before", "class OttlaContainer", "Cluster(brokers=3", "expire_member", "disk.fill()",
        "test_an_order_is_stored",
    )  # fmt: skip
    assert [each for each in BLOCKS if not any(part in each for part in parts)] == []
