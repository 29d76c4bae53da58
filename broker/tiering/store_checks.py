"""StoreChecks: checks the remote store once clients are served, and again while it cannot be used.

    start --> the store is opened and checked --> one INFO line, or one WARNING with the reason and the remedy
    each minute, while the last call of the store has failed --> checked again; a change is logged
    each minute, while a call of the store is silent --> one WARNING; a check would be one more that hangs

Without it a mistyped bucket shows only when the first segment is closed and cannot be copied. The start neither waits
for the store nor fails with it: a broker serves its local logs while the store is down.
"""

import asyncio
import logging
from typing import Final

from ottla.remote.observed_store import ObservedStore
from ottla.runtime import Pool, Runtime

logger = logging.getLogger(__name__)

#: The time between two checks of a store that cannot be used.
INTERVAL_S: Final = 60.0


class StoreChecks:
    """The checks of this broker's remote store; belongs to the event loop."""

    def __init__(self, runtime: Runtime, store: ObservedStore, *, node_id: int) -> None:
        self._runtime = runtime
        self._store = store
        self._node_id = node_id
        #: The reason of the last failure, as it was logged; None: the store can be used.
        self._problem: str | None = None

    async def run(self) -> None:
        """Open and check the store, then check it again at times while it cannot be used."""
        await self._check_and_report(is_first=True)
        while True:
            await asyncio.sleep(INTERVAL_S)
            if self._store.is_silent:
                self._report_silence()
            elif self._store.is_up:
                self._report(None)
            elif self._store.is_up is False:
                await self._check_and_report()

    async def _check_and_report(self, *, is_first: bool = False) -> None:
        check = asyncio.ensure_future(self._problem_found())
        try:
            while not (await asyncio.wait([check], timeout=INTERVAL_S))[0]:
                if self._store.is_silent:
                    self._report_silence()
            self._report(check.result(), is_first=is_first)
        finally:
            check.cancel()

    def _report_silence(self) -> None:
        self._report(f"a call of the store has had no answer for {self._store.silence_s:g} s")

    async def _problem_found(self) -> str | None:
        """The reason why the store cannot be used, by a check; None: it can, or it has no check."""
        try:
            await self._runtime.run_blocking(self._check, pool=Pool.REMOTE_READS)
        except Exception as error:  # noqa: BLE001 (whatever a plugin raises)
            return str(error)
        return None

    def _check(self) -> None:
        """Open the store, so that no consumer waits for the import of its client, and check it. [any thread]"""
        self._store.open()
        self._store.check(self._node_id)

    def _report(self, problem: str | None, *, is_first: bool = False) -> None:
        if problem is not None and problem != self._problem:
            logger.warning(
                "the remote store cannot be used, so that closed segments stay on the local disks: %s",
                problem,
            )
        elif problem is None and self._problem is not None:
            logger.info("the remote store can be used again")
        elif is_first and self._store.is_up:
            logger.info("the remote store can be used: it was written, read and deleted from")
        self._problem = problem
