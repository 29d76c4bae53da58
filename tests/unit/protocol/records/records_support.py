"""Batches for the tests beside this: Kafka's own, and some made of bytes by hand."""

from pathlib import Path

from ottla.protocol.records.builder import assemble

NOW = 1_700_000_000_000

#: Batches that Kafka 4.3.1 wrote, by codec or type.
KAFKA_BATCHES = {
    name: bytes.fromhex(text)
    for name, text in (
        line.split()
        for line in (Path(__file__).parent / "kafka_batches.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}


def batch_of(payload: bytes, *, count: int = 1, attributes: int = 0) -> bytes:
    """A batch with a right header and CRC around bytes that need not be records."""
    return assemble(
        payload,
        base_offset=0,
        leader_epoch=-1,
        attributes=attributes,
        last_offset_delta=max(count - 1, 0),
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=count,
    )
