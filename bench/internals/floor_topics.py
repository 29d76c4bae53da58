"""Topics of the floor (`floor.py`): a file for each partition, and the answers to all requests but Produce.

Clients that are made for brokers can use it: they create topics, find the leader and check the log end
offsets. There are no errors: what is not expected ends the connection.
"""

import asyncio
import itertools
import mmap
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import Final
from uuid import NAMESPACE_OID, UUID, uuid5

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.checksum import crc32c
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.records.batch import ATTRIBUTES_OFFSET
from ottla.protocol.schema import Request, Response

#: The served versions. Produce: those without tagged fields, of which clients take the last one.
VERSIONS: Final = {
    ApiKey.PRODUCE: (3, 8),
    ApiKey.FETCH: (4, 16),
    ApiKey.LIST_OFFSETS: (1, 5),
    ApiKey.METADATA: (1, 12),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.CREATE_TOPICS: (2, 5),
    ApiKey.DELETE_TOPICS: (1, 4),
    ApiKey.INIT_PRODUCER_ID: (0, 2),
}
_NODE: Final = 1
#: The size of the file's mapping, beyond the file's end, so that no append needs a new one; the file has no
#: blocks there.
_MAPPED_BYTES: Final = 8 << 30
_OFFSET: Final = Struct(">q")
#: The fields behind the CRC: CRC, attributes, last offset delta.
_CHECKED: Final = Struct(">Ihi")
_CRC_AT: Final = 17


class Partition:
    """The log of one partition: a file without an index."""

    def __init__(self, path: Path, *, is_mapped: bool) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self._end_bytes = 0
        self.log_end_offset = 0
        if is_mapped:
            os.ftruncate(self._file, _MAPPED_BYTES)
            self._mapping = memoryview(mmap.mmap(self._file, _MAPPED_BYTES, access=mmap.ACCESS_READ))

    def append(self, batch: memoryview) -> int:
        """Check the CRC of a batch, set its base offset, and write it; return the base offset."""
        crc, _, last_offset_delta = _CHECKED.unpack_from(batch, _CRC_AT)
        if crc32c(batch[ATTRIBUTES_OFFSET:]) != crc:
            raise ValueError("a batch with another CRC")
        base_offset = self.log_end_offset
        _OFFSET.pack_into(batch, 0, base_offset)
        if os.pwrite(self._file, batch, self._end_bytes) != len(batch):
            raise OSError("a part was written")
        self._end_bytes += len(batch)
        self.log_end_offset = base_offset + last_offset_delta + 1
        return base_offset

    def last_bytes(self, count: int) -> memoryview:
        """Return the end of the log, from the file's mapping."""
        assert self._end_bytes <= _MAPPED_BYTES, "the floor has no further segment"
        return self._mapping[self._end_bytes - count : self._end_bytes]

    def all_bytes(self) -> bytes:
        """Return the whole log of the partition."""
        return os.pread(self._file, self._end_bytes, 0)

    def close(self) -> None:
        """Close the file: nothing is appended any more; a mapping lasts until its last bytes are sent."""
        os.close(self._file)


class Topics:
    """All topics, led by this node, and requests about them."""

    def __init__(self, folder: Path, *, port: int, followers: int) -> None:
        self._folder = folder
        self._port = port
        self._followers = followers
        self._partitions: dict[str, list[Partition]] = {}
        self._names: dict[UUID, str] = {}
        self._deleted = itertools.count()

    def partition(self, topic: str, index: int) -> Partition:
        """Return the partition of a topic. Raises LookupError."""
        return self._partitions[topic][index]

    def answer(self, request: Request) -> Response:
        """Answer a request about one topic; Metadata may be about all."""
        match request:
            case CreateTopicsRequest(topics=[topic]):
                self._create(topic.name, topic.num_partitions)
                return CreateTopicsResponse(topics=[CreatableTopicResult(name=topic.name)])
            case DeleteTopicsRequest(topic_names=[name]):
                self._delete(name)
                return DeleteTopicsResponse(responses=[DeletableTopicResult(name=name)])
            case MetadataRequest(topics=topics):
                names = self._partitions if topics is None else [topic.name or "" for topic in topics]
                return self._metadata(names)
            case ListOffsetsRequest(topics=[topic]):
                ends = [
                    ListOffsetsPartitionResponse(partition_index=index, offset=partition.log_end_offset)
                    for index, partition in enumerate(self._partitions[topic.name])
                ]
                return ListOffsetsResponse(
                    topics=[ListOffsetsTopicResponse(name=topic.name, partitions=ends)]
                )
            case FetchRequest(topics=[FetchTopic(topic=name, topic_id=topic_id, partitions=[row])]):
                # The whole log, whatever the offset: for topics of one batch. The topic is named in one of two ways.
                partition = self.partition(name or self._names[topic_id], row.partition)
                data = PartitionData(
                    partition_index=row.partition,
                    high_watermark=partition.log_end_offset,
                    records=partition.all_bytes(),
                )
                answer = FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=[data])
                return FetchResponse(responses=[answer])
            case ApiVersionsRequest():
                rows = [
                    ApiVersion(api_key=key, min_version=least, max_version=most)
                    for key, (least, most) in VERSIONS.items()
                ]
                return ApiVersionsResponse(api_keys=rows)
            case InitProducerIdRequest():
                return InitProducerIdResponse(producer_id=1)
            case _:
                raise ValueError(f"{request} is not served")

    def _create(self, name: str, count: int) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True)
        self._names[_topic_id(name)] = name
        is_mapped = self._followers > 0
        self._partitions[name] = [
            Partition(folder / f"{index}.log", is_mapped=is_mapped) for index in range(count)
        ]

    def _delete(self, name: str) -> None:
        for partition in self._partitions.pop(name):
            partition.close()
        # In a thread: to free a gigabyte of files takes 60 ms. A topic of this name may be created again before.
        deleted = self._folder / f"{next(self._deleted)}-deleted"
        (self._folder / name).rename(deleted)
        asyncio.get_running_loop().run_in_executor(None, shutil.rmtree, deleted)

    def _metadata(self, names: Iterable[str]) -> MetadataResponse:
        """Return Metadata in which all replicas are in sync, and this node leads."""
        replicas = [_NODE + at for at in range(1 + self._followers)]

        def partition(index: int) -> MetadataResponsePartition:
            return MetadataResponsePartition(
                partition_index=index, leader_id=_NODE, replica_nodes=replicas, isr_nodes=replicas
            )

        counts = {name: len(self._partitions.get(name, ())) for name in names}
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=_NODE, host="127.0.0.1", port=self._port)],
            cluster_id="floor",
            controller_id=_NODE,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    topic_id=_topic_id(name),
                    partitions=[partition(index) for index in range(count)],
                )
                for name, count in counts.items()
            ],
        )


def _topic_id(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)
