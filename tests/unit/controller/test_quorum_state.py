"""`quorum-state` in both of Kafka's versions: what is written, what is read, and what is refused."""

import json
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from ottla.controller.metadata_log import quorum_state
from ottla.controller.metadata_log.quorum_state import FILE_NAME, ElectionState
from ottla.metadata.image import InvalidMetadata
from ottla.stories.partition.faulty_files import FaultyFiles, Loss

HOME = Path("/log")
DIRECTORY = UUID(int=0x27C6803CF7CB4F62AA6BCF53FD3ACD84)

CONFIGURED = ElectionState(leader_epoch=2, leader_id=1, kraft_version=0, voters=(1, 2, 3))
IN_LOG = ElectionState(
    leader_epoch=7, leader_id=None, kraft_version=1, voted_id=2, voted_directory_id=DIRECTORY
)


@pytest.fixture
def files() -> FaultyFiles:
    files = FaultyFiles(random=Random(1))
    files.make_dir(HOME)
    files.fsync_path(Path("/"))
    return files


def put(files: FaultyFiles, text: bytes) -> None:
    files.write_atomically(HOME / FILE_NAME, text)


@pytest.mark.parametrize(
    ("state", "fields"),
    [
        (
            CONFIGURED,
            {
                "clusterId": "",
                "leaderId": 1,
                "leaderEpoch": 2,
                "votedId": -1,
                "appliedOffset": 0,
                "currentVoters": [{"voterId": 1}, {"voterId": 2}, {"voterId": 3}],
                "data_version": 0,
            },
        ),
        (
            IN_LOG,
            {
                "leaderId": -1,
                "leaderEpoch": 7,
                "votedId": 2,
                "votedDirectoryId": "J8aAPPfLT2Kqa89T_TrNhA",
                "data_version": 1,
            },
        ),
    ],
)
def test_kafkas_fields_in_kafkas_order(files, state, fields):
    quorum_state.write(HOME, state, files)
    written = json.loads(files.read(HOME / FILE_NAME))
    assert list(written.items()) == list(fields.items())
    assert quorum_state.read(HOME, files) == state


def test_what_kafka_writes_is_read(files):
    put(
        files,
        b'{"leaderId":-1,"leaderEpoch":0,"votedId":-1,"currentVoters":null,"clusterId":"","appliedOffset":0,'
        b'"data_version":0}',
    )
    assert quorum_state.read(HOME, files) == ElectionState(leader_epoch=0, leader_id=None, kraft_version=0)


def test_no_file_is_no_state(files):
    assert quorum_state.read(HOME, files) is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"\xff\xfe",
        b"{}",
        b'{"data_version":2,"leaderId":1,"leaderEpoch":2,"votedId":-1}',
        b'{"data_version":true,"leaderId":1,"leaderEpoch":2,"votedId":-1}',
        b'{"data_version":1,"leaderId":1,"votedId":-1}',
        b'{"data_version":1,"leaderId":"1","leaderEpoch":2,"votedId":-1}',
        b'{"data_version":1,"leaderId":1,"leaderEpoch":2.5,"votedId":-1}',
        b'{"data_version":1,"leaderId":1,"leaderEpoch":-1,"votedId":-1}',
        b'{"data_version":1,"leaderId":-2,"leaderEpoch":1,"votedId":-1}',
        b'{"data_version":1,"leaderId":1,"leaderEpoch":2,"votedId":3,"votedDirectoryId":"no"}',
        b'{"data_version":1,"leaderId":1,"leaderEpoch":2,"votedId":3,"votedDirectoryId":7}',
        b'{"data_version":0,"leaderId":1,"leaderEpoch":2,"votedId":-1,"currentVoters":[{}]}',
        b'{"data_version":0,"leaderId":1,"leaderEpoch":2,"votedId":-1,"currentVoters":[7]}',
        b'{"data_version":0,"leaderId":1,"leaderEpoch":2,"votedId":-1,"currentVoters":7}',
        b"\0" * 90,
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_a_remedy(files, text):
    put(files, text)
    with pytest.raises(
        InvalidMetadata, match=r"/log/quorum-state cannot be read.*remove this controller from the quorum"
    ):
        quorum_state.read(HOME, files)


@pytest.mark.parametrize("seed", range(30))
def test_a_crash_leaves_the_old_state_or_the_new_one_and_the_new_one_if_written(files, seed):
    random = Random(seed)
    quorum_state.write(HOME, CONFIGURED, files)
    files.fail(None, nth=random.randint(1, 6), errno=None)
    try:
        quorum_state.write(HOME, IN_LOG, files)
        states = [IN_LOG]
    except BaseException:  # noqa: BLE001 (Killed is one: the process has died)
        states = [CONFIGURED, IN_LOG]
    after = files.after_crash(random, random.choice(list(Loss)))
    assert quorum_state.read(HOME, after) in states
