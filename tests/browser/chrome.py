"""A headless Chromium, driven by the Chrome DevTools protocol over a websocket. Not a test.

Promises: what pages report (errors, refused loads, failed requests) is kept in `complaints`; the browser ends with the
block, by its recorded pid.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tornado.websocket import WebSocketClientConnection, websocket_connect

from tests.patience import eventually, patient

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--disable-extensions", "--disable-default-apps", "--remote-debugging-port=0",
)  # fmt: skip
WIDE, PHONE = (1280, 860, False), (390, 844, True)
TABLET, LARGE = (768, 1024, False), (1920, 1080, False)
LARGEST = 64 * 1024 * 1024  # bytes of one answer, as of a screenshot

NAVIGATED = -32000  # the code of an answer from a page that has just been left

View = dict[str, Any]


class Navigated(Exception):
    """The page was left while it was asked."""


def program() -> str | None:
    """The browser of this machine, or the one that RESHAPE_CHROMIUM names; None if there is none."""
    return os.environ.get("RESHAPE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Chrome:
    """One tab. Its calls may come from one thread; the websocket lives in another."""

    def __init__(self, address: str) -> None:
        self.complaints: list[str] = []
        self._answers: dict[int, View] = {}
        self._ids = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._socket: WebSocketClientConnection = self._run(lambda: self._connect(address))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self("enable", domain)
        # CSS and script must be read anew by each test, whatever an earlier one has kept.
        self("setCacheDisabled", "Network", cacheDisabled=True)

    def __call__(self, method: str, domain: str = "Page", **given: Any) -> View:
        """Send a command and return its result. AssertionError if the browser refuses it."""
        number = next(self._ids)
        message = json.dumps({"id": number, "method": f"{domain}.{method}", "params": given})
        self._run(lambda: self._socket.write_message(message))
        answer = eventually(lambda: self._answers.pop(number, None), f"{domain}.{method}")
        if answer.get("error", {}).get("code") == NAVIGATED:
            raise Navigated
        assert "error" not in answer, answer
        result: View = answer["result"]
        return result

    def open(self, address: str) -> None:
        """Go there, and wait until the page is loaded."""
        self("evaluate", "Runtime", expression="window.left = true")
        failed = self("navigate", url=address).get("errorText")
        assert not failed, f"{address}: {failed}"
        self.until("!window.left && document.readyState === 'complete'")

    def do(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self("evaluate", "Runtime", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, script: str) -> Any:
        return eventually(lambda: self._quietly(script), script, 30)

    def _quietly(self, script: str) -> Any:
        """The same; None while one page gives way to the next."""
        try:
            answer = self("evaluate", "Runtime", expression=script, returnByValue=True)
        except Navigated:
            return None
        return None if "exceptionDetails" in answer else answer["result"].get("value")

    def text(self) -> str:
        """What the page shows, as a reader sees it."""
        return str(self.do("document.body.innerText"))

    def tree(self) -> list[View]:
        """Role and name of all that a screen reader would tell of."""
        nodes = self("getFullAXTree", "Accessibility")["nodes"]
        return [
            {"role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def press(self, key: str, code: int = 0) -> None:
        """One key, such as Tab or Enter."""
        about: View = {"key": key, "code": key, "windowsVirtualKeyCode": {"Tab": 9, "Enter": 13}.get(key, code)}
        self("dispatchKeyEvent", "Input", type="keyDown", text="\r" if key == "Enter" else "", **about)
        self("dispatchKeyEvent", "Input", type="keyUp", **about)

    def look(self, dark: bool, size: tuple[int, int, bool]) -> None:
        """Show pages dark or light, on a screen of this width and height, by touch or not."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self("setEmulatedMedia", "Emulation", features=scheme)
        width, height, touch = size
        self("setDeviceMetricsOverride", "Emulation", width=width, height=height, deviceScaleFactor=1, mobile=touch)

    def screenshot(self, file: Path) -> None:
        """The whole page, to its end, as PNG."""
        size = self("getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        picture = self("captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(picture))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._socket.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _connect(self, address: str) -> WebSocketClientConnection:
        return await websocket_connect(address, on_message_callback=self._heard, max_message_size=LARGEST)

    def _run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def done() -> Any:
            return await work()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(patient(60))

    def _heard(self, raw: str | bytes | None) -> None:
        message: View = json.loads(raw) if raw else {}
        if "id" in message:
            self._answers[message["id"]] = message
        elif complaint := _complaint(message.get("method", ""), message.get("params", {})):
            self.complaints.append(complaint)


def _complaint(method: str, params: View) -> str:
    """What a page reports that should not be; empty if all is well."""
    match method:
        case "Runtime.exceptionThrown":
            return str(params["exceptionDetails"])
        case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
            return str(params["args"])
        case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
            return str(params["entry"])
    return ""


@contextmanager
def chrome() -> Iterator[Chrome]:
    """A fresh browser with a profile of its own."""
    found = program()
    assert found, "no Chromium was found: install one, or name it in RESHAPE_CHROMIUM"
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        log = (Path(profile) / "log").open("wb")
        command = [found, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            tab = Chrome(_tab(Path(profile), lambda: process.poll() is None))
            try:
                yield tab
            finally:
                tab.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # the group that it was started in: its helpers, too
            process.wait()
            log.close()


def _tab(profile: Path, alive: Callable[[], bool]) -> str:
    """The websocket's address of the only tab."""

    def port() -> int | None:
        assert alive(), (profile / "log").read_text()[-2000:]
        file = profile / "DevToolsActivePort"
        return int(file.read_text().split()[0]) if file.exists() and file.read_text() else None

    number = eventually(port, "the browser starts", 60)
    with urllib.request.urlopen(f"http://127.0.0.1:{number}/json/list", timeout=patient(20)) as answer:
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
