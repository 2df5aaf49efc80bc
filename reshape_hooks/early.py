"""Imports what a training imported the last time, ahead of its turn, and waits: the *waiting interpreter*.

The shim starts the training's own command a second time with `RESHAPE_WAIT`; `startup/sitecustomize.py` then calls
`wait_turn`, which imports what the record of the last run names and returns only when the shim says so. Python then
proceeds to the script as always: arguments, `__main__`, tracebacks and exit status need no imitation. Promises:
- only modules of the standard library, of site-packages, of packages that PYTHONPATH names outside the job's own
  folders, and our own are imported, as in the last run: in its order, under its environment variables, and none that it
  had not imported;
- the script finds none of them imported: each appears in `sys.modules`, with the variables that it sets and with our
  adapters, when the script imports it (`Stash`);
- an interpreter that is not told to proceed never runs the script: it exits.

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
if TYPE_CHECKING:  # only a waiting interpreter may import what a training itself does not
    from collections.abc import Collection, Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
OURS = ("", "reshape_hooks.files.replay")
"""Roots that import nothing but the standard library and our own: what a script sets changes none of it.

The second is imported before the script of a training that has a checkpoint, so one that has none asks for it late.
"""
NUMBER_BYTES = 4  # of a file descriptor
MOST_LOCKS = 253  # descriptors that the kernel passes at once
NOT_INITIALIZED = 3  # returned by cuDeviceGetCount before cuInit
MODULES = (".py", ".pyc", ".so")
ASKED = ("is_available", "device_count")  # functions of torch.cuda that answer differently without GPUs


def change(variables: dict[str, str | None]) -> None:
    """Set these environment variables; None removes one."""
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
        self.asked: list[str] = []  # names that the import asked for, including missing ones
        self.set: dict[str, str | None] = {}  # environment variables set by the import itself
        self.left = False  # to be imported only by the script


class Record:
    """What a run imported: its groups in order, and in which of them each name was requested."""

    def __init__(self, path: str) -> None:
        import ast

        self.groups = [Group("", {}, [])]  # without a root: what we need ourselves to wait
        self.home: dict[str, Group] = {}
        self.libraries: list[str] = []  # shared libraries to load after all imports
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
        """Note modules that we have imported ourselves, each in the group where the training imports it."""
        for name in modules:
            self.home.get(name, self.groups[0]).modules[name] = sys.modules[name]


class NotRecorded(BaseException):
    """Raised before something that must not be done early, such as importing a user's module.

    It passes through `except Exception`.
    """


class Refused:
    """The loader of a module that may be found early, as in the trainer, but not loaded."""

    def __init__(self, loader: Any, fault: BaseException) -> None:
        self._loader, self._fault = loader, fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        raise self._fault

    def exec_module(self, module: ModuleType) -> None:
        raise self._fault


class RecordedOnly:
    """The first finder during early imports: lets only modules of the record be loaded, and only from libraries.

    It also allows what Python itself brings along: `early` imported some of that before the training, whose record then
    lacks it. Everything else is found, or missing, as for the training, since libraries probe for modules that they do
    not import.
    """

    def __init__(self, names: Collection[str], folders: tuple[str, ...]) -> None:
        self.names, self.folders = names, folders
        self.asked = ""  # why a module was imported too early: it asked for GPUs
        self.cuda: Any = None  # the module torch.cuda while its functions are replaced

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
        """Detect from now on who asks PyTorch for GPUs, if PyTorch is there and can use some.

        A module that asks while being imported, as Keras does to choose its device, would do without GPUs for good.
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
            if self.cuda and not of_torch(frame):  # what PyTorch itself asks at import decides nothing
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
    """A finder that hands early-imported modules to the script as it imports them.

    If the script has changed the environment differently than last time, they were imported too early.
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
        """Yield modules whose package has them as an attribute and is given to the script before them.

        With that attribute, `from package import module` would not import the module, and code that looks in
        `sys.modules` would not find it: TensorFlow then takes its own code for the script's, and converts it.
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
        """Put the module, and everything that came with it or was imported before it, into `sys.modules`."""
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
        """Return what shows whether the script has done anything yet that is visible outside."""
        return os.listdir("/proc/self/fd"), written() - self.recorder.wrote, has_children()

    def _differs(self, group: Group, variables: dict[str, str | None], absent: list[str]) -> None:
        """Restart the script without early imports if it has done nothing yet, else only report the difference."""
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
    """Brings a module back; otherwise acts as the module's own loader."""

    def __init__(self, stash: Stash, module: ModuleType, loader: Any) -> None:
        self._stash, self._module, self._loader = stash, module, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # a placeholder, so that the module's own attributes stay as they are

    def exec_module(self, placeholder: ModuleType) -> None:
        name = placeholder.__name__
        if name in self._stash.of:
            self._stash.give(name)
        sys.modules[name] = self._module
        self._stash.recorder.settle()  # it requests nothing, and may be the last one


