"""Automatic topic creation: topics of clients' requests (auto.create.topics.enable), and internal topics.

Source: AutoTopicCreationManager of Kafka 4.3.1.
"""

import logging
from collections.abc import Iterable, Mapping

from ottla.broker.membership.controller_channel import ControllerChannel
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, InvalidTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.topic_names import INTERNAL_TOPICS, check_topic_name

logger = logging.getLogger(__name__)

CREATE_TIMEOUT_MS = 30_000


class TopicCreator:
    """Sends CreateTopics to the controller; a topic that exists already counts as created."""

    def __init__(self, controller: ControllerChannel) -> None:
        self._controller = controller

    async def create(self, names: Iterable[str]) -> None:
        """Create these topics with the broker's defaults; invalid and internal names are skipped."""
        topics = [
            CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            for name in names
            if name not in INTERNAL_TOPICS and _is_valid(name)
        ]
        if topics:
            await self._request(topics)

    async def create_internal(
        self, name: str, *, partition_count: int, replication_factor: int, configs: Mapping[str, str]
    ) -> None:
        """Create an internal topic with the settings that its coordinator needs."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=replication_factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        await self._request([topic])

    async def _request(self, topics: list[CreatableTopic]) -> None:
        request = CreateTopicsRequest(topics=topics, timeout_ms=CREATE_TIMEOUT_MS)
        response = await self._controller.request(ApiKey.CREATE_TOPICS, request)
        for result in response.topics:
            if result.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
                logger.warning(
                    "topic %r was not created: %s (%s)",
                    result.name,
                    ErrorCode(result.error_code).name,
                    result.error_message,
                )


def _is_valid(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopic:
        return False
    return True
