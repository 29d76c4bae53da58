"""A headless Chromium that opens one page, driven by DevTools' protocol over two pipes: no port, no further package."""

import base64
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ottla.bench.components import fetch

_WAIT_S = 60.0
#: What the browser does on its own accord is not the page's.
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)


class PageFailed(Exception):
    """The browser did not do what it was asked to."""


class Browser:
    """One tab. All that the page asks for and all that its script complains about is kept."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ottla-chromium-")
        to_read, self._commands = os.pipe()
        self._answers, to_write = os.pipe()
        # Chromium reads commands from descriptor 3 and writes to 4; a container's root has no sandbox.
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        options = [*_OPTIONS, *sandbox, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, fetch.chromium(), *options],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._received = b""
        self._sent = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Self:
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._commands)
        os.close(self._answers)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._folder.cleanup()

    def open(self, page: Path | str, *, width: int, height: int = 900, is_dark: bool = False) -> None:
        """Load a file or a URL, and wait until it is complete."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageFailed(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until the expression is true."""
        until = time.monotonic() + _WAIT_S
        while not self.evaluate(expression):
            if time.monotonic() > until:
                raise PageFailed(f"never true: {expression}")
            time.sleep(0.05)

    def press(self, key: str, *, text: str = "") -> None:
        """A key, in the element with the focus; `text` is what it types there."""
        for kind, typed in (("keyDown", text), ("keyUp", "")):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=typed)

    def point_at(self, x: float, y: float) -> None:
        """Move the mouse to a point of the visible part."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def accessible_names(self) -> list[tuple[str, str]]:
        """(role, name) of all that assistive software is given."""
        nodes = self._call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **parameters: object) -> Mapping[str, Any]:
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise PageFailed(f"{method}: {answer['error']['message']}")
                result: Mapping[str, Any] = answer["result"]
                return result
            self._note(answer)
        raise PageFailed(f"Chromium ended with {self._process.wait()} at {method}")

    def _messages(self) -> Iterator[Mapping[str, Any]]:
        while True:
            while b"\0" in self._received:
                message, self._received = self._received.split(b"\0", 1)
                yield json.loads(message)
            part = os.read(self._answers, 1 << 20)
            if not part:
                return
            self._received += part

    def _note(self, event: Mapping[str, Any]) -> None:
        match event:
            case {"method": "Network.requestWillBeSent", "params": {"request": {"url": url}}}:
                self.requests.append(url)
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.complaints.append(str(details))
            case {"method": "Log.entryAdded", "params": {"entry": {"text": text}}}:
                self.complaints.append(text)
            case {"method": "Runtime.consoleAPICalled", "params": {"type": kind, "args": args}}:
                self.complaints.append(f"{kind}: {args}")
