import shutil
from pathlib import Path

import pytest

from tests.unit.broker.cli.files.files_support import make_folder


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """The files that were made once, for reading only."""
    return make_folder(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def folder(made, tmp_path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(made, tmp_path / "data")
