"""HostileStore: a storage manager in a directory that misbehaves as its setting `does` says,
in the transfer process.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Mapping

from ottla.protocol.errors import InvalidConfig
from ottla.remote.errors import RemoteResourceNotFound, RetriableRemoteStorageError
from ottla.remote.segment_metadata import RemoteLogSegmentMetadata
from ottla.remote.storage_manager import LogSegmentData, StorageManagerInFront
from ottla.remote.stores.local_directory import LocalDirectory
from ottla.remote.transfers.worker_store import WORKER_MODULE


class HostileStore(StorageManagerInFront):
    """A storage manager whose calls hang, end their process, or raise exceptions that no caller expects."""

    def __init__(self) -> None:
        super().__init__(LocalDirectory())

    def configure(self, configs: Mapping[str, object]) -> None:
        self.store.configure(configs)
        self._does = configs.get("does", "")
        program = sys.modules["__main__"].__spec__
        if self._does == "refuse" and program is not None and program.name == WORKER_MODULE:
            raise InvalidConfig("no worker, please")

    def create(self) -> None:
        self.store.create()

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        match self._does:
            case "hang":
                threading.Event().wait()
            case "exit":
                os._exit(7)
            case "retriable":
                raise _Own("503")
            case "not found":
                raise RemoteResourceNotFound("no such bucket")
            case "unknown":
                raise _Unknown("what is this")
            case "cancel":
                raise asyncio.CancelledError("by a loop of its own")
            case "leave":
                sys.exit(3)
            case "decode":
                raise UnicodeDecodeError("utf-8", b"x", 0, 1, "bad")
        super().copy_log_segment_data(metadata, data)
        return f"{os.getpid()} {os.getpriority(os.PRIO_PROCESS, 0)}".encode()

    def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        if self._does == "hang at deletions":
            threading.Event().wait()
        super().delete_log_segment_data(metadata)


class _Own(RetriableRemoteStorageError):
    pass


class _Unknown(Exception):
    pass
