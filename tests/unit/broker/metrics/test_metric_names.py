"""The rule of names, by the rows of the JMX exporter's example configurations for Kafka."""

import pytest

from ottla.broker.metrics.names import Kind, metric_name

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM


@pytest.mark.parametrize(("mbean", "attribute", "name", "kind", "labels"), [
    # per-second counters
    ("kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec", "Count",
     "kafka_server_brokertopicmetrics_messagesin_total", COUNTER, {}),
    ("kafka.server:type=BrokerTopicMetrics,name=BytesInPerSec,topic=t", "Count",
     "kafka_server_brokertopicmetrics_bytesin_total", COUNTER, {"topic": "t"}),
    ("kafka.network:type=RequestMetrics,name=RequestsPerSec,request=Fetch,version=12", "Count",
     "kafka_network_requestmetrics_requests_total", COUNTER, {"request": "Fetch", "version": "12"}),
    ("kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=follower", "Count",
     "kafka_server_delayedfetchmetrics_expires_total", COUNTER, {"fetcherType": "follower"}),
    # gauges
    ("kafka.server:type=ReplicaManager,name=UnderReplicatedPartitions", "Value",
     "kafka_server_replicamanager_underreplicatedpartitions", GAUGE, {}),
    ("kafka.controller:type=KafkaController,name=ActiveControllerCount", "Value",
     "kafka_controller_kafkacontroller_activecontrollercount", GAUGE, {}),
    ("kafka.log:type=Log,name=LogStartOffset,topic=t,partition=3", "Value",
     "kafka_log_log_logstartoffset", GAUGE, {"topic": "t", "partition": "3"}),
    ("kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=Fetch", "Value",
     "kafka_server_delayedoperationpurgatory_purgatorysize", GAUGE, {"delayedOperation": "Fetch"}),
    ("kafka.coordinator.group:type=GroupMetadataManager,name=NumGroupsStable", "Value",
     "kafka_coordinator_group_groupmetadatamanager_numgroupsstable", GAUGE, {}),
    # histograms: their count has the name of the rule
    ("kafka.network:type=RequestMetrics,name=TotalTimeMs,request=Produce", "Count",
     "kafka_network_requestmetrics_totaltimems", HISTOGRAM, {"request": "Produce"}),
    # MBeans without a name (Kafka's newer metrics)
    ("kafka.server:type=raft-metrics", "current-leader", "kafka_server_raft_metrics_current_leader", GAUGE, {}),
    ("kafka.server:type=broker-metadata-metrics", "metadata-load-error-count",
     "kafka_server_broker_metadata_metrics_metadata_load_error_count", GAUGE, {}),
    ("kafka.server:type=socket-server-metrics,listener=A", "connection-creation-total",
     "kafka_server_socket_server_metrics_connection_creation_total", COUNTER, {"listener": "A"}),
    # percents
    ("kafka.server:type=KafkaRequestHandlerPool,name=RequestHandlerAvgIdlePercent", "MeanRate",
     "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", GAUGE, {}),
    ("kafka.network:type=SocketServer,name=NetworkProcessorAvgIdlePercent", "Value",
     "kafka_network_socketserver_networkprocessoravgidle_percent", GAUGE, {}),
    # a domain for which the examples have no rule
    ("kafka.log.remote:type=RemoteLogManager,name=RemoteLogManagerTasksAvgIdlePercent", "Value",
     "kafka_log_remote_remotelogmanager_remotelogmanagertasksavgidlepercent", GAUGE, {}),
])  # fmt: skip
def test_a_name_is_the_jmx_exporters(mbean, attribute, name, kind, labels):
    found = metric_name(mbean, attribute)
    assert (found.name, found.kind, dict(found.labels)) == (name, kind, labels)


def test_an_attribute_that_no_rule_has():
    with pytest.raises(AssertionError, match="OneMinuteRate"):
        metric_name("kafka.server:type=T,name=XPerSec", "OneMinuteRate")
