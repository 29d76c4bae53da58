"""The image and its compose files, without containers: the Dockerfile's steps are executed in a folder, and what the
image runs is run with the settings of the files.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.bench.components import fetch
from ottla.bench.components.processes import PATIENCE_S, Child, steady_ports
from ottla.broker.cli.environment import DEFAULT_METRICS_PORT
from tests.compat.admin import create_topic, once, produce, wait_until
from tests.harness.image import Image, copied

ROOT = Path(__file__).parents[2]
#: The variables that testcontainers set in all languages.
OF_TESTCONTAINERS = {
    "KAFKA_INTER_BROKER_LISTENER_NAME": "BROKER",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
}


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return Image(tmp_path_factory.mktemp("image"))


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


def test_the_builder_is_sent_what_the_dockerfile_copies():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*"
    assert sorted(each[1:] for each in patterns if each.startswith("!")) == sorted(copied())
    assert [name for name in copied() if not (ROOT / name).exists()] == []


def test_a_container_has_two_listeners_and_a_health_check_and_keeps_a_mounted_file(image, tmp_path):
    """The properties of compose.yaml's broker, at other ports, are its mounted file."""
    start = [*image.command, "--data-dir", str(tmp_path / "data")]
    environment = {**os.environ, **image.environment}
    done = subprocess.run([*start, "--print"], env=environment, capture_output=True, text=True, check=True)
    inside = f"PLAINTEXT://{os.uname().nodename}:19092"
    assert f"advertised.listeners=HOST://localhost:9092,{inside}\n" in done.stdout
    ports = steady_ports(4)
    text = done.stdout.replace(inside, "PLAINTEXT://127.0.0.1:19092").replace("0.0.0.0", "127.0.0.1")
    for old, new in zip(("19092", "9092", "9093", "9404"), ports, strict=True):
        text = re.sub(rf":{old}\b", f":{new}", text)
    mounted = tmp_path / "server.properties"
    mounted.write_text(text)
    variables = {
        "METRICS_PORT": str(ports[3]),
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_OPTS": "-Dx",
        "KAFKA_NUM_PARTITIONS": "2",
    }
    assert not image.is_healthy(variables)[0]
    log = tmp_path / "log"
    node = Child([*start, "--mounted", str(mounted)], log=log, env={**image.environment, **variables})
    try:
        node.wait_until(lambda: "\nREADY " in node.output())
        assert f" cluster.id={variables['CLUSTER_ID']} " in node.output()
        assert image.is_healthy(variables) == (True, "ready\n")
        outside, within = f"127.0.0.1:{ports[1]}", f"127.0.0.1:{ports[0]}"
        create_topic(outside, "t")
        produce(outside, "t", [b"a"])
        client = AdminClient({"bootstrap.servers": within})
        [broker] = client.list_topics(timeout=PATIENCE_S).brokers.values()
        assert broker.port == ports[0]
    finally:
        assert node.stop() == 0
    [warning] = node.warnings()
    assert "KAFKA_OPTS" in warning
    assert mounted.read_text() == text
    assert not image.is_healthy(variables)[0]


@pytest.mark.parametrize(("variables", "sentence"), [
    ({"KAFKA_NODEID": "1"}, "Did you mean KAFKA_NODE_ID,"),
    ({"KAFKA_PROCESS_ROLES": "controller", "KAFKA_NODE_ID": "1", "KAFKA_LISTENERS": "CONTROLLER://:9093",
      "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
      "KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": "a:9093,b:9093"}, "nothing names the voters of the quorum"),
    ({"KAFKA_NUM_PARTITIONS": "two"}, "num.partitions"),
    ({"KAFKA_LOG_DIRS": "/proc/data", "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw"}, "log.dirs, /proc/data, must name"),
])  # fmt: skip
def test_a_container_that_cannot_start_says_why(tmp_path, variables, sentence):
    command = [sys.executable, "-m", "ottla", "container", "--data-dir", str(tmp_path / "data")]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr.splitlines()[-1]
    assert not (tmp_path / "data").exists()


