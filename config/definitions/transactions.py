"""Transactions and idempotent producers.

Names, types, defaults and bounds are Kafka 4.3.1's.
"""

from ottla.config.config_def import ConfigKey, NotServed, unread
from ottla.config.definitions.features import TRANSACTIONS
from ottla.config.definitions.shorthand import (
    AT_LEAST_0,
    AT_LEAST_1,
    BOOLEAN,
    CLUSTER_WIDE,
    HIGH,
    INT,
    LOW,
    SHORT,
)

KEYS = (
    *unread(TRANSACTIONS, (
    ConfigKey("transaction.state.log.min.isr", INT, 2,
              "In-sync replicas that a write to the transaction state topic needs.",
              HIGH, check=AT_LEAST_1),
    ConfigKey("transaction.state.log.load.buffer.size", INT, 5_242_880,
              "Bytes read at once when transactions are loaded.",
              HIGH, check=AT_LEAST_1),
    ConfigKey("transaction.state.log.replication.factor", SHORT, 3,
              "Replicas of the transaction state topic; it is not created while there are fewer brokers.",
              HIGH, check=AT_LEAST_1),
    ConfigKey("transaction.state.log.num.partitions", INT, 50,
              "Partitions of the transaction state topic; not to be changed once it exists.",
              HIGH, check=AT_LEAST_1),
    ConfigKey("transaction.state.log.segment.bytes", INT, 104_857_600,
              "Segment size of the transaction state topic.",
              HIGH, check=AT_LEAST_1),
    ConfigKey("transaction.partition.verification.enable", BOOLEAN, True,
              "Whether a partition asks the coordinator if a transaction is open before its first write "
              "(KIP-890).",
              LOW, update_mode=CLUSTER_WIDE),
    )),
    ConfigKey("producer.id.expiration.ms", INT, 86_400_000,
              "Time after its last write at which an idempotent producer's sequence numbers are removed.",
              LOW, check=AT_LEAST_1, update_mode=CLUSTER_WIDE),
    ConfigKey("producer.id.expiration.check.interval.ms", INT, 600_000,
              "Interval of the check for expired producers.",
              LOW, check=AT_LEAST_1, is_internal=True),
    *unread(TRANSACTIONS, (
    ConfigKey("transactional.id.expiration.ms", INT, 604_800_000,
              "Time after its last use at which a transactional id is removed.",
              HIGH, check=AT_LEAST_1),
    ConfigKey("transaction.max.timeout.ms", INT, 900_000,
              "Maximum transaction timeout that a producer may request.",
              HIGH, check=AT_LEAST_1),
    ConfigKey("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10000,
              "Interval of the check for transactions that have exceeded their timeout.",
              LOW, check=AT_LEAST_1),
    ConfigKey("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000,
              "Interval of the check for expired transactional ids.",
              LOW, check=AT_LEAST_1),
    ConfigKey("transaction.two.phase.commit.enable", BOOLEAN, False,
              "Whether producers may participate in an external two-phase commit (KIP-939).",
              LOW,
              unread=NotServed("two-phase commit (KIP-939)", is_refused=True)),
    ConfigKey("add.partitions.to.txn.retry.backoff.max.ms", INT, 100,
              "Maximum pause when the server asks again to add partitions to a transaction.",
              HIGH, check=AT_LEAST_0),
    ConfigKey("add.partitions.to.txn.retry.backoff.ms", INT, 20,
              "First pause when the server asks again to add partitions to a transaction.",
              HIGH, check=AT_LEAST_1),
    )),
)  # fmt: skip
