"""One module for each API, generated: see `ottla.protocol.generate`. Found here by API key, imported on first use."""

import importlib
from functools import cache

from ottla.protocol.api_keys import ApiKey
from ottla.protocol.schema import Request, Response


@cache
def request_class(api_key: int) -> type[Request]:
    """The class of `api_key`'s requests; ValueError if there is no such API."""
    found: type[Request] = _find(api_key, "Request")
    return found


@cache
def response_class(api_key: int) -> type[Response]:
    """The class of `api_key`'s responses; ValueError if there is no such API."""
    found: type[Response] = _find(api_key, "Response")
    return found


def _find(api_key: int, suffix: str) -> type:
    name = ApiKey(api_key).name.lower()
    module = importlib.import_module(f"{__name__}.{name}")
    found: type = getattr(module, name.title().replace("_", "") + suffix)
    return found
