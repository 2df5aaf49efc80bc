"""Takes what operators ask of jobs and nodes, and records each request as a decision with its reason.

Counts and suspensions are written into the job and drains into the node; the decision loop carries them out. A request
that would lose work is refused with the way to insist, where there is one. Used by `ApiService`.
"""

from __future__ import annotations

import copy
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from adaptive_scheduler.candidates import gpus as count_of
from coordinator.api.decided import missing
from coordinator.caller import Caller
from coordinator.config import Config
from coordinator.errors import Conflict, Fatal, Rejected, Transient
from coordinator.model import resumption
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobChanges, NodeChanges
from coordinator.ports import Clock, Sidecars
from coordinator.scheduling.dependencies import dependency_ids
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from sidecar.protocol import CheckpointCall, command_id, launch_key

log = logging.getLogger(__name__)

View = dict[str, Any]

TRIES = 20
INSIST = '`reshape reshape ID --gpus N --force`, or "force": true in the call,'


class OperatorRequests:
    """Thread-safe."""

    def __init__(
        self,
        cache: Cache,
        sidecars: Sidecars,
        telemetry: Telemetry,
        clock: Clock,
        config: Config,
        master_key: bytes,
        read_store: Callable[[], None],
        notify: Callable[[str | None], None],
    ) -> None:
        """`read_store` makes the loop read at once; `notify` wakes it, and the reconciler for a job."""
        self._cache, self._sidecars, self._telemetry, self._clock = cache, sidecars, telemetry, clock
        self._config, self._master_key = config, master_key
        self._read_store, self._notify = read_store, notify
        self._caller: Caller | None = None  # of a shared machine: whose rights hold

    def of_caller(self, caller: Caller) -> OperatorRequests:
        """Return the same for one user of a shared machine: changes what that user may, and notes who it was."""
        restricted = copy.copy(self)
        restricted._caller = caller
        return restricted

    def find(self, job_id: str) -> JobRecord:
        job = self._cache.find(job_id)
        if job is None:
            raise self.missing(job_id)
        return job

    def missing(self, job_id: str) -> Rejected:
        """The answer about a job that is not in the store, or that the caller may know nothing of."""
        return missing(job_id, self._config.keep)

    def find_own(self, job_id: str) -> JobRecord:
        """The same, for what only its owner and administrators may; `Rejected` with status 403 for others.

        Whoever changes a job goes on with this very record, by compare-and-set: its name may be another user's job at
        the next look.
        """
        job = self.find(job_id)
        if self._caller is not None:
            if not self._caller.sees(job):
                raise self.missing(job_id)
            self._caller.require(job)
        return job

    def cancel(self, job_id: str) -> JobRecord:
        for _ in range(TRIES):
            job = self.find_own(job_id)
            if job.state in s.ENDED:
                return job
            ended: JobChanges = {"state": s.CANCELLED, "closed": True, "finish_ts": self._clock.wall()}
            changes: JobChanges = {"cancel": True} if job.accepted else ended
            try:
                job = self._cache.write_job(job, changes, "cancel")
            except Conflict:  # intake may have accepted it meanwhile: read it again
                continue
            if self._caller is not None:
                self._note(f"{job.id}-c{job.doc.get('version')}", job, "cancel", f"{self._who()} cancelled it.")
            self._notify(job.id)
            self._read_store()
            return job
        raise Transient(f"Job {job_id} keeps changing, so it could not be cancelled; try again.")

    def find_ended(self, job_id: str) -> JobRecord:
        """The newest job of that name; `Rejected` with status 409 while it has not ended."""
        job = self.find_own(job_id)
        if not job.doc.get("closed"):
            raise Rejected(f"Job {job_id} has not ended: cancel it first, or wait until it has let everything go.", 409)
        return job

    def remove(self, job_id: str) -> View:
        """Remove a job that has ended from the store; its decisions and events go with age."""
        job = self.find_ended(job_id)
        if any(job.id in dependency_ids(other.doc) for other in self._cache.jobs().values()):
            raise Rejected(f"Job {job_id} stays: another job that has not ended depends on it.", 409)
        self._cache.store.delete("jobs", job.key, {"closed": True})
        return {"job_id": job.raw_id}

    def request(self, job_id: str, gpus: int | None, signal: str | None, force: bool = False) -> View:
        """Take a request for a GPU count or a signal; returns its decision id. `force`: even if work is lost."""
        if signal is not None:
            job = self._open(job_id)
            return self._stop(job, force) if signal == "stop" else self._signal(job, signal)
        return self._written(job_id, lambda: self._resize(self._open(job_id), gpus, force))

    def _resize(self, job: JobRecord, gpus: int | None, force: bool) -> View:
        if gpus is not None and gpus not in job.optional:
            counts = " or ".join([*map(str, job.optional[:-1]), count_of(job.optional[-1])])
            raise Rejected(f"Job {job.id} can run on {counts}, not on {gpus}.")
        loses = gpus is not None and len(job.gpu_ids) not in (0, gpus) and resumption.rigid(job)
        if loses and not force:
            raise Rejected(resumption.refuse_resize(job, f"run on {count_of(gpus or 0)}", INSIST), 409)
        gave_back = f"{self._who()} gave the GPU count back to the scheduler."
        asked = f"{self._who()} asked for {count_of(gpus)}." if gpus else gave_back
        agreed: JobChanges = {"code_agreed": job.generation}  # a stop after which it runs its code as it is now
        return self._wish(job, {"wanted": gpus, "forced": True if loses else None, **agreed}, asked)

    def suspend(self, job_id: str) -> View:
        """Let a job save, give all its GPUs up and wait until it is resumed; a waiting one is not started."""
        return self._written(job_id, lambda: self._suspend(self._open(job_id)))

    def _suspend(self, job: JobRecord) -> View:
        lasting = self._config.checkpoints_last or bool(job.doc.get("checkpoint_claim"))
        if job.state != s.SUBMITTED and (why := resumption.refuse_suspension(job, lasting)):
            raise Rejected(why, 409)
        agreed: JobChanges = {"code_agreed": job.generation, "unfrozen": None}  # it may be tried again
        return self._wish(job, {"suspended": True, **agreed}, f"{self._who()} suspended it.")

    def resume(self, job_id: str) -> View:
        """Let a suspended or held job start again."""
        return self._written(job_id, lambda: self._resume(self._open(job_id)))

    def _resume(self, job: JobRecord) -> View:
        if not (job.suspended or job.held):
            raise Rejected(f"Job {job.id} is not suspended: there is nothing to resume.", 409)
        return self._wish(job, {"suspended": None, "held": None}, f"{self._who()} resumed it.")

    def drain(self, node: str, drained: bool) -> View:
        """Let a node take no new work and its jobs leave where they can, or take work again.

        `jobs`: those that have something of it now, each with the reason why it stays to its end (`stays`), or null.
        """
        if self._caller is not None:
            self._caller.require_admin("drain nodes")
        changes: NodeChanges = {"drained": drained}
        try:
            self._cache.store.update("nodes", node, {}, changes)
        except Conflict:
            raise Rejected(f"There is no node {node!r}; `reshape nodes` lists all.", 404) from None
        log.info("%s %s node %s", self._who(), "drains" if drained else "gave work back to", node)
        self._read_store()
        there = {gpu.held_by for gpu in self._cache.gpus().values() if gpu.node == node}
        jobs = [j for j in self._cache.jobs().values() if j.state in s.LAUNCHED and (j.id in there or j.node == node)]
        views = [
            {"job_id": job.raw_id, "num_gpus": len(job.gpu_ids), "stays": resumption.rigidity_reason(job) or None}
            for job in sorted(jobs, key=lambda j: (j.submit_ts, j.id))
        ]
        return {"node": node, "drained": drained, "jobs": views}

    def _open(self, job_id: str) -> JobRecord:
        job = self.find_own(job_id)
        if job.state in s.ENDED or not job.accepted:
            raise Rejected(f"Job {job_id} is {job.state}: there is nothing to change.", 409)
        return job

    def _written(self, job_id: str, attempt: Callable[[], View]) -> View:
        """Attempt it until no other change of the job comes between reading and writing; mostly once."""
        for _ in range(TRIES):
            with suppress(Conflict):
                return attempt()
        raise Transient(f"Job {job_id} keeps changing, so nothing was changed; try again.")

    def _wish(self, job: JobRecord, changes: JobChanges, sentence: str) -> View:
        """Write down what is wanted of a job; the decision of the returned id then says what became of it."""
        # Of two that read the same version the loser removes its decision, not the winner's.
        decision_id = f"{job.id}-w{job.doc.get('version')}-{secrets.token_hex(4)}"
        self._note(decision_id, job, "wish", sentence)
        try:
            wish: JobChanges = {"wish_id": decision_id, **({"wished_by": self._caller.name} if self._caller else {})}
            self._cache.write_job(job, {**changes, **wish}, "wish")
        except Conflict:
            self._cache.store.delete("decisions", decision_id)
            raise
        self._read_store()
        return {"decision_id": decision_id}

    def _signal(self, job: JobRecord, signal: str) -> View:
        beat = self._telemetry.reports.of(job)
        if signal != "checkpoint":
            raise Rejected(
                f"The signal must be `checkpoint` (save and go on) or `stop` (save and end), not {signal!r}."
            )
        if beat is None or beat.shim.trainer != "running":
            raise Rejected(f"Job {job.id} is not training now; try again once it runs.", 409)
        decision_id = f"{job.id}-s{beat.seq}"
        key = launch_key(self._master_key, job.uid, job.launch)
        call = CheckpointCall(
            generation=job.generation, command_id=command_id(job.id, job.generation, f"checkpoint-{beat.seq}")
        )
        pods = self._telemetry.reports.pods(job)  # those of a gang save together
        urls = [pods[k].url for k in range(job.members) if k in pods] if job.gpus_per_pod else [beat.url]
        try:
            for url in urls:
                self._sidecars.checkpoint(url, key, job.id, job.launch, call)
        except (Conflict, Fatal) as refused:
            raise Rejected(f"Job {job.id} was not asked for a checkpoint: {refused}.", 409) from None
        self._note(decision_id, job, "signal", f"{self._who()} asked for a checkpoint.")
        return {"decision_id": decision_id}

    def _stop(self, job: JobRecord, force: bool) -> View:
        """Ask its training to save and exit, and cancel the job; its checkpoint stays."""
        if resumption.rigid(job) and not force:
            raise Rejected(resumption.refuse_stop(job), 409)
        decision_id = f"{job.id}-e{job.doc.get('version')}"
        self._note(decision_id, job, "signal", f"{self._who()} asked its training to save and end.")
        self.cancel(job.id)
        return {"decision_id": decision_id}

    def _who(self) -> str:
        return f"User {self._caller.name}" if self._caller is not None else "An operator"

    def _note(self, decision_id: str, job: JobRecord, kind: str, sentence: str) -> None:
        """Store a decision that an operator made."""
        about = {"job_id": job.raw_id, "jobs": [job.id], "at": self._clock.wall(), "kind": kind}
        about |= {"by": self._caller.name} if self._caller is not None else {}
        doc = {"_id": decision_id, **about, "algorithm": "operator", "sentence": sentence, "candidates": []}
        self._cache.store.put("decisions", doc)
