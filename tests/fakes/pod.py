"""A pod without Kubernetes: what the init container does, a shim as the first process of a container of its own, and a
sidecar that shares only one folder with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE, sign
from tests.fakes.shim_client import WITHIN_S, ShimClient, marked
from tests.fakes.sidecar_launch import ROOT
from tests.fakes.tiny_coordinator import KEY
from tests.patience import eventually

CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def can_make_containers() -> bool:
    return bool(shutil.which("unshare")) and not subprocess.run([*CONTAINER, "true"], capture_output=True).returncode


class Pod:
    def __init__(self, folder: Path, argv: list[str], coordinator: str = "http://127.0.0.1:9", **launch: Any) -> None:
        self.folder, self.keys, self.command = folder / "reshape", folder / "keys", argv
        self.mark = f"mark-{time.monotonic_ns()}-{os.getpid()}"
        self.checkpoints, self.output = self.folder / "checkpoints", self.folder / "checkpoints/.output/output.log"
        for path in (self.folder, self.keys):
            path.mkdir(parents=True)
        self.folder.chmod(0o777)
        spec = {
            "job_id": "job-1", "uid": "u", "launch": 3, "command": [], "workdir": None, "sidecar": None, "pod": True,
            "env": {"RESHAPE_CHECKPOINTS": str(self.checkpoints)}, "output": str(self.output), "tee": True,
            "checkpoints": str(self.checkpoints), "lease_s": 300.0, "grace_s": 5.0, "kill_s": 2.0, "heartbeat_s": 0.3,
            "coordinator": coordinator, "gpus": "emulated", "gpu_memory": 1 << 30, "port": 0,
        }  # fmt: skip
        (self.keys / "launch.json").write_text(json.dumps({**spec, **launch}))
        (self.keys / "launch.key").write_bytes(KEY)
        install = [sys.executable, "-m", "sidecar.startup.install", "--from", str(self.keys), "--to", str(self.folder)]
        subprocess.run(install, cwd=ROOT, check=True)
        self.shim: subprocess.Popen[bytes] | None = None
        self.sidecar: subprocess.Popen[bytes] | None = None
        self.stdout = folder / "stdout"
        self.stderr = folder / "stderr"

    def run_shim(
        self, prefix: list[str] | None = None, python: str = sys.executable, more: tuple[str, ...] = (), **env: str
    ) -> Pod:
        """The trainer's container; again after its end as the kubelet would."""
        command = [*(prefix or []), python, "-I", "-S", str(self.folder / "shim.py"), "--folder", str(self.folder)]
        here = self.folder.parent / "cwd"
        here.mkdir(exist_ok=True)
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            environ = {**os.environ, "TEST_MARK": self.mark, **env}
            self.shim = subprocess.Popen(
                [*command, *more, "--", *self.command],
                cwd=here,
                env=environ,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
            )
        return self

    def listening(self) -> ShimClient:
        def client() -> ShimClient | None:
            assert self.shim is not None and self.shim.poll() is None, self.stderr.read_text()
            with contextlib.suppress(OSError):
                return ShimClient(self.folder)
            return None

        found: ShimClient = eventually(client, "the shim listens")
        return found

    def run_sidecar(self, **env: str) -> Pod:
        command = [sys.executable, "-m", "sidecar", "--folder", str(self.folder), "--keys", str(self.keys)]
        with (self.folder.parent / "sidecar.log").open("ab") as log:
            environ = {**os.environ, "POD_IP": "127.0.0.1", **env}
            self.sidecar = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log)
        return self

    def sidecar_said(self) -> str:
        path = self.folder.parent / "sidecar.log"
        return path.read_text() if path.exists() else ""

    def ended(self) -> int:
        """The exit status of the trainer's container."""
        assert self.shim is not None
        return self.shim.wait(WITHIN_S)

    def left(self) -> list[int]:
        return [pid for pid in marked(self.mark) if self.shim is None or pid != self.shim.pid]

    def close(self) -> None:
        for process in (self.shim, self.sidecar):
            if process is not None:
                process.kill()
                process.wait()
        eventually(lambda: not any(map(_killed, marked(self.mark))), "nothing is left")


def _killed(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)
        return True
    return False


@contextlib.contextmanager
def pod(folder: Path, argv: list[str], coordinator: str = "http://127.0.0.1:9", **launch: Any) -> Iterator[Pod]:
    one = Pod(folder, argv, coordinator, **launch)
    try:
        yield one
    finally:
        one.close()


def signed_call(path: str, body: Any) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a call by the coordinator."""
    raw = msgspec.json.encode(body)
    return raw, {HEADER_JOB: "job-1", HEADER_LAUNCH: "3", HEADER_SIGNATURE: sign(KEY, "POST", path, raw)}
