"""Idle GPUs of a node that is kept for one job are lent to jobs that end before it could start there (EASY backfill).

Promises that the kept job is not put off, as far as lengths are known: a lender of whom the length is not certain may
end at any moment, so nothing is lent on its account, and a borrower's own length and speed must be known. Called by
`aging.py`. Pure; times are seconds from now.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from adaptive_scheduler.candidates import gpus, nodes_for, seconds
from adaptive_scheduler.decision import Explanation, Start, gpus_on
from adaptive_scheduler.models.prediction import end_is_certain, is_certain, t_keep, t_new
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

BACKFILL = "elastic.backfill"


def starts_s(snapshot: ClusterSnapshot, names: Collection[str], kept: Job) -> float:
    """When these nodes have the fewest GPUs that the kept job may start on, if running jobs there only end.

    Infinite where they never have, as far as anybody knows.
    """
    missing = min(kept.optional) - sum(snapshot.node[name].idle for name in names)
    leaves = sorted((_ends_s(snapshot, job), sum(gpus_on(job, n) for n in names)) for job in snapshot.placed)
    at_s = 0.0
    for ends_s, count in leaves:
        if missing <= 0:
            break
        missing, at_s = missing - count, ends_s
    return at_s if missing <= 0 else math.inf


def borrowed(snapshot: ClusterSnapshot, names: Collection[str], kept: str, until_s: float, job: Job) -> Start | None:
    """The start of another waiting job on GPUs lent by one of these nodes, where it ends soonest; None where none fits.

    `until_s`: from `starts_s`, when the job `kept` could start.
    """
    ends = list[tuple[float, int, str]]()
    for node in nodes_for(snapshot, job):
        if node.name not in names:
            continue
        for count in job.optional:
            if 0 < count <= node.idle and is_certain(snapshot.profiles, job, node.gpu_type, count):
                ends.append((t_new(snapshot.profiles, job, node.gpu_type, count), count, node.name))
    ends_s, count, name = min(ends, default=(math.inf, 0, ""))
    if not ends_s < until_s < math.inf:
        return None
    sentence = (
        f"{job.id} starts on {gpus(count)} of {name}, which is kept for {kept}: it is predicted to end in "
        f"{seconds(ends_s)}, and {kept} can start there in {seconds(until_s)} at the earliest."
    )
    return Start(job.id, name, count, Explanation(BACKFILL, sentence))


def _ends_s(snapshot: ClusterSnapshot, job: Job) -> float:
    """At the earliest."""
    if job.node is None or not end_is_certain(snapshot, job):
        return 0.0
    return t_keep(snapshot.profiles, job, snapshot.node[job.node].gpu_type)
