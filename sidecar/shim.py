"""Runs one training process as its parent and restarts it with other GPUs on command.

Promises: the trainer runs only under the newest generation commanded, on the GPUs granted to it, until its lease ends;
once the shim reports `exited`, none of its processes is left. If the shim dies, the kernel kills the trainer; the next
shim, or `--end` on the folder, kills the trainer's children.

Started by `launcher/shim_command.py`, or as a container's first process (`pod` in launch.json): it then exits with the
trainer's exit status, and a restarted container resumes where it was. The sidecar commands it over a Unix socket, on
which it writes `sidecar.protocol.ShimStatus`. Runs in the user's image as `python3 -I -S shim.py`: standard library
only, Python 3.8. One thread; times are CLOCK_BOOTTIME.
"""

import argparse
import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import IO, Any, Iterable, Iterator

BIG_LINE, BIG_LOG, MOST_CLIENTS = 64 * 1024, 64 * 1024 * 1024, 32  # bytes, bytes, connections
MOST_ANNOUNCED = 16 * 1024 * 1024  # bytes: each process adds about 50, and a sweep may start any number of processes
MOST_COMMANDS = 64  # a command forgotten after this many newer ones is refused as outdated
TICK_S, STRAGGLERS_S = 0.1, 5.0  # clock polling; for processes that outlive an unstopped trainer
IDLE_S = 5.0  # a process left behind that has been idle this long is not training
BUSY = 0.2  # of a core: below this a process counts as idle
STUCK_S = 60.0  # without any work, after which a process that has saved but hangs at exit is killed
CALM_S, CALM_TICK_S = 30.0, 5.0  # a trainer undisturbed this long is polled, read and reported on less often
OWN_LINE = b"\x1e"  # as in `reshape_hooks/plain.py`: what follows must start a new line
MUCH, MUCH_TICK_S = 32 * 1024, 1.0  # bytes of output per CALM_TICK_S that call for reading this often
WAIT_BY_S = 10.0  # for an interpreter to reach our hooks and wait
RESTART_S, RESTART_MOST_S, RESTART_CALM_S, NEVER = 0.2, 10.0, 60.0, 1e15  # JSON has no infinity
ENDLESS_LEASE_S = 1e8  # as in `sidecar/protocol.py`
SAVES_S, SAVES_MOST_S = 10.0, 600.0  # a kill waits while checkpoint files change, at most this long
LOOK_S, MOST_FILES = 1.0, 50_000  # how often to check those files, and how many of them
SOURCE_SOCKET = "source.sock"  # as in `source_watch.py`
HAD_TO_KILL = "had to kill"  # as in `sidecar/protocol.py`
FAREWELL_S, STOPPED = 3.0, 128 + signal.SIGTERM  # for a sidecar elsewhere to report the end; exit status
LIBC, PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = ctypes.CDLL(None), 1, 36  # loaded before any fork
FRESH: "dict[str, Any]" = {
    "trainer": "none",
    "trainer_pid": None,
    "gpu_ids": [],
    "stop_asked": False,
    "fenced": False,
    "exit_code": None,
    "exit_note": "",
    "output_tail": "",
    "stop_at": None,
    "exit_at": None,
    "spawn_at": None,
    "output_from": None,
    "ending": False,
    "cpu_s": None,
    "memory": None,
    "block_io": None,
    "cpu_limit": None,
    "cpu_weight": None,
    "cold": "",
    "patient": False,
    "taken": "",
    "unfrozen": "",
    "unfrozen_by": "",
}


class Refused(Exception):
    """Raised when a request is refused: a sentence, and 409 if the caller's view of the job is outdated."""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(sentence: str) -> None:
    with contextlib.suppress(OSError):
        print(f"shim: {sentence}", file=sys.stderr, flush=True)  # noqa: T201


def send(pid: int, sign: int) -> None:
    """Signal a process, or a group if `pid` is negative. Ignores one that is gone; a survivor is noticed later."""
    with contextlib.suppress(OSError):
        os.kill(pid, sign)


def everybody(name: str) -> "Iterator[tuple[int, bytes]]":
    """Yield the pid and the file /proc/<pid>/`name` of every process that can be read."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            yield int(pid), file.read()


def born(pid: int) -> "tuple[int, int]":
    """Return a living process's parent and start time in kernel ticks; (0, 0) once it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return (0, 0) if fields[0] in b"ZX" else (int(fields[1]), int(fields[19]))
    return 0, 0


def killed_by_sigkill(pid: int) -> bool:
    """Return whether this process was ended by SIGKILL and its parent has not reaped it yet."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return fields[0] == b"Z" and os.WTERMSIG(int(fields[49])) == signal.SIGKILL
    return False


def answers_sigterm(pid: int, how: str) -> bool:
    """Return whether this process handles SIGTERM (`how` is SigCgt) or ignores it (SigIgn)."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        masks = [int(line.split()[1], 16) for line in file if line.startswith(f"{how}:")]
        return any(mask >> (signal.SIGTERM - 1) & 1 for mask in masks)
    return False


def wanted_s(pid: int) -> float:
    """Return the CPU seconds that a process has used or waited for: on a full machine it gets little."""
    found = 0
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                found += sum(map(int, file.read().split()[:2]))
    return found / 1e9


def family(strangers: "list[Child]") -> "dict[int, str]":
    """Return pid -> name of all our descendants, except `strangers`, their descendants and their sessions."""
    below: dict[int, list[tuple[int, int, str]]] = {}
    for pid, stat in everybody("stat"):
        head, _, tail = stat.decode("ascii", "replace").rpartition(")")
        parent, _, session = map(int, tail.split()[1:4])
        below.setdefault(parent, []).append((pid, session, head.partition("(")[2]))
    found: dict[int, str] = {}
    todo, skip = [os.getpid()], {stranger.pid for stranger in strangers}
    while todo:
        for child, session, name in below.get(todo.pop(), []):
            if not skip & {child, session}:
                found[child] = name
                todo.append(child)
    return found


def look_at_files(folder: str) -> "tuple[int, int, int]":
    """Return the number of files below a folder, their total size in bytes, and when one of them changed last."""
    count = size = changed = 0
    for here, _, names in os.walk(folder):
        for name in names[: MOST_FILES - count]:
            with contextlib.suppress(OSError):
                file = os.lstat(os.path.join(here, name))
                count += 1
                size += file.st_size
                changed = max(changed, file.st_mtime_ns)
    return count, size, changed


def unfit(launch: argparse.Namespace) -> str:
    """Return a sentence on why the command certainly cannot start; empty if it may."""
    home, program, env = launch.workdir, launch.command[0], {**os.environ, **launch.env}
    if not os.path.isdir(home):
        return f"no such folder: {home}; correct the job's `code`"
    found, asked, where = locate(program, home, env), program, f"in {home}" if "/" in program else "on its PATH"
    if found and os.access(found, os.X_OK):
        with open(found, "rb") as file:
            words = os.fsdecode(file.read(256).partition(b"\n")[0]).replace("#!", "#! ", 1).split()
        if words[:1] != ["#!"] or len(words) == 1:
            return ""
        asked, where = words[1], f"asked for by {program}"
        if os.path.basename(asked) == "env" and len(words) == 3 and words[2][0] != "-" and "=" not in words[2]:
            asked = words[2]
        found = locate(asked, home, env)
    if not found:
        return f"no such file: {asked} ({where}); correct the job's command"
    return "" if os.access(found, os.X_OK) else f"{found} is not executable; make it so (chmod +x) or name its program"


