"""The Kafka protocol, bytes <-> messages: framing, codecs, record batches, record schemas. No waiting, no files."""
