"""Makes a training script elastic, in one file of the standard library (Python 3.8 or newer).

Promises: a checkpoint is all old or all new, a damaged one is never loaded and never silently replaced by a start from
zero (`reliability.md` 4 P3, 7 rows 8 and 9); SIGTERM is answered at a step boundary. Called by training scripts, which
may also copy this file. Imports nothing of ours, but asks `claims` beside it for each training's own checkpoints. Times
are seconds of CLOCK_BOOTTIME, which all processes of one machine share and nobody can set.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import re
import select
import shutil
import signal
import socket
import stat
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

STOPPED = 143  # 128 + SIGTERM: saved and exited on request
WITHDRAWN = "withdrawn:"  # prefix of the reason, in the announcement
# Precedes a report: the shim starts a new line for it if the script has left one open (`sidecar/shim.py`).
OWN_LINE = "\x1e"
REPORTS_END = "reports=ended"  # in a hook's last report: the script's own output counts again
MANIFEST = "manifest.json"
NAME = re.compile(r"g([0-9]{1,18})-s([0-9]{1,18})")  # generation and step
TRAINING = re.compile("training-[1-9][0-9]{0,8}")  # the checkpoints of a job's later trainings, beside the first one's
CLAIMS = ".claims.json"  # beside the checkpoints: what identifies each training, and whether it has ended
RUNS = "runs"  # state of a claim whose training has not
BEHIND_TRAINING = ":"  # separates the training in a checkpoint's name: `training-2:g1-s30`
BAD = "bad-"
TEMPORARY = ".tmp-"
OLD = "-old"  # suffix of one that is to be deleted
ROOM = "room"  # beside copies in memory: how many bytes a save may take there; none without it
HOLDER = "holder.sock"  # there: the process that holds tensors on a GPU (`sidecar/gpu_memory.py`)
TENSORS, BULK = "tensors.json", "tensors.bin"  # in a checkpoint: what of it is held on a GPU, its bytes on disk
ANSWER_S = 30.0  # for the holder, which opens the GPU first
PIECE, CHUNK, THREADS = 1 << 20, 16 << 20, 4  # bytes per read, bytes per CRC, most threads for one digest
SHA256 = re.compile("[0-9a-f]{64}")  # the digest in older manifests

at_end: list[Callable[[], None]] = []  # called by `leave`, which bypasses `atexit`


class CheckpointError(Exception):
    """Raised when training cannot continue safely; the argument is a sentence for people."""


def training_name(number: int) -> str:
    """Return this training's folder inside the job's; empty for the first one."""
    return f"training-{number}" if number > 1 else ""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def tell(text: str) -> None:
    """Report one line at once, since the sidecar times steps by it; raises nothing, as no report is worth a training.

    It is printed. If stdout goes elsewhere than to the shim, such as to `tee` or a file, the shim is told directly: the
    user's file holds only what the script itself prints.
    """
    line = text + "\n"
    if _read_by_shim():
        _write(sys.stdout, OWN_LINE + line)
    elif not (os.environ.get("RESHAPE_OUTPUT") and _told_to_shim(line)):
        _write(sys.stdout, line)


def warn(text: str) -> None:
    """Print one line for people on stderr; raises nothing."""
    _write(sys.stderr, text + "\n")


def flush() -> None:
    """Flush what was printed, if possible."""
    for stream in (sys.stdout, sys.stderr):
        _write(stream, "")


def leave(code: int) -> NoReturn:
    """End this process at once, without tearing down its libraries, which takes a second and may hang."""
    if code == 0:
        for call in at_end:
            call()
    flush()
    os._exit(code)


def _write(stream: Any, text: str) -> None:
    with contextlib.suppress(Exception):  # its reader is gone, its disk full, or the script has closed or replaced it
        stream.write(text)
        stream.flush()


def _read_by_shim() -> bool:
    """Return whether the shim runs this process and itself reads what it prints."""
    read = os.environ.get("RESHAPE_OUTPUT")
    if not read or type(sys.stdout) is not io.TextIOWrapper:
        return False  # a notebook's has the descriptor of a file that it does not write to
    try:
        there = os.fstat(sys.stdout.fileno())
    except Exception:  # the script has put something else in its place
        return False
    return read == f"{there.st_dev}:{there.st_ino}"


def _told_to_shim(line: str) -> bool:
    """Write the line to the pipe that the shim reads for all its processes; return False if there is none."""
    data = line.encode("utf-8", "replace")
    if len(data) > select.PIPE_BUF:  # others could write into the middle of it
        return False
    try:
        pipe = os.open(os.environ.get("RESHAPE_REPORTS", ""), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(pipe, data)
    except OSError:  # the shim has not read for long: the next line reports the newest step, too
        pass
    finally:
        os.close(pipe)
    return True


def say(**fields: Any) -> None:
    """Report as `key=value` pairs, such as `step=12 total=400 loss=0.31 time=…`."""
    pairs = [f"{key}={value:.6g}" if isinstance(value, float) else f"{key}={value}" for key, value in fields.items()]
    tell(" ".join([*pairs, f"time={boottime():.6f}"]))


def end_reports() -> None:
    """Report that no hook counts from now on: only the script's own output shows its progress."""
    tell(f"{REPORTS_END} time={boottime():.6f}")


