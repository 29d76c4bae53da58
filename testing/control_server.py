"""The control of a broker over HTTP, on 127.0.0.1: `POST /NAME` with a JSON object, answered by JSON.

    curl --json '{"topic": "orders", "values": ["one"]}' http://127.0.0.1:PORT/produce
    {"offset": 0}

| status | body |
|---|---|
| 200 | the result of the call |
| 400 | {"error": a sentence, "kind": the exception's name}: the call is wrong, or the cluster has refused it |
| 403, 405, 413, 415 | the same, for a request that is no call |
| 500 | the same, for a defect |

The content type has to be application/json: no page in a browser can send that to another origin.
"""

import json
import logging
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Final

from ottla.broker.cluster_client.errors import ClusterError
from ottla.broker.roles.directories import CannotStart
from ottla.protocol.errors import KafkaError
from ottla.testing.control_calls import ControlCalls, InvalidCall, Json
from ottla.testing.faults import FaultNeverStruck

logger: Final = logging.getLogger(__name__)

_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
#: The most digits of a Content-Length that are read: Python refuses to convert 4,300.
_MAX_DIGITS: Final = 20
#: How long a connection may be silent.
_SILENCE_S: Final = 60.0
#: What a caller has to know, in a sentence, and no defect.
_REFUSALS: Final = (
    InvalidCall, ClusterError, FaultNeverStruck, CannotStart, KafkaError, OSError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class ControlServer:
    """Serves the calls of a broker from its creation until `close`."""

    def __init__(self, calls: ControlCalls, *, port: int = 0) -> None:
        """Listen at this port of 127.0.0.1; 0: a free one. Raises OSError."""

        class Handler(_Handler):
            control = calls

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = Thread(
            target=self._server.serve_forever, args=(0.05,), name="ottla-control", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Accept no further connection."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    control: ControlCalls
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE_S

    def do_POST(self) -> None:
        """Carry out a call."""
        if not self._is_local():
            return
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or len(size) > _MAX_DIGITS or int(size) > _MAX_BODY_BYTES:
            self.close_connection = True
            found = size if len(size) <= _MAX_DIGITS else f"{size[:_MAX_DIGITS]}..."
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"A call has a Content-Length of at most {_MAX_BODY_BYTES} bytes, not {found or 'none'}.",
            )
            return
        body = self.rfile.read(int(size))
        if self.headers.get_content_type() != "application/json":
            self._refuse(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "The content type of a call is application/json: curl --json '{...}'.",
            )
            return
        try:
            arguments = json.loads(body or b"{}")
        except (ValueError, RecursionError) as error:  # nested too deeply: RecursionError
            self._refuse(HTTPStatus.BAD_REQUEST, f"The body is no JSON: {error}.")
            return
        if not isinstance(arguments, dict):
            self._refuse(HTTPStatus.BAD_REQUEST, "The body is no JSON object with the arguments of the call.")
            return
        self._call(self.path.removeprefix("/"), arguments)

    def do_GET(self) -> None:
        """Answer what the broker is, at `/` only."""
        if not self._is_local():
            return
        if self.path == "/":
            self._call("status", {})
        else:
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "Calls are made by POST; GET / is the status.")

    def log_message(self, format: str, *args: object) -> None:
        """Log a request for those who look for it."""
        logger.debug(format, *args)

    def _is_local(self) -> bool:
        """Whether the request names this machine; else it is refused: a page may have a name that leads here."""
        host = self.headers.get("Host", "127.0.0.1").rpartition(":")[0] or self.headers.get("Host", "")
        if host in ("127.0.0.1", "localhost"):
            return True
        self.close_connection = True
        self._refuse(HTTPStatus.FORBIDDEN, f"Calls are for 127.0.0.1 or localhost, not for {host!r}.")
        return False

    def _call(self, name: str, arguments: dict[str, Json]) -> None:
        try:
            result = self.control.call(name, arguments)
        except _REFUSALS as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error) or type(error).__name__, type(error).__name__)
        except Exception as error:
            logger.exception("the call %s has failed", name)
            text = f"{type(error).__name__}: {error}"
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, text, type(error).__name__)
        else:
            self._answer(HTTPStatus.OK, result)

    def _refuse(self, status: HTTPStatus, sentence: str, kind: str = "InvalidCall") -> None:
        self._answer(status, {"error": sentence, "kind": kind})

    def _answer(self, status: HTTPStatus, result: Json) -> None:
        body = json.dumps(result).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