def in_python(spec: ModuleSpec) -> bool:
    """Return whether the module is one of Python's own."""
    place = spec.origin or ""
    ours = os.path.join(os.path.dirname(os.__file__), "")
    installed = "site-packages" in place or "dist-packages" in place
    return place in ("built-in", "frozen") or (place.startswith(ours) and not installed)


def written() -> int:
    """Return how many bytes this process has ever written."""
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

    A CUDA context keeps /dev/nvidiactl, /dev/nvidia-uvm and the GPU's own device open, or only mapped. One that a
    library has created without a device is found by asking CUDA's library, if anything has loaded it.
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
    """Return which framework has chosen its devices for good, and thus without GPUs; empty if none has."""
    jax = sys.modules.get("jax._src.xla_bridge")
    if getattr(jax, "_backends", None) and {"cuda", "rocm"} & set(getattr(jax, "_backend_factories", ())):
        return "JAX"
    eager = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(eager, "_initialized", False) or getattr(eager, "_physical_devices", None) is not None:
        return "TensorFlow"
    return ""


def import_early(record: Record, turn: Turn) -> None:
    """Import the record's groups in order, noting in each what came. Stops before the next one once it is told.

    Before each it reports how the record must change, should that group's import kill this process.
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
            # Some of ours come with an adapter, which is called with the first module that it waits for.
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
    """Load shared libraries that the trainer had loaded and imports alone do not; return those loaded.

    Usually these are cuDNN's and cuBLAS's, which take a third of a second of a training's first step. None is
    initialized. One that needs another may find it only once that is loaded, so that all failures are retried then.
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
                ctypes.CDLL(path)  # its symbols stay local (RTLD_LOCAL), and it outlives the object
                loaded.append(path)
            except OSError:  # gone, or a dependency is missing
                failed.append(path)
        left = failed if len(failed) < before else []
    return loaded


def _with(environ: dict[str, str], variables: dict[str, str | None]) -> dict[str, str]:
    merged = {**environ, **variables}
    return {name: value for name, value in merged.items() if value is not None}


class Turn:
    """The connection to the shim: it gets `ready` or why not, and sends the changed variables, then `go`.

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
        """Return whether the shim has sent something."""
        import select

        return bool(select.select([self.number], [], [], 0)[0])

    def hear(self) -> Any:
        """Return the next message; exit if the shim is gone."""
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
    """Let this process's children inherit these descriptors."""
    for at in range(0, len(numbers), NUMBER_BYTES):
        os.set_inheritable(int.from_bytes(numbers[at : at + NUMBER_BYTES], sys.byteorder), True)


def score(value: str) -> str:
    """Set this process's OOM score adjustment; return the former one, empty if unknown."""
    try:
        with open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            before = file.read()
            file.seek(0)
            file.write(value or before)
        return before
    except OSError:
        return ""


