"""ISR, ELR and leader of one partition, as stories that read like tables: a row for each event.

| command | meaning |
|---|---|
| `replicas 1 2 3 min-isr 2` | a new cluster of these brokers, a partition on all of them |
| `... without ELR`, `... tiered` | added to `replicas`: without ELR, with a tiered topic |
| `3 is fenced` | its session expires; all other unfenced brokers send heartbeats |
| `3 is unfenced` | it sends heartbeats again |
| `3 begins to shut down` | the first heartbeat of its controlled shutdown |
| `3 shuts down` | a controlled shutdown, until the controller lets it stop |
| `3 registers, clean shutdown` | a new process; its clean-shutdown file has its predecessor's broker epoch |
| `3 registers, unclean shutdown` | a new process without that file |
| `3 unregisters` | UnregisterBroker |
| `3 loses its directory` | it reports its log directory offline |
| `1 asks for isr 1 2` | AlterPartition by broker 1, with the current epochs |
| `... with the former epoch of 2` | the same, with the broker epoch of 2 before its last registration |
| `... recovered`, `... recovering` | the same, with this leader recovery state |
| `... local 1@500 2@700:20m`, `... local 3@900:20m:64` | the same, with these local logs: |
|  | replica @ local log start : age of the oldest record : size |
| `1 reports 1@500 2@700` | AlterPartition with the current ISR and these local logs |
| `20m pass` | of the wall clock |
| `reassign to 3 2` | AlterPartitionReassignments |
| `elect preferred`, `elect unclean` | ElectLeaders |
| `balance leaders`, `elect uncleanly` | the controller's periodic elections |
| `set min.insync.replicas=1` | a configuration of the topic |

The controller's decisions are those of production: registrations, heartbeats, AlterPartition, ElectLeaders,
configurations. The row of a tiered partition ends with the local log starts that the controller knows.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from ottla.config.log_config import validate_topic_configs
from ottla.controller import configs
from ottla.controller.membership import brokers
from ottla.controller.partitions.alter_partition import alter_partition
from ottla.controller.partitions.elect_leaders import balance_leaders, elect_leaders, elect_unclean
from ottla.controller.partitions.reassignments import alter_partition_reassignments
from ottla.controller.settings import ConfigValidators
from ottla.metadata.image import LeaderRecoveryState
from ottla.protocol.errors import ErrorCode
from ottla.protocol.local_log import LocalLogState
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.messages.broker_registration import BrokerRegistrationRequest, Feature
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.unregister_broker import UnregisterBrokerRequest
from ottla.stories.elections import election_rules
from ottla.stories.elections.election_rules import Held, partition_of
from ottla.stories.elections.machine import CLUSTER_ID, ELR, Machine, directory
from ottla.stories.stage import BadCommand, Stage
from ottla.stories.trace import Partition, Step

_TOPIC = "t"
#: The event, and what it leads to.
_COLUMNS = ("{:<48}", "{:<6} {:<5} {:<7} {:<5} {:<10} {}")
_TIERED_COLUMNS = ("{:<64}", "{:<6} {:<5} {:<7} {:<5} {:<10} {:<10} {}")
_EARLY = "leader.election.prefer.early.local.log.start.offset"
_TIER = {"remote.storage.enable": "true", _EARLY: "true"}
_MINUTE_MS = 60_000
_RECOVERY = {"recovered": LeaderRecoveryState.RECOVERED, "recovering": LeaderRecoveryState.RECOVERING}
_ELECTIONS = {"preferred": 0, "unclean": 1}
_FEATURES = {"metadata.version": (7, 33), ELR: (0, 1)}
_SESSION_MS = 9_001


class ElectionStage(Stage):
    """A controller with one partition."""

    machine: Machine
    former_epochs: dict[int, int]
    incarnations: int
    is_tiered: bool

    def __init__(self) -> None:
        super().__init__()
        self._before: Partition | None = None
        self._election: Held | None = None

    def close(self) -> None:
        """Do nothing, since nothing is open."""

    def observe(self, step: Step) -> None:
        """Write the partition, as the controller has it, into a step."""
        before, self._before = self._before, partition_of(self.machine, _TOPIC)
        step.partition = self._before
        step.events += election_rules.changes(
            before, self._before, command=step.command.replace(",", ""), election=self._election
        )

    def __call__(self, line: str) -> list[str]:
        """Carry out a command; the rows that it adds to the table."""
        words = line.replace(",", "").split()
        if words[0] == "replicas":
            self._begin(words[1:])
            names = ("leader", "epoch", "isr", "elr", "last known", "recovery", "local log starts")
            return [self._line("event", self._columns[1].format(*names)), self._row(line)]
        if not hasattr(self, "machine"):
            raise BadCommand.first("replicas 1 2 3 min-isr 2")
        with election_rules.elections() as held:
            error = self._play(words)
        self._election = held[-1] if held else None
        return [self._row(line) if error is ErrorCode.none else self._line(line, error.name.upper())]

    @property
    def _columns(self) -> tuple[str, str]:
        return _TIERED_COLUMNS if self.is_tiered else _COLUMNS

    def _begin(self, words: list[str]) -> None:
        ids, options = words[: words.index("min-isr")], words[words.index("min-isr") + 1 :]
        replicas = [int(word) for word in ids]
        self.machine = Machine(
            brokers=replicas,
            elr=options[1:] != ["without", "ELR"],
            validators=ConfigValidators(topic=_validate),
        )
        self.machine.state.wall_clock_ms = 1_700_000_000_000
        self.machine.create(_TOPIC, replicas)
        self.is_tiered = options[1:] == ["tiered"]
        for name, value in _TIER.items() if self.is_tiered else ():
            self._configure(name, value)
        self.machine.set_config("min.insync.replicas", options[0], topic=_TOPIC)
        self.former_epochs = {}
        self.incarnations = 0
        self._before = self._election = None

    def _row(self, event: str) -> str:
        now = self.machine.partition(_TOPIC)
        recovery = "" if now.leader_recovery_state is LeaderRecoveryState.RECOVERED else "recovering"
        leader = "-" if now.leader is None else now.leader
        starts = " ".join(f"{replica}@{log.start_offset}" for replica, log in now.local_logs)
        row = (
            leader,
            now.leader_epoch,
            _ids(now.isr),
            _ids(now.elr),
            _ids(now.last_known_elr),
            recovery,
            starts,
        )
        return self._line(event, self._columns[1].format(*row))

    def _line(self, event: str, outcome: str) -> str:
        return f"{self._columns[0].format(event)} {outcome}".rstrip()

    def _play(self, words: list[str]) -> ErrorCode:
        machine = self.machine
        match words:
            case [id, "asks", "for", "isr", *rest]:
                return self._alter(int(id), rest)
            case [id, "reports", *logs]:
                return self._alter(int(id), [*map(str, machine.partition(_TOPIC).isr), "local", *logs])
            case [minutes, "pass"]:
                machine.state.wall_clock_ms += int(minutes.removesuffix("m")) * _MINUTE_MS
            case ["reassign", "to", *rest]:
                self._reassign([int(word) for word in rest])
            case ["elect", "uncleanly"]:
                machine.do(elect_unclean(machine.state, machine.now_ms))
            case ["elect", kind]:
                return self._elect(_ELECTIONS[kind])
            case ["balance", "leaders"]:
                machine.do(balance_leaders(machine.state, machine.now_ms))
            case ["set", setting]:
                self._configure(*setting.split("="))
            case [id, *what] if id.isdecimal():
                self._live(int(id), " ".join(what))
            case _:
                raise BadCommand.unknown()
        return ErrorCode.none

    # -- brokers

    def _live(self, id: int, what: str) -> None:
        match what:
            case "is fenced":
                self._let_session_end(id)
                machine = self.machine
                assert machine.do(brokers.expire_sessions(machine.state, now_ms=machine.now_ms)) == [id]
            case "is unfenced":
                self._beat(id)
                assert self.machine.state.image.brokers[id].is_active
            case "begins to shut down":
                assert not self._beat(id, want_shut_down=True).should_shut_down
            case "shuts down":
                while not self._beat(id, want_shut_down=True).should_shut_down:
                    self._beat_others(id)
            case "registers clean shutdown" | "registers unclean shutdown":
                self._register(id, is_clean="unclean" not in what)
            case "unregisters":
                request = UnregisterBrokerRequest(broker_id=id)
                self.former_epochs[id] = self.machine.state.image.brokers[id].epoch
                self.machine.do(brokers.unregister(self.machine.state, request))
            case "loses its directory":
                self._beat(id, offline_log_dirs=[directory(id)])
            case _:
                raise BadCommand.unknown()

    def _let_session_end(self, id: int) -> None:
        self.machine.now_ms += _SESSION_MS
        self._beat_others(id)

    def _beat_others(self, silent: int) -> None:
        for broker in self.machine.state.brokers():
            if broker.broker_id != silent and broker.is_active:
                self._beat(broker.broker_id)

    def _beat(
        self, id: int, *, want_shut_down: bool = False, offline_log_dirs: list[UUID] | None = None
    ) -> Any:
        machine = self.machine
        heartbeat = BrokerHeartbeatRequest(
            broker_id=id,
            broker_epoch=machine.state.image.brokers[id].epoch,
            current_metadata_offset=len(machine.log) - 1,
            want_shut_down=want_shut_down,
            offline_log_dirs=offline_log_dirs or [],
            cordoned_log_dirs=[],
        )
        return machine.do(brokers.heartbeat(machine.state, heartbeat, now_ms=machine.now_ms))

    def _register(self, id: int, *, is_clean: bool) -> None:
        self._let_session_end(id)
        machine = self.machine
        known = machine.state.image.brokers.get(id)
        if known is not None:
            self.former_epochs[id] = known.epoch
        self.incarnations += 1
        request = BrokerRegistrationRequest(
            broker_id=id,
            cluster_id=CLUSTER_ID,
            incarnation_id=UUID(int=self.incarnations),
            features=[
                Feature(name=name, min_supported_version=first, max_supported_version=last)
                for name, (first, last) in _FEATURES.items()
            ],
            log_dirs=[directory(id)],
            previous_broker_epoch=self.former_epochs[id] if is_clean else -1,
        )
        machine.do(brokers.register(machine.state, request, now_ms=machine.now_ms))

    # -- requests

    def _alter(self, sender: int, words: list[str]) -> ErrorCode:
        logs = words[words.index("local") + 1 :] if "local" in words else []
        local_logs = dict(self._local_log(word) for word in logs)
        isr = [int(word) for word in words if word.isdigit()]
        stale = None
        if "with" in words:  # "with the former epoch of 2"
            stale = isr.pop()
        machine = self.machine
        now = machine.partition(_TOPIC)
        recovery = next((_RECOVERY[word] for word in words if word in _RECOVERY), now.leader_recovery_state)
        registered = machine.state.image.brokers
        epochs = {id: broker.epoch for id, broker in registered.items()}
        if stale is not None:
            epochs[stale] = self.former_epochs[stale]
        members = [
            BrokerState(broker_id=id, broker_epoch=epochs.get(id, -1), local_log=local_logs.get(id))
            for id in isr
        ]
        row = PartitionData(
            partition_index=0,
            leader_epoch=now.leader_epoch,
            partition_epoch=now.partition_epoch,
            new_isr_with_epochs=members,
            leader_recovery_state=recovery,
        )
        topic_id = machine.state.image.topics_by_name[_TOPIC].topic_id
        request = AlterPartitionRequest(
            broker_id=sender,
            broker_epoch=registered[sender].epoch,
            topics=[TopicData(topic_id=topic_id, partitions=[row])],
        )
        response = machine.do(alter_partition(machine.state, request))
        return ErrorCode(response.topics[0].partitions[0].error_code)

    def _local_log(self, word: str) -> tuple[int, LocalLogState]:
        """The local log of `3@900:20m:64`."""
        id, _, log = word.partition("@")
        start, age, size = (*log.split(":"), "", "")[:3]
        oldest_ms = self.machine.state.wall_clock_ms - int(age.removesuffix("m") or 0) * _MINUTE_MS
        state = LocalLogState(
            local_log_start_offset=int(start),
            local_log_bytes=int(size or 0),
            oldest_local_timestamp=oldest_ms if age else -1,
        )
        return int(id), state

    def _reassign(self, replicas: list[int]) -> None:
        row = ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name=_TOPIC, partitions=[row])], allow_replication_factor_change=True
        )
        response = self.machine.do(alter_partition_reassignments(self.machine.state, request))
        assert response.responses[0].partitions[0].error_code == 0, response

    def _elect(self, kind: int) -> ErrorCode:
        request = ElectLeadersRequest(
            election_type=kind, topic_partitions=[TopicPartitions(topic=_TOPIC, partitions=[0])]
        )
        response = self.machine.do(elect_leaders(self.machine.state, request))
        return ErrorCode(response.replica_election_results[0].partition_result[0].error_code)

    def _configure(self, name: str, value: str) -> None:
        resource = AlterConfigsResource(
            resource_type=2,
            resource_name=_TOPIC,
            configs=[AlterableConfig(name=name, config_operation=0, value=value)],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = self.machine.do(configs.incremental_alter(self.machine.state, request))
        assert response.responses[0].error_code == 0, response


def _validate(name: str, values: Mapping[str, str], existing: Mapping[str, str]) -> None:
    validate_topic_configs(values, existing=existing, is_remote_storage_system_enabled=True)


def _ids(ids: tuple[int, ...]) -> str:
    return " ".join(map(str, ids)) or "-"
