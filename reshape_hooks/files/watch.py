"""Knows which files this process opens for writing and which folders it creates.

Promises: a script sees no difference; paths that it creates are recorded at once (`Watch.made`), so that a killed
process leaves word of them. Called by `sitecustomize` in the process that runs the script, at each of Python's audit
events; files that libraries open in C are not seen here. Standard library, Python 3.8; imports nothing more, as each
Python that a training starts loads it.
"""

from __future__ import annotations

import os
import stat
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 2000  # paths tracked per process: a script's own, not the files of a data set that it unpacks
COMPILED = (".pyc", ".pyo")
# Variables that name files and folders through which the hooks communicate: each generation writes its own.
OURS = ("RESHAPE_CHECKPOINTS", "RESHAPE_MEMORY", "RESHAPE_ANNOUNCE", "RESHAPE_REPORTS", "RESHAPE_GPU_LOCKS")
SYSTEM = ("/proc/", "/dev/", "/sys/")
SHARED_MEMORY = "/dev/shm/"  # where scripts keep files, too
DONE_AGAIN = (
    "{} may get rows a second time, because this training had ended before this start, and what the script does after "
    "it is done again: let it look first whether they are there"
)


class File:
    """What is known of one path.

    `made`: this training created or emptied it, so that all its content is the training's.

    `rewritten`: it was emptied again while the training ran, so that it does not only grow.
    """

    __slots__ = ("made", "rewritten")

    def __init__(self, made: bool, rewritten: bool = False) -> None:
        self.made, self.rewritten = made, rewritten


class Watch:
    """The files and folders of this process. `who`: the command line and the folder in which it was started.

    `replay`: protects the files of earlier generations until the training resumes; None otherwise.
    """

    def __init__(self, checkpoints: str, generation: int) -> None:
        self.pid = os.getpid()
        self.checkpoints, self.generation = checkpoints, generation
        with open("/proc/self/cmdline", "rb") as file:
            self.who = (file.read(), os.getcwd())
        self.files: dict[str, File] = {}
        self.folders: dict[str, None] = {}
        self.training = False  # a step is done: what is emptied from now on is not created only once, at the beginning
        self.output_made = _empty(1)  # whether everything in the redirected output is from this training
        self.replay: Any = None
        self.late: Any = None  # continues files that are reopened only after the training resumed
        self.made: Any = None  # is told each path that is created: (kind, path)
        self.notes = 0  # taken so far
        self.entries: dict[str, Any] = {}  # of the last note
        self.writers: tuple[Any, list[Any]] = (None, [])  # objects that write to files, and which files those were
        self.again = False  # its training had ended before this start: what the script does after it is done again
        self.said: set[str] = set()
        self.inherited = _open_now()  # by device and inode: opened by the shell or the program that started this one
        self.libraries: set[str] = set()  # folders in which they write files of their own, as already reported
        ours = [os.path.abspath(os.environ[name]) for name in OURS if os.environ.get(name)]
        self._ours = frozenset(ours)
        self._skipped = tuple(os.path.join(one, "") for one in ours)
        self._busy: set[int] = set()
        self._heard: dict[str, Any] = {"open": self._open, "os.mkdir": self._mkdir, "os.rename": self._rename}

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Note one audit event. Raises OSError if a file of an earlier generation could not be put aside."""
        act = self._heard.get(event)
        if act is None or os.getpid() != self.pid:
            return
        thread = get_ident()
        if thread in self._busy:
            return  # our own action
        self._busy.add(thread)
        try:
            act(*args)
        finally:
            self._busy.discard(thread)

    def ours(self) -> Any:
        """Return a context in which this thread's own actions are not noted."""
        return _Unheard(self._busy)

    def skips(self, path: str) -> bool:
        """Return whether this path does not concern us."""
        if path in self._ours or path.endswith(COMPILED) or path.startswith(self._skipped):
            return True
        return path.startswith(SYSTEM) and not path.startswith(SHARED_MEMORY)

    def _open(self, name: Any, _mode: Any, flags: Any) -> None:
        if not isinstance(flags, int) or flags & os.O_ACCMODE == os.O_RDONLY:
            return
        path = absolute(name)
        if not path or self.skips(path) or not (path in self.files or len(self.files) < MOST):
            return
        there = _kind(path)
        if there not in (0, stat.S_IFREG):
            return
        anew = bool(flags & (os.O_TRUNC | os.O_EXCL))
        if self.replay is not None and anew and there:
            self.replay.put_aside(path)
        if self.late is not None and flags & os.O_TRUNC and there:
            self.late.opens(path)
        known = self.files.get(path)
        if known is None:
            if self.again and self.replay is None and there and flags & os.O_APPEND:
                say(self, DONE_AGAIN.format(path))
            known = self.files[path] = File(made=not there or anew)
        known.made = known.made or anew
        known.rewritten = known.rewritten or (anew and self.training)
        if not there and self.made is not None:
            self.made("grows" if flags & (os.O_APPEND | os.O_EXCL) else "file", path)

    def _mkdir(self, name: Any, _mode: Any = None, _folder: Any = None) -> None:
        path = absolute(name)
        if path and not self.skips(path) and len(self.folders) < MOST and not os.path.lexists(path):
            self.folders[path] = None
            if self.made is not None:
                self.made("folder", path)

    def _rename(self, source: Any, target: Any, *_folders: Any) -> None:
        old, new = absolute(source), absolute(target)
        if not old or not new or self.skips(new):
            return
        if self.replay is not None and _kind(new) == stat.S_IFREG:
            self.replay.put_aside(new)
        known = self.files.pop(old, None)
        if known is not None:
            known.rewritten = known.rewritten or self.training
            self.files[new] = known