def locate(program: str, home: str, env: "dict[str, str]") -> "str | None":
    """Return the file that would be executed, resolved as the kernel and `execvp` do."""
    places = [""] if "/" in program else os.get_exec_path(env)
    files = list(filter(os.path.isfile, (os.path.join(home, place, program) for place in places)))
    return next((file for file in files if os.access(file, os.X_OK)), files[0] if files else None)


def startup_folder() -> str:
    """Return the folder that loads `reshape_hooks` into a Python, beside us or our package; empty if there is none."""
    here = os.path.dirname(os.path.abspath(__file__))
    beside = (os.path.join(folder, "reshape_hooks", "startup") for folder in (here, os.path.dirname(here)))
    return next(filter(os.path.isdir, beside), "")


def part(name: str) -> Any:
    """Load the module of that name from its file beside us, which is not on `sys.path`; None if there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"sidecar.{name}", path)
    if not os.path.exists(path) or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CONTAINER, WARM, MEMORY, LOCKS, FREEZER = map(part, ("container", "warm", "memory", "gpu_locks", "freezer"))
FILTER, OUTPUT, LEFTOVERS, WRITES = map(part, ("device_filter", "kept_output", "leftovers", "disk_writes"))


class Child(subprocess.Popen):  # type: ignore[type-arg]  # Python 3.8 cannot subscript it
    """A child in its own session with a bounded log.

    Dies with the thread that made it: create it in the main thread.
    """

    def __init__(
        self,
        shim: "Shim",
        command: "list[str]",
        env: "dict[str, str]",
        workdir: str,
        path: str,
        tee: bool,
        wait: "int | None" = None,
        gpus: "Iterable[int]" = (),
        entrance: str = "",
    ) -> None:
        """Start the child.

        `wait`: the connection of a waiting interpreter, whose output is not logged before it begins. `gpus`: the locks
        of its GPUs, which it and its children hold as long as they live. `entrance`: the file through which they enter
        their control group.
        """
        self.begun, self.watched = wait is None, False
        self.path, self.tee, self.shim, self.tail, self.wrote_at, self.since = path, tee, shim, b"", 0.0, boottime()
        self.came = 0.0  # bytes in about the last CALM_TICK_S
        (pipe, writer), parent = os.pipe(), os.getpid()
        self.log: IO[bytes] = OUTPUT.open_to_write(path)
        if self.begun:
            self._end_open_line()
        passed = [shim.lock, *gpus, *([] if wait is None else [wait])]
        os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # so that a burst of output does not make the trainer wait for us
            fcntl.fcntl(pipe, 1031, 256 * 1024)  # F_SETPIPE_SZ, which Python 3.8 does not name
        self.pipe = open(pipe, "rb", buffering=0)

        mark = LEFTOVERS.mark_of(os.getcwd())

        def die_with_parent() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:  # the parent died before the line above
                os._exit(1)
            LEFTOVERS.mark_this_process(mark)
            if entrance:
                with contextlib.suppress(OSError), open(entrance, "w") as file:
                    file.write("0")  # ourselves
            if wait is not None:
                signal.setitimer(signal.ITIMER_REAL, WAIT_BY_S)  # kills it unless our hooks start first and cancel this

        ours = os.fstat(pipe)  # tells a hook that its stdout is read here
        env = {**env, "RESHAPE_OUTPUT": f"{ours.st_dev}:{ours.st_ino}"}
        with open(writer, "wb") as output:
            super().__init__(
                command,
                env=env,
                cwd=workdir,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=passed,
                preexec_fn=die_with_parent,
            )
        self.watch(True)

    def watch(self, watched: bool) -> None:
        """Let the loop read output as it arrives, or leave it in the pipe."""
        if watched and not self.watched:
            self.shim.selector.register(self.pipe, selectors.EVENT_READ, self.read)
        elif self.watched and not watched:
            self.shim.selector.unregister(self.pipe)
        self.watched = watched

    def read(self) -> bool:
        """Log one piece of output; return False if there is none now. A full disk loses only text."""
        data = None if self.pipe.closed else self.pipe.read(select.PIPE_BUF)
        if data == b"":
            self.watch(False)
            self.pipe.close()
        elif data and self.begun:
            self.keep(data)
            self.watch(self is not self.shim.trainer or not self.shim.calm or len(data) == select.PIPE_BUF)
        return bool(data)

    def keep(self, data: bytes) -> None:
        """Log what was just printed or reported."""
        now = boottime()
        data = self._on_own_lines(data)
        self.came = len(data) + self.came * max(0.0, 1.0 - (now - self.wrote_at) / CALM_TICK_S)
        is_open = bool(self.tail) and not self.tail.endswith(b"\n")
        rest = data.find(b"\n") + 1 if is_open else 0  # of a line that the previous file would hold half of
        self.tail, self.wrote_at = (self.tail + data)[-2048:], now
        try:
            size = self.log.tell() + len(data)
            full = size > BIG_LOG and (rest > 0 or not is_open or size > BIG_LOG + BIG_LINE)
            if full:
                self.log.write(data[:rest])
                following = OUTPUT.open_to_write(self.path, full=True)
                self.log.close()
                self.log = following
                self.shim.status.update({"output_from": 0} if self is self.shim.trainer else {})
            self.log.write(data[rest:] if full else data)
            if self.tee and select.select([], [1], [], 0)[1]:  # a stalled reader of our stdout must not block us
                os.write(1, data)
        except OSError as fault:
            say(f"output for {self.path} is lost ({fault.strerror}); make room on that disk")

    def _on_own_lines(self, data: bytes) -> bytes:
        """Start a new line for each hook report if the output before it did not end one."""
        begun, *reports = data.split(OWN_LINE)
        for report in reports:
            before = begun or self.tail
            begun += (b"\n" if before and not before.endswith(b"\n") else b"") + report
        return begun

    def open_log(self) -> None:
        """Reopen the log: another child may have rotated it meanwhile."""
        self.log.close()
        self.log = OUTPUT.open_to_write(self.path)
        self._end_open_line()

    def _end_open_line(self) -> None:
        if OUTPUT.ends_open(self.path):
            with contextlib.suppress(OSError):  # a full disk loses text, and keeps no trainer from starting
                self.log.write(b"\n")

    def begin(self) -> None:
        """Start logging: a waiting interpreter becomes the trainer."""
        while self.read():
            pass
        self.begun = True


class ReportPipe:
    """The pipe in F through which hooks report when their output goes elsewhere, such as to `tee` or a file."""

    def __init__(self, shim: "Shim", open_to_all: bool) -> None:
        self.shim, self.path, self.pipe, self.watched = shim, os.path.abspath("reports"), -1, False
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            os.mkfifo(self.path, 0o600)
            os.chmod(self.path, 0o622 if open_to_all else 0o600)
            self.pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)  # we hold a write end, so it never reaches EOF
            fcntl.fcntl(self.pipe, 1031, 256 * 1024)
        except OSError as fault:
            say(f"hooks can report only by what they print: {self.path} cannot be made ({fault.strerror})")

    def read(self) -> None:
        """Log whole lines that have arrived, after the trainer's own output. The loop keeps reading during bursts."""
        data, trainer = b"", self.shim.trainer
        with contextlib.suppress(OSError):
            data = os.read(self.pipe, 256 * 1024)
        if data and trainer:
            trainer.keep(OWN_LINE + data)
        if self.watched is self.shim.calm and self.pipe >= 0:
            self.watched = not self.watched
            if self.watched:
                self.shim.selector.register(self.pipe, selectors.EVENT_READ, self.read)
            else:
                self.shim.selector.unregister(self.pipe)


