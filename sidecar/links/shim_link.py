"""Talks to the shim over its Unix socket: JSON lines, one answer per request, pushes in between.

Promises: it reconnects whenever the connection ends; a shim that does not answer counts as unreachable (a frozen one
still accepts connections); no input raises anything except `ShimUnreachable` from `ask`. Called by `service.py` and the
endpoints. The protocol is `shim.py`'s.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sidecar.protocol import ShimStatus

log = logging.getLogger("sidecar")

SOCKET, STATUS = "shim.sock", {"do": "status"}
ANNOUNCE = "announce"  # written beside the socket by a hook
WITHDRAWN, WITHDRAWN_MOST = "withdrawn:", 400  # in that file, before the reason; at most this many characters of it
ENDED = "the process that had announced that it saves has ended"
MOST_ANNOUNCED = 16 * 1024 * 1024  # bytes, as in `shim.py`
LINE_LIMIT = 256 * 1024  # bytes
PATIENCE_S = 5.0  # for an answer
SILENCE_S = 7.0  # after which the shim is queried; it is heard from at each heartbeat
AGAIN_S, AGAIN_MOST_S = 0.05, 1.0  # pause before reconnecting


class ShimUnreachable(Exception):
    """Raised when the shim does not answer; the argument is a sentence."""


class ShimAnswer(msgspec.Struct):
    """The shim's answer to one request."""

    ok: bool
    status: ShimStatus | None = None  # None: the shim could not even read the request
    error: str = ""
    conflict: bool = False  # the request belongs to an older generation


class _Push(msgspec.Struct):
    """Any line; one with an event is a push."""

    event: str | None = None
    status: ShimStatus | None = None
    at: float | None = None


class ShimLink:
    """Connects to the shim; calls `on_status(status)`, `on_output(at)` and `on_gone()` from the event loop."""

    def __init__(
        self,
        folder: Path,
        on_status: Callable[[ShimStatus], None],
        on_output: Callable[[float | None], None],
        on_gone: Callable[[], None],
    ) -> None:
        self._folder, self._on_status, self._on_output, self._on_gone = folder, on_status, on_output, on_gone
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: deque[asyncio.Future[ShimAnswer | None] | str] = deque()  # or the command that was told

    async def run(self) -> None:
        """Stay connected until cancelled."""
        pause = AGAIN_S
        while True:
            try:
                reader = await self._connect()
                pause = await self._serve(reader)
            except (OSError, ValueError, msgspec.MsgspecError, ShimUnreachable) as error:
                log.debug("the shim is out of reach: %s", error)
            finally:
                self._drop()
            await asyncio.sleep(pause)
            pause = min(AGAIN_MOST_S, 2 * pause)

    async def ask(self, request: dict[str, Any], timeout_s: float = PATIENCE_S) -> ShimAnswer:
        """Send a request; return the answer. Raises `ShimUnreachable` without a connection or a timely answer."""
        if self._writer is None or self._writer.is_closing():
            raise ShimUnreachable("the shim is not running or does not listen; the launch is starting or has ended")
        waiting: asyncio.Future[ShimAnswer | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        self._writer.write(msgspec.json.encode(request) + b"\n")
        try:
            # Shielded: answers come in order, so one that is no longer awaited keeps its place.
            async with asyncio.timeout(timeout_s):
                answer = await asyncio.shield(waiting)
        except TimeoutError:
            raise ShimUnreachable(f"the shim did not answer within {timeout_s:g} s; is it stopped?") from None
        if answer is None:
            raise ShimUnreachable("the shim closed the connection; it is ending")
        return answer

    def tell(self, request: dict[str, Any]) -> None:
        """Send a request without waiting for its answer; log a refusal or a failure to send."""
        if self._writer is None or self._writer.is_closing():
            log.warning("%s was not passed on: the shim is out of reach", request["do"])
            return
        self._waiting.append(request["do"])
        self._writer.write(msgspec.json.encode(request) + b"\n")

    def leave(self) -> None:
        """Close the connection to a shim that is ending. If it does not end, `run` reconnects."""
        if self._writer is not None:
            self._writer.close()

    async def _connect(self) -> asyncio.StreamReader:
        # A socket's path is limited to 108 bytes; a folder's is not.
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            path = f"/proc/self/fd/{folder}/{SOCKET}"
            reader, self._writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
        finally:
            os.close(folder)
        return reader

    async def _serve(self, reader: asyncio.StreamReader) -> float:
        """Handle lines until the connection ends. Return the pause before reconnecting, short after a success."""
        self.tell(STATUS)
        asked = True
        while True:
            try:
                async with asyncio.timeout(PATIENCE_S if asked else SILENCE_S):
                    line = await reader.readline()
            except TimeoutError:
                if asked:
                    raise ShimUnreachable("the shim is silent") from None
                self.tell(STATUS)
                asked = True
                continue
            if not line:
                return AGAIN_S
            asked = False
            self._heard(line)

    def _heard(self, line: bytes) -> None:
        push = msgspec.json.decode(line, type=_Push)
        if push.event == "status" and push.status is not None:
            self._on_status(push.status)
        elif push.event == "output":
            self._on_output(push.at)
        elif push.event is None and self._waiting:
            answer = msgspec.json.decode(line, type=ShimAnswer)
            if answer.status is not None:
                self._on_status(answer.status)
            waiting = self._waiting.popleft()
            if isinstance(waiting, str):
                if not answer.ok:
                    log.warning("the shim refused %s: %s", waiting, answer.error)
            elif not waiting.done():
                waiting.set_result(answer)

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        while self._waiting:
            waiting = self._waiting.popleft()
            if not isinstance(waiting, str) and not waiting.done():
                waiting.set_result(None)
        self._on_gone()


def announced(folder: Path, trainer: int | None = None) -> tuple[bool, str]:
    """Return whether a hook has announced that it saves when asked, and if withdrawn, why.

    Each process of the trainer appends lines `<words> <pid>@<start>` to a plain file; its last one counts. The file is
    untrusted. `trainer`: the process that the shim started; when it is done, all of them are.
    """
    said: dict[str, str] = {}  # process -> its latest words
    for line in _lines(folder / ANNOUNCE):
        words, _, process = line.rpartition(" ")
        if "@" not in process:
            words, process = line, ""
        ended = words == "ended" and process.partition("@")[0] != str(trainer)
        if ended or words not in ("ended", "stopped"):
            said[process] = words
    living = [words for words in said.values() if words != "ended"]
    withdrawn = [words[len(WITHDRAWN) :] for words in living if words.startswith(WITHDRAWN)]
    if withdrawn:
        return False, "".join(one if one.isprintable() else " " for one in withdrawn[-1])[:WITHDRAWN_MOST]
    return bool(living), "" if living or not said else ENDED


def _lines(path: Path) -> list[str]:
    """Return the lines of an announcement; none for a symlink or a pipe."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                return []
            read = os.read(number, MOST_ANNOUNCED)
        finally:
            os.close(number)
    except PermissionError:  # another user's, readable by nobody else
        return ["SIGUSR1"]
    except OSError:
        return []
    if len(read) == MOST_ANNOUNCED:
        read = read[: read.rfind(b"\n") + 1]  # its last line may be cut, and could name another process
    return read.decode("utf-8", "replace").replace("\u00a0", " ").splitlines()
