"""Leader endpoint: the requests of one replica fetcher to its leader. Fetches are in one fetch session.

The other ones ask where the leader's logs and epochs start and end: ListOffsets, OffsetForLeaderEpoch. A
partition has one row in each of them, so that the number of requests does not depend on the number of
partitions.

Source: RemoteLeaderEndPoint and BrokerBlockingSender of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.broker.network.client import Address, ClientSettings, Disconnected, NodeClient
from ottla.broker.network.response_buffer import ResponseBuffer
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import encode_request
from ottla.protocol.errors import ErrorCode, OffsetNotAvailable, UnsupportedVersion
from ottla.protocol.hot import fetch as codec
from ottla.protocol.hot.fetch import FetchRow, Key, Records
from ottla.protocol.messages.fetch import (
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.reader_helpers import uuid_of
from ottla.protocol.special_timestamps import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
)
from ottla.protocol.types import TopicPartition
from ottla.replication.follower import Bounds, Divergence
from ottla.replication.follower_session import FollowerSession, SessionRequest
from ottla.replication.remote_log_aux import (
    EpochEnd,
    FetchEpochEnd,
    FetchLeaderOffsets,
    LeaderOffsets,
    bootstrap_offset,
    previous_epoch,
)

#: With topic ids (KIP-516), which is what all brokers of a KRaft cluster speak.
_FETCH_VERSIONS: Final = range(13, 19)
#: The leader has no such session: the next request must not name it.
_SESSION_IS_GONE: Final = frozenset(
    {ErrorCode.fetch_session_id_not_found, ErrorCode.fetch_session_topic_id_error}
)
#: Errors of a session, which a new session corrects.
SESSION_ERRORS: Final = _SESSION_IS_GONE | {ErrorCode.invalid_fetch_session_epoch}

#: The versions of ListOffsets that have a timestamp for the local log start offset (KIP-405), and so on
#: (KIP-1005, KIP-1023).
_VERSIONS: Final = {
    EARLIEST_LOCAL: range(8, 12),
    LATEST_TIERED: range(9, 12),
    EARLIEST_PENDING_UPLOAD: range(11, 12),
}


class _Offset(NamedTuple):
    """One row of a ListOffsets response."""

    error: ErrorCode
    offset: int
    leader_epoch: int

    @property
    def is_unknown(self) -> bool:
        """The leader has no such offset, or does not know it yet."""
        return self.error is ErrorCode.none and self.offset < 0


_UNANSWERED: Final = _Offset(ErrorCode.unknown_server_error, -1, -1)


class FetchAnswer(NamedTuple):
    """A leader's response to a Fetch: an error of the whole request, or the answers to its rows."""

    error: ErrorCode
    session_id: int
    rows: Sequence[tuple[Key, Records | Divergence | ErrorCode]]


#: The default: the settings are immutable.
_CONNECTIONS: Final = ClientSettings(response_max_bytes=128 * 1024 * 1024)


@dataclass(slots=True, frozen=True, kw_only=True)
class FetcherSettings:
    """Configuration of the fetchers; names are those of Kafka's keys after `replica.fetch.`."""

    node_id: int
    wait_max_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 1_048_576
    response_max_bytes: int = 10_485_760
    backoff_ms: int = 1_000
    #: request.timeout.ms
    request_timeout_ms: int = 30_000
    #: A response may exceed the requested size: by one batch, which a leader accepts up to a request's size, and by
    #: the other fields of each partition. A response above this `response_max_bytes` is invalid.
    connections: ClientSettings = _CONNECTIONS


