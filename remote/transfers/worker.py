"""The transfer process: `python -m ottla.remote.transfers.worker` copies and deletes for its broker, and reads times.

It has a storage manager of its own, made from the same class name and settings as the broker's.
"""

from dataclasses import replace

from ottla.remote.checked_copies import CheckedCopies
from ottla.remote.plugins import load_storage_manager
from ottla.remote.transfers.messages import CopyRequest, DeleteRequest, Raised, Setup, Succeeded, TimesRequest
from ottla.runtime.worker_main import serve
from ottla.runtime.workers import Ask, CallCancelled, Handler
from ottla.storage.files import Files
from ottla.storage.segment_times import times_of_file


def make_handler(setup: Setup) -> Handler:
    """Return the handler of the requests of `ottla.remote.transfers.messages`. Raises InvalidConfig."""
    store = load_storage_manager(setup.class_name, setup.configs, class_path=setup.class_path)
    if setup.checks_batches:
        store = CheckedCopies(store, Files())

    def handle(request: CopyRequest | DeleteRequest | TimesRequest, ask: Ask) -> Succeeded | Raised:
        try:
            if isinstance(request, TimesRequest):
                return Succeeded(value=times_of_file(request.segment, Files(), on_piece=lambda: ask(0)))
            if isinstance(request, CopyRequest):
                data = replace(request.data, on_bytes=ask)
                return Succeeded(value=store.copy_log_segment_data(request.metadata, data))
            store.delete_log_segment_data(request.metadata)
        except CallCancelled:
            raise
        except BaseException as error:  # noqa: BLE001 (whatever a plugin raises, to be raised by the caller)
            return Raised.of(error)
        return Succeeded(value=None)

    return handle


if __name__ == "__main__":
    serve(make_handler)
