"""Imports what a training imported the last time, before it is its turn, and waits: the *waiting interpreter*.

The shim starts the training's own command a second time with `RESHAPE_WAIT`; `startup/sitecustomize.py` then calls
`wait_turn`, which imports what the record of the last run names and returns only when the shim says so. Python goes on
to the script as always: arguments, `__main__`, tracebacks and exit status need no imitation. Promises:
* only modules of the standard library, of site-packages and our own are imported, as the last run had imported them:
  in its order, under its environment variables, and none that it had not imported;
* the script finds none of them imported: each comes into `sys.modules`, with the variables that it sets and with our
  adapters, when the script imports it (`Stash`);
* an interpreter that is not told to go on never runs the script: it ends.
Called by `sitecustomize` and the shim's `sidecar/warm.py`, whose protocol it speaks. Standard library, Python 3.8.
"""

from __future__ import annotations

import os
import sys

from reshape_hooks.record import (
    Recorder,
    begin_record,
    changes,
    command_line,
    hidden,
    in_library,
    library_folders,
    shared_folders,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # what a training does not import itself is imported only by an interpreter that waits
    from collections.abc import Collection, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
NOT_INITIALIZED = 3  # cuDeviceGetCount before cuInit


def change(variables: dict[str, str | None]) -> None:
    """Set these variables of the environment; None removes one."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class Group:
    """The modules that came with one root, and what its import changed."""

    def __init__(self, name: str, variables: dict[str, str | None], hidden: list[str]) -> None:
        self.name, self.variables, self.hidden = name, variables, hidden
        self.modules: dict[str, ModuleType] = {}
        self.asked: list[str] = []  # for which names the import asked, also for those that are not there
        self.set: dict[str, str | None] = {}  # variables of the environment that the import itself set


class Record:
    """What a run imported: its groups in order, and in which of them each name was asked for."""

    def __init__(self, path: str) -> None:
        import ast

        self.groups = [Group("", {}, [])]  # of no root: what we need to wait ourselves
        self.home: dict[str, Group] = {}
        group = self.groups[0]
        roots: dict[str, Group] = {}
        with open(path, encoding="ascii") as file:
            for line in file:
                if not line.endswith("\n"):
                    break
                kind, *fields = ast.literal_eval(line)
                if kind == "root":
                    if fields[0] not in roots:
                        self.groups.append(Group(*fields))
                        roots[fields[0]] = self.home[fields[0]] = self.groups[-1]
                    group = roots[fields[0]]
                elif kind == "ask":
                    self.home.setdefault(fields[0], group).asked.append(fields[0])

    def own(self, modules: Sequence[str]) -> None:
        """Note modules that we have imported ourselves, each where the training does."""
        for name in modules:
            self.home.get(name, self.groups[0]).modules[name] = sys.modules[name]


class NotRecorded(BaseException):
    """A module of the user's was about to be imported early; passes through `except Exception`."""


class RecordedOnly:
    """The first finder while modules are imported early: finds those of the record, in libraries only.

    And what Python itself brings along: `early` has imported some of that before the training, whose record lacks it
    then. A module that is nowhere is not found, as the training went on without it, too.
    """

    def __init__(self, names: Collection[str], folders: tuple[str, ...]) -> None:
        self.names, self.folders = names, folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        passed: list[Any] = [one for one in sys.meta_path if one is not self and not hasattr(one, "adapts")]
        found = (one.find_spec(fullname, path, target) for one in passed if hasattr(one, "find_spec"))
        spec: ModuleSpec | None = next((spec for spec in found if spec is not None), None)
        if fullname not in self.names and spec is not None and not in_python(spec):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if spec is not None and not in_library(spec, self.folders):
            raise NotRecorded(f"{fullname} is found in another place than the last time")
        return spec


class Stash:
    """A finder that gives modules that were imported early to the script as it imports them.

    Where the script has changed the environment in another way than the last time, they were imported too early.
    """

    def __init__(self, groups: list[Group], recorder: Recorder) -> None:
        self.groups, self.recorder = groups, recorder
        self.of = {name: number for number, group in enumerate(groups) for name in group.modules}
        self.before = self._done()
        self.packages = dict(self._packages())
        for name in self.of:
            del sys.modules[name]
            if name in self.packages:
                del vars(self.packages[name])[name.rpartition(".")[2]]

    def _packages(self) -> Iterator[tuple[str, ModuleType]]:
        """Yield modules and the package of each that has it as an attribute and is given to the script before it.

        With that attribute `from package import module` would not ask for it, and what looks in `sys.modules` for it
        would not find it: TensorFlow then takes its own code for the script's, and converts it.
        """
        for name, number in self.of.items():
            package, _, last = name.rpartition(".")
            before = sys.modules[package] if package in sys.modules and self.of.get(package) != number else None
            if before and vars(before).get(last) is self.groups[number].modules[name]:
                yield name, before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.of:
            return None
        module = self.groups[self.of[fullname]].modules[fullname]
        was = getattr(module, "__spec__", None)
        make: Any = type(sys.__spec__)  # ModuleSpec, without an import
        spec: ModuleSpec = make(fullname, StashLoader(self, module, getattr(was, "loader", None)))
        for name in ("origin", "submodule_search_locations", "cached", "has_location"):
            if hasattr(was, name):
                setattr(spec, name, getattr(was, name))
        return spec

    def give(self, name: str) -> None:
        """Put the module and all that came with it, or was imported before it, where imports look."""
        number = self.of[name]
        group = self.groups[number]
        now = changes(self.recorder.environ, dict(os.environ)), hidden()
        if group.name and now != (group.variables, group.hidden) and not self.recorder.ended:
            self._differs(group, *now)
        for earlier in self.groups[1 : number + 1] or self.groups[:1]:
            self._bring(earlier, name)

    def _bring(self, group: Group, asked: str) -> None:
        modules, group.modules = group.modules, {}
        names, group.asked = group.asked, []
        change(group.set if modules else {})
        for name, module in modules.items():
            del self.of[name]
            if name in self.packages:
                vars(self.packages.pop(name))[name.rpartition(".")[2]] = module
            if sys.modules.setdefault(name, module) is module and name != asked:
                names.append(name)
        if names or modules:
            root = [("root", group.name, group.variables, group.hidden)] if group.name else []
            self.recorder.brought += [*root, *(("ask", name) for name in names)]
        for finder in sys.meta_path if modules else ():
            if hasattr(finder, "adapts"):
                finder.adapts(modules)

    def _done(self) -> tuple[list[str], int, bool]:
        """Return what tells whether the script has done anything yet that can be seen outside."""
        return os.listdir("/proc/self/fd"), written() - self.recorder.wrote, has_children()

    def _differs(self, group: Group, variables: dict[str, str | None], absent: list[str]) -> None:
        """Begin the script anew without early imports if it has done nothing yet, else only tell of it."""
        names = {*variables, *group.variables}
        what = ", ".join(sorted(n for n in names if variables.get(n, "") != group.variables.get(n, "")))
        what = what or f"other modules to be absent ({', '.join(absent)})"
        reason = f"before it imports {group.name} the script sets {what}, unlike the last time"
        self.recorder.stop(reason)
        if self.before == self._done():
            argv = command_line()
            path = os.readlink(f"/proc/self/fd/{self.recorder.file}")
            os.execve(sys.executable, argv, {**self.recorder.environ, "RESHAPE_IMPORTS": path, "RESHAPE_COLD": reason})


class StashLoader:
    """Brings a module back; for all else it is the module's own loader."""

    def __init__(self, stash: Stash, module: ModuleType, loader: Any) -> None:
        self._stash, self._module, self._loader = stash, module, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # a placeholder, so that the attributes of the module itself stay as they are

    def exec_module(self, placeholder: ModuleType) -> None:
        name = placeholder.__name__
        if name in self._stash.of:
            self._stash.give(name)
        sys.modules[name] = self._module
        self._stash.recorder.settle()  # it asks for nothing, and may be the last one


def in_python(spec: ModuleSpec) -> bool:
    """True if the module is one of Python's own."""
    place = spec.origin or ""
    ours = os.path.join(os.path.dirname(os.__file__), "")
    installed = "site-packages" in place or "dist-packages" in place
    return place in ("built-in", "frozen") or (place.startswith(ours) and not installed)


def written() -> int:
    """Return how many bytes this process ever wrote."""
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def device_opened() -> str:
    """Return the GPU device that this process has opened or initialized; empty if none.

    A context of CUDA holds /dev/nvidiactl, /dev/nvidia-uvm and the GPU's own device open, or mapped where only that is
    left. One that a library has begun without a device is found by asking CUDA's library, if anything has loaded it.
    """
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.startswith(DEVICES):
            return path
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        mapped = {line.split(" ", 5)[-1].strip() for line in file if "/" in line}
    if device := min((path for path in mapped if path.startswith(DEVICES)), default=""):
        return device
    if not any("libcuda.so" in path for path in mapped):
        return ""
    import ctypes

    count = ctypes.c_int()
    found = ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(count))
    return "" if found == NOT_INITIALIZED else "CUDA"


