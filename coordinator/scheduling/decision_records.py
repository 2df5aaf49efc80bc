"""A decision as it lies in the store, to be found under every job that it touches. Pure.

Written by the loop before anything is done; read by the desk for `explain`.
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
    """`candidates` holds the chosen one and its rejected rivals, `jobs` the ids of all that it touches.

    `guesses`: jobs that ran then, of unknown length; what was predicted of doing nothing rests on them.
    """
    given: Doc = finite(msgspec.to_builtins(decision))
    why, _ = given.pop("explanation"), given.pop("job")
    kind = type(decision).__name__.lower()
    about = {"job_id": job.raw_id, "jobs": touched(decision), "at": wall, "kind": kind, "decide_s": took}
    return {**given, **why, "_id": decision_id, **about, "unchanged_guesses": list(guesses)}


def touched(decision: Decision) -> list[str]:
    """The job itself, whom GPUs are taken from, for whom it gives way."""
    victim = [decision.victim] if isinstance(decision, Start) and decision.victim is not None else []
    others = decision.yields_to if isinstance(decision, Requeue) else ()
    return list(dict.fromkeys([decision.job, *victim, *others]))


def finite(value: Any) -> Any:
    """The same with null for numbers that no store keeps: a way that never ends is predicted to take so long."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
