"""Broker lifecycle: registration, heartbeats, fencing and controlled shutdown.

    STARTING   --registered--> fenced, and heartbeats begin
    fenced     --heartbeat response: is_caught_up--> this broker has the metadata as of its registration
    fenced     --serve(): heartbeats without want_fence--> RUNNING
    RUNNING    --heartbeats were missed--> fenced until the next one
    fenced     --register_as_incomplete(): it lacks a log that it counts as complete for--> STARTING
    registered --STALE_BROKER_EPOCH--> registers again: the controller has another registration, or none
    RUNNING    --controlled_shutdown()--> stopped, when its leaderships have moved away
    registered --a failed log directory could not be reported to a controller in time--> stopped (KIP-858)

The active controller may change at any time: every request uses a channel that finds it.
Source: KIP-631, KIP-500; BrokerLifecycleManager and BrokerRegistrationTracker of Kafka 4.3.1.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from ottla.broker.membership.controller_channel import ControllerChannel
from ottla.config.broker_config import BrokerConfig
from ottla.config.listeners import Listener
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import broker_registration as registration
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.runtime import Runtime
from ottla.runtime.rate_limited_log import RateLimitedLog

logger = logging.getLogger(__name__)

#: The heartbeat interval of a starting broker, or one in a controlled shutdown; a running one uses
#: broker.heartbeat.interval.ms.
_SHORT_HEARTBEAT_INTERVAL_S: Final = 0.01
#: The pause before a refused registration is retried, where the controller may accept it later.
_REGISTRATION_BACKOFF_S: Final = 0.5
#: The minimum interval of two log lines about refusals of the same kind.
_REFUSAL_LOG_S: Final = 10.0
#: How long UNSUPPORTED_VERSION is retried: the broker claims further features once it has read them in the log.
_UNSUPPORTED_VERSION_RETRY_S: Final = 10.0
#: The bounds of a controlled shutdown: its duration, and the number of failed heartbeats in a row.
_SHUTDOWN_TIMEOUT_S: Final = 60.0
_MAX_SHUTDOWN_FAILURES: Final = 2
#: Refusals that a retry does not change, and their meaning for an operator.
_FINAL_REFUSALS: Final[Mapping[int, str]] = {
    ErrorCode.inconsistent_cluster_id: (
        "its log directories were formatted for another cluster than the controllers': set "
        "controller.quorum.bootstrap.servers to the controllers of its cluster, or log.dirs to empty folders that are "
        "formatted with the cluster.id of these controllers"
    ),
    ErrorCode.unsupported_version: (
        "the cluster has finalized features that this software does not serve, or controllers of an older kind"
    ),
    ErrorCode.invalid_registration: "its registration contradicts that of another node",
}


class RegistrationRefused(Exception):
    """The controller does not accept this broker; the process cannot continue."""


class BrokerLifecycle:
    """Registers the broker, sends its heartbeats, and carries out its controlled shutdown."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        config: BrokerConfig,
        controller: ControllerChannel,
        applied_offset: Callable[[], int],
        offline_log_dirs: Callable[[], Sequence[UUID]],
        features: Callable[[], Mapping[str, range]],
        cordoned_log_dirs: Callable[[], Sequence[UUID] | None] = lambda: None,
    ) -> None:
        """`features` returns the features that this broker claims (half-open ranges), given the metadata it has.

        `cordoned_log_dirs` is called once the broker has caught up (KIP-1066); None: they are not reported.
        """
        self._runtime = runtime
        self._config = config
        self._controller = controller
        self._applied_offset = applied_offset
        self._offline_log_dirs = offline_log_dirs
        self._features = features
        self._cordoned_log_dirs = cordoned_log_dirs
        self._request = registration.BrokerRegistrationRequest()
        self.broker_epoch = -1
        self.is_fenced = True
        self._is_registered = False
        #: Why the last registration attempt failed.
        self._refusal = ""
        self._refusals = RateLimitedLog(logger, monotonic=runtime.monotonic, interval_s=_REFUSAL_LOG_S)
        self._wants_fence = True
        self._is_shutting_down = False
        #: When the last heartbeat that the controller accepted was sent.
        self._last_accepted_at = runtime.monotonic()
        #: Whether the last heartbeat got no response.
        self._is_unanswered = False
        self._unsupported_until: float | None = None
        #: Called with the reason, one sentence, when this broker should stop.
        self.on_failure: Callable[[str], None] = lambda why: None
        #: Failed log directories that were reported to the controller, and since when others are unreported.
        self._reported_offline: frozenset[UUID] = frozenset()
        self._unreported_since: dict[UUID, float] = {}
        self._is_heartbeat_due = asyncio.Event()
        self._caught_up: asyncio.Future[None] = runtime.loop.create_future()
        self._unfenced: asyncio.Future[None] = runtime.loop.create_future()
        self._communication: asyncio.Task[None] | None = None

    async def register(
        self,
        *,
        cluster_id: str,
        listeners: Sequence[Listener],
        log_dirs: Sequence[UUID],
        previous_broker_epoch: int | None,
    ) -> None:
        """Register this incarnation of the broker, and begin to send heartbeats. Raises RegistrationRefused.

        Waits for a controller, and for the end of the previous incarnation's session, for
        initial.broker.registration.timeout.ms at most.
        """
        self._request = registration.BrokerRegistrationRequest(
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
            rack=self._config.broker_rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=-1 if previous_broker_epoch is None else previous_broker_epoch,
        )
        await self._register()

    async def register_as_incomplete(self) -> None:
        """Register once more, as a new incarnation that was not stopped cleanly: it leaves all ELRs (KIP-966).

        Waits for the end of the present session. Raises RegistrationRefused.
        """
        await self.stop()
        self._request.incarnation_id = UUID(int=self._runtime.random.getrandbits(128), version=4)
        self._request.previous_broker_epoch = self.broker_epoch = -1
        self._is_registered = False
        self._caught_up = self._runtime.loop.create_future()
        await self._register()

    async def _register(self) -> None:
        broker = f"broker {self._config.node_id}"
        timeout_ms = self._config.get("initial.broker.registration.timeout.ms")
        error = ErrorCode.request_timed_out
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (error := await self._try_to_register()) != ErrorCode.none:
                    if error in _FINAL_REFUSALS and not self._may_pass(error):
                        raise RegistrationRefused(
                            f"The controller refuses to register {broker} ({error.name}): {_FINAL_REFUSALS[error]}."
                        )
                    await asyncio.sleep(_REGISTRATION_BACKOFF_S)
        except TimeoutError:
            why = self._refusal or "No controller has responded."
            if error == ErrorCode.duplicate_broker_registration:
                why = (
                    f"Another node with this node.id is alive: stop that one, or set node.id, which is "
                    f"{self._config.node_id}, to a number that no other node of the cluster has."
                )
            raise RegistrationRefused(
                f"Giving up after {timeout_ms / 1000:g} s to register {broker}. {why}"
            ) from None
        self._communication = self._runtime.supervise(self._communicate, name="broker-heartbeat")

    def _may_pass(self, error: ErrorCode) -> bool:
        """Whether the cause of the refusal may be that this broker has not read the cluster's features yet.

        Kafka's brokers always claim the same features; ours claim those that they do not serve only if finalized.
        """
        now = self._runtime.monotonic()
        if error != ErrorCode.unsupported_version:
            return False
        if self._unsupported_until is None:
            self._unsupported_until = now + _UNSUPPORTED_VERSION_RETRY_S
        return now < self._unsupported_until

    async def caught_up(self) -> None:
        """Wait until the controller reports that this broker has the metadata up to its registration."""
        await asyncio.shield(self._caught_up)

    async def serve(self) -> None:
        """Report that this broker is ready, and wait until the controller has unfenced it."""
        self._wants_fence = False
        self.send_heartbeat_soon()
        await asyncio.shield(self._unfenced)

    @property
    def silence_s(self) -> float:
        """The seconds since the last heartbeat was sent that the controller has accepted."""
        return self._runtime.monotonic() - self._last_accepted_at

    @property
    def may_be_deposed(self) -> bool:
        """Whether the controller may have moved this broker's leaderships: it is fenced, or its session has expired."""
        session_s = self._config.get("broker.session.timeout.ms") / 1000
        return self.is_fenced or self.silence_s >= session_s

    def send_heartbeat_soon(self) -> None:
        """Send the next heartbeat at once: there is something to report to the controller."""
        self._is_heartbeat_due.set()

    def register_again(self) -> None:
        """Send the registration again: its contents have changed, or the controller no longer accepts it."""
        self._is_registered = False
        self.send_heartbeat_soon()

    async def controlled_shutdown(self) -> None:
        """Controlled shutdown: wait until the controller has moved this broker's leaderships away.

        Ends after `_SHUTDOWN_TIMEOUT_S`, and sooner if no controller responds; the broker then stops all the same.
        """
        await self.stop()
        if not self._is_registered or not self._config.get("controlled.shutdown.enable"):
            return
        self._is_shutting_down = True
        failures = 0
        try:
            async with asyncio.timeout(_SHUTDOWN_TIMEOUT_S):
                while failures < _MAX_SHUTDOWN_FAILURES:
                    response = await self._try_to_send_heartbeat()
                    if response is not None and response.should_shut_down:
                        return
                    failures = failures + 1 if response is None else 0
                    await asyncio.sleep(_SHORT_HEARTBEAT_INTERVAL_S)
        except TimeoutError:
            pass
        logger.warning(
            "broker %d: controlled shutdown did not complete in time; the broker stops without it",
            self._config.node_id,
        )

    async def stop(self) -> None:
        """Stop: send no more heartbeats."""
        if self._communication is not None:
            self._communication.cancel()
            await asyncio.wait([self._communication])

    async def _communicate(self) -> None:
        while True:
            self._check_offline_log_dirs()
            if self._is_registered:
                await self._try_to_send_heartbeat()
            elif (error := await self._try_to_register()) != ErrorCode.none:
                logger.warning("broker %d was not registered again: %s", self._config.node_id, error.name)
            is_starting = self._is_registered and not self._unfenced.done() and not self._is_recovering()
            pause_s = (
                _SHORT_HEARTBEAT_INTERVAL_S
                if is_starting
                else self._config.broker_heartbeat_interval_ms / 1000
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_heartbeat_due.wait()
            self._is_heartbeat_due.clear()

    def _check_offline_log_dirs(self) -> None:
        """Stop the broker if a failed directory could not be reported to a controller for log.dir.failure.timeout.ms.

        Until then the controller does not know that these replicas are offline, and elects no other leaders for them.
        Source: KIP-858; BrokerLifecycleManager.propagateDirectoryFailure.
        """
        now = self._runtime.monotonic()
        unreported = set(self._offline_log_dirs()) - self._reported_offline
        self._unreported_since = {each: self._unreported_since.get(each, now) for each in unreported}
        timeout_ms: int = self._config.get("log.dir.failure.timeout.ms")
        if any(now - since >= timeout_ms / 1000 for since in self._unreported_since.values()):
            self.on_failure(
                "A log directory has failed, and that could not be reported to a controller for "
                f"{timeout_ms / 1000:g} s (log.dir.failure.timeout.ms)."
            )

    def _is_recovering(self) -> bool:
        """Whether the broker has caught up and is not ready yet: frequent heartbeats would change nothing."""
        return self._caught_up.done() and self._wants_fence

    async def _try_to_register(self) -> ErrorCode:
        """Make one attempt to register; `ErrorCode.none` if it succeeded."""
        self._request.features = [
            registration.Feature(
                name=name, min_supported_version=levels.start, max_supported_version=levels.stop - 1
            )
            for name, levels in self._features().items()
        ]
        if self.broker_epoch >= 0:
            self._request.previous_broker_epoch = self.broker_epoch
        try:
            response = await self._controller.request(ApiKey.BROKER_REGISTRATION, self._request)
        except KafkaError as error:
            self._refusal = str(error)
            return error.code
        except Exception:
            logger.exception("broker %d: the registration failed", self._config.node_id)
            self._refusal = "The registration failed with an unexpected error; the log has its stack."
            return ErrorCode.unknown_server_error
        if response.error_code == ErrorCode.none:
            self.broker_epoch = response.broker_epoch
            self._is_registered = True
            return ErrorCode.none
        error_code = ErrorCode(response.error_code)
        self._refusal = f"The last response was {error_code.name.upper()}."
        self._refusals.write(
            logging.INFO, f"the controller does not register this broker yet: {_meaning(error_code)}"
        )
        return error_code

    async def _try_to_send_heartbeat(self) -> BrokerHeartbeatResponse | None:
        """Send one heartbeat and return its response; None if it failed, and a later one may succeed."""
        # Before it has caught up, the broker does not know its dynamic configuration.
        cordoned = self._cordoned_log_dirs() if self._caught_up.done() else None
        sent_at = self._runtime.monotonic()
        request = BrokerHeartbeatRequest(
            broker_id=self._config.node_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._applied_offset(),
            want_fence=self._wants_fence,
            want_shut_down=self._is_shutting_down,
            offline_log_dirs=list(self._offline_log_dirs()),
            cordoned_log_dirs=None if cordoned is None else list(cordoned),
        )
        try:
            response: BrokerHeartbeatResponse = await self._controller.request(
                ApiKey.BROKER_HEARTBEAT, request
            )
        except KafkaError as error:
            # While no controller is reachable each heartbeat fails: that is logged once.
            logger.log(
                logging.DEBUG if self._is_unanswered else logging.WARNING,
                "a heartbeat to the controller failed: %s",
                error,
            )
            self._is_unanswered = True
            return None
        except Exception:
            # Without heartbeats the broker would be fenced: after any exception the next one may succeed.
            logger.exception("a heartbeat to the controller failed")
            return None
        if self._is_unanswered:
            logger.info("heartbeats to the controller succeed again")
            self._is_unanswered = False
        if response.error_code != ErrorCode.none:
            logger.warning("the controller refuses a heartbeat: %s", ErrorCode(response.error_code).name)
            if response.error_code == ErrorCode.stale_broker_epoch and not self._is_shutting_down:
                self.register_again()
            return None
        self._reported_offline = frozenset(request.offline_log_dirs)
        self._last_accepted_at = sent_at
        self._on_heartbeat_response(response)
        return response

    def _on_heartbeat_response(self, response: BrokerHeartbeatResponse) -> None:
        if response.is_fenced and not self.is_fenced and not self._is_shutting_down:
            logger.warning(
                "the controller has fenced this broker; the next heartbeat requests to be unfenced"
            )
        self.is_fenced = response.is_fenced
        if response.is_caught_up and not self._caught_up.done():
            self._caught_up.set_result(None)
        if not response.is_fenced and not self._unfenced.done():
            self._unfenced.set_result(None)


def _meaning(refusal: ErrorCode) -> str:
    """Return the meaning of a refusal that may be temporary."""
    if refusal is ErrorCode.duplicate_broker_registration:
        return (
            "a process with the same node.id has a session (DUPLICATE_BROKER_REGISTRATION). If this broker was "
            "restarted, the session of its predecessor ends soon; else another node has this id"
        )
    return refusal.name.upper()
