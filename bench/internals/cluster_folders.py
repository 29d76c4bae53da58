"""Writes the server.properties of a cluster's nodes and formats their directories, as `ottla cluster up` does.

python -m ottla.bench.internals.cluster_folders FOLDER BROKERS CONTROLLERS RACK,... [KEY=VALUE]...

Prints the nodes as JSON.
"""

import json
import sys
from pathlib import Path

from ottla.bench.components.fetch import KAFKA_VERSION
from ottla.broker.cli.cluster import prepare
from ottla.broker.cli.cluster_plan import make_plan
from ottla.runtime.production import free_ports


def main(folder: str, brokers: str, controllers: str, racks: str, *settings: str) -> None:
    """Write and format the folders that the arguments describe, and print the nodes as JSON."""
    plan = make_plan(
        Path(folder),
        broker_count=int(brokers),
        controller_count=int(controllers),
        racks=racks.split(","),
        port=0,
        free_ports=free_ports,
    )
    # Apache Kafka's nodes read what is written here, too.
    prepare(plan, dict(each.split("=", 1) for each in settings), release=KAFKA_VERSION)
    nodes = [
        {
            "node_id": node.node_id,
            "is_broker": node in plan.brokers,
            "rack": node.rack,
            "port": node.port,
            "properties_file": str(node.properties_file),
            "data_dir": str(node.data_dir),
            "log_file": str(node.log_file),
        }
        for node in plan.nodes
    ]
    sys.stdout.write(json.dumps(nodes))


if __name__ == "__main__":
    main(*sys.argv[1:])
