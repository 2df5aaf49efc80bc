"""Keeps the checkpoint of a reshape in place in memory first; it reaches the disk while the training continues.

When a trainer is told to stop because it will continue here with other GPUs, the shim offers it room in a folder of
/dev/shm. What its hook saves there (`reshape_hooks/plain.py:InMemory`), a writer (this file, run as its own process)
writes to disk once the trainer has ended, and the next trainer loads it at once.

Promises (`reliability.md` 4, "In memory first"): a copy is freed once it is on disk or the launch ends; a writer that
is killed or fails is restarted; one whose shim is killed carries on, and the launch counts as running until it is done.
The shim waits for no disk here. Where the job keeps a GPU, the writer also holds the state in that GPU's memory
(`gpu_memory.py`): it frees it once it is on disk and the next trainer has it, and at the latest before the GPU can go
to another job. Standard library, Python 3.8: `shim.py` loads it from its own folder.
"""

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import json
import mmap
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any

SHM = "/dev/shm"
NAME = re.compile(r"g([0-9]{1,18})-s([0-9]{1,18})")
ROOM, MANIFEST, HALF = "room", "manifest.json", ".tmp-*"  # HALF: of a trainer killed while saving
BAD = "bad-"  # prefix of a copy that is not loaded any more, as in `reshape_hooks/plain.py`
SHARE = 4  # offer at most 1/SHARE of the free bytes
AGAIN_S, AGAIN_MOST_S, NEVER = 1.0, 60.0, 1e15  # before a failed writer is restarted
HOLDER = "holder.sock"  # the socket through which trainers reach what is held on a GPU
TENSORS, BULK = "tensors.json", "tensors.bin"  # what of a state is held on a GPU, and its bytes once on disk
OPEN_S = 1.0  # for the writer to open the GPU before the trainer is told to stop
LOOK_S = 0.05  # how often to check whether the next trainer has taken the state on a GPU
WRITE_AFTER_S = 15.0  # how long to wait for that before writing
HELD_PAUSE_S = 1.0  # between two attempts to write what is on a GPU
HELD_MOST_S = 60.0  # for all attempts, once the shim is gone


def rank(name: str) -> "tuple[int, int]":
    """Return generation and step; less than any for a name that is not a checkpoint's."""
    found = NAME.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else (-1, -1)


def is_ours(folder: str) -> bool:
    """Return whether it is a folder, not a symlink, that only we can access."""
    with contextlib.suppress(OSError):
        there = os.lstat(folder)
        return stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid() and not there.st_mode & 0o077
    return False


def copies(folder: str, held: bool = False) -> "list[str]":
    """Return the copies in this folder; `held`: only those not on disk yet."""
    with contextlib.suppress(OSError):
        names = filter(NAME.fullmatch, os.listdir(folder) if is_ours(folder) else [])
        return [name for name in names if not (held and os.path.islink(os.path.join(folder, name, MANIFEST)))]
    return []


