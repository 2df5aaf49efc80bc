"""Freezes a training in host memory and thaws it, with the checkpoint calls of NVIDIA's driver (570 or newer).

Its GPU contents move into the process's memory; the process lives on without a GPU, blocked in its next CUDA call.
Promises: what the driver cannot freeze trains on unharmed, with a sentence that says why; a freeze counts as done only
once its GPU has been given back; no thaw begins on a GPU without room for it. `Freezer` belongs to the shim, which
loads this file from its own folder; the driver is called in a child that runs this file as a program, so that a hanging
driver blocks nobody. Standard library, Python 3.8. Measured on an H100 with driver 580; several GPUs of one node were
not.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Iterable

LOCK_MS = 10_000  # for work already running on the GPU
GIVEN_BACK_S = 10.0  # for NVML to stop listing the process
TURN_S = 120.0  # for a turn to freeze: 60 GB took 30 s
LONGEST_S = 900.0  # for one driver call: 60 GB took 30 s
SLACK = 256 << 20  # bytes that must stay free on a GPU after a thaw
RUNNING, LOCKED, FROZEN = 0, 1, 2  # CUprocessState
DEVICE = "/dev/nvidia"
ONE_AT_A_TIME = "freezing"  # the machine-wide lock by which no two freezes count the same free memory as their own
ALONE = "the driver freezes a training with one process on one GPU"
LOST = "it ended while it was frozen in memory, with all that it had not saved"
PR_SET_PDEATHSIG = 1


class Unfit(Exception):
    """Raised when it cannot be done, with nothing changed; the argument is a sentence without its full stop."""


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("instance", ctypes.c_uint),
        ("part", ctypes.c_uint),
    ]


class Driver:
    """The driver's two libraries, loaded by the child."""

    def __init__(self) -> None:
        try:
            self.cuda, self.nvml = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1")
        except OSError as fault:
            raise Unfit(f"there is no NVIDIA driver here ({fault})")
        if not hasattr(self.cuda, "cuCheckpointProcessLock"):
            raise Unfit("the NVIDIA driver cannot freeze trainings; 570 is the first that can")
        for code, what in ((self.nvml.nvmlInit_v2(), "NVML"), (self.cuda.cuInit(0), "CUDA")):
            if code:
                raise Unfit(f"{what} does not start (error {code}); check the NVIDIA driver of this machine")

    def state(self, pid: int) -> "int | None":
        """Return a process's state; None if it does not use CUDA."""
        found = ctypes.c_int(-1)
        return None if self.cuda.cuCheckpointProcessGetState(pid, ctypes.byref(found)) else found.value

    def call(self, verb: str, pid: int, *arguments: bytes) -> int:
        """Call cuCheckpointProcess`verb`; return its error, 0 for success. `arguments`: the fields of its structure."""
        given = ctypes.create_string_buffer(b"".join(arguments), 64)
        return int(getattr(self.cuda, f"cuCheckpointProcess{verb}")(pid, given))

    def restore(self, pid: int, old: str, new: str) -> int:
        """Give a frozen process the GPU `new` in place of `old`; return the error."""
        pair = ctypes.create_string_buffer(uuid(old) + uuid(new), 32)
        return self.call("Restore", pid, bytes(ctypes.c_uint64(ctypes.addressof(pair))), bytes(ctypes.c_uint32(1)))

    def device(self, gpu: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if code := self.nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(handle)):
            raise Unfit(f"GPU {gpu} cannot be read (NVML's error {code})")
        return handle

    def kind(self, gpu: str) -> str:
        """Return the model name of a GPU."""
        found = ctypes.create_string_buffer(96)
        self.nvml.nvmlDeviceGetName(self.device(gpu), found, 96)
        return found.value.decode(errors="replace")

    def memory(self, gpu: str) -> Memory:
        found = Memory()
        if code := self.nvml.nvmlDeviceGetMemoryInfo(self.device(gpu), ctypes.byref(found)):
            raise Unfit(f"GPU {gpu} cannot be read (NVML's error {code})")
        return found

    def held(self, gpu: str) -> "dict[int, int]":
        """Return the bytes that each process holds of a GPU."""
        count, found = ctypes.c_uint(1024), (Process * 1024)()
        if code := self.nvml.nvmlDeviceGetComputeRunningProcesses_v3(self.device(gpu), ctypes.byref(count), found):
            raise Unfit(f"GPU {gpu} cannot be read (NVML's error {code})")
        return {one.pid: one.memory for one in found[: count.value]}


