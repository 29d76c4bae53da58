"""Write `protocol/schemas/kafka_schemas.txt` from Kafka's jars: `python -m ottla.bench.components.kafka_schemas`.

The jars are those of the newest oracle (`ottla.bench.components.fetch`), and `ottla.protocol.schemas.kafka_schemas`
describes the form of the file. Facts are taken over: names, types, versions, defaults; the text of the schemas is not.
Source: `common/message`, `common/metadata` and `message` in the jars of Kafka; the table that its Errors prints.
"""

import json
import re
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ottla.bench.components import fetch
from ottla.protocol.schemas.kafka_schemas import FACTS, INDENT

#: The folders of the jars that have schemas.
_FOLDERS: Final = ("common/message/", "common/metadata/", "message/")
_COMMENT: Final = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*')
_ERROR_ROW: Final = re.compile(r"<tr><td>(\w+)</td><td>(-?\d+)</td>")


def text_of(release: str, errors: Mapping[str, int], schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of the file: errors by code, schemas by name."""
    lines = [f"kafka {release}"]
    lines += [f"error {code} {name}" for name, code in sorted(errors.items(), key=lambda item: item[1])]
    for _, schema in sorted(schemas.items()):
        lines += _schema_lines(schema)
    return "\n".join(lines) + "\n"


def _schema_lines(schema: Mapping[str, Any]) -> Iterator[str]:
    if schema["validVersions"] == "none":
        return
    line = f"{schema['type']} {schema.get('apiKey', '-')} {schema['name']} {schema['validVersions']}"
    if schema.get("flexibleVersions", "none") != "none":
        line += f" flexible={schema['flexibleVersions']}"
    if "listeners" in schema:
        line += f" listeners={','.join(schema['listeners'])}"
    if schema.get("latestVersionUnstable"):
        line += " unstable"
    yield line
    yield from _field_lines(schema["fields"], INDENT)
    for struct in schema.get("commonStructs", ()):
        yield f"{INDENT}struct {struct['name']} {struct['versions']}"
        yield from _field_lines(struct["fields"], 2 * INDENT)


def _field_lines(fields: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for each in fields:
        versions = each.get("versions") or each["taggedVersions"]
        line = f"{indent}{each['name']} {each['type']} {versions}"
        if each.get("nullableVersions", "none") != "none":
            line += f" nullable={each['nullableVersions']}"
        if each.get("taggedVersions", "none") != "none":
            line += f" tagged={each['taggedVersions']} tag={each['tag']}"
        if "default" in each:
            # Most schemas write a number or a truth value as a string, and some do not.
            default = each["default"]
            line += f" default={default if isinstance(default, str) else json.dumps(default)}"
        yield line
        yield from _field_lines(each.get("fields", []), indent + INDENT)


def schemas_of_jars(jars: Path) -> dict[str, dict[str, Any]]:
    """Read the schemas of all jars of Kafka in this folder, by their names."""
    schemas = {}
    for jar in sorted(jars.glob("kafka-*.jar")):
        with zipfile.ZipFile(jar) as archive:
            for path in archive.namelist():
                if path.endswith(".json") and path.startswith(_FOLDERS):
                    text = archive.read(path).decode()
                    schema = json.loads(_COMMENT.sub(lambda found: found[1] or "", text))
                    schemas[schema["name"]] = schema
    return schemas


def errors_of_jars(jars: Path) -> dict[str, int]:
    """The names and codes of the errors: Kafka's Errors prints them as a table."""
    command = [fetch.java(), "-cp", f"{jars}/*", "org.apache.kafka.common.protocol.Errors"]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: int(code) for name, code in _ERROR_ROW.findall(table)}


def release_of_jars(jars: Path) -> str:
    """The release that the clients' jar in this folder is of, as "4.4.0"."""
    (clients,) = jars.glob("kafka-clients-*.jar")
    return clients.stem.removeprefix("kafka-clients-")


def main() -> None:
    """Write the facts of the newest release."""
    jars = fetch.kafka_jars(fetch.KAFKA_VERSIONS[-1])
    FACTS.write_text(text_of(release_of_jars(jars), errors_of_jars(jars), schemas_of_jars(jars)))


if __name__ == "__main__":
    main()
