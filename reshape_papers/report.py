"""Turns the outcome of a simulation into rows of measures: one per policy and seed, and their means.

All times are seconds from the first submission. A row has only the measures that apply to its workload. Called by
`run.py` and by the command line.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adaptive_scheduler.settings import DEFAULTS
from adaptive_scheduler.snapshot import Node
from simulator.scenario import Submission, Workload
from simulator.state import SimulatedJob, SimulationOutcome

Row = dict[str, Any]

MEASURES = (
    "makespan_s", "mean_jct_s", "p99_jct_s", "overhead_share",
    "adds", "removes", "moves", "limits", "pending_at_last_arrival", "mean_gpus_in_use", "mean_cores_in_use",
    "jobs_faster", "jobs_slower", "best", "worst", "mean_gain",
    "mean_faster", "mean_slower", "mean_faster_s", "mean_slower_s",
    "art_s", "failed", "rescheduled", "sla_met_share",
    "crashes", "lost_work_s",
)  # fmt: skip
BOUNDS = ("lp_makespan_s", "fluid_makespan_s", "jct_bound_s")
TO_BOUNDS = {
    "makespan_over_lp": ("makespan_s", "lp_makespan_s"),
    "makespan_over_fluid": ("makespan_s", "fluid_makespan_s"),
    "jct_over_bound": ("mean_jct_s", "jct_bound_s"),
}
SPREADS = {"makespan_sd_s": "makespan_s", "mean_jct_sd_s": "mean_jct_s"}
COLUMNS = ("policy", "seed", *MEASURES, *TO_BOUNDS, *BOUNDS, *SPREADS)
SIDECAR_BASELINES = ("default", "termination")
BY_KIND = "mean_jct_by_kind_s"
"""The only measure that is not a number: mean JCT by model, for jobs trained on CPU."""

BOUNDED_BY_LP = 400
"""With more jobs the linear programs take minutes, so that only bounds without them are computed."""

FASTER_S = 0.01
"""Smaller differences of a job's completion time do not count as a gain or a loss."""

SLOTTED_UP_TO_S = 100_000.0
"""A longer run has more slots than the bound on JCTs takes in minutes; it then does without (`bounds.jct_bound`)."""


def bounds_of(workload: Workload) -> dict[str, float]:
    """Return the lower bounds of every schedule (`bounds.py`). About half a second for 40 jobs.

    Every allowed count on every GPU type is a shape, and so are all cores that a job can use; launches are free.
    """
    from reshape_papers import bounds

    jobs = [bounds.BoundJob(job.arrival_s, shapes(workload, job)) for job in workload.jobs]
    nodes = [bounds.BoundNode(n.gpu_type, len(n.gpus)) for n in workload.nodes if n.gpus]
    nodes += [bounds.BoundNode("", n.cores) for n in workload.nodes if n.cores]
    few = len(jobs) <= BOUNDED_BY_LP
    fluid_s = bounds.fluid_makespan(jobs, nodes)
    in_slots = few and fluid_s <= SLOTTED_UP_TO_S
    found = {
        "fluid_makespan_s": fluid_s,
        "jct_bound_s": bounds.jct_bound(jobs, nodes) if in_slots else bounds.jct_bound(jobs, nodes, slot_s=None),
    }
    return {"lp_makespan_s": bounds.lp_makespan(jobs, nodes), **found} if few else found


def shapes(workload: Workload, job: Submission) -> dict[tuple[str, float], float]:
    """Return the seconds of a whole job by GPU type ("" for cores) and count."""
    if job.cpu is not None:
        largest = max(node.cores for node in workload.nodes)
        cores = min(largest, max(job.demand(task) for task in range(len(job.task_ends))))
        return {("", cores): job.cpu.core_s / cores}
    profiles = workload.policy_setups[0].profiles
    found: dict[tuple[str, float], float] = {}
    for gpu_type in sorted({node.gpu_type for node in workload.nodes if node.gpus}):
        most = _most_gpus(workload.nodes, gpu_type, job.max_workers)
        for count in job.optional:
            speed = profiles.speed(job.type, gpu_type, count) if count <= most else None
            if speed is not None:
                found[gpu_type, count] = job.iterations * speed.seconds
    return found


