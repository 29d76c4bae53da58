"""AlterUserScramCredentials: which alterations are refused, and which keys are stored.

About KIP-554.
"""

import base64
import hashlib
import hmac

import pytest

from ottla.controller.scram import MECHANISMS, alter_credentials, salted_password
from ottla.protocol.errors import ErrorCode, NotController, PolicyViolation
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.refusals import refuse
from ottla.stories.elections.machine import Machine

SHA_256, SHA_512 = MECHANISMS.values()
TWICE = "A user credential cannot be altered twice in the same request"
OLD = "The current metadata.version does not support SCRAM"


def upsert(name: str, mechanism: int = 1, **fields: object) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        **{"iterations": 4096, "salt": b"salt", "salted_password": b"password", **fields},
    )


def remove(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


def alter(machine: Machine, *alterations: object) -> dict[str, tuple[int, str | None]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in alterations if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in alterations if isinstance(each, ScramCredentialUpsertion)],
    )
    results = machine.do(alter_credentials(machine.state, request)).results
    assert len({row.user for row in results}) == len(results)
    return {row.user: (row.error_code, row.error_message) for row in results}


def known(machine: Machine) -> list[tuple[str, int]]:
    return sorted(machine.state.image.scram_credentials)


def test_set_and_deleted():
    machine = Machine()
    assert alter(machine, upsert("alice"), upsert("bob", 2)) == {"alice": (0, None), "bob": (0, None)}
    assert alter(machine, upsert("alice", 2)) == {"alice": (0, None)}
    assert known(machine) == [("alice", 1), ("alice", 2), ("bob", 2)]
    assert alter(machine, remove("alice", 2), upsert("bob", 2, iterations=8192)) == {
        "alice": (0, None),
        "bob": (0, None),
    }
    assert known(machine) == [("alice", 1), ("bob", 2)]
    assert machine.state.image.scram_credentials["bob", 2].iterations == 8192
    assert alter(machine) == {}


def test_the_keys_are_those_of_rfc_7677():
    # RFC 7677, section 3: user "user", password "pencil"; what the server stores follows from the exchange there.
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(SHA_256, b"pencil", salt=salt, iterations=4096)
    machine = Machine()
    alter(machine, upsert("user", salt=salt, salted_password=salted))
    record = machine.state.image.scram_credentials["user", 1]
    exchange = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,"
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(record.stored_key, exchange, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == record.stored_key
    assert hmac.digest(record.server_key, exchange, "sha256") == base64.b64decode(
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


def test_the_longer_hash():
    machine = Machine()
    alter(machine, upsert("alice", 2))
    record = machine.state.image.scram_credentials["alice", 2]
    assert (len(record.stored_key), len(record.server_key)) == (64, 64)
    assert SHA_512.name == "SCRAM-SHA-512"


@pytest.mark.parametrize(
    ("alterations", "code", "why"),
    [
        ([upsert("")], ErrorCode.unacceptable_credential, "Username must not be empty"),
        ([upsert("a", 0)], ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"),
        ([upsert("a", 3)], ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"),
        ([upsert("a", -1)], ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"),
        ([upsert("a", iterations=4095)], ErrorCode.unacceptable_credential, "Too few iterations"),
        ([upsert("a", iterations=-1)], ErrorCode.unacceptable_credential, "Too few iterations"),
        ([upsert("a", iterations=16385)], ErrorCode.unacceptable_credential, "Too many iterations"),
        ([upsert("a", salted_password=b"")], ErrorCode.unacceptable_credential, "Salted password must not be empty"),
        ([remove("a")], ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"),
        ([remove("")], ErrorCode.unacceptable_credential, "Username must not be empty"),
        ([remove("known", 9)], ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"),
        ([remove("known", 2)], ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"),
        ([upsert("a"), upsert("a", 2)], ErrorCode.duplicate_resource, TWICE),
        ([upsert("a"), upsert("a")], ErrorCode.duplicate_resource, TWICE),
        ([remove("known"), upsert("known")], ErrorCode.duplicate_resource, TWICE),
        ([remove("known"), remove("known")], ErrorCode.duplicate_resource, TWICE),
        # The first error is returned.
        ([remove("a"), upsert("a")], ErrorCode.resource_not_found,
         "Attempt to delete a user credential that does not exist"),
        ([upsert("a"), upsert("a", 9)], ErrorCode.duplicate_resource, TWICE),
        ([upsert("a"), upsert("a"), upsert("a")], ErrorCode.duplicate_resource, TWICE),
    ],
)  # fmt: skip
def test_a_user_that_is_refused_leaves_the_others_alone(alterations: list, code: ErrorCode, why: str):
    machine = Machine()
    alter(machine, upsert("known"))
    outcomes = alter(machine, *alterations, upsert("other"))
    assert outcomes.pop("other") == (0, None)
    assert list(outcomes.values()) == [(code, why)]
    assert known(machine) == [("known", 1), ("other", 1)]


def test_bounds_and_an_empty_salt_pass():
    machine = Machine()
    outcomes = alter(machine, upsert("a", salt=b""), upsert("b", iterations=16384))
    assert set(outcomes.values()) == {(0, None)}


def test_too_much_at_once():
    machine = Machine()
    with pytest.raises(PolicyViolation):
        alter(machine, *(upsert(str(number)) for number in range(10_001)))
    assert known(machine) == []


def test_not_before_its_metadata_version():
    machine = Machine(elr=False, metadata_version=10)
    assert alter(machine, upsert("a"), remove("b")) == dict.fromkeys(
        ("a", "b"), (ErrorCode.unsupported_version, OLD)
    )


def test_a_request_that_fails_as_a_whole_names_every_user_once():
    request = AlterUserScramCredentialsRequest(deletions=[remove("b")], upsertions=[upsert("b"), upsert("a")])
    rows = refuse(request, NotController("away")).results
    assert [(row.user, row.error_code, row.error_message) for row in rows] == [
        ("a", ErrorCode.not_controller, "away"),
        ("b", ErrorCode.not_controller, "away"),
    ]
