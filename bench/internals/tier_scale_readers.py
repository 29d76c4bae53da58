"""Consumers that read a tiered topic from its first offset on, one for each partition, at the same time.

python -m ottla.bench.internals.tier_scale_readers PORT TOPIC READERS END_OFFSET

Prints a line when it is ready, waits for one, then prints the bytes that all of them got.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ottla.bench.targets.wire import RequestFailed, WireClient
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.protocol.records.batch import batches

_WAIT_MS: Final = 500
_FETCH_BYTES: Final = 2**20


def _read(port: int, topic: str, partition: int, end_offset: int) -> int:
    offset = size = 0
    with WireClient(port) as client:
        while offset < end_offset:
            row = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES)
            request = FetchRequest(
                max_wait_ms=_WAIT_MS,
                min_bytes=1,
                max_bytes=_FETCH_BYTES,
                topics=[FetchTopic(topic=topic, partitions=[row])],
            )
            answer = client.request(ApiKey.FETCH, request, FetchResponse)
            (found,) = answer.responses[0].partitions
            if answer.error_code or found.error_code:
                raise RequestFailed(
                    f"{topic}-{partition} at {offset}: {answer.error_code}, {found.error_code}"
                )
            for header, batch in batches(memoryview(found.records or b"")):
                offset = header.next_offset
                size += len(batch)
    return size


def main() -> None:
    """Read all partitions when a line comes on the standard input, and print the bytes that were read."""
    port, topic, readers, end_offset = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    print("ready", flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(readers) as pool:
        print(sum(pool.map(lambda number: _read(port, topic, number, end_offset), range(readers))))


if __name__ == "__main__":
    main()
