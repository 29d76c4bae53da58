"""Rebalances as stories; see the files next to this one for what they say.

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

from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leave_group import MemberIdentity
from tests.unit.broker.groups.groups_support import Stage, describe_group

_FILES = sorted(Path(__file__).parent.glob("*.txt"))


class Narrator:
    def __init__(self) -> None:
        self.stage = Stage()

    def __call__(self, line: str) -> list[str]:
        words = line.split()
        match words:
            case ["group", *settings]:
                self.stage = Stage(**{key: int(value) for key, value in map(_pair, settings)})
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
                raise AssertionError(verb)


def _wishes(words: dict[str, str]) -> dict[str, object]:
    readers = {
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


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_group_scenario(path, play):
    assert path.read_text().startswith("# K"), "a scenario says first which rule of which KIP it is about"
    play(path, Narrator())
