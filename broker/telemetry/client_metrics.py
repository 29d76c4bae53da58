"""ClientMetrics: answers GetTelemetrySubscriptions and PushTelemetry, a function of state, request and time.

    GetTelemetrySubscriptions --in time--> what the client is asked for  --too early--> THROTTLING_QUOTA_EXCEEDED
    PushTelemetry after a push that was the last one ------------------> INVALID_REQUEST
                  too early, and not the last one ---------------------> THROTTLING_QUOTA_EXCEEDED
                  for what the client is no longer asked for ----------> UNKNOWN_SUBSCRIPTION_ID
                  in a codec that does not exist ----------------------> UNSUPPORTED_COMPRESSION_TYPE
                  of more than telemetry.max.bytes --------------------> TELEMETRY_TOO_LARGE
                  else ------------------------------------------------> accepted: `ottla.broker.telemetry.series`

A request is in time once the push interval has passed since the last one. A push may follow what it was asked for at
once, and so may the question after one of the two errors that ask for it; a change of subscriptions allows both.

An instance of a client is forgotten with its connection, after three intervals (a minute at least) without a
request, and as the one used longest ago when there are more than `MAX_INSTANCES`: a client that continues is then a
new one, which costs it nothing.

Source: KIP-714; ClientMetricsManager and ClientMetricsInstance of Kafka 4.3.1.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final
from uuid import UUID

from ottla.broker.request_context import MAX_CLIENT_TEXT, ClientConnection, RequestContext
from ottla.broker.telemetry.subscriptions import Client, Subscription, Wanted, wanted_of
from ottla.metadata.image import ConfigResourceType, MetadataDelta, MetadataImage
from ottla.protocol.errors import ErrorCode, InvalidConfig
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest
from ottla.protocol.records.compression import Compression
from ottla.protocol.types import ZERO_UUID

logger = logging.getLogger(__name__)

#: The instances of clients that a broker knows at a time; Kafka's.
MAX_INSTANCES: Final = 16_384
#: An instance is forgotten after so many intervals, and so many milliseconds, without a request; Kafka's.
_KEPT_INTERVALS: Final = 3
_KEPT_MS: Final = 60_000

#: The codecs that clients may push in beside none, in the order of the response: clients take the first one they have.
_ACCEPTED: Final = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)
_CODECS: Final = frozenset(Compression)
#: The ids that Kafka reserves: no id, and that of the metadata topic.
_RESERVED: Final = (ZERO_UUID, UUID(int=1))
#: After these, a client asks at once what it is to send.
_ASKING: Final = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)


@dataclass(slots=True, kw_only=True)
class Instance:
    """One instance of a client, as this broker knows it."""

    client: Client
    connection: ClientConnection
    wanted: Wanted
    #: The version of the subscriptions from which `wanted` is made.
    version: int
    expires_at_ms: int = 0
    #: When the last requests of each kind were accepted; None: not yet.
    asked_at_ms: int | None = None
    pushed_at_ms: int | None = None
    is_terminating: bool = False
    #: The outcome of the last check of a request: some errors ask the client to ask at once.
    error: ErrorCode = ErrorCode.none

    def may_ask(self, now_ms: int) -> bool:
        """Whether GetTelemetrySubscriptions is in time, which is noted; also an error of the last push allows it."""
        last = max(self.asked_at_ms or 0, self.pushed_at_ms or 0)
        is_first = self.asked_at_ms is None and self.pushed_at_ms is None
        if is_first or now_ms - last >= self.wanted.interval_ms:
            self.asked_at_ms = now_ms
            return True
        return self.error in _ASKING

    def may_push(self, now_ms: int) -> bool:
        """Whether PushTelemetry is in time, which is noted."""
        pushed = self.pushed_at_ms
        is_in_time = (
            pushed is None
            or (self.asked_at_ms is not None and self.asked_at_ms > pushed)
            or now_ms - pushed >= self.wanted.interval_ms
        )
        if is_in_time:
            self.pushed_at_ms = now_ms
        return is_in_time


class ClientMetrics:
    """The subscriptions of the cluster, and the instances of the clients that have asked this broker for them."""

    def __init__(self, *, random: Random, max_bytes: int, is_exporting: bool) -> None:
        """`max_bytes` is telemetry.max.bytes; `is_exporting`: the broker shows what it receives."""
        self.max_bytes = max_bytes
        self._is_exporting = is_exporting
        self._random = random
        self._subscriptions: dict[str, Subscription] = {}
        self._version = 0
        #: The one used longest ago first.
        self._instances: OrderedDict[UUID, Instance] = OrderedDict()
        #: Held by the one push that is decompressed and read.
        self.reading = asyncio.Lock()
        #: The number of responses, by API and error.
        self.asked: Counter[ErrorCode] = Counter()
        self.pushed: Counter[ErrorCode] = Counter()

    @property
    def is_advertised(self) -> bool:
        """Whether clients are shown the two APIs: they ask for their subscriptions as soon as they see them."""
        return self._is_exporting or bool(self._subscriptions)

    def apply_image(self, image: MetadataImage) -> None:
        """Take the subscriptions of a whole image."""
        for resource, overrides in image.configs.items():
            if resource.type is ConfigResourceType.CLIENT_METRICS:
                self.update(resource.name, overrides)

    def apply_delta(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Take the subscriptions that a change of the metadata has altered."""
        for resource in delta.configs_changed:
            if resource.type is ConfigResourceType.CLIENT_METRICS:
                self.update(resource.name, image.config(resource))

    def update(self, name: str, overrides: Mapping[str, str]) -> None:
        """Take the configurations of one subscription; without any, there is no such subscription any more."""
        known = self._subscriptions.pop(name, None)
        if overrides:
            try:
                self._subscriptions[name] = Subscription.from_configs(overrides)
            except InvalidConfig as error:  # accepted by a controller of another version, or by Kafka's
                logger.warning("Client metrics subscription %r is ignored: %s", name, error)
        elif known is None:
            return
        self._version += 1

    def ask(
        self, request: GetTelemetrySubscriptionsRequest, context: RequestContext, now_ms: int
    ) -> GetTelemetrySubscriptionsResponse:
        """Answer what a client is to send; one without an id gets its id, too."""
        instance_id = request.client_instance_id
        if instance_id == ZERO_UUID:
            instance_id = self._new_id()
        instance = self._instance(instance_id, context, now_ms)
        if instance is None:
            error = ErrorCode.invalid_request
        elif not instance.may_ask(now_ms):
            error = ErrorCode.throttling_quota_exceeded
        else:
            instance.error = error = ErrorCode.none
        self.asked[error] += 1
        if instance is None or error is not ErrorCode.none:
            return GetTelemetrySubscriptionsResponse(error_code=error)
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.client.instance_id,
            subscription_id=instance.wanted.subscription_id,
            accepted_compression_types=list(_ACCEPTED),
            push_interval_ms=instance.wanted.interval_ms,
            telemetry_max_bytes=self.max_bytes,
            delta_temporality=True,
            requested_metrics=list(instance.wanted.metrics),
        )

    def check_push(
        self, request: PushTelemetryRequest, context: RequestContext, now_ms: int
    ) -> "Instance | ErrorCode":
        """Return the instance whose metrics are accepted, or the error of the response."""
        if request.client_instance_id in _RESERVED:
            return ErrorCode.invalid_request
        instance = self._instance(request.client_instance_id, context, now_ms)
        if instance is None:
            return ErrorCode.invalid_request
        error = self._push_error(request, instance, now_ms)
        instance.is_terminating = request.terminating
        instance.error = error
        return instance if error is ErrorCode.none else error

    def _push_error(self, request: PushTelemetryRequest, instance: Instance, now_ms: int) -> ErrorCode:
        if instance.is_terminating:
            return ErrorCode.invalid_request
        if not instance.may_push(now_ms) and not request.terminating:
            return ErrorCode.throttling_quota_exceeded
        if request.subscription_id != instance.wanted.subscription_id:
            return ErrorCode.unknown_subscription_id
        if request.compression_type not in _CODECS:
            return ErrorCode.unsupported_compression_type
        if len(request.metrics) > self.max_bytes:
            return ErrorCode.telemetry_too_large
        return ErrorCode.none

    def count(self, now_ms: int) -> int:
        """The number of instances that are not forgotten."""
        return sum(not _is_over(each, now_ms) for each in self._instances.values())

    def _instance(self, instance_id: UUID, context: RequestContext, now_ms: int) -> Instance | None:
        """The instance of a request, which may be a new one; None for a request that came on no connection."""
        instances, connection = self._instances, context.connection
        if connection is None:
            return None
        while instances and _is_over(next(iter(instances.values())), now_ms):
            instances.popitem(last=False)
        known = instances.get(instance_id)
        if known is not None and _is_over(known, now_ms):
            known = None
        if known is None or known.version < self._version:
            client = Client(
                instance_id,
                None if context.client_id is None else context.client_id[:MAX_CLIENT_TEXT],
                *connection.software,
                context.client_host,
                connection.client_port,
            )
            if known is not None:
                client = known.client
            elif len(instances) >= MAX_INSTANCES and instance_id not in instances:
                instances.popitem(last=False)
            known = Instance(
                client=client,
                connection=connection,
                wanted=wanted_of(client, self._subscriptions.values()),
                version=self._version,
            )
            instances[instance_id] = known
        instances.move_to_end(instance_id)
        known.expires_at_ms = now_ms + max(_KEPT_MS, _KEPT_INTERVALS * known.wanted.interval_ms)
        return known

    def _new_id(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


def _is_over(instance: Instance, now_ms: int) -> bool:
    return instance.connection.is_closed or instance.expires_at_ms <= now_ms
