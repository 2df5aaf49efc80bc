"""Imports what a training imported the last time, before it is its turn, and waits: the *waiting interpreter*.

The shim starts the training's own command a second time with `RESHAPE_WAIT`; `startup/sitecustomize.py` then calls
`wait_turn`, which imports what the record of the last run names and returns only when the shim says so. Python goes on
to the script as always: arguments, `__main__`, tracebacks and exit status need no imitation. Promises:
* only modules of the standard library, of site-packages, of packages that PYTHONPATH names apart from the job's own
  folders, and our own are imported, as the last run had imported them: in its order, under its environment variables,
  and none that it had not imported;
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
    early_folders,
    hidden,
    in_library,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # what a training does not import itself is imported only by an interpreter that waits
    from collections.abc import Collection, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
OURS = ("", "reshape_hooks.files.replay")
"""Roots that import nothing but the standard library and our own: what a script sets changes none of it.

The second is imported before the script of a training that has a checkpoint, so one that has none asks for it late.
"""
NUMBER_BYTES = 4  # of the number of a file
MOST_LOCKS = 253  # files that the kernel sends at once
NOT_INITIALIZED = 3  # cuDeviceGetCount before cuInit
MODULES = (".py", ".pyc", ".so")
ASKED = ("is_available", "device_count")  # functions of torch.cuda whose answer is another one without GPUs


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
        self.left = False  # to be imported by the script only


class Record:
    """What a run imported: its groups in order, and in which of them each name was asked for."""

    def __init__(self, path: str) -> None:
        import ast

        self.groups = [Group("", {}, [])]  # of no root: what we need to wait ourselves
        self.home: dict[str, Group] = {}
        self.libraries: list[str] = []  # shared ones, to be loaded when all is imported
        until = None
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
                elif kind == "left":
                    roots[fields[0]].left = True
                elif kind == "until":
                    until = fields[0]
                elif kind == "libraries":
                    self.libraries = fields[0]
        last = self.groups.index(roots[until]) if until in roots else len(self.groups)
        for number, group in enumerate(self.groups):
            if group.left or number >= last:
                group.left, group.asked = True, []

    def own(self, modules: Sequence[str]) -> None:
        """Note modules that we have imported ourselves, each where the training does."""
        for name in modules:
            self.home.get(name, self.groups[0]).modules[name] = sys.modules[name]


class NotRecorded(BaseException):
    """Something was about to be done that must not be done early, as to import a module of the user's.

    It passes through `except Exception`.
    """


class Refused:
    """The loader of a module that may be looked for early, as the trainer did, but not be loaded."""

    def __init__(self, loader: Any, fault: BaseException) -> None:
        self._loader, self._fault = loader, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise self._fault

    def exec_module(self, module: ModuleType) -> None:
        raise self._fault


class RecordedOnly:
    """The first finder while modules are imported early: lets those of the record be loaded, from libraries only.

    And what Python itself brings along: `early` has imported some of that before the training, whose record lacks it
    then. All else is found, or is nowhere, as for the training, since libraries look for what they do not import.
    """

    def __init__(self, names: Collection[str], folders: tuple[str, ...]) -> None:
        self.names, self.folders = names, folders
        self.asked = ""  # why a module was imported too early: it has asked for GPUs
        self.cuda: Any = None  # the module torch.cuda while its functions are ours

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        self.listen()
        passed: list[Any] = [one for one in sys.meta_path if one is not self and not hasattr(one, "adapts")]
        found = (one.find_spec(fullname, path, target) for one in passed if hasattr(one, "find_spec"))
        spec: ModuleSpec | None = next((spec for spec in found if spec is not None), None)
        refused: BaseException | None = None
        if spec is not None and fullname not in self.names and not in_python(spec):
            refused = ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        elif spec is not None and not in_library(spec, self.folders):
            refused = NotRecorded(f"it imports {fullname}, which is not an installed module")
        if spec is not None and refused:
            loader: Any = Refused(spec.loader, refused)
            spec.loader = loader
        return spec

    def listen(self) -> None:
        """Hear who asks PyTorch for GPUs from now on, if PyTorch is there and can use some.

        A module that asks while it is imported, as Keras does to choose its device, would go without GPUs for good.
        """
        cuda = None if self.cuda else sys.modules.get("torch.cuda")
        if cuda is None or getattr(cuda.__spec__, "_initializing", False):
            return
        self.cuda, version = cuda, sys.modules.get("torch.version")
        if getattr(version, "cuda", None) or getattr(version, "hip", None):
            for name in ASKED:
                setattr(cuda, name, self._heard(getattr(cuda, name)))

    def _heard(self, asks: Any) -> Any:
        def answer() -> Any:
            frame: Any = sys._getframe(1)
            while frame.f_code.co_name != "<module>" and of_torch(frame):
                frame = frame.f_back
            if self.cuda and not of_torch(frame):  # what PyTorch itself asks at its import chooses nothing
                self.asked = f"{frame.f_globals.get('__name__')} asks for GPUs while it is imported"
                raise NotRecorded(self.asked)
            return asks()

        answer.__wrapped__ = asks  # type: ignore[attr-defined]
        return answer

    def end(self) -> None:
        cuda, self.cuda = self.cuda, None
        for name in ASKED if cuda else ():
            setattr(cuda, name, getattr(getattr(cuda, name), "__wrapped__", getattr(cuda, name)))


def of_torch(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"


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
        if group.name not in OURS and now != (group.variables, group.hidden) and not self.recorder.ended:
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


def chosen() -> str:
    """Return which framework has chosen its devices for good, which it did without GPUs; empty if none has."""
    jax = sys.modules.get("jax._src.xla_bridge")
    if getattr(jax, "_backends", None) and {"cuda", "rocm"} & set(getattr(jax, "_backend_factories", ())):
        return "JAX"
    eager = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(eager, "_initialized", False) or getattr(eager, "_physical_devices", None) is not None:
        return "TensorFlow"
    return ""


def import_early(record: Record, turn: Turn) -> None:
    """Import the groups of the record in order, and note in each what came. Ends before the next one once it is told.

    Before each it says how the record is to be changed, should that group's import end this process.
    """
    folders, finders, environ = early_folders(), [*sys.meta_path], dict(os.environ)
    only: Any = RecordedOnly(record.home, folders)
    sys.meta_path.insert(0, only)
    known = set(sys.modules)
    for group in record.groups[1:]:
        if turn.told():
            break
        if group.left:
            continue
        turn.say("at", ("until", group.name))
        change(changes(dict(os.environ), _with(environ, group.variables)))
        absent = [name for name in group.hidden if name not in sys.modules]
        sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: as if it were not installed
        if group.name not in sys.modules:
            before = dict(os.environ)
            __import__(group.name)
            group.set = changes(before, dict(os.environ))
            check_devices(only)
        for name in absent:
            sys.modules.pop(name, None)
        came = {name: module for name, module in sys.modules.items() if module and name not in known}
        known.update(came)
        for name, module in came.items():
            # Of ours some come by an adapter, which is called with the first module that it waits for.
            (record.groups[0] if name.startswith("reshape_hooks.") else group).modules[name] = module
    only.end()
    sys.meta_path.remove(only)
    change(changes(dict(os.environ), environ))
    for finder in sys.meta_path:
        if finder not in finders and not in_library(sys.modules[type(finder).__module__].__spec__, folders):
            raise NotRecorded(f"it finds modules by {finder!r:.100}")


def check_devices(only: RecordedOnly) -> None:
    """Raise NotRecorded if an import has used a GPU, or has settled for none, as this process sees none."""
    if device := device_opened():
        raise NotRecorded(f"an import opens a device ({device})")
    if only.asked:
        raise NotRecorded(only.asked)
    if framework := chosen():
        raise NotRecorded(f"an import makes {framework} choose its devices")


def load_libraries(paths: Sequence[str]) -> list[str]:
    """Load shared libraries that the trainer had loaded and that imports alone do not bring; return those loaded.

    As a rule they are those of cuDNN and cuBLAS, which take a third of a second of a training's first step. None is
    initialized. One that needs another one may find it only when that is there, so that all are tried again then.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        there = {os.path.basename(line.rstrip()) for line in file}
    left = [path for path in paths if os.path.basename(path) not in there]
    loaded: list[str] = []
    while left:
        import ctypes

        before, failed = len(left), []
        for path in left:
            try:
                ctypes.CDLL(path)  # its names stay its own (RTLD_LOCAL), and it stays after the object has gone
                loaded.append(path)
            except OSError:  # gone, or it needs one that is not there
                failed.append(path)
        left = failed if len(failed) < before else []
    return loaded


