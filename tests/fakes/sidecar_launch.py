"""One launch as the launcher would start it: a real shim with a real sidecar and a small trainer."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE, Heartbeat, sign
from tests.fakes.tiny_coordinator import KEY
from tests.patience import eventually, patient

ROOT = Path(__file__).resolve().parents[2]

# Prints a step every 20 ms; on SIGTERM saves a checkpoint with its manifest and exits 143.
TRAINER = """
import hashlib, json, os, signal, sys, time
clock = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
wanted = []
signal.signal(signal.SIGTERM, lambda *_: wanted.append(1))
step, generation = int(sys.argv[2]), int(os.environ["RESHAPE_GENERATION"])
print("total=100000", flush=True)
while not wanted:
    time.sleep(0.02)
    step += 1
    print(f"step={step} loss={1 / step} time={clock()}", flush=True)
name = f"g{generation}-s{step}"
path = os.path.join(sys.argv[1], name)
os.makedirs(path)
open(os.path.join(path, "model"), "w").write("weights")
files = {"model": hashlib.sha256(b"weights").hexdigest()}
manifest = {"job_id": os.environ["RESHAPE_JOB_ID"], "generation": generation, "step": step, "files": files}
json.dump(manifest, open(os.path.join(path, "manifest.json"), "w"))
print(f"checkpoint={name} step={step} time={clock()}", flush=True)
sys.exit(143)
"""


class Launch:
    def __init__(self, folder: Path, coordinator: str, first_step: int = 0, **changes: Any) -> None:
        self.folder, self.checkpoints = folder, folder / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        (folder / "trainer.py").write_text(TRAINER)
        (folder / "launch.key").write_bytes(KEY + b"\n")
        spec = {
            "job_id": "job-1",
            "uid": "u",
            "launch": 3,
            "command": [sys.executable, str(folder / "trainer.py"), str(self.checkpoints), str(first_step)],
            "env": {},
            "workdir": str(folder),
            "sidecar": [sys.executable, "-m", "sidecar", "--folder", str(folder)],
            "output": str(folder / "output.log"),
            "lease_s": 300.0,
            "grace_s": 0.5,
            "kill_s": 2.0,
            "coordinator": coordinator,
            "gpus": "emulated",
            "gpu_memory": 16 << 30,
            "checkpoints": str(self.checkpoints),
            "heartbeat_s": 0.3,
        }
        (folder / "launch.json").write_text(json.dumps({**spec, **changes}))
        self.run()

    def run(self) -> None:
        """Also again, once it has ended."""
        folder = self.folder
        shim = [sys.executable, "-I", "-S", str(ROOT / "sidecar" / "shim.py"), "--folder", str(folder)]
        log = (folder / "shim.log").open("wb")
        self.shim = subprocess.Popen(shim, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()

    def ready(self) -> Launch:
        def healthy() -> bool:
            try:
                return self.send("GET", "/healthz")[0] == 200
            except OSError:
                return False

        eventually(healthy, "the sidecar answers")
        return self

    def url(self) -> str:
        return (self.folder / "sidecar.url").read_text().strip()

    def send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers, body."""
        address = urlsplit(self.url())
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=patient(15))
        try:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            return response.status, dict(response.headers), response.read()
        finally:
            connection.close()

    def call(self, verb: str, body: Any) -> tuple[int, dict[str, str], dict[str, Any]]:
        """As the coordinator calls."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, headers, answer = self.send("POST", f"/v1/{verb}", raw, rights(f"/v1/{verb}", raw))
        return status, headers, json.loads(answer)

    def start(self, generation: int, gpu_ids: tuple[str, ...] = ("g0",), **more: Any) -> dict[str, Any]:
        body = {"generation": generation, "command_id": f"job-1:{generation}:start", "gpu_ids": list(gpu_ids), **more}
        status, _, answer = self.call("start", body)
        assert status == 200, answer
        return answer

    def status(self) -> Heartbeat:
        return msgspec.json.decode(self.send("GET", "/v1/status")[2], type=Heartbeat)

    def end(self) -> None:
        if self.shim.poll() is None:
            os.kill(self.shim.pid, signal.SIGCONT)
            self.shim.terminate()
            try:
                self.shim.wait(patient(10))
            except subprocess.TimeoutExpired:
                self.shim.kill()
                self.shim.wait()


def rights(path: str, body: bytes, method: str = "POST") -> dict[str, str]:
    """The headers of a call by the coordinator."""
    return {HEADER_JOB: "job-1", HEADER_LAUNCH: "3", HEADER_SIGNATURE: sign(KEY, method, path, body)}
