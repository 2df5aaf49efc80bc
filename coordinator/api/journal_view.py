"""Writes jobs as they were submitted, and what came, so that a client can simulate them under another policy. Pure.

Read by `reshape/what_if/replay.py`. Jobs, nodes and settings stand as in `coordinator/api/snapshot_view.py`, with all
GPUs free and every job still to come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Gpu, Job, Node
from coordinator.api.snapshot_view import snapshot_view
from coordinator.dashboard.bars import Bar, gpu_bars
from coordinator.model import fields
from coordinator.model import states as s
from coordinator.model.records import Doc, JobRecord, Moment, number
from coordinator.model.tables import plain
from coordinator.scheduling.dependencies import dependency_ids
from coordinator.scheduling.snapshot_builder import SnapshotBuilder, SnapshotInputs

ASKED = fields.PUBLIC - {"state", "node", "num_gpus", "depends_on"} | {"uid", "resumes", "pinned", "devices"}
"""Fields by which a job is as it was submitted; that it resumes is known from the beginning."""


@dataclass(frozen=True)
class Journal:
    """What the coordinator has kept of the jobs in question. `until`: now, in seconds since 1970."""

    jobs: Sequence[JobRecord]
    gpu_events: Sequence[Doc]
    predicted: Mapping[str, float]  # iterations of open jobs
    began: float  # when the first of the jobs was submitted; a GPU's use from before it is none of theirs
    until: float


def journal_view(
    journal: Journal, nodes: Iterable[Node], inputs: SnapshotInputs, settings: Settings, relaunches: bool
) -> dict[str, Any]:
    """All times in it are seconds since the first submission. `came`: by job, what really happened."""
    began, named = journal.began, _named(journal.jobs)
    idle = {name for name, job in named.items() if job.state in (s.FAILED, s.CANCELLED) and not job.doc.get("start_ts")}
    known = {name: job for name, job in named.items() if name not in idle}
    ends = {job.id: job.finish_ts for job in journal.jobs if job.state in s.ENDED}
    asked = {name: _as_submitted(name, job, ends) for name, job in known.items()}
    built = SnapshotBuilder().build(asked, {}, {}, inputs, Moment(0.0, began))
    jobs = (replace(job, iterations_left=_work(known[job.id], job, journal.predicted)) for job in built.jobs)
    world = replace(built, nodes=tuple(map(_free, nodes)), jobs=tuple(jobs))
    view = snapshot_view(world, 0.0, settings, relaunches, {})
    bars: dict[str, list[Bar]] = {}
    for bar in gpu_bars(journal.gpu_events, began, journal.until):
        if bar.kind == "in use":
            bars.setdefault(bar.job, []).append(bar)
    return {
        **view,
        "left_out": [*view["left_out"], *sorted(idle)],
        "came": {name: _came(job, journal, bars.get(job.id, ())) for name, job in known.items() if not job.uses_cpu},
    }


def _named(jobs: Iterable[JobRecord]) -> dict[str, JobRecord]:
    """The accepted ones, each with a name of its own: the name of an ended job may have been used again."""
    found: dict[str, JobRecord] = {}
    times = Counter[str]()
    for job in sorted((job for job in jobs if job.accepted), key=lambda job: (job.submit_ts, job.id)):
        times[job.id] += 1
        found[f"{job.id}~{times[job.id]}" if times[job.id] > 1 else job.id] = job
    return found


def _as_submitted(name: str, job: JobRecord, ends: Mapping[str, float]) -> JobRecord:
    """The job before anything happened to it; one that depends on others comes when these had ended."""
    kept: Doc = {field: value for field, value in plain(job.doc).items() if field in ASKED}
    comes = max([job.submit_ts, *(ends.get(other, 0.0) for other in dependency_ids(job.doc))])
    doc: Doc = {**kept, "_id": name, "job_id": name, "state": s.SUBMITTED, "submit_ts": comes, "job_type": job.job_type}
    return JobRecord(doc)


def _work(job: JobRecord, asked: Job, predicted: Mapping[str, float]) -> float | None:
    """Iterations: those that an ended job did, and all that are expected of an open one; None if that is not known."""
    if job.state not in s.ENDED:
        return predicted.get(job.id, asked.iterations_left)
    return float(job.iterations_done) or (asked.iterations_left if job.state == s.COMPLETED else None)


def _free(node: Node) -> Node:
    gpus = tuple(gpu if gpu.state == "faulty" else Gpu(gpu.id) for gpu in node.gpus)
    return replace(node, gpus=gpus, heard=True, kept_for=None)


def _came(job: JobRecord, journal: Journal, bars: Iterable[Bar]) -> dict[str, Any]:
    """`bars`: of jobs with its name. `trained_s`: without time in the queue; `gpu_s`: as far as events are kept."""
    began, start = journal.began, number(job.doc.get("start_ts"))
    end = job.finish_ts - began if job.state in s.ENDED else None
    first, last = job.submit_ts - began, journal.until - began if end is None else end
    own = [bar.end - bar.begin for bar in bars if first <= bar.begin <= last]
    return {
        "state": job.state,
        "start_s": None if start is None else start - began,
        "end_s": end,
        "trained_s": job.ran_s(Moment(journal.until, journal.until)),
        "gpu_s": sum(own),
    }