def uuid(gpu: str) -> bytes:
    """Return the 16 bytes of a GPU's UUID."""
    try:
        return bytes.fromhex(gpu.partition("-")[2].replace("-", ""))
    except ValueError:
        raise Unfit(f"{gpu} is not the UUID of a GPU")


def opens_gpu(pid: int) -> bool:
    """Return whether a process has a GPU open."""
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                name = os.readlink(f"/proc/{pid}/fd/{number}")
                if name.startswith(DEVICE) and name[len(DEVICE) :].isdigit():
                    return True
    return False


def threads(pid: int) -> str:
    """Return the names of a process's threads, in lower case."""
    found = ""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/comm") as file:
                found += file.read().lower()
    return found


def chosen(driver: Driver, pids: "list[int]", gpu: str, room: int) -> "tuple[int, int]":
    """Return the one process that can be frozen and the bytes that it holds on its GPU. Raises Unfit."""
    states = {pid: driver.state(pid) for pid in pids}
    with_gpu = [pid for pid in pids if states[pid] is not None or opens_gpu(pid)]
    if not with_gpu:
        raise Unfit("none of its processes uses a GPU yet; try again once it trains")
    if len(with_gpu) > 1:
        raise Unfit(f"{len(with_gpu)} of its processes have a GPU open; {ALONE}")
    pid = with_gpu[0]
    if states[pid] != RUNNING:
        raise Unfit(
            f"the driver says that its process is in state {states[pid]}, not running; try again once it trains"
        )
    if "nccl" in threads(pid):
        raise Unfit(f"it has set up NCCL; {ALONE}, without it")
    held = driver.held(gpu).get(pid)
    if held is None or held > driver.memory(gpu).total:  # not reported, as in a container
        held = driver.memory(gpu).used
    if held > room:
        raise Unfit(f"it has {gib(held)} on its GPU, and {gib(max(0, room))} of memory are free here to keep that")
    return pid, held


def available_bytes() -> int:
    """Return how much memory of this machine can be used; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo", encoding="ascii") as file:
        return int(file.read().partition("MemAvailable:")[2].split()[0]) << 10
    return 0


def gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def freeze(pids: "list[int]", gpu: str, room: int, available: int, turn: int) -> "dict[str, Any]":
    """Freeze the one of these processes that uses the GPU. Raises Unfit.

    `room`: bytes of host memory that it may take, at a time when `available` were free on the machine. `turn`: a file
    whose lock is held while this lasts, so that the memory it takes is gone when the next freeze looks.
    """
    await_turn(turn)
    driver = Driver()
    pid, held = chosen(driver, pids, gpu, room - max(0, available - available_bytes()))
    code = driver.call("Lock", pid, bytes(ctypes.c_uint32(LOCK_MS)))
    if code:
        settle([pid], gpu, driver)
        raise Unfit(f"what it computes did not come to an end within {LOCK_MS // 1000} s (CUDA's error {code})")
    code = driver.call("Checkpoint", pid)
    if driver.state(pid) != FROZEN:
        settle([pid], gpu, driver)
        raise Unfit(
            f"the driver does not freeze it (CUDA's error {code}), as it does not where memory is managed (UVM) or "
            "shared with another process"
        )
    until = time.monotonic() + GIVEN_BACK_S
    while pid in driver.held(gpu):
        if time.monotonic() > until:
            settle([pid], gpu, driver)
            raise Unfit("the driver did not give its GPU back")
        time.sleep(0.02)
    return {"frozen": True, "pid": pid, "held": held}


def await_turn(turn: int) -> None:
    """Take the lock of this machine's freezes. Raises Unfit once others have held it for TURN_S."""
    until = time.monotonic() + TURN_S
    while True:
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise Unfit("another training of this machine is being frozen, and that does not end") from None
            time.sleep(0.1)


def thaw(pid: int, old: str, new: str, held: int) -> "dict[str, Any]":
    """Give a frozen process this GPU. Raises Unfit, which leaves it frozen as before."""
    driver = Driver()
    if driver.state(pid) == FROZEN:
        kind, wanted = driver.kind(new), driver.kind(old)
        if kind != wanted:
            raise Unfit(f"GPU {new} is a {kind}, and it was frozen on a {wanted}")
        free = driver.memory(new).free
        if free < held + SLACK:  # after an attempt that ran out of memory, the driver refused all later ones
            raise Unfit(f"{gib(free)} are free on GPU {new}, and it needs {gib(held + SLACK)}")
        code = driver.restore(pid, old, new)
        if driver.state(pid) == FROZEN:
            raise Unfit(f"the driver did not restore it on GPU {new} (CUDA's error {code})")
    return settle([pid], new, driver)


