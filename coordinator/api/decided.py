"""Reads decisions for callers: those about a job, one by its id, each with its receipt.

Called by the services `History` and `JobReads`, from any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordinator.config import Keep
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import JobRecord, number
from coordinator.model.tables import DecisionRow, sound
from coordinator.ports import Doc, Store
from coordinator.scheduling.receipts import named, receipt, with_standstill
from coordinator.stores.cache import Cache

View = dict[str, Any]
INTERNAL = ("_id", "version", "last_op", "counted", "stops", "predicted_gap_s", "gap_s", "stood")


class Decided:
    """Thread-safe."""

    def __init__(self, store: Store, cache: Cache, keep: Keep) -> None:
        self._store, self._cache, self._keep = store, cache, keep

    def newest(self, job_id: str | None, limit: int) -> list[View]:
        """Views of the newest decisions; of one job with its receipts."""
        found = sorted(self._about(job_id), key=lambda d: (d.get("at", 0), d["_id"]), reverse=True)[:limit]
        return [_view(doc) for doc in found] if job_id is None else self._with_receipts(found)

    def one(self, decision_id: str) -> View:
        for view in self.some([decision_id]):
            return view
        raise Rejected(f"There is no decision {decision_id!r}.", 404)

    def some(self, decision_ids: Sequence[str]) -> list[View]:
        """Those of them that are there, in this order."""
        docs = [self._store.get("decisions", key) for key in decision_ids]
        return self._with_receipts(sound(docs, DecisionRow))

    def of_job(self, job: JobRecord) -> View:
        """Fields of the view of a job: `because`, why it has the GPUs it has; `receipt` of that once it has ended."""
        decision_id = (job.operation.decision if job.operation else None) or job.doc.get("sized_by")
        placed, over = job.state in s.LAUNCHED, job.state in s.ENDED
        doc = self._store.get("decisions", str(decision_id)) if decision_id and (placed or over) else None
        if not sound([doc], DecisionRow) or doc is None:
            return {"because": None, "receipt": None}
        if placed:
            return {"because": str(doc.get("sentence")), "receipt": None}
        (view,) = self._with_receipts([doc])
        return {"because": None, "receipt": view["receipt"]}

    def _about(self, job_id: str | None) -> Sequence[Doc]:
        """Return all decisions, or those that touch one job or a refused object of that name, such as a Slaml."""
        if job_id is None:
            return sound(self._store.list("decisions"), DecisionRow)
        job = self._cache.find(job_id)
        own = self._store.list("decisions", {"job_id": job_id if job is None else job.raw_id})
        found = {doc["_id"]: doc for doc in own}  # older versions stored no `jobs`
        found |= {doc["_id"]: doc for doc in self._store.list("decisions", {"jobs": job_id})}
        if job is None and not found:
            raise missing(job_id, self._keep)
        return [doc for doc in sound([*found.values()], DecisionRow) if job is None or _since(doc, job)]

    def _with_receipts(self, docs: Sequence[Doc]) -> list[View]:
        names = dict.fromkeys(name for doc in docs for name in named(doc))
        jobs = {name: job for name in names if (job := self._cache.find(name)) is not None}
        stopped = dict.fromkeys(str(doc["stops"]) for doc in docs if doc.get("stops") and doc.get("gap_s") is None)
        about = {name: self._store.list("decisions", {"jobs": name}) for name in stopped}
        told = [with_standstill(doc, about.get(name := str(doc.get("stops")), ()), jobs.get(name)) for doc in docs]
        return [{**_view(doc), "receipt": receipt(doc, jobs)} for doc in told]


def missing(job_id: str, keep: Keep) -> Rejected:
    """The answer about a job that is not in the store: it may have ended so long ago that it was removed."""
    kept = f"Of those that have ended, {keep} are kept (RESHAPE_KEEP_JOBS, RESHAPE_KEEP_JOBS_S)"
    return Rejected(f"There is no job {job_id!r}; `reshape jobs -a` lists all. {kept}.", 404)


def _since(decision: Doc, job: JobRecord) -> bool:
    """True if a decision is about this job, not about an ended one of the same name."""
    return job.accepted and (number(decision.get("at")) or 0.0) >= job.submit_ts


def _view(doc: Doc) -> View:
    shown = {k: v for k, v in doc.items() if k not in INTERNAL}
    return {"decision_id": doc["_id"], **shown, "receipt": None}
