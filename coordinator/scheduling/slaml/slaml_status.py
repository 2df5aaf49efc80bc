"""Computes the verdict and the status of a Slaml: acceptance, states of its tasks, conditions. Pure.

Algorithm 1 of Slaml judges it as one job of sequential tasks. The status changes only with an event or with the rows of
past tasks, so that the row is not written at each cycle. Called by `coordinator.scheduling.slaml.slaml_controller`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from adaptive_scheduler.policies.deadline_feasibility import Diagnosis, diagnose
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from coordinator.model import states as s
from coordinator.model.records import Doc, JobRecord, Moment, number, whole
from coordinator.model.tables import JobRow
from coordinator.scheduling.slaml.slaml_spec import Slaml, SlamlTask, problems

QUEUE, RUN, STOP, DONE, FAILED, CANCELLED = "QUEUE", "RUN", "STOP", "DONE", "FAILED", "CANCELLED"
OF_TASKS = (FAILED, CANCELLED, RUN, STOP, QUEUE)  # a task has the first of these states that a replica has
STATES = {FAILED: "Failed", CANCELLED: "Cancelled", RUN: "Running", STOP: "Stopped", QUEUE: "Queued"}
LAST_TIME = 253_402_300_799.0  # the end of the year 9999
INFEASIBLE = "Infeasible"  # may change as nodes come and go
GPU_WORDS = {"gpus": "GPUs", "cores": "CPU cores", "memory": "bytes of memory"}


@dataclass(frozen=True)
class AdmissionVerdict:
    """The answer to a submitted Slaml. `reason`: one CamelCase word, as in Kubernetes conditions."""

    accepted: bool
    reason: str
    sentence: str
    minimum_s: int | None = None

    @property
    def doc(self) -> Doc:
        return {
            "accepted": self.accepted,
            "reason": self.reason,
            "sentence": self.sentence,
            "minimum_s": self.minimum_s,
        }


@dataclass(frozen=True)
class ReplicaStatus:
    """State of the job of one replica."""

    state: str
    ran_s: float = 0.0
    message: str = ""


def as_job(slaml: Slaml, since_s: float, place: int = 0, ran_s: float = 0.0) -> Job:
    """The job that Algorithm 1 judges: the tasks from `place` on."""
    left = slaml.tasks[place:]
    counts = (0,) if not any(task.gpus for task in left) else tuple(sorted({task.gpus for task in left if task.gpus}))
    return Job(
        id=slaml.name,
        type="",
        state="submitted",
        optional=counts,
        submit_s=since_s,
        sla_s=slaml.target_s,
        tasks=left,
        task_s=ran_s,
    )


# acceptance


def judge(slaml: Slaml, snapshot: ClusterSnapshot, settings: Settings) -> AdmissionVerdict | None:
    """Decide on acceptance; None while no node is known."""
    if wrong := problems(slaml):
        return AdmissionVerdict(False, "Invalid", "; ".join(wrong) + ".")
    if not snapshot.nodes:
        return None
    found = diagnose(as_job(slaml, 0.0), snapshot, settings)
    if lacks := next(_lacking(slaml, snapshot), ""):
        return AdmissionVerdict(False, INFEASIBLE, lacks)
    if slaml.target_s is None:
        return AdmissionVerdict(True, "NoDeadline", "It has no deadline.")
    if "deadline" not in settings.systems:
        return AdmissionVerdict(True, "NotJudged", "Deadlines are not enforced here: the system `deadline` is off.")
    return _judged(slaml, slaml.target_s, found)


def _judged(slaml: Slaml, target_s: float, found: Diagnosis) -> AdmissionVerdict:
    """The verdict on a Slaml with a deadline whose tasks fit on some node."""
    if found.te_s is None:
        sentence = "Its length is not known: not all of its tasks have a finished one that asked for as much."
        return AdmissionVerdict(True, "LengthUnknown", sentence)
    unsure = " Confidence is low: past tasks asked for less than it does." if found.low_confidence else ""
    expected = f"it is expected to take {found.te_s:.1f} s"
    if found.minimum_target_s is not None:
        smallest = max(1, math.ceil(found.minimum_target_s - 1e-9))
        sentence = (
            f"It cannot hold its target of {target_s:g} s: {expected}.{unsure} The smallest slaTarget that would hold "
            f"is {smallest}."
        )
        return AdmissionVerdict(False, "TargetTooSmall", sentence, smallest)
    wait = f"so it may wait {max(0.0, found.tw_safe_s):.1f} s of its {target_s:g} s"
    return AdmissionVerdict(True, "Accepted", f"{expected[0].upper()}{expected[1:]}, {wait}.{unsure}")


def _lacking(slaml: Slaml, snapshot: ClusterSnapshot) -> Iterator[str]:
    """Yield a sentence for each task that fits on no node: its request, and the most that a node has."""
    nodes = [node for node in snapshot.nodes if node.schedulable]
    for part in slaml.parts:
        task = part.task
        if task.gpus:
            least = min(part.more.get("optional_num_gpus") or slaml.counts(part))
            yield from _beyond(part, "gpus", least / _hosts(part), max((n.working for n in nodes), default=0))
            continue
        yield from _beyond(part, "cores", task.cores, max((n.cores + n.used_cores for n in nodes), default=0.0))
        if most := max((n.memory + n.used_memory for n in nodes), default=0.0):
            yield from _beyond(part, "memory", task.memory, most)


def _beyond(part: SlamlTask, what: str, asked: float, most: float) -> Iterator[str]:
    if asked > most:
        words = GPU_WORDS[what]
        yield f"Task {part.name} asks for {asked:g} {words}, and no node has more than {most:g}."


def _hosts(part: SlamlTask) -> int:
    hosts = part.more.get("max_workers", 1)
    return hosts if whole(hosts, 1) else 1


# status


def replica(doc: JobRow | None, at: Moment) -> ReplicaStatus:
    """The state of a replica's job document; `doc` is None if it was deleted."""
    if doc is None:
        return ReplicaStatus(CANCELLED, message="its job document was deleted")
    job, wrong = JobRecord(dict(doc)), doc.get("problems")
    said = "; ".join(map(str, wrong)) if isinstance(wrong, list) and wrong else str(doc.get("message") or "")
    return ReplicaStatus(_state(job), job.ran_s(at), said)


