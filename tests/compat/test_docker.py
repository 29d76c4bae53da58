"""The script and settings of docker/cluster.yaml make a cluster, run here without containers."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components import fetch
from ottla.bench.components.processes import PATIENCE_S, Child, steady_ports
from tests.compat.admin import create_topic, once, produce, wait_until

ROOT = Path(__file__).parents[2]


def environments():
    """Service -> its environment; anchors and merges of the file resolved by hand, as they are few."""
    text = (ROOT / "docker/cluster.yaml").read_text()
    common = {name: _pairs(text, name) for name in ("cluster", "controller", "broker")}
    found = {}
    for service, base, inline in re.findall(
        r"^  ([\w-]+):\n    <<: \*node\n    environment: \{<<: \*(\w+), (.*)\}$", text, re.MULTILINE
    ):
        pairs = re.findall(r'(\w+): (?:"([^"]*)"|(\w+))', inline)
        own = {name: quoted or plain for name, quoted, plain in pairs}
        found[service] = common["cluster"] | common[base] | own
    return found


def _pairs(text, anchor):
    block = re.search(rf"&{anchor}\n((?:  .*\n)+)", text)[1]
    return {name: value.strip('"') for name, value in re.findall(r"^  (\w+): (.*)$", block, re.MULTILINE)}


def test_the_file_names_a_cluster():
    nodes = environments()
    assert sorted(nodes) == [
        "broker-1",
        "broker-2",
        "broker-3",
        "controller-1",
        "controller-2",
        "controller-3",
    ]
    voters = nodes["broker-1"]["CONTROLLERS"].split(",")
    assert [voter.partition("@")[0] for voter in voters] == [
        nodes[f"controller-{n}"]["NODE_ID"] for n in (1, 2, 3)
    ]
    assert len({node["NODE_ID"] for node in nodes.values()}) == 6
    assert {node["CLUSTER_ID"] for node in nodes.values()} == {nodes["broker-1"]["CLUSTER_ID"]}
    assert [nodes[f"broker-{n}"]["RACK"] for n in (1, 2, 3)] == ["a", "b", "c"]


def test_the_nodes_of_the_file_find_each_other(tmp_path):
    """One controller and one broker of the six, with this machine's address where the file has containers' names."""
    nodes = environments()
    controller_port, broker_port, host_port = steady_ports(3)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    children = []
    try:
        for service in ("controller-1", "broker-1"):
            node = nodes[service]
            voter = (
                node["CONTROLLERS"].split(",")[0].replace("controller-1:9093", f"127.0.0.1:{controller_port}")
            )
            settings = node | {"CONTROLLERS": voter, "DATA_DIR": str(tmp_path / service), "PATH": path}
            for name in ("LISTENERS", "ADVERTISED"):
                settings[name] = re.sub(
                    r"(\w+)://[^:]+:\d+",
                    lambda found: (
                        f"{found[1]}://127.0.0.1:"
                        + str(
                            {"CONTROLLER": controller_port, "PLAINTEXT": broker_port, "HOST": host_port}[
                                found[1]
                            ]
                        )
                    ),
                    node[name],
                )
            (tmp_path / service).mkdir()
            log = tmp_path / f"{service}.log"
            children.append(Child(["sh", str(ROOT / "docker/node.sh")], log=log, env=settings))
        for child in children:
            child.wait_until(lambda child=child: "\nREADY " in child.output())
        for port in (broker_port, host_port):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S):
                pass
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{host_port}"})
        for future in client.create_topics([NewTopic("t", 1, 1)]).values():
            future.result(PATIENCE_S)
        listed = client.list_topics(timeout=PATIENCE_S).brokers
        assert [(broker.id, broker.port) for broker in listed.values()] == [(1, host_port)]
    finally:
        for child in reversed(children):
            child.stop()


def test_the_broker_of_the_file_with_minio_copies_its_segments(tmp_path):
    """The image's own command with the file's environment, and a MinIO server as the file starts it (KIP-405)."""
    text = (ROOT / "docker/tiered.yaml").read_text()
    of_store = dict(re.findall(r"(MINIO_\w+): \"?([^,\"}]*)", text))
    of_broker = dict(re.findall(r'^      (\w+): "?([^"\n]*)"?$', text, re.MULTILINE))
    bucket = re.search(r"mkdir -p /data/(\w+) && exec minio server /data", text)[1]
    assert of_broker["TIER"].startswith(f"s3://{bucket}/")
    assert [of_store["MINIO_ROOT_USER"], of_store["MINIO_ROOT_PASSWORD"]] == [
        of_broker["AWS_ACCESS_KEY_ID"],
        of_broker["AWS_SECRET_ACCESS_KEY"],
    ]
    [command] = re.findall(
        r'^CMD \["sh", "-c", "(.*)"\]$', (ROOT / "docker/Dockerfile").read_text(), re.MULTILINE
    )
    store_port, console_port, broker_port, controller_port = steady_ports(4)
    (tmp_path / "store" / bucket).mkdir(parents=True)
    address = f"127.0.0.1:{store_port}"
    store = Child(
        [str(fetch.minio()), "server", str(tmp_path / "store"), "--quiet", "--address", address,
         "--console-address", f"127.0.0.1:{console_port}"],
        log=tmp_path / "store.log",
        env={**of_store, "MINIO_UPDATE": "off"},
    )  # fmt: skip
    for old, new in (
        ('\\"', '"'), ("/opt/ottla/bin/", f"{Path(sys.executable).parent}/"),
        ("--data-dir /data", f"--data-dir {tmp_path}/data"),
        (":9092", f":{broker_port}"), (":9093", f":{controller_port}"),
    ):  # fmt: skip
        command = command.replace(old, new)
    command += (
        f" --set controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}"
        " --set remote.log.manager.task.interval.ms=200"
    )
    environment = {**of_broker, "ADVERTISED_HOST": "127.0.0.1"}
    environment["TIER"] = environment["TIER"].replace("store:9000", address)
    broker = Child(["sh", "-c", command], log=tmp_path / "broker.log", env=environment)
    try:
        broker.wait_until(lambda: "READY " in broker.output())
        bootstrap = f"127.0.0.1:{broker_port}"
        create_topic(
            bootstrap,
            "t",
            config={
                "remote.storage.enable": "true",
                "segment.index.bytes": "12",
                "index.interval.bytes": "1",
            },
        )
        for _ in range(3):
            produce(bootstrap, "t", [b"a"])
        wait_until(lambda: len(list((tmp_path / "store" / bucket / "kafka").glob("t-0-*/*.log"))) == 2)
        verify = [
            sys.executable,
            "-m",
            "ottla",
            "tier",
            "verify",
            "--tier",
            environment["TIER"],
            "--bootstrap-server",
            bootstrap,
        ]

        def verified():
            env = {**os.environ, **environment}
            return subprocess.run(verify, env=env, capture_output=True, text=True, check=False)

        # The log of a copy is in the store before its indexes are.
        done = once(verified, lambda done: done.stdout.endswith("in the store: nothing is wrong\n"))
        assert done.returncode == 0
    finally:
        broker.stop()
        store.stop()
