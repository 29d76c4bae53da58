"""Rebalances of a classic consumer group, as stories.

| command | meaning |
|---|---|
| `group max_size=2` | a new stage with these configurations |
| `a joins protocols=x,y` | JoinGroup of client a, with the id it was last given |
| `a forgets` | its process restarts: it knows no id any more |
| `a syncs a=p0 b=p1` | SyncGroup; the leader assigns |
| `a heartbeats`, `a leaves`, `instance i leaves` | |
| `3s pass` | time, and what becomes due meanwhile |
| `log holds`, `log commits`, `log refuses not_enough_replicas` | appends are not committed until `log commits` |
| `broker restarts` | the group is read from the log |
| `show` | the group's state |
"""

from collections.abc import Callable

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leave_group import MemberIdentity
from ottla.stories.groups import group_rules
from ottla.stories.groups.group_rules import group_of
from ottla.stories.groups.scene import Scene, describe_group
from ottla.stories.stage import BadCommand, Stage
from ottla.stories.trace import Group, Step


class GroupStage(Stage):
    """The stage of stories about a classic consumer group: clients, the group, and its log."""

    def __init__(self) -> None:
        super().__init__()
        self._before: Group | None = None
        self.stage = Scene()

    def close(self) -> None:
        """Do nothing, since nothing is open."""

    def observe(self, step: Step) -> None:
        """Write the group, as its coordinator has it, into a step."""
        before, self._before = self._before, group_of(self.stage)
        step.group = self._before
        step.events += group_rules.changes(before, self._before)

    def __call__(self, line: str) -> list[str]:
        """Play a command; what the clients receive, and what the log does."""
        words = line.split()
        match words:
            case ["group", *settings]:
                self.stage = Scene(**{key: int(value) for key, value in map(_pair, settings)})
            case ["log", what, *rest]:
                self._log(what, rest)
            case ["broker", "restarts"]:
                self.stage.restart()
            case ["show"]:
                self.stage.events.append(describe_group(self.stage.group))
            case [time, "passes" | "pass"]:
                self.stage.pass_time(_ms(time))
            case ["instance", instance_id, "leaves"]:
                self.stage.leave(MemberIdentity(group_instance_id=instance_id))
            case [name, verb, *rest]:
                self._client(name, verb, dict(map(_pair, rest)))
            case _:
                raise BadCommand.unknown()
        events, self.stage.events = self.stage.events, []
        return events

    def _log(self, what: str, rest: list[str]) -> None:
        if what == "holds":
            self.stage.is_log_held = True
        else:
            self.stage.settle(ErrorCode[rest[0]] if what == "refuses" else None)
            self.stage.is_log_held = False

    def _client(self, name: str, verb: str, wishes: dict[str, str]) -> None:
        match verb:
            case "joins":
                self.stage.join(name, **_wishes(wishes))
            case "syncs":
                self.stage.sync(name, {to: text.encode() for to, text in wishes.items()})
            case "heartbeats":
                self.stage.heartbeat(name)
            case "forgets":
                self.stage.client(name, member_id="", generation_id=-1)
            case "leaves":
                client = self.stage.client(name)
                self.stage.leave(
                    MemberIdentity(member_id=client.member_id, group_instance_id=client.instance_id)
                )
            case _:
                raise BadCommand.unknown()


def _wishes(words: dict[str, str]) -> dict[str, object]:
    readers: dict[str, tuple[str, Callable[[str], object]]] = {
        "protocols": ("protocols", lambda text: tuple(filter(None, text.split(",")))),
        "type": ("protocol_type", str),
        "session": ("session_timeout_ms", _ms),
        "rebalance": ("rebalance_timeout_ms", _ms),
        "instance": ("instance_id", str),
        "v": ("version", int),
        "topics": ("subscription", str.encode),
    }
    return {readers[word][0]: readers[word][1](text) for word, text in words.items()}


def _pair(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key, value


def _ms(text: str) -> int:
    return int(text[:-2]) if text.endswith("ms") else int(text.removesuffix("s")) * 1000