def _state(job: JobRecord) -> str:
    if job.doc.get("problems"):
        return FAILED
    if job.state in s.ENDED:
        return {s.COMPLETED: DONE, s.FAILED: FAILED}.get(job.state, CANCELLED)
    if job.operation is not None and job.operation.kind == "requeue":
        return STOP
    if job.state == s.SUBMITTED:  # a preempted job is stopped until its launch is gone
        return STOP if job.preempts and job.doc.get("down") != job.launch else QUEUE
    return QUEUE if job.state in (s.INITIALIZING, s.INITIALIZED) else RUN


def status(
    slaml: Slaml,
    replicas: Sequence[Sequence[ReplicaStatus]],
    snapshot: ClusterSnapshot,
    settings: Settings,
    wall: float,
) -> Doc:
    """The status document. `replicas`: of each task; empty before acceptance."""
    verdict = slaml.doc.get("judged") or {}
    state = state_of(replicas) if verdict.get("accepted") else "Refused"
    place, ran_s = _present(replicas)
    chain, left = (diagnose(as_job(slaml, 0.0, at, ran), snapshot, settings) for at, ran in ((0, 0.0), (place, ran_s)))
    old: Mapping[str, Any] = slaml.doc.get("status") or {}
    waits = state in ("Queued", "Refused") and slaml.target_s is not None and left.te_s is not None
    since = number(slaml.doc.get("since")) or wall
    return {
        "observedGeneration": slaml.generation,
        "state": state,
        "target": f"{slaml.target_s:g}s" if slaml.target_s is not None else None,
        "expected": _rounded(chain.te_s),
        "waitingTime": _rounded(left.tw_safe_s) if waits else old.get("waitingTime"),
        "latestStart": stamp(since + left.tw_safe_s) if waits else old.get("latestStart"),
        "minimumTarget": verdict.get("minimum_s"),
        "progress": f"{sum(_of_task(rs) == DONE for rs in replicas)}/{len(slaml.parts)}",
        "tasks": [_task(slaml, n, replicas[n] if replicas else ()) for n in range(len(slaml.parts))],
        "conditions": _conditions(slaml, replicas, state, left, since, settings, wall),
    }