def import_early(record: Record, told: Any) -> None:
    """Import the groups of the record in order, and note in each what came. Ends before the next one once `told()`."""
    folders, finders, environ = library_folders() + shared_folders(), [*sys.meta_path], dict(os.environ)
    only: Any = RecordedOnly(record.home, folders)
    sys.meta_path.insert(0, only)
    known = set(sys.modules)
    for group in record.groups[1:]:
        if told():
            break
        change(changes(dict(os.environ), _with(environ, group.variables)))
        absent = [name for name in group.hidden if name not in sys.modules]
        sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: as if it were not installed
        if group.name not in sys.modules:
            before = dict(os.environ)
            __import__(group.name)
            group.set = changes(before, dict(os.environ))
        for name in absent:
            sys.modules.pop(name, None)
        came = {name: module for name, module in sys.modules.items() if module and name not in known}
        known.update(came)
        for name, module in came.items():
            # Of ours some come by an adapter, which is called with the first module that it waits for.
            (record.groups[0] if name.startswith("reshape_hooks.") else group).modules[name] = module
    sys.meta_path.remove(only)
    change(changes(dict(os.environ), environ))
    for finder in sys.meta_path:
        if finder not in finders and not in_library(sys.modules[type(finder).__module__].__spec__, folders):
            raise NotRecorded(f"it finds modules by {finder!r:.100}")


