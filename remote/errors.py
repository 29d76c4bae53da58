"""The errors of the second tier's interfaces (KIP-405, "Public Interfaces").

    RemoteStorageError                the operation failed, and a repetition would fail, too
    +- RetriableRemoteStorageError    transient: no connection, 503, time-out; the caller retries with back-off
    |  +- MetadataNotReady            the metadata of the partition's copies is still being read
    +- RemoteResourceNotFound         the object is not in the store
    +- DamagedSegment                 a segment has a damaged batch: a local one is not copied
    +- IncompleteCopy                 the store's objects of a copy contradict its metadata
    +- TransferCancelled              the caller has ended a copy

Source: RemoteStorageException, RetriableRemoteStorageException and RemoteResourceNotFoundException of Kafka 4.3.1.
"""


class RemoteStorageError(Exception):
    """An operation of a RemoteStorageManager or RemoteLogMetadataManager has failed."""


class RetriableRemoteStorageError(RemoteStorageError):
    """The failure is transient: the same operation may succeed later."""


class MetadataNotReady(RetriableRemoteStorageError):
    """The metadata of the partition's copies is still being read: nothing is known to be missing."""


class RemoteResourceNotFound(RemoteStorageError):
    """The segment, index or metadata is not in the remote tier."""


class IncompleteCopy(RemoteStorageError):
    """The store's objects of a copy contradict its metadata: a corrupt index, or another size."""


class DamagedSegment(RemoteStorageError):
    """A segment has a batch that is damaged; the message names the file, the position and the offset."""


class TransferCancelled(RemoteStorageError):
    """The copy is not wanted any more: the broker does not lead the partition, or stops."""
