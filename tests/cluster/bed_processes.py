"""The processes of the test bed: each has a log, is written down by pid and start time, and ended by that record only.

Used by every part of the bed. A pid whose start time is another is another process by now, and is left alone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from tests.patience import patient


class BedError(Exception):
    """The bed cannot do what was asked; the sentence says why and what to look at."""


def start_time(pid: int) -> str | None:
    """When the process began, in the kernel's ticks; None when there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class Processes:
    """Names of running parts, in `processes.json` of the run's folder, so that another process can end them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "processes.json"
        self._writing = threading.Lock()

    def records(self) -> dict[str, dict[str, str]]:
        try:
            return dict(json.loads(self._file.read_text()))
        except FileNotFoundError:
            return {}

    def start(self, name: str, command: list[str], env: dict[str, str] | None = None) -> int:
        """Run it in a session of its own, its output in logs/NAME.log."""
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                cwd=self.folder, env={**os.environ, **(env or {})},
            )  # fmt: skip
        with self._writing:
            self._write({**self.records(), name: {"pid": str(process.pid), "started": start_time(process.pid) or ""}})
        return process.pid

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def pid(self, name: str) -> int | None:
        record = self.records().get(name)
        if record is None or start_time(int(record["pid"])) != record["started"]:
            return None
        return int(record["pid"])

    def running(self) -> list[str]:
        """Names of the recorded processes that have not ended."""
        return [name for name in self.records() if self.pid(name) is not None]

    def check(self, name: str) -> None:
        if self.pid(name) is None:
            raise BedError(f"{name} has ended; the end of {self.log(name)}:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return "(it wrote nothing)"

    def stop(self, names: Iterable[str], within_s: float = 5.0, *, kill: bool = False) -> None:
        """End them: asked first (unless `kill`), killed when they have not gone in time."""
        pids = {name: pid for name in names if (pid := self.pid(name)) is not None}
        end(pids.values(), within_s, kill=kill)
        with self._writing:
            before = self.records()
            after = {name: record for name, record in before.items() if name not in pids}
            if after != before:  # else the folder may be gone, and is not made again
                self._write(after)

    def _write(self, records: dict[str, dict[str, str]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(".new")
        fresh.write_text(json.dumps(records, indent=1))
        fresh.replace(self._file)


def end(pids: Iterable[int], within_s: float = 5.0, *, kill: bool = False) -> None:
    left = {pid: start_time(pid) for pid in pids}
    for sent in [signal.SIGKILL] if kill else [signal.SIGTERM, signal.SIGKILL]:
        for pid, began in left.items():
            if began is not None and start_time(pid) == began:
                _signal(pid, sent)
        deadline = time.monotonic() + within_s
        while (left := _remaining(left)) and time.monotonic() < deadline:
            time.sleep(0.05)


def _remaining(pids: dict[int, str | None]) -> dict[int, str | None]:
    left = {pid: began for pid, began in pids.items() if began is not None and start_time(pid) == began}
    for pid in pids.keys() - left:
        _reap(pid)
    return left


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # another process started it


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def run(
    command: list[str], *, within_s: float = 60.0, text: str | None = None, env: dict[str, str] | None = None
) -> str:
    """Output of a command; BedError with what it said when it fails or has not ended after `patient(within_s)`."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=patient(within_s), check=False,
            env={**os.environ, **(env or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired as slow:
        raise BedError(f"{' '.join(command[:6])} has not ended within {patient(within_s):g} s") from slow
    if done.returncode:
        raise BedError(f"{' '.join(command[:12])}: {(done.stderr or done.stdout).strip()}")
    return done.stdout