def _with(environ: dict[str, str], variables: dict[str, str | None]) -> dict[str, str]:
    merged = {**environ, **variables}
    return {name: value for name, value in merged.items() if value is not None}


class Turn:
    """The connection to the shim: it gets `ready` or why not, and sends the variables that have changed, then `go`."""

    def __init__(self, number: int) -> None:
        self.number, self.inbox = number, b""

    def say(self, *fields: Any) -> None:
        os.write(self.number, ascii(fields).encode() + b"\n")

    def told(self) -> bool:
        """True if the shim has sent something."""
        import select

        return bool(select.select([self.number], [], [], 0)[0])

    def hear(self) -> Any:
        """Return the next message; ends this process if the shim is gone."""
        import ast

        while b"\n" not in self.inbox:
            data = os.read(self.number, 65536)
            if not data:
                os._exit(0)
            self.inbox += data
        line, _, self.inbox = self.inbox.partition(b"\n")
        return ast.literal_eval(line.decode())


def score(value: str) -> str:
    """Set how soon the kernel ends this process if memory runs out; return what it was, empty if that is unknown."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            before = file.read()
            file.seek(0)
            file.write(value or before)
        return before
    except OSError:
        return ""


def stamps() -> list[int]:
    """Return when each folder of installed modules was changed last."""
    folders = library_folders() + shared_folders()
    return [os.stat(folder).st_mtime_ns for folder in folders if os.path.isdir(folder)]


def files_of(record: Record) -> dict[str, tuple[int, int]]:
    """Return the file of each module that was imported early, with its size and when it was written; (0, 0): gone."""
    found: dict[str, tuple[int, int]] = {}
    for group in record.groups:
        for module in list(group.modules.values()):
            path = getattr(module, "__file__", None)
            if isinstance(path, str):
                try:
                    status = os.stat(path)
                    found[path] = status.st_size, status.st_mtime_ns
                except OSError:
                    found[path] = 0, 0
    return found


def edited(before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]], since_ns: int, until_ns: int) -> str:
    """Return a file that is not as it was imported: changed since, or while modules were imported; empty if none."""
    changed = (path for path, stamp in now.items() if before.get(path) != stamp or since_ns <= stamp[1] <= until_ns)
    return next(changed, "")


def settle_garbage() -> None:
    """Look through all objects now and then never again.

    Else that is due while the trainer builds its model (0.2 s of TensorFlow's), and again at its end, for which its
    successor waits: modules that were imported early live as long as the process.
    """
    import gc

    gc.collect()
    gc.freeze()


def wait_turn(number: int, path: str) -> None:
    """Import early, wait, and return when this process is to become the trainer; ends the process otherwise.

    `number`: of the connection to the shim. `path`: the record of the last run, then of this one.
    """
    turn = Turn(number)
    try:
        import time

        began_ns = time.time_ns()
        before, known, places, home = stamps(), set(sys.modules), list(sys.path), os.getcwd()
        scored = score("1000")  # first of all
        found = Record(path)
        turn.told()
        found.own([name for name in sys.modules if name not in known or name == __name__])
        import_early(found, turn.told)
        if sys.path != places or os.getcwd() != home:
            raise NotRecorded("an import changes the path of modules or the folder")
        if device := device_opened():
            raise NotRecorded(f"an import opens a device ({device})")
        sys.stdout.flush()
        sys.stderr.flush()
        files = files_of(found)
        settle_garbage()
        turn.say("ready")
        change(turn.hear())
        score(scored)
        if stamps() != before:
            raise NotRecorded("packages were installed meanwhile")
        if changed := edited(files, files_of(found), began_ns, time.time_ns()):
            raise NotRecorded(f"{changed} was edited meanwhile")
        turn.say("set")
        if turn.hear() != "go":
            os._exit(1)
    except BaseException as fault:  # also an exit that an import asks for
        try:
            turn.say("off", f"{fault or type(fault).__name__}"[:500])
        finally:
            os._exit(1)
    os.close(number)
    recorder = begin_record(path)
    if recorder is not None:
        finder: Any = Stash(found.groups, recorder)
        after = max(n for n, one in enumerate(sys.meta_path) if one is recorder or hasattr(one, "adapts"))
        sys.meta_path.insert(after + 1, finder)  # adapters are asked before
        recorder.finders = list(sys.meta_path)
