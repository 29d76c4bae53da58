"""A client of a cluster, Ottla's or Kafka's: asks any broker, one broker, partition leaders, or a group's coordinator.

    client = ClusterClient(runtime, lambda: addresses_of("127.0.0.1:9092"), client_id="ottla-cli")
    topic = await client.patiently(lambda: client.topic("orders"))

| module | content |
|---|---|
| `client.py` | `ClusterClient`: requests, and their repetition while an error may end by itself |
| `errors.py` | the errors that may end by themselves, and the check of an error code in a response |
| `topics.py` | topics of a Metadata response, with the leaders of their partitions |
| `offsets.py` | ListOffsets: an offset that is absent, and one that a broker does not report |
| `groups.py` | groups of all brokers, the coordinator of one, its members and committed offsets |

The commands (`broker/cli`) and `ottla.testing` use it with other `Waits`: a command reports at once that no
broker answers, a test waits for one that restarts.
"""