def _most_gpus(nodes: Sequence[Node], gpu_type: str, workers: int) -> int:
    return sum(sorted((len(n.gpus) for n in nodes if n.gpu_type == gpu_type), reverse=True)[:workers])


def row(
    policy: str,
    workload: Workload,
    outcome: SimulationOutcome,
    bounds: Mapping[str, float],
    against: SimulationOutcome | None,
) -> Row:
    """Return the measures of one run. `against`: outcome of the same jobs under the workload's first policy."""
    jobs = workload.jobs
    first = min(job.arrival_s for job in jobs)
    span = max(map(_end, outcome.jobs)) - first
    numbers: Row = {
        "makespan_s": span,
        "mean_jct_s": statistics.fmean(map(_jct, outcome.jobs)),
        "p99_jct_s": percentile(sorted(map(_jct, outcome.jobs)), 0.99),
        "overhead_share": _overhead_share(outcome.jobs),
        "moves": outcome.moves,
        "pending_at_last_arrival": outcome.pending_at_last_arrival,
    }
    if any(job.cpu is None for job in jobs):
        held = math.fsum(max(0.0, min(h.end_s, first + span) - h.begin_s) for h in outcome.held)
        numbers |= {"adds": outcome.adds, "removes": outcome.removes, "mean_gpus_in_use": held / span}
    if any(job.cpu is not None for job in jobs):
        numbers |= {"limits": outcome.limits, "mean_cores_in_use": math.fsum(j.used for j in outcome.jobs) / span}
        numbers[BY_KIND] = _by_kind(outcome.jobs)
    if any(job.sla_s is not None for job in jobs):
        numbers |= _deadlines(outcome.jobs)
    if workload.outages or any(job.fails_at for job in jobs):
        numbers |= _failures(outcome.jobs)
    if against is not None:
        numbers |= gains(_jct_by_job(against.jobs), _jct_by_job(outcome.jobs))
    return _with_ratios({"policy": policy, "seed": workload.seed, **numbers, **bounds})


def _by_kind(jobs: Iterable[SimulatedJob]) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for job in jobs:
        if job.given.cpu is not None and job.given.cpu.kind:
            times.setdefault(job.given.cpu.kind, []).append(_jct(job))
    return {kind: statistics.fmean(times[kind]) for kind in sorted(times)}


def _deadlines(jobs: Sequence[SimulatedJob]) -> Row:
    """Return Slaml's measures: response times, jobs beyond target and tolerance, requeued jobs, targets met."""
    late = [_jct(job) - job.given.sla_s for job in jobs if job.given.sla_s is not None]
    tolerance = [DEFAULTS.deadlines.beta * job.given.sla_s for job in jobs if job.given.sla_s is not None]
    return {
        "art_s": statistics.fmean(map(_jct, jobs)),
        "failed": sum(by > more for by, more in zip(late, tolerance, strict=True)),
        "rescheduled": sum(job.preempts > 0 for job in jobs),
        "sla_met_share": sum(by <= 0 for by in late) / len(late),
    }


def _failures(jobs: Sequence[SimulatedJob]) -> Row:
    """Return the number of lost processes, and the seconds of training that were repeated."""
    crashes = sum(job.crashes + job.outages for job in jobs)
    return {"crashes": crashes, "lost_work_s": math.fsum(job.lost_s for job in jobs)}


def gains(before: Mapping[str, float], now: Mapping[str, float]) -> Row:
    """Return by how much completion times, in seconds by job, fell: counts, and shares of the time before.

    `mean_faster` and `mean_slower` are means over the jobs that ended earlier and later, 0 if there are none; losses
    are negative.
    """
    gained = {job: before[job] - now[job] for job in now}
    shares = [gain / before[job] for job, gain in gained.items()]
    faster = [job for job, gain in gained.items() if gain > FASTER_S]
    slower = [job for job, gain in gained.items() if gain < -FASTER_S]
    return {
        "jobs_faster": len(faster),
        "jobs_slower": len(slower),
        "best": max(shares),
        "worst": min(shares),
        "mean_faster": _mean_or_0(gained[job] / before[job] for job in faster),
        "mean_slower": _mean_or_0(gained[job] / before[job] for job in slower),
        "mean_faster_s": _mean_or_0(gained[job] for job in faster),
        "mean_slower_s": _mean_or_0(gained[job] for job in slower),
        "mean_gain": math.fsum(gained.values()) / math.fsum(before[job] for job in now),
    }


