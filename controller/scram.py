"""AlterUserScramCredentials: SCRAM credentials in the metadata log (KIP-554).

A client sends the salted password; the log stores the two keys that a server needs, from which the salted
password cannot be computed (RFC 5802, section 3). A request can alter a user only once, and not even two mechanisms
of one user, as in Kafka.

Source: ScramControlManager and ScramImage of Kafka 4.3.1.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple

from ottla.controller.metadata_log.record_versions import SCRAM_3_5_IV2
from ottla.controller.result import Result, check_record_count
from ottla.controller.state import ClusterState
from ottla.controller.steps import Steps, by_steps, in_steps
from ottla.metadata.records import (
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from ottla.protocol.errors import (
    DuplicateResource,
    ErrorCode,
    KafkaError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.steps import listed

_Alteration = ScramCredentialDeletion | ScramCredentialUpsertion

#: Fewer iterations make guessing too cheap, more load servers and clients too much (CVE-2026-10143).
MIN_ITERATIONS: Final = 4_096
MAX_ITERATIONS: Final = 16_384


class Mechanism(NamedTuple):
    """One SCRAM mechanism; `number` is that of requests and records."""

    number: int
    name: str
    hash_name: str


MECHANISMS: Final[Mapping[int, Mechanism]] = {
    each.number: each
    for each in (Mechanism(1, "SCRAM-SHA-256", "sha256"), Mechanism(2, "SCRAM-SHA-512", "sha512"))
}


def salted_password(mechanism: Mechanism, password: bytes, *, salt: bytes, iterations: int) -> bytes:
    """The password as clients send it: Hi() of RFC 5802. Cost: `iterations` hashes."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)


def credential(
    user: str, mechanism: Mechanism, *, salt: bytes, salted: bytes, iterations: int
) -> UserScramCredentialRecord:
    """The record of a user's credential: StoredKey and ServerKey of RFC 5802, section 3."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return UserScramCredentialRecord(
        name=user,
        mechanism=mechanism.number,
        salt=salt,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.hash_name),
        iterations=iterations,
    )


@in_steps
def alter_credentials(
    state: ClusterState, request: AlterUserScramCredentialsRequest
) -> Steps[AlterUserScramCredentialsResponse]:
    """Set and delete credentials; each user's alteration succeeds or fails alone.

    Raises PolicyViolation for too many alterations.
    """
    accepted: dict[str, _Alteration] = {}
    errors: dict[str, KafkaError] = {}
    parts = state.new_parts()
    parts += [accepted, errors]
    for is_next_step, alteration in by_steps(chain[_Alteration](request.deletions, request.upsertions)):
        if is_next_step:
            yield
        user = alteration.name
        if user in errors:
            continue
        try:
            if accepted.pop(user, None) is not None:
                raise DuplicateResource("A user credential cannot be altered twice in the same request")
            _check(state, alteration)
        except KafkaError as error:
            errors[user] = error
        else:
            accepted[user] = alteration
    check_record_count(len(accepted))
    outcomes: Iterable[tuple[str, KafkaError | None]] = chain(
        ((user, None) for user in accepted), errors.items()
    )
    results = yield from listed(_result(*outcome) for outcome in outcomes)
    records = yield from listed(map(_record, accepted.values()))
    return Result(response=AlterUserScramCredentialsResponse(results=results), records=records)


def _check(state: ClusterState, alteration: _Alteration) -> None:
    if state.metadata_version < SCRAM_3_5_IV2:
        raise UnsupportedVersion("The current metadata.version does not support SCRAM")
    if not alteration.name:
        raise UnacceptableCredential("Username must not be empty")
    if alteration.mechanism not in MECHANISMS:
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    if isinstance(alteration, ScramCredentialDeletion):
        if (alteration.name, alteration.mechanism) not in state.image.scram_credentials:
            raise ResourceNotFound("Attempt to delete a user credential that does not exist")
        return
    if alteration.iterations < MIN_ITERATIONS:
        raise UnacceptableCredential("Too few iterations")
    if alteration.iterations > MAX_ITERATIONS:
        raise UnacceptableCredential("Too many iterations")
    if not alteration.salted_password:
        # An HMAC with an empty key: Java does not support it, and Kafka fails with UNKNOWN_SERVER_ERROR.
        raise UnacceptableCredential("Salted password must not be empty")


def _record(alteration: _Alteration) -> MetadataRecord:
    if isinstance(alteration, ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=alteration.name, mechanism=alteration.mechanism)
    return credential(
        alteration.name,
        MECHANISMS[alteration.mechanism],
        salt=bytes(alteration.salt),
        salted=bytes(alteration.salted_password),
        iterations=alteration.iterations,
    )


def _result(user: str, error: KafkaError | None) -> AlterUserScramCredentialsResult:
    if error is None:
        return AlterUserScramCredentialsResult(user=user, error_code=ErrorCode.none, error_message=None)
    return AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)
