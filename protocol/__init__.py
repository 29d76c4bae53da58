"""Bytes <-> messages: framing, codecs, record batches, record schemas. Never waits, opens no file."""
