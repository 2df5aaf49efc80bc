"""Reports which of a training's own code files have changed since its trainer started.

A trainer that is stopped and started again runs whatever its files then contain. Watched are the scripts named by its
command and the modules beside them that they import, as far as their text shows. Promises: a file saved without a
change does not count, nor does one that no script imports; what cannot be read at the start is not watched. Blocks as
long as the file system does, so it is called in a thread. Called by `service.py`.

In a pod, only a process in the trainer's container sees those files: the shim starts this file there as `python3 -I -S
source_watch.py LISTENER`, and the sidecar asks it. Standard library, Python 3.8.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SOCKET = "source.sock"  # in the launch's folder; `shim.py` names it, too
# The trainer's start time, folder and command. Not passed as arguments: ending the script by name must not end us.
TRAINER = "RESHAPE_TRAINER"  # `shim.py` names it, too
ANSWER_S = 2.0  # for either side of an exchange

MOST_FILES, MOST_BYTES = 500, 1 << 20
LATE_S = 5.0  # after this delay, a trainer's files may have changed before we first read them
SCRIPTS = (".py", ".sh", ".bash")
IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([^\n#]+))", re.MULTILINE
)


@dataclass
class _File:
    digest: bytes | None  # of its content at the start; None: it changed before we first read it
    stat: tuple[int, int] | None  # last seen mtime and size
    differs: bool


class SourceWatch:
    """Thread-safe."""

    def __init__(self, command: Sequence[str], workdir: str, before: Path | None = None) -> None:
        """`before`: a file written before the trainer started; files newer than it may have changed since."""
        self._before = before
        self._command, self._home = [str(word) for word in command], Path(workdir or ".")
        self._lock = threading.Lock()
        self._files: dict[Path, _File] = {}

    def begin(self, ago_s: float) -> None:
        """Take the current files as those of a trainer started `ago_s` seconds ago."""
        known = _stat(self._before) if self._before and ago_s > LATE_S else None
        since_ns = known[0] if known else float("inf")
        found: dict[Path, _File] = {}
        todo = list(self._scripts())
        while todo and len(found) < MOST_FILES:
            path = todo.pop()
            if path in found or (content := _read(path)) is None or (stat := _stat(path)) is None:
                continue
            late = stat[0] > since_ns
            found[path] = _File(None if late else hashlib.sha256(content).digest(), stat, late)
            todo += _imported(path, content)
        with self._lock:
            self._files = found

    def edited(self) -> list[str]:
        """Return the names of the files that differ now, in order."""
        with self._lock:
            for path, file in self._files.items():
                if (stat := _stat(path)) != file.stat:
                    content = _read(path)
                    same = content is not None and hashlib.sha256(content).digest() == file.digest
                    file.stat, file.differs = stat, not same
            return sorted(path.name for path, file in self._files.items() if file.differs)

    def _scripts(self) -> Iterator[Path]:
        for before, word in zip(["", *self._command], self._command):
            if word.endswith(SCRIPTS):
                yield self._home / word
            elif before == "-m":
                yield from _places(self._home, word)
                yield self._home.joinpath(*word.split("."), "__main__.py")


class PodSourceWatch:
    """Asks the process that runs `serve` in the trainer's container, one per trainer."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the launch's, which both containers share."""
        self._folder = folder

    def begin(self, ago_s: float) -> None:
        """Do nothing: it began with the trainer."""

    def edited(self) -> list[str]:
        """Return the names of the files that differ now, in order.

        Raises OSError or ValueError without a timely answer.
        """
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)  # a socket's path is limited to 108 bytes
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(ANSWER_S)
                peer.connect(f"/proc/self/fd/{folder}/{SOCKET}")
                with peer.makefile("rb") as answer:
                    return [str(name) for name in json.loads(answer.read(MOST_BYTES))]
        finally:
            os.close(folder)


def serve(listener: socket.socket, watch: SourceWatch, since: float, shim: int) -> None:
    """Answer each connection with the names of the files that differ, until the pipe `shim` closes.

    `since`: when the trainer started, CLOCK_BOOTTIME.
    """
    watch.begin(time.clock_gettime(time.CLOCK_BOOTTIME) - since)
    while shim not in select.select([listener.fileno(), shim], [], [])[0]:
        with suppress(OSError):  # the caller is gone
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(ANSWER_S)
                peer.sendall(json.dumps(watch.edited()).encode())


def _imported(path: Path, content: bytes) -> Iterator[Path]:
    """Yield the files beside a script that it may import."""
    for dots, name, names, plain in IMPORT.findall(content) if path.suffix == ".py" else ():
        folder = path.parents[len(dots) - 1] if 0 < len(dots) <= len(path.parents) else path.parent
        for root in (folder,) if dots else (folder, *list(path.parents)[1:3]):
            for module in re.findall(r"[\w.]+", re.sub(r"\bas\s+\w+", "", plain.decode("utf-8", "replace"))):
                yield from _places(root, module)
            base = name.decode("utf-8", "replace")
            if not plain:
                yield from _places(root, base)
                for one in re.findall(r"\w+", re.sub(r"\bas\s+\w+", "", names.decode("utf-8", "replace"))):
                    yield from _places(root, f"{base}.{one}" if base else one)


def _places(root: Path, module: str) -> Iterator[Path]:
    """Yield where a module and its packages would be below a folder."""
    parts = [part for part in module.split(".") if part]
    for count in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:count])
        yield place.with_suffix(".py")
        yield place / "__init__.py"


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError):
        return None
    return content if len(content) <= MOST_BYTES else None


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size


if __name__ == "__main__":
    begun, home, *words = json.loads(os.environ[TRAINER])
    pod_watch = SourceWatch(words, home, before=Path(SOCKET))  # which the shim made as it started the trainer
    serve(socket.socket(fileno=int(sys.argv[1])), pod_watch, float(begun), sys.stdin.fileno())