class Environment(NamedTuple):
    """The variables that the shim set for this process. `step_seconds` is None on real hardware."""

    job_id: str
    generation: int
    gpus: tuple[str, ...]
    checkpoints: str
    prefer: str | None  # the checkpoint to resume from, of any training; None: the newest good one
    announce: str | None
    step_seconds: float | None
    locks: str | None

    @property
    def emulated(self) -> bool:
        return self.step_seconds is not None


def environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Read the shim's variables. Without a shim, checkpoints go below the current folder.

    Raises SystemExit with a sentence if a value is unusable.
    """
    gpus = tuple(g.strip() for g in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if g.strip())
    generation = variables.get("RESHAPE_GENERATION") or "0"
    if not re.fullmatch("[0-9]{1,18}", generation):
        raise SystemExit(f"RESHAPE_GENERATION must be a whole number, not {generation!r}")
    nodes = variables.get("PET_NNODES", "")  # torchrun's count of a gang's pods, all with equally many GPUs
    pods = int(nodes) if re.fullmatch("[1-9][0-9]{0,4}", nodes) else 1
    job_id = variables.get("RESHAPE_JOB_ID") or Path(sys.argv[0]).stem or "by-hand"
    return Environment(
        job_id,
        int(generation),
        gpus,
        variables.get("RESHAPE_CHECKPOINTS") or str(Path("checkpoints") / job_id),
        variables.get("RESHAPE_CHECKPOINT") or None,
        variables.get("RESHAPE_ANNOUNCE") or None,
        _step_seconds(variables.get("RESHAPE_EMULATED_SPEED", ""), len(gpus) * pods),
        variables.get("RESHAPE_GPU_LOCKS") or None,
    )


def _step_seconds(text: str, count: int) -> float | None:
    if not text:
        return None
    try:
        speeds = {int(gpus): float(seconds) for gpus, seconds in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise SystemExit(f'RESHAPE_EMULATED_SPEED must look like {{"1": 0.2, "2": 0.12}}, not {text[:80]!r}') from None
    if not 0 < speeds.get(count, 0.0) < float("inf"):
        known = ", ".join(map(str, sorted(speeds)))
        raise SystemExit(f"RESHAPE_EMULATED_SPEED gives no seconds per iteration for {count} GPUs, only for {known}")
    return speeds[count]


def this_process() -> str:
    """Return what identifies this process, `<pid>@<start, in kernel ticks>`: pids are reused."""
    try:
        with Path("/proc/self/stat").open("rb") as file:
            return f"{os.getpid()}@{int(file.read().rpartition(b')')[2].split()[19])}"
    except OSError:  # /proc is not mounted
        return ""


class StopFlag:
    """Remembers SIGTERM (save and exit) and SIGUSR1 (save and continue) until the next step boundary.

    Both handlers only set a flag: a model is consistent between two steps, not inside one. Both are announced in the
    file named by the shim, by the process that is to get them: SIGUSR1 would kill a script that does not expect it, and
    SIGTERM the `tee` to which a training prints. While `idle` is true, as between two epochs of a loop, there is
    nothing to save: SIGTERM ends the process at once.
    """

    asked = False  # whether this process was ever asked to stop
    made = False  # whether this process's script has said that it saves when asked, so that it trains

    def __init__(self, announce: str | None = None, only_143: bool = False) -> None:
        """Handle both signals.

        `announce`: the file in which this is announced at once; None: see `Announced`, which waits for a first save.
        `only_143`: a process that was asked to stop and exits with 0 has finished, and is not restarted. It may finish
        while it is being asked, and its forked processes exit on SIGTERM. Raises CheckpointError if the script has read
        another one's checkpoint without saying that it resumes from it (`Checkpoints`).
        """
        if announce:
            StopFlag.made = True
            if Checkpoints.lent:
                raise CheckpointError(Checkpoints.lent)
        self.stopping = False
        self.saving = False
        self.idle = False
        self.announced = False
        self._withdrawn = False
        self.file = announce  # read by the shim; None: there is no shim, or another process announces
        self._only_143 = only_143
        self.listen()
        if announce:
            self.announce()
        if only_143:
            atexit.register(self._at_exit)
            os.register_at_fork(after_in_child=self._let_go)

    def leaving(self) -> None:
        """Report that this training is saved and ends unfinished, whatever exit status the command around it has."""
        self._tell_shim("stopped")

    def announce(self) -> None:
        """Tell the shim that this process answers both signals from now on."""
        self.announced, self._withdrawn = True, False
        self._tell_shim("SIGUSR1 143" if self._only_143 else "SIGUSR1")

    def withdraw(self, why: str) -> None:
        """Tell the shim that a stop would cost work now; `why`: one sentence for people, without its full stop."""
        if not self._withdrawn:
            self._tell_shim(WITHDRAWN + "\u00a0".join(why.split()))  # one word, since the shim splits at spaces
        self.announced, self._withdrawn = False, True

    def _tell_shim(self, words: str) -> None:
        """Append the words and this process to the announcement; without one a training is never stopped."""
        if not self.file:
            return
        try:
            with Path(self.file).open("a", encoding="utf-8") as file:
                file.write(f"{words} {this_process()}\n")
        except OSError as error:  # the disk may be full: then nothing announced counts
            with contextlib.suppress(OSError):
                Path(self.file).unlink()
            why = f"{self.file} cannot be written ({error.strerror})"
            warn(f"reshape: this training is not stopped for others, because {why}; make room there")

    def listen(self) -> None:
        """Handle both signals from now on; call it again after a library has set its own handlers."""
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_usr1)

    def ours(self) -> bool:
        """Return whether this object handles SIGTERM."""
        return getattr(signal.getsignal(signal.SIGTERM), "__self__", None) is self

    def _at_exit(self) -> None:
        """Ignore SIGTERM at exit: an interpreter shutting down would restore its default, for a second with TensorFlow.

        If the script has set its own handler, an exit with 0 may be its answer to a stop, not the end of its work.
        """
        if not self.ours():
            self._tell_shim("stopped")
        with contextlib.suppress(ValueError):  # in another thread, while the main one waits for threads of the script
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._tell_shim("ended")

    def _let_go(self) -> None:
        self.file = None  # the announcement belongs to the forking process
        if self.ours():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def take_save(self) -> bool:
        """Return whether a checkpoint without exit was requested since the last call."""
        if not self.saving:
            return False
        self.saving = False  # only now: a request since the check above must not be lost
        return True

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = StopFlag.asked = True
        if self.idle:
            self.leaving()
            sure_end = _sure_end()
            raise SystemExit(STOPPED) if sure_end is None else sure_end.to_raise()

    def _on_usr1(self, _number: int, _frame: FrameType | None) -> None:
        self.saving = True


def _sure_end() -> Any:
    """Make this process, which has saved, end whatever its script waits for; None if this file was copied alone."""
    try:
        from reshape_hooks import sure_end
    except ImportError:
        return None
    return sure_end.see_through(STOPPED, warn)


class Pace:
    """Makes each step last `seconds`, for emulated GPUs; None is real hardware: no waiting.

    Paced from one due time to the next, so that what happens between two steps does not add to them.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.due = boottime()

    def start(self) -> None:
        """Begin pacing now."""
        self.due = boottime()

    def wait(self) -> None:
        """Sleep until the step just computed would have ended. SIGTERM does not cut it short."""
        if self.seconds is None:
            return
        self.due = max(self.due + self.seconds, boottime())
        time.sleep(max(0.0, self.due - boottime()))