class Shim:
    """Holds the state, handles requests and runs the loop. Its working directory is F: bare file names are there."""

    def __init__(self, launch: argparse.Namespace, lock: int, listener: socket.socket) -> None:
        self.launch, self.lock, self.listener, self.selector = launch, lock, listener, selectors.DefaultSelector()
        self.status = dict(FRESH, version=1, shim_pid=os.getpid(), generation=0, command_id="", lease_deadline=0.0)
        self.status.update(unfit="", warm="", warm_s=None, in_memory=None, on_gpu="", holder=None, freezes=False)
        self.status.update(gpu_access="", copy_lost=None)
        with contextlib.suppress(OSError, ValueError, TypeError):  # if it cannot be judged, try it
            self.status["unfit"] = unfit(launch)
        self.clients: dict[socket.socket, bytes] = {}  # each with the start of the line that it is sending
        self.letters: dict[socket.socket, bytes] = {}  # not sent yet
        self.done: list[tuple[str, str]] = []
        self.trainer: Child | None = None
        self.sidecar: Child | None = None
        self.source: Any = None  # in a pod: the process that watches whether the trainer's code is edited
        self.asked: set[int] = set()  # descendants of the trainer that were asked to stop
        self.held: dict[int, int] = {}  # processes held until others have saved -> when each was born
        self.saving: dict[int, int] = {}  # processes asked to save -> when each was born
        self.background: set[int] = set()  # processes that train on though the command has exited cleanly
        # When they were last seen busy, and the CPU seconds that they had wanted by then.
        self.used: tuple[float, float] = (0.0, 0.0)
        self.waits = False  # the newest stop waits for those that save
        self.unsaving_since = NEVER  # while it waits: since when no living process saves
        self.looked_for_restarts = 0.0
        self.looked_at_end = self.lived_at = 0.0  # processes that have saved and are exiting
        # When they last showed that they live, and the CPU seconds that they had wanted by then.
        self.life_at_end: tuple[int, float] = (0, 0.0)
        self.end_code = 0  # of one of them, or of one that saved on behalf of a held process
        self.killed: dict[int, str] = {}
        self.kill_at, self.told_at, self.shown, self.kept = NEVER, 0.0, dict(self.status), dict(self.status)
        self.grace_s = launch.grace_s  # of the newest stop
        self.files: Any = None  # of its checkpoints, before it is killed: count, bytes and newest change
        self.writes: Any = WRITES.DiskWrites()
        self.spares = False  # the newest stop, which nobody asked for, spares what still writes
        self.looked_at = self.changed_at = 0.0
        self.tick_s, self.calm, self.heard = TICK_S, False, False  # no events for a while; a client asked
        self.sidecar_at, self.restart_s, self.sidecar_kill_at = 0.0, RESTART_S / 2, NEVER
        self.end_as: "int | None" = None  # an exit status
        self.gpus: dict[str, int] = {}  # locks of the real GPUs in use
        self.filter: Any = None
        if FILTER and launch.gpus == "nvml" and not launch.pod:
            self.filter = FILTER.GpuFilter(launch, self.status)
        self.alive = self.ending = self.over = self.in_place = False  # alive: any process of the trainer
        self.apart = launch.pod and not launch.sidecar  # the sidecar runs in its own container
        self.env: dict[str, str] = {}
        self.reports = ReportPipe(self, launch.pod)
        self.memory = CONTAINER.limits if CONTAINER else lambda: (0, None, False)
        self.warm: Any = WARM and WARM.WaitingInterpreter(self, self._wait, say)
        self.freezer: Any = FREEZER and FREEZER.Freezer(self, say, Refused, LOCKS)
        self.status["freezes"] = bool(self.freezer and not self.freezer.unable())
        if launch.pod and os.path.exists("shim.state"):
            self._go_on()
        elif self.status["unfit"]:
            say(f"cannot start: {self.status['unfit']}")
        self.copy: Any = MEMORY and MEMORY.MemoryCopy(self, say, os.path.dirname(startup_folder()))

    def _go_on(self) -> None:
        """Resume from the state of the previous container, except its lease: the machine may have rebooted."""
        try:
            with open("shim.state", encoding="utf-8") as file:
                status, done = json.load(file)
            done = [(str(verb), str(command)) for verb, command in done]
            if status.keys() != self.status.keys() or not isinstance(status["generation"], int):
                raise ValueError("other fields")
        except (OSError, ValueError, TypeError, LookupError, AttributeError) as fault:
            say(f"begins anew, because shim.state cannot be read ({fault!r:.200}); its machine may have crashed")
            return
        self.done = done
        self.status.update(status, shim_pid=os.getpid(), lease_deadline=0.0, ending=False)
        if self.status["trainer"] in ("running", "stopping", "frozen"):
            note = "its container ended with it and was started again"
            self.status.update(trainer="exited", trainer_pid=None, exit_code=-9, exit_note=note, exit_at=boottime())

    def _keep(self) -> None:
        """Save the state before publishing it: a successor must not obey the same command again."""
        if self.launch.pod and self.status != self.kept:
            with contextlib.suppress(OSError), open("shim.new", "w", encoding="utf-8") as file:
                print(json.dumps([self.status, self.done]), file=file, flush=True)  # noqa: T201  # a full disk shows now
                os.replace("shim.new", "shim.state")
                self.kept = dict(self.status)

    def _answer(self, line: bytes) -> "dict[str, Any]":
        answer: dict[str, Any] = {"ok": True}
        try:
            self._obey(json.loads(line))
        except Refused as no:
            answer = {"ok": False, "error": no.args[0], "conflict": no.args[1:] == (409,)}
        except Exception as fault:  # no request may bring down the trainer's parent
            answer = {"ok": False, "error": f"send one JSON object with all its fields on one line ({fault!r:.200})"}
        self._keep()
        return {**answer, "status": self.status}

    def _obey(self, ask: "dict[str, Any]") -> None:
        if ask["do"] in ("start", "stop", "checkpoint"):
            command, generation = (ask["do"], str(ask["command_id"])), int(ask["generation"])
            if command in self.done:
                return
            if generation < self.status["generation"]:
                raise Refused("old generation", 409)
            if ask["do"] == "stop" and ask.get("freeze") is True:
                self._freeze(ask)
                return
            {"start": self._start, "stop": self._stop, "checkpoint": self._checkpoint}[ask["do"]](ask)
            self.obeyed(ask)
        elif ask["do"] == "renew" and self.status["trainer"] == "frozen":
            pass  # without a GPU it needs no lease
        elif ask["do"] == "renew":
            self.status["lease_deadline"] = self._lease(float(ask["deadline"]))
            if len(self.clients) == 1:  # the answer itself tells it
                self.shown["lease_deadline"] = self.status["lease_deadline"]
        elif ask["do"] == "end":
            self.end_as = int(ask["exit_code"]) if "exit_code" in ask else self.end_as
            self._end()
        elif ask["do"] == "status":
            use = CONTAINER.use() if self.apart and CONTAINER else {}
            self.status.update(self.warm.without(use) if use and self.warm else use)
        else:
            raise Refused("`do` must be start, stop, checkpoint, renew, status or end")

    def obeyed(self, ask: "dict[str, Any]") -> None:
        """Note that a command was carried out: no older one is obeyed from now on."""
        command = ask["do"], str(ask["command_id"])
        self.status.update(generation=int(ask["generation"]), command_id=command[1])
        self.done = [*self.done[1 - MOST_COMMANDS :], command]

    def _freeze(self, ask: "dict[str, Any]") -> None:
        """Begin to freeze the trainer. The command counts as obeyed once it is frozen; if that fails, it trains on."""
        if not self.freezer:
            raise Refused("this launch cannot freeze its trainer")
        self.freezer.freeze(ask, family(self._strangers()))

    def _lease(self, asked: float) -> float:
        """Return the later deadline, since replies may arrive late; after an endless lease, the one asked for."""
        held = self.status["lease_deadline"]
        return min(asked if held > boottime() + ENDLESS_LEASE_S and asked > 0 else max(held, asked), NEVER)

    def _start(self, ask: "dict[str, Any]") -> None:
        launch, gpu_ids = self.launch, [str(gpu) for gpu in ask["gpu_ids"]]
        checkpoint, gpus = str(ask.get("checkpoint") or ""), ",".join(self.devices(gpu_ids))
        lease = self._lease(float(ask.get("lease_deadline") or 0))
        if self.alive and not self.ending and self.status["trainer"] == "frozen":
            self.freezer.thaw(ask, gpu_ids, lease)
            return
        if self.alive or self.ending:
            raise Refused("a trainer is still running here; stop it first", 409)
        given = gpu_ids if launch.visible_gpus is None else launch.visible_gpus
        if len(set(gpu_ids)) < len(gpu_ids) or not set(gpu_ids) <= set(given):
            raise Refused(f"`gpu_ids` cannot be {gpu_ids!r:.200}; name GPUs of this launch, each at most once")
        if "/" in checkpoint or checkpoint in (".", ".."):
            raise Refused("`checkpoint` must be a plain name inside the job's folder")
        if lease and boottime() >= lease - launch.grace_s:
            raise Refused("the lease of this trainer is over already; renew it and start again")
        if self.copy and self.copy.gpu and self.copy.gpu not in gpu_ids:
            self.copy.withdraw()
        taken = self.lock_gpus(gpu_ids)
        if taken:
            say(taken)
            self.status.update(FRESH, lease_deadline=lease, trainer="exited", taken=taken, exit_at=boottime())
            return
        told = {str(name): str(value) for name, value in (ask.get("env") or {}).items()}
        env = self.environment(int(ask["generation"]), gpus, checkpoint, told)
        self.kill_at, self.asked, self.killed, self.files = NEVER, set(), {}, None
        self.held, self.saving, self.background, self.used, self.end_code = {}, {}, set(), (0.0, 0.0), 0
        self.looked_at_end = 0.0
        self.waits = self.spares = False
        self.writes = WRITES.DiskWrites()
        self.unsaving_since = NEVER
        self.status.update(FRESH, lease_deadline=lease, gpu_ids=gpu_ids, spawn_at=boottime(), warm="")
        self.env = self.warm.environment(env) if self.warm else env
        if launch.pod:
            self._watch_source()
        self._spawn(self.warm.become_trainer(self.env, set(told)) if self.warm else None)

    def lock_gpus(self, gpu_ids: "list[str]") -> str:
        """Lock these real GPUs machine-wide, and let the trainer open them and no others.

        Return why that failed, in which case none is locked; empty on success.
        """
        self.unlock_gpus()
        try:
            for gpu in gpu_ids if LOCKS and self.launch.gpus == "nvml" and not self.launch.pod else ():
                lock = self.gpus.get(gpu) or LOCKS.take_lock(gpu)
                if lock is None:
                    user = LOCKS.described(LOCKS.holder(gpu) or 0)
                    self.unlock_gpus()
                    return f"GPU {gpu} is used by {user}, which is not of this `reshape up`"
                self.gpus[gpu] = lock
        except LOCKS.Unusable as fault:  # train anyway: only other users of the machine could take it, too
            say(str(fault))
        if self.filter:
            self.filter.permit(gpu_ids)
        return ""

    def unlock_gpus(self) -> None:
        """Unlock all GPUs except one that holds the last trainer's state, and let no process open any."""
        held = self.copy.gpu if self.copy else ""
        for gpu in [one for one in self.gpus if one != held]:
            os.close(self.gpus.pop(gpu))
        if self.filter:
            self.filter.permit(())

    def environment(self, generation: int, gpus: str, checkpoint: str, told: "dict[str, str]") -> "dict[str, str]":
        """Return a trainer's environment, without the variables for early imports.

        `told`: what the start command adds.
        """
        env = {**os.environ, **self.launch.env}
        if self.copy and not self.copy.off:
            checkpoint, env["RESHAPE_MEMORY"] = self.copy.newer(checkpoint), self.copy.folder
        env.update(
            RESHAPE_JOB_ID=self.launch.job_id,
            RESHAPE_GENERATION=str(generation),
            RESHAPE_CHECKPOINT=checkpoint,
            RESHAPE_ANNOUNCE=os.path.abspath("announce"),
            RESHAPE_REPORTS=self.reports.path,
            PYTHONUNBUFFERED="1",
            CUDA_DEVICE_ORDER="PCI_BUS_ID",
            RESHAPE_GPUS=gpus,
            CUDA_VISIBLE_DEVICES=gpus,
            NVIDIA_VISIBLE_DEVICES=gpus or "void",  # empty, not unset: unset means all
            **told,
        )
        if self.launch.hooks:
            path = os.pathsep.join(filter(None, (startup_folder(), env.get("PYTHONPATH"))))
            env.update({"PYTHONPATH": path} if path else {})
        return env

    def _spawn(self, waiting: "Child | None" = None) -> None:
        """Start the trainer, or turn the waiting interpreter into it."""
        launch = self.launch
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("announce")
            if waiting:
                waiting.open_log()
            given = launch.workdir, launch.output, launch.tee
            self.trainer = waiting or Child(
                self, launch.command, self.env, *given, gpus=self.gpus.values(), entrance=self.entrance
            )
            self.alive = True
            self.status.update(trainer="running", trainer_pid=self.trainer.pid, output_from=self.trainer.log.tell())
        except (OSError, ValueError, TypeError, subprocess.SubprocessError) as fault:  # codes are a shell's
            what, why = getattr(fault, "filename", None) or launch.command[0], getattr(fault, "strerror", None) or fault
            self.status.update(exit_note=f"cannot start {what!r} ({why}); correct the job's command", trainer="exited")
            say(self.status["exit_note"])
            self.unlock_gpus()
            self.status.update(exit_code=127 if isinstance(fault, FileNotFoundError) else 126, exit_at=boottime())

    def _watch_source(self) -> None:
        """Start a process that tells the sidecar, which may not see this container, which trainer files were edited."""
        self._end_source()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOURCE_SOCKET)
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "source_watch.py")
        if not os.path.exists(program):
            return
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(SOURCE_SOCKET)
                os.chmod(SOURCE_SOCKET, 0o666)  # the sidecar may run as another user
                listener.listen(16)
                trainer = json.dumps([boottime(), self.launch.workdir, *self.launch.command])
                self.source = subprocess.Popen(
                    [sys.executable, "-I", "-S", program, str(listener.fileno())],
                    env={**os.environ, "RESHAPE_TRAINER": trainer},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=[listener.fileno()],
                )
        except (OSError, ValueError) as fault:
            say(f"cannot watch whether the code is edited ({fault})")

    def _end_source(self) -> None:
        """End the process that watches the trainer's files; it has nothing to save."""
        if self.source and self.source.returncode is None:
            send(self.source.pid, signal.SIGKILL)

    def _wait(self, env: "dict[str, str]", connection: int) -> Child:
        """Start an interpreter that waits."""
        launch = self.launch
        given = launch.workdir, launch.output, launch.tee
        return Child(self, launch.command, env, *given, wait=connection, entrance=self.entrance)

    @property
    def entrance(self) -> str:
        """Return the file through which processes enter the group that opens only their GPUs; empty without one."""
        return str(self.filter.entrance) if self.filter else ""

    def _strangers(self) -> "list[Child]":
        """Return our children that are not trainers."""
        ours = (self.sidecar, self.source, self.copy and self.copy.writer)
        more = (part.strangers() for part in (self.warm, self.freezer) if part)
        return [*filter(None, ours), *(child for children in more for child in children)]

    def devices(self, gpu_ids: "list[str]") -> "list[str]":
        """Return the trainer's devices: the granted ones, or as many from a device plugin (`device_plugin`).

        The status keeps naming the granted ones, since they count the GPUs taken on a node; the plugin picks which.
        """
        if not self.launch.device_plugin:
            return gpu_ids
        named = [one for one in os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",") if one[:4] in ("GPU-", "MIG-")]
        if named and len(named) < len(gpu_ids):
            raise Refused(f"the device plugin gave this container {len(named)} GPUs, not {len(gpu_ids)}")
        return (named or [str(index) for index in range(len(gpu_ids))])[: len(gpu_ids)]

    def driver_place(self) -> "dict[str, str]":
        """Return the variable that locates the driver's library, if that is in an unusual place."""
        return {name: self.launch.env[name] for name in ("LD_LIBRARY_PATH",) if name in self.launch.env}

    def _stop(self, ask: "dict[str, Any]") -> None:
        """Stop the trainer.

        With `wait`, a trainer that announced that it saves when asked is not killed before it has, and no other one
        while it writes to a disk, at most for SAVES_MOST_S.
        """
        self.grace_s = float(ask.get("grace_s", self.launch.grace_s))
        self.spares = ask.get("wait") is True
        self.waits = self.spares and bool(self._savers())
        kill_at = NEVER if self.waits else boottime() + self.grace_s
        self._quit(kill_at, in_place=ask.get("in_place") is True, after=[str(gpu) for gpu in ask.get("gpu_ids") or ()])

    def _quit(self, kill_at: float, fenced: bool = False, in_place: bool = False, after: "Iterable[str]" = ()) -> None:
        """Send SIGTERM once; `kill_at` can only move closer.

        `in_place`: its successor starts here at once, so memory may keep what it saves, if it announced that it does.
        `after`: the successor's GPUs, as far as known.
        """
        if self.status["trainer"] == "frozen":
            kill_at = boottime()  # it cannot answer
        if self.alive and fenced:
            self.status["fenced"] = True  # also if it was asked to stop before
        self.kill_at, self.in_place = min(self.kill_at, kill_at), in_place
        self.status["patient"] = self.alive and self.kill_at == NEVER
        if self.copy and not in_place:
            self.copy.withdraw()
        if self.trainer and (self.trainer.returncode is None or self.background) and not self.status["stop_asked"]:
            gpus = list(after)
            offered = in_place and self.copy and self._announced(b"SIGUSR1") and self.copy.offer(self._stays(gpus))
            if offered:
                self.copy.prepare((len(self.status["gpu_ids"]), len(gpus)))
            self.status.update(trainer="stopping", stop_asked=True, stop_at=boottime())
            self._ask_to_save(self.trainer)

    def _stays(self, after: "list[str]") -> str:
        """Return the GPU on which the trainer's state may stay for its successor; empty if there is none.

        That is the first GPU of both: a training keeps its state on the first GPU that it sees.
        """
        before = self.status["gpu_ids"]
        real = self.launch.gpus == "nvml"
        return before[0] if real and before and after and before[0] == after[0] else ""

    def _ask_to_save(self, trainer: Child) -> None:
        """Send SIGTERM to the processes that announced that they save, or to the leader if none did.

        torchrun tells its own processes.

        All others, such as a `tee` that reads their output, live until these have ended. Of the processes that wait for
        them, one that handles SIGTERM gets it too. Any other would move on to the next command of a script, or end the
        savers by exiting: it is held until they have ended, then ended by the same signal, or by SIGKILL if it ignores
        that.
        """
        leader = {trainer.pid} if trainer.returncode is None else set()
        self.writes.begin(family(self._strangers()), boottime())
        self.saving = {pid: born(pid)[1] for pid in self._savers() or leader}
        for pid in self.saving:
            above = born(pid)[0]
            while above not in (0, os.getpid()) and above not in self.saving:
                if not answers_sigterm(above, "SigCgt"):
                    self._hold_still(above)
                elif above not in self.asked:
                    self.asked.add(above)
                    send(above, signal.SIGTERM)
                above = born(above)[0]
        self.asked.update(self.saving)
        for pid in self.saving:
            send(pid, signal.SIGTERM)

    def _hold_still(self, pid: int) -> None:
        """Stop this process until all savers have ended."""
        self.held[pid] = born(pid)[1]
        send(pid, signal.SIGSTOP)

    def _still_saving(self) -> bool:
        """Return whether a process that was asked to save is still alive."""
        return any(when and born(pid)[1] == when for pid, when in self.saving.items())

    def _let_go(self) -> None:
        """End the held processes once all savers have ended. Their own exit says nothing about how the savers ended."""
        held, self.held = self.held, {}
        if any(map(killed_by_sigkill, self.saving)):
            self.end_code = -signal.SIGKILL
        for pid, when in held.items():
            if born(pid)[1] == when:
                ignores = answers_sigterm(pid, "SigIgn")
                if ignores:
                    self.end_code = self.end_code or -signal.SIGTERM  # we ended it; it did not run out of memory
                send(pid, signal.SIGKILL if ignores or pid in self.killed else signal.SIGTERM)  # before it goes on
                send(pid, signal.SIGCONT)

    def _announcements(self) -> "Iterator[list[bytes]]":
        """Yield the words of each line of the announcement, to which every process of the trainer may write."""
        with contextlib.suppress(OSError), open("announce", "rb") as file:
            text = file.read(MOST_ANNOUNCED)
            if len(text) == MOST_ANNOUNCED:
                text = text[: text.rfind(b"\n") + 1]  # its last line may be cut, and could name another process
            yield from (line.split() for line in text.splitlines())

    def _announced(self, word: bytes) -> bool:
        """Return whether a hook announced this:

        SIGUSR1 (saves and trains on), 143 (any other exit means finished), stopped.
        """
        return any(word in words for words in self._announcements())

    def _savers(self, word: bytes = b"") -> "set[int]":
        """Return the living processes that announced that they save, or this word; the leader if a line names none."""
        found, ours = set(), family(self._strangers())
        for words in self._announcements():
            pid, named, when = (words[-1] if words else b"").partition(b"@")
            if words and (not word or word in words):
                who = int(pid) if named and pid.isdigit() else self.status["trainer_pid"] or 0
                if who in ours and (not named or str(born(who)[1]).encode() == when):
                    found.add(who)
        return found

    def _checkpoint(self, _ask: "dict[str, Any]") -> None:
        savers = self._savers(b"SIGUSR1") if self.status["trainer"] == "running" else ()
        if not savers:
            raise Refused("this trainer cannot save without exiting")
        for pid in savers:
            send(pid, signal.SIGUSR1)

    def _tick(self) -> None:
        now, lease = boottime(), self.status["lease_deadline"]
        self._reap_children()
        if self.alive and lease and now >= lease - self.launch.grace_s:
            self._quit(lease, fenced=True)
        if self.alive and self.ending:
            self._quit(now + self.launch.grace_s)
        if self.held and not self._still_saving():
            self._let_go()
        self._ask_restarted(now)
        if self._hangs_at_its_end(now):
            self._quit(now + self.grace_s, in_place=self.in_place)
        if self.alive and self.trainer and self.status["patient"] and self._has_answered(self.trainer, now):
            self._quit(now + self.grace_s, in_place=self.in_place)
            if self.trainer.returncode is None:
                self._ask_rest()
        due = now >= self.kill_at - 2 * LOOK_S and not self._saves(now) and now >= self.kill_at
        if self.alive and self.trainer and (self.trainer.returncode is not None or due):
            if due or not self._trains_on(self.trainer, now):
                self._clear(self.trainer, now, due)
        for part in filter(None, (self.warm, self.copy, self.freezer, self.filter)):
            part.tick(now)
        self._keep_sidecar(now)

    def _has_answered(self, trainer: Child, now: float) -> bool:
        """Return whether all processes asked to save have ended, after which the rest get their grace.

        If the command handles SIGTERM, it may continue without them. It may also start another training, which is asked
        as soon as it announces that it saves (`_ask_restarted`).
        """
        if self._still_saving() or (trainer.returncode is None and self._savers()):
            self.unsaving_since = NEVER
            return False
        self.unsaving_since = min(self.unsaving_since, now)
        return trainer.returncode is not None or now > self.unsaving_since + LOOK_S  # it may be about to end

    def _ask_rest(self) -> None:
        """Send SIGTERM to every process that has not had it, such as the next command of a script that continues."""
        for pid in set(family(self._strangers())) - self.asked:
            self.asked.add(pid)
            send(pid, signal.SIGTERM)

    def _reap_children(self) -> None:
        """Reap everything that has ended, including orphans reparented to us."""
        with contextlib.suppress(ChildProcessError):
            for pid, how in iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)):
                for child in (self.trainer, *self._strangers()):
                    if child and child.pid == pid and child.returncode is None:
                        child.returncode = -os.WTERMSIG(how) or os.WEXITSTATUS(how)
                if pid in self.background:
                    self.end_code = self.end_code or -os.WTERMSIG(how) or os.WEXITSTATUS(how)

    def _trains_on(self, trainer: Child, now: float) -> bool:
        """Return whether processes that a cleanly exited command left behind still train, as after daemonizing.

        They do if they announced that they save, have a GPU open, print, compute, or write to a disk. Their end is then
        the trainer's.
        """
        if trainer.returncode or self.status["stop_asked"] or self.asked or self.ending:
            return False
        savers = self._savers()
        rest = savers or set(family(self._strangers()))
        if not rest:
            return False
        for pid in savers:
            above = born(pid)[0]
            while above not in (0, os.getpid()):
                rest.add(above)
                above = born(above)[0]
        since, cpu_s = self.used
        now_s = sum(map(wanted_s, rest))
        busy = savers or trainer.wrote_at > since > 0 or now_s - cpu_s > BUSY * max(now - since, 1.0)
        busy = busy or any(WARM.opened(pid) for pid in rest if WARM) or self._still_writes(now)
        if busy or not since:
            self.used = now, now_s
            self.background.update(rest)
            self.status["trainer_pid"] = min(savers or rest)
        return bool(now < self.used[0] + IDLE_S)

    def _ask_restarted(self, now: float) -> None:
        """Ask trainings started while others still save, and end the commands that keep restarting them.

        Those commands are held until the training has saved, so that they start no more.
        """
        if not self.waits or not self.alive or now < self.looked_for_restarts + LOOK_S:
            return
        self.looked_for_restarts = now
        restarted = self._savers() - self.asked
        if restarted and not self.status["fenced"] and not self.ending:
            self.kill_at = NEVER
            self.status["patient"] = True
        for pid in restarted:
            self.saving[pid] = born(pid)[1]
            self.asked.add(pid)
            above = born(pid)[0]
            while above not in (0, os.getpid()) and above not in self.saving:
                self.killed[above] = "a command that started it again"
                self._hold_still(above)
                above = born(above)[0]
            send(pid, signal.SIGTERM)

    def _hangs_at_its_end(self, now: float) -> bool:
        """Return whether processes that have saved hang at exit, as in a library's teardown, with no thread running.

        While a thread runs, `reshape_hooks/sure_end.py` sees the exit through and shows it by a file's mtime.
        """
        if not self.status["patient"] or now < self.looked_at_end + LOOK_S:
            return False
        since = self.looked_at_end
        self.looked_at_end = now
        before = self.life_at_end
        enders = self._savers(b"stopped")
        spent_s = sum(map(wanted_s, enders))
        with contextlib.suppress(OSError):
            self.life_at_end = os.stat("announce").st_mtime_ns, spent_s
        computes = spent_s > before[1] + BUSY * (now - since)
        others_save = bool(self._savers(b"") - enders)
        if not enders or not since or computes or others_save or self.life_at_end[0] != before[0]:
            self.lived_at = now
        return now > self.lived_at + STUCK_S

    def _saves(self, now: float) -> bool:
        """Return whether the checkpoint files still change, or it still writes, so that a kill must wait.

        Call it shortly before that, too.
        """
        if self._leased(now) or now > self.kill_at + SAVES_MOST_S:
            return False
        if now >= self.looked_at + LOOK_S:
            before = self.files
            self.files = look_at_files(self.launch.checkpoints)
            self.looked_at = now
            self.changed_at = now if before is not None and self.files != before else self.changed_at
        return now < self.changed_at + SAVES_S or self._still_writes(now)

    def _still_writes(self, now: float) -> bool:
        """Return whether a process of the trainer writes to a disk; no cancellation and no end of a lease waits for it.

        A script may save into its own folder, or have started what writes a snapshot or uploads it.
        """
        hurried = self.ending or self.status["fenced"] or (self.status["stop_asked"] and not self.spares)
        if hurried:
            return False
        ours = set(family(self._strangers())) - set(self.held) if self.writes.is_due(now) else set()
        return bool(self.writes.go_on(ours, now, ours - self.asked))

    def _leased(self, now: float) -> bool:
        """Return whether the lease ends this trainer: then no disk is waited for, as one that hangs would delay us."""
        return bool(0 < self.status["lease_deadline"] < now + ENDLESS_LEASE_S)

    def _clear(self, trainer: Child, now: float, late: bool) -> None:
        """End what is left of a trainer whose leader has exited, or, if it is `late`, whose time is up.

        What still writes is not asked to end before it is late.
        """
        rest = family(self._strangers()) or family(self._strangers())  # again: one may start as its parent exits
        names = ", ".join(f"{name} ({pid})" for pid, name in list(self.killed.items())[:8])
        if not rest and trainer.returncode is not None:
            while trainer.read():
                pass
            self.reports.read()
            if not trainer.begun:
                self.warm.lost(quiet=self.status["stop_asked"])
                if not self.status["stop_asked"]:
                    return self._spawn()
            if self.copy:
                self.copy.ended()
                if self.copy.busy and self.status["stop_asked"] and not self.in_place and now < self.kill_at:
                    return None  # what it had in memory must be on disk before its end is reported
                if not self.in_place:
                    self.copy.let_go_of_gpu()
            code = self.end_code or trainer.returncode
            if code == 0 and self._announced(b"143") and not self._announced(b"stopped"):
                self.status["stop_asked"] = False  # it was asked too late to save: it has done all its work
            self.unlock_gpus()
            self.alive, quiet = False, code == 0 and self.status["stop_asked"]
            tail = trainer.tail.decode("utf-8", "replace")
            note = names and f"{HAD_TO_KILL} {names}"
            note = (self.freezer and self.freezer.ended()) or note
            self.status.update(trainer="exited", trainer_pid=None, exit_code=code, exit_at=boottime())
            return self.status.update(exit_note=note, output_tail="" if quiet else tail)
        savers = self._savers()  # what these print to, and their children, are asked after them
        left = self.launch.grace_s if savers else STRAGGLERS_S
        self.kill_at = min(self.kill_at, NEVER if self.status["stop_asked"] else now + left)
        if late and trainer.returncode is None:
            send(-trainer.pid, signal.SIGKILL)  # the whole group at once, so that it cannot fork away
        spared = not (late or savers) and self._still_writes(now)
        others = set() if spared else set(rest)
        asked = set(rest) if late else (savers or others) - self.asked
        self.background -= asked if not self.status["stop_asked"] else set()  # an end that we asked for is not theirs
        for pid in asked:
            send(pid, signal.SIGKILL if late else signal.SIGTERM)  # they may save too
        self.asked.update(asked)
        self.killed.update(rest if late else {})
        overdue = late and now > self.kill_at + self.launch.kill_s
        stuck = f"SIGKILL does not end {names}; do not use its GPUs" if overdue else ""
        return self.status.update(trainer="stopping", exit_note=stuck)

    def _keep_sidecar(self, now: float) -> None:
        """Restart the sidecar when it dies; end it after the trainer."""
        side = self.sidecar
        if side and side.returncode is not None:
            send(-side.pid, signal.SIGKILL)  # its children
            self.restart_s = RESTART_S if now - side.since > RESTART_CALM_S else min(2 * self.restart_s, RESTART_MOST_S)
            self.sidecar, self.sidecar_at = None, now + self.restart_s
        elif self.ending and not self.alive:
            self._end_source()
            if self.sidecar_kill_at == NEVER:
                self.sidecar_kill_at = now + (self.launch.kill_s if side else FAREWELL_S)
                if side:
                    send(side.pid, signal.SIGTERM)
            elif side and now >= self.sidecar_kill_at:
                send(-side.pid, signal.SIGKILL)
            rest = [one for one in self._strangers() if one is not self.source]
            if not rest and not (self.copy and self.copy.busy):  # also busy between two writers
                self.over = not self.apart or not self.clients or now >= self.sidecar_kill_at
        elif self.launch.sidecar and not side and not self.ending and now >= self.sidecar_at:
            self.sidecar_at = now + RESTART_MOST_S
            self.sidecar = Child(self, self.launch.sidecar, {**os.environ}, self.launch.here, "sidecar.log", tee=False)

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        if len(self.clients) < MOST_CLIENTS:  # else it is closed when it goes out of scope
            sock.setblocking(False)
            self.clients[sock] = b""
            self.selector.register(sock, selectors.EVENT_READ, lambda: self._hear(sock))

    def _hear(self, sock: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = sock.recv(BIG_LINE)
        *lines, self.clients[sock] = (self.clients[sock] + data).split(b"\n")
        for line in lines:
            self._tell(sock, self._answer(line))
        self.heard = self.heard or bool(lines)
        if not data or len(self.clients.get(sock, b"")) > BIG_LINE:
            self._hang_up(sock)

    def _tell(self, sock: socket.socket, message: "dict[str, Any]") -> None:
        """Queue the message with everything else for this client, which wakes once, before we wait again."""
        self.letters[sock] = self.letters.get(sock, b"") + json.dumps(message).encode() + b"\n"

    def _hang_up(self, sock: socket.socket) -> None:
        if self.clients.pop(sock, None) is not None:
            self.selector.unregister(sock)
            sock.close()

    def _pace(self) -> float:
        """Choose the polling interval, and return the seconds until the next tick."""
        now, status, spawn_at = boottime(), self.status, self.status["spawn_at"]
        late = status["trainer"] == "running" and spawn_at is not None and now > spawn_at + CALM_S
        busy = self.ending or self.held or (self.launch.sidecar and not self.sidecar)
        busy = busy or any(part.busy for part in (self.warm, self.copy, self.freezer) if part)
        self.calm = late and not busy and self.kill_at == NEVER
        often = (self.warm and self.warm.strict) or (self.trainer and self.trainer.came > MUCH)
        self.tick_s = TICK_S if not self.calm else MUCH_TICK_S if often else CALM_TICK_S
        left = status["lease_deadline"] - self.launch.grace_s - now
        return min(self.tick_s, max(TICK_S, left)) if status["lease_deadline"] else self.tick_s

    def _publish(self) -> None:
        if self.trainer and not self.trainer.watched and not self.trainer.read() and not self.calm:
            self.trainer.watch(not self.trainer.pipe.closed)
        if not self.reports.watched or self.calm:
            self.reports.read()
        changed = self.status != self.shown
        due, self.heard = changed or self.heard or boottime() > self.told_at + self.tick_s, False
        if due and self.trainer and self.trainer.wrote_at > self.told_at:
            self.told_at = boottime()  # only clients that have read nearly all: the rest of a buffer is for statuses
            for sock in select.select([], list(self.clients), [], 0)[1]:
                self._tell(sock, {"event": "output", "size": self.trainer.log.tell(), "at": self.trainer.wrote_at})
        if changed:
            self._keep()
            self.shown = dict(self.status)
            for sock in list(self.clients):
                self._tell(sock, {"event": "status", "status": self.shown})
        for sock, lines in self.letters.items():  # without waiting: a client with a full buffer has not read for long
            with contextlib.suppress(OSError):
                if sock.send(lines) == len(lines):
                    continue
            self._hang_up(sock)
        self.letters = {}

    def _end(self, *_signal: Any) -> None:
        self.ending = self.status["ending"] = True

    def _exit_status(self) -> int:
        """Return the exit status: in a container the trainer's, as a shell would; STOPPED if it was only stopped."""
        code = self.status["exit_code"] if self.end_as is None else self.end_as
        if code is None and self.status["unfit"]:
            return 127 if self.launch.pod else 0
        if code is None or (code == 0 and self.end_as is None and self.status["stop_asked"]):
            code = STOPPED
        return (code if code >= 0 else 128 - code) if self.launch.pod else 0

    def run(self) -> int:
        """Run until all processes are gone after `end` or a signal; return the exit status."""
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        bell, ringer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it rings the bell
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._end)
        self.selector.register(bell, selectors.EVENT_READ, lambda: os.read(bell, 4096))
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        while not self.over:
            ready = self.selector.select(self._pace())
            for act in (self._tick, *(key.data for key, _ in ready), self._publish):  # the clock first: we may be late
                try:
                    act()
                except Exception as fault:
                    say(f"went on after {fault!r}; look whether disk and memory are full, else report it")
        if self.copy:
            self.copy.end()
        if self.filter:
            self.filter.end()
        return self._exit_status()