class MemoryCopy:
    """A shim's in-memory copies for its next trainer. `writer`: the process that writes them to disk, if one runs."""

    def __init__(self, shim: Any, say: Any, hooks: str) -> None:
        """`hooks`: the folder of `reshape_hooks`; without one no trainer is offered memory."""
        launch = shim.launch
        self.shim, self.say, self.lock = shim, say, -1
        self.writer: Any = None
        self.gpu = ""  # whose memory the writer may hold
        self.listener: Any = None  # for the next writer
        self.again_at, self.pause_s, self.until = NEVER, AGAIN_S, NEVER
        env = {**os.environ, **launch.env}
        self.disk = os.path.join(launch.workdir, env.get("RESHAPE_CHECKPOINTS") or ".")
        self.plain = os.path.join(hooks, "plain.py")
        self.off = not hooks or env.get("RESHAPE_MEMORY") == "0" or not env.get("RESHAPE_CHECKPOINTS")
        job = hashlib.sha256(f"{launch.job_id}\n{launch.uid}\n{self.disk}".encode()).hexdigest()[:24]
        self.job = os.path.join(SHM, f"reshape-{os.geteuid()}-{job}-")
        self.folder = self.job + hashlib.sha256(os.getcwd().encode()).hexdigest()[:8]
        if not self.off:
            self._adopt()

    @property
    def busy(self) -> bool:
        """Return whether something is, or may still be, left to write."""
        return self.writer is not None or self.again_at < NEVER

    def _adopt(self) -> None:
        """Take over what a dead shim of this job left here and is not on disk; remove the rest."""
        left = [folder for folder in glob.glob(glob.escape(self.job) + "*") if is_ours(folder) and self._take(folder)]
        left.sort(key=lambda folder: max(map(rank, copies(folder, held=True)), default=(-1, -1)))
        for folder in left:
            with contextlib.suppress(OSError):
                if folder is left[-1] and copies(folder, held=True):
                    os.rename(folder, self.folder)
                elif folder != self.folder or not copies(folder, held=True):
                    shutil.rmtree(folder)
        if copies(self.folder, held=True) and self._take(self.folder):
            self.ended()

    def _take(self, folder: str) -> bool:
        """Lock this folder; return False if its shim or a writer lives."""
        self._let_go()
        with contextlib.suppress(OSError):
            self.lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        return False

    def _let_go(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
        self.lock = -1

    def offer(self, gpu: str = "") -> bool:
        """Let the trainer that is about to be told to stop save in memory; return False where it may not.

        `gpu`: the first GPU of this trainer, if it is also the next one's: its state may stay there.
        """
        self.shim.status["on_gpu"] = ""
        if self.off or self.busy or not self.shim.warm:
            if gpu and self.busy:
                self.shim.status["on_gpu"] = (
                    "state does not stay on the GPU: the last one is still being written to the disk"
                )
            return False
        try:
            if not is_ours(self.folder):
                os.mkdir(self.folder, 0o700)
                self._take(self.folder)
            free = os.statvfs(self.folder)
            room = min(self.shim.warm.room(), free.f_bavail * free.f_frsize) // SHARE
            with os.fdopen(os.open(self._room(), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(str(max(0, room)))
            self._listen(gpu)
        except OSError:  # it saves on disk
            self.withdraw()
            return False
        return True

    def _listen(self, gpu: str) -> None:
        """Let the trainer reach the writer before that runs: it opens the GPU while the trainer finishes its step."""
        path = os.path.join(self.folder, HOLDER)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if gpu:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(path)
            self.listener.listen(8)
            self.gpu = gpu

    def _room(self) -> str:
        return os.path.join(self.folder, ROOM)

    def withdraw(self) -> None:
        """Withdraw the offer. What is on a GPU is freed as soon as it is on disk."""
        with contextlib.suppress(OSError):
            os.unlink(self._room())
        if self.gpu and self.writer:
            with contextlib.suppress(OSError):
                os.kill(self.writer.pid, signal.SIGTERM)

    def write(self, wait: bool = False, gpus: "tuple[int, int]" = (1, 1)) -> None:
        """Start a writer. `wait`: it begins once the trainer, or this shim, has ended.

        `gpus`: how many the present trainer has and the next one will have, if one of them stays (`offer`).
        """
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), self.plain, self.folder, self.disk]
        command += [self.shim.launch.job_id, str(os.getpid())]
        passed, env = [self.shim.lock, self.lock], dict(os.environ)
        listener, self.listener = self.listener, None
        if listener:
            device = ",".join(self.shim.devices([self.gpu]))
            command += [str(listener.fileno()), *map(str, gpus)]
            passed += [listener.fileno(), *(lock for gpu, lock in self.shim.gpus.items() if gpu == self.gpu)]
            env.update(self.shim.driver_place(), CUDA_VISIBLE_DEVICES=device, CUDA_DEVICE_ORDER="PCI_BUS_ID")
        try:
            self.writer = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if listener else subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=passed,
                env=env,
            )
        except (OSError, ValueError) as fault:
            self.gpu = ""
            self.withdraw()
            self.again_at = time.clock_gettime(time.CLOCK_BOOTTIME) + AGAIN_S
            self.say(f"no process can be started that writes a checkpoint to the disk ({fault})")
            return
        finally:
            if listener:
                listener.close()  # so that a trainer sees at once that the writer has ended
        if listener:
            os.set_blocking(self.writer.stdout.fileno(), False)
            self.shim.status["holder"] = {"pid": self.writer.pid, "gpu_id": self.gpu}
        if not wait:
            self.writer.stdin.close()

    def prepare(self, gpus: "tuple[int, int]") -> None:
        """Start the writer and let it open the GPU, for a few tenths of a second while the training still runs."""
        self.write(wait=True, gpus=gpus)
        if self.gpu and self.writer:
            select.select([self.writer.stdout], [], [], OPEN_S)

    def _hear(self) -> None:
        """Read what the writer reports about the GPU."""
        said = b""
        if self.gpu and self.writer and self.writer.stdout:
            with contextlib.suppress(OSError):
                said = os.read(self.writer.stdout.fileno(), 65536)
        for line in said.decode("utf-8", "replace").splitlines():
            word, _, rest = line.partition(" ")
            if word == "holds":
                self.shim.status["on_gpu"] = f"state stays on GPU {self.gpu} ({int(rest) / 1e9:.1f} GB)"
            elif word == "refuses":
                self.shim.status["on_gpu"] = f"state does not stay on the GPU: {rest}"

    def let_go_of_gpu(self) -> None:
        """End the writer if it may hold GPU memory: the GPU is about to go to another job."""
        if self.gpu and self.writer and self.writer.returncode is None:
            with contextlib.suppress(OSError):
                os.kill(self.writer.pid, signal.SIGKILL)

    def ended(self) -> None:
        """Write what the ended trainer saved in memory to disk; free incomplete saves."""
        with contextlib.suppress(OSError):
            os.unlink(self._room())
        self._hear()
        for half in glob.glob(os.path.join(glob.escape(self.folder), HALF)) if is_ours(self.folder) else []:
            shutil.rmtree(half, ignore_errors=True)
        newest = max(copies(self.folder), key=rank, default="")
        if newest:
            generation, step = rank(newest)
            self.shim.status["in_memory"] = {"name": newest, "step": step, "generation": generation}
        self._note_lost_copy()
        if self.writer:
            self.writer.stdin.close()
        elif self.again_at == NEVER and copies(self.folder, held=True):
            self.write()

    def _note_lost_copy(self) -> None:
        """Note whether the newest copy is lost: its state was on a GPU only, and the process that held it has ended."""
        copy = self.shim.status["in_memory"]
        name = copy["name"] if copy else ""
        places = [os.path.join(self.folder, one) for one in (name, BAD + name)] if name and not self.gpu else []
        only = [place for place in places if token(place) and not os.path.islink(os.path.join(place, MANIFEST))]
        self.shim.status["copy_lost"] = copy if only else None

    def newer(self, asked: str) -> str:
        """Return the newest of this checkpoint and those that were in memory first; empty (any) stays empty."""
        return asked and max([asked, *copies(self.folder)], key=rank)

    def tick(self, now: float) -> None:
        """Look after the writer; when everything ends, give it the time that a trainer has to save."""
        shim = self.shim
        self._hear()
        if self.gpu:
            self._fence(now)
        if self.writer and self.writer.returncode is not None:
            self._gpu_is_free()
            self._note_lost_copy()
            failed = self.writer.returncode != 0 and not self.off and bool(copies(self.folder, held=True))
            self.again_at, self.writer = now + self.pause_s if failed else NEVER, None
            self.pause_s = min(2 * self.pause_s, AGAIN_MOST_S) if failed else AGAIN_S
        if self.again_at < NEVER and (shim.ending or (shim.status["stop_asked"] and not shim.in_place)):
            self.again_at = min(self.again_at, now + AGAIN_S)  # the end waits for it, but not long
        if now >= self.again_at:
            self.again_at = NEVER
            self.write()
        if shim.ending and not shim.alive and self.busy:
            self.until = min(self.until, now + shim.launch.grace_s)
            if now >= self.until and is_ours(self.folder):
                self.say(f"a checkpoint that is in memory could not be written to {self.disk} in time and is lost")
                self.end()

    def _fence(self, now: float) -> None:
        """Free the GPU in time if no trainer runs: at the end of its lease or of this launch."""
        if self.shim.alive:
            return
        lease = self.shim.status["lease_deadline"] or NEVER
        if self.shim.ending or now >= lease - self.shim.launch.grace_s:
            self.withdraw()
        if now >= lease:
            self.let_go_of_gpu()

    def _gpu_is_free(self) -> None:
        """Note that the writer, and with it what it held, is gone."""
        self.gpu, self.shim.status["holder"] = "", None
        if self.writer.stdout:
            self.writer.stdout.close()
        if not self.shim.alive:
            self.shim.unlock_gpus()

    def end(self) -> None:
        """Free the memory, written or not."""
        self.again_at, self.off = NEVER, True
        if self.writer:
            with contextlib.suppress(OSError):
                os.kill(self.writer.pid, signal.SIGKILL)
        if is_ours(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._let_go()


def write_copies(plain: Any, folder: str, disk: str, job_id: str, holder: Any = None) -> None:
    """Write what is only in memory to disk, and replace it with links to there. Raises OSError.

    `holder`: has the tensors that are on a GPU (`gpu_memory.StateHolder`).
    """
    memory = plain.InMemory(folder, job_id, 0)
    prefix = plain.TEMPORARY + "memory-"  # so that no trainer takes it for its own
    for pattern in (f"{prefix}*", f"{plain.TEMPORARY}*{plain.OLD}"):  # left by a killed writer; set aside by a stop
        for doomed in glob.glob(os.path.join(glob.escape(disk), pattern)):
            shutil.rmtree(doomed, ignore_errors=True)
    for name in copies(folder, held=True):
        target = plain.Checkpoints(disk, job_id, rank(name)[0])
        fault = memory._fault(name)
        if fault is None and not target._already(name):
            fault = write_copy(plain, memory.folder / name, target.folder / (prefix + name), holder)
        if fault is not None:
            memory._set_aside(name, fault)
            sys.stderr.write(f"shim: checkpoint {name} was damaged in memory and is lost: {fault}\n")
    for bad in glob.glob(os.path.join(glob.escape(folder), plain.BAD + "*")):
        os.makedirs(os.path.join(disk, os.path.basename(bad)), exist_ok=True)  # so that none silently starts from zero
    for name in copies(folder):
        with contextlib.suppress(OSError):  # set aside or removed meanwhile
            free(os.path.join(folder, name), os.path.join(disk, name))


def write_copy(plain: Any, copy: Any, half: Any, holder: Any) -> "str | None":
    """Write one copy to disk under its final name; return why not if it has changed meanwhile."""
    wanted = plain._manifest_at(copy)
    files = {name: content(copy / name) for name in wanted["files"]}
    if TENSORS in files:
        files[BULK] = lambda path: holder.write(token(str(copy)), path)
    plain._write_set(half, {name: wanted[name] for name in ("job_id", "generation", "step")}, files)
    written = plain._manifest_at(half)["files"]
    if any(written[name] != digest for name, digest in wanted["files"].items()):
        shutil.rmtree(half)
        return "it has changed while it was written"
    half.rename(half.parent / copy.name)
    plain._sync(half.parent)
    return None


def token(copy: str) -> str:
    """Return the token of a copy's tensors on a GPU; empty if it has none."""
    path = os.path.join(copy, TENSORS)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError), open(path, encoding="utf-8") as file:
        return str(json.load(file)["token"])
    return ""


