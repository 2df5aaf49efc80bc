"""Starts a real shim on a folder, talks to it over its socket, and leaves no process behind.

Every process below such a shim carries a mark in its environment, so that a test can ask what is left of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.patience import eventually, patient

SHIM = Path(__file__).resolve().parents[2] / "sidecar" / "shim.py"
TRAINERS = Path(__file__).resolve().parent / "trainers"
WITHIN_S = patient(15.0)


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def trainer(name: str, *arguments: str) -> list[str]:
    """The command of a fake trainer."""
    return [sys.executable, str(TRAINERS / f"{name}.py"), *arguments]


def marked(mark: str) -> list[int]:
    """Living processes with this text in their environment (a zombie has none)."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


class ShimClient:
    """One connection. `events` holds what was pushed, oldest first."""

    def __init__(self, folder: Path) -> None:
        home = os.open(folder, os.O_RDONLY)
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.connect(f"/proc/self/fd/{home}/shim.sock")
        finally:
            os.close(home)
        self.socket.settimeout(WITHIN_S)
        self.inbox = b""
        self.events: list[dict[str, Any]] = []

    def receive(self) -> dict[str, Any]:
        """The next line, of whatever kind; EOFError when the shim closed."""
        while b"\n" not in self.inbox:
            piece = self.socket.recv(65536)
            if not piece:
                raise EOFError("the shim closed the connection")
            self.inbox += piece
        line, _, self.inbox = self.inbox.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if "event" in message:
            self.events.append(message)
        return message

    def send_bytes(self, line: bytes) -> dict[str, Any]:
        """Sends one raw line and returns its answer."""
        self.socket.sendall(line + b"\n")
        while "ok" not in (message := self.receive()):
            pass
        return message

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        return self.send_bytes(json.dumps({"do": do, **fields}).encode())

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("status")["status"]
        return found

    def start(self, generation: int, gpu_ids: list[str] | None = None, **fields: Any) -> dict[str, Any]:
        fields = {"command_id": f"j:{generation}:start", "checkpoint": None, "lease_deadline": 0, **fields}
        return self.ask("start", generation=generation, gpu_ids=gpu_ids or [], **fields)

    def stop(self, generation: int, grace_s: float = 10.0, **fields: Any) -> dict[str, Any]:
        fields = {"command_id": f"j:{generation}:stop", **fields}
        return self.ask("stop", generation=generation, grace_s=grace_s, **fields)

    def wait(self, trainer: str) -> dict[str, Any]:
        """The status, once the trainer is in that state."""

        def there() -> dict[str, Any] | None:
            status = self.status()
            return status if status["trainer"] == trainer else None

        found = eventually(there, f"trainer {trainer}")
        assert found is not None
        return found

    def close(self) -> None:
        self.socket.close()


class ShimProcess:
    """A shim that the test started, in the foreground."""

    def __init__(self, folder: Path, python: str, launch: dict[str, Any], prefix: list[str]) -> None:
        self.folder, self.output, self.mark = folder, folder / "output.log", f"mark-{uuid.uuid4().hex}"
        self.command = [python, "-I", "-S", str(SHIM), "--folder", str(folder)]
        folder.mkdir(parents=True, exist_ok=True)
        env = {"RESHAPE_CHECKPOINTS": str(folder), "RESHAPE_TEST_MARK": self.mark, **launch.pop("env", {})}
        fixed = {"job_id": "j", "uid": "u", "launch": 1, "workdir": None, "sidecar": None, "tee": False}
        times = {"lease_s": 300, "grace_s": 5, "kill_s": 5, "visible_gpus": None}
        document = {**fixed, **times, "output": str(self.output), "env": env, **launch}
        (folder / "launch.json").write_text(json.dumps(document))
        with (folder / "stderr").open("ab") as stderr:
            self.process = subprocess.Popen(
                [*prefix, *self.command],
                stdout=subprocess.PIPE,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "RESHAPE_TEST_MARK": self.mark},
            )
        self.clients: list[ShimClient] = []
        eventually(self._listens, "the shim listens")

    def _listens(self) -> bool:
        assert self.process.poll() is None, (self.folder / "stderr").read_text()
        with contextlib.suppress(OSError):
            self.connect()
        return bool(self.clients)

    def connect(self) -> ShimClient:
        self.clients.append(ShimClient(self.folder))
        return self.clients[-1]

    @property
    def client(self) -> ShimClient:
        return self.clients[0]

    def left(self) -> list[int]:
        """Living processes of this shim, itself not counted."""
        return [pid for pid in marked(self.mark) if pid != self.process.pid]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.process.terminate()
        try:
            self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        for pid in marked(self.mark):  # only where a promise was broken, or the test killed the shim
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def running_shim(
    folder: Path, command: list[str], python: str = sys.executable, prefix: list[str] | None = None, **launch: Any
) -> Iterator[ShimProcess]:
    """A shim on `folder`; `launch` overrides fields of launch.json."""
    shim = ShimProcess(folder, python, {"command": command, **launch}, prefix or [])
    try:
        yield shim
    finally:
        shim.close()
