"""Keeps a waiting interpreter beside a trainer, so that its next start need not import everything again.

The waiting interpreter (`reshape_hooks/early.py`) is the trainer's own command, started a second time without a GPU
once the trainer has announced that it saves when asked; or before a launch's first trainer, if an earlier training by
the same script left its record in `launch.imports`. It imports what that training imported, and becomes the next
trainer when the shim starts one. Promises: it is started only where a record has shown that our hooks come first in
that interpreter; it never runs the script unless told to; if there is none, or it is unfit or dies, the trainer starts
without it. Standard library, Python 3.8: `shim.py` loads it from its own folder.
"""

import array
import ast
import contextlib
import os
import selectors
import signal
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any

SETTLE_S = 3.0  # since the announcement and the newest import: imports by the first steps are to be recorded, too
READY_S, TAKE_S = 120.0, 60.0  # to import, to become the trainer
LOOK_S, CALM_LOOK_S = 1.0, 20.0  # between two memory checks; where the kernel would kill only this interpreter
MOST_FAILURES = 3
MOST_RECORDS = 64  # of different scripts, in `launch.imports`
SPARE = 256 * 1024 * 1024  # bytes of memory that must stay free beside it
SPARE_OF_LIMIT = 4  # and 1/SPARE_OF_LIMIT of the limit, where the kernel kills a container as a whole
NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
RECORD = "imports"
RULES = ("('begin'", "('off'", "('left'")  # its lines that say whether an interpreter may wait, and for what
# Those of a framework's shared libraries that only compute: loading them uses no GPU and opens nothing.
LIBRARIES = ("libcudnn", "libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse", "libnvrtc", "libnvJitLink")
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")
BEGINS = "begins to wait"
NONE_YET = "no interpreter waited yet: one begins to wait some seconds after the training has announced that it saves"
NEW = "its launch or container is new, and an interpreter waits only beside a training"


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def is_python(command: "list[str]", begun: "list[str]") -> bool:
    """Return whether a Python in the command line `begun` is the command itself: no other program ran before it."""
    name, tail = os.path.basename(command[0]), begun[-len(command) :]
    same = len(tail) == len(command) and tail[1:] == command[1:]
    return same and (os.path.basename(tail[0]) == name or (name[:6] == "python" and len(begun) == len(command)))


def kernel_bytes(path: str, name: str) -> int:
    """Return the bytes that a /proc file gives for this name; 0 if absent."""
    with contextlib.suppress(OSError), open(path) as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(name)), 0)
    return 0


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def opened(pid: int) -> str:
    """Return a GPU device that a process has open; empty if none."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if path.startswith(DEVICES):
                    return path
    return ""


def libraries_of(pid: int) -> "list[str]":
    """Return the shared libraries among `LIBRARIES` that a process has mapped."""
    found = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith(LIBRARIES) and not path.endswith(" (deleted)"):
                found.add(f"/{path}")
    return sorted(found)


def script_of(command: "list[str]", workdir: str) -> "list[str]":
    """Return the part of a command that determines the imports: the program and its script, without arguments."""
    for number, word in enumerate(command[1:], 1):
        path = os.path.join(workdir, word)
        if os.path.isfile(path):
            return [*command[:number], os.path.abspath(path)]
        if word == "-m":
            return [*command[: number + 2], workdir]
    return [*command, workdir]


def copy(source: str, target: str) -> bool:
    """Copy a file atomically; return whether that worked."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(target)), mode=0o700, exist_ok=True)
        with open(source, "rb") as file, open(f"{target}.{os.getpid()}", "wb") as new:
            new.write(file.read())
        os.replace(new.name, target)
    except OSError:
        return False
    return True


