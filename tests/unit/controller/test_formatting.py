"""The first records of a new cluster: releases, features and their dependencies, first users.

About KIP-1022.
"""

import base64
import hashlib
import hmac

import pytest

from ottla.controller.formatting import (
    FormatterError,
    bootstrap_records,
    feature_levels,
    metadata_version_of,
    parse_scram,
)
from ottla.metadata.features import ELR_VERSION as ELR
from ottla.metadata.features import METADATA_VERSIONS, SERVED_FEATURES
from ottla.metadata.records import FeatureLevelRecord, UserScramCredentialRecord

SALT = b"\x01" * 20


@pytest.mark.parametrize(
    ("release", "level"),
    [
        ("3.3", 7),
        ("3.3-IV3", 7),
        ("3.5", 11),
        ("3.5-IV0", 9),
        ("3.7.2", 19),
        ("3.7-IV1", 16),
        ("4.0", 25),
        ("4.3", 30),
        ("4.3.1", 30),
        ("4.3-IV0", 30),
        ("4.4", 33),
        ("4.4.0", 33),
        ("4.4-IV0", 31),
        *((version.name, level) for level, version in METADATA_VERSIONS.items()),
    ],
)
def test_a_release_is_a_metadata_version(release: str, level: int):
    assert metadata_version_of(release) == level


@pytest.mark.parametrize("release", ["", "4", "3.2", "3.3-IV0", "4.5", "4.5-IV0", "4.4-IV9", "four"])
def test_releases_that_are_none(release: str):
    with pytest.raises(
        FormatterError, match=r"Unknown metadata\.version '.*'\. Supported .* 3\.3-IV3, 3\.4-IV0"
    ):
        metadata_version_of(release)


def levels(release: str | None = None, *, dynamic: bool = False, **features: int) -> dict[str, int]:
    named = {name.replace("_", "."): level for name, level in features.items()}
    return feature_levels(release, named, has_dynamic_quorum=dynamic)


def test_defaults_are_those_of_the_release_as_far_as_they_are_served():
    assert levels()["metadata.version"] == 33
    # Kafka: MV 26 brings the ELR, 24 transactions 2, 22 groups 1, 28 share groups, 29 streams groups.
    for name, first, level in (
        (ELR, 26, 1),
        ("transaction.version", 24, 2),
        ("group.version", 22, 1),
        ("share.version", 28, 1),
        ("streams.version", 29, 1),
    ):
        served = min(level, SERVED_FEATURES.get(name, range(1)).stop - 1)
        assert levels(METADATA_VERSIONS[first].name)[name] == served
        assert levels(METADATA_VERSIONS[first - 1].name)[name] == 0
        assert levels(**{name.replace(".", "_"): level})[name] == level  # asked for by name
        assert levels(**{name.replace(".", "_"): 0})[name] == 0


def test_kraft_version_follows_the_voters():
    assert levels()["kraft.version"] == 0
    assert levels(dynamic=True)["kraft.version"] == 1
    assert levels("3.3", dynamic=True)["kraft.version"] == 1
    assert levels(dynamic=True, kraft_version=1)["kraft.version"] == 1
    assert levels(kraft_version=0)["kraft.version"] == 0


@pytest.mark.parametrize(
    ("release", "dynamic", "features", "why"),
    [
        (
            "4.3",
            False,
            {"metadata.version": 30},
            "Use --release-version instead of --feature metadata.version=X",
        ),
        (
            None,
            False,
            {"nonsense": 1},
            "Unsupported feature: nonsense. Supported features are: eligible.leader",
        ),
        (
            None,
            False,
            {"metadata.version": 34},
            "No MetadataVersion with feature level 34. Valid feature levels are",
        ),
        (None, False, {"group.version": 2}, "No feature:group.version with feature level 2"),
        (None, False, {"group.version": -1}, "No feature:group.version with feature level -1"),
        (
            "4.0-IV0",
            False,
            {ELR: 1},
            f"{ELR} could not be set to 1 because it depends on metadata.version level 23",
        ),
        (
            None,
            True,
            {"kraft.version": 0},
            "Cannot set kraft.version to 0 if controller.quorum.voters is empty and",
        ),
        (
            None,
            False,
            {"kraft.version": 1},
            "Cannot set kraft.version to 1 unless controller.quorum.voters is empty",
        ),
        (None, True, {"kraft.version": 2}, "No feature:kraft.version with feature level 2"),
    ],
)
def test_refusals_are_kafkas(release: str | None, dynamic: bool, features: dict[str, int], why: str):
    with pytest.raises(FormatterError) as refused:
        feature_levels(release, features, has_dynamic_quorum=dynamic)
    assert str(refused.value).startswith(why)


