"""Takes what operators ask of jobs, and records each request as a decision with its reason.

Counts and suspensions are written into the job; the decision loop carries them out. A request that would lose work is
refused with the way to insist, where there is one.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from adaptive_scheduler.candidates import gpus as count_of
from adaptive_scheduler.rights.limits import binding_limit, count_held, most_gpus_of
from adaptive_scheduler.shares import Shares
from coordinator.api.access import Access, UserService
from coordinator.api.job_views import JobViews
from coordinator.caller import JobRight
from coordinator.config import Config
from coordinator.errors import Conflict, Fatal, Rejected, Transient
from coordinator.model import resumption
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.schema.field_types import is_of_type, must_be
from coordinator.model.schema.job_fields import FIELDS
from coordinator.model.tables import JobChanges
from coordinator.ports import Clock, Sidecars
from coordinator.scheduling.dependencies import dependency_ids
from coordinator.scheduling.snapshot_jobs import held_gpus
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from sidecar.protocol import CheckpointCall, command_id, launch_key

log = logging.getLogger(__name__)

View = dict[str, Any]

TRIES = 20
INSIST = '`reshape reshape ID --gpus N --force`, or "force": true in the call,'


class OperatorRequests(UserService):
    """Thread-safe."""

    def __init__(
        self,
        access: Access,
        cache: Cache,
        sidecars: Sidecars,
        telemetry: Telemetry,
        clock: Clock,
        config: Config,
        master_key: bytes,
        views: JobViews,
        read_store: Callable[[], None],
        notify: Callable[[str | None], None],
        shares: Callable[[], Shares],
    ) -> None:
        """`read_store` makes the loop read at once; `notify` wakes it, and the reconciler for a job; `shares` returns
        those in force."""
        super().__init__(access)
        self._cache = cache
        self._sidecars = sidecars
        self._telemetry = telemetry
        self._clock = clock
        self._config = config
        self._master_key = master_key
        self._views = views
        self._read_store = read_store
        self._notify = notify
        self._shares = shares

    def cancel(self, job_id: str) -> View:
        """Ask for a job to be stopped; returns at once with its view."""
        view = self._views.view(self._cancel(job_id), self.access)
        return self._noted("cancel", job_id, view)

    def _cancel(self, job_id: str) -> JobRecord:
        for _ in range(TRIES):
            job = self.access.find_operated(job_id, "end")
            if job.state in s.ENDED:
                return job
            ended: JobChanges = {"state": s.CANCELLED, "closed": True, "finish_ts": self._clock.wall()}
            changes: JobChanges = {"cancel": True} if job.accepted else ended
            try:
                job = self._cache.write_job(job, changes, "cancel")
            except Conflict:  # intake may have accepted it meanwhile: read it again
                continue
            if self._caller is not None:
                self._note(f"{job.id}-c{job.doc.get('version')}", job, "cancel", f"{self.access.who} cancelled it.")
            self._notify(job.id)
            self._read_store()
            return job
        raise Transient(f"Job {job_id} keeps changing, so it could not be cancelled; try again.")

    def remove(self, job_id: str) -> View:
        """Remove a job that has ended from the store; its decisions and events go with age."""
        job = self.access.find_ended(job_id, "end")
        if any(job.id in dependency_ids(other.doc) for other in self._cache.jobs().values()):
            raise Rejected(f"Job {job_id} stays: another job that has not ended depends on it.", 409)
        self._cache.store.delete("jobs", job.key, {"closed": True})
        return self._noted("remove", job_id, {"job_id": job.raw_id})

    def request(self, job_id: str, gpus: int | None, signal: str | None, force: bool = False) -> View:
        """Take a request for a GPU count or a signal; returns its decision id. `force`: even if work is lost."""
        return self._noted(signal or "reshape", job_id, self._request(job_id, gpus, signal, force))

    def _request(self, job_id: str, gpus: int | None, signal: str | None, force: bool) -> View:
        if signal == "stop":
            return self._stop(self._open(job_id, "end"), force)
        if signal is not None:
            return self._signal(self._open(job_id), signal)
        return self._written(job_id, lambda: self._resize(self._open(job_id), gpus, force))

    def _resize(self, job: JobRecord, gpus: int | None, force: bool) -> View:
        if gpus is not None and gpus not in job.optional:
            counts = " or ".join([*map(str, job.optional[:-1]), count_of(job.optional[-1])])
            raise Rejected(f"Job {job.id} can run on {counts}, not on {gpus}.")
        if gpus is not None and (why := self._beyond_limit(job, gpus)):
            raise Rejected(why, 409)
        loses = gpus is not None and len(job.gpu_ids) not in (0, gpus) and resumption.rigid(job)
        if loses and not force:
            raise Rejected(resumption.refuse_resize(job, f"run on {count_of(gpus or 0)}", INSIST), 409)
        gave_back = f"{self.access.who} gave the GPU count back to the scheduler."
        asked = f"{self.access.who} asked for {count_of(gpus)}." if gpus else gave_back
        agreed: JobChanges = {"code_agreed": job.generation}  # a stop after which it runs its code as it is now
        return self._wish(job, {"wanted": gpus, "forced": True if loses else None, **agreed}, asked)

    def _beyond_limit(self, job: JobRecord, count: int) -> str:
        """Return why the limits of its queue forbid a job so many GPUs, as a sentence; empty if they do not.

        One that waits may ask for what others of its queue have now: it waits for that.
        """
        shares = self._shares()
        owner = shares.owner_of(*self.access.named_owner(job))
        has = len(held_gpus(job))
        if count <= has or most_gpus_of(shares, owner) == math.inf:
            return ""
        others = [one for one in self._cache.jobs().values() if one.id != job.id] if has else []
        owners = [(shares.owner_of(*self.access.named_owner(one)), len(held_gpus(one))) for one in others]
        reached = binding_limit(shares, owner, count_held(shares, owners), count)
        if reached is None:
            return ""
        beside = f" beside job {job.id}" if has else ""
        return f"Job {job.id} cannot have {count_of(count)}: {reached.words}{beside}. Ask for fewer."

    def suspend(self, job_id: str) -> View:
        """Let a job save, give all its GPUs up and wait until it is resumed; a waiting one is not started."""
        done = self._written(job_id, lambda: self._suspend(self._still_open(self.access.find_operated(job_id))))
        return self._noted("suspend", job_id, done)

    def _suspend(self, job: JobRecord) -> View:
        lasting = self._config.checkpoints_last or bool(job.doc.get("checkpoint_claim"))
        if job.state != s.SUBMITTED and (why := resumption.refuse_suspension(job, lasting)):
            raise Rejected(why, 409)
        agreed: JobChanges = {"code_agreed": job.generation, "unfrozen": None}  # it may be tried again
        return self._wish(job, {"suspended": True, **agreed}, f"{self.access.who} suspended it.")

    def resume(self, job_id: str) -> View:
        """Let a suspended or held job start again."""
        done = self._written(job_id, lambda: self._resume(self._still_open(self.access.find_operated(job_id))))
        return self._noted("resume", job_id, done)

    def _resume(self, job: JobRecord) -> View:
        if not (job.suspended or job.held):
            raise Rejected(f"Job {job.id} is not suspended: there is nothing to resume.", 409)
        # What others owe to one that has waited long counts from now on.
        queued: JobChanges = {"queued_ts": self._clock.wall()} if job.state == s.SUBMITTED else {}
        return self._wish(job, {"suspended": None, "held": None, **queued}, f"{self.access.who} resumed it.")

    def set_priority(self, job_id: str, priority: int) -> View:
        """Change the order of a job among those of its owner."""
        kind = FIELDS["priority"].kind
        if not is_of_type(priority, kind):
            raise Rejected(f"{must_be('priority', kind, priority)}.")
        asked = f"{self.access.who} set its priority to {priority}."
        done = self._written(
            job_id,
            lambda: self._wish(self._still_open(self.access.find_operated(job_id)), {"priority": priority}, asked),
        )
        return self._noted("priority", job_id, done)

    def _open(self, job_id: str, right: JobRight = "change") -> JobRecord:
        return self._still_open(self.access.find_own(job_id, right))

    def _still_open(self, job: JobRecord) -> JobRecord:
        if job.state in s.ENDED or not job.accepted:
            raise Rejected(f"Job {job.id} is {job.state}: there is nothing to change.", 409)
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
        beat = self._telemetry.reports.newest_of_job(job)
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
        self._note(decision_id, job, "signal", f"{self.access.who} asked for a checkpoint.")
        return {"decision_id": decision_id}

    def _stop(self, job: JobRecord, force: bool) -> View:
        """Ask its training to save and exit, and cancel the job; its checkpoint stays."""
        if resumption.rigid(job) and not force:
            raise Rejected(resumption.refuse_stop(job), 409)
        decision_id = f"{job.id}-e{job.doc.get('version')}"
        self._note(decision_id, job, "signal", f"{self.access.who} asked its training to save and end.")
        self._cancel(job.id)
        return {"decision_id": decision_id}

    def _noted(self, verb: str, job_id: str, answer: View) -> View:
        """Note who has changed a job; returns the answer."""
        self.access.note_change(verb, job_id, job_id)
        return answer

    def _note(self, decision_id: str, job: JobRecord, kind: str, sentence: str) -> None:
        """Store a decision that an operator made."""
        about = {"job_id": job.raw_id, "jobs": [job.id], "at": self._clock.wall(), "kind": kind}
        about |= {"by": self._caller.name} if self._caller is not None else {}
        doc = {"_id": decision_id, **about, "algorithm": "operator", "sentence": sentence, "candidates": []}
        self._cache.store.put("decisions", doc)