def content(path: Any) -> Any:
    """Map a file's bytes without reading them yet."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""


def free(copy: str, written: str) -> None:
    """Replace files with links, the manifest first: its link tells others that this copy is on disk."""
    if not os.path.exists(os.path.join(written, MANIFEST)):  # written before, and deleted since
        return shutil.rmtree(copy)
    for name in sorted(os.listdir(written), key=lambda name: name != MANIFEST):
        link = copy + ".link"
        if not os.path.islink(os.path.join(copy, name)):
            with contextlib.suppress(OSError):
                os.unlink(link)
            os.symlink(os.path.join(written, name), link)
            os.rename(link, os.path.join(copy, name))
    return None


def load(name: str, path: str) -> Any:
    """Load the module in this file, which is not on `sys.path`."""
    spec: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class StateOnGpu:
    """The part of a writer that holds a state on a GPU until it is on disk and the next trainer has it."""

    def __init__(self, listener: int, gpus: "tuple[int, int]") -> None:
        here = os.path.dirname(os.path.abspath(__file__))
        self.unwanted = False
        signal.signal(signal.SIGTERM, self._withdraw)  # before anything is held
        module = load("gpu_memory", os.path.join(here, "gpu_memory.py"))
        report = module.words_to(sys.stdout.fileno())
        self.holder = module.StateHolder(socket.socket(fileno=listener), gpus, report)

    def _withdraw(self, *_signal: Any) -> None:
        self.unwanted = True

    def let_restart(self, folder: str) -> None:
        """Return once the next trainer has the state, or after some seconds: a busy disk slows its start.

        Return at once if the state was never saved: its trainer was killed after handing it over.
        """
        if self.holder.token not in [token(os.path.join(folder, name)) for name in copies(folder)]:
            return
        until = time.monotonic() + WRITE_AFTER_S
        while self.holder.awaited() and not self.unwanted and time.monotonic() < until:
            time.sleep(LOOK_S)

    def linger(self) -> None:
        """Return once no trainer will come for the state any more."""
        while self.holder.wanted() and not self.unwanted:
            time.sleep(LOOK_S)


def main(path: str, folder: str, disk: str, job_id: str, shim: str, *on_gpu: str) -> None:
    """Write the copies, retrying while a state is only on the GPU.

    `on_gpu`: nothing, or the descriptor of the holder's socket and the number of GPUs now and next.
    """
    hold = StateOnGpu(int(on_gpu[0]), (int(on_gpu[1]), int(on_gpu[2]))) if on_gpu else None
    sys.stdin.buffer.read()  # EOF when the trainer ends, as the shim arranges, or with the shim
    if hold is not None:
        hold.let_restart(folder)
    plain = load("plain", path)
    tries = 0
    while True:
        try:
            write_copies(plain, folder, disk, job_id, hold and hold.holder)
            break
        except Exception as fault:  # from a disk or the driver
            tries += 1
            orphaned = os.getppid() != int(shim) and tries * HELD_PAUSE_S > HELD_MOST_S
            if hold is None or not hold.holder.holds() or orphaned:
                sys.exit(f"shim: a checkpoint is in memory only, and is written again later: {fault}")
            if tries == 1:
                sys.stderr.write(f"shim: a checkpoint is on the GPU only, and is written again later: {fault}\n")
                sys.stderr.flush()
            time.sleep(HELD_PAUSE_S)  # it is only in this process, which must live for it
    if hold is not None:
        hold.linger()
    if os.getppid() != int(shim) and is_ours(folder):
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
