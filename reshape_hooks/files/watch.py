"""Knows which files this process opens for writing and which folders it makes.

Promises: a script sees no difference; paths that it makes are written down at once (`Watch.made`), so that a process
that is killed leaves word of them. Called by `sitecustomize` in the process that runs the script, at each
audit event of Python; what libraries open in C is not seen here. Standard library, Python 3.8; imports nothing more, as
each Python that a training starts loads it.
"""

from __future__ import annotations

import os
import stat
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST = 2000  # paths that are known of one process: those of a script, not the files of a data set that it unpacks
COMPILED = (".pyc", ".pyo")
# Variables that name files and folders through which the hooks speak: each generation writes its own.
OURS = ("RESHAPE_CHECKPOINTS", "RESHAPE_MEMORY", "RESHAPE_ANNOUNCE", "RESHAPE_REPORTS", "RESHAPE_GPU_LOCKS")
SYSTEM = ("/proc/", "/dev/", "/sys/")


class File:
    """What is known of one path. `made`: it was created or emptied by this training, so all in it is the training's.

    `rewritten`: it was emptied again while the training ran, so it does not only grow.
    """

    __slots__ = ("made", "rewritten")

    def __init__(self, made: bool, rewritten: bool = False) -> None:
        self.made, self.rewritten = made, rewritten


class Watch:
    """The files and folders of this process. `who`: the command line and the folder it was started in.

    `replay`: what protects the files of the generations before, until the training has been resumed; None otherwise.
    """

    def __init__(self, checkpoints: str, generation: int) -> None:
        self.pid = os.getpid()
        self.checkpoints, self.generation = checkpoints, generation
        with open("/proc/self/cmdline", "rb") as file:
            self.who = (file.read(), os.getcwd())
        self.files: dict[str, File] = {}
        self.folders: dict[str, None] = {}
        self.training = False  # a step was done: what is emptied from now on is not made once, at the beginning
        self.output_made = _empty(1)  # whether all that is in the redirected output is of this training
        self.replay: Any = None
        self.late: Any = None  # continues files that are opened again only after the training was resumed
        self.made: Any = None  # is told of each path that is made: (kind, path)
        self.notes = 0  # taken so far
        self.entries: dict[str, Any] = {}  # of the last note
        self.writers: tuple[Any, list[Any]] = (None, [])  # objects that write to files, and which files those were
        self.said: set[str] = set()
        self.inherited = _open_now()  # by device and number: of the shell or the program that started this one
        self.libraries: set[str] = set()  # folders in which they write files of their own, which was said
        ours = [os.path.abspath(os.environ[name]) for name in OURS if os.environ.get(name)]
        self._ours = frozenset(ours)
        self._skipped = (*SYSTEM, *(os.path.join(one, "") for one in ours))
        self._busy: set[int] = set()
        self._heard: dict[str, Any] = {"open": self._open, "os.mkdir": self._mkdir, "os.rename": self._rename}

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Note one audit event; raises OSError where a file of an earlier generation could not be put aside."""
        act = self._heard.get(event)
        if act is None or os.getpid() != self.pid:
            return
        thread = get_ident()
        if thread in self._busy:
            return  # we act ourselves
        self._busy.add(thread)
        try:
            act(*args)
        finally:
            self._busy.discard(thread)

    def ours(self) -> Any:
        """Return a context in which this thread's own acts are not noted."""
        return _Unheard(self._busy)

    def skips(self, path: str) -> bool:
        """True if nothing of this path concerns us."""
        return path in self._ours or path.startswith(self._skipped) or path.endswith(COMPILED)

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
    """Return the path that a call names, absolute; empty for a number, or what is no path."""
    try:
        return os.path.abspath(os.fsdecode(name))
    except (TypeError, ValueError, OSError):
        return ""


def _kind(path: str) -> int:
    """Return the type of the file there, as `stat` names it; 0 if there is none."""
    try:
        return stat.S_IFMT(os.stat(path).st_mode)
    except (OSError, ValueError):
        return 0


def _empty(number: int) -> bool:
    """True if this is open and holds nothing yet."""
    try:
        return os.fstat(number).st_size == 0
    except OSError:
        return False


_watches: list[Watch] = []


def this() -> Watch | None:
    """Return the watch of this process; None where there is none, as in one that was forked."""
    return _watches[0] if _watches and _watches[0].pid == os.getpid() else None


def step_done() -> None:
    """A step of the training was done."""
    if _watches:
        _watches[0].training = True


def begin() -> Watch | None:
    """Watch from now on, in a training under the shim; the first process of several that train together only."""
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
    """Tell people, once in each process."""
    if sentence not in watch.said:
        watch.said.add(sentence)
        try:
            sys.stderr.write(f"reshape: {sentence}\n")
        except (OSError, ValueError):
            pass