def settle(pids: "list[int]", gpu: str, driver: "Driver | None" = None) -> "dict[str, Any]":
    """Resume the process that is locked, or frozen and still on this GPU; return its state afterwards."""
    driver = driver or Driver()
    pid = next((one for one in pids if driver.state(one) is not None), 0)
    if driver.state(pid) == FROZEN and pid in driver.held(gpu):
        driver.restore(pid, gpu, gpu)
    if driver.state(pid) == LOCKED:
        driver.call("Unlock", pid)
    state = driver.state(pid)
    return {"frozen": state == FROZEN, "runs": state == RUNNING, "pid": pid, "state": state}


def main() -> None:
    """Carry out `verb JSON`; print the answer as JSON."""
    verb, given = sys.argv[1], json.loads(sys.argv[2])
    verbs: "dict[str, Callable[..., dict[str, Any]]]" = {"freeze": freeze, "thaw": thaw, "settle": settle}
    try:
        answer = verbs[verb](**given)
    except Unfit as no:
        answer = {"why": no.args[0]}
    print(json.dumps(answer), flush=True)  # noqa: T201


class Freezer:
    """A freeze or thaw in progress for one shim's trainer, and what the next one needs."""

    def __init__(self, shim: Any, say: "Callable[[str], None]", refused: "type[Exception]", locks: Any) -> None:
        """`shim`: the `Shim`. `say`: logs a sentence. `refused`: raised with the sentence that a caller gets.

        `locks`: the module `gpu_locks`.
        """
        self.shim = shim
        self.say = say
        self.refused = refused
        self.locks = locks
        self.child: "subprocess.Popen[bytes] | None" = None
        self.asked: dict[str, Any] = {}
        self.verb, self.since, self.said = "", 0.0, b""
        self.pids: list[int] = []  # those that the child works on
        self.pid, self.held, self.gpu = 0, 0, ""  # of the frozen process; 0: there is none

    @property
    def busy(self) -> bool:
        return self.child is not None

    def strangers(self) -> "list[subprocess.Popen[bytes]]":
        return [self.child] if self.child else []

    def unable(self) -> str:
        """Return why no trainer of this launch can ever be frozen; empty if one can."""
        launch = self.shim.launch
        return "" if launch.gpus == "nvml" and not launch.pod else "only on a machine's own GPUs, and not in a pod"

    def freeze(self, ask: "dict[str, Any]", family: "Iterable[int]") -> None:
        """Begin to freeze the trainer. `family`: all its processes."""
        status = self.shim.status
        if self.child and self.verb == "freeze" and self.asked["command_id"] == ask["command_id"]:
            return
        if self.unable():
            raise self.refused(f"it cannot be frozen: {self.unable()}")
        if status["trainer"] != "running" or self.child:
            raise self.refused("no trainer runs here that could be frozen now", 409)
        gpus = status["gpu_ids"]
        why = ""
        if len(gpus) != 1:
            why = f"it has {len(gpus)} GPUs; {ALONE}"
        elif not gpus[0].startswith("GPU-"):
            why = f"it has a part of a GPU (MIG); {ALONE}"
        if why:
            status.update(unfrozen=why, unfrozen_by=str(ask["command_id"]))
            return
        self.asked, self.gpu = ask, gpus[0]
        status.update(trainer="stopping", unfrozen="", unfrozen_by="")
        self.pids = sorted(family)
        available = available_bytes()
        room = self.shim.warm.room()
        try:
            turn = self.locks.open_unlocked(ONE_AT_A_TIME)
        except self.locks.Unusable as fault:
            self._goes_on(str(fault))
            return
        try:
            self._begin("freeze", (turn,), pids=self.pids, gpu=self.gpu, room=room, available=available, turn=turn)
        finally:
            os.close(turn)

    def thaw(self, ask: "dict[str, Any]", gpu_ids: "list[str]", lease: float) -> None:
        """Begin to thaw the frozen trainer on this GPU."""
        if self.child or len(gpu_ids) != 1:
            raise self.refused(f"the frozen trainer cannot be thawed on {gpu_ids!r:.200}; name one GPU", 409)
        self.asked = ask
        taken = self.shim.lock_gpus(gpu_ids)  # held by us alone: the trainer's processes can no longer inherit it
        if taken:
            return self._stays(taken)
        self.pids = [self.pid]
        status = self.shim.status
        status.update(trainer="stopping", gpu_ids=gpu_ids, lease_deadline=lease, unfrozen="", unfrozen_by="")
        return self._begin("thaw", pid=self.pid, old=self.gpu, new=gpu_ids[0], held=self.held)

    def tick(self, now: float) -> None:
        """Watch the child; take its answer once it has exited."""
        child = self.child
        if child is None:
            return
        assert child.stdout is not None
        ended = child.returncode is not None
        while select.select([child.stdout], [], [], 0)[0]:
            data = os.read(child.stdout.fileno(), 65536)
            self.said += data
            if not data:
                break
        if not ended:
            if now > self.since + LONGEST_S or not self.shim.alive:
                with contextlib.suppress(OSError):
                    os.kill(child.pid, signal.SIGKILL)
            return
        child.stdout.close()
        self.child = None
        if self.shim.alive:
            self._take()

    def _take(self) -> None:
        """Take the answer of a child that has exited."""
        try:
            answer = json.loads(self.said)
        except ValueError:
            if self.verb == "settle":
                self.say(f"the driver does not say whether process {self.pid} is frozen; check the NVIDIA driver")
                return self._goes_on("the driver's calls failed or hung; check the NVIDIA driver of this machine")
            return self._begin("settle", pids=self.pids, gpu=(self.shim.status["gpu_ids"] or [self.gpu])[0])
        if answer.get("frozen"):
            self.pid, self.held = answer["pid"], answer.get("held", self.held)
            if self.asked["do"] == "stop":
                self._unlock()
                self.shim.obeyed(self.asked)
                return self._is_frozen()
            return self._stays("the driver did not restore it")
        if self.asked["do"] == "start" and not answer.get("runs"):
            return self._stays(str(answer.get("why") or f"the driver left it in state {answer.get('state')}"))
        if self.asked["do"] == "start":
            self.gpu, self.pid = self.asked["gpu_ids"][0], 0
        return self._goes_on(str(answer.get("why") or ""))

    def _is_frozen(self) -> None:
        """Record that the trainer has no GPU and so needs no lease."""
        status = self.shim.status
        status.update(gpu_ids=[], lease_deadline=0.0)
        if not status["stop_asked"]:  # else it is being ended
            status["trainer"] = "frozen"

    def _stays(self, why: str) -> None:
        """Record that the trainer stays frozen."""
        self._unlock()
        self._is_frozen()
        self.shim.status.update(unfrozen=why, unfrozen_by=str(self.asked["command_id"]))

    def _unlock(self) -> None:
        """Release its GPU locks, although its processes, which inherited them, live on."""
        for lock in self.shim.gpus.values():
            fcntl.flock(lock, fcntl.LOCK_UN)
        self.shim.unlock_gpus()

    def ended(self) -> str:
        """Note that the trainer has ended; return what was lost if it was frozen."""
        pid, self.pid = self.pid, 0
        return LOST if pid else ""

    def _goes_on(self, why: str) -> None:
        """Record that the trainer runs on. `why`: it was not frozen."""
        status = self.shim.status
        if status["trainer"] == "stopping" and not status["stop_asked"]:
            status["trainer"] = "running"
        if self.asked["do"] == "stop":
            status.update(unfrozen=why or "the driver let it go on", unfrozen_by=str(self.asked["command_id"]))

    def _begin(self, verb: str, passed: "tuple[int, ...]" = (), **given: Any) -> None:
        """Start the child that calls the driver. It dies with us. `passed`: descriptors for it."""
        libc, parent = ctypes.CDLL(None), os.getpid()

        def die_with_parent() -> None:
            libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        env.update(self.shim.driver_place())
        command = [sys.executable, "-I", "-S", os.path.abspath(__file__), verb, json.dumps(given)]
        self.verb, self.since, self.said = verb, time.clock_gettime(time.CLOCK_BOOTTIME), b""
        self.child = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
            pass_fds=passed,
        )


if __name__ == "__main__":
    main()