def state_of(replicas: Sequence[Sequence[ReplicaStatus]]) -> str:
    """The state of the Slaml: that of its first task that is not done."""
    return next((STATES[_of_task(rs)] for rs in replicas if _of_task(rs) != DONE), "Completed")


def _of_task(replicas: Sequence[ReplicaStatus]) -> str:
    states = {one.state for one in replicas}
    return next((state for state in OF_TASKS if state in states), DONE if states else QUEUE)


def _present(replicas: Sequence[Sequence[ReplicaStatus]]) -> tuple[int, float]:
    """Index of the first task that is not done, and the shortest time that one of its open replicas has run."""
    for place, of_task in enumerate(replicas):
        left = [one.ran_s for one in of_task if one.state != DONE]
        if left:
            return place, min(left)
    return len(replicas) if replicas else 0, 0.0


def _task(slaml: Slaml, place: int, replicas: Sequence[ReplicaStatus]) -> Doc:
    part = slaml.parts[place]
    state = _of_task(replicas)
    said = next((one.message for one in replicas if one.state == state), "") if state not in (RUN, DONE) else ""
    return {
        "name": part.name,
        "state": state,
        "replicas": part.replicas,
        "running": sum(one.state == RUN for one in replicas),
        "done": sum(one.state == DONE for one in replicas),
        "message": said,
        "jobs": [slaml.job_id(place, n) for n in range(len(replicas))],
    }


# conditions


def _conditions(
    slaml: Slaml,
    replicas: Sequence[Sequence[ReplicaStatus]],
    state: str,
    left: Diagnosis,
    since: float,
    settings: Settings,
    wall: float,
) -> list[Doc]:
    verdict = slaml.doc.get("judged") or {}
    took_s = (number(slaml.doc.get("finished")) or wall) - since
    late = slaml.target_s is not None and took_s > slaml.target_s * (1 + settings.deadlines.beta)
    ended = state in ("Completed", "Failed", "Cancelled", "Refused")
    slow = slaml.target_s is not None and not ended and took_s + (left.te_s or 0.0) > slaml.target_s
    found = [
        ("Accepted", bool(verdict.get("accepted")), str(verdict.get("reason")), str(verdict.get("sentence"))),
        ("Completed", state == "Completed", state, _completed(state, replicas)),
        (
            "AtRisk",
            slow,
            "ExpectedLate" if slow else "InTime" if not ended else state,
            f"It is expected to end after its target of {slaml.target_s:g} s." if slow else "",
        ),
        (
            "Violated",
            late and state != "Refused",
            "TargetMissed" if late and state != "Refused" else "NotMissed",
            f"Its target of {slaml.target_s:g} s and the tolerance have passed." if late and state != "Refused" else "",
        ),
    ]
    old = {str(one.get("type")): one for one in (slaml.doc.get("status") or {}).get("conditions") or []}
    return [_condition(*one, slaml.generation, old.get(one[0], {}), wall) for one in found]


def _completed(state: str, replicas: Sequence[Sequence[ReplicaStatus]]) -> str:
    """The message of the job that failed or was cancelled; empty if none did."""
    bad = (one.message for rs in replicas for one in rs if one.state in (FAILED, CANCELLED))
    return next(bad, "") if state in ("Failed", "Cancelled") else ""


def _condition(
    kind: str, so: bool, reason: str, message: str, generation: int, old: Mapping[str, Any], wall: float
) -> Doc:
    value = "True" if so else "False"
    since = old.get("lastTransitionTime") if old.get("status") == value else None
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": since or stamp(wall),
    }


def stamp(wall: float) -> str:
    """Format a time as Kubernetes does, up to the end of the year 9999."""
    return datetime.fromtimestamp(min(wall, LAST_TIME), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds, 1)
