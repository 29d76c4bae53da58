"""PushTelemetry (key 72): the metrics of a client, as OpenTelemetry's protobuf messages (KIP-714).

Who asks: clients with a subscription, each interval, and once more when they are closed.
Versions: v0.
Differs from Kafka: no plug-in receives the metrics; they are shown on /metrics (`metrics.clients.max.series`), and a
push that is no OTLP message is refused with INVALID_RECORD, which Kafka leaves to its plug-in.
Touches: broker.client_metrics, broker.client_series. Waits for a thread that decompresses, and for turns of the loop;
one push is read at a time.
"""

import logging
from collections.abc import Awaitable, Generator
from functools import partial

from ottla.broker.api import Api
from ottla.broker.request_context import RequestContext
from ottla.broker.services import BrokerServices
from ottla.broker.telemetry import otlp
from ottla.broker.telemetry.client_metrics import Instance
from ottla.broker.telemetry.series import ClientSeries
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from ottla.protocol.records.compression import Compression, TooLargeToOpen, decompress
from ottla.runtime import Pool
from ottla.runtime.turns import result_in_turns

logger = logging.getLogger(__name__)


def handle(
    request: PushTelemetryRequest, context: RequestContext, broker: BrokerServices
) -> PushTelemetryResponse | Awaitable[PushTelemetryResponse]:
    """Accept or refuse the push by `ottla.broker.telemetry.client_metrics`, and take over what it has."""
    found = broker.client_metrics.check_push(request, context, broker.runtime.now_ms())
    if not isinstance(found, Instance):
        return _response(broker, found)
    if not request.metrics or broker.client_series is None:
        return _response(broker, ErrorCode.none)
    return _take_over(request, found, broker, broker.client_series)


async def _take_over(
    request: PushTelemetryRequest, instance: Instance, broker: BrokerServices, series: ClientSeries
) -> PushTelemetryResponse:
    # Local: meanwhile the instance may push on another connection, with an outcome of its own.
    error = ErrorCode.none
    try:
        async with broker.client_metrics.reading:
            data = request.metrics
            if request.compression_type != Compression.NONE:
                opening = partial(decompress, max_bytes=broker.client_metrics.max_bytes)
                codec = Compression(request.compression_type)
                data = await broker.runtime.run_blocking(opening, codec, data, pool=Pool.VALIDATION)
            await result_in_turns(_read(data, instance, series, broker.runtime.now_ms()), broker.runtime)
    except (KafkaError, TooLargeToOpen) as reason:
        logger.debug("The metrics of client %r were refused: %s", instance.client.client_id, reason)
        error = ErrorCode.invalid_record
    return _response(broker, error)


def _read(data: bytes, instance: Instance, series: ClientSeries, now_ms: int) -> Generator[None, None, None]:
    pushed = yield from otlp.read(data, max_points=series.max_series)
    yield from series.add(instance.client, pushed, interval_ms=instance.wanted.interval_ms, now_ms=now_ms)


def _response(broker: BrokerServices, error: ErrorCode) -> PushTelemetryResponse:
    broker.client_metrics.pushed[error] += 1
    return PushTelemetryResponse(error_code=error)


API = Api(key=ApiKey.PUSH_TELEMETRY, versions=range(1), handle=handle)
