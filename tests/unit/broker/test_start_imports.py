"""A plain start imports nothing that only other nodes, tools or requests need."""

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys, tempfile
from pathlib import Path
from ottla.config.load import load_config
from ottla.broker.cli.broker import Node, run

async def start(runtime):
    node = await Node.start(runtime, load_config(port=0, data_dir=Path(sys.argv[1])))
    names = [*sys.modules]
    await node.stop()
    return names

print(json.dumps(run(start)))
"""
#: Modules, each with all that is in it, and when they are needed.
LATER = {
    "boto3": "an object store",
    "minio": "an object store",
    "urllib3": "an object store",
    "prometheus_client": "metrics.listeners",
    "jproperties": "a file of properties",
    "pyspark": "never",
    "kio": "tests",
    "multiprocessing": "the process of transfers",
    "concurrent.futures.process": "never",
    "importlib.metadata": "plug-ins by the name of an entry point",
    "email": "as importlib.metadata",
    "argparse": "tools",
    "encodings.idna": "names of hosts: a listener without a host asks for this host's",
    "ottla.broker.tiering": "remote.log.storage.system.enable",
    "ottla.broker.roles.tiering": "the same",
    "ottla.broker.metrics": "metrics.listeners",
    "ottla.broker.http": "metrics.listeners",
    "ottla.broker.page": "metrics.listeners",
    "ottla.web": "metrics.listeners",
    "ottla.broker.cli.files.dump": "ottla dump-log",
    "ottla.broker.cli.cluster": "ottla cluster",
    "ottla.remote.log_manager": "remote.log.storage.system.enable",
    "ottla.remote.topic_metadata": "the same",
    "ottla.remote.transfers": "the same",
    "ottla.broker.api.k00_produce": "after READY, in turns of the loop",
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    command = [sys.executable, "-c", CODE, str(tmp_path_factory.mktemp("data"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", LATER)
def test_is_not_imported_before_it_is_needed(imported, module):
    assert [name for name in imported if name == module or name.startswith(f"{module}.")] == []


def test_the_start_was_a_whole_one(imported):
    assert {
        "ottla.broker.groups.coordinator",
        "ottla.controller.controller",
        "ottla.broker.api.dispatch",
    } <= imported


def test_what_is_listed_can_be_imported():
    """A module that has got another name would never be found."""
    from importlib.util import find_spec

    assert [name for name in LATER if name.startswith("ottla.broker.") and find_spec(name) is None] == []
