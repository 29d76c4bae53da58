"""The trace of a story: what each step prints, sends, decides and leaves behind. These classes are the schema.

A player reads a trace as JSON: `to_json` gives it, `from_json` reads it again. The names of the keys are those of the
fields, but `from` and `to` of a message; a field of a step that its kind of stage has nothing for is left out.
All end offsets are exclusive, an unknown offset is null, and `bytes` of messages are hexadecimal.
"""

import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

#: The version of the schema: a change that readers must know of increases it.
SCHEMA: Final = 2

_T = TypeVar("_T")


@dataclass(kw_only=True)
class Message:
    """One request or response in flight."""

    sender: str = field(metadata={"name": "from"})
    receiver: str = field(metadata={"name": "to"})
    kind: Literal["request", "response"]
    #: The API's name as in Kafka's documentation: Fetch, ListOffsets.
    api: str
    version: int
    #: The message in words, as the story prints it.
    line: str
    #: It does not arrive.
    lost: bool = False
    #: A request: the leader does not answer in this step. A response: of such a request.
    delayed: bool = False
    #: The whole message by the names of Kafka's schema.
    fields: dict[str, Any] = field(default_factory=dict)
    #: The frame as it is on the wire, with its length, hexadecimal; not more than its first `MAX_FRAME_BYTES`.
    frame: str = ""
    frame_bytes: int = 0


#: A frame is shown up to here.
MAX_FRAME_BYTES: Final = 4096


@dataclass(kw_only=True)
class Event:
    """Something that a replica decides, the rule that it follows, and the place in the code that applies the rule."""

    replica: str
    line: str
    #: KIP-101; empty where Kafka has the rule, and no KIP.
    kip: str
    rule: str
    #: The function's dotted name; its file, from the top of the repository; the line in it.
    function: str
    source: str
    source_line: int


@dataclass(kw_only=True)
class Cell:
    """One record of a log."""

    offset: int
    epoch: int
    value: str
    #: A loss of power does not lose it.
    flushed: bool


@dataclass(kw_only=True)
class Belief:
    """The leader that a broker knows from the metadata log."""

    leader: str | None
    leader_epoch: int


@dataclass(kw_only=True)
class Replica:
    """One replica of the partition. While its broker is down: what is on its disk."""

    name: str
    state: Literal["leader", "follower", "down", "unassigned"]
    leader_epoch: int
    #: The in-sync replicas that a leader knows; those of the metadata log that the broker has replayed otherwise.
    isr: list[str]
    rack: str | None
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    cells: list[Cell]
    #: The leader-epoch-checkpoint: (epoch, start offset).
    epochs: list[tuple[int, int]]
    #: The base offsets of the local segments.
    segments: list[int]
    believes: Belief | None
    #: The state of a follower's state machine: FETCHING, TRUNCATING (`ottla.replication.follower_states`).
    following: str | None = None


@dataclass(kw_only=True)
class Copy:
    """A segment's copy in the remote tier."""

    number: int
    start_offset: int
    end_offset: int
    #: KIP-405's state: COPY_SEGMENT_STARTED, COPY_SEGMENT_FINISHED, DELETE_SEGMENT_STARTED.
    state: str
    epochs: list[tuple[int, int]]
    bytes: int
    #: The broker that copied it.
    broker: str


@dataclass(kw_only=True)
class Tier:
    """The remote tier: what the metadata say of it, and what is in the store."""

    #: The end of what finished copies have, whatever their lineage.
    end_offset: int
    copies: list[Copy]
    #: The keys of the segments in the store; their indexes are beside them.
    objects: list[str]
    is_answering: bool


@dataclass(kw_only=True)
class Judgement:
    """The verdict of a judge who sees all replicas."""

    #: Committed records that the leader does not have.
    lost: list[str]
    #: The first offset at which two logs differ.
    divergent_at: int | None
    #: Followers that send no request.
    asks_nothing: list[str]


@dataclass(kw_only=True)
class Node:
    """A node of the metadata quorum."""

    name: str
    #: leader, follower, candidate, prospective, unattached, resigned; `down` while its process is stopped.
    role: str
    epoch: int
    leader: str | None
    voted_for: str | None
    voters: list[str]
    high_watermark: int | None
    log_start_offset: int
    log_end_offset: int
    cells: list[Cell]
    is_cut_off: bool


@dataclass(kw_only=True)
class LocalLog:
    """The local log of a replica, as its leader has reported it to the controller (draft KIP-1303)."""

    start_offset: int
    #: The age of the oldest record, by the controller's clock.
    oldest_age_ms: int | None
    size_bytes: int