def take_lock(end: bool) -> "int | None":
    """Take the lock of this folder. While a shim lives: None, or with `end` wait until it has ended."""
    lock, limit = os.open("shim.lock", os.O_RDWR | os.O_CREAT, 0o600), boottime() + 2 * STRAGGLERS_S
    while end or boottime() < limit:
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect("shim.sock")
                peer.sendall(b'{"do": "end"}\n' if end else b"")
            if not end:
                return None
        except OSError:  # no shim listens: a dead one left what remains of the launch
            left = LEFTOVERS.end_all(os.getcwd())
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not left:
                    for name in filter(os.path.exists, ("shim.sock", "shim.pid")):  # left by a killed shim
                        os.unlink(name)
                    return lock
        time.sleep(TICK_S)
    raise Refused("processes of an earlier trainer of this folder do not end; end them and try again")


def begin(here: str, command: "list[str]", keys: str, detach: bool) -> int:
    """Run a shim; return its exit status."""
    launch = argparse.Namespace(env={}, workdir="", sidecar=None, tee=False, visible_gpus=None, grace_s=20, kill_s=10)
    vars(launch).update(pod=False, device_plugin=False, checkpoints="", hooks=False, uid="", imports="", group="")
    launch.gpus, launch.gpu_major, launch.gpu_minors, launch.unfiltered = "", 0, {}, "it was not asked for"
    wanted = os.path.join(here, keys, "launch.json")
    with open(wanted, encoding="utf-8") as file:
        vars(launch).update(json.load(file))
    with contextlib.suppress(OSError), open(launch.group, "w") as file:  # empty: there is none
        file.write(str(os.getpid()))  # everything it starts shares the cores of its emulated node
    launch.command = command or launch.command
    if not launch.command or not launch.job_id:
        raise Refused("`command` and `job_id` must not be empty")
    launch.here, launch.workdir = here, os.path.join(here, launch.workdir or "")
    launch.output, lock = os.path.join(here, launch.output), take_lock(end=False)
    if lock is None:
        print("already running")  # noqa: T201
        return 0
    if not os.path.exists(wanted):  # whoever removes the launch deletes it first, then looks at the lock
        raise Refused("the launch was removed before its shim had the lock")
    os.makedirs(os.path.dirname(launch.output), exist_ok=True)  # in a pod below the checkpoints
    listener, mask = socket.socket(socket.AF_UNIX), os.umask(0o111 if launch.pod else 0o177)
    listener.bind("shim.sock")  # without its folder, which could exceed a socket's 108 bytes
    os.umask(mask)
    listener.listen(16)
    if detach:
        if os.fork():
            return 0
        os.setsid()
        for number, name in enumerate((os.devnull, "shim.log", "shim.log")):
            os.dup2(os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), number)
    with open("shim.pid", "w") as file:
        file.write(f"{os.getpid()}\n")
    status = Shim(launch, lock, listener).run()
    os.unlink("shim.sock")
    os.unlink("shim.pid")
    return status


