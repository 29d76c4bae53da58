"""Strings that are not UTF-8, and tagged fields twice or in any order: read and returned as Kafka does.

About KIP-482.
"""

import socket
import struct

import pytest

from ottla.protocol.error_code import ErrorCode
from tests.compat.admin import PATIENCE_S, once
from tests.harness.not_utf8 import NOT_UTF8

_CORRELATION_ID = 7


def string(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


def header(key: int, version: int, client_id: bytes = b"client") -> bytes:
    return struct.pack(">hhi", key, version, _CORRELATION_ID) + string(client_id)


def ask(bootstrap: str, request: bytes) -> bytes:
    """The response after its correlation id; raises EOFError if the connection is closed instead."""
    host, port = bootstrap.split(",")[0].split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            size = stream.read(4)
            if not size:
                raise EOFError
            response = stream.read(struct.unpack(">i", size)[0])
    assert struct.unpack_from(">i", response) == (_CORRELATION_ID,)
    return response[4:]


@pytest.mark.parametrize(
    "request_bytes",
    [
        header(18, 0, "Müller".encode("latin-1")),
        # Metadata v9 of no topics: tags that descend in the header, one twice in the body.
        header(3, 9) + bytes.fromhex("03 02 00 01 00 01 00" + "01 00 00 00" + "02 05 00 05 00"),
        # Fetch v12 of nothing: the cluster id twice, with sizes that it does not have.
        header(1, 12) + b"\0" + struct.pack(">iiiibii", -1, 0, 0, 1, 0, 0, -1) + bytes.fromhex("01 01 01")
        + bytes.fromhex("02 00 7f 0263 00 01 0264"),
    ],
    ids=["client id in Latin-1", "unknown tags", "known tags"],
)  # fmt: skip
def test_an_unusual_request_is_answered(server, request_bytes):
    assert ask(server.bootstrap, request_bytes)


def test_commit_metadata_that_are_not_utf8_come_back_as_from_kafka(server, topic, group):
    name, of_group = string(topic.encode()), string(group.encode())

    def find_and_commit(data: bytes) -> int:
        """FindCoordinator v0, which creates the offsets topic, and OffsetCommit v2."""
        ask(server.bootstrap, header(10, 0) + of_group)
        member = struct.pack(">i", -1) + string(b"")
        row = struct.pack(">iiq", 1, 0, 5) + string(data)
        committed = ask(
            server.bootstrap, header(8, 2) + of_group + member + struct.pack(">qi", -1, 1) + name + row
        )
        return int.from_bytes(committed[-2:], "big", signed=True)

    def fetch() -> str:
        """Send an OffsetFetch request in version 1."""
        asked = struct.pack(">i", 1) + name + struct.pack(">ii", 1, 0)
        fetched = ask(server.bootstrap, header(9, 1) + of_group + asked)
        row_at = 4 + len(name) + 4
        index, offset, length = struct.unpack_from(">iqh", fetched, row_at)
        assert (index, offset) == (0, 5)
        return fetched[row_at + 14 : row_at + 14 + length].decode()

    ask(
        server.bootstrap, header(3, 4) + struct.pack(">i", 1) + name + b"\1"
    )  # Metadata, which creates the topic
    once(lambda: find_and_commit(b"first"), lambda error: error == ErrorCode.none)
    for text, decoded in NOT_UTF8:
        assert find_and_commit(bytes.fromhex(text)) == ErrorCode.none
        assert fetch() == decoded, text