def _with(environ: dict[str, str], variables: dict[str, str | None]) -> dict[str, str]:
    merged = {**environ, **variables}
    return {name: value for name, value in merged.items() if value is not None}


class Turn:
    """The connection to the shim: it gets `ready` or why not, and sends the variables that have changed, then `go`.

    With `go` come the locks of its GPUs, which this process and its children hold as long as they live.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox = b""
        self.connection: Any = None

    def connect(self) -> None:
        """Import what the connection needs; `socket` itself would bring many modules that the training may not use."""
        import _socket

        self.connection = _socket.socket(fileno=self.number)
        self.room = _socket.CMSG_SPACE(MOST_LOCKS * NUMBER_BYTES)

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
            data, attached, _, _ = self.connection.recvmsg(65536, self.room)
            if not data:
                os._exit(0)
            self.inbox += data
            for _, _, numbers in attached:
                _keep_open(numbers)
        line, _, self.inbox = self.inbox.partition(b"\n")
        return ast.literal_eval(line.decode())


def _keep_open(numbers: bytes) -> None:
    """Have the children of this process hold these files, too."""
    for at in range(0, len(numbers), NUMBER_BYTES):
        os.set_inheritable(int.from_bytes(numbers[at : at + NUMBER_BYTES], sys.byteorder), True)


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
    """Return when each folder of installed modules was changed last, or a zip of them; 0 for one that is not there."""
    return [stamp(folder.rstrip(os.sep))[1] for folder in early_folders()]


def stamp(path: str) -> tuple[int, int]:
    """Return the size of a file, or of the zip that holds it, and when it was written; (0, 0): it is gone."""
    while True:
        try:
            status = os.stat(path)
            return status.st_size, status.st_mtime_ns
        except NotADirectoryError:
            path = os.path.dirname(path)
        except OSError:
            return 0, 0


def files_of(record: Record, libraries: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the files that were loaded early, and their folders, with their stamps.

    A file that is new in a folder may be one that a module has looked for in vain.
    """
    modules = [module for group in record.groups for module in list(group.modules.values())]
    named = [getattr(module, "__file__", None) for module in modules]
    paths = {path for path in named if isinstance(path, str)}.union(libraries)
    return {path: stamp(path) for path in [*paths, *{os.path.dirname(path) for path in paths}]}