class LeaderEndpoint:
    """Sends one replica fetcher's requests to its leader, over one connection.

    `address` returns the leader's present address, None while it is unknown.
    """

    def __init__(
        self,
        client: NodeClient,
        *,
        leader_id: int,
        address: Callable[[], Address | None],
        broker_epoch: Callable[[], int],
        settings: FetcherSettings,
    ) -> None:
        self.leader_id = leader_id
        self._client = client
        self._address = address
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._session: FollowerSession[Key, FetchRow] = FollowerSession()
        #: For records; the fetcher releases it when it has appended them.
        self.buffer = ResponseBuffer()

    async def close(self) -> None:
        """Close the connection to the leader."""
        await self._client.close()

    def reset_session(self) -> None:
        """Send a full Fetch next, since a response was lost."""
        self._session.on_refusal(is_gone=False)

    async def fetch(
        self,
        changes: Mapping[Key, FetchRow | None],
        everything: Callable[[], dict[Key, FetchRow]],
        *,
        wait_max_ms: int,
    ) -> FetchAnswer:
        """Fetch the rows of the session, with these changes (`FollowerSession.request`).

        Without records, the leader responds after `wait_max_ms`, or replica.fetch.wait.max.ms if that is less.
        The records are valid until `buffer` is released.
        Raises OSError, TimeoutError, KafkaError.
        """
        address = self._present_address()
        request = self._session.request(changes, everything)
        wait_max_ms = min(wait_max_ms, self._settings.wait_max_ms)
        answer = await self._client.request_encoded(
            address,
            ApiKey.FETCH,
            lambda version: self._encode_fetch(request, wait_max_ms, version),
            _decode_fetch,
            timeout_s=self._settings.request_timeout_ms / 1000,
            versions=_FETCH_VERSIONS,
            buffer=self.buffer,
        )
        if answer.error is ErrorCode.none:
            self._session.on_answer(answer.session_id)
        else:
            self._session.on_refusal(is_gone=answer.error in _SESSION_IS_GONE)
        return answer

    def _encode_fetch(self, request: SessionRequest[Key, FetchRow], wait_max_ms: int, version: int) -> bytes:
        """Encode a request of nothing but new offsets on the fast path, and any other one by the general codec."""
        settings = self._settings
        if not request.forgotten:
            encoded = codec.encode_fast_request(
                version,
                request.rows,
                replica_id=settings.node_id,
                replica_epoch=self._broker_epoch(),
                max_wait_ms=wait_max_ms,
                min_bytes=settings.min_bytes,
                max_bytes=settings.response_max_bytes,
                session_id=request.session_id,
                session_epoch=request.epoch,
            )
            if encoded is not None:
                return encoded
        message = FetchRequest(
            replica_state=ReplicaState(replica_id=settings.node_id, replica_epoch=self._broker_epoch()),
            max_wait_ms=wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=request.session_id,
            session_epoch=request.epoch,
            topics=_by_topic(request.rows),
            forgotten_topics_data=_forgotten(request.forgotten),
        )
        return encode_request(ApiKey.FETCH, version, message)

    async def bounds(
        self, leader_epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Bounds | ErrorCode]:
        """Return each log's start and end at the leader, or the error code; one request for each bound.

        Raises OSError, TimeoutError, KafkaError.
        """
        address = self._present_address()
        ends = await self._offsets(address, leader_epochs, LATEST)
        starts = await self._offsets(address, leader_epochs, EARLIEST)
        found: dict[TopicPartition, Bounds | ErrorCode] = {}
        for topic_partition in leader_epochs:
            end = ends.get(topic_partition, _UNANSWERED)
            start = starts.get(topic_partition, _UNANSWERED)
            error = _first_error(end, start)
            found[topic_partition] = error or Bounds(log_start_offset=start.offset, log_end_offset=end.offset)
        return found

    async def leader_offsets(
        self, asked: Mapping[TopicPartition, FetchLeaderOffsets]
    ) -> dict[TopicPartition, LeaderOffsets | ErrorCode]:
        """Return where each of the leader's logs starts in both tiers, or the error code; at most five requests.

        The leader may advance all of these offsets between the requests. The log start is the first one: a
        Fetch from an old local log start fails. The earliest pending upload offset is the last one: it is
        never before the local log start. Raises OSError, TimeoutError, KafkaError.
        """
        address = self._present_address()
        leader_epochs = {each: row.leader_epoch for each, row in asked.items()}
        starts = await self._offsets(address, leader_epochs, EARLIEST)
        local_starts = await self._offsets(address, leader_epochs, EARLIEST_LOCAL)
        pending = await self._pending_uploads(address, asked, starts, local_starts)
        begins = {
            each: _begin(
                starts.get(each, _UNANSWERED), local_starts.get(each, _UNANSWERED), pending.get(each)
            )
            for each in asked
        }
        earlier = {
            each: FetchEpochEnd(leader_epoch=leader_epochs[each], epoch=begin.leader_epoch - 1)
            for each, begin in begins.items()
            if begin.leader_epoch > 0 and begin.offset > starts[each].offset
        }
        ends = await self.epoch_ends(earlier) if earlier else {}
        return {
            each: begin.error
            or _leader_offsets(
                begin, ends.get(each), start=starts[each].offset, local_start=local_starts[each].offset
            )
            for each, begin in begins.items()
        }

    async def _pending_uploads(
        self,
        address: Address,
        asked: Mapping[TopicPartition, FetchLeaderOffsets],
        starts: Mapping[TopicPartition, _Offset],
        local_starts: Mapping[TopicPartition, _Offset],
    ) -> dict[TopicPartition, _Offset]:
        """The earliest pending upload offsets (KIP-1023) that followers prefer; none if the leader serves none.

        Kafka's leader does not return an offset that is its log end offset: a log without a record that is
        not tiered would have no follower until the next record. It returns the last tiered offset (KIP-1005).
        """
        wanted = {each: row.leader_epoch for each, row in asked.items() if row.prefers_last_tiered}
        if not wanted:
            return {}
        try:
            found = await self._offsets(address, wanted, EARLIEST_PENDING_UPLOAD)
        except UnsupportedVersion:
            return {}
        pending = {each: found.get(each, _UNANSWERED) for each in wanted}
        unknown = {
            each: wanted[each]
            for each, row in pending.items()
            if row.is_unknown
            and starts.get(each, _UNANSWERED).offset < local_starts.get(each, _UNANSWERED).offset
        }
        if unknown:
            tiered = await self._offsets(address, unknown, LATEST_TIERED)
            pending |= {
                each: row if row.error else row._replace(offset=row.offset + 1)
                for each, row in tiered.items()
                if not row.is_unknown
            }
        return pending

    async def epoch_ends(
        self, asked: Mapping[TopicPartition, FetchEpochEnd]
    ) -> dict[TopicPartition, EpochEnd | ErrorCode]:
        """Return where each epoch ends in the leader's log, or the error code.

        Raises OSError, TimeoutError, KafkaError.
        """
        topics: dict[str, OffsetForLeaderTopic] = {}
        for (topic, index), row in asked.items():
            topics.setdefault(topic, OffsetForLeaderTopic(topic=topic)).partitions.append(
                OffsetForLeaderPartition(
                    partition=index, current_leader_epoch=row.leader_epoch, leader_epoch=row.epoch
                )
            )
        response: OffsetForLeaderEpochResponse = await self._client.request(
            self._present_address(),
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            OffsetForLeaderEpochRequest(replica_id=self._settings.node_id, topics=list(topics.values())),
            timeout_s=self._settings.request_timeout_ms / 1000,
        )
        found: dict[TopicPartition, EpochEnd | ErrorCode] = dict.fromkeys(asked, _UNANSWERED.error)
        for topic_row in response.topics:
            for end in topic_row.partitions:
                found[TopicPartition(topic_row.topic, end.partition)] = (
                    ErrorCode(end.error_code)
                    if end.error_code
                    else EpochEnd(epoch=end.leader_epoch, end_offset=end.end_offset)
                )
        return found

    async def _offsets(
        self, address: Address, leader_epochs: Mapping[TopicPartition, int], timestamp: int
    ) -> dict[TopicPartition, _Offset]:
        """Return one bound of the leader's logs (ListOffsets), for each partition that is in the response."""
        topics: dict[str, ListOffsetsTopic] = {}
        for (topic, index), leader_epoch in leader_epochs.items():
            topics.setdefault(topic, ListOffsetsTopic(name=topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=leader_epoch, timestamp=timestamp
                )
            )
        response: ListOffsetsResponse = await self._client.request(
            address,
            ApiKey.LIST_OFFSETS,
            ListOffsetsRequest(replica_id=self._settings.node_id, topics=list(topics.values())),
            timeout_s=self._settings.request_timeout_ms / 1000,
            versions=_VERSIONS.get(timestamp),
        )
        return {
            TopicPartition(topic.name, row.partition_index): _Offset(
                ErrorCode(row.error_code), row.offset, row.leader_epoch
            )
            for topic in response.topics
            for row in topic.partitions
        }

    def _present_address(self) -> Address:
        address = self._address()
        if address is None:
            raise Disconnected(f"broker {self.leader_id} has no address now")
        return address


