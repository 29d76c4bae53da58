"""docs/METRICS.md, made from the tables of a node.

    .venv/bin/python -m tests.unit.broker.metrics.metrics_page

writes it; a test holds it equal to what this would write.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ottla.broker.metrics.families import Family
from ottla.broker.metrics.names import Kind
from ottla.broker.node import Node
from ottla.config.load import load_config
from ottla.runtime.simulated import SimulatedRuntime

PAGE = Path(__file__).parents[4] / "docs" / "METRICS.md"

_OPENING = """\
# Metrics

A node serves its metrics for Prometheus at the addresses of `metrics.listeners`, a list of `http://host:port`. \
There are none
by default; without a host it is 127.0.0.1, and port 0 is any free one, which the READY line shows. `make run` sets
`http://127.0.0.1:9404` (`make run METRICS=` for none). Brokers and controllers have them; \
the server knows neither TLS nor
passwords: it belongs to an address that only your network reaches.

| page | response |
|---|---|
| `/` | the page for people: [OPERATING](OPERATING.md#the-page) |
| `/metrics` | all metrics (`ottla[metrics]`; without it 503, and a sentence that says so); \
in OpenMetrics' format if the Accept header names it, as Prometheus does |
| `/healthz` | 200 while the event loop runs, from the first moment of the start to the last of the stop |
| `/readyz` | 200 while clients are served: \
the broker is unfenced and its logs are open, the controller's quorum has a leader; \
else 503 and a sentence that says what is missing |

A page is written in turns of the event loop (of 2 ms), and once for all clients that request it at the same time. \
Nothing is
measured for it: the code counts with plain integers, and the page reads them. \
The page of 5,000 partitions has 5 MB and takes 110 ms of
processor time, that of 1,000 partitions and 1,000 groups with ten committed offsets each 3 MB and 100 ms; \
no step takes more than 3 ms. \
Counting adds 1.1 % to the instructions of a Produce and 1.7 % to those of a Fetch
(one partition, in process, without system calls).

## Names

Kafka has no such page: operators run the JMX exporter of Prometheus beside it, \
with one of its two example configurations
for Kafka. Names and labels here are those that these give (`broker/metrics/names.py` has the rule), \
so that dashboards and
alerts apply:

| Kafka's MBean and attribute | name |
|---|---|
| `kafka.D:type=T,name=XPerSec` Count | `kafka_D_T_X_total` |
| `kafka.D:type=T,name=X` Count (a histogram) | `kafka_D_T_X_count`, `_sum`, `_bucket` |
| `kafka.D:type=T,name=X` Value | `kafka_D_T_X` |
| `kafka.D:type=T` attribute `a` | `kafka_D_T_a` |

in lower case, each character that Prometheus does not allow replaced by `_`. \
`tests/compat/test_metrics.py` reads the MBeans of
Kafka 4.3.1 by JMX, and holds the list below against them. Differences:

- `metrics.names=strimzi` gives the names of Strimzi's rules, so that its dashboards apply: \
`kafka_server_raftmetrics_...` and
  `kafka_server_brokermetadatametrics_...` without the underscores, and the state of a node in the quorum as the label \
`current_state`
  of `kafka_server_raftmetrics_current_state`. All other names are the same.
- One event loop handles requests and reads and writes connections: RequestHandlerAvgIdlePercent and \
NetworkProcessorAvgIdlePercent
  are the idle part of its thread in the last minute. LocalTimeMs has the requests that are answered at once, \
RemoteTimeMs those that
  wait; there is no request queue and no response queue. A time that is named `max` is the longest of the last \
30 to 60 seconds,
  for every reader.
- Rates (OneMinuteRate) and percentiles of one process are left out: \
`rate()` and `histogram_quantile()` compute them, over
  any time and all brokers. Histograms have buckets and a sum, which JMX does not have.
- The sum over all topics has the same name as the topics' values, without the label `topic`, as in Kafka: \
a query that sums
  over topics names `topic!=""`.
- `kafka_server_raft_metrics_current_state_info` is made from the text `current-state`, \
by the rule that the example has for
  it. MBeans with `listener=` have it as a label; the example has no rule for them.
- BytesIn counts appended bytes, without those of a batch that the log has already.
- The metrics of the remote tier have the names of Kafka 4.3.1; \
[KIP-405](kips/KIP-405.md) lists those of the KIP that have others.
  The twins of RemoteLogReaderTaskQueueSize and RemoteLogReaderAvgIdlePercent in \
`org.apache.kafka.storage.internals.log`, which
  are deprecated, are left out.
- Connections and delayed operations in a purgatory are counted once; \
Kafka's PurgatorySize counts a request for each partition.
- TotalFetchRequests counts the partitions that a Fetch has read. In a fetch session these are the changed ones; \
Kafka counts
  all partitions of the session.
- Names of metrics that Kafka does not have begin with `ottla_`; those of the process (`process_`, `python_`) are
  prometheus-client's.
"""


_EXPORTER = """\
## Lag and partitions, under the names of kafka_exporter

kafka_exporter is a client that polls a cluster; a node has the same values without a request, \
so that dashboards made for it apply.
Each series comes from one node: those of a partition from its leader, those of a group from its coordinator, \
`kafka_brokers` from
the active controller. Labels are `topic`, `partition` and `consumergroup`.

A coordinator knows the end of a partition of which it has a replica; \
as a follower it knows the high watermark as of its last Fetch.
The ends of other partitions are asked of their leaders before a page is written (ListOffsets), \
so that each of them appears on
the second page that needs it, and no request is sent while no page is read. \
A page waits for answers 0.2 s at most, and not for a leader
that has not answered the last time: it shows the ends of its last answer for a minute. \
Then `kafka_consumergroup_lag` of its
partitions is missing, and so is the sum of their topic: \
the recording rule `ottla:consumergroup_lag` of
the shipped rules ([OPERATING](OPERATING.md#dashboards-and-alerts)) joins the committed offset and the leader's \
`kafka_topic_partition_current_offset`.

`metrics.groups.max.rows` (10,000) bounds the number of groups, of their topics and of their committed offsets that \
have rows. Beyond it, `ottla_group_rows_left_out` counts the others; the sums over a topic include them. \
10,000 committed offsets are 2 MB of a page.
"""


_CLIENTS = """\
## Metrics of clients

Clients push metrics of their own to brokers (KIP-714) if a subscription asks them to: librdkafka from 2.5 on, \
Java's clients from
3.7 on. `metrics.clients.max.series` is the number of their series that a broker shows on its page; by default, 0, \
none is shown. A
subscription is a resource of its own, which Kafka's tools and `ottla configs` create:

    ottla configs alter --client-metrics all --set metrics=org.apache.kafka. --set interval.ms=10000
    kafka-client-metrics.sh --bootstrap-server localhost:9092 --alter --name all --metrics org.apache.kafka. \
--interval 10000

`match` selects clients by regular expressions (Python's) for `client_id`, `client_instance_id`, \
`client_software_name`,
`client_software_version`, `client_source_address` and `client_source_port`. A client asks for its subscription when \
it connects, and
again after its interval, or after five minutes without one. A client that connected before the APIs were advertised \
(without
`metrics.clients.max.series` that is before the first subscription) must connect again.

`org.apache.kafka.producer.record.send.total` becomes `kafka_client_producer_record_send_total`, with the labels \
`client_id`,
`client_instance_id` and the attributes of the value (`topic`, `partition`, `node_id`, ...). All names begin with \
`kafka_client_`,
whatever a client sends. Clients send the changes of counters, and a broker adds them up: the sum over all brokers \
is the client's
own count. `ottla_client_instance_info` has a client's software, address and group. Gauges and sums are shown, \
which is all that
Kafka's clients send. The series of a client remain for three of its intervals, a minute at least, after its last \
push. Series beyond
the bound, and values with texts of more than 250 characters, are left out and counted \
(`ottla_client_metrics_points_left_out_total`).

A message is read in turns of the event loop: one of `telemetry.max.bytes` (1 MiB) with 10,000 values takes 0.2 s of \
processor time
in 1,600 steps. A broker knows 16,384 instances of clients at most; the one used longest ago is forgotten.
"""


def families() -> Sequence[Family]:
    """The metrics of a node that is broker and controller, with a remote tier."""
    with tempfile.TemporaryDirectory() as folder:
        runtime = SimulatedRuntime(seed=1)

        async def scenario() -> Sequence[Family]:
            config = load_config(
                data_dir=f"{folder}/data",
                tier=f"{folder}/tier",
                overrides=["metrics.listeners=http://:0", "metrics.clients.max.series=1"],
            )
            node = await Node.start(runtime, config)
            await node.stop()
            assert node.http is not None
            assert node.http.metrics is not None
            return node.http.metrics.families

        try:
            return runtime.run(scenario())
        finally:
            runtime.simulation.close()


def page() -> str:
    """The text of docs/METRICS.md."""
    every = families()
    of_kafka = [family for family in every if family.source is not None]
    return "\n".join(
        [
            _OPENING,
            "## Metrics of Kafka\n",
            "| metric | of Kafka's MBean | meaning |",
            "|---|---|---|",
            *_rows(of_kafka),
            "",
            _EXPORTER,
            *_own_rows(family for family in every if _is_of_exporter(family)),
            "",
            _CLIENTS,
            "## Metrics that Kafka does not have\n",
            *_own_rows(family for family in every if family.source is None and not _is_of_exporter(family)),
            "",
        ]
    )


def _is_of_exporter(family: Family) -> bool:
    return family.source is None and family.name.startswith("kafka_")


def _own_rows(every: Iterable[Family]) -> Iterator[str]:
    yield "| metric | type | meaning |"
    yield "|---|---|---|"
    for family in every:
        yield f"| `{family.name}` | {family.kind.value} | {family.documentation} |"


def _rows(every: Sequence[Family]) -> Iterator[str]:
    for family in every:
        assert family.source is not None
        mbean, attribute = family.source
        name = f"{family.name}_count" if family.kind is Kind.HISTOGRAM else family.name
        yield f"| `{name}` | `{mbean}` {attribute} | {family.documentation} |"


if __name__ == "__main__":
    PAGE.write_text(page())
