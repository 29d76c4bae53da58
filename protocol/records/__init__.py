"""Record batches of magic 2 (KIP-98): headers, records, codecs and control records.

`batch` is the hot path and looks at headers only; `record` and `builder` go into the records;
`compression` is where the four codecs live; `control` names the records that brokers write themselves.
"""