class WaitingInterpreter:
    """A shim's waiting interpreter, or none.

    `child` while it waits, `taken` until the trainer that it becomes has begun, `leaving` when it was killed and has
    not exited yet.
    """

    def __init__(self, shim: Any, spawn: "Callable[[dict[str, str], int], Any]", say: "Callable[[str], None]") -> None:
        self.shim, self.spawn, self.say = shim, spawn, say
        self.child: Any = None
        self.taken: Any = None
        self.leaving: list[Any] = []
        self.socket: Any = None
        self.env: dict[str, str] = {}  # that it was started with
        self.inbox, self.ready, self.why, self.since, self.looked_at = b"", False, "", 0.0, 0.0
        self.said = ""  # why none waits, since the last start
        self.strict = False  # whether a late memory check may cost the training, too
        self.at: tuple[Any, ...] = ()  # the line for the record, should this one fail now
        self.left: list[str] = []  # which imports the script does itself, and why
        self.less: dict[str, Any] = {}  # by kind: such lines of those that failed; what is not done early, and why
        self.failures, self.memory = 0, 0  # memory: bytes of its own that the last one held when ready
        self.used_s, self.aside_s = 0.0, 0.0  # CPU seconds of this one, and of its predecessors
        self.tried, self.announced_at, self.size = 0, 0.0, 0  # for which trainer; when announced; size of its record
        self.first, self.settle_s = True, SETTLE_S  # first: no trainer has started, nor was one waited for
        with contextlib.suppress(ValueError):  # of the user's
            self.settle_s = float(shim.launch.env.get("RESHAPE_WARM", SETTLE_S))
        self.off = "" if shim.launch.hooks and self.settle_s > 0 else "early imports are switched off"

    def environment(self, env: "dict[str, str]") -> "dict[str, str]":
        """Return a trainer's environment, in which it records its imports.

        It fixes the hash seed, so that sets iterate in the same order in all generations of this job.
        """
        launch, self.shim.status["warm"] = self.shim.launch, self.off
        if launch.hooks:
            env = {"PYTHONHASHSEED": str(zlib.crc32(f"{launch.job_id} {launch.uid}".encode()) or 1), **env}
        return env if self.off else {**env, "RESHAPE_IMPORTS": os.path.abspath(RECORD)}

    def strangers(self) -> "list[Any]":
        """Return the children that belong to no trainer."""
        return [*([self.child] if self.child else []), *self.leaving]

    @property
    def busy(self) -> bool:
        """Return whether it is changing, so that the clock matters."""
        return bool(self.taken or self.leaving or (self.child and not self.ready))

    def become_trainer(self, env: "dict[str, str]", told: "set[str]") -> Any:
        """Make the waiting interpreter the trainer with these variables and return it; None without one.

        `told`: names of the variables that are set anew at each start.
        """
        child, before, said, self.said = self.child, self.env, self.said, ""
        early, self.first = self.first and not self.ready, False
        if child and early:
            return self.cold("it is started before early imports were done", env)
        if child is None or child.returncode is not None:
            self.cold(self.off or said or NONE_YET, env)
            return None
        differ = {name for name in {**before, **env} if before.get(name) != env.get(name)}
        if not all(name in told or name in NO_GPU or name.startswith("RESHAPE_") for name in differ):
            return self.cold("the trainer gets another environment", env)
        variables = {name: env.get(name) for name in differ if name not in ("RESHAPE_IMPORTS", "RESHAPE_WAIT")}
        message = ascii(variables).encode() + b"\n"
        try:
            sent = self.socket.send(message) if self.socket else 0
        except OSError:
            sent = 0
        if sent < len(message):
            return self.cold("the waiting interpreter does not listen", env)
        self.taken, self.child, self.since = child, None, boottime()
        return child

    def cold(self, why: str, env: "dict[str, str]") -> None:
        """End a waiting one and note why the trainer starts without it, unless it is the job's first start."""
        self.end(why if self.child else "")
        self.said, self.shim.status["warm_s"] = "", None
        if self.shim.trainer or env.get("RESHAPE_CHECKPOINT"):
            self.shim.status["cold"] = why if self.shim.trainer else NEW

    def tick(self, now: float) -> None:
        """Start, watch or end it."""
        shim, trainer = self.shim, self.shim.trainer
        self.leaving = [child for child in self.leaving if child.returncode is None]
        if self.taken and now > self.since + TAKE_S:
            self.why = "the waiting interpreter did not begin to train"
            os.killpg(self.taken.pid, signal.SIGKILL)  # the shim then starts the trainer without it
        if not self.child:
            if self.off or self.taken or shim.ending:
                return
            if trainer and shim.status["trainer"] == "running":
                self.begin(trainer, now)
            elif self.first and shim.status["trainer"] == "none":
                self.begin_first(now)
        elif self.child.returncode is not None:
            self.lost()
        elif shim.ending or (shim.status["trainer"] == "exited" and not shim.status["stop_asked"]):
            self.end("")
        elif now >= self.looked_at + (CALM_LOOK_S if self.ready and shim.tick_s > LOOK_S else LOOK_S):
            self.looked_at, self.used_s = now, cpu_s(self.child.pid)
            device = opened(self.child.pid)
            if device:  # as by a thread that an import started
                self.off = f"the waiting interpreter has opened a device ({device})"
                self.end(self.off)
            elif self.room() < 0:
                self.end("the memory of the waiting interpreter is needed")
            elif not self.ready and now > self.since + READY_S:
                self.end("the imports of the waiting interpreter do not end")

    def begin(self, trainer: Any, now: float) -> None:
        """Start it, once the trainer has settled and has shown that our hooks are in its interpreter."""
        if self.tried == trainer.pid or not trainer.begun:
            return
        size = os.path.getsize(RECORD) if os.path.exists(RECORD) else 0
        if size != self.size or not os.path.exists("announce"):
            self.size, self.announced_at = size, now  # a root that is still being imported is recorded only in part
        if now < self.announced_at + self.settle_s:
            if os.path.exists("announce") and self.settle_s < READY_S:
                self.shim.status["warm"] = BEGINS
            return
        self.tried, self.why = trainer.pid, self.unfit(trainer)
        if self.why:
            self.note(self.why)
            return
        self.amend([("libraries", libraries_of(trainer.pid)), *self.less_lines()])
        self.keep()
        self.start(self.shim.env, now)

    def begin_first(self, now: float) -> None:
        """Start it before the job's first trainer, if another training of this script left its record."""
        path = self.record_of_script()
        self.first = bool(path) and not self.shim.status["unfit"] and self.room() >= 0 and copy(path, RECORD)
        if self.first:
            self.amend(self.less_lines())
            self.start(self.environment(self.shim.environment(0, "", "", {})), now)

    def less_lines(self) -> "list[tuple[Any, ...]]":
        return [line for line, _ in self.less.values()]

    def amend(self, lines: "list[tuple[Any, ...]]") -> None:
        """Append lines of ours to the record, which the trainer also writes."""
        with contextlib.suppress(OSError), open(RECORD, "ab", buffering=0) as file:
            file.write(b"".join(ascii(line).encode() + b"\n" for line in lines))
        self.size = os.path.getsize(RECORD) if os.path.exists(RECORD) else 0

    def start(self, env: "dict[str, str]", now: float) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.env = {**env, **NO_GPU, "RESHAPE_WAIT": str(theirs.fileno())}
        with theirs:
            try:
                self.child = self.spawn(self.env, theirs.fileno())
            except (OSError, ValueError) as fault:
                ours.close()
                self.note(f"no waiting interpreter can be started ({fault})")
                return
        self.socket, self.inbox, self.ready, self.since, self.looked_at = ours, b"", False, now, now
        self.at = ()
        self.shim.selector.register(ours, selectors.EVENT_READ, self.hear)
        self.shim.status["warm"] = BEGINS

    def record_of_script(self) -> str:
        """Return the file that records this script's imports in this environment; empty where none is kept.

        A hash collision only costs a script early imports that it does not need.
        """
        launch = self.shim.launch
        env = sorted(pair for pair in launch.env.items() if not pair[0].startswith("RESHAPE_"))
        key = zlib.crc32(ascii((script_of(launch.command, launch.workdir), env)).encode())
        return os.path.join(launch.imports, f"{key:08x}") if launch.imports else ""

    def keep(self) -> None:
        """Keep the record for first starts of other jobs with this script, or of this one elsewhere."""
        path = self.record_of_script()
        if path and copy(RECORD, path):
            with contextlib.suppress(OSError):
                records = [
                    os.path.join(self.shim.launch.imports, name) for name in os.listdir(self.shim.launch.imports)
                ]
                for old in sorted(records, key=os.path.getmtime)[:-MOST_RECORDS]:
                    os.unlink(old)

    def unfit(self, trainer: Any) -> str:
        """Return why no interpreter should wait for the end of this trainer; empty if one may."""
        lines: list[Any] = []
        with contextlib.suppress(OSError, ValueError, SyntaxError), open(RECORD, encoding="ascii") as file:
            lines = [ast.literal_eval(line) for line in file if line.startswith(RULES)]
        left = [f"{line[1]} is left to the script ({line[2]})" for line in lines if line[0] == "left" and line[2]]
        self.left, lines = left[:1], [line for line in lines if line[0] != "left"]
        if not lines or lines[0][1] != trainer.pid or not is_python(self.shim.launch.command, lines[0][2]):
            self.off = "the command is no Python that loads our hooks"
        elif len(lines) > 1:
            self.off = str(lines[1][1])
        elif self.room() < (self.memory or kernel_bytes(f"/proc/{trainer.pid}/status", "RssAnon:")):
            return "there is too little memory for a waiting interpreter"
        return self.off

    def room(self) -> int:
        """Return the bytes of memory that it may take, in our container and on the machine; negative if over.

        Shared libraries are not counted: it shares them with the trainer.
        """
        free = kernel_bytes("/proc/meminfo", "MemAvailable:") - SPARE
        limit, used, whole = self.shim.memory()
        self.strict = whole
        spare = max(SPARE, limit // SPARE_OF_LIMIT) if whole else SPARE
        return min(free, limit - used - spare) if limit and used is not None else free

    def hear(self) -> None:
        """Read its messages."""
        data = b""
        try:
            data = self.socket.recv(65536) if self.socket else b""
        except BlockingIOError:
            return
        except OSError:  # as when it ends
            pass
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        for line in lines:
            kind, *fields = ast.literal_eval(line.decode())
            if kind == "at":
                (self.at,) = fields
            elif kind == "ready":
                self.ready, self.failures = True, 0
                self.shim.status["warm_s"] = round(boottime() - self.since, 3)
                status = f"/proc/{(self.child or self.taken).pid}/status"
                self.memory = kernel_bytes(status, "RssAnon:")
                held = f"{kernel_bytes(status, 'VmRSS:') >> 20} MiB"
                self.note("; ".join([f"ready ({held})", *self.left, *(said for _, said in self.less.values())]))
            elif kind == "set" and self.taken:
                self.taken.begin()
                locks = array.array("i", self.shim.gpus.values())
                attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, locks)] if locks else []
                self.socket.sendmsg([b"'go'\n"], attached)
                self.taken = None
                self.forget_process()
                return
            elif kind == "off":
                self.why = str(fields[0])
        if not data:
            self.hang_up()

    def lost(self, quiet: bool = False) -> None:
        """Handle its unexpected exit, waiting or before the trainer began. `quiet`: it was told to exit."""
        while self.socket:  # to learn why
            self.hear()
        if not quiet:
            self.failures += 1
            why = self.why or "the waiting interpreter ended"
            self.off = why if self.failures >= MOST_FAILURES else ""
            if self.at and self.child and self.child.returncode != -signal.SIGKILL and not self.off:
                self.tried, self.said, self.shim.status["warm"] = 0, why, BEGINS  # another one at once
                until = self.at[0] == "until"
                left = f"early imports end before {self.at[1]}" if until else "no shared library is loaded early"
                self.less[self.at[0]] = self.at, f"{left} ({why})"
                self.say(f"another interpreter begins to wait, and {self.less[self.at[0]][1]}")
            else:
                self.note(why)
            if self.taken:
                self.said, self.shim.status["cold"] = "", why
        self.taken = None
        self.forget_process()

    def end(self, why: str) -> None:
        """End the waiting interpreter."""
        if why:
            self.note(why)
        if self.child:
            self.used_s = cpu_s(self.child.pid)
            with contextlib.suppress(OSError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.leaving.append(self.child)
        self.forget_process()

    def forget_process(self) -> None:
        self.child, self.ready, self.why = None, False, ""
        self.aside_s, self.used_s = self.aside_s + self.used_s, 0.0
        self.hang_up()

    def hang_up(self) -> None:
        if self.socket:
            self.shim.selector.unregister(self.socket)
            self.socket.close()
            self.socket = None

    def note(self, what: str) -> None:
        self.shim.status["warm"] = what
        self.said = "" if what.startswith("ready") else what
        if not self.ready:
            start = "the next start of this trainer imports everything anew"
            self.say(f"{start if self.shim.trainer else 'the first trainer here does all its imports itself'}: {what}")

    def without(self, use: "dict[str, Any]") -> "dict[str, Any]":
        """Return our container's usage without that of waiting interpreters."""
        if use["cpu_s"] is not None and use["memory"] is not None:
            now, held = (cpu_s(self.child.pid), self.child.pid) if self.child else (0.0, 0)
            use["cpu_s"] = max(0.0, use["cpu_s"] - self.aside_s - now)
            use["memory"] = max(0, use["memory"] - (kernel_bytes(f"/proc/{held}/status", "RssAnon:") if held else 0))
        return use
