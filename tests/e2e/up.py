"""`reshape up` as a real process on a folder of its own, for tests that drive it like a user.

Promises: whatever a test does, nothing that it started is left when `running` ends; times are short; what
happened on the GPUs is read from the trainers' own locks, not from the coordinator. Not a test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable
from tests.fakes.gpu_log import GpuLog
from tests.patience import eventually, patient

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TRAINERS = ROOT / "tests" / "fakes" / "trainers"
SHIM = ROOT / "sidecar" / "shim.py"
ENDED = ("completed", "failed", "cancelled")
WITHIN_S = 90.0  # nothing here takes so long on a machine that is not loaded
SHORT = {
    "RESHAPE_STORE": "",  # not the one of the shell that runs the tests
    "RESHAPE_HEARTBEAT_S": "0.5",
    "RESHAPE_LEASE_S": "60",
    "RESHAPE_GRACE_S": "2",
    "RESHAPE_KILL_S": "2",
    "RESHAPE_POLL_S": "0.5",
    "RESHAPE_RETRY_S": "0.1",
    "RESHAPE_FIRST_STEP_TIMEOUT_S": "2",
    "RESHAPE_COOLDOWN_FACTOR": "0",
    "RESHAPE_LOG": "INFO",
}

T = TypeVar("T")
View = dict[str, Any]


def wait_for(condition: Callable[[], T], seconds: float = WITHIN_S, what: str = "") -> T:
    """What `condition` returns, once that is true; AssertionError long afterwards."""
    return eventually(condition, what, seconds)


def digits(job_id: str, iterations: int, counts: list[int], **more: Any) -> View:
    """A job of the NumPy example, with a checkpoint every ten steps."""
    script = [sys.executable, str(EXAMPLES / "numpy_digits.py"), "--iterations", str(iterations), "--save-every", "10"]
    return {
        "job_id": job_id, "state": "submitted", "job_type": "digits-numpy", "command": script,
        "iterations": iterations, "optional_num_gpus": counts, "elastic": True, **more,
    }  # fmt: skip


def of_folder(folder: Path) -> dict[int, str]:
    """pid -> command line of every living process that names a folder in its arguments or environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words, variables = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            if str(folder).encode() in words + variables and int(entry.name) != os.getpid():
                found[int(entry.name)] = words.replace(b"\0", b" ").decode("utf-8", "replace")
    return found


class Up(GpuLog):
    """One state folder, and the `reshape up` that may run on it."""

    def __init__(
        self,
        state: Path,
        gpus: str | Sequence[str],
        store: str | None = None,
        program: str = "reshape",
        **times: str,
    ) -> None:
        """`gpus`: 4xV100, or nodes such as a=8xV100 and c=cpu:2; none: those of NVML.

        `program`: the module that stands for `reshape`.
        """  # fmt: skip
        super().__init__(state.with_name(state.name + "-locks"))
        self.state, self.locks = state, self.folder
        has = ["--gpus", gpus] if isinstance(gpus, str) else [word for node in gpus for word in ("--node", node)]
        self._arguments = [*has, *(["--store", store] if store else [])]
        self._times = SHORT | times
        self._program = program
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, failpoint: str | None = None) -> Client:
        """Start it (again), and wait until it answers; with a failpoint it may be gone before it does."""
        assert self.process is None or self.process.poll() is not None, "it still runs"
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = os.pathsep.join(filter(None, (self._times.get("PYTHONPATH"), str(ROOT))))
        given = {"PYTHONPATH": path, "RESHAPE_GPU_LOCKS": str(self.locks)}
        environment = os.environ | self._times | given | ({"RESHAPE_FAILPOINT": failpoint} if failpoint else {})
        command = [sys.executable, "-P", "-m", self._program, "--state", str(self.state), "up", *self._arguments]
        with (self.state / "up.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        wait_for(lambda: self.gone or self._answers(), what="`reshape up` answers")
        assert failpoint or not self.gone, f"ended with {self.process.returncode}: {self.log[-3000:]}"
        return self.client

    @property
    def client(self) -> Client:
        return Client.find(self.state)

    @property
    def gone(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def log(self) -> str:
        return (self.state / "up.log").read_text() if (self.state / "up.log").exists() else ""

    def _answers(self) -> bool:
        """Whether the present process does: `up.json` may still be that of the last one."""
        with contextlib.suppress(CoordinatorUnreachable, OSError, ValueError):
            written = json.loads((self.state / "up.json").read_text())
            return bool(self.process) and written["pid"] == self.process.pid and bool(self.client.health()["ok"])
        return False

    def stop(self) -> int:
        """SIGTERM, as Ctrl-C; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(patient(WITHIN_S))

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(patient(WITHIN_S))

    def job(self, job_id: str) -> View:
        return self.client.job(job_id)

    def until(self, job_id: str, state: str, seconds: float = WITHIN_S) -> View:
        """The job, once it is in this state and nothing is left to do for it. Fails at once if it ends otherwise."""

        def there() -> View | None:
            job = self.job(job_id)
            assert job["state"] == state or job["state"] not in ENDED, job
            settled = job["closed"] if state in ENDED else not job["reshape"]
            return job if job["state"] == state and settled else None

        return wait_for(there, seconds, f"job {job_id} is {state}")

    # the end

    def clear(self) -> None:
        """Ends everything; AssertionError if something is left."""
        self._cancel_all()
        if not self.gone:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
            self.process.kill()
            self.process.wait()
        for launch in self.state.glob("jobs/*/shim.lock"):
            command = [sys.executable, str(SHIM), "--folder", str(launch.parent), "--end"]
            subprocess.run(command, timeout=patient(60), check=False, capture_output=True)
        sys.stdout.write(self.log[-6000:])  # pytest shows it for a test that failed
        wait_for(lambda: not of_folder(self.state), 10, f"nothing is left of {self.state}: {of_folder(self.state)}")

    def _cancel_all(self) -> None:
        if self.gone:
            return
        with contextlib.suppress(CoordinatorRefused, CoordinatorUnreachable, AssertionError):
            for job in self.client.jobs():
                self.client.cancel(str(job["job_id"]))
            wait_for(lambda: not self.client.jobs(), 20, "all jobs are cancelled")


@contextlib.contextmanager
def running(state: Path, gpus: str | Sequence[str], store: str | None = None, **times: str) -> Iterator[Up]:
    """A started `Up`, and nothing of it afterwards."""
    up = Up(state, gpus, store, **times)
    try:
        up.start()
        yield up
    finally:
        up.clear()