def _mean_or_0(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.fmean(known) if known else 0.0


def mean(rows: Sequence[Row]) -> Row:
    """Return the mean row of one policy: means of measures, ratios of those means, and the spread over seeds."""
    numbers = {
        name: statistics.fmean(row[name] for row in rows) for name in (*MEASURES, *BOUNDS) if name in rows[0]
    }  # fmt: skip
    result = _with_ratios({"policy": rows[0]["policy"], "seed": None, **numbers})
    if kinds := sorted({kind for row in rows for kind in row.get(BY_KIND, ())}):
        result[BY_KIND] = {k: statistics.fmean(r[BY_KIND][k] for r in rows if k in r[BY_KIND]) for k in kinds}
    for name, measure in SPREADS.items():
        result[name] = statistics.stdev(row[measure] for row in rows) if len(rows) > 1 else None
    return result


def comparisons(means: Sequence[Row], baselines: Sequence[str]) -> list[Row]:
    """Return each policy against each baseline: ratios of mean makespan and JCT, below 1 if better."""
    by_name = {row["policy"]: row for row in means}
    return [
        {
            "policy": row["policy"],
            "against": against,
            "makespan_ratio": row["makespan_s"] / by_name[against]["makespan_s"],
            "mean_jct_ratio": row["mean_jct_s"] / by_name[against]["mean_jct_s"],
        }
        for row in means
        for against in baselines
        if against in by_name and row["policy"] != against
    ]


def baselines_of(workload: Workload) -> tuple[str, ...]:
    """Return SideCar scheduling's two baselines, or if absent the workload's first policy and FIFO."""
    known = [policy_setup.name for policy_setup in workload.policy_setups]
    return tuple(name for name in SIDECAR_BASELINES if name in known) or tuple(
        name for name in known if name in (known[0], "fifo")
    )


def summary(workload: Workload, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the whole report of one workload: each policy's rows by seed, its mean last."""
    policies = dict.fromkeys(row["policy"] for row in rows)
    groups = {name: [row for row in rows if row["policy"] == name] for name in policies}
    means = [mean(group) for group in groups.values()]
    return {
        "workload": workload.name,
        "jobs": len(workload.jobs),
        "nodes": [_named(node) for node in workload.nodes],
        "seeds": sorted({row["seed"] for row in rows}),
        "emulated": list(workload.emulated),
        "fitted": list(workload.fitted),
        "invented": list(workload.invented),
        "notes": {c.name: c.says for c in workload.policy_setups if c.says and c.name in policies},
        "rows": [row for group, its_mean in zip(groups.values(), means, strict=True) for row in [*group, its_mean]],
        "comparisons": comparisons(means, baselines_of(workload)),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """Interpolate a percentile of ascending values."""
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (place - low) * (values[high] - values[low])


def _named(node: Node) -> str:
    parts = [f"{len(node.gpus)}x{node.gpu_type}"] if node.gpus else []
    return ",".join([*parts, f"cpu:{node.cores:g}"] if node.cores else parts)


def _with_ratios(numbers: Mapping[str, Any]) -> Row:
    ratios = {name: numbers[a] / numbers[b] for name, (a, b) in TO_BOUNDS.items() if b in numbers}
    return {**numbers, **ratios}


def _overhead_share(jobs: Iterable[SimulatedJob]) -> float:
    """Return the standstill for reshapes over the running time of all jobs, first iteration to last (1.5)."""
    jobs = list(jobs)
    running = math.fsum(_end(job) - job.trained_from_s for job in jobs if job.trained_from_s is not None)
    return math.fsum(job.stopped_s for job in jobs) / running if running else 0.0


def _end(job: SimulatedJob) -> float:
    assert job.finished_s is not None  # a run ends with its last job
    return job.finished_s


def _jct_by_job(jobs: Iterable[SimulatedJob]) -> dict[str, float]:
    return {job.given.id: _jct(job) for job in jobs}


def _jct(job: SimulatedJob) -> float:
    return _end(job) - job.given.arrival_s
