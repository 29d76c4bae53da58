"""Controller registration: this controller registers its listeners and features with the active one (KIP-919).

    (none) --metadata.version >= 15--> registering --RegisterController of this incarnation is committed--> registered
                                         | ^                                                                |
            failed: repeated after       '-'             <-- that of another incarnation with this id, ------'
            100 ms, 200 ms, ... 2 min                        or UnregisterController

Whether it is registered is read from the log, not from the response.
Source: ControllerRegistrationManager of Kafka 4.4.0.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from ottla.controller.raft.types import LeaderAndEpoch, OffsetAndEpoch
from ottla.controller.settings import ControllerSettings
from ottla.metadata.features import (
    CONTROLLER_REGISTRATION_3_7_IV0,
    METADATA_VERSION,
    UNDERSTOOD_FEATURES,
)
from ottla.metadata.records import (
    FeatureLevelRecord,
    MetadataRecord,
    RegisterControllerRecord,
    UnregisterControllerRecord,
)
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.controller_registration import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    Feature,
    Listener,
)
from ottla.runtime import Runtime

logger: Final = logging.getLogger(__name__)

_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 120.0


class ControllerRegistration:
    """Keeps this incarnation of a controller registered. A listener of the quorum."""

    def __init__(
        self,
        *,
        settings: ControllerSettings,
        incarnation_id: UUID,
        request: Callable[[int, Any], Awaitable[Any]],
        runtime: Runtime,
    ) -> None:
        """`request` sends a request to the active controller, on whichever node it is."""
        self._settings = settings
        self._incarnation_id = incarnation_id
        self._request = request
        self._runtime = runtime
        self._metadata_version = 0
        self._is_registered = False
        self._is_stopped = False
        self._failures = 0
        self._sending: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        """Cancel the timer and the request in flight; do not register again."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait([self._sending])

    def on_commit(self, records: Sequence[MetadataRecord], base_offset: int, end_offset: int) -> None:
        """Check whether this controller can and must register."""
        if self._apply(records):
            self._register_if_due()

    def on_snapshot(self, batches: Iterable[list[MetadataRecord]], snapshot: OffsetAndEpoch) -> None:
        """Read the snapshot's records in place of the log's."""
        self._metadata_version, self._is_registered = 0, False
        for records in batches:
            self._apply(records)
        self._register_if_due()

    def on_leader(self, leader: LeaderAndEpoch) -> None:
        """Nothing to do: `request` finds the active controller."""

    def _apply(self, records: Sequence[MetadataRecord]) -> bool:
        """Apply the records that concern this controller; returns whether there were any."""
        is_concerned = False
        for record in records:
            match record:
                case FeatureLevelRecord(name=name) if name == METADATA_VERSION:
                    self._metadata_version, is_concerned = record.feature_level, True
                case RegisterControllerRecord(controller_id=id) if id == self._settings.node_id:
                    self._apply_own(is_registered=record.incarnation_id == self._incarnation_id)
                    is_concerned = True
                case UnregisterControllerRecord(controller_id=id) if id == self._settings.node_id:
                    self._is_registered, is_concerned = False, True
        return is_concerned

    def _apply_own(self, *, is_registered: bool) -> None:
        if self._is_registered and not is_registered:
            # Without a delay two nodes with one id would register alternately, as fast as the log commits.
            logger.warning(
                "another process has registered as controller %d: set a unique node.id on every node",
                self._settings.node_id,
            )
            self._schedule_retry()
        self._is_registered = is_registered

    def _register_if_due(self) -> None:
        if (
            self._is_stopped
            or self._is_registered
            or not self._settings.listeners
            or self._metadata_version < CONTROLLER_REGISTRATION_3_7_IV0
            or self._sending is not None
            or self._timer is not None
        ):
            return
        self._sending = self._runtime.create_task(self._send_registration(), name="controller-registration")

    async def _send_registration(self) -> None:
        message = ControllerRegistrationRequest(
            controller_id=self._settings.node_id,
            incarnation_id=self._incarnation_id,
            listeners=[
                Listener(name=name, host=each.host, port=each.port, security_protocol=each.security_protocol)
                for name, each in self._settings.listeners.items()
            ],
            features=[
                Feature(name=name, min_supported_version=levels.start, max_supported_version=levels.stop - 1)
                for name, levels in UNDERSTOOD_FEATURES.items()
            ],
        )
        try:
            response: ControllerRegistrationResponse = await self._request(
                ApiKey.CONTROLLER_REGISTRATION, message
            )
            failure = None if response.error_code == ErrorCode.none else ErrorCode(response.error_code).name
        except (KafkaError, OSError, TimeoutError) as error:
            failure = repr(error)
        except Exception as error:
            logger.exception("controller %d could not register", self._settings.node_id)
            failure = repr(error)
        self._sending = None
        if failure is None:
            return
        logger.info("controller %d could not register: %s", self._settings.node_id, failure)
        self._schedule_retry()

    def _schedule_retry(self) -> None:
        if self._timer is not None or self._is_stopped:
            return
        delay_s = min(_FIRST_BACKOFF_S * 2**self._failures, _MAX_BACKOFF_S)
        self._failures = min(self._failures + 1, 20)
        self._timer = self._runtime.call_later(delay_s, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._register_if_due()