def script_folder() -> str:
    """Return where Python looks first for what the script imports, once it has come to the script; empty: nowhere."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return ""
    script = sys.argv[0]
    return os.getcwd() if script in ("", "-m", "-c") else os.path.dirname(os.path.realpath(script))


def beside(record: Record) -> list[str]:
    """Return what is in the job's own folders under names that were asked for: libraries find it there first."""
    libraries = early_folders()
    own = {os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry)}
    own = {folder for folder in own if not os.path.join(folder, "").startswith(libraries)}
    found = (os.path.join(folder, name) for folder in own for name in os.listdir(folder) if is_asked(name, record))
    return sorted(found)


def is_asked(file: str, record: Record) -> bool:
    """True if a file or folder of this name may be a module that was asked for."""
    name, dot, _ = file.partition(".")
    return name in record.home and (not dot or file.endswith(MODULES))


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
        before, known, home, places = stamps(), set(sys.modules), os.getcwd(), list(sys.path)
        scored = score("1000")  # first of all
        found = Record(path)
        turn.told()
        turn.connect()
        found.own([name for name in sys.modules if name not in known or name == __name__])
        sys.path[:0] = filter(None, [script_folder()])  # for libraries that only look for a module
        as_script, shadows = list(sys.path), beside(found)
        import_early(found, turn)
        if sys.path != as_script or os.getcwd() != home:
            raise NotRecorded("an import changes the path of modules or the folder")
        known = set(sys.modules)
        turn.say("at", ("libraries", []))
        libraries = load_libraries(found.libraries)
        if device := device_opened():
            raise NotRecorded(f"a shared library opens a device ({device})")
        turn.say("at", ())
        found.own([name for name in sys.modules if name not in known])
        sys.stdout.flush()
        sys.stderr.flush()
        files = files_of(found, libraries)
        settle_garbage()
        turn.say("ready")
        change(turn.hear())
        score(scored)
        if stamps() != before:
            raise NotRecorded("packages were installed meanwhile")
        if changed := edited(files, files_of(found, libraries), began_ns, time.time_ns()):
            raise NotRecorded(f"{changed} was edited meanwhile")
        if others := set(shadows).symmetric_difference(beside(found)):
            raise NotRecorded(f"the job's own folder holds other modules by now ({min(others)})")
        sys.path[:] = places
        sys.path_importer_cache.pop(script_folder(), None)  # what Python knows of a folder may be older than its files
        turn.say("set")
        if turn.hear() != "go":
            os._exit(1)
    except BaseException as fault:  # also an exit that an import asks for
        try:
            turn.say("off", f"{fault or type(fault).__name__}"[:500])
        finally:
            os._exit(1)
    turn.connection.close()
    recorder = begin_record(path)
    if recorder is not None:
        finder: Any = Stash(found.groups, recorder)
        after = max(n for n, one in enumerate(sys.meta_path) if one is recorder or hasattr(one, "adapts"))
        sys.meta_path.insert(after + 1, finder)  # adapters are asked before
        recorder.finders = list(sys.meta_path)