class _Unheard:
    def __init__(self, busy: set[int]) -> None:
        self._busy, self._thread, self._was = busy, get_ident(), True

    def __enter__(self) -> None:
        self._was = self._thread in self._busy
        self._busy.add(self._thread)

    def __exit__(self, *_: Any) -> None:
        if not self._was:
            self._busy.discard(self._thread)


def absolute(name: Any) -> str:
    """Return the absolute path that a call names; empty for a descriptor, or what is not a path."""
    try:
        return os.path.abspath(os.fsdecode(name))
    except (TypeError, ValueError, OSError):
        return ""


def _kind(path: str) -> int:
    """Return the file's type, as in `stat`; 0 if there is none."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except (OSError, ValueError):
        return 0


def _empty(number: int) -> bool:
    """Return whether this descriptor is open and its file is empty."""
    try:
        return os.fstat(number).st_size == 0
    except OSError:
        return False


_watches: list[Watch] = []


def this() -> Watch | None:
    """Return the watch of this process; None if there is none, as in a forked one."""
    return _watches[0] if _watches and _watches[0].pid == os.getpid() else None


def step_done() -> None:
    """Note that a training step is done."""
    if _watches:
        _watches[0].training = True


def begin() -> Watch | None:
    """Start watching, in a training under the shim; only in the first of several processes that train together."""
    folder, generation = os.environ.get("RESHAPE_CHECKPOINTS", ""), os.environ.get("RESHAPE_GENERATION", "")
    if _watches or not folder or not generation.isdigit() or os.environ.get("RANK", "0") != "0":
        return None
    watch = Watch(folder, int(generation))
    _watches.append(watch)
    sys.addaudithook(watch.hear)
    return watch


def _open_now() -> frozenset[tuple[int, int]]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
        except OSError:  # the folder that was just read
            continue
        found.append((status.st_dev, status.st_ino))
    return frozenset(found)


def say(watch: Watch, sentence: str) -> None:
    """Print a sentence for people, once per process."""
    if sentence not in watch.said:
        watch.said.add(sentence)
        try:
            sys.stderr.write(f"reshape: {sentence}\n")
        except (OSError, ValueError):
            pass