def _first_error(*rows: _Offset) -> ErrorCode | None:
    """Return the error of one of the rows, FENCED_LEADER_EPOCH before others; None: all rows have an offset."""
    errors = [row.error for row in rows if row.error is not ErrorCode.none]
    if ErrorCode.fenced_leader_epoch in errors:
        return ErrorCode.fenced_leader_epoch
    return errors[0] if errors else None


def _begin(start: _Offset, local_start: _Offset, pending: _Offset | None) -> _Offset:
    """The offset at which the follower's local log is to start, or an error; `pending` None: it is not preferred."""
    if error := _first_error(start, local_start, *([] if pending is None else [pending])):
        return _Offset(error, -1, -1)
    try:
        offset = bootstrap_offset(
            log_start_offset=start.offset,
            local_log_start_offset=local_start.offset,
            earliest_pending_upload_offset=None if pending is None or pending.is_unknown else pending.offset,
            prefers_last_tiered=pending is not None,
        )
    except OffsetNotAvailable:
        return _Offset(OffsetNotAvailable.code, -1, -1)
    begin = pending if pending is not None and pending.offset == offset else local_start
    if begin.leader_epoch < 0 and offset > start.offset:
        # The remote tier can be asked by epochs only.
        return _Offset(ErrorCode.offset_not_available, -1, -1)
    return begin


