"""A real coordinator in this process: over HTTP to real sidecars and shims, with emulated GPUs.

What `reshape up` is, except that the caller brings the store and the settings and may look inside. Called by the
benchmarks. When `running` ends, no training and no launch is left.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptive_scheduler.settings import Settings
from benchmarks.result import WrongAnswer
from benchmarks.serving import serving
from coordinator.adapters.clock import SystemClock
from coordinator.adapters.sidecars import HttpSidecars
from coordinator.config import Config
from coordinator.errors import ReshapeError
from coordinator.http.app import make_app, make_server
from coordinator.ports import Platform, Store
from coordinator.service import Coordinator
from coordinator.stores.bootstrap import FoundGpu, register_gpus
from coordinator.stores.elector import Elector, Holder
from launcher.local import LocalPlatform
from launcher.local_spec import LocalSettings
from reshape import __version__

GPU_TYPE = "V100"
WITHIN_S = 180.0  # for anything that is waited for; only a fault takes so long
BAD_ENDS = ("failed", "refused", "cancelled", "undone")

View = dict[str, Any]


class Cluster:
    """`coordinator` and `api` are the real ones; `submit`, `until` and `output` save going over HTTP."""

    def __init__(self, store: Store, platform: Platform, config: Config, settings: Settings, master_key: bytes) -> None:
        clock = SystemClock()
        elector = Elector(store, clock, config.term_s, Holder.of_process(os.getpid()))
        self.coordinator = Coordinator(
            store, HttpSidecars(), platform, clock, config, settings, master_key, elector, __version__
        )
        self.api = self.coordinator.services
        self._platform = platform

    def submit(self, doc: View) -> int:
        """The number of the last event before it."""
        before = self.api.history.last_event()
        self.api.submissions.submit(doc)
        return before

    def until(self, kind: str, job: str, after: int) -> View:
        """The first event of this kind for this job with a number above `after`. `WrongAnswer` if it goes wrong."""
        heard = threading.Event()
        forget = self.api.history.on_event(heard.set)
        deadline = time.monotonic() + WITHIN_S
        try:
            while True:
                heard.clear()
                for event in self.api.history.events_after(after, 1000):
                    after = event["_id"]
                    if event.get("job_id") == job and event["type"] == kind:
                        return event
                    if event.get("job_id") == job and event["type"] in BAD_ENDS:
                        raise WrongAnswer(f"job {job} is {event['type']}: {event.get('sentence') or event}")
                if not heard.wait(deadline - time.monotonic()):
                    raise WrongAnswer(f"job {job} was not {kind} within {WITHIN_S:.0f} s")
        finally:
            forget()

    def output(self, job: str) -> str:
        """Return the output of all of the job's trainers."""
        text, offset = b"", 0
        while (piece := self.api.output.logs(job, offset, 1 << 20))[0]:
            text, offset = text + piece[0], piece[1]
        return text.decode("utf-8", "replace")

    def launch_folder(self, job: str) -> Path:
        """The folder of the present launch of a job, which its shim listens in."""
        record = self.coordinator.cache.job(job)
        assert record is not None and isinstance(self._platform, LocalPlatform)
        return self._platform.folders(record.doc).launch

    def end_all(self) -> None:
        """Cancel what still runs and wait until nothing of it is left."""
        with contextlib.suppress(ReshapeError):
            for job in self.coordinator.cache.jobs():
                self.api.operator.cancel(job)
        deadline = time.monotonic() + WITHIN_S
        while self.coordinator.cache.jobs() and time.monotonic() < deadline:
            time.sleep(0.05)


@contextmanager
def running(folder: Path, store: Store, gpus: int, speeds: dict[int, float], job_type: str) -> Iterator[Cluster]:
    """A cluster of one node on which jobs of `job_type` take `speeds` seconds per iteration by GPU count."""
    folder.mkdir(parents=True, exist_ok=True)
    register_gpus(store, "bench", [FoundGpu(f"EMULATED-{i}", GPU_TYPE, None, True) for i in range(gpus)])
    for count, seconds in speeds.items():
        row = {"job_type": job_type, "gpu_type": GPU_TYPE, "num_gpus": count, "seconds_per_iteration": seconds}
        store.put("speed_profiles", {"_id": f"{job_type}|{count}", "origin": "bench", **row})
    costs = {"k8s_init": 3.0, "k8s_term": 2.0, "proc_init": 0.4, "proc_term": 0.1, "ckpt": 0.1}
    store.put("overheads", {"_id": job_type, "job_type": job_type, "origin": "bench", **costs})
    master_key, config = secrets.token_hex(16).encode(), Config()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        platform = LocalPlatform(folder, url, master_key, LocalSettings())
        # A reshape a second ago must not keep the next one from being measured.
        cluster = Cluster(store, platform, config, Settings(cooldown_factor=0.0), master_key)
        with serving(make_server(make_app(cluster.api, secrets.token_hex(16))), [listener]):
            cluster.coordinator.start()
            try:
                yield cluster
            finally:
                cluster.end_all()
                cluster.coordinator.stop()
                platform.stop_all(timeout=10.0)
