"""The sentences of errors are complete."""

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.codec import decode_response, encode_response
from ottla.protocol.errors import MAX_SENTENCE, InvalidRequest, bounded
from ottla.protocol.messages.update_features import UpdateFeaturesRequest
from ottla.protocol.refusals import refuse

#: The longest name that a request can carry.
NAME = "é" * 16_383


def test_a_sentence_that_quotes_too_much_loses_its_middle():
    assert bounded("short") == "short"
    sentence = bounded(f"Name {NAME} is too long.")
    assert sentence.startswith("Name é")
    assert sentence.endswith("é is too long.")
    assert len(sentence) <= MAX_SENTENCE
    assert str(InvalidRequest(NAME)) == InvalidRequest(NAME).message == bounded(NAME)


def test_an_error_without_a_sentence_has_its_codes_name():
    assert (InvalidRequest().message, str(InvalidRequest())) == (None, "invalid_request")


def test_a_name_of_the_longest_kind_is_refused_in_a_response_that_can_be_sent():
    response = refuse(UpdateFeaturesRequest(), InvalidRequest(f"Feature {NAME} not found."))
    sent = encode_response(ApiKey.UPDATE_FEATURES, 2, response)
    assert NAME[:1_000] in decode_response(ApiKey.UPDATE_FEATURES, 2, bytes(sent)).error_message