class Saved(NamedTuple):
    """A verified checkpoint."""

    name: str
    path: Path
    generation: int
    step: int


class Checkpoints:
    """The checkpoints of one training: `<folder>/g<generation>-s<step>/`, the manifest written last.

    A job's folder belongs to its first training; each other one has a folder in it, from its first look or save on. A
    training is identified by script, arguments and where the script creates this object: create one for each training.
    `shared`: True for a script that reads, or resumes from, what the first one has saved; False for one that never
    does. If unstated, a script that has saved nothing may read what another script of the job has saved, but not train.

    Fenced by generation: whatever a process of an older generation still writes never counts as newer than a later
    one's checkpoint. A save requested by a stop after which the training continues here at once is kept in memory first
    (`InMemory`), if the shim offers that; `newest` finds it there.
    """

    label = ""
    prefix = ""  # of their names where others read them
    claimed: Any = None  # the claim of the training that owns the checkpoints (`claims.move`)
    lent = ""  # why this process may not train: it has read what another script of the job has saved

    def __init__(
        self, folder: str | os.PathLike[str], job_id: str, generation: int, shared: bool | None = None
    ) -> None:
        self.folder = Path(folder)
        self.job_id = job_id
        self.generation = generation
        self.claim = None if shared else _claim_later(self, said=shared is not None)

    def save(
        self,
        step: int,
        files: Mapping[str, bytes | memoryview | Callable[[str], object]],
        report: Callable[[str], object] = tell,
        in_memory: Mapping[str, bytes | memoryview | Callable[[str], object]] | None = None,
    ) -> str:
        """Write all files or none, and return the checkpoint's name. Durable on return, unless memory was offered.

        A good checkpoint of this very step is kept. A callable may be called twice: for memory, and if that fails, for
        the disk. `report`: receives the line that says so. `in_memory`: the files for memory if different, as for a
        state held on a GPU. Raises CheckpointError; then nothing has changed.
        """
        self._find_own(looks=False)
        name = f"g{self.generation}-s{step}"
        first = files if in_memory is None else in_memory
        memory = self.place(first)
        if memory is not self:
            try:
                memory.save(step, first, report)
                memory.prune(keep=1)
                return name
            except CheckpointError:  # memory is full, or a file cannot be moved there
                pass
        temporary, began = self.folder / f"{TEMPORARY}{name}-{os.getpid()}", boottime()
        try:
            if not self._already(name):
                _write_set(temporary, self._manifest(step), files)
                temporary.rename(self.folder / name)
                _sync(self.folder)
        except Exception as error:  # files may be written by any library, which may raise anything
            shutil.rmtree(temporary, ignore_errors=True)
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise CheckpointError(
                f"the checkpoint of step {step} could not be saved in {self.folder}: {why}; "
                "make room there or make it writable"
            ) from error
        now = boottime()
        took = "" if self.label else f" took={now - began:.3f}"  # tells how long a stop may take
        report(f"checkpoint={self.prefix}{name} step={step}{self.label} time={now:.6f}{took}")
        if StopFlag.asked and StopFlag.made:  # the script exits next
            _sure_end()
        return name

    def newest(self, prefer: str | None = None) -> Saved | None:
        """Return `prefer` if it is good, else the newest good one by generation and step; None if there are none.

        If it is in memory and on disk, the copy in memory is used; its path stays valid when that is freed. Damaged
        ones are set aside as `bad-…` and the reason is printed. Raises CheckpointError if there were checkpoints and
        none is good: starting from zero is then a person's choice.
        """
        self._find_own(looks=True)
        if self.claimed is not None and prefer == os.environ.get("RESHAPE_CHECKPOINT"):
            prefer = self.claimed.prefer
        if prefer and BEHIND_TRAINING in prefer:  # another training's
            prefer = None
        memory = self._memory()
        places: list[Checkpoints] = [memory, self] if memory is not None else [self]
        found = [(name, place) for place in places for name in place._names()]
        found.sort(key=lambda one: (one[0] == prefer, _rank(one[0])), reverse=True)
        if prefer and prefer not in (name for name, _ in found):
            tell(f"checkpoint {prefer} is not in {self.folder}; looking for the newest good one")
        for name, place in found:
            fault = place._fault(name)
            if fault is None:
                return Saved(name, place.folder / name, *_rank(name))
            if place is memory and name not in memory._names():  # it has reached the disk meanwhile
                return self.newest(prefer)
            place._set_aside(name, fault)
        if found or prefer or any(place._had_bad() for place in places):
            raise CheckpointError(
                f"every checkpoint is damaged or gone in {self.folder}; refusing to start from zero: "
                f"put a good one back, or empty that folder to begin again"
            )
        return None

    def prune(self, keep: int = 2) -> None:
        """Delete all but the newest `keep`, and what killed processes left incomplete.

        While a copy in memory waits for the disk, they are only set aside: the copy's writer deletes them, so that the
        stop that requested it does not wait for that (0.4 s for 1.5 GB). Another job's are left alone and not counted:
        the folders of two jobs may have become one, by a link to a larger disk.
        """
        own = [name for name in self._names() if not self._is_of_another_job(name)]
        for name in sorted(own, key=_rank, reverse=True)[keep:]:
            self._discard(name)
        memory = self._memory()
        if memory is not None and memory._names():
            return
        for path in self.folder.glob(f"{TEMPORARY}*"):
            found = NAME.match(path.name, len(TEMPORARY))
            if found and int(found[1]) <= self.generation:
                shutil.rmtree(path, ignore_errors=True)

    def size(self) -> int:
        """Return the size of the newest checkpoint in bytes; 0 if there is none that can be read."""
        try:
            newest = max(self._names(), key=_rank, default=None)
            return sum(path.stat().st_size for path in (self.folder / newest).iterdir()) if newest else 0
        except (OSError, CheckpointError):
            return 0

    def place(self, files: Mapping[str, Any]) -> Checkpoints:
        """Return where a save of these files goes first: memory, if offered for that much, else the disk."""
        memory = self._memory()
        return memory if memory is not None and self._fits(memory, files) else self

    def _find_own(self, looks: bool) -> None:
        """Make these one training's checkpoints. Raises CheckpointError if it cannot be told whose."""
        if self.claim is not None and self.claim(looks):
            self.claim = None

    def has_any(self) -> bool:
        """Return whether there is a checkpoint, good or bad, here or in memory.

        Raises CheckpointError if nobody can tell.
        """
        memory = self._memory()
        return bool(self._names() or (memory is not None and memory._names()))

    def _memory(self) -> InMemory | None:
        """Return these checkpoints' copies in memory, in a folder that only we can access; None if there are none."""
        ours, path = os.environ.get("RESHAPE_CHECKPOINTS"), os.environ.get("RESHAPE_MEMORY")
        if not ours or not path or Path(ours) != self.folder:
            return None
        try:
            there = os.lstat(path)
        except OSError:
            return None
        private = stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid() and not there.st_mode & 0o077
        return InMemory(path, self.job_id, self.generation) if private else None

    def _fits(self, memory: InMemory, files: Mapping[str, Any]) -> bool:
        """Return whether memory is offered for these files; an unknown size is taken from the last checkpoint."""
        known = not any(callable(content) for content in files.values())
        size = sum(memoryview(content).nbytes for content in files.values()) if known else self.size()
        try:
            apart = memory.folder.stat().st_dev != self.folder.stat().st_dev
        except OSError:
            return False
        return apart and 0 < size <= memory.room()

    def _manifest(self, step: int) -> dict[str, Any]:
        return {"job_id": self.job_id, "generation": self.generation, "step": step}

    def _already(self, name: str) -> bool:
        if not os.path.lexists(self.folder / name):
            return False
        fault = self._fault(name)
        if fault is not None:
            self._set_aside(name, fault)
        return fault is None

    def _names(self) -> list[str]:
        try:
            return [path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"the checkpoints in {self.folder} cannot be read: {error.strerror}") from error

    def _is_of_another_job(self, name: str) -> bool:
        """Return whether its manifest names another job; one that cannot be read is judged when it is to be loaded."""
        try:
            job_id = _manifest_at(self.folder / name).get("job_id")
        except (OSError, ValueError, RecursionError):
            return False
        return isinstance(job_id, str) and job_id != self.job_id

    def _had_bad(self) -> bool:
        return any(NAME.match(path.name, len(BAD)) for path in self.folder.glob(f"{BAD}*"))

    def _fault(self, name: str) -> str | None:
        """Return why this checkpoint cannot be trusted, or None."""
        folder = self.folder / name
        try:
            manifest = _manifest_at(folder)
            wanted = (self.job_id, *_rank(name))
            if (manifest.get("job_id"), manifest.get("generation"), manifest.get("step")) != wanted:
                return f"its manifest is of job {manifest.get('job_id')!r}, not {self.job_id!r}, or of another step"
            files = manifest.get("files")
            if not isinstance(files, dict) or {*files, MANIFEST} != {path.name for path in folder.iterdir()}:
                return "its files are not those in its manifest"
            return next((f"{file} has changed" for file in files if not matches(folder / file, str(files[file]))), None)
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        except UnknownDigest as unknown:
            return str(unknown)
        except (ValueError, RecursionError):
            return "its manifest is not readable JSON"

    def _set_aside(self, name: str, fault: str) -> None:
        aside = next(f"{BAD}{name}{n}" for n in _suffixes() if not os.path.lexists(self.folder / f"{BAD}{name}{n}"))
        try:
            (self.folder / name).rename(self.folder / aside)
            tell(f"checkpoint {name} is damaged and was set aside as {aside}: {fault}")
        except OSError as error:
            tell(f"checkpoint {name} is damaged and was left where it is ({error.strerror}): {fault}")

    def _discard(self, name: str) -> None:
        """Set it aside for deletion: after a kill midway, its rest must not look like a damaged one."""
        with contextlib.suppress(OSError):
            (self.folder / name).rename(self.folder / f"{TEMPORARY}{name}{OLD}")


