"""Appending what another replica has, batch by batch: from a leader, or from the log that a future log is to replace."""

from storage.log import AppendInfo, Log, UnexpectedAppendOffset


def append_copy(log: Log, records: memoryview, *, leader_epoch: int, now_ms: int) -> AppendInfo:
    """Append whole batches as they are.

    Raises CorruptMessage (nothing is written then), UnexpectedAppendOffset, KafkaStorageError.
    """
    try:
        return log.append_as_follower(records, leader_epoch=leader_epoch, now_ms=now_ms)
    except UnexpectedAppendOffset as error:
        # The other log starts within a batch (DeleteRecords): an empty log begins with all of it.
        is_empty = log.log_end_offset == log.log_start_offset
        if not (is_empty and error.first_offset < log.log_end_offset <= error.last_offset):
            raise
        log.truncate_fully_and_start_at(error.first_offset, now_ms=now_ms)
        return log.append_as_follower(records, leader_epoch=leader_epoch, now_ms=now_ms)