def test_bootstrap_records():
    alice = parse_scram("SCRAM-SHA-256=[name=alice,password=secret]", random_salt=SALT)
    found = {"kraft.version": 1, "transaction.version": 2, "metadata.version": 30, "group.version": 0, ELR: 1}
    assert bootstrap_records(found, [alice]) == [
        FeatureLevelRecord(name="metadata.version", feature_level=30),
        FeatureLevelRecord(name=ELR, feature_level=1),
        FeatureLevelRecord(name="transaction.version", feature_level=2),
        alice,
    ]
    with pytest.raises(
        FormatterError, match=r"SCRAM is only supported in metadata\.version 3\.5-IV2 or later\."
    ):
        bootstrap_records({"metadata.version": 10}, [alice])


def expected(name: str, algorithm: str, number: int, salted: bytes, salt: bytes, iterations: int):
    client_key = hmac.new(salted, b"Client Key", algorithm).digest()
    return UserScramCredentialRecord(
        name=name,
        mechanism=number,
        salt=salt,
        stored_key=hashlib.new(algorithm, client_key).digest(),
        server_key=hmac.new(salted, b"Server Key", algorithm).digest(),
        iterations=iterations,
    )


def test_scram_arguments():
    for mechanism, algorithm, number in (("SCRAM-SHA-256", "sha256", 1), ("SCRAM-SHA-512", "sha512", 2)):
        salted = hashlib.pbkdf2_hmac(algorithm, b"secret", SALT, 4096)
        alice = expected("alice", algorithm, number, salted, SALT, 4096)
        assert parse_scram(f' {mechanism}=[name=alice,password="secret"] ', random_salt=SALT) == alice
        text = f"{mechanism}=[name=alice,saltedpassword={base64.b64encode(salted).decode()},salt="
        text += f"{base64.b64encode(SALT).decode()},iterations=4096]"
        assert parse_scram(text, random_salt=b"other") == alice
    password = hashlib.pbkdf2_hmac("sha256", b"a=b", b"salt", 8192)
    found = parse_scram(
        "SCRAM-SHA-256=[name=bob,password=a=b,salt=c2FsdA==,iterations=8192]", random_salt=SALT
    )
    assert found == expected("bob", "sha256", 1, password, b"salt", 8192)


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("", "Failed to find equals sign in SCRAM argument ''"),
        ("SCRAM-SHA-1=[name=a,password=b]", "The add-scram mechanism SCRAM-SHA-1 is not supported."),
        ("SCRAM-SHA-256=name=a]", "Expected configuration string to start with ["),
        ("SCRAM-SHA-256=[name=a", "Expected configuration string to end with ]"),
        ("SCRAM-SHA-256=[]", "No equals sign found in SCRAM component: "),
        ("SCRAM-SHA-256=[password=b]", "You must supply 'name' to add-scram"),
        ("SCRAM-SHA-256=[name=a]", "You must supply one of 'password' or 'saltedpassword' to add-scram"),
        (
            "SCRAM-SHA-256=[name=a,saltedpassword=YQ==]",
            "You must supply 'salt' with 'saltedpassword' to add-scram",
        ),
        ("SCRAM-SHA-256=[name=a,salt=?,password=b]", "Failed to decode given salt: ?"),
        ("SCRAM-SHA-256=[name=a,salt=YQ==,saltedpassword=?]", "Failed to decode given saltedPassword: ?"),
        ("SCRAM-SHA-256=[name=a,password=b,iterations=x]", "Failed to parse iterations count: x"),
        (
            "SCRAM-SHA-256=[name=a,password=b,iterations=4095]",
            "The 'iterations' value must be >= 4096 for add-scram using SCRAM_SHA_256",
        ),
        (
            "SCRAM-SHA-512=[name=a,password=b,iterations=16385]",
            "The 'iterations' value must be <= 16384 for add-scram using SCRAM_SHA_512",
        ),
        ("SCRAM-SHA-256=[name=a,password=b,shoe=7]", "Unknown SCRAM configurations: shoe"),
    ],
)
def test_scram_arguments_that_are_refused(argument: str, why: str):
    with pytest.raises(FormatterError) as refused:
        parse_scram(argument, random_salt=SALT)
    assert str(refused.value) == why
