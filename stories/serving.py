"""`ottla play --serve`: the site of the stories on this machine, where texts can be edited and played.

| path | answer |
|---|---|
| `/`, `/play.js`, ... | the player's files |
| `/traces/index.js` | the index, which names `/run` |
| `/traces/ROOM/NAME.js`, `.json` | a story, which is played when it is first asked for |
| `POST /run` | `{"name": "ROOM/NAME", "text": "..."}`: its trace, or 422 with `{"line": 7, "message": "..."}` |

The server listens on 127.0.0.1 only. It refuses other names of its own in the Host header, so that a page of
another site cannot reach it by a name that suddenly resolves to 127.0.0.1 (DNS rebinding), and requests of other
origins. Runs are isolated (`isolation`); at most `_MAX_RUNS` at a time.
"""

import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock
from typing import Any, Final, NamedTuple

from ottla.stories import site
from ottla.stories.catalog import UnknownStory
from ottla.stories.isolation import Isolation
from ottla.stories.script import StoryError
from ottla.stories.traces import index

_logger = logging.getLogger(__name__)

ADDRESS: Final = "127.0.0.1"
#: Where a text is posted.
RUN: Final = "run"
_MAX_RUNS: Final = 2
#: A text in JSON: each character may be escaped.
_MAX_BODY_BYTES: Final = 512 * 1024
#: The most digits of a Content-Length that are read: Python refuses to convert 4,300.
_MAX_DIGITS: Final = 20
#: A client that sends nothing for so long is disconnected.
_IDLE_S: Final = 30
_JSON: Final = "application/json"
_SCRIPT: Final = "text/javascript; charset=utf-8"
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Answer(NamedTuple):
    """The response to a request."""

    status: HTTPStatus
    content_type: str
    body: bytes


class StoryServer(ThreadingHTTPServer):
    """Serves the site on 127.0.0.1; port 0 is any free one."""

    daemon_threads = True

    def __init__(self, port: int, isolation: Isolation | None = None) -> None:
        super().__init__((ADDRESS, port), _Handler)
        self._isolation = isolation or Isolation()
        self._files: dict[str, Answer] = {}
        for name, content_type, data in site.player_files():
            self._files[name] = Answer(HTTPStatus.OK, content_type, data)
        for name, data in site.index_files(index(run=RUN), with_json=True):
            self._files[name] = Answer(HTTPStatus.OK, _type_of(name), data)
        #: At most the traces of all stories.
        self._traces: dict[str, bytes] = {}
        self._playing = Lock()
        self._runs = BoundedSemaphore(_MAX_RUNS)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    def is_own(self, host: str | None, origin: str | None) -> bool:
        """Whether a request names this server, and no page of another origin sends it."""
        port = self.server_address[1]
        own = {f"{name}:{port}" for name in (ADDRESS, "localhost")}
        return host in own and (origin is None or origin in {f"http://{name}" for name in own})

    def get(self, path: str) -> Answer:
        """Return a file of the player, the index, or a trace."""
        name = path.partition("?")[0].lstrip("/") or "index.html"
        if name in self._files:
            return self._files[name]
        story = name.removeprefix("traces/").removesuffix(".json").removesuffix(".js")
        if name not in (f"traces/{story}.js", f"traces/{story}.json"):
            return _error(HTTPStatus.NOT_FOUND, f"There is no /{name}.")
        try:
            with self._playing:
                if story not in self._traces:
                    self._traces[story] = self._isolation.trace(story)
        except UnknownStory as error:
            return _error(HTTPStatus.NOT_FOUND, str(error))
        except StoryError as error:
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        data = self._traces[story]
        return Answer(
            HTTPStatus.OK, _type_of(name), data if name.endswith(".json") else site.assigned(story, data)
        )

    def run(self, body: bytes) -> Answer:
        """Play a text that was posted."""
        try:
            request = json.loads(body)
            name, text = request["name"], request["text"]
            if not (isinstance(name, str) and isinstance(text, str)):
                raise TypeError("name and text are strings")
        except (
            ValueError,
            TypeError,
            KeyError,
            RecursionError,
        ) as error:  # nested too deeply: RecursionError
            return _error(
                HTTPStatus.BAD_REQUEST, f'The body is not {{"name": "...", "text": "..."}}: {error}'
            )
        if not self._runs.acquire(blocking=False):
            return _error(HTTPStatus.SERVICE_UNAVAILABLE, f"{_MAX_RUNS} stories are played at this moment.")
        try:
            return Answer(HTTPStatus.OK, _JSON, self._isolation.run(name, text.replace("\r\n", "\n")))
        except UnknownStory as error:
            return _error(HTTPStatus.NOT_FOUND, str(error))
        except StoryError as error:
            return _json(HTTPStatus.UNPROCESSABLE_ENTITY, {"line": error.line, "message": error.message})
        finally:
            self._runs.release()


class _Handler(BaseHTTPRequestHandler):
    server: StoryServer
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def do_GET(self) -> None:
        if self._is_refused():
            return
        self._answer(self.server.get(self.path))

    def do_POST(self) -> None:
        if self._is_refused():
            return
        length = self.headers.get("Content-Length", "")
        if self.path != f"/{RUN}":
            self._refuse(HTTPStatus.NOT_FOUND, f"Texts are posted to /{RUN}.")
        elif self.headers.get_content_type() != _JSON:
            self._refuse(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"The content type is not {_JSON}.")
        elif not length.isdecimal():
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "Content-Length is missing.")
        elif len(length) > _MAX_DIGITS or int(length) > _MAX_BODY_BYTES:
            self._refuse(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"At most {_MAX_BODY_BYTES} bytes are accepted."
            )
        else:
            self._answer(self.server.run(self.rfile.read(int(length))))

    def _is_refused(self) -> bool:
        if self.server.is_own(self.headers.get("Host"), self.headers.get("Origin")):
            return False
        self._refuse(HTTPStatus.FORBIDDEN, f"This server is {self.server.url}, and serves its own page only.")
        return True

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self.close_connection = True  # a body, if there is one, is not read
        self._answer(_error(status, message))

    def _answer(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        _logger.debug(format, *args)


def _type_of(name: str) -> str:
    return _JSON if name.endswith(".json") else _SCRIPT


def _error(status: HTTPStatus, message: str) -> Answer:
    return _json(status, {"message": message})


def _json(status: HTTPStatus, value: object) -> Answer:
    return Answer(status, _JSON, json.dumps(value).encode())
