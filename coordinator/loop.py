"""The decision loop: read the world, let new jobs in, decide on a frozen snapshot, write the intents.

Runs in one thread, on events and on a timer. It changes nothing but documents; what they ask for is
carried out by the reconciler. A decision made on an old view fails its compare-and-set and is
dropped: the next turn decides again.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from adaptive_scheduler.decision import Decision, Hold, Reshape, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.books import Books
from coordinator.config import Config
from coordinator.core import intake
from coordinator.core import states as s
from coordinator.core.picture import Seen, picture
from coordinator.core.records import JobRecord
from coordinator.errors import Conflict, Rejected
from coordinator.ports import Clock, Doc
from coordinator.reports import Reports

log = logging.getLogger(__name__)

NUMBERS = re.compile(r"[0-9][0-9.]*")
HOLD_S = 10.0  # a changed reason to wait is written at most this often per job

Told = Callable[[JobRecord, dict[str, Any]], None]


class Loop:
    """`tick` is one turn. `told` hears of every intent, with the seconds that deciding took."""

    def __init__(
        self, books: Books, reports: Reports, clock: Clock, config: Config, settings: Settings, told: Told
    ) -> None:
        self.books, self.reports, self.clock = books, reports, clock
        self.config, self.settings, self._told = config, settings, told
        self.profiles = Profiles()
        self.reshaped_at: dict[str, float] = {}  # when each job was last reshaped, on `clock.now`
        self._strays: dict[str, float] = {}  # GPUs booked for a job that nobody knows: since when
        self._held: dict[str, tuple[tuple[str, str], float]] = {}  # the last reason to wait of each job, and when

    def tick(self, read: bool = True) -> None:
        """One turn of the loop. Errors of the store pass through.

        Without `read` it decides on the books alone: enough after changes of our own.
        """
        if read:
            self._admit(self.books.refresh())  # 1 read  2 let in, or mark what is wrong
            self._read_profiles()
            self._reclaim()
        seen = self.books.jobs()
        snapshot = self._picture(seen)  # 3 freeze
        began = self.clock.now()
        decisions = decide(snapshot, began, self.settings)  # 4 decide
        took = self.clock.now() - began
        for decision in decisions:  # 5 write the reason, then the intent
            try:
                self._apply(decision, seen, took)
            except Conflict as lost:
                log.info("decision on job %s not carried out: %s", decision.job, lost)

    def _admit(self, new: list[JobRecord]) -> None:
        taken = set(self.books.jobs())
        for job in sorted(new, key=lambda j: str(j.key)):
            found = intake.problems(job.doc)
            if not found and (job.id in taken or self._known(job)):
                found = [intake.taken(job.raw_id)]
            if found and found == job.doc.get("problems"):
                continue
            changes = {"problems": found} if found else intake.accepted(job.doc, uuid.uuid4().hex, self.clock.wall())
            try:
                record = self.books.admit(job, changes)
            except (Conflict, Rejected) as refused:
                log.warning("document %r could not be marked: %s", job.key, refused)
                continue
            taken |= set() if found else {job.id}
            self._told(record, {"type": "refused" if found else "submitted", "problems": found})

    def _known(self, job: JobRecord) -> bool:
        """Whether a job of that name was let in before and has ended."""
        twins = self.books.store.list("jobs", {"job_id": job.raw_id})
        return any(twin["_id"] != job.key and twin.get("uid") for twin in twins)

    def _read_profiles(self) -> None:
        rows = [self.books.store.list(t) for t in ("speed_profiles", "overheads", "accuracy_profiles")]
        self.profiles = Profiles.from_rows(*rows)

    def _reclaim(self) -> None:
        """Free the GPUs of jobs whose documents vanished while no coordinator looked.

        Nobody renews such a job's lease, so after waiting it out nothing of it can be training.
        """
        jobs, now = self.books.jobs(), self.clock.now()
        ours = [g for g in self.books.gpus().values() if "generation" in g.doc]  # we booked it, not somebody by hand
        strays = {g.id: g for g in ours if _unknown(g.job, jobs) or _unknown(g.held_by, jobs)}
        self._strays = {g: self._strays.get(g, now) for g in strays}
        for gpu_id, since in self._strays.items():
            gpu = strays[gpu_id]
            if now - since <= self.config.wait_out_s or (gpu.held_by in jobs):
                continue
            gone = {"held_by": None} if gpu.job in jobs else {"held_by": None, "job_id": None, "worker_id": None}
            state = {} if gpu.job in jobs or gpu.faulty else {"state": s.IDLE}
            expect = {"job_id": gpu.doc.get("job_id"), "held_by": gpu.doc.get("held_by")}
            try:
                self.books.write_gpu(gpu, expect, {**gone, **state})
            except Conflict:
                continue
            log.warning("GPU %s was booked for job %s, which is gone: freed", gpu.id, gpu.job)

    def _picture(self, jobs: Mapping[str, JobRecord]) -> ClusterSnapshot:
        seen = {job.id: Seen(self.reports.of(job), self._cooling_until(job)) for job in jobs.values()}
        return picture(jobs, self.books.gpus(), seen, self.profiles, self.clock.wall())

    def _cooling_until(self, job: JobRecord) -> float:
        at = self.reshaped_at.get(job.id)
        if at is None:
            return 0.0
        cost = job.doc.get("reshape_cost_s") or self.profiles.overheads(job.job_type).reshape
        return at + self.settings.cooldown_factor * float(cost)

    # carrying a decision into the store

    def _apply(self, decision: Decision, seen: Mapping[str, JobRecord], took: float) -> None:
        """`seen`: the jobs as they were when it was decided; one that changed since refuses the write."""
        job = seen[decision.job]
        if isinstance(decision, Hold):
            self._hold(job, decision)
            return
        self._held.pop(job.id, None)
        intent = self._start(job, decision, seen) if isinstance(decision, Start) else self._reshape(job, decision)
        if len(intent["reshape"]["to"]) != decision.num_gpus:
            raise Conflict(f"its {decision.num_gpus} GPUs are no longer there")
        decision_id = self._store(job, decision, took)
        reshape = {**intent["reshape"], "decision": decision_id, "how": self._how(), "at": self.clock.wall()}
        changes = {**intent, "reshape": reshape, "message": decision.explanation.sentence}
        record = self.books.write_job(job, changes, "intent")
        self._told(record, {"type": "decided", "decision_id": decision_id, "decide_s": took})

    def _how(self) -> str:
        return "in place" if self.config.reshape_by == "sidecar" else "relaunch"

    def _start(self, job: JobRecord, decision: Start, seen: Mapping[str, JobRecord]) -> Doc:
        """Concrete GPUs: idle ones first, then the last of the victim's; it keeps its first ones."""
        to = self._idle(decision.node)[: decision.num_gpus]
        reshape: Doc = {"kind": "start", "from": [], "generation": job.generation + 1, "victim": None}
        if decision.victim is not None:
            victim = seen[decision.victim]
            keeps = victim.gpu_ids[: decision.victim_num_gpus]
            to += victim.gpu_ids[len(keeps) :][: decision.num_gpus - len(to)]
            reshape |= {
                "victim": victim.raw_id,
                "victim_generation": victim.generation,
                "victim_keeps": list(keeps),
            }
        return {
            "state": s.INITIALIZING, "node": decision.node, "gpu_ids": to, "num_gpus": len(to),
            "launch": job.launch + 1, "reshape": {**reshape, "to": to},
        }  # fmt: skip

    def _reshape(self, job: JobRecord, decision: Reshape) -> Doc:
        more = decision.num_gpus - len(job.gpu_ids)
        to = [*job.gpu_ids[: decision.num_gpus], *self._idle(decision.node)[: max(0, more)]]
        reshape = {
            "kind": "reshape", "from": list(job.gpu_ids), "to": to, "generation": job.generation + 1, "for": None,
        }  # fmt: skip
        return {"state": s.ADJUSTING, "reshape": reshape}

    def _idle(self, node: str) -> list[str]:
        booked = self._booked()
        free = [g for g in self.books.gpus().values() if g.node == node and g.state == s.IDLE and g.id not in booked]
        return [g.id for g in sorted(free, key=lambda g: (g.doc.get("index", 0), g.id))]

    def _booked(self) -> set[str]:
        """GPUs that an intent names, though they are not claimed yet."""
        return {g for job in self.books.jobs().values() if job.operation for g in job.operation.to}

    def _hold(self, job: JobRecord, decision: Hold) -> None:
        sentence, now = decision.explanation.sentence, self.clock.now()
        reason = (_asked(job, decision) or decision.explanation.algorithm, NUMBERS.sub("#", sentence))
        before, at = self._held.get(job.id, (None, -HOLD_S))
        if before == reason or (now - at < HOLD_S and before is not None and before[0] == reason[0]):
            return
        self._store(job, decision, 0.0)
        record = self.books.write_job(job, {"message": sentence}, "hold")
        self._held[job.id] = (reason, now)
        self._told(record, {"type": "waits", "sentence": sentence})

    def _store(self, job: JobRecord, decision: Decision, took: float) -> str:
        """Before anything is done: the decision, its reason and everything that was rejected."""
        name = "waits" if isinstance(decision, Hold) else f"v{job.doc.get('version')}"  # one reason to wait per job
        decision_id = _asked(job, decision) or f"{job.id}-{name}"
        self.books.store.put("decisions", decision_doc(decision_id, job, decision, self.clock.wall(), took))
        return decision_id


