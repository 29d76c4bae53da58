"""The group APIs on the wire, in every version: the transcript beside this file is what Kafka 4.3.1 answered.

Renew it with `KAFKA_ORACLE=1 RENEW_TRANSCRIPTS=1`. Ids that are drawn, addresses and sentences for
people are left out, and rows that Kafka keeps in hash maps are sorted.

About KIP-430, KIP-699, KIP-709.
"""

import dataclasses
import difflib
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import encode_request_header, encode_response_header
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.types import ZERO_UUID
from tests.compat.admin import PATIENCE_S, once, wait_until

_TRANSCRIPT = Path(__file__).with_name("group_wire.txt")
_SUBSCRIPTION = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"


class Wire:
    """A connection that sends messages and keeps a transcript of the answers."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def send(self, version: int, request: Any) -> None:
        key = request.__api_key__
        frame = encode_request_header(key, version, 1, "wire") + encode_request(key, version, request)
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self, key: int, version: int) -> Any:
        frame = self._read(*struct.unpack(">i", self._read(4)))
        return decode_response(key, version, frame[len(encode_response_header(key, version, 1)) :])

    def ask(self, version: int, request: Any, *, note: str = "") -> Any:
        """Send, receive, and write down."""
        self.send(version, request)
        return self.transcribed(request.__api_key__, version, note)

    def transcribed(self, key: int, version: int, note: str = "") -> Any:
        response = self.receive(key, version)
        self.lines.append(f"{ApiKey(key).name} v{version} {note}".rstrip())
        self.lines += [f"    {line}" for line in self._describe(response)]
        return response

    def call(self, version: int, request: Any) -> Any:
        """Send and receive, and say nothing of it."""
        self.send(version, request)
        return self.receive(request.__api_key__, version)

    def close(self) -> None:
        self._socket.close()

    def name(self, drawn: str, name: str) -> None:
        """Have something that the server drew appear under a name."""
        if drawn:
            self._names[drawn] = name

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            assert piece, "the connection was closed"
            data += piece
        return data

    def _describe(self, message: Any, *, prefix: str = "") -> Iterator[str]:
        flat, nested = [], []
        for name in [described.name for described in dataclasses.fields(message)]:
            value = getattr(message, name)
            if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
                nested += [(name, row) for row in sorted(value, key=self._order)]
            elif name == "error_code":
                flat.append(f"{name}={ErrorCode(value).name}")
            elif (name == "error_message" and message.error_code) or (name, value) == ("throttle_time_ms", 0):
                continue
            elif name == "error_message" and isinstance(message, DeletableGroupResult):
                continue  # of a version that Kafka 4.3.1 does not serve
            else:
                flat.append(f"{name}={self._anonymous(repr(value))}")
        yield f"{prefix}{' '.join(flat)}"
        for name, row in nested:
            yield from self._describe(row, prefix=f"{name}: ")

    def _order(self, row: Any) -> str:
        return self._anonymous(repr(row))

    def _anonymous(self, text: str) -> str:
        for drawn, name in self._names.items():
            text = text.replace(drawn, name)
        return text


def _topic(wire: Wire, name: str) -> Any:
    """Create a topic of two partitions; its id, when it has leaders."""
    topic = CreatableTopic(name=name, num_partitions=2, replication_factor=1)
    wire.call(7, CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    found = once(
        lambda: wire.call(12, asked).topics[0],
        lambda found: len([row for row in found.partitions if row.leader_id >= 0]) == 2,
    )
    wire.name(repr(found.topic_id), "TOPIC_ID")
    return found.topic_id


def _wait_for_coordinator(wire: Wire, group: str) -> None:
    """Wait until the offsets topic exists and is loaded."""
    beat = HeartbeatRequest(group_id=group, member_id="x")
    wait_until(lambda: not wire.call(3, FindCoordinatorRequest(key=group)).error_code)
    wait_until(lambda: wire.call(3, beat).error_code == ErrorCode.unknown_member_id)


def _join_request(group: str, **fields: Any) -> JoinGroupRequest:
    fields = {
        "group_id": group,
        "session_timeout_ms": 300_000,
        "rebalance_timeout_ms": 300_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=_SUBSCRIPTION)],
        **fields,
    }
    return JoinGroupRequest(**fields)


def _join(wire: Wire, version: int, group: str, **fields: Any) -> Any:
    """Join as clients do, with the id that was given if there was one."""
    request = _join_request(group, **fields)
    joined = wire.call(version, request)
    wire.name(joined.member_id, "MEMBER")
    if joined.error_code == ErrorCode.member_id_required:
        wire.lines.append(f"JOIN_GROUP v{version} MEMBER_ID_REQUIRED")
        request.member_id = joined.member_id
        return wire.ask(version, request)
    wire.lines.append(f"JOIN_GROUP v{version}")
    wire.lines += [f"    {line}" for line in wire._describe(joined)]
    return joined


def _members(wire: Wire, topic: str, topic_id: Any) -> None:
    """The life of a member, in every version of JoinGroup and the nearest of the others."""
    for version in KAFKA_VERSIONS[ApiKey.JOIN_GROUP]:
        group = f"group-{version}"
        wire.lines.append(f"== {group}")
        _wait_for_coordinator(wire, group)
        for note, fields in {
            "no protocols": {"protocols": []},
            "no type": {"protocol_type": ""},
            "short session": {"session_timeout_ms": 1},
            "long session": {"session_timeout_ms": 10_000_000},
            "unknown member": {"member_id": "x"},
            "no group": {"group_id": ""},
        }.items():
            wire.ask(version, _join_request(group, **fields), note=note)
        static = {"group_instance_id": "i"} if version >= 5 else {}
        joined = _join(wire, version, group, **static)
        member = {"group_id": group, "member_id": joined.member_id, **static}
        nearest = min(version, 5)
        protocol = {"protocol_type": "consumer", "protocol_name": "range"} if nearest == 5 else {}
        commit = _commit(topic, topic_id, nearest + 3, generation_id_or_member_epoch=1, **member)
        wire.ask(nearest + 3, commit, note="early commit")
        other = {"member_id": "x", "generation_id": 1, "group_id": group, **protocol}
        wire.ask(nearest, SyncGroupRequest(**other), note="unknown member")
        wire.ask(nearest, SyncGroupRequest(**member, generation_id=9, **protocol), note="other generation")
        if nearest == 5:
            wire.ask(5, SyncGroupRequest(**member, generation_id=1), note="no protocol")
            others = {"protocol_type": "consumer", "protocol_name": "x"}
            wire.ask(5, SyncGroupRequest(**member, generation_id=1, **others), note="other protocol")
            fenced = {**member, "member_id": "x"}
            wire.ask(5, SyncGroupRequest(**fenced, generation_id=1, **protocol), note="fenced")
        wire.ask(min(version, 6), DescribeGroupsRequest(groups=[group]), note="before the assignment")
        assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"everything")
        wire.ask(nearest, SyncGroupRequest(**member, generation_id=1, assignments=[assignment], **protocol))
        wire.ask(nearest, SyncGroupRequest(**member, generation_id=1, **protocol), note="once more")
        asked = DescribeGroupsRequest(
            groups=[group, "no such group"], include_authorized_operations=version >= 3
        )
        wire.ask(min(version, 6), asked)
        beat = min(version, 4)
        wire.ask(beat, HeartbeatRequest(**member, generation_id=1))
        wire.ask(beat, HeartbeatRequest(**member, generation_id=2), note="other generation")
        wire.ask(
            beat, HeartbeatRequest(group_id=group, member_id="x", generation_id=1), note="unknown member"
        )
        wire.ask(beat, HeartbeatRequest(group_id="", member_id="x"), note="no group")
        wire.ask(beat, HeartbeatRequest(group_id="no such group", member_id="x"), note="unknown group")
        if static:
            fenced = {**member, "member_id": "x"}
            wire.ask(beat, HeartbeatRequest(**fenced, generation_id=1), note="fenced")
            again = _join(wire, version, group, **static)
            wire.ask(beat, HeartbeatRequest(**member, generation_id=1), note="replaced")
            member["member_id"] = again.member_id
        commit_version = version + 1 if version else 2
        for note, fields in {
            "": {},
            "other generation": {"generation_id_or_member_epoch": 7},
            "unknown member": {"member_id": "x"},
            "as an outsider": {"member_id": "", "generation_id_or_member_epoch": -1},
            "unknown group": {"group_id": "no such group"},
        }.items():
            changed = {**member, "generation_id_or_member_epoch": 1, **fields}
            wire.ask(commit_version, _commit(topic, topic_id, commit_version, **changed), note=note)
        wire.ask(min(version, 2), DeleteGroupsRequest(groups_names=[group]), note="with members")
        wire.ask(0, _delete_offsets(group, "t"), note="subscribed, but unknown")
        wire.ask(0, _delete_offsets(group, topic), note="not subscribed")
        _leave(wire, nearest, group, member)
        wire.ask(min(version, 6), DescribeGroupsRequest(groups=[group]), note="without members")
        wire.ask(min(version, 2), DeleteGroupsRequest(groups_names=[group, group, "no such group"]))


def _leave(wire: Wire, version: int, group: str, member: dict[str, Any]) -> None:
    member_id, instance_id = member["member_id"], member.get("group_instance_id")
    if version < 3:
        wire.ask(version, LeaveGroupRequest(group_id=group, member_id="x"), note="unknown member")
        wire.ask(version, LeaveGroupRequest(group_id=group, member_id=member_id))
        wire.ask(version, LeaveGroupRequest(group_id="no such group", member_id="x"), note="unknown group")
        return
    leavers = [
        MemberIdentity(member_id="x"),
        MemberIdentity(group_instance_id="no such instance"),
        MemberIdentity(member_id="x", group_instance_id=instance_id),
        MemberIdentity(member_id="" if instance_id else member_id, group_instance_id=instance_id),
    ]
    wire.ask(version, LeaveGroupRequest(group_id=group, members=leavers))
    wire.ask(version, LeaveGroupRequest(group_id="no such group", members=leavers[:1]), note="unknown group")
    wire.ask(version, LeaveGroupRequest(group_id="", members=leavers[:1]), note="no group")
    wire.ask(version, LeaveGroupRequest(group_id=group, members=[]), note="without members")


def _commit(topic: str, topic_id: Any, version: int, **fields: Any) -> OffsetCommitRequest:
    """Offsets of a partition that exists, of one that does not, with metadata that is too long; of no topic."""
    rows = [
        OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="m"),
        OffsetCommitRequestPartition(partition_index=1, committed_offset=6, committed_metadata="m" * 5000),
        OffsetCommitRequestPartition(partition_index=9, committed_offset=7),
    ]
    unknown = OffsetCommitRequestTopic(name="no such topic", topic_id=ZERO_UUID, partitions=rows[:1])
    if version < 7:
        fields.pop("group_instance_id", None)
    return OffsetCommitRequest(
        topics=[OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=rows), unknown], **fields
    )


def _delete_offsets(group: str, topic: str) -> OffsetDeleteRequest:
    rows = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
    return OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=rows)])


def _offsets(wire: Wire, topic: str, topic_id: Any) -> None:
    """Commits of a group without members, and fetches of them, in every version."""
    for version in KAFKA_VERSIONS[ApiKey.OFFSET_COMMIT]:
        group = f"simple-{version}"
        wire.lines.append(f"== {group}")
        _wait_for_coordinator(wire, group)
        wire.ask(version, _commit(topic, topic_id, version, group_id=group))
        wire.ask(version, OffsetCommitRequest(group_id=group), note="nothing")
    group = "simple-10"
    for version in KAFKA_VERSIONS[ApiKey.OFFSET_FETCH]:
        wire.lines.append(f"== OffsetFetch v{version}")
        for asked in (group, "no such group", ""):
            _wait_for_coordinator(wire, asked or group)
            if version < 8:
                topics = [
                    OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1, 9]),
                    OffsetFetchRequestTopic(name="no such topic", partition_indexes=[0]),
                ]
                wire.ask(version, OffsetFetchRequest(group_id=asked, topics=topics), note=asked)
                if version >= 2:
                    wire.ask(version, OffsetFetchRequest(group_id=asked, topics=None), note=f"{asked}: all")
                continue
            named = [
                OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0, 1, 9]),
                OffsetFetchRequestTopics(name="no such topic", partition_indexes=[0]),
            ]
            groups = [OffsetFetchRequestGroup(group_id=asked, topics=topics) for topics in (named, None)]
            for one in groups:
                wire.ask(version, OffsetFetchRequest(groups=[one], require_stable=True), note=asked)
    wire.ask(0, _delete_offsets(group, topic), note="simple group")
    wire.ask(0, _delete_offsets(group, "no such topic"), note="unknown topic")
    wire.ask(0, _delete_offsets("no such group", topic), note="unknown group")
    wire.ask(0, _delete_offsets("", topic), note="no group")
    for version in KAFKA_VERSIONS[ApiKey.LIST_GROUPS]:
        wire.ask(version, ListGroupsRequest(), note="all")
    wire.ask(4, ListGroupsRequest(states_filter=["eMPTY "]), note="empty ones")
    wire.ask(4, ListGroupsRequest(states_filter=["Stable", "nonsense"]), note="stable ones")
    wire.ask(5, ListGroupsRequest(types_filter=["Consumer"]), note="consumer groups")
    wire.ask(
        5, ListGroupsRequest(types_filter=["Classic"], states_filter=["Empty"]), note="empty classic ones"
    )
    groups = [f"simple-{version}" for version in KAFKA_VERSIONS[ApiKey.OFFSET_COMMIT]]
    wire.ask(2, DeleteGroupsRequest(groups_names=groups))
    wire.ask(5, ListGroupsRequest(), note="after the end")


def _coordinators(wire: Wire) -> None:
    for version in KAFKA_VERSIONS[ApiKey.FIND_COORDINATOR]:
        if version < 4:
            wire.ask(version, FindCoordinatorRequest(key="g"))
            wire.ask(version, FindCoordinatorRequest(key=""), note="no group")
        else:
            wire.ask(version, FindCoordinatorRequest(coordinator_keys=["g", "h"]))
            wire.ask(version, FindCoordinatorRequest(coordinator_keys=[]), note="none")
        if version in (1, 4):
            asked = FindCoordinatorRequest(key="g", coordinator_keys=["g"], key_type=9)
            wire.ask(version, asked, note="unknown key type")
        if version == 5:
            asked = FindCoordinatorRequest(coordinator_keys=["g:x:0"], key_type=2)
            wire.ask(version, asked, note="share group, too early")


def test_every_version_of_the_group_apis_answers_as_kafka_does(own_server):
    wire = Wire(own_server.bootstrap)
    topic = "a-topic"
    topic_id = _topic(wire, topic)
    for group in ("g", "no such group"):
        _wait_for_coordinator(wire, group)
    _coordinators(wire)
    _members(wire, topic, topic_id)
    _offsets(wire, topic, topic_id)
    wire.close()
    transcript = "\n".join(wire.lines) + "\n"
    transcript = re.sub(r"port=[1-9]\d*", "port=PORT", transcript)
    if own_server.is_kafka and os.environ.get("RENEW_TRANSCRIPTS") == "1":
        _TRANSCRIPT.write_text(transcript)
    difference = difflib.unified_diff(_TRANSCRIPT.read_text().splitlines(), transcript.splitlines(), n=8)
    assert not list(difference)
