"""Configurations as `ottla configs describe` shows them. Values only."""

from collections.abc import Iterator, Mapping

from ottla.broker.cli.output import Row, table
from ottla.config.config_def import ConfigSource
from ottla.protocol.messages.describe_configs import DescribeConfigsResourceResult

_SENSITIVE = "(sensitive)"


def source_name(number: int) -> str:
    """The source of a value for a reader.

    >>> source_name(3), source_name(99)
    ('dynamic default broker', 'source 99')
    """
    names = (each.name.lower().replace("_", " ") for each in ConfigSource if each == number)
    return next(names, f"source {number}")


def config_row(resource: str, config: DescribeConfigsResourceResult) -> Row:
    """One configuration of `ottla configs describe --json`; the value of a sensitive one is null."""
    return {
        "kind": "config",
        "resource": resource,
        "key": config.name,
        "value": config.value,
        "source": source_name(config.config_source),
        "is_read_only": config.read_only,
        "is_sensitive": config.is_sensitive,
        "synonyms": [
            {"key": each.name, "value": each.value, "source": source_name(each.source)}
            for each in config.synonyms
        ],
    }


def shown(
    configs: Mapping[str, DescribeConfigsResourceResult], *, has_defaults: bool
) -> list[DescribeConfigsResourceResult]:
    """The configurations in the order of their keys, with or without those that have their default."""
    return [
        configs[name]
        for name in sorted(configs)
        if has_defaults or configs[name].config_source != ConfigSource.DEFAULT
    ]


def config_lines(configs: list[DescribeConfigsResourceResult]) -> list[str]:
    """The table of `ottla configs describe`."""
    rows = [(each.name, _value(each.value, each.is_sensitive), _source(each)) for each in configs]
    return table(("KEY", "VALUE", "SOURCE"), rows)


def detailed_lines(config: DescribeConfigsResourceResult) -> Iterator[str]:
    """The lines of one configuration that is named: its value, where values come from, and the documentation."""
    yield f"{config.name}={_value(config.value, config.is_sensitive)}  ({_source(config)})"
    for each in config.synonyms:
        yield f"  {source_name(each.source)}: {each.name}={_value(each.value, config.is_sensitive)}"
    if config.documentation:
        yield f"  {' '.join(config.documentation.split())}"


def _source(config: DescribeConfigsResourceResult) -> str:
    return source_name(config.config_source) + (", read-only" if config.read_only else "")


def _value(value: str | None, is_sensitive: bool) -> str:
    return _SENSITIVE if is_sensitive else (value or "")