def stamps() -> list[int]:
    """Return the mtime of each folder, or zip, of installed modules; 0 for one that is missing."""
    return [stamp(folder.rstrip(os.sep))[1] for folder in early_folders()]


def stamp(path: str) -> tuple[int, int]:
    """Return the size and mtime of a file, or of the zip that holds it; (0, 0) if it is gone."""
    while True:
        try:
            status = os.stat(path)
            return status.st_size, status.st_mtime_ns
        except NotADirectoryError:
            path = os.path.dirname(path)
        except OSError:
            return 0, 0


def files_of(record: Record, libraries: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return the files loaded early, and their folders, with their stamps.

    A file that is new in a folder may be one that a module has looked for in vain.
    """
    modules = [module for group in record.groups for module in list(group.modules.values())]
    named = [getattr(module, "__file__", None) for module in modules]
    paths = {path for path in named if isinstance(path, str)}.union(libraries)
    return {path: stamp(path) for path in [*paths, *{os.path.dirname(path) for path in paths}]}


def script_folder() -> str:
    """Return the folder in which Python first looks for the script's imports once it runs the script; empty: none."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return ""
    script = sys.argv[0]
    return os.getcwd() if script in ("", "-m", "-c") else os.path.dirname(os.path.realpath(script))


def beside(record: Record) -> list[str]:
    """Return what the job's own folders have under names that were requested: libraries find it there first."""
    libraries = early_folders()
    own = {os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry)}
    own = {folder for folder in own if not os.path.join(folder, "").startswith(libraries)}
    found = (os.path.join(folder, name) for folder in own for name in os.listdir(folder) if is_asked(name, record))
    return sorted(found)


def is_asked(file: str, record: Record) -> bool:
    """Return whether a file or folder of this name may be a module that was requested."""
    name, dot, _ = file.partition(".")
    return name in record.home and (not dot or file.endswith(MODULES))


def edited(before: dict[str, tuple[int, int]], now: dict[str, tuple[int, int]], since_ns: int, until_ns: int) -> str:
    """Return a file that has changed since it was imported, or during the imports; empty if none has."""
    changed = (path for path, stamp in now.items() if before.get(path) != stamp or since_ns <= stamp[1] <= until_ns)
    return next(changed, "")


def settle_garbage() -> None:
    """Collect garbage now and exempt all present objects from later collections.

    Otherwise that is due while the trainer builds its model (0.2 s of TensorFlow's), and again at its exit, for which
    its successor waits: modules imported early live as long as the process.
    """
    import gc

    gc.collect()
    gc.freeze()


def wait_turn(number: int, path: str) -> None:
    """Import early, wait, and return when this process is to become the trainer; otherwise exit.

    `number`: the descriptor of the connection to the shim. `path`: the record of the last run, then of this one.
    """
    turn = Turn(number)
    try:
        import time

        began_ns = time.time_ns()
        before, known, home, places = stamps(), set(sys.modules), os.getcwd(), list(sys.path)
        scored = score("1000")  # before anything else
        found = Record(path)
        turn.told()
        turn.connect()
        found.own([name for name in sys.modules if name not in known or name == __name__])
        sys.path[:0] = filter(None, [script_folder()])  # for libraries that only probe for a module
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
        sys.path_importer_cache.pop(script_folder(), None)  # Python's cache of a folder may be older than its files
        turn.say("set")
        if turn.hear() != "go":
            os._exit(1)
    except BaseException as fault:  # including an exit requested by an import
        try:
            turn.say("off", f"{fault or type(fault).__name__}"[:500])
        finally:
            os._exit(1)
    turn.connection.close()
    recorder = begin_record(path)
    if recorder is not None:
        finder: Any = Stash(found.groups, recorder)
        after = max(n for n, one in enumerate(sys.meta_path) if one is recorder or hasattr(one, "adapts"))
        sys.meta_path.insert(after + 1, finder)  # adapters are asked first
        recorder.finders = list(sys.meta_path)
