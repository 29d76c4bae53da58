"""The checked-in messages are what kio's schema says."""

from ottla.protocol.api_keys import KAFKA_VERSIONS, ApiKey
from ottla.protocol.generate import ERROR_CODES, MESSAGES, error_codes_source, sources
from ottla.protocol.messages import request_class, response_class


def test_checked_in_messages_are_fresh():
    """If this fails: `python -m ottla.protocol.generate`."""
    on_disk = {path.stem: path.read_text() for path in MESSAGES.glob("*.py") if path.stem != "__init__"}
    assert on_disk == sources()
    assert ERROR_CODES.read_text() == error_codes_source()


def test_every_api_has_its_classes():
    for key, versions in KAFKA_VERSIONS.items():
        for cls in (request_class(key), response_class(key)):
            assert cls.__api_key__ == key
            assert versions.start == cls.__versions__.first
            # Kafka hides the last version of InitProducerId: it is not stable.
            hidden = 1 if key is ApiKey.INIT_PRODUCER_ID else 0
            assert versions.stop - 1 == cls.__versions__.last - hidden
            cls()
