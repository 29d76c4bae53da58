"""What the containers of docker/cluster.yaml run, without containers: its script and its settings make a cluster."""

import os
import re
import socket
import sys
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.harness.processes import PATIENCE_S, Child, steady_ports

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
