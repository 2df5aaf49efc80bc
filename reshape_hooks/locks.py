"""Records which process used which GPU when, independently of the coordinator: the oracle of tests and demo.

Promises that two processes on one GPU at once leave evidence, even if one is killed with SIGKILL. The example trainings
call `GpuLocks`; the judge of a run calls `violations`, or runs `python -m reshape_hooks.locks FOLDER`. Imports only
`plain` and the standard library.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reshape_hooks.plain import Environment, boottime

if TYPE_CHECKING:  # Python 3.8 cannot subscript it
    Line = dict[str, Any]  # gpu, job, generation, pid, boottime_in, boottime_out, step


class GpuLocks:
    """One `flock` per GPU, held while the process lives; does nothing without a folder.

    A refused lock is written to `violations` and training continues, so that the second user shows. Each step adds a
    line per GPU to this process's log.
    """

    def __init__(self, here: Environment) -> None:
        self.who = {"job": here.job_id, "generation": here.generation, "pid": os.getpid()}
        self.gpus = here.gpus if here.locks else ()
        self.since = boottime()
        self.files: list[Any] = []
        if here.locks:
            self.folder = Path(here.locks)
            self.folder.mkdir(parents=True, exist_ok=True)
            self.log = self._append(f"{plain_name(here.job_id)}-g{here.generation}-{os.getpid()}.jsonl")
        for gpu in self.gpus:
            self._take(gpu)

    def used(self, step: int) -> None:
        """Record that the GPUs were in use from the last call until now, for this step."""
        now = boottime()
        for gpu in self.gpus:
            line = {"gpu": gpu, **self.who, "boottime_in": self.since, "boottime_out": now, "step": step}
            with contextlib.suppress(OSError):  # a full disk must not end the training; its judge then misses the step
                self.log.write(_written(line))
        self.since = now

    def close(self) -> None:
        """Release the GPUs; the end of the process does the same."""
        for file in self.files:
            file.close()
        self.files, self.gpus = [], ()

    def _take(self, gpu: str) -> None:
        try:
            fcntl.flock(self._append(f"{plain_name(gpu)}.lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._append("violations").write(_written({"gpu": gpu, **self.who, "boottime_in": self.since}))

    def _append(self, name: str) -> Any:
        file = (self.folder / name).open("ab", buffering=0)
        self.files.append(file)
        return file


def _written(line: Line) -> bytes:
    """Return a line as written: after a newline, since a full disk may have cut off the line before."""
    return b"\n" + json.dumps(line).encode()


def violations(folder: str | os.PathLike[str]) -> list[Line]:
    """Return refused locks, and pairs of processes whose times on one GPU overlap. Empty: each GPU had one user."""
    refused = [{"kind": "refused lock", **line} for line in _lines(Path(folder) / "violations")]
    return refused + _overlaps([line for path in sorted(Path(folder).glob("*.jsonl")) for line in _lines(path)])


def uses(folder: str | os.PathLike[str], job_id: str) -> list[Line]:
    """Return every step of a job on every GPU, in chronological order."""
    mine = f"{glob.escape(plain_name(job_id))}-g*.jsonl"  # other jobs' files would only cost time
    found = [line for path in Path(folder).glob(mine) for line in _lines(path) if line["job"] == job_id]
    return sorted(found, key=lambda line: (line["boottime_out"], line["gpu"]))


def steps(folder: str | os.PathLike[str], job_id: str) -> list[int]:
    """Return a job's steps in the order in which they were done, each once per process."""
    done = dict.fromkeys((line["generation"], line["pid"], line["step"]) for line in uses(folder, job_id))
    return [step for (_, _, step) in done]


def _overlaps(lines: list[Line]) -> list[Line]:
    found: dict[tuple[str, ...], Line] = {}
    latest: dict[str, dict[str, Line]] = {}  # GPU -> process -> its latest use, unless that had ended
    for use in sorted(lines, key=lambda line: float(line["boottime_in"])):
        owner = f"{use['job']} g{use['generation']} pid {use['pid']}"
        users = latest.setdefault(use["gpu"], {})
        for other, before in list(users.items()):
            if before["boottime_out"] <= use["boottime_in"]:
                del users[other]  # all later uses begin later, too
            elif other != owner:
                pair = (use["gpu"], *sorted([owner, other]))
                found.setdefault(pair, {"kind": "overlap", "gpu": use["gpu"], "first": before, "second": use})
        users[owner] = use
    return list(found.values())


def _lines(path: Path) -> list[Line]:
    """Return the JSON lines of a file, without one cut off by a kill or a full disk."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def plain_name(text: str) -> str:
    """Return a file name for `text`, different for different texts."""
    return "".join(c if c.isascii() and (c.isalnum() or c in ".-") else f"_{ord(c):x}_" for c in text)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(violations(sys.argv[1]), indent=1) + "\n")
