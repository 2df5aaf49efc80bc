"""Compares what a decision predicted with what then happened: its receipt. Pure.

Made once, here, for the API, the terminal and the dashboard. What was decided later counts, too: a receipt says how it
came, not whose fault it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.model import states as s
from coordinator.model.records import Doc, JobRecord, number


def receipt(decision: Mapping[str, Any], jobs: Mapping[str, JobRecord]) -> Doc | None:
    """Return predicted and real seconds of standstill, end and makespan with a sentence; None while nothing is real.

    `jobs`: those that `named` returns, as they are now; seconds count from the decision.
    """
    chosen: Mapping[str, Any] = next((c for c in decision.get("candidates") or () if not c.get("rejected")), {})
    counted = decision.get("counted")
    pairs = {
        "gap_s": (number(decision.get("predicted_gap_s")), number(decision.get("gap_s"))),
        "job_s": (number(chosen.get("job_s")), _ended_s(decision, [str(decision.get("job_id"))], jobs)),
        "makespan_s": (number(chosen.get("makespan_s")), _ended_s(decision, counted, jobs)),
    }
    known = {name: pair for name, pair in pairs.items() if None not in pair}
    if not known:
        return None
    words = {
        "gap_s": f"{decision.get('stops')} stood still for",
        "job_s": f"{decision.get('job_id')} ended after",
        "makespan_s": "all that ran then had ended after",
    }
    said = [f"{words[name]} {_compared(*pair)}" for name, pair in known.items()]
    values = {name: {"predicted": predicted, "real": real} for name, (predicted, real) in known.items()}
    return {**values, "sentence": f"Predicted and real: {'; '.join(said)}."}


def stood_still(job: JobRecord) -> Doc | None:
    """Return how long its last reshape took it to stand still, and by which decision; None if that is not known.

    The write that says that it trains again says it, too, which saves one to the decision.
    """
    decision, gap_s = job.doc.get("reshaped_by"), number(job.doc.get("reshape_cost_s"))
    return None if decision is None or gap_s is None else {"decision": decision, "gap_s": gap_s}


def with_standstill(decision: Doc, later: Iterable[Mapping[str, Any]], job: JobRecord | None) -> Doc:
    """Return the decision with `gap_s`, the standstill of the job that it stopped, if any of these tell it.

    `later`: decisions about that job, of which the next one has taken it down; `job`: the job itself. What was told
    before the decision is of an earlier one, of a job of the same name.
    """
    at = number(decision.get("at")) or 0.0
    told = [row.get("stood") for row in later if (number(row.get("at")) or 0.0) >= at]
    told += [stood_still(job)] if job is not None and job.submit_ts <= at else []
    found = [one.get("gap_s") for one in told if isinstance(one, dict) and one.get("decision") == decision["_id"]]
    return {"gap_s": found[0], **decision} if found else decision


def named(decision: Mapping[str, Any]) -> list[str]:
    """Return the ids of the jobs that its receipt needs."""
    counted, stops = decision.get("counted"), decision.get("stops")
    own = [str(decision.get("job_id")), *([str(stops)] if stops else [])]
    return list(dict.fromkeys([*own, *(counted if isinstance(counted, list) else ())]))


def _ended_s(decision: Mapping[str, Any], names: Any, jobs: Mapping[str, JobRecord]) -> float | None:
    """Return after how many seconds all of these jobs were completed; None if not all are, or one ended otherwise."""
    at = number(decision.get("at"))
    if at is None or not isinstance(names, list) or not names:
        return None
    # A job that was submitted later only has the name of one that was counted.
    meant = [jobs[name] for name in names if name in jobs and jobs[name].submit_ts <= at]
    ended = [job.finish_ts for job in meant if job.state == s.COMPLETED and job.finish_ts >= at]
    return max(ended) - at if len(ended) == len(names) else None


def _compared(predicted: float | None, real: float | None) -> str:
    assert predicted is not None and real is not None
    share = f", {100 * (real - predicted) / predicted:+.0f} %" if predicted > 0 else ""
    return f"{real:.1f} s (predicted {predicted:.1f} s{share})"
