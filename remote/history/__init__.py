"""The history of a partition: the part of its log that the object store has, for readers that are no brokers.

    records of __remote_log_metadata, or the store's objects    known_copies.py, rebuilding.py
        |
        v  finished copies of one partition
    partition_history.py    which copy has which offsets of the log; where the history begins and ends; its first offset
        |                   of a time, and the aborted transactions of a range of offsets
        |
        v  (copy, [start, end))
    copy_batches.py         its batches, verified

Everything here is synchronous, waits for the store, and may run in any thread or process.
"""
