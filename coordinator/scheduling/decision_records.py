"""Keeps the result of a cycle of the loop, and builds the stored document of a decision, to be found under every job
that it affects. Pure.

The loop writes it before the operation; the API service reads it for `explain`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from adaptive_scheduler.decision import Decision, Hold, Move, Requeue, Reshape, Start
from adaptive_scheduler.models.prediction import of_unknown_end, reshape_cost_s
from adaptive_scheduler.reserved_gpus import RESERVED
from adaptive_scheduler.rights.limits import BORROW, BUDGET, LIMIT, USER_LIMIT
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot
from adaptive_scheduler.tentative_snapshot import after
from coordinator.expected_times import ExpectedTimes, expected_times
from coordinator.model.records import Doc, JobRecord
from coordinator.scheduling.receipts import stood_still
from coordinator.telemetry.node_load import NodeLoad, node_loads

RULES = frozenset({BUDGET, LIMIT, BORROW, USER_LIMIT, RESERVED})
"""By which jobs wait although GPUs are idle."""
COUNTED = 50
"""Most jobs whose ids are stored with the makespan that was predicted of them; of more its receipt is not made."""


def rule_of(hold: Hold) -> str:
    """Return the rule that keeps a job from GPUs even if they are idle; empty where it is missing GPUs."""
    return hold.explanation.algorithm if hold.explanation.algorithm in RULES else ""


@dataclass(frozen=True)
class DecisionBasis:
    """State that a decision was made on. The write fails if the job has changed since `seen`."""

    seen: Mapping[str, JobRecord]
    snapshot: ClusterSnapshot
    took_s: float  # duration of the decision

    @cached_property
    def jobs_of_unknown_end(self) -> tuple[str, ...]:
        """Jobs of unknown length that what was predicted rests on."""
        return tuple(job.id for job in of_unknown_end(self.snapshot))


@dataclass(frozen=True)
class CycleResult:
    """Result of the last cycle; what others ask for is computed once, on demand."""

    snapshot: ClusterSnapshot
    decisions: tuple[Decision, ...]
    at: float  # begin of the cycle
    settings: Settings

    @cached_property
    def expected_times(self) -> dict[str, ExpectedTimes]:
        """Return the expected times by job, in seconds from `at`."""
        bound = {one.job for one in self.decisions if isinstance(one, Hold) and rule_of(one)}
        return expected_times(after(self.snapshot, *self.decisions), self.at, self.settings, bound)

    @cached_property
    def node_loads(self) -> dict[str, NodeLoad]:
        return node_loads(self.snapshot, self.settings.specon)


def decision_doc(
    decision_id: str, job: JobRecord, decision: Decision, wall: float, took_s: float, basis: DecisionBasis
) -> Doc:
    """`candidates` holds the chosen one and its rejected alternatives, `jobs` the ids of all that it touches.

    `unchanged_guesses`: jobs that ran then, of unknown length; what was predicted of doing nothing rests on them.
    """
    given: Doc = finite(msgspec.to_builtins(decision))
    why, _ = given.pop("explanation"), given.pop("job")
    kind = type(decision).__name__.lower()
    about = {"job_id": job.raw_id, "jobs": touched(decision), "at": wall, "kind": kind, "decide_s": took_s}
    if decision_id == job.doc.get("wish_id") and job.doc.get("wished_by"):  # what a user of a shared machine asked for
        about["by"] = job.doc["wished_by"]
    return {
        **given,
        **why,
        "_id": decision_id,
        **about,
        "unchanged_guesses": list(basis.jobs_of_unknown_end),
        **finite(_predicted(decision, basis)),
    }


def _predicted(decision: Decision, basis: DecisionBasis) -> Doc:
    """What a receipt needs besides the chosen candidate: the standstill, and the jobs whose makespan was predicted.

    Also `stood`, the last measured standstill of the job that this stops: the job's own document forgets it next.
    """
    if not isinstance(decision, Start | Reshape | Move):
        return {}
    snapshot, stopped = basis.snapshot, decision.victim if isinstance(decision, Start) else decision.job
    counted = dict.fromkeys([*(job.id for job in snapshot.placed[: COUNTED + 1]), decision.job])
    return {
        "stops": stopped,
        "predicted_gap_s": reshape_cost_s(snapshot.profiles, snapshot.job[stopped]) if stopped else None,
        "counted": list(counted) if len(counted) <= COUNTED else None,
        "stood": stood_still(basis.seen[stopped]) if stopped else None,
    }


def touched(decision: Decision) -> list[str]:
    """Ids of the job itself, the victims that give GPUs, and the jobs that a preempted one yields to."""
    victims = [victim.job for victim in decision.victims] if isinstance(decision, Start) else []
    others = decision.yields_to if isinstance(decision, Requeue) else ()
    return list(dict.fromkeys([decision.job, *victims, *others]))


def finite(value: Any) -> Any:
    """Replace infinite numbers, such as predicted times of candidates that never end, by null: stores reject them."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
