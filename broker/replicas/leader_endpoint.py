"""Leader endpoint: the requests of one replica fetcher to its leader, Fetch and ListOffsets, in one fetch session.

Source: RemoteLeaderEndPoint and BrokerBlockingSender of Kafka 4.3.1.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from broker.network.client import Address, ClientSettings, Disconnected, NodeClient
from broker.replicas.partition_fetch_states import Key
from broker.replication.follower import Bounds
from broker.replication.follower_session import FollowerSession
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.special_timestamps import EARLIEST, LATEST
from protocol.types import TopicPartition

#: With topic ids (KIP-516), which is what all brokers of a KRaft cluster speak.
_FETCH_VERSIONS: Final = range(13, 19)
#: The leader has no such session: the next request must not name it.
_SESSION_IS_GONE: Final = frozenset(
    {ErrorCode.fetch_session_id_not_found, ErrorCode.fetch_session_topic_id_error}
)
#: Errors of a session, which a new session corrects.
SESSION_ERRORS: Final = _SESSION_IS_GONE | {ErrorCode.invalid_fetch_session_epoch}

_UNANSWERED: Final = (ErrorCode.unknown_server_error, -1)


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
    connections: ClientSettings = ClientSettings(response_max_bytes=128 * 1024 * 1024)  # noqa: RUF009 (frozen)


class LeaderEndpoint:
    """See the module. `address` returns the leader's present address, None while it is unknown."""

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
        self._session: FollowerSession[Key, FetchPartition] = FollowerSession()

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    def reset_session(self) -> None:
        """A response is lost: the next Fetch is a full one."""
        self._session.on_refusal(is_gone=False)

    async def fetch(
        self,
        changes: Mapping[Key, FetchPartition | None],
        everything: Callable[[], dict[Key, FetchPartition]],
    ) -> FetchResponse:
        """Fetch the rows of the session, with these changes (`FollowerSession.request`); also if it has an error code.

        Raises OSError, TimeoutError, KafkaError.
        """
        address = self._present_address()
        request = self._session.request(changes, everything)
        response: FetchResponse = await self._client.request(
            address,
            ApiKey.FETCH,
            FetchRequest(
                replica_state=ReplicaState(
                    replica_id=self._settings.node_id, replica_epoch=self._broker_epoch()
                ),
                max_wait_ms=self._settings.wait_max_ms,
                min_bytes=self._settings.min_bytes,
                max_bytes=self._settings.response_max_bytes,
                session_id=request.session_id,
                session_epoch=request.epoch,
                topics=_by_topic(request.rows),
                forgotten_topics_data=_forgotten(request.forgotten),
            ),
            timeout_s=self._settings.request_timeout_ms / 1000,
            versions=_FETCH_VERSIONS,
        )
        if response.error_code == ErrorCode.none:
            self._session.on_answer(response.session_id)
        else:
            self._session.on_refusal(is_gone=response.error_code in _SESSION_IS_GONE)
        return response

    async def bounds(
        self, leader_epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Bounds | ErrorCode]:
        """Where the leader's logs start and end, or why that is unknown; one request for each bound.

        Raises OSError, TimeoutError, KafkaError.
        """
        address = self._present_address()
        ends = await self._offsets(address, leader_epochs, LATEST)
        starts = await self._offsets(address, leader_epochs, EARLIEST)
        found: dict[TopicPartition, Bounds | ErrorCode] = {}
        for topic_partition in leader_epochs:
            end_error, end = ends.get(topic_partition, _UNANSWERED)
            start_error, start = starts.get(topic_partition, _UNANSWERED)
            if end_error is start_error is ErrorCode.none:
                found[topic_partition] = Bounds(log_start_offset=start, log_end_offset=end)
            elif ErrorCode.fenced_leader_epoch in (end_error, start_error):
                found[topic_partition] = ErrorCode.fenced_leader_epoch
            else:
                found[topic_partition] = start_error if end_error is ErrorCode.none else end_error
        return found

    async def _offsets(
        self, address: Address, leader_epochs: Mapping[TopicPartition, int], timestamp: int
    ) -> dict[TopicPartition, tuple[ErrorCode, int]]:
        """One bound of the leader's logs by ListOffsets: (error code, offset) of each partition that was answered."""
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
        )
        return {
            TopicPartition(topic.name, row.partition_index): (ErrorCode(row.error_code), row.offset)
            for topic in response.topics
            for row in topic.partitions
        }

    def _present_address(self) -> Address:
        address = self._address()
        if address is None:
            raise Disconnected(f"broker {self.leader_id} has no address now")
        return address


def _by_topic(rows: Mapping[Key, FetchPartition]) -> list[FetchTopic]:
    topics: dict[UUID, FetchTopic] = {}
    for (topic_id, _), row in rows.items():
        topics.setdefault(topic_id, FetchTopic(topic_id=topic_id)).partitions.append(row)
    return list(topics.values())


def _forgotten(keys: Iterable[Key]) -> list[ForgottenTopic]:
    topics: dict[UUID, ForgottenTopic] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
    return list(topics.values())