def test_the_monitoring_file_mounts_files_that_exist_and_scrapes_the_services_of_the_others():
    folder = ROOT / "docker"
    mounts = re.findall(r"^      - (\.\S+):/\S+:ro$", (folder / "monitoring.yaml").read_text(), re.MULTILINE)
    of_targets = [mount for mount in mounts if "${TARGETS:-broker}" in mount]
    assert [mount for mount in mounts if mount not in of_targets and not (folder / mount).exists()] == []
    assert of_targets == ["./monitoring/${TARGETS:-broker}.json"]
    for name, file in (("broker", "compose.yaml"), ("cluster", "cluster.yaml")):
        groups = json.loads((folder / f"monitoring/{name}.json").read_text())
        services = re.findall(
            r"^  ([\w-]+):$", _section((folder / file).read_text(), "services"), re.MULTILINE
        )
        targets = [target for group in groups for target in group["targets"]]
        assert sorted(targets) == sorted(f"{service}:{DEFAULT_METRICS_PORT}" for service in services)


def _section(text, name):
    return re.search(rf"^{name}:\n((?:(?:  .*)?\n)+)", text, re.MULTILINE)[1]


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
    voters = nodes["controller-1"]["INITIAL_CONTROLLERS"].split(",")
    assert [voter.partition("@")[0] for voter in voters] == [
        nodes[f"controller-{n}"]["KAFKA_NODE_ID"] for n in (1, 2, 3)
    ]
    addresses = nodes["broker-1"]["KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS"].split(",")
    assert [re.fullmatch(r"\d+@(.+):[^:]+", voter)[1] for voter in voters] == addresses
    assert len({node["KAFKA_NODE_ID"] for node in nodes.values()}) == 6
    assert {node["CLUSTER_ID"] for node in nodes.values()} == {nodes["broker-1"]["CLUSTER_ID"]}
    assert [nodes[f"broker-{n}"]["KAFKA_BROKER_RACK"] for n in (1, 2, 3)] == ["a", "b", "c"]


def test_the_nodes_of_the_file_find_each_other(tmp_path):
    """One controller and one broker of the six, with this machine's address where the file has containers' names."""
    nodes = environments()
    controller_port, broker_port, host_port, *metrics_ports = steady_ports(5)
    ports = {"CONTROLLER": controller_port, "PLAINTEXT": broker_port, "HOST": host_port}
    address = f"127.0.0.1:{controller_port}"
    children = []
    try:
        for service, metrics_port in zip(("controller-1", "broker-1"), metrics_ports, strict=True):
            settings = nodes[service] | {
                "KAFKA_CONTROLLER_QUORUM_BOOTSTRAP_SERVERS": address,
                "KAFKA_LOG_DIRS": str(tmp_path / service),
                "METRICS_PORT": str(metrics_port),
            }
            for name in ("KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS"):
                settings[name] = re.sub(
                    r"(\w+)://[^:]+:\d+",
                    lambda found: f"{found[1]}://127.0.0.1:{ports[found[1]]}",
                    settings[name],
                )
            if voters := settings.get("INITIAL_CONTROLLERS"):
                settings["INITIAL_CONTROLLERS"] = voters.split(",")[0].replace("controller-1:9093", address)
            log = tmp_path / f"{service}.log"
            children.append(Child([sys.executable, "-m", "ottla", "container"], log=log, env=settings))
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
    """The command of the image with the file's environment, and a MinIO server as the file starts it (KIP-405)."""
    text = (ROOT / "docker/tiered.yaml").read_text()
    of_store = dict(re.findall(r"(MINIO_\w+): \"?([^,\"}]*)", text))
    of_broker = dict(re.findall(r'^      (\w+): "?([^"\n]*)"?$', text, re.MULTILINE))
    bucket = re.search(r"mkdir -p /data/(\w+) && exec minio server /data", text)[1]
    assert of_broker["TIER"].startswith(f"s3://{bucket}/")
    assert [of_store["MINIO_ROOT_USER"], of_store["MINIO_ROOT_PASSWORD"]] == [
        of_broker["AWS_ACCESS_KEY_ID"],
        of_broker["AWS_SECRET_ACCESS_KEY"],
    ]
    store_port, console_port, broker_port, controller_port, metrics_port = steady_ports(5)
    (tmp_path / "store" / bucket).mkdir(parents=True)
    address = f"127.0.0.1:{store_port}"
    store = Child(
        [str(fetch.minio()), "server", str(tmp_path / "store"), "--quiet", "--address", address,
         "--console-address", f"127.0.0.1:{console_port}"],
        log=tmp_path / "store.log",
        env={**of_store, "MINIO_UPDATE": "off"},
    )  # fmt: skip
    environment = {
        **of_broker,
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{broker_port},CONTROLLER://127.0.0.1:{controller_port}",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@127.0.0.1:{controller_port}",
        "KAFKA_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS": "200",
        "METRICS_PORT": str(metrics_port),
    }
    del environment["ADVERTISED_HOST"]  # of the default listeners
    environment["TIER"] = environment["TIER"].replace("store:9000", address)
    command = [sys.executable, "-m", "ottla", "container", "--data-dir", str(tmp_path / "data")]
    broker = Child(command, log=tmp_path / "broker.log", env=environment)
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


