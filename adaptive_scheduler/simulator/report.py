"""From what happened in a simulation to rows of numbers: one per policy and seed, and their means.

All times in seconds from the first submission. Called by `run.py` and by whoever prints or draws.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from adaptive_scheduler.simulator.scenario import Workload
from adaptive_scheduler.simulator.world import LiveJob, Outcome

Row = dict[str, Any]

MEASURES = (
    "makespan_s", "mean_jct_s", "p99_jct_s", "overhead_share", "adds", "removes", "pending_at_last_arrival",
    "mean_gpus_in_use",
)  # fmt: skip
BOUNDS = ("lp_makespan_s", "fluid_makespan_s", "jct_bound_s")
TO_BOUNDS = {
    "makespan_over_lp": ("makespan_s", "lp_makespan_s"),
    "makespan_over_fluid": ("makespan_s", "fluid_makespan_s"),
    "jct_over_bound": ("mean_jct_s", "jct_bound_s"),
}
SPREADS = {"makespan_sd_s": "makespan_s", "mean_jct_sd_s": "mean_jct_s"}
COLUMNS = ("policy", "seed", *MEASURES, *TO_BOUNDS, *BOUNDS, *SPREADS)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no schedule of a workload can go below, whoever decides (`bounds.py`)."""

    lp_makespan_s: float
    fluid_makespan_s: float
    jct_bound_s: float


def bounds_of(workload: Workload) -> Bounds:
    """Every allowed count on every GPU type is a shape; launches are free. About half a second for 40 jobs."""
    from adaptive_scheduler.simulator import bounds

    profiles = workload.contenders[0].profiles
    gpu_types = {
        n.gpu_type: max(len(m.gpus) for m in workload.nodes if m.gpu_type == n.gpu_type) for n in workload.nodes
    }
    jobs = []
    for job in workload.jobs:
        shapes = [(kind, n) for kind, largest in gpu_types.items() for n in job.optional if n <= largest]
        speeds = {shape: profiles.speed(job.type, *shape) for shape in shapes}
        jobs.append(
            bounds.BoundJob(job.arrival_s, {shape: job.iterations * s.seconds for shape, s in speeds.items() if s})
        )
    nodes = [bounds.BoundNode(n.gpu_type, len(n.gpus)) for n in workload.nodes]
    return Bounds(bounds.lp_makespan(jobs, nodes), bounds.fluid_makespan(jobs, nodes), bounds.jct_bound(jobs, nodes))


def row(policy: str, seed: int, outcome: Outcome, bounds: Bounds) -> Row:
    """One run as numbers."""
    first = min(job.given.arrival_s for job in outcome.jobs)
    last = max(_end(job) for job in outcome.jobs)
    jcts = sorted(_end(job) - job.given.arrival_s for job in outcome.jobs)
    held = math.fsum(max(0.0, min(h.end_s, last) - h.begin_s) for h in outcome.held)
    numbers = {
        "makespan_s": last - first,
        "mean_jct_s": statistics.fmean(jcts),
        "p99_jct_s": percentile(jcts, 0.99),
        "overhead_share": _overhead_share(outcome.jobs),
        "adds": outcome.adds,
        "removes": outcome.removes,
        "pending_at_last_arrival": outcome.pending_at_last_arrival,
        "mean_gpus_in_use": held / (last - first),
    }
    return _with_ratios({"policy": policy, "seed": seed, **numbers, **asdict(bounds)})


def mean(rows: Sequence[Row]) -> Row:
    """The mean row of one policy: means of what is measured, ratios of those means, and the spread over seeds."""
    numbers = {name: statistics.fmean(row[name] for row in rows) for name in (*MEASURES, *BOUNDS)}
    result = _with_ratios({"policy": rows[0]["policy"], "seed": None, **numbers})
    for name, measure in SPREADS.items():
        result[name] = statistics.stdev(row[measure] for row in rows) if len(rows) > 1 else None
    return result


def comparisons(means: Sequence[Row]) -> list[Row]:
    """Every policy against each baseline: ratios of mean makespan and mean JCT, below 1 where it is better."""
    by_name = {row["policy"]: row for row in means}
    return [
        {
            "policy": row["policy"],
            "against": against,
            "makespan_ratio": row["makespan_s"] / by_name[against]["makespan_s"],
            "mean_jct_ratio": row["mean_jct_s"] / by_name[against]["mean_jct_s"],
        }
        for row in means
        for against in ("default", "termination")
        if against in by_name and row["policy"] != against
    ]


def summary(workload: Workload, rows: Sequence[Row]) -> dict[str, Any]:
    """Everything that is reported of one workload, as one object; rows of a policy by seed, its mean last."""
    policies = dict.fromkeys(row["policy"] for row in rows)
    groups = {name: [row for row in rows if row["policy"] == name] for name in policies}
    means = [mean(group) for group in groups.values()]
    return {
        "workload": workload.name,
        "jobs": len(workload.jobs),
        "nodes": [f"{len(n.gpus)}x{n.gpu_type}" for n in workload.nodes],
        "seeds": sorted({row["seed"] for row in rows}),
        "emulated": list(workload.emulated),
        "fitted": list(workload.fitted),
        "invented": list(workload.invented),
        "notes": {c.name: c.says for c in workload.contenders if c.says and c.name in policies},
        "rows": [row for group, its_mean in zip(groups.values(), means, strict=True) for row in [*group, its_mean]],
        "comparisons": comparisons(means),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Of ascending values, between the two nearest in proportion."""
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def _with_ratios(numbers: Mapping[str, Any]) -> Row:
    return {**numbers, **{name: numbers[a] / numbers[b] for name, (a, b) in TO_BOUNDS.items()}}


def _overhead_share(jobs: Iterable[LiveJob]) -> float:
    """Time lost to adding and removing GPUs over the running time of all jobs, first iteration to last (1.5)."""
    jobs = list(jobs)
    running = math.fsum(_end(job) - job.trained_from_s for job in jobs if job.trained_from_s is not None)
    return math.fsum(job.stopped_s for job in jobs) / running


def _end(job: LiveJob) -> float:
    assert job.finished_s is not None  # a world ends with its last job
    return job.finished_s
