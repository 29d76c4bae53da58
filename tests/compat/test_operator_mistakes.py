"""Ten mistakes of an operator: each is answered by one sentence with the key, the value and the remedy.

The nodes run in this process, on real sockets and a real MinIO.
"""

import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ottla.bench.components.minio import ACCESS_KEY, SECRET_KEY, MinioServer
from ottla.bench.components.processes import PATIENCE_S
from ottla.broker.node import CannotStart, Node
from ottla.broker.roles.hooks import Hooks
from ottla.config.load import load_config
from ottla.protocol.api_keys import ApiKey
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.builder import build_batch, simple_records
from ottla.runtime.production import ProductionRuntime, run
from ottla.storage.files import Files
from tests.harness.waiting import until, until_answered
from tests.harness.wire import WireClient

CLUSTER_ID = "q1Sh-9_ISia_zwGINzRvyQ"


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with MinioServer(tmp_path_factory.mktemp("minio")) as server:
        server.make_bucket("tier")
        yield server


@dataclass
class World:
    """The node, the folder and the store with which a mistake is made."""

    folder: Path
    minio: MinioServer
    used_port: int
    runtime: ProductionRuntime = field(init=False)

    def tier(self, **changes: str) -> str:
        settings = {
            "bucket": "tier", "endpoint": self.minio.endpoint, "access.key": ACCESS_KEY,
            "secret.key": SECRET_KEY.replace(" ", "%20"), **changes,
        }  # fmt: skip
        return f"minio://{settings.pop('bucket')}?" + "&".join(
            f"{key}={text}" for key, text in settings.items()
        )

    async def start(self, *overrides: str, files: Files | None = None, **options: object) -> Node:
        options = {"port": 0, "data_dir": self.folder / "data", **options}
        return await Node.start(
            self.runtime, load_config(overrides=overrides, **options), hooks=Hooks(files=files)
        )


class FullDisk(Files):
    """Files of topics are on a device that is full."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        if path.suffix == ".log" and path.parent.name == "t-0":
            return os.open("/dev/full", os.O_RDWR)
        return super().open(path, write=write, create=create)


def write_meta(folder: Path, **fields: object) -> None:
    folder.mkdir()
    lines = [f"{name.replace('_', '.')}={value}" for name, value in {"version": 1, **fields}.items()]
    (folder / "meta.properties").write_text("\n".join(lines) + "\n")


async def wrong_port(world: World) -> None:
    await world.start(port=world.used_port)


async def wrong_key(world: World) -> None:
    await (await world.start("num.partition=3")).stop()


async def wrong_value(world: World) -> None:
    await world.start("num.partitions=many")


async def wrong_directory(world: World) -> None:
    await world.start(data_dir="/proc/ottla")


async def wrong_cluster_id(world: World) -> None:
    write_meta(world.folder / "a", cluster_id=CLUSTER_ID, node_id=1)
    write_meta(world.folder / "b", cluster_id="A" * 22, node_id=1)
    await world.start(f"log.dirs={world.folder}/a,{world.folder}/b", data_dir=None)


async def store_is_checked(world: World, tier: str) -> None:
    node = await world.start(tier=tier)
    remote = node.broker.remote
    assert remote is not None
    await until(lambda: remote.store.is_up is not None, within_s=PATIENCE_S)
    await node.stop()


async def wrong_bucket(world: World) -> None:
    await store_is_checked(world, world.tier(bucket="teir"))


async def wrong_endpoint(world: World) -> None:
    await store_is_checked(world, world.tier(endpoint="http://127.0.0.1:1"))


async def wrong_credentials(world: World) -> None:
    await store_is_checked(world, world.tier(**{"secret.key": "guessed"}))


async def duplicate_id(world: World) -> None:
    first = await world.start()
    cluster_id = first.broker.cluster_id
    controller = first.controller_listeners[0]
    file = world.folder / "broker.properties"
    file.write_text(
        "process.roles=broker\nnode.id=2\nlisteners=PLAINTEXT://127.0.0.1:0\ncontroller.listener.names=CONTROLLER\n"
        f"controller.quorum.bootstrap.servers={controller.host}:{controller.port}\n"
        "initial.broker.registration.timeout.ms=1000\n"
    )
    for name in ("one", "other"):
        write_meta(world.folder / name, cluster_id=cluster_id, node_id=2)
    second = None
    try:
        second = await world.start(properties=file, port=None, data_dir=world.folder / "one")
        await world.start(properties=file, port=None, data_dir=world.folder / "other")
    finally:
        for node in (second, first):
            if node is not None:
                await node.stop()


async def full_disk(world: World) -> None:
    node = await world.start(files=FullDisk())
    client = await WireClient.connect("127.0.0.1", node.listeners[0].port)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await client.request(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(timeout_ms=10_000, topics=[topic]))
    data = PartitionProduceData(
        index=0, records=build_batch(simple_records([(None, b"v" * 1000)], timestamp=1))
    )
    rows = [TopicProduceData(name="t", partition_data=[data])]
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=rows)

    async def has_failed() -> bool:
        await client.request(ApiKey.PRODUCE, 12, request)
        return node.failure.done()

    await until_answered(has_failed, within_s=PATIENCE_S, pause_s=0.05)
    await client.close()
    await node.stop()
    raise CannotStart(node.failure.result())


#: (the mistake, what the sentence has: the key, the value, the remedy)
MISTAKES = [
    (wrong_port, ["listeners", "127.0.0.1:{used_port}", "choose another port"]),
    (wrong_key, ["num.partition ", "have no effect", "did you mean num.partitions?"]),
    (wrong_value, ["num.partitions", "'many'", "must be"]),
    (wrong_directory, ["log.dirs", "/proc/ottla", "must name folders that this user can write"]),
    (wrong_cluster_id, ["{folder}/b belongs to cluster AAAAAAAAAAAAAAAAAAAAAA", CLUSTER_ID, "set log.dirs to"]),
    (wrong_bucket, ["rsm.config.bucket", "'teir'", "create it, or correct the name"]),
    (wrong_endpoint, ["rsm.config.endpoint", "http://127.0.0.1:1", "start the store, or correct the endpoint"]),
    (wrong_credentials, ["rsm.config.access.key", "'ottla-tests'", "correct rsm.config.access.key"]),
    (duplicate_id, ["Another node with this node.id is alive", "set node.id, which is 2, to a number"]),
    (full_disk, ["/dev/full", "bytes cannot be written", "free space"]),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "parts"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES])
def test_a_mistake_is_one_sentence(
    mistake: Callable[[World], Awaitable[None]],
    parts: list[str],
    tmp_path: Path,
    minio: MinioServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def make(runtime: ProductionRuntime) -> str | None:
        world.runtime = runtime
        try:
            await mistake(world)
        except (CannotStart, KafkaError) as error:
            return str(error)
        return None

    with closing(socket.create_server(("127.0.0.1", 0))) as used:
        world = World(tmp_path, minio, used.getsockname()[1])
        said = run(make)
    if said is None:
        [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    values: Mapping[str, object] = {"folder": tmp_path, "used_port": world.used_port}
    assert [part for part in parts if part.format(**values) not in said] == [], said
    assert "\n" not in said
    assert "Traceback" not in caplog.text