class KafkaContainer:
    """The class of testcontainers-python 4.15, by its source; a file is kept instead of copied."""

    TC_START_SCRIPT = "/tc-start.sh"

    def __init__(self, image, port=9093, *, wait_strategy_check_string, bootstrap):
        self.port, self.listener_name, self.bootstrap = port, "PLAINTEXT", bootstrap
        self.wait_for = re.compile(wait_strategy_check_string)
        self.files = {}
        self.variables = {
            **OF_TESTCONTAINERS,
            "KAFKA_LISTENERS": f"PLAINTEXT://0.0.0.0:{port},BROKER://0.0.0.0:9092",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "KAFKA_BROKER_ID": "1",
            "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": "10000000",
        }

    def get_bootstrap_server(self):
        return self.bootstrap

    def create_file(self, content, path):
        self.files[path] = content.decode()


def started(image, script, variables, tmp_path, ports):
    """A node that the script has started; it takes the place of its shell, so that a stop reaches it."""
    file = tmp_path / "start.sh"
    file.write_text(script.replace("/etc/kafka", f"exec {image.root}/etc/kafka"))
    own = {
        "KAFKA_LOG_DIRS": str(tmp_path / "data"),
        "METRICS_PORT": str(ports.pop()),
        "HOSTNAME": "127.0.0.1",
    }
    return Child(["sh", str(file)], log=tmp_path / "log", env={**image.environment, **variables, **own})


def serves(node, is_ready, bootstrap):
    try:
        node.wait_until(lambda: is_ready.search(node.output()) is not None)
        create_topic(bootstrap, "t")
        produce(bootstrap, "t", [b"x"])
    finally:
        assert node.stop() == 0


def test_the_subclass_of_testcontainers_that_the_guide_has(image, tmp_path):
    guide = ROOT / "docs/TESTING.md"
    [text] = re.findall(
        r"^```python\n(from testcontainers.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL
    )
    names = {"KafkaContainer": KafkaContainer}
    exec(compile(text.partition("\n")[2], str(guide), "exec"), names)
    outside, inside, *others = steady_ports(3)
    container = names["OttlaContainer"](port=outside, bootstrap=f"127.0.0.1:{outside}")
    container.configure()
    container.tc_start()
    script = container.files["/tc-start.sh"].replace(":9092", f":{inside}")
    variables = {name: value.replace(":9092", f":{inside}") for name, value in container.variables.items()}
    variables["KAFKA_LISTENERS"] = variables["KAFKA_LISTENERS"].replace("0.0.0.0", "127.0.0.1")
    node = started(image, script, variables, tmp_path, others)
    serves(node, container.wait_for, container.bootstrap)


def test_the_module_of_testcontainers_for_java(image, tmp_path):
    """The variables and the script are those of KafkaHelper and KafkaContainer in testcontainers-java."""
    outside, inside, controller, *others = steady_ports(4)
    variables = {
        **OF_TESTCONTAINERS,
        "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
        "KAFKA_LISTENERS": f"PLAINTEXT://:{outside},BROKER://:{inside},CONTROLLER://:{controller}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{controller}",
        "KAFKA_NODE_ID": "1",
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_LOG_FLUSH_INTERVAL_MESSAGES": str(2**63 - 1),
    }
    advertised = f"PLAINTEXT://127.0.0.1:{outside},BROKER://127.0.0.1:{inside}"
    script = f"#!/bin/bash\nexport KAFKA_ADVERTISED_LISTENERS={advertised}\n/etc/kafka/docker/run \n"
    assert os.access(image.root / "etc/kafka/docker/run", os.X_OK)
    node = started(image, script, variables, tmp_path, others)
    serves(node, re.compile(r".*READY bootstrap=.*"), f"127.0.0.1:{outside}")
