"""`ottla tier ls|verify|orphans|rebuild-metadata`.

Exit status: 0 if nothing is wrong, 1 if something is or was left as it is, 2 if the command could not be carried out.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from ottla.broker.cli.bootstrap import CannotBeDone, ask_cluster, bootstrap_option
from ottla.broker.cli.command_group import CommandGroup
from ottla.broker.cli.output import standard_output
from ottla.broker.cli.tier import report
from ottla.broker.cli.tier.comparison import Finding, Orphan, OrphanKind, certain, findings, orphans
from ottla.broker.cli.tier.inspection import Inspection, inspect
from ottla.broker.cli.tier.listing import Listing, list_topics
from ottla.broker.cli.tier.progress import Progress
from ottla.broker.cli.tier.repair import Plan, plan_rebuilding, write_plan
from ottla.broker.cluster_client.client import ClusterClient, Waits
from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.reports.words import size_text
from ottla.config.load import read_properties
from ottla.config.tier_text import tier_properties
from ottla.protocol.errors import InvalidConfig
from ottla.protocol.kafka_uuid import to_text
from ottla.protocol.remote.records import RemoteLogSegmentState
from ottla.remote.checked_copies import problem_of
from ottla.remote.known_copies import KnownCopies
from ottla.remote.plugins import storage_manager_of
from ottla.remote.storage_manager import RemoteStorageManager
from ottla.remote.stores.object_storage import ObjectStorage
from ottla.remote.topic_metadata.topic import TOPIC
from ottla.runtime import Pool, Runtime

#: A leader of the metadata topic may move: longer than that of other commands, which begin again more cheaply.
_PATIENCE_S: Final = 60.0
_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
#: Objects that are deleted between two updates of the progress.
_DELETED_AT_ONCE: Final = 200


T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True, frozen=True, kw_only=True)
class Target:
    """The value of --bootstrap-server and the store's configuration that a command's options name."""

    bootstrap: str
    #: None: neither --tier nor --config names a store.
    store: dict[str, str] | None

    @classmethod
    def of(cls, bootstrap: str, tier: str | None, properties: Path | None) -> "Target":
        """Create the target that these options name. Raises CannotBeDone."""
        try:
            store = None if properties is None else read_properties(properties)
            if tier is not None:
                store = (store or {}) | tier_properties(tier)
            return cls(bootstrap=bootstrap, store=store)
        except InvalidConfig as error:
            raise CannotBeDone(str(error)) from None

    def ask(self, question: Callable[[Runtime, ClusterClient], Awaitable[T]]) -> T:
        """Run with a client of the cluster. Raises CannotBeDone."""
        return ask_cluster(
            self.bootstrap,
            lambda client: question(client.runtime, client),
            waits=Waits(patience_s=_PATIENCE_S),
        )

    def ask_both(self, question: Callable[[Runtime, ClusterClient, ObjectStorage], Awaitable[T]]) -> T:
        """Run with a client of the cluster, and the store. Raises CannotBeDone."""
        with closing(self._storage()) as storage:
            if not isinstance(storage, ObjectStorage):
                raise CannotBeDone(
                    f"The objects of {type(storage).__name__} cannot be listed: "
                    "this command knows directory, s3 and minio."
                )
            known: ObjectStorage = storage  # bound for the closure
            return self.ask(lambda runtime, client: question(runtime, client, known))

    def _storage(self) -> RemoteStorageManager:
        if self.store is None:
            raise CannotBeDone("Which store? Name it by --tier, or a broker's server.properties by --config.")
        try:
            return storage_manager_of(self.store)
        except InvalidConfig as error:
            raise CannotBeDone(str(error)) from None


def with_target(command: Command) -> Command:
    """Add the options that every `ottla tier` command has: those of the cluster and of the store."""
    for option in (
        click.option(
            "-c",
            "--config",
            "properties",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A broker's server.properties, which names the store.",
        ),
        click.option("--tier", metavar="DIR|URL", help="The store, in the form of `ottla broker --tier`."),
        bootstrap_option,
    ):
        command = option(command)
    return command


@click.group("tier", cls=CommandGroup)
def tier() -> None:
    """Show the content of the remote tier, and compare it with its metadata (KIP-405)."""


@tier.command("ls")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@with_target
@click.option("--no-table", is_flag=True, help="Show only the pictures of the logs, not each copy.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line, for each copy.")
def show_topics(
    topics: tuple[str, ...], *, bootstrap: str, tier: str | None, properties: Path | None,
    no_table: bool, is_json: bool,
) -> None:  # fmt: skip
    """Show the logs of tiered topics in both tiers, and their copies; without TOPIC of all of them.

    What is local is what the leader reports: [local log start, log end). Only the cluster is asked, not the store.

    A copy that fails stays COPY_SEGMENT_STARTED since the time that is shown. Why it fails is in the log of
    its broker, and its metrics RemoteCopyErrorsPerSec and RemoteCopyLagSegments count it.
    """
    target = Target.of(bootstrap, tier, properties)

    async def ask(_: Runtime, client: ClusterClient) -> list[Listing]:
        return await list_topics(client, topics, Progress())

    out = standard_output()
    found = target.ask(ask)
    if not found and not is_json:
        out.write(
            "No topic has copies in the remote tier: remote.storage.enable=true makes a topic tiered.\n"
        )
    for listing in found:
        for line in report.listing_lines(listing, is_json=is_json, has_table=not no_table):
            out.write(line + "\n")


@tier.command("verify")
@with_target
@click.option(
    "--data", "is_data", is_flag=True, help="Read all finished copies from the store, and check each batch."
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per line.")
def verify(
    *, bootstrap: str, tier: str | None, properties: Path | None, is_data: bool, is_json: bool
) -> None:
    """Compare the store with the metadata. Nothing is changed.

    Errors: a finished copy lacks objects or has another size, offsets are in no tier; with --data also a batch that is
    damaged. Notes: unfinished copies, objects that no metadata names. What changes while the command runs is
    no error: both sides are read twice if need be. The exit status is 1 if there are errors.
    """
    target = Target.of(bootstrap, tier, properties)
    progress = Progress()

    async def compare(
        runtime: Runtime, client: ClusterClient, storage: ObjectStorage
    ) -> tuple[Inspection, list[Finding]]:
        seen = await inspect(runtime, client, storage, progress)
        found = list(findings(seen.known, seen.stored, seen.logs))
        if any(each.is_error for each in found):
            before = set(found)
            seen = await inspect(runtime, client, storage, progress)
            found = [
                each
                for each in findings(seen.known, seen.stored, seen.logs)
                if each in before or not each.is_error
            ]
        if is_data:
            found += await runtime.run_blocking(
                damaged_copies, storage, seen.known, progress, pool=Pool.REMOTE_READS
            )
        return seen, found

    seen, found = target.ask_both(compare)
    out = standard_output()
    for line in report.verification_lines(seen, found, is_json=is_json):
        out.write(line + "\n")
    if any(each.is_error for each in found):
        raise click.exceptions.Exit(1)


@tier.command("orphans")
@with_target
@click.option(
    "--delete", "is_deleting", is_flag=True, help="Delete orphans; without this option they are only listed."
)
@click.option(
    "--older-than", "age", default="1h", show_default=True, metavar="AGE",
    help="Delete only objects that are at least this old: 30m, 12h, 7d.",
)  # fmt: skip
@click.option(
    "--also",
    "also",
    multiple=True,
    type=click.Choice(sorted(kind.value for kind in OrphanKind if kind is not OrphanKind.DELETED)),
    help="Delete orphans of this kind, too, which may be needed; the list gives the reason.",
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object a line.")
def show_orphans(
    *, bootstrap: str, tier: str | None, properties: Path | None, is_deleting: bool, age: str, also: tuple[str, ...],
    is_json: bool,
) -> None:  # fmt: skip
    """List the objects of copies that no metadata names, or delete them.

    All of them are listed; only those that are certainly of no use, and old enough, are deleted. Where records
    of the metadata were removed, or are of a newer version, objects that it does not name may be in use. The
    exit status is 1 if some are left.
    """
    target = Target.of(bootstrap, tier, properties)
    older_than_ms = _age_ms(age)
    allowed = {OrphanKind(each) for each in also}
    progress = Progress()

    async def ask(
        runtime: Runtime, client: ClusterClient, storage: ObjectStorage
    ) -> tuple[list[Orphan], list[Orphan]]:
        seen = await inspect(runtime, client, storage, progress)
        found = list(orphans(seen.known, seen.stored, seen.partitions, seen.logs))
        kinds = certain(seen.known) | allowed
        chosen = [
            each
            for each in found
            if is_deleting
            and each.kind in kinds
            and each.segment.modified_ms <= runtime.now_ms() - older_than_ms
        ]
        keys = [stored.key for each in chosen for stored in each.segment.objects.values()]
        await runtime.run_blocking(_delete, storage, keys, progress, pool=Pool.REMOTE_DELETIONS)
        return found, chosen

    found, deleted = target.ask_both(ask)
    out = standard_output()
    gone = {each.segment.segment_id for each in deleted}
    for orphan in found:
        is_deleted = orphan.segment.segment_id in gone
        out.write(report.orphan_line(orphan, is_deleted=is_deleted, is_json=is_json) + "\n")
    if not is_json:
        size = sum(each.segment.size_bytes for each in found)
        out.write(f"{len(found)} orphans, {size_text(size)}; {len(deleted)} deleted\n")
    if len(deleted) < len(found):
        raise click.exceptions.Exit(1)


def _delete(storage: ObjectStorage, keys: Sequence[str], progress: Progress) -> None:
    """Delete the objects with these keys from the store, in parts. [any thread]"""
    with progress.measuring("deletions", len(keys)) as done:
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            storage.store.delete(keys[start : start + _DELETED_AT_ONCE])
            done(min(len(keys), start + _DELETED_AT_ONCE))


@tier.command("rebuild-metadata")
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@with_target
@click.option("--dry-run", "is_dry", is_flag=True, help="Only show what would be written.")
def rebuild_metadata(
    topics: tuple[str, ...], *, bootstrap: str, tier: str | None, properties: Path | None, is_dry: bool
) -> None:
    """Write the metadata of complete copies in the store that the metadata does not name; of these topics, or of all.

    A topic must exist with the id that its objects have. A second run changes nothing more. The exit status
    is 1 if copies could not be used.
    """
    target = Target.of(bootstrap, tier, properties)
    progress = Progress()

    async def ask(runtime: Runtime, client: ClusterClient, storage: ObjectStorage) -> Plan:
        seen = await inspect(runtime, client, storage, progress)
        count = sum(each.topic_partition.topic == TOPIC for each in seen.partitions)
        if not count:
            raise ClusterError(
                f"The topic {TOPIC} does not exist: start the brokers with tiered storage (--tier)"
            )
        now_ms = runtime.now_ms()

        def plan() -> Plan:
            return plan_rebuilding(seen, storage.store, topics, progress, now_ms=now_ms)

        made = await runtime.run_blocking(plan, pool=Pool.REMOTE_READS)
        if not is_dry:
            await write_plan(client, made, progress, partition_count=count, now_ms=now_ms)
        return made

    plan = target.ask_both(ask)
    out = standard_output()
    for copy in plan.lost:
        out.write(f"{report.copy_line(copy)}: rebuilt from its objects\n")
    for copy in plan.unfinished:
        out.write(f"{report.copy_line(copy)}: finished, which the metadata has lost\n")
    for segment_id, why in plan.left_out:
        out.write(f"{segment_id.partition.topic_partition} {to_text(segment_id.id)}: left out, as {why}\n")
    written = "would be written" if is_dry else "written"
    out.write(
        f"{2 * len(plan.lost) + len(plan.unfinished)} records {written}; {len(plan.left_out)} copies left out\n"
    )
    if plan.left_out:
        raise click.exceptions.Exit(1)


def _age_ms(text: str) -> int:
    """Parse an age such as 30m, 12h or 7d, and return it in milliseconds. Raises BadParameter."""
    if (match := re.fullmatch(r"([0-9]{1,6})([smhd])", text)) is None:
        raise click.BadParameter(
            f"{text!r} is no age: it must be as 30m, 12h or 7d.", param_hint="--older-than"
        )
    return int(match[1]) * _UNIT_MS[match[2]]


def damaged_copies(storage: RemoteStorageManager, known: KnownCopies, progress: Progress) -> list[Finding]:
    """The finished copies of which a batch is damaged, or that cannot be read. [any thread]"""
    copies = list(known.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
    found, read_bytes = [], 0
    with progress.measuring("batches", sum(each.segment_size_bytes for each in copies)) as done:
        for copy in copies:
            if (problem := problem_of(storage, copy)) is not None:
                offsets = f"[{copy.start_offset}, {copy.end_offset})"
                message = f"the copy {to_text(copy.segment_id.id)} of {offsets} cannot be read: {problem}"
                found.append(Finding(copy.partition, message, is_error=True))
            read_bytes += copy.segment_size_bytes
            done(read_bytes)
    return found
