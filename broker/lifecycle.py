"""A broker's standing with the controller: registered, fenced, running, leaving.

STARTING -> registered, fenced            register()
fenced   -> RUNNING                       serve(): heartbeats without want_fence, once it has caught up
RUNNING  -> fenced                        the controller missed its heartbeats, and says so in an answer
RUNNING  -> leaving -> gone               leave(): controlled shutdown, until leadership has moved away

Source: KIP-631, KIP-500; org.apache.kafka.server.BrokerLifecycleManager for the times.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import UUID

from broker.channel import ControllerChannel
from broker.config import BrokerConfig
from broker.config.listeners import Listener
from broker.runtime import Runtime
from protocol.api_keys import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import broker_registration as registration
from protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from protocol.metadata.features import UNDERSTOOD_FEATURES

logger = logging.getLogger(__name__)

#: How often a starting or leaving broker asks; a running one asks every broker.heartbeat.interval.ms.
_IMPATIENT_S = 0.01
_LEAVE_TIMEOUT_S = 5.0


class RegistrationRefused(Exception):
    """The controller does not accept this broker; the process cannot go on."""


class BrokerLifecycle:
    """Registers the broker, keeps it alive by heartbeats, and takes leave for it."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        config: BrokerConfig,
        controller: ControllerChannel,
        applied_offset: Callable[[], int],
        offline_log_dirs: Callable[[], Sequence[UUID]],
    ) -> None:
        self._runtime = runtime
        self._config = config
        self._controller = controller
        self._applied_offset = applied_offset
        self._offline_log_dirs = offline_log_dirs
        self.broker_epoch = -1
        self.is_fenced = True
        self._is_leaving = False
        self._wants_beat = asyncio.Event()
        self._keeping_alive: asyncio.Task[None] | None = None

    async def register(
        self,
        *,
        cluster_id: str,
        listeners: Sequence[Listener],
        log_dirs: Sequence[UUID],
        previous_broker_epoch: int | None,
    ) -> None:
        """Make this incarnation of the broker known. Raises RegistrationRefused."""
        request = registration.BrokerRegistrationRequest(
            broker_id=self._config.node_id,
            cluster_id=cluster_id,
            incarnation_id=UUID(int=self._runtime.random.getrandbits(128), version=4),
            listeners=[
                registration.Listener(
                    name=listener.name,
                    host=listener.host,
                    port=listener.port,
                    security_protocol=listener.security_protocol,
                )
                for listener in listeners
            ],
            features=[
                registration.Feature(
                    name=name, min_supported_version=levels.start, max_supported_version=levels.stop - 1
                )
                for name, levels in UNDERSTOOD_FEATURES.items()
            ],
            rack=self._config.broker_rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=-1 if previous_broker_epoch is None else previous_broker_epoch,
        )
        response: registration.BrokerRegistrationResponse = await self._controller.request(
            ApiKey.BROKER_REGISTRATION, request
        )
        if response.error_code != ErrorCode.none:
            raise RegistrationRefused(
                f"The controller refuses to register broker {self._config.node_id}: "
                f"{ErrorCode(response.error_code).name}"
            )
        self.broker_epoch = response.broker_epoch

    async def serve(self) -> None:
        """Wait until the controller has unfenced this broker, then keep it so in the background."""
        while self.is_fenced:
            await self._beat()
            if self.is_fenced:
                await asyncio.sleep(_IMPATIENT_S)
        self._keeping_alive = self._runtime.create_task(self._keep_alive(), name="broker-heartbeat")

    def beat_soon(self) -> None:
        """There is something that the controller should hear before the next heartbeat is due."""
        self._wants_beat.set()

    async def leave(self) -> None:
        """Controlled shutdown: wait until the controller has moved this broker's leaderships away.

        Gives up after a while: a broker that must go, goes.
        """
        if self._keeping_alive is not None:
            self._keeping_alive.cancel()
        self._is_leaving = True
        try:
            async with asyncio.timeout(_LEAVE_TIMEOUT_S):
                response = await self._beat()
                while not response.should_shut_down:
                    await asyncio.sleep(_IMPATIENT_S)
                    response = await self._beat()
        except (TimeoutError, KafkaError) as error:
            logger.warning("leaving without the controller's consent: %r", error)

    async def _keep_alive(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.broker_heartbeat_interval_ms / 1000):
                    await self._wants_beat.wait()
            self._wants_beat.clear()
            try:
                await self._beat()
            except KafkaError as error:
                logger.warning("a heartbeat failed: %r", error)
            except Exception:
                # Without heartbeats the broker would be fenced: whatever this was, the next one may pass.
                logger.exception("a heartbeat failed")

    async def _beat(self) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._applied_offset(),
            want_fence=False,
            want_shut_down=self._is_leaving,
            offline_log_dirs=list(self._offline_log_dirs()),
        )
        response: BrokerHeartbeatResponse = await self._controller.request(ApiKey.BROKER_HEARTBEAT, request)
        if response.error_code != ErrorCode.none:
            logger.warning("heartbeat answered with %s", ErrorCode(response.error_code).name)
        else:
            self.is_fenced = response.is_fenced
        return response