class InMemory(Checkpoints):
    """Copies in memory of the newest checkpoints. They count as saved once they are on disk.

    The shim creates the folder and its `room`, and frees it (`sidecar/memory.py`). A copy that is on disk has its files
    replaced by links to there, so that its path stays valid; it no longer counts as a copy.
    """

    label = " in=memory"

    def room(self) -> int:
        """Return how many bytes a save may take now; 0 if none."""
        try:
            with _open_regular(self.folder / ROOM) as file:
                return int(file.read(20))
        except (OSError, ValueError):
            return 0

    def _names(self) -> list[str]:
        return [name for name in super()._names() if not (self.folder / name / MANIFEST).is_symlink()]

    def _fault(self, name: str) -> str | None:
        fault = super()._fault(name)
        if fault is None and (self.folder / name / TENSORS).exists():
            fault = held_fault(self.folder / name)
        return fault


class HolderConnection:
    """A connection to the process that holds tensors on a GPU. Raises OSError, also if there is none."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect(str(path))

    def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Return the answer; its `ok` is False if the request was refused, and `why` says why."""
        self._socket.sendall(json.dumps({"do": verb, **fields}).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("the process that holds tensors on a GPU has ended")
            answer += data
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        self._socket.close()


def held_fault(folder: Path) -> str | None:
    """Return why this checkpoint's tensors are not available on a GPU, or None."""
    try:
        token = json.loads((folder / TENSORS).read_text())["token"]
        holder = HolderConnection(folder.parent / HOLDER)
        try:
            alive = holder.ask("alive", token=token)["ok"]
        finally:
            holder.close()
    except (OSError, ValueError, KeyError):
        alive = False
    return None if alive else "its tensors were in GPU memory, and the process that held them has ended"


def _claim_later(checkpoints: Checkpoints, said: bool) -> Callable[[bool], bool] | None:
    """Return a function that gives a training its own folder; None without a shim, or in a copy of this file."""
    folder = os.environ.get("RESHAPE_CHECKPOINTS")
    if __name__ != "reshape_hooks.plain" or not os.environ.get("RESHAPE_ANNOUNCE"):
        return None
    if not folder or Path(folder) != checkpoints.folder:
        return None
    claims = importlib.import_module("reshape_hooks.claims")
    known_by = claims.description("Checkpoints", "Checkpoints")  # now, as another call may look first, or save
    return functools.partial(claims.claim_alone, checkpoints, known_by, said)


def _rank(name: str) -> tuple[int, int]:
    generation, step = name[1:].split("-s")
    return int(generation), int(step)


def _suffixes() -> Iterator[str]:
    yield ""
    number = 2
    while True:
        yield f"-{number}"
        number += 1


def _write_set(
    folder: Path, manifest: dict[str, Any], files: Mapping[str, bytes | memoryview | Callable[[str], object]]
) -> None:
    """Write files and the manifest with their digests, all forced to disk; the caller renames the folder.

    Digests are of the bytes at hand, else of what a library wrote, read back while the disk is still writing.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        if Path(name).name != name or name in (MANIFEST, "..") or not name:
            raise ValueError(f"{name!r} cannot be a file name in a checkpoint")
        if callable(content):
            content(str(folder / name))
        else:
            (folder / name).write_bytes(content)
    paths = [folder / name for name in files]
    given = [path if callable(content) else content for path, content in zip(paths, files.values())]
    _, sums = together([lambda: _sync(*paths), lambda: [digest(one) for one in given]])
    stamps = {path.name: stamp(path) for path in paths}  # they tell the sidecar that it need not read the files again
    found = {"files": dict(zip(files, sums)), "written": {"boot": boot_id(), "stamps": stamps}}
    (folder / MANIFEST).write_text(json.dumps({**manifest, **found}))
    _sync(folder / MANIFEST)
    _sync(folder)


def _manifest_at(folder: Path) -> dict[str, Any]:
    with _open_regular(folder / MANIFEST) as file:
        manifest = json.load(file)
    if not isinstance(manifest, dict):
        raise ValueError("not an object")
    return manifest


# Digests. They detect faults: a file that is torn, zero-filled, swapped, or has a flipped bit. They do not guard
# against people with write access, who could also write another manifest. So CRC-32, with the size beside it, suffices:
# every Python has it, whereas a faster one (xxh3) could not be verified by an interpreter that lacks it; it is twice as
# fast as SHA-256; and it releases the GIL, so that several threads share a large file, chunk by chunk.


class UnknownDigest(ValueError):
    """Raised when the kind of a digest is unknown here; the argument is a sentence for people."""


def digest(content: Path | bytes | memoryview) -> str:
    """Return the digest of a file or of bytes, `crc32-16m:<bytes>:<CRC of its chunks' CRCs>`. Raises OSError."""
    if not isinstance(content, Path):
        view = memoryview(content).cast("B")
        return _joined(len(view), lambda at, end: zlib.crc32(view[at:end]))
    with _open_regular(content) as file:
        number = file.fileno()
        return _joined(os.fstat(number).st_size, lambda at, end: _crc_of_part(number, at, end))


def matches(path: Path, wanted: str) -> bool:
    """Return whether the file has this digest. Raises OSError, and UnknownDigest for one of a future version."""
    if SHA256.fullmatch(wanted):
        return _sha256(path) == wanted
    kind, _, rest = wanted.partition(":")
    if kind != "crc32-16m":
        raise UnknownDigest(
            f"its digests ({kind[:20]!a}) are not known here: a newer version has written it, or a fault"
        )
    return rest.partition(":")[0] == str(path.lstat().st_size) and digest(path) == wanted


def stamp(path: Path) -> list[int]:
    """Return what changes when a file is rewritten: its size, mtime and inode."""
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def boot_id() -> str:
    """Return the id of this boot; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def together(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call all tasks, in several threads if there are several, and return their results. Raises what one raised."""
    results: list[Any] = [None] * len(tasks)
    faults: list[BaseException] = []
    count = max(1, min(THREADS, len(tasks)))

    def work(first: int) -> None:
        try:
            for k in range(first, len(tasks), count):
                results[k] = tasks[k]()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(1, count)]
    for first, thread in enumerate(threads, 1):
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            work(first)
    work(0)
    for thread in threads:
        if thread.ident:
            thread.join()
    if faults:
        raise faults[0]
    return results


def _joined(size: int, crc: Callable[[int, int], int]) -> str:
    begins = range(0, size, CHUNK)
    found = together([functools.partial(crc, at, min(at + CHUNK, size)) for at in begins])
    return f"crc32-16m:{size}:{zlib.crc32(b''.join(one.to_bytes(4, 'big') for one in found)):08x}"


def _crc_of_part(number: int, at: int, end: int) -> int:
    crc, buffer = 0, memoryview(bytearray(min(PIECE, end - at)))
    while at < end:
        read = os.preadv(number, [buffer[: end - at]], at)
        if not read:  # it has become shorter
            return 0
        crc, at = zlib.crc32(buffer[:read], crc), at + read
    return crc


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with _open_regular(path) as file:
        while True:
            part = file.read(PIECE)
            if not part:
                return found.hexdigest()
            found.update(part)


def _open_regular(path: Path) -> Any:
    """Open for reading; refuse anything but a regular file, as a pipe would block forever."""
    if not path.is_file() or path.is_symlink():
        raise FileNotFoundError(2, f"{path.name} is missing")
    return path.open("rb")


def _sync(*paths: Path) -> None:
    for path in paths:
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
