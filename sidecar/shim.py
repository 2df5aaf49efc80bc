"""The shim: the parent of one training process, and the only one who can give it other GPUs.

Promises: the trainer runs only under the newest generation that was told, only on the GPUs given to it and only
until its lease ends; when the shim says `exited`, no process of the trainer is left. If the shim dies the kernel
kills the trainer (parent-death signal), and the next shim or `--end` on the folder kills what is left of it.
Called by the launch playbook, or as the first process of a pod; commanded by the sidecar over a Unix socket.
Must import nothing but the standard library and run as `python3 -I -S shim.py` on Python 3.8: it lives in the
user's image. What it writes is `sidecar.protocol.ShimStatus`. Times: seconds, CLOCK_BOOTTIME. One thread.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import math
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Iterator

BIG_LINE = 64 * 1024  # bytes
BIG_LOG = 64 * 1024 * 1024
MOST_CLIENTS = 32
MOST_COMMANDS = 64  # remembered; a command forgotten after so many has an old generation and is refused
STRAGGLERS_S = 5.0  # for children that outlive a trainer which ended by itself
TICK_S = 0.1  # so short because epoll does not count suspended time, while a lease does
STARTING_S = 5.0  # a shim that holds the lock longer than this and does not listen is dead
RESTART_S, RESTART_MOST_S, RESTART_CALM_S = 0.2, 10.0, 60.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)  # loaded before any fork
FRESH: dict[str, Any] = {
    "trainer": "none", "trainer_pid": None, "gpu_ids": [], "stop_asked": False, "fenced": False, "exit_code": None,
    "exit_note": "", "output_tail": "", "stop_at": None, "exit_at": None, "spawn_at": None,
}  # fmt: skip
LAUNCH: dict[str, Any] = {
    "env": {}, "workdir": "", "sidecar": None, "tee": False, "visible_gpus": None, "grace_s": 20.0, "kill_s": 10.0,
}  # fmt: skip
KINDS: dict[str, Callable[[Any], bool]] = {
    "a short printable text": lambda it: isinstance(it, str) and it.isprintable() and len(it) <= 500,
    "a list of texts": lambda it: isinstance(it, list) and all(map(KINDS["a short printable text"], it)),
    "seconds": lambda it: type(it) in (int, float) and 0 <= it < 1e15,
    "a whole number": lambda it: type(it) is int and 0 <= it < 2**53,
}


class Refused(Exception):
    """A request without effect. `conflict`: the caller's view of the job is old (HTTP 409)."""

    def __init__(self, sentence: str, conflict: bool = False) -> None:
        super().__init__(sentence)
        self.conflict = conflict


def field(ask: dict[str, Any], name: str, kind: str, *default: Any) -> Any:
    """The value, or `default` where it is absent or null; Refused when it is not of that kind."""
    value = ask.get(name)
    if value is None and default:
        return default[0]
    if not KINDS[kind](value):
        raise Refused(f"`{name}` must be {kind}")
    return value


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(sentence: str) -> None:
    with contextlib.suppress(OSError):
        print(f"shim: {sentence}", file=sys.stderr, flush=True)  # noqa: T201


def send(pid: int, sign: int) -> None:
    """Signals a process, or a group when `pid` is negative. One that is gone is fine; one that stays is seen later."""
    with contextlib.suppress(OSError):
        os.kill(pid, sign)


