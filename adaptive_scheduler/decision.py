"""What a policy may answer, with the reason, and the post-conditions every answer must meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from adaptive_scheduler.snapshot import ClusterSnapshot, Node


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way that was looked at, and what it was predicted to lead to (seconds from now)."""

    node: str
    num_gpus: int
    makespan_s: float
    sum_s: float  # sum of all remaining times, the second criterion (G4)
    job_s: float  # remaining time of the job in question
    job: str
    victim: str | None = None
    victim_num_gpus: int | None = None  # what the victim would keep
    rejected: str = ""  # why it was not taken; empty for the chosen one
    low_confidence: bool = False  # rests on an extrapolated speed or an unknown length


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a decision was made: the sentence for people, the candidates for everything else."""

    algorithm: str  # "elastic.incoming", "elastic.running", "operator", ...
    sentence: str
    candidates: tuple[Candidate, ...] = ()
    unchanged_makespan_s: float | None = None  # what doing nothing was predicted to lead to
    unchanged_sum_s: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Give a waiting job its first GPUs, perhaps some of a running job's (`victim`)."""

    job: str
    node: str
    num_gpus: int
    explanation: Explanation
    victim: str | None = None
    victim_num_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Reshape:
    """Change the GPU count of a running job on its own node."""

    job: str
    node: str
    num_gpus: int
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Hold:
    """The job stays as it is, and this is why."""

    job: str
    explanation: Explanation


Decision = Start | Reshape | Hold


class Broken(Exception):
    """A policy's answer violates a post-condition: a bug, never carried out."""


def check(snapshot: ClusterSnapshot, decisions: Iterable[Decision]) -> None:
    """Raise `Broken` unless the decisions can all be carried out on `snapshot`.

    Holds what P7 promises: allowed counts only, never more GPUs than a node has idle or a victim
    gives up, one operation per job.
    """
    idle = {n.name: n.idle for n in snapshot.nodes}
    touched: set[str] = set()
    for decision in decisions:
        if isinstance(decision, Hold):
            continue
        changes = _changes(snapshot, decision)
        for job_id, before, after in changes:
            job = snapshot.job[job_id]
            if job_id in touched or job.leased:
                raise Broken(f"a second operation on job {job_id}")
            if after not in job.optional:
                raise Broken(f"job {job_id} may not run on {after} GPUs, only on {job.optional}")
            if before and job.node != decision.node:
                raise Broken(f"job {job_id} runs on {job.node}, not on {decision.node}")
            touched.add(job_id)
        idle[decision.node] -= sum(after - before for _, before, after in changes)
        if idle[decision.node] < 0:
            raise Broken(f"node {decision.node} has not that many idle GPUs")


def _changes(snapshot: ClusterSnapshot, decision: Start | Reshape) -> list[tuple[str, int, int]]:
    """Rows of (job, GPUs before, GPUs after)."""
    if isinstance(decision, Reshape):
        return [(decision.job, snapshot.job[decision.job].num_gpus, decision.num_gpus)]
    rows = [(decision.job, 0, decision.num_gpus)]
    if decision.victim is not None:
        if decision.victim_num_gpus is None:
            raise Broken(f"victim {decision.victim} without the count it keeps")
        rows.append((decision.victim, snapshot.job[decision.victim].num_gpus, decision.victim_num_gpus))
    return rows


def idle_after(node: Node, taken: int) -> Node:
    """The node with `taken` idle GPUs marked reserved: to try the next decision on."""
    gpus = list(node.gpus)
    for i, gpu in enumerate(gpus):
        if taken and gpu.state == "idle":
            gpus[i] = replace(gpu, state="reserved")
            taken -= 1
    return replace(node, gpus=tuple(gpus))