def _leader_offsets(
    begin: _Offset, earlier: EpochEnd | ErrorCode | None, *, start: int, local_start: int
) -> LeaderOffsets | ErrorCode:
    """Combine the leader's offsets with `earlier`, the end of the epoch before that of `begin`.

    None: it was not asked for.
    """
    if isinstance(earlier, ErrorCode):
        return earlier
    has_tiered = begin.offset > start
    return LeaderOffsets(
        log_start_offset=start,
        local_log_start_offset=local_start,
        bootstrap_offset=begin.offset,
        previous_epoch=previous_epoch(begin.offset, epoch=begin.leader_epoch, earlier=earlier)
        if has_tiered
        else None,
    )


def _by_topic(rows: Mapping[Key, FetchRow]) -> list[FetchTopic]:
    topics: dict[bytes, FetchTopic] = {}
    for (topic_id, _), row in rows.items():
        topics.setdefault(topic_id, FetchTopic(topic_id=uuid_of(topic_id))).partitions.append(
            row.to_message()
        )
    return list(topics.values())


def _decode_fetch(version: int, body: memoryview) -> FetchAnswer:
    """Decode a response without errors on the fast path, and others by the general codec. Raises MalformedMessage."""
    decoded = codec.decode_fast_response(version, body)
    if decoded is not None:
        session_id, rows = decoded
        return FetchAnswer(ErrorCode.none, session_id, rows)
    response = codec.decode_response(version, body)
    return FetchAnswer(
        ErrorCode(response.error_code),
        response.session_id,
        [
            ((topic.topic_id.bytes, row.partition_index), _answer(row))
            for topic in response.responses
            for row in topic.partitions
        ],
    )


def _answer(row: PartitionData) -> Records | Divergence | ErrorCode:
    if row.error_code != ErrorCode.none:
        return ErrorCode(row.error_code)
    if row.diverging_epoch.epoch >= 0:
        return Divergence(epoch=row.diverging_epoch.epoch, end_offset=row.diverging_epoch.end_offset)
    return Records(
        records=memoryview(row.records or b""),
        high_watermark=row.high_watermark,
        log_start_offset=row.log_start_offset,
    )


def _forgotten(keys: Iterable[Key]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, ForgottenTopic(topic_id=uuid_of(topic_id))).partitions.append(index)
    return list(topics.values())
