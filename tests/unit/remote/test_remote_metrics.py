"""RemoteStorageMetrics: events of a topic and of all topics, gauges of partitions."""

from ottla.protocol.types import TopicPartition
from ottla.remote.metrics import RemoteStorageMetrics


def test_an_event_counts_for_its_topic_and_for_all():
    metrics = RemoteStorageMetrics(lambda: 0.0)
    metrics.on_copy_requested("a")
    metrics.on_copied("a", 100)
    metrics.on_copied("b", 50)
    metrics.on_delete_failed("b")
    assert metrics.topic("a").remote_copy_bytes == 100
    assert metrics.topic("b").remote_copy_bytes == 50
    assert metrics.all_topics.remote_copy_bytes == 150
    assert metrics.all_topics.remote_copy_requests == metrics.topic("a").remote_copy_requests == 1
    assert metrics.all_topics.remote_delete_errors == 1
    assert metrics.topic("a").remote_delete_errors == 0


def test_a_deleted_topic_stays_in_the_sum():
    metrics = RemoteStorageMetrics(lambda: 0.0)
    metrics.on_fetched("a", 7)
    metrics.remove_topic("a")
    assert dict(metrics.topics) == {}
    assert metrics.all_topics.remote_fetch_bytes == 7


def test_a_partition_that_is_not_led_any_more_has_no_gauges():
    metrics, partition = RemoteStorageMetrics(lambda: 0.0), TopicPartition("a", 1)
    metrics.partition(partition).remote_copy_lag_segments = 3
    assert metrics.partitions[partition].remote_copy_lag_segments == 3
    metrics.remove_partition(partition)
    assert partition not in metrics.partitions


def test_the_longest_wait_is_that_of_the_last_time_for_every_reader():
    """The metric is remote-copy-throttle-time-max of KIP-956; two scrapers read it."""
    now_s = 0.0
    throttle = RemoteStorageMetrics(lambda: now_s).copy_throttle
    throttle.record(5)
    throttle.record(3)
    assert (throttle.count, throttle.total_ms) == (2, 8)
    assert [throttle.max_ms.read() for _ in range(2)] == [5, 5]
    now_s = 45.0
    throttle.record(1)
    assert throttle.max_ms.read() == 5
    now_s = 61.0
    assert throttle.max_ms.read() == 1
    now_s = 200.0
    assert throttle.max_ms.read() == 0
