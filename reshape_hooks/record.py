"""Records what a training imports, so that the waiting interpreter can import it early (`early`).

Promises: nothing changes for the script, and a fault in here is no fault of the script. Called by
`startup/sitecustomize.py` if the shim asks for it. Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # a training imports no more than it does without us
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

MOST_ASKED = 32  # requests to remember
WORK_COPY = (".git", ".hg", ".svn")  # marks a working copy, in a folder or one above it; packages ship without
OURS = os.path.dirname(os.path.abspath(__file__))


def early_folders() -> tuple[str, ...]:
    """Return the folders below which modules may be imported early, each with a trailing separator."""
    return library_folders() + shared_folders()


def library_folders() -> tuple[str, ...]:
    """Return the folders of Python itself, of installed packages and of our hooks."""
    installed = [entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")]
    return tuple(os.path.join(folder, "") for folder in (os.path.dirname(os.__file__), *installed, OURS))


def shared_folders() -> tuple[str, ...]:
    """Return the folders of packages that PYTHONPATH names, as clusters' environment modules ship them.

    Excluded is the user's own code: the current folder, that of the script, what is inside one of these or contains
    one, and working copies of a version control.
    """
    own = [os.path.join(os.path.realpath(folder), "") for folder in own_folders()]
    found = []
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        place = os.path.join(os.path.realpath(entry), "")
        apart = not any(place.startswith(home) or home.startswith(place) for home in own)
        if os.path.isabs(entry) and apart and not in_work_copy(place):
            found.append(os.path.join(os.path.abspath(entry), ""))  # as Python's `site` puts it into `sys.path`
    return tuple(found)


def own_folders() -> list[str]:
    """Return the current folder and that of the script."""
    words = [word for word in command_line()[1:] if os.path.isfile(word)]
    return [os.getcwd(), *(os.path.dirname(os.path.abspath(word)) for word in words)]


def in_work_copy(folder: str) -> bool:
    above = folder
    while above != os.path.dirname(above):
        above = os.path.dirname(above)
        if any(os.path.exists(os.path.join(above, name)) for name in WORK_COPY):
            return True
    return False


def command_line() -> list[str]:
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def in_library(spec: ModuleSpec | None, folders: tuple[str, ...]) -> bool:
    """Return whether the module is in these folders or built into Python, and is not the user's."""
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or [])
    if places:
        return all(place.startswith(folders) for place in places)
    maker = sys.modules.get(type(spec.loader).__module__)  # as for `six.moves`, which has no file
    return maker is not None and in_library(getattr(maker, "__spec__", None), folders)


def changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    """Return the variables that differ; None: removed."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: after.get(name) for name in names}


def hidden() -> list[str]:
    """Return the modules that cannot be imported now, though they may be installed."""
    # A copy, in case another thread imports; a list of pairs would burden the garbage collector at each import.
    return [name for name, module in sys.modules.copy().items() if module is None]


class Recorder:
    """A finder that finds nothing and writes what is imported to `path`, one line each as it happens.

    `("begin", pid, command line)`, then `("ask", name)` for each module when it is first requested, followed by
    `("root", name, variables, hidden)` if the script or a module of the user's has imported it: with the environment
    variables that the training had changed by then, and the modules that it hid. What a root imports is requested after
    it, up to the next root; one that is named again continues. A root that came from the stash is named as in the last
    record, whoever requested it: otherwise what a library imports only because it was imported early would be missing
    in the next record. `("left", name, why)`: this root must not be imported early, as its import has failed (with an
    empty `why`) or needs the user's modules. `("off", sentence)` ends early imports of this job.

    The shim adds lines of its own (`sidecar/warm.py`): `("until", name)`, early imports end before this root;
    `("libraries", paths)`, shared libraries that the trainer has loaded, where the last such line counts.
    """

    def __init__(self, path: str, reason: str = "") -> None:
        self.pid, self.folders, self.environ = os.getpid(), early_folders(), dict(os.environ)
        self.finders: list[Any] = []  # those known
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.wrote = 0
        self.asked: list[tuple[str, Any, Any]] = []  # requests, with variables and hidden modules of a root
        self.root: Any = None  # spec of the newest root
        self.root_line: tuple[Any, ...] = ()  # and what was written about it
        self.known: set[str] = set()  # names already written
        self.brought: list[tuple[Any, ...]] = []  # lines about what came from the stash
        self.ended = False
        self.lines([("begin", self.pid, command_line())])
        if reason:
            self.stop(reason)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return None: the next finders find it."""
        if not self.ended and os.getpid() == self.pid:
            try:
                self._hear(fullname)
            except Exception:  # the script must not see a fault of ours
                self.ended = True
        return None

    def _hear(self, fullname: str) -> None:
        self.settle()
        root = not getattr(self.root, "_initializing", False)
        if root and self.root and self.root.name not in sys.modules:
            self.lines([("left", self.root.name, "")])
            self.root = None
        if root and sys.meta_path != self.finders:
            self._look_at_finders()
        self.lines([("ask", fullname)])
        self.asked = [asked for asked in self.asked if asked[0] != fullname]  # a library may only have probed for it
        self.asked.append((fullname, *((changes(self.environ, dict(os.environ)), hidden()) if root else (None, None))))

    def settle(self) -> None:
        """Record what has been imported since the last request."""
        if self.ended or os.getpid() != self.pid:
            return
        brought, self.brought = self.brought, []
        if brought and getattr(self.root, "_initializing", False):
            brought.append(self.root_line)
        self.lines(brought)
        self.asked = [asked for asked in self.asked if not self._came(*asked)][-MOST_ASKED:]

    def _came(self, name: str, variables: Any, absent: Any) -> bool:
        """Record a root if it has been imported: some are only probed for. One in C may import others first."""
        spec: Any = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "name", None) != name:
            return False
        if in_library(spec, self.folders):
            if absent is not None:
                self.root, self.root_line = spec, ("root", name, variables, absent)
                self.lines([self.root_line])
        elif absent is None and self.root:
            # An installed module that imports the user's: it must not be imported without the script.
            self.lines([("left", self.root.name, f"it imports {name}, which is not an installed module")])
        return True

    def _look_at_finders(self) -> None:
        for finder in sys.meta_path:
            if finder not in self.finders:
                home = getattr(finder, "__module__", None) or type(finder).__module__
                spec = getattr(sys.modules.get(home), "__spec__", None)
                if not in_library(spec, self.folders):
                    self.stop(f"the script changes how modules are found ({home})")
        self.finders = list(sys.meta_path)

    def stop(self, reason: str) -> None:
        self.lines([("off", reason)])
        self.ended = True

    def lines(self, lines: Sequence[tuple[Any, ...]]) -> None:
        """Write lines at once; skip a name that was requested before."""
        data = b""
        for kind, name, *more in lines:
            if kind != "ask" or name not in self.known:
                data += ascii((kind, name, *more)).encode() + b"\n"
                self.known.update([name] if kind == "ask" else [])
        try:
            self.wrote += os.write(self.file, data)
        except OSError:  # a full disk: the next start is a cold one
            self.ended = True


def begin_record(path: str, reason: str = "") -> Any:
    """Record this process's imports from now on; return None if that is not possible."""
    try:
        recorder: Any = Recorder(path, reason)
    except OSError:
        return None
    sys.meta_path.insert(0, recorder)
    recorder.finders = list(sys.meta_path)
    return recorder