def main() -> None:
    parser = argparse.ArgumentParser(description="The parent of one training process, commanded over F/shim.sock.")
    parser.add_argument("--folder", metavar="F", required=True, help="holds launch.json")
    parser.add_argument("--detach", action="store_true", help="return once it listens")
    parser.add_argument("--end", action="store_true", help="stop trainer, sidecar and shim; return when all are gone")
    parser.add_argument("--keys", metavar="K", help="holds launch.json in place of F")
    if os.getpid() == 1:  # a container's first process does not receive a signal without a handler
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, command, here = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :], os.getcwd()
    try:
        if sys.version_info < (3, 8):
            raise Refused(f"needs Python 3.8 or newer, not {sys.version.split()[0]}; use an image that has it")
        if os.readlink("/proc/self") != str(os.getpid()):  # else we would see and end other people's processes
            raise Refused("/proc belongs to another PID namespace; mount its own (`unshare --mount-proc`)")
        if os.path.isdir(options.folder) or not options.end:
            os.chdir(options.folder)
            keys = options.keys or options.folder
            sys.exit(begin(here, command, keys, options.detach) if not options.end else take_lock(end=True) and 0)
    except (Refused, OSError, ValueError, TypeError, AttributeError) as fault:
        say(f"{options.folder}: {fault}; see launch.json and the command line")
        sys.exit(1)


if __name__ == "__main__":
    main()