def _asked(job: JobRecord, decision: Decision) -> str:
    """The wish that a decision answers; empty where nobody wished."""
    return str(job.doc.get("wish_id") or "") if decision.explanation.algorithm == "operator" else ""


def _unknown(job: str | None, jobs: Mapping[str, JobRecord]) -> bool:
    return job is not None and job not in jobs


def decision_doc(decision_id: str, job: JobRecord, decision: Decision, wall: float, took: float) -> Doc:
    """A decision as it lies in the store; `candidates` holds the chosen one and its rejected rivals."""
    why = decision.explanation
    doc: Doc = {
        "_id": decision_id, "job_id": job.raw_id, "at": wall, "kind": type(decision).__name__.lower(),
        "algorithm": why.algorithm, "sentence": why.sentence, "decide_s": took,
        "unchanged_makespan_s": why.unchanged_makespan_s, "unchanged_sum_s": why.unchanged_sum_s,
        "candidates": [{f: getattr(c, f) for f in c.__slots__} for c in why.candidates],
    }  # fmt: skip
    if not isinstance(decision, Hold):
        doc |= {"node": decision.node, "num_gpus": decision.num_gpus}
    if isinstance(decision, Start):
        doc |= {"victim": decision.victim, "victim_num_gpus": decision.victim_num_gpus}
    return doc
