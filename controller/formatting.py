"""Formatting a new cluster: feature levels by release, and SCRAM credentials of its first users.

The arguments and errors are those of `kafka-storage format`. One thing differs: a feature that is not served yet
begins at level 0 unless it is named, where Kafka takes the default of its release.

Source: Formatter, MetadataVersion.fromVersionString and ScramParser of Kafka 4.3.1.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Final

from ottla.controller.metadata_log.record_versions import SCRAM_3_5_IV2
from ottla.controller.scram import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    Mechanism,
    credential,
    salted_password,
)
from ottla.metadata.features import (
    FEATURE_LEVELS,
    KRAFT_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    METADATA_VERSIONS,
    SERVED_FEATURES,
    missing_dependency,
)
from ottla.metadata.records import FeatureLevelRecord, MetadataRecord, UserScramCredentialRecord

_DEFAULT_ITERATIONS: Final = 4096
#: The flags that format a cluster with dynamic voters, as in the messages of kafka-storage.
_DYNAMIC_FLAGS: Final = "--standalone, --initial-controllers, or --no-initial-controllers"


class FormatterError(ValueError):
    """A directory cannot be formatted; the message is a sentence for an operator."""


def metadata_version_of(release: str) -> int:
    """The level that a release stands for: "3.8", "3.8.1" and "3.8-IV0" are all 20. Raises FormatterError.

    >>> metadata_version_of("3.8.1"), metadata_version_of("3.7"), metadata_version_of("3.7-IV0")
    (20, 19, 15)
    """
    wanted = ".".join(release.split(".")[:2])
    found = [
        level for level, version in METADATA_VERSIONS.items() if wanted in (version.name, version.release)
    ]
    if not found:
        known = ", ".join(version.name for version in METADATA_VERSIONS.values())
        raise FormatterError(f"Unknown metadata.version '{release}'. Supported metadata.version are: {known}")
    return max(found)


def feature_levels(
    release: str | None, features: Mapping[str, int], *, has_dynamic_quorum: bool
) -> dict[str, int]:
    """The level of every feature in a new cluster, kraft.version included. Raises FormatterError.

    `release` is the argument of --release-version, `features` those of --feature. `has_dynamic_quorum`: the voters
    are in the log (kraft.version 1), because none are configured (KIP-853).
    """
    if release is not None and METADATA_VERSION in features:
        raise FormatterError(
            f"Use --release-version instead of --feature {METADATA_VERSION}=X to avoid ambiguity."
        )
    if unknown := [name for name in features if name not in FEATURE_LEVELS and name != METADATA_VERSION]:
        known = ", ".join(sorted(FEATURE_LEVELS))
        raise FormatterError(f"Unsupported feature: {min(unknown)}. Supported features are: {known}")
    metadata_version = (
        features.get(METADATA_VERSION, LATEST_METADATA_VERSION)
        if release is None
        else metadata_version_of(release)
    )
    if metadata_version not in METADATA_VERSIONS:
        raise FormatterError(
            f"No MetadataVersion with feature level {metadata_version}. Valid feature levels are from "
            f"{min(METADATA_VERSIONS)} to {LATEST_METADATA_VERSION}."
        )
    levels = {METADATA_VERSION: metadata_version}
    for name in sorted(FEATURE_LEVELS):
        if name == KRAFT_VERSION:
            levels[name] = _kraft_version(features.get(name), has_dynamic_quorum=has_dynamic_quorum)
        else:
            levels[name] = features.get(name, _default_level(name, metadata_version))
    for name, level in levels.items():
        if name == METADATA_VERSION:
            continue
        if not 0 <= level <= len(FEATURE_LEVELS[name]):
            raise FormatterError(f"No feature:{name} with feature level {level}")
        if (reason := missing_dependency(name, level, levels)) is not None:
            raise FormatterError(reason)
    return levels


def _default_level(name: str, metadata_version: int) -> int:
    """The highest served level among the defaults for new clusters of this metadata.version; 0 if there is none."""
    levels = [
        number
        for number, level in enumerate(FEATURE_LEVELS[name], start=1)
        if level.default_from <= metadata_version and number in SERVED_FEATURES.get(name, ())
    ]
    return max(levels, default=0)


def _kraft_version(asked: int | None, *, has_dynamic_quorum: bool) -> int:
    if asked is None:
        return int(has_dynamic_quorum)
    if asked == 0 and has_dynamic_quorum:
        raise FormatterError(
            f"Cannot set {KRAFT_VERSION} to 0 if controller.quorum.voters is empty and one of the flags "
            f"{_DYNAMIC_FLAGS} is used. For dynamic controllers support, try removing the --feature flag for "
            f"{KRAFT_VERSION}."
        )
    if asked != 0 and not has_dynamic_quorum:
        raise FormatterError(
            f"Cannot set {KRAFT_VERSION} to {asked} unless controller.quorum.voters is empty and one of the "
            f"flags {_DYNAMIC_FLAGS} is used. For dynamic controllers support, try using one of --standalone, "
            "--initial-controllers, or --no-initial-controllers and removing controller.quorum.voters."
        )
    return asked


def bootstrap_records(
    levels: Mapping[str, int], credentials: Iterable[UserScramCredentialRecord] = ()
) -> list[MetadataRecord]:
    """The records of `bootstrap.checkpoint`: levels above 0, metadata.version first. Raises FormatterError.

    kraft.version is not among them: it is in control records (KIP-853).
    """
    records: list[MetadataRecord] = [
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=levels[METADATA_VERSION])
    ]
    records += [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in sorted(levels.items())
        if level and name not in (METADATA_VERSION, KRAFT_VERSION)
    ]
    users = list(credentials)
    if users and levels[METADATA_VERSION] < SCRAM_3_5_IV2:
        name = METADATA_VERSIONS[SCRAM_3_5_IV2].name
        raise FormatterError(f"SCRAM is only supported in {METADATA_VERSION} {name} or later.")
    return [*records, *users]


def parse_scram(argument: str, *, random_salt: bytes) -> UserScramCredentialRecord:
    """Parse an argument of --add-scram: `SCRAM-SHA-256=[name=alice,password=secret]`. Raises FormatterError.

    Besides `name` there are `password` (or `saltedpassword` and `salt`, in Base64), `salt` and `iterations`.
    `random_salt` is used where none is given. Cost: thousands of hashes for a password.
    """
    mechanism, settings = _scram_settings(argument.strip())
    name = settings.pop("name", None)
    if name is None:
        raise FormatterError("You must supply 'name' to add-scram")
    given_salt = settings.pop("salt", None)
    salt = random_salt if given_salt is None else _decode(given_salt, "salt")
    iterations = _iterations(settings.pop("iterations", None), mechanism)
    password, salted = settings.pop("password", None), settings.pop("saltedpassword", None)
    if password is None and salted is None:
        raise FormatterError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    if password is None and given_salt is None:
        raise FormatterError("You must supply 'salt' with 'saltedpassword' to add-scram")
    if settings:
        raise FormatterError(f"Unknown SCRAM configurations: {', '.join(sorted(settings))}")
    if password is not None:
        key = salted_password(mechanism, password.encode(), salt=salt, iterations=iterations)
    else:
        assert salted is not None
        key = _decode(salted, "saltedPassword")
    return credential(name, mechanism, salt=salt, salted=key, iterations=iterations)


def _scram_settings(argument: str) -> tuple[Mechanism, dict[str, str]]:
    mechanism_name, equals, text = argument.partition("=")
    if not equals:
        raise FormatterError(f"Failed to find equals sign in SCRAM argument '{argument}'")
    mechanism = next((each for each in MECHANISMS.values() if each.name == mechanism_name), None)
    if mechanism is None:
        raise FormatterError(f"The add-scram mechanism {mechanism_name} is not supported.")
    if not text.startswith("["):
        raise FormatterError("Expected configuration string to start with [")
    if not text.endswith("]"):
        raise FormatterError("Expected configuration string to end with ]")
    settings = {}
    for part in text[1:-1].split(","):
        key, equals, value = part.partition("=")
        if not equals:
            raise FormatterError(f"No equals sign found in SCRAM component: {part}")
        is_quoted = len(value) >= 2 and value[0] == value[-1] == '"'
        settings[key] = value[1:-1] if is_quoted else value
    return mechanism, settings


def _iterations(text: str | None, mechanism: Mechanism) -> int:
    try:
        iterations = _DEFAULT_ITERATIONS if text is None else int(text)
    except ValueError:
        raise FormatterError(f"Failed to parse iterations count: {text}") from None
    for is_outside, bound in (
        (iterations < MIN_ITERATIONS, f">= {MIN_ITERATIONS}"),
        (iterations > MAX_ITERATIONS, f"<= {MAX_ITERATIONS}"),
    ):
        if is_outside:
            raise FormatterError(
                f"The 'iterations' value must be {bound} for add-scram using {mechanism.name.replace('-', '_')}"
            )
    return iterations


def _decode(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise FormatterError(f"Failed to decode given {what}: {text}") from None
