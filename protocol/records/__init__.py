"""Record batches of magic 2 (KIP-98): headers, records, codecs and control records.

`batch` is the hot path and reads headers only; `record` and `builder` decode and encode the records;
`compression` has the four codecs; `control` and `quorum` have the control records that brokers write themselves.
"""
