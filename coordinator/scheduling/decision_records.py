"""Builds the stored document of a decision, to be found under every job that it affects. Pure.

The loop writes it before the operation; the API service reads it for `explain`.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from adaptive_scheduler.decision import Decision, Requeue, Start
from coordinator.model.records import Doc, JobRecord


def decision_doc(
    decision_id: str, job: JobRecord, decision: Decision, wall: float, took: float, guesses: tuple[str, ...] = ()
) -> Doc:
    """`candidates` holds the chosen one and its rejected alternatives, `jobs` the ids of all that it touches.

    `guesses`: jobs that ran then, of unknown length; what was predicted of doing nothing rests on them.
    """
    given: Doc = finite(msgspec.to_builtins(decision))
    why, _ = given.pop("explanation"), given.pop("job")
    kind = type(decision).__name__.lower()
    about = {"job_id": job.raw_id, "jobs": touched(decision), "at": wall, "kind": kind, "decide_s": took}
    return {**given, **why, "_id": decision_id, **about, "unchanged_guesses": list(guesses)}


def touched(decision: Decision) -> list[str]:
    """Ids of the job itself, the victim that gives GPUs, and the jobs that a preempted one yields to."""
    victim = [decision.victim] if isinstance(decision, Start) and decision.victim is not None else []
    others = decision.yields_to if isinstance(decision, Requeue) else ()
    return list(dict.fromkeys([decision.job, *victim, *others]))


def finite(value: Any) -> Any:
    """Replace infinite numbers, such as predicted times of candidates that never end, by null: stores reject them."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
