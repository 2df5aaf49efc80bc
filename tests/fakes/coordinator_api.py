"""A small coordinator in memory behind the real HTTP edge, for tests of the edge, the client and the CLI.

It keeps what it is told and schedules nothing. `serve` runs it on a real socket in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any, cast

import msgspec
from tornado.netutil import bind_sockets
from tornado.web import Application

from adaptive_scheduler.shares import Shares
from coordinator.adapters.clock import SystemClock
from coordinator.api.access import Access
from coordinator.api.services import Services
from coordinator.api.shares_view import shares_view, usage_view
from coordinator.api.slaml_requests import SlamlRequests
from coordinator.api.volcano_extender import VolcanoExtender
from coordinator.errors import Rejected, Transient, Unauthorized
from coordinator.http.app import make_app, make_server
from coordinator.http.cluster_tenants import ClusterTenants
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.ports import PROFILE_TABLES
from coordinator.scheduling.shares_file import parse
from coordinator.telemetry.gpu_use import GpuUse
from sidecar import protocol
from tests.fakes.store import MemoryStore

TOKEN = "token-of-the-tests"
KEY = b"key of every launch"
View = dict[str, Any]
NO_CURVE: View = {"value_name": None, "values": [], "speeds": [], "gpus": []}


class NoAccess:
    """The access of the holder of the token."""

    caller = None


class FakeCoordinator:
    """All services in one, as most keep what others show."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.documents: dict[str, View] = {}  # as they are shown
        self.submitted: dict[str, View] = {}  # as they came
        self.outputs: dict[str, bytes] = {}
        self.set_aside: set[str] = set()  # jobs that are not accepted
        self.curves: dict[str, View] = {}  # without `job_id`
        self.stored_decisions: list[View] = []
        self.events: list[View] = []
        self.callbacks: list[Callable[[], None]] = []
        self.tables: dict[str, list[View]] = {table: [] for table in PROFILE_TABLES}
        self.records: dict[str, JobRecord] = {}  # what the extender is answered from
        self.queues: dict[str, View] = {}
        self.store_down = False
        self.trouble = ""  # why it cannot work now, though it answers
        self.drained = False
        self.shares_now = Shares()
        self.accounts: list[View] = []
        self.broken: Exception | None = None
        self.in_memory = False  # what `knows` says; False, so that a test may let a heartbeat wait
        self.slaml_requests = SlamlRequests(cast(Access, NoAccess()), MemoryStore(), SystemClock(), False, lambda: None)
        self.gpu_rows = [
            {"gpu_id": f"GPU-{i}", "node": "local", "gpu_type": "V100", "state": s.IDLE, "job_id": None,
             "worker_id": None, "held_by": None, "utilisation": 0.25 * i, "memory_used": i << 30,
             "memory_total": 16 << 30, "emulated": True}
            for i in range(4)
        ]  # fmt: skip

    def remove(self, job_id: str) -> View:
        del self.documents[self.job(job_id)["job_id"]]
        return {"job_id": job_id}

    def rerun(self, job_id: str) -> View:
        return self.job(job_id)

    def policy(self) -> View:
        return {"systems": ["elastic"], "reshape_by": "sidecar", "settings": {"specon": {"alpha": 0.5}}}

    def shares(self) -> View:
        return shares_view(self.shares_now, None, None, 0.0, "shares.yaml", "", {})

    def set_shares(self, text: str) -> View:
        self.shares_now = parse(text)
        return self.shares()

    def usage(self, since: float) -> list[View]:
        return usage_view(self.accounts)

    def submit(self, doc: View, dry_run: bool = False) -> View:
        self._store()
        with self.lock:
            job_id = doc.get("job_id", f"job-{len(self.documents)}")
            found = [f"{f} is missing" for f in ("command", "optional_num_gpus") if f not in doc]
            if not isinstance(job_id, str) or not job_id.replace("-", "").isalnum():
                found.append("job_id must be letters, digits and dashes")
            if found:
                raise Rejected(f"The job was not accepted: {found[0]}.", problems=tuple(found))
            if job_id in self.documents:
                raise Rejected(f"There is a job {job_id} already; choose another job_id.", 409)
            if dry_run:
                return {"job_id": job_id, "state": s.SUBMITTED, "submit_ts": None}
            self.submitted[job_id] = dict(doc)
            self.documents[job_id] = {
                "job_id": job_id, "state": s.SUBMITTED, "num_gpus": 0, "gpu_ids": None, "job_type": "t",
                "optional_num_gpus": [1, 2], "node": None, "generation": 0, "launch": 0, "message": "waits for GPUs",
                "problems": [], "iterations": 100, "iters_done": 0, "epochs_done": None, "value": None,
                "value_name": None, "seconds_per_iteration": None, "usage": {"cpu_cores": None, "memory": None},
                "submit_ts": 1000.0, "start_ts": None, "finish_ts": None, "reshape": None, "reshapes": 0,
                "eta_s": None, "emulated": True, "command": doc["command"],
            }  # fmt: skip
        self.tell({"type": "submitted", "job_id": job_id})
        return self.job(job_id)

    def list_jobs(self, include_ended: bool, within_s: float = 0.0) -> list[View]:
        self._store()
        with self.lock:
            return [
                self.job(job_id)
                for job_id, job in self.documents.items()
                if include_ended or within_s or job["state"] not in s.ENDED
            ]

    def jobs_page(self, group: str, named: str, offset: int, limit: int) -> View:
        found = [job for job in self.list_jobs(group == "ended") if named in job["job_id"]]
        return {"jobs": found[offset : offset + limit], "total": len(found), "counts": {"running": 0, "waiting": 0}}

    def open_jobs(self, job_ids: Iterable[str]) -> dict[str, View]:
        known = {job_id: self.documents[job_id] for job_id in job_ids if job_id in self.documents}
        return {
            job_id: {"state": doc["state"], "owner": doc.get("owner"), "start_ts": doc["start_ts"]}
            for job_id, doc in known.items()
            if doc["state"] not in s.ENDED and job_id not in self.set_aside
        }

    def job(self, job_id: str) -> View:
        self._store()
        if job_id not in self.documents:
            raise Rejected(f"There is no job {job_id!r}; `reshape jobs -a` lists all.", 404)
        found = self.documents[job_id]
        return {**found, "closed": found["state"] in s.ENDED}

    def cancel(self, job_id: str) -> View:
        self.job(job_id)
        self.documents[job_id]["state"] = s.CANCELLED
        self.tell({"type": "cancelled", "job_id": job_id})
        return self.job(job_id)

    def request(self, job_id: str, gpus: int | None, signal: str | None, force: bool = False) -> View:
        self.job(job_id)
        if gpus is not None and gpus not in (1, 2):
            raise Rejected(f"Job {job_id} may not run on {gpus} GPUs, only on 1 or 2.")
        if self.documents[job_id].get("elastic") is False and gpus is not None and not force:
            raise Rejected(f"Job {job_id} would begin again from the start: --force does it all the same.", 409)
        self.documents[job_id]["wanted"] = gpus
        return {"decision_id": f"wish-{job_id}-{gpus}"}

    def coming(self) -> list[tuple[str, str, float, float]]:
        return []

    def wall(self) -> float:
        return 1000.0

    def gpu_use(self) -> View:
        return GpuUse(MemoryStore(), SystemClock(), lambda gpu: None).day()

    def newest_events(self) -> list[View]:
        return self.events_after(0, 5000)

    def curve(self, job_id: str) -> View:
        return {"job_id": self.job(job_id)["job_id"], **self.curves.get(job_id, NO_CURVE)}

    def decided(self, offset: int, limit: int) -> tuple[list[View], bool]:
        return self.stored_decisions[::-1][offset : offset + limit], False

    def log_tail(self, job_id: str) -> bytes:
        return self.outputs.get(job_id, b"")

    def suspend(self, job_id: str) -> View:
        self.job(job_id)
        self.documents[job_id]["suspended"] = True
        return {"decision_id": f"wish-{job_id}"}

    def resume(self, job_id: str) -> View:
        if not self.job(job_id).get("suspended"):
            raise Rejected(f"Job {job_id} is not suspended: there is nothing to resume.", 409)
        self.documents[job_id]["suspended"] = False
        return {"decision_id": f"wish-{job_id}"}

    def drain(self, node: str, drained: bool) -> View:
        if node != "local":
            raise Rejected(f"There is no node {node!r}; `reshape nodes` lists all.", 404)
        self.drained = drained
        stays = {"job_id": "b", "num_gpus": 1, "stays": "keeps its 1 GPU until it ends"}
        return {"node": node, "drained": drained, "jobs": [{"job_id": "a", "num_gpus": 2, "stays": None}, stays]}

    def logs(self, job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        self.job(job_id)
        part = self.outputs.get(job_id, b"")[offset : offset + limit]
        return part, offset + len(part)

    def journal(self, within_s: float = 0.0) -> View:
        return {**self.snapshot(), "came": {}}

    def snapshot(self) -> View:
        self._store()
        return {
            "now": 0.0,
            "relaunches": False,
            "settings": {},
            "nodes": [],
            "jobs": [],
            "silent_s": {},
            "left_out": [],
        }

    def gpus(self) -> list[View]:
        self._store()
        return self.gpu_rows

    def nodes(self) -> list[View]:
        self._store()
        return [
            {"node": "local", "gpu_type": "V100", "gpus": 4, "idle": 4, "cores": None, "emulated": True,
             "heard": True, "schedulable": True}
        ]  # fmt: skip

    def decisions(self, job_id: str | None, limit: int) -> list[View]:
        self._store()
        return [d for d in reversed(self.stored_decisions) if job_id in (None, d["job_id"])][:limit]

    def decision(self, decision_id: str) -> View:
        self._store()
        for decision in self.stored_decisions:
            if decision["decision_id"] == decision_id:
                return decision
        raise Rejected(f"There is no decision {decision_id!r}.", 404)

    def events_after(self, seq: int, limit: int) -> list[View]:
        self._store()
        with self.lock:
            return [e for e in self.events if e["_id"] > seq][:limit]

    def last_event(self) -> int:
        self._store()
        return self.events[-1]["_id"] if self.events else 0

    def on_event(self, callback: Callable[[], None]) -> Callable[[], None]:
        with self.lock:
            self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def tell(self, event: View) -> None:
        with self.lock:
            self.events.append({"_id": len(self.events) + 1, "at": 1000.0, **event})
            callbacks = list(self.callbacks)
        for callback in callbacks:
            callback()

    def knows(self, job_id: str) -> bool:
        return self.in_memory

    def heartbeat(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        beat = self._checked("/v1/heartbeats", raw, signature, protocol.Heartbeat)
        reply = msgspec.json.encode(protocol.HeartbeatReply(seq=beat.seq, lease_s=300.0, grace_s=20.0))
        return reply, protocol.sign(KEY, "REPLY", "/v1/heartbeats", reply)

    def take_request(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        wish = self._checked("/v1/wishes", raw, signature, protocol.OperatorRequest)
        reply = msgspec.json.encode(self.request(wish.job_id, wish.gpus, wish.signal))
        return reply, protocol.sign(KEY, "REPLY", "/v1/wishes", reply)

    def _checked(self, path: str, raw: bytes, signature: str, kind: type[Any]) -> Any:
        if not protocol.signed(KEY, "POST", path, raw, signature):
            raise Unauthorized("This needs the signature of a running launch.")
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.MsgspecError as error:
            raise Rejected(str(error)) from None

    def node_reported(self, name: str, path: str, raw: bytes, signature: str) -> tuple[bytes, str]:
        report = self._checked(path, raw, signature, protocol.NodeReport)
        reply = msgspec.json.encode(protocol.NodeReply(report.seq, 5.0))
        return reply, protocol.sign(KEY, "REPLY", path, reply)

    def profiles(self, table: str) -> list[View]:
        self._store()
        return self.tables[table]

    def import_profiles(self, table: str, rows: list[View]) -> int:
        self._store()
        bad = [f"row {i + 1}: job_type is missing" for i, row in enumerate(rows) if "job_type" not in row]
        if bad:
            raise Rejected("Some rows cannot be true; none was stored.", problems=tuple(bad))
        self.tables[table] += rows
        return len(rows)

    def health(self) -> View:
        sentence = "The store does not answer." if self.store_down else self.trouble or "The coordinator acts."
        return {"ok": not (self.store_down or self.trouble), "sentence": sentence}

    def acts(self) -> bool:
        return not self.store_down

    def answer(self, verb: str, raw: bytes) -> bytes:
        return VolcanoExtender(lambda job_id: self.records.get(job_id), lambda: self.queues).answer(verb, raw)

    def metrics(self) -> bytes:
        return b"reshape_jobs %d\n" % len(self.documents)

    def _store(self) -> None:
        if self.store_down:
            raise Transient("The store does not answer; try again soon.")
        if self.broken is not None:
            raise self.broken


@dataclass
class Live:
    url: str
    port: int
    coordinator: Any  # a FakeCoordinator, or whatever was served
    loop: asyncio.AbstractEventLoop
    app: Application


def services_of(fake: FakeCoordinator) -> Services:
    """Return services that are all this fake."""
    names = [field.name for field in fields(Services)]
    return Services(**{**dict.fromkeys(names, cast(Any, fake)), "slamls": fake.slaml_requests})


@contextmanager
def serve(
    coordinator: Services | FakeCoordinator | None = None, token: str = TOKEN, tenants: ClusterTenants | None = None
) -> Iterator[Live]:
    """The real application on a free loopback port, in a thread, until the block ends."""
    coordinator = coordinator or FakeCoordinator()
    services = services_of(coordinator) if isinstance(coordinator, FakeCoordinator) else coordinator
    ready: list[Live] = []
    started, over = threading.Event(), asyncio.Event()

    async def run() -> None:
        app = make_app(services, token, tenants=tenants)
        server = make_server(app)
        sockets = bind_sockets(0, "127.0.0.1")
        port = sockets[0].getsockname()[1]
        server.add_sockets(sockets)
        ready.append(Live(f"http://127.0.0.1:{port}", port, coordinator, asyncio.get_running_loop(), app))
        started.set()
        await over.wait()
        server.stop()
        await server.close_all_connections()

    def serve_in_thread() -> None:
        try:
            asyncio.run(run())
        finally:
            started.set()

    thread = threading.Thread(target=serve_in_thread)
    thread.start()
    started.wait()
    try:
        yield ready[0]
    finally:
        if ready:
            with suppress(RuntimeError):
                ready[0].loop.call_soon_threadsafe(over.set)
        thread.join()
