"""More commands for stories about followers with little local data, and about elections (KIP-1023, draft KIP-1303).

| command | meaning |
|---|---|
| `cluster key=value ...` | a dynamic configuration of all brokers; `key=` removes it |
| `lose 3` | broker 3 stops, loses its log directories, and starts |
| `in-sync A-0 1,2,3` | wait until exactly these are in the ISR |
| `local A-0 on 3 8 9` | wait until broker 3 has local segments with exactly these base offsets |
| `known A-0 1@0 3@8` | wait until the metadata log has exactly these local log start offsets of replicas |
| `led-by A-0 2` | wait until broker 2 leads |
| `elect A-0` | a preferred election; it may change nothing |
"""

from pathlib import Path

from ottla.metadata.frame import decode_record
from ottla.metadata.image import MetadataImage
from ottla.metadata.records import BeginTransactionRecord, EndTransactionRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import batches
from ottla.protocol.records.record import values_of
from tests.compat.admin import eventually_equal
from tests.compat.tiering.stage import Stage
from tests.compat.tiering.tiered_cluster import TieredCluster

_BROKER = 4
#: Around the first records of the log, which are in several batches.
_BRACKETS = (BeginTransactionRecord, EndTransactionRecord)
_CHANGES_NOTHING = frozenset(
    {ErrorCode.none, ErrorCode.election_not_needed, ErrorCode.preferred_leader_not_available}
)


class ElectionStage(Stage):
    """The brokers, topics and commands of a story about elections."""

    def __init__(self, cluster: TieredCluster) -> None:
        super().__init__(cluster)
        self._commands.update(
            {
                "cluster": self._configure,
                "lose": self._lose,
                "in-sync": self._expect_in_sync,
                "local": self._expect_local,
                "known": self._expect_known,
                "led-by": self._expect_leader,
                "elect": self._elect,
            }
        )

    def _configure(self, *pairs: str) -> None:
        self._alter_configs(_BROKER, "", pairs)

    def _lose(self, node_id: str) -> None:
        self._node(node_id).stop()
        self._cluster.wipe(int(node_id))
        self._node(node_id).start()

    def _elect(self, name: str) -> None:
        answer = self._hold_preferred_election(name)
        codes = [row.error_code for each in answer.replica_election_results for row in each.partition_result]
        assert set(codes) <= _CHANGES_NOTHING, answer

    # -- what is expected ------------------------------------------------------------------------------

    def _expect_in_sync(self, name: str, members: str) -> None:
        eventually_equal(
            lambda: sorted(self._partition(name).isr_nodes), sorted(map(int, members.split(",")))
        )

    def _expect_leader(self, name: str, node_id: str) -> None:
        eventually_equal(lambda: self._leader(name), int(node_id))

    def _expect_local(self, name: str, _on: str, node_id: str, *offsets: str) -> None:
        def found() -> list[int]:
            folders = [directory / name for directory in self._node(node_id).log_dirs]
            return sorted(int(path.stem) for folder in folders for path in folder.glob("*.log"))

        eventually_equal(found, [int(each) for each in offsets])

    def _expect_known(self, name: str, *starts: str) -> None:
        topic, _, index = name.rpartition("-")

        def found() -> dict[int, int]:
            partition = (
                _image_of(self._cluster.controller.log_dirs[0]).topics_by_name[topic].partitions[int(index)]
            )
            return {replica: local_log.start_offset for replica, local_log in partition.local_logs}

        pairs = (each.split("@") for each in starts)
        eventually_equal(found, {int(replica): int(start) for replica, start in pairs})


def _image_of(directory: Path) -> MetadataImage:
    """The image of a controller's metadata log, which is too short for a snapshot."""
    image = MetadataImage()
    for path in sorted((directory / "__cluster_metadata-0").glob("*.log")):
        for header, batch in batches(memoryview(path.read_bytes())):
            if not header.is_control:
                decoded = (decode_record(value) for value in values_of(batch) if value is not None)
                image.replay_all(record for record in decoded if not isinstance(record, _BRACKETS))
    return image