@dataclass(kw_only=True)
class Partition:
    """A partition as the controller has it."""

    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: list[int]
    isr: list[int]
    elr: list[int]
    last_known: list[int]
    recovery: str
    #: By broker; one that is not there is unknown.
    local_logs: dict[str, LocalLog]
    #: Brokers that are registered and not fenced.
    active: list[int]


@dataclass(kw_only=True)
class Member:
    """A client that is, or wants to be, a member of the group."""

    name: str
    id: str
    generation: int
    assigned: list[str]
    #: The request that has not been answered.
    waits: Literal["join", "sync"] | None
    is_leader: bool
    instance: str | None


@dataclass(kw_only=True)
class Group:
    """A consumer group as its coordinator has it."""

    state: str
    generation: int
    protocol: str | None
    members: list[Member]
    now_ms: int


@dataclass(kw_only=True)
class Step:
    """One command of the story and what comes of it; the state is the one after the command."""

    #: The line of the file, from 1, and the block of commands, from 1.
    line: int
    block: int
    command: str
    #: The comment above the command.
    comment: str | None = None
    #: The lines that the command prints, exactly as in the file.
    says: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    replicas: list[Replica] | None = None
    tier: Tier | None = None
    judgement: Judgement | None = None
    nodes: list[Node] | None = None
    partition: Partition | None = None
    group: Group | None = None


@dataclass(kw_only=True)
class Planted:
    """A planted bug: the same story with one rule changed."""

    name: str
    #: The rule that applies instead.
    title: str
    #: The lines that show that it is wrong: those of the last `show`, or what the run ended with.
    outcome: str
    #: As many as the story has, or fewer, if the run ends early.
    steps: list[Step]


@dataclass(kw_only=True)
class Trace:
    """A story that was played."""

    schema: int = SCHEMA
    #: ROOM/NAME: tests/scenario/ROOM/NAME.txt.
    name: str
    title: str
    kips: list[str]
    text: str
    steps: list[Step]
    planted: list[Planted] = field(default_factory=list)


@dataclass(kw_only=True)
class Entry:
    """A story in the list of all."""

    name: str
    room: str
    title: str
    kips: list[str]
    steps: int
    #: The names of the planted bugs.
    planted: list[str]


@dataclass(kw_only=True)
class Index:
    """All stories, and the guided hour (`hour.toml`)."""

    schema: int = SCHEMA
    stories: list[Entry]
    hour: list[dict[str, Any]] = field(default_factory=list)
    #: Where a text is posted to be played; left out in a static site.
    run: str | None = None


#: Fields that are left out while there is nothing to say.
_OPTIONAL: Final[Mapping[type, frozenset[str]]] = {
    Step: frozenset({"comment", "replicas", "tier", "judgement", "nodes", "partition", "group"}),
    Index: frozenset({"run"}),
}


def to_json(value: Any) -> Any:
    """Return a trace, or a part of it, as `json.dumps` takes it.

    >>> to_json(Cell(offset=0, epoch=1, value="m1", flushed=True))
    {'offset': 0, 'epoch': 1, 'value': 'm1', 'flushed': True}
    """
    if is_dataclass(value) and not isinstance(value, type):
        optional = _OPTIONAL.get(type(value), frozenset())
        return {
            each.metadata.get("name", each.name): to_json(found)
            for each in fields(value)
            if (found := getattr(value, each.name)) is not None or each.name not in optional
        }
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if isinstance(value, dict):
        return {key: to_json(each) for key, each in value.items()}
    return value


def from_json(cls: type[_T], data: Mapping[str, Any]) -> _T:
    """Read what `to_json` has written; TypeError, KeyError or ValueError if it is of another form."""
    hints = get_type_hints(cls)
    names = {each.metadata.get("name", each.name): each.name for each in fields(cast(Any, cls))}
    if unknown := data.keys() - names.keys():
        raise ValueError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
    return cls(**{names[key]: _read(hints[names[key]], value) for key, value in data.items()})


def _read(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        (hint,) = (each for each in arguments if each is not type(None))
        return _read(hint, value)
    if origin is list:
        return [_read(arguments[0], each) for each in value]
    if origin is tuple:
        return tuple(_read(each, part) for each, part in zip(arguments, value, strict=True))
    if origin is dict:
        return {key: _read(arguments[1], each) for key, each in value.items()}
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is none of {arguments}")
        return value
    if is_dataclass(hint):
        return from_json(cast(Any, hint), value)
    if hint is not Any and type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint}")
    return value
