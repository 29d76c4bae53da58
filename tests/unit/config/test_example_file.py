"""`config/server.properties`, the file that operators begin with: every line of it, those in comments too, is
served.
"""

import re
from pathlib import Path

import pytest

from ottla.config import notices
from ottla.config.load import load_config

EXAMPLE = Path(__file__).parents[3] / "config/server.properties"


@pytest.mark.parametrize("shows_all", [False, True])
def test_it_is_served_without_a_warning(tmp_path, shows_all):
    text = EXAMPLE.read_text()
    if shows_all:
        text = re.sub(r"^#(?=[a-z.]+=)", "", text, flags=re.MULTILINE)
    properties = tmp_path / "server.properties"
    properties.write_text(text)
    config = load_config(properties)
    assert [*notices.warnings(config)] == []
    assert config.node_id == 1
    assert bool(config.get("broker.rack")) is shows_all
