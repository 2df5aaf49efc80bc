"""Says of which events of a job somebody outside is told, whom, and with what words. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from coordinator.model import events as e
from coordinator.model import states as s
from coordinator.model.records import JobRecord, Moment, number
from coordinator.webhooks import host

WORDS = {s.COMPLETED: "is completed", s.FAILED: "has failed", s.CANCELLED: "was cancelled"}
MISSED = "missed"
KINDS = (*WORDS, MISSED)


class Recipient(NamedTuple):
    """One that is told: the job's own webhook, that of all jobs, or the command of whoever runs the coordinator."""

    whose: str  # `job`, `all` or `command`
    target: str

    @property
    def shown(self) -> str:
        """Return what people may read of it."""
        return "the command of RESHAPE_NOTIFY_COMMAND" if self.whose == "command" else host(self.target)


def kind_of(event: e.JobEvent) -> str:
    """Return as what somebody is told of this event; empty if nobody is."""
    told_of = isinstance(event, e.JobCompleted | e.JobFailed | e.JobCancelled | e.DeadlineMissed)
    return str(event.public()["type"]) if told_of else ""


def due_kinds(job: JobRecord) -> list[str]:
    """Return of what somebody is to be told by the job's row, whether that was done or not."""
    if not job.accepted:
        return []
    missed = [MISSED] if job.doc.get("missed_ts") is not None else []
    return [*missed, *([job.state] if job.state in WORDS else [])]


def payload(job: JobRecord, kind: str, at: Moment) -> dict[str, Any]:
    """Return what is sent, as an object of JSON. `text` is a sentence, as chats show it."""
    doc = job.doc
    message = str(doc.get("message") or "")
    words = "has missed its deadline" if kind == MISSED else WORDS[kind]
    more = "" if kind == MISSED or message in ("", kind) else f": {message}"
    checkpoint = doc.get("checkpoint")
    return {
        "text": f"Job {job.id} {words}{more}.",
        "id": f"{job.uid}-{kind}",
        "event": kind,
        "job_id": job.raw_id,
        "state": job.state,
        "message": message,
        "submit_ts": number(doc.get("submit_ts")),
        "start_ts": number(doc.get("start_ts")),
        "finish_ts": number(doc.get("finish_ts")),
        "trained_s": round(job.ran_s(at), 1),
        "iters_done": job.iterations_done,
        "iterations": job.iterations,
        "checkpoint_step": checkpoint.get("step") if isinstance(checkpoint, dict) else None,
    }
