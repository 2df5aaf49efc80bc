"""Finds what contradicts in the rows of a store, and computes what settles a contradiction for one job. Pure.

Promises: a job with an operation under way is judged by its document only, since its GPUs change hands meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.document_validation import is_closed, validate
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import GpuChanges, JobChanges
from coordinator.ports import Doc


def contradictions(jobs: Sequence[Doc], gpus: Sequence[Doc], nodes: Sequence[Doc]) -> Iterator[str]:
    """Yield a sentence for each. `jobs`: all, also ended ones."""
    for table, rows in (("jobs", jobs), ("gpus", gpus), ("nodes", nodes)):
        for row in rows:
            name = JobRecord(row).id if table == "jobs" else row["_id"]
            yield from (f"{_word(table)} {name}: {problem}" for problem in validate(table, row).invalid_fields)
    ours = [JobRecord(doc) for row in jobs if (doc := validate("jobs", row).doc).get("uid") and not is_closed(doc)]
    of = {str(row["_id"]): GpuRecord(validate("gpus", row).doc) for row in gpus}
    for name, count in Counter(job.id for job in ours).items():
        if count > 1:
            yield f"{count} open documents have the job_id {name}"
    yield from _of_jobs([job for job in ours if job.operation is None and job.state in s.LAUNCHED], of)
    yield from _of_gpus(of, {job.id for job in ours})


def _of_jobs(jobs: Sequence[JobRecord], rows: Mapping[str, GpuRecord]) -> Iterator[str]:
    owners: dict[str, str] = {}
    for job in jobs:
        if (job.doc.get("num_gpus") or 0) != len(job.gpu_ids):
            yield f"job {job.id} says that it has {job.doc.get('num_gpus')} GPUs and names {len(job.gpu_ids)}"
        for gpu in job.gpu_ids:
            if (other := owners.setdefault(gpu, job.id)) != job.id:
                yield f"GPU {gpu} is named by job {other} and by job {job.id}"
            elif gpu not in rows:
                yield f"job {job.id} names GPU {gpu}, of which there is no row"
            elif rows[gpu].held_by != job.id:
                yield f"job {job.id} names GPU {gpu}, which is held by {_whom(rows[gpu].held_by)}"


def _of_gpus(rows: Mapping[str, GpuRecord], jobs: set[str]) -> Iterator[str]:
    for gpu in rows.values():
        users = [name for name in dict.fromkeys((gpu.job, gpu.held_by)) if name is not None]
        if gpu.state == s.IDLE and users:
            yield f"GPU {gpu.id} is idle and belongs to job {', '.join(users)}"
        yield from (
            f"GPU {gpu.id} belongs to job {one}, which has no open document" for one in users if one not in jobs
        )


def settle(
    jobs: Sequence[Doc], gpus: Sequence[Doc], name: str
) -> tuple[Mapping[str, JobChanges], Mapping[str, GpuChanges]]:
    """Changes by job and by GPU after which this job goes on, and those that claim its GPUs, too, are cancelled.

    `Rejected` if no contradiction holds it.
    """
    held = {job.id: job for job in map(JobRecord, jobs) if job.doc.get("contradiction") and not is_closed(job.doc)}
    if (chosen := held.get(name)) is None:
        others = f"; held are {', '.join(sorted(held))}" if held else ""
        raise Rejected(f"Nothing contradicts job {name}, so there is nothing to settle{others}.")
    shared = {other.id: set(other.gpu_ids) & set(chosen.gpu_ids) for other in held.values() if other.id != name}
    changes: dict[str, JobChanges] = {name: {"contradiction": None}}
    why = f"job {name} was chosen to go on with the GPUs that both claimed (reshape store settle)"
    lost: JobChanges = {"contradiction": None, "cancel": True, "cancel_reason": why}
    changes |= {other: {**lost} for other, both in shared.items() if both}
    mine: GpuChanges = {"state": s.IN_USE, "job_id": chosen.raw_id, "held_by": chosen.raw_id}
    both = set().union(*shared.values())
    return changes, {str(gpu["_id"]): mine for gpu in gpus if str(gpu["_id"]) in both}


def _whom(job: str | None) -> str:
    return "nobody" if job is None else f"job {job}"


def _word(table: str) -> str:
    return {"jobs": "job", "gpus": "GPU", "nodes": "node"}[table]
