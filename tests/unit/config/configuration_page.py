"""docs/CONFIGURATION.md, made from the definitions.

    .venv/bin/python -m tests.unit.config.configuration_page

writes it; a test holds it equal to what this would write.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ottla.config.config_def import ConfigKey, NoMeaning, NotServed
from ottla.config.definitions import (
    BROKER_CONFIGS,
    CLIENT_METRICS_CONFIGS,
    DYNAMIC_BROKER_CONFIGS,
    GROUP_CONFIGS,
)
from ottla.config.log_config import TOPIC_CONFIGS

PAGE = Path(__file__).parents[3] / "docs" / "CONFIGURATION.md"

_KINDS: tuple[tuple[str, Mapping[str, ConfigKey]], ...] = (
    ("broker", {**BROKER_CONFIGS, **DYNAMIC_BROKER_CONFIGS}),
    ("topic", TOPIC_CONFIGS),
    ("group", GROUP_CONFIGS),
    ("client metrics", CLIENT_METRICS_CONFIGS),
)

_OPENING = """\
# Configuration

Names, types, defaults, bounds and synonyms of all configurations are Apache Kafka 4.3.1's
(`max.decompressed.message.bytes` and `remote.copy.lag.*` are 4.4's), and a `server.properties` file \
of Kafka loads unchanged; \
only `metrics.listeners`, `metrics.names`, `metrics.clients.max.series` and `metrics.groups.max.rows` \
([METRICS.md](METRICS.md)),
`remote.log.storage.manager.process.enable`, \
`remote.log.manager.transfer.deadline.ms` and the four `leader.election.*` of brokers
and topics ([KIP-1303](kips/KIP-1303.md)) are not Kafka's. Every configuration that
is accepted is one of three: {works} of {total} have an effect, as in Kafka; the others are listed here. \
Each definition says
which it is (`config/definitions/`, `config/topic_configs.py`), and `tests/unit/config/test_readers.py` holds the
definitions equal to the code: a configuration that nothing reads cannot be accepted without a reason, \
and one that is read
cannot be listed here.

This page is made from the definitions: `.venv/bin/python -m tests.unit.config.configuration_page`.

Configurations of these kinds are handled differently from others:

| the configuration | in a file, at start | altered while the broker runs |
|---|---|---|
| has no meaning here | one INFO line names all that are set | accepted; one WARNING names them |
| belongs to a feature that is not served | one WARNING for each feature names all that are set | \
accepted; the same WARNING |
| belongs to such a feature, and would change who may do what or where data lies | the node does not start | \
INVALID_REQUEST |
| names a class (`metric.reporters`, `ssl.engine.factory.class`) | one WARNING | \
INVALID_REQUEST, as Kafka returns for a class that it cannot load: none can be loaded here |
| is not known | one WARNING names all of them | accepted and kept, as in Kafka |
| is `listener.name.<listener>.<key>` of a key that listeners do not have | WARNING | INVALID_REQUEST |
| is read-only | as set | INVALID_REQUEST, as in Kafka |

The configurations of tiered storage have the names and defaults of Kafka 4.3.1; \
[KIP-405](kips/KIP-405.md) lists those of the KIP
that have others.

Two configurations that Kafka alters while it runs are read-only here, \
and refused with INVALID_REQUEST when they change:
`listeners` and `listener.security.protocol.map`.
"""


def page() -> str:
    """The text of docs/CONFIGURATION.md."""
    keys = [key for _, kind in _KINDS for key in kind.values()]
    works = sum(key.unread is None for key in keys)
    parts = [
        _OPENING.format(works=works, total=len(keys)),
        "## No meaning here\n",
        "| configuration | why |",
        "|---|---|",
        *_without_meaning(),
        "",
        "## Features that are not served yet\n",
        "| feature | configurations |",
        "|---|---|",
        *_not_served(is_refused=False),
        "",
        "## Refused unless left at its default\n",
        "| configuration | feature |",
        "|---|---|",
        *_not_served(is_refused=True),
    ]
    return "\n".join(parts) + "\n"


def _without_meaning() -> Iterator[str]:
    for kind, keys in _KINDS:
        for name, key in sorted(keys.items()):
            if isinstance(key.unread, NoMeaning):
                yield f"| {_shown(kind, name)} | {key.unread.reason} |"


def _not_served(*, is_refused: bool) -> Iterator[str]:
    by_feature: dict[str, list[str]] = {}
    for kind, keys in _KINDS:
        for name, key in sorted(keys.items()):
            if isinstance(key.unread, NotServed) and key.unread.is_refused == is_refused:
                by_feature.setdefault(key.unread.feature, []).append(_shown(kind, name))
    for feature, names in sorted(by_feature.items(), key=lambda each: each[0].lower()):
        yield f"| {', '.join(names)} | {feature} |" if is_refused else f"| {feature} | {', '.join(names)} |"


def _shown(kind: str, name: str) -> str:
    return f"`{name}`" if kind == "broker" else f"`{name}` ({kind})"


if __name__ == "__main__":
    PAGE.write_text(page())
