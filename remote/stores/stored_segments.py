"""The content of a store, grouped by segment: the objects of each copy, and names that are not ours."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.remote.segment_metadata import RemoteLogSegmentId
from ottla.remote.storage_manager import IndexType
from ottla.remote.stores.object_storage import ListedObject, StoredObject, parse_key

#: Every complete copy has these objects; None is the segment itself.
REQUIRED: Final = (
    None, IndexType.OFFSET, IndexType.TIMESTAMP, IndexType.PRODUCER_SNAPSHOT, IndexType.LEADER_EPOCH,
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class StoredSegment:
    """The objects of one copy in the store."""

    segment_id: RemoteLogSegmentId
    start_offset: int
    objects: dict[IndexType | None, StoredObject] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """The size of all objects of the copy."""
        return sum(each.size_bytes for each in self.objects.values())

    @property
    def modified_ms(self) -> int:
        """The time at which the last object was written."""
        return max(each.modified_ms for each in self.objects.values())

    @property
    def missing(self) -> list[IndexType | None]:
        """The kinds of objects that every copy has and this one lacks."""
        return [each for each in REQUIRED if each not in self.objects]


@dataclass(slots=True, frozen=True, kw_only=True)
class StoredSegments:
    """All objects of a store, grouped by copy."""

    segments: Mapping[RemoteLogSegmentId, StoredSegment]
    #: Objects whose names no copy has.
    foreign: tuple[ListedObject, ...]

    @property
    def objects_count(self) -> int:
        """The number of objects of all copies."""
        return sum(len(each.objects) for each in self.segments.values())

    @property
    def size_bytes(self) -> int:
        """The size of the objects of all copies."""
        return sum(each.size_bytes for each in self.segments.values())

    @classmethod
    def of(cls, listed: Iterable[ListedObject]) -> "StoredSegments":
        """Group listed objects by copy; their order does not matter."""
        segments: dict[RemoteLogSegmentId, StoredSegment] = {}
        foreign = []
        for each in listed:
            found = parse_key(*each)
            if found is None:
                foreign.append(each)
                continue
            segment = segments.get(found.segment_id)
            if segment is None:
                segment = StoredSegment(segment_id=found.segment_id, start_offset=found.start_offset)
                segments[found.segment_id] = segment
            segment.objects[found.index_type] = found
        return cls(segments=segments, foreign=tuple(foreign))


def name_of(index_type: IndexType | None) -> str:
    """Return the name of an object's kind, for a reader: `log` for the segment itself."""
    return "log" if index_type is None else index_type.value