def everybody(name: str) -> Iterator[tuple[int, bytes]]:
    """The pid and the file /proc/<pid>/`name` of every process that we may look at."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            yield int(pid), file.read()


def family(root: int, stranger: int) -> dict[int, tuple[int, str]]:
    """pid -> (group, name) of all descendants of `root`, except `stranger`, those below it and in its session."""
    below: dict[int, list[tuple[int, int, int, str]]] = {}
    for pid, stat in everybody("stat"):
        head, _, tail = stat.decode("ascii", "replace").rpartition(")")
        parent, group, session = map(int, tail.split()[1:4])
        below.setdefault(parent, []).append((pid, session, group, head.partition("(")[2]))
    found, todo = {}, [root]
    while todo:
        for pid, session, group, name in below.get(todo.pop(), []):
            if stranger not in (pid, session):
                found[pid] = (group, name)
                todo.append(pid)
    return found


class Child:
    """A process in its own session that dies with us. Its output goes to a log that never grows over BIG_LOG."""

    def __init__(self, shim: Shim, command: list[str], env: dict[str, str], workdir: str, path: str, tee: bool) -> None:
        """Only in the main thread: the parent-death signal follows the thread that forked. Raises like Popen."""
        self.path, self.tee, self.selector, self.tail, self.wrote_at = path, tee, shim.selector, b"", 0.0
        (pipe, writer), parent, self.log = os.pipe(), os.getpid(), open(path, "ab", buffering=0)
        os.set_blocking(pipe, False)
        self.pipe = open(pipe, "rb", buffering=0)

        def die_with_parent() -> None:
            LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

        with open(writer, "wb") as output:
            self.popen = subprocess.Popen(
                command, env=env, cwd=workdir, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, pass_fds=(shim.lock,), preexec_fn=die_with_parent,
            )  # fmt: skip
        self.pid, self.since = self.popen.pid, boottime()
        self.code: int | None = None  # negative: the signal that ended it
        self.selector.register(self.pipe, selectors.EVENT_READ, self.read)

    def read(self) -> bool:
        """Logs one piece of output; False when there is none (now). A full disk loses text, nothing else."""
        data = None if self.pipe.closed else self.pipe.read(select.PIPE_BUF)
        if data == b"":
            self.selector.unregister(self.pipe)
            self.pipe.close()
        if data:
            self.tail, self.wrote_at = (self.tail + data)[-2048:], boottime()
            try:
                if self.log.tell() + len(data) > BIG_LOG:
                    os.replace(self.path, self.path + ".1")
                    self.log = open(self.path, "ab", buffering=0)
                self.log.write(data)
                if self.tee and select.select([], [1], [], 0)[1]:  # who does not read our stdout must not stop us
                    os.write(1, data)
            except OSError as fault:
                say(f"output for {self.path} is lost ({fault.strerror}); make room on that disk")
        return bool(data)


class Shim:
    """The state, the requests and the loop. It lives in F: file names without a folder are there."""

    def __init__(self, launch: argparse.Namespace, lock: int, listener: socket.socket) -> None:
        self.launch, self.lock, self.listener, self.selector = launch, lock, listener, selectors.DefaultSelector()
        self.status = dict(FRESH, version=1, shim_pid=os.getpid(), generation=0, command_id="", lease_deadline=0.0)
        self.clients: dict[socket.socket, bytes] = {}  # and the beginning of the line that each is sending
        self.done: dict[tuple[str, str], None] = {}
        self.trainer: Child | None = None
        self.sidecar: Child | None = None
        self.killed: dict[int, str] = {}
        self.kill_at, self.tick_at, self.told_at, self.shown = math.inf, 0.0, 0.0, dict(self.status)
        self.sidecar_at, self.sidecar_delay, self.sidecar_kill_at = 0.0, RESTART_S / 2, math.inf
        self.asked_all = self.ending = self.over = False

    @property
    def alive(self) -> bool:
        return self.status["trainer"] in ("running", "stopping")

    def _answer(self, line: bytes) -> dict[str, Any]:
        """What is refused has had no effect."""
        answer: dict[str, Any] = {"ok": True}
        try:
            self._obey(json.loads(line))
        except Refused as no:
            answer = {"ok": False, "error": str(no), "conflict": no.conflict}
        except Exception as fault:  # whatever somebody sends, the trainer's parent must live on
            answer = {"ok": False, "error": f"send one JSON object on one line ({fault!r:.200})"}
        return {**answer, "status": self.status}

    def _obey(self, ask: dict[str, Any]) -> None:
        verb, deadline = field(ask, "do", "a short printable text"), self.status["lease_deadline"]
        if verb == "renew":
            self.status["lease_deadline"] = max(deadline, field(ask, "deadline", "seconds"))
        elif verb == "end":
            self.ending, self.tick_at = True, 0.0
        elif verb in ("start", "stop", "checkpoint"):
            self._command(verb, ask)
        elif verb != "status":
            raise Refused("`do` must be start, stop, checkpoint, renew, status or end")

    def _command(self, verb: str, ask: dict[str, Any]) -> None:
        """Carried out once per command id; what was refused may be asked again."""
        command, generation = field(ask, "command_id", "a short printable text"), field(ask, "generation", "a whole number")
        if (verb, command) in self.done:
            return
        if generation < self.status["generation"]:
            raise Refused("old generation", conflict=True)
        if verb == "stop":
            self._quit(boottime() + field(ask, "grace_s", "seconds", self.launch.grace_s))
        else:
            (self._start if verb == "start" else self._checkpoint)(ask)
        self.status.update(generation=generation, command_id=command)
        self.done[verb, command] = None
        if len(self.done) > MOST_COMMANDS:
            del self.done[next(iter(self.done))]

    def _start(self, ask: dict[str, Any]) -> None:
        gpu_ids, visible = field(ask, "gpu_ids", "a list of texts"), self.launch.visible_gpus
        checkpoint, gpus = field(ask, "checkpoint", "a short printable text", ""), ",".join(gpu_ids)
        lease = max(self.status["lease_deadline"], field(ask, "lease_deadline", "seconds", 0.0))
        if self.alive or self.ending:
            raise Refused("a trainer is still running here; stop it first", conflict=True)
        once = sorted(set(filter(None, gpus.split(",")))) == sorted(gpu_ids)
        if not once or not set(gpu_ids) <= set(gpu_ids if visible is None else visible):
            raise Refused(f"GPUs {gpus:.200} are not all given to this launch; name each of its GPUs at most once")
        if "/" in checkpoint or checkpoint in (".", ".."):
            raise Refused("`checkpoint` must be a plain name inside the job's folder")
        if lease and boottime() >= lease - self.launch.grace_s:
            raise Refused("the lease of this trainer is over already; renew it and start again")
        self.status.update(FRESH, lease_deadline=lease, gpu_ids=gpu_ids, spawn_at=boottime())
        self.kill_at, self.asked_all, self.killed = math.inf, False, {}
        self._spawn(
            RESHAPE_JOB_ID=self.launch.job_id, RESHAPE_GENERATION=str(ask["generation"]), RESHAPE_CHECKPOINT=checkpoint,
            RESHAPE_ANNOUNCE=os.path.abspath("announce"), PYTHONUNBUFFERED="1", CUDA_DEVICE_ORDER="PCI_BUS_ID",
            CUDA_VISIBLE_DEVICES=gpus, NVIDIA_VISIBLE_DEVICES=gpus or "void",  # empty, not unset: unset means all
        )  # fmt: skip

    def _spawn(self, **env: str) -> None:
        """What cannot be started has ended at once, with the shell's codes: 127 not found, 126 not executable."""
        launch = self.launch
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("announce")
            env = {**os.environ, **launch.env, **env}
            self.trainer = Child(self, launch.command, env, launch.workdir, launch.output, launch.tee)
            self.status.update(trainer="running", trainer_pid=self.trainer.pid)
        except (OSError, ValueError, TypeError, subprocess.SubprocessError) as fault:
            what, why = getattr(fault, "filename", None) or launch.command[0], getattr(fault, "strerror", None) or fault
            note = f"cannot start {what!r} ({why}); correct the job's command"
            self.status.update(trainer="exited", exit_note=note, exit_at=boottime())
            self.status.update(exit_code=127 if isinstance(fault, FileNotFoundError) else 126)

    def _quit(self, kill_at: float, fenced: bool = False) -> None:
        """SIGTERM, once and to the leader only (torchrun tells its own); `kill_at` can only come nearer."""
        self.kill_at = min(self.kill_at, kill_at)
        if self.alive and self.trainer and self.trainer.code is None and not self.status["stop_asked"]:
            self.status.update(trainer="stopping", stop_asked=True, stop_at=boottime(), fenced=fenced)
            send(self.trainer.pid, signal.SIGTERM)

    def _checkpoint(self, _ask: dict[str, Any]) -> None:
        announced = b""
        with contextlib.suppress(OSError), open("announce", "rb") as file:
            announced = file.read(BIG_LINE)
        if self.status["trainer"] != "running" or not self.trainer or b"SIGUSR1" not in announced:
            raise Refused("this trainer cannot save without exiting")
        send(self.trainer.pid, signal.SIGUSR1)

    def _tick(self) -> None:
        now, lease = boottime(), self.status["lease_deadline"]
        if now < self.tick_at:
            return
        self.tick_at = now + TICK_S
        with contextlib.suppress(ChildProcessError):  # all that ended, also the orphans that the kernel gave us
            for pid, how in iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)):
                for child in (self.trainer, self.sidecar):
                    if child and child.code is None and child.pid == pid:
                        child.code = -os.WTERMSIG(how) if os.WIFSIGNALED(how) else os.WEXITSTATUS(how)
                        child.popen.returncode = child.code
        if self.alive and lease and now >= lease - self.launch.grace_s:
            self._quit(lease, fenced=True)
        if self.alive and self.ending:
            self._quit(now + self.launch.grace_s)
        if self.alive and self.trainer and (self.trainer.code is not None or now >= self.kill_at):
            self._clear(self.trainer, now)
        self._keep_sidecar(now)

    def _clear(self, trainer: Child, now: float) -> None:
        """The leader is gone or its time is over: nothing of it may stay."""
        rest = family(os.getpid(), self.sidecar.pid if self.sidecar else -1)
        names = ", ".join(f"{name} ({pid})" for pid, name in list(self.killed.items())[:8])
        if trainer.code is not None and not rest:
            while trainer.read():
                pass
            quiet = trainer.code == 0 and self.status["stop_asked"]
            self.status.update(trainer="exited", trainer_pid=None, exit_code=trainer.code, exit_at=boottime())
            self.status.update(exit_note=names and f"had to kill {names}")
            self.status.update(output_tail="" if quiet else trainer.tail.decode("utf-8", "replace"))
            return
        self.status.update(trainer="stopping")
        self.kill_at = min(self.kill_at, math.inf if self.status["stop_asked"] else now + STRAGGLERS_S)
        if now >= self.kill_at:
            self.killed.update({pid: name for pid, (_, name) in rest.items()})
        if now >= self.kill_at and any(group == trainer.pid for group, _ in rest.values()):
            send(-trainer.pid, signal.SIGKILL)  # the group at once, so that it cannot fork away
        for pid in rest if now >= self.kill_at or not self.asked_all else ():
            send(pid, signal.SIGKILL if now >= self.kill_at else signal.SIGTERM)  # they may want to save as well
        self.asked_all = True
        if now > self.kill_at + self.launch.kill_s:
            self.status.update(exit_note=f"SIGKILL does not end {names}; do not use its GPUs")

    def _keep_sidecar(self, now: float) -> None:
        """Restarted when it dies; ended after the trainer when all ends."""
        side = self.sidecar
        if side and side.code is not None:
            send(-side.pid, signal.SIGKILL)  # what it had started
            calm = now - side.since > RESTART_CALM_S
            self.sidecar_delay = RESTART_S if calm else min(2 * self.sidecar_delay, RESTART_MOST_S)
            self.sidecar, self.sidecar_at = None, now + self.sidecar_delay
        elif self.ending and not self.alive:
            self.over = side is None
            if side and now >= self.sidecar_kill_at:
                send(-side.pid, signal.SIGKILL)
            elif side and self.sidecar_kill_at == math.inf:
                send(side.pid, signal.SIGTERM)
                self.sidecar_kill_at = now + self.launch.kill_s
        elif self.launch.sidecar and not side and not self.ending and now >= self.sidecar_at:
            self.sidecar_at = now + RESTART_MOST_S
            self.sidecar = Child(self, self.launch.sidecar, {**os.environ}, self.launch.here, "sidecar.log", tee=False)

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        if len(self.clients) >= MOST_CLIENTS:
            return sock.close()
        sock.setblocking(False)
        self.clients[sock] = b""
        self.selector.register(sock, selectors.EVENT_READ, lambda: self._hear(sock))
        return None

    def _hear(self, sock: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = sock.recv(BIG_LINE)
        *lines, rest = (self.clients.get(sock, b"") + data).split(b"\n")
        for line in lines:
            self._tell(sock, self._answer(line))
        if not data or len(rest) > BIG_LINE:
            self._hang_up(sock)
        elif sock in self.clients:
            self.clients[sock] = rest

    def _tell(self, sock: socket.socket, message: dict[str, Any]) -> None:
        """Never waits: who does not read loses output first, and with an answer or a status the connection."""
        line = json.dumps(message).encode() + b"\n"
        try:
            whole = sock.send(line) == len(line)
        except OSError as fault:
            whole = isinstance(fault, BlockingIOError) and message.get("event") == "output"
        if not whole:
            self._hang_up(sock)

    def _hang_up(self, sock: socket.socket) -> None:
        if self.clients.pop(sock, None) is not None:
            self.selector.unregister(sock)
            sock.close()

    def _publish(self) -> None:
        news: list[dict[str, Any]] = []
        if self.status != self.shown:
            self.shown = dict(self.status)
            news.append({"event": "status", "status": self.shown})
        if self.trainer and self.trainer.wrote_at > self.told_at and boottime() > self.told_at + TICK_S:
            self.told_at = boottime()
            news.append({"event": "output", "size": self.trainer.log.tell(), "at": self.trainer.wrote_at})
        for sock, message in [(sock, message) for message in news for sock in self.clients]:
            self._tell(sock, message)

    def _signalled(self, number: int, _frame: Any) -> None:
        self.ending, self.tick_at = self.ending or number != signal.SIGCHLD, 0.0

    def run(self) -> None:
        """Until all is gone after `end` or a signal."""
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        bell, ringer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(ringer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        self.selector.register(bell, selectors.EVENT_READ, lambda: os.read(bell, 4096))
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        ready: list[Any] = []
        while not self.over:
            for act in (self._tick, *ready, self._publish):  # the clock first: it may have run while we were frozen
                try:
                    act()
                except Exception as fault:
                    say(f"went on after {fault!r}; look whether disk and memory are full, else report it")
            ready = [key.data for key, _ in self.selector.select(TICK_S)]


def kill_leftovers() -> bool:
    """Kills what the trainer of a dead shim left, known by the environment that children inherit; True if any."""
    mark = b"RESHAPE_ANNOUNCE=" + os.fsencode(os.path.abspath("announce"))
    found = [pid for pid, env in everybody("environ") if mark in env.split(b"\0") and pid != os.getpid()]
    for pid in found:
        send(pid, signal.SIGKILL)
    return bool(found)


def take_lock(end: bool) -> int | None:
    """The lock of this folder. While a living shim has it: None, or with `end` waits until that one has ended."""
    lock, dead_at = os.open("shim.lock", os.O_RDWR | os.O_CREAT, 0o600), boottime() + STARTING_S
    while end or boottime() < dead_at + STARTING_S:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not kill_leftovers():
                return lock
        try:
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(STARTING_S)
                peer.connect("shim.sock")
                peer.sendall(b'{"do": "end"}\n' if end else b"")
            if not end:
                return None
        except OSError:
            if boottime() > dead_at:
                kill_leftovers()
        time.sleep(TICK_S)
    raise Refused("processes of an earlier trainer of this folder do not end; end them and try again")


def listen() -> socket.socket:
    """On F/shim.sock, for our own user only. A relative name: a socket's path may have 108 bytes, a folder's more."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink("shim.sock")
    listener, mask = socket.socket(socket.AF_UNIX), os.umask(0o177)
    listener.bind("shim.sock")
    os.umask(mask)
    listener.listen(16)
    return listener


def begin(here: str, detach: bool) -> None:
    with open("launch.json", encoding="utf-8") as file:
        launch = argparse.Namespace(**{**LAUNCH, **json.load(file)})
    launch.here, launch.workdir = here, os.path.join(here, launch.workdir or "")
    launch.output = os.path.join(here, launch.output)
    os.makedirs(os.path.dirname(launch.output), exist_ok=True)
    lock = take_lock(end=False)
    if lock is None:
        return print("already running")  # noqa: T201
    listener = listen()
    if detach:
        if os.fork():
            return None
        os.setsid()
        for number, name in enumerate((os.devnull, "shim.log", "shim.log")):
            os.dup2(os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), number)
    with open("shim.pid", "w") as file:
        file.write(f"{os.getpid()}\n")
    Shim(launch, lock, listener).run()
    os.unlink("shim.sock")
    return os.unlink("shim.pid")


def main() -> int:
    parser = argparse.ArgumentParser(description="The parent of one training process, commanded over F/shim.sock.")
    parser.add_argument("--folder", metavar="F", required=True, help="holds launch.json")
    parser.add_argument("--detach", action="store_true", help="return once it listens")
    parser.add_argument("--end", action="store_true", help="stop trainer, sidecar and shim; return when all are gone")
    options, here = parser.parse_args(), os.getcwd()
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # else we would see and end processes that are not ours
            raise Refused("/proc belongs to another PID namespace; mount its own (`unshare --mount-proc`)")
        if os.path.isdir(options.folder) or not options.end:
            os.chdir(options.folder)
            take_lock(end=True) if options.end else begin(here, options.detach)
    except (Refused, OSError, ValueError, TypeError, AttributeError) as fault:
        say(f"{options.folder}: {fault}; see launch.json and the command line")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
