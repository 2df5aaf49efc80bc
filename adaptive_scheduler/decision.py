"""What a policy may answer, with the reason, and the post-conditions every answer must meet."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Worker


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
    workers: tuple[Worker, ...] = ()  # GPUs per host for a job of several; empty: all on `node`


@dataclass(frozen=True, slots=True)
class Reshape:
    """Change the GPU count of a running job on its own node, or on its own nodes and more (`workers`)."""

    job: str
    node: str
    num_gpus: int
    explanation: Explanation
    workers: tuple[Worker, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Checkpoint, stop, and go on elsewhere: another node, perhaps another GPU count (sequence D, 1.3).

    `num_gpus` is 0 for a job trained on CPU. `rebalance` spends the job's one rebalancing move, a
    SpeCon move that is not one spends its speculative move, a move of a GPU job neither.
    """

    job: str
    node: str
    num_gpus: int
    explanation: Explanation
    rebalance: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """So many cores at most from now on, or no limit (None). No operation: the job trains on (seed 001).

    It lifts itself `lasts_s` seconds after it was set, unless it is set again, so that a scheduler that is
    gone leaves none behind.
    """

    job: str
    node: str
    cores: float | None
    lasts_s: float
    explanation: Explanation
    by: Literal["quota", "weight"] = "quota"


@dataclass(frozen=True, slots=True)
class Requeue:
    """Checkpoint, stop, back to the queue until the jobs in `yields_to` have started (seed 003, D7)."""

    job: str
    explanation: Explanation
    yields_to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """The measured value has reached the job's target: checkpoint, stop, completed."""

    job: str
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Stay:
    """The job asked for a SpeCon move and does not move (seed 000, Algorithm 2; 5.5).

    `spends_move`: no other node was better, which was its one chance; a move that would not lower the
    makespan does not spend it.
    """

    job: str
    at_s: float
    spends_move: bool
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Hold:
    """The job stays as it is, and this is why."""

    job: str
    explanation: Explanation


Operation = Start | Reshape | Move | Requeue | Finish
"""What a job can have only one of at a time."""

Decision = Operation | Limit | Stay | Hold


class BrokenDecision(Exception):
    """A policy's answer violates a post-condition: a bug, never carried out."""


def check(snapshot: ClusterSnapshot, decisions: Iterable[Decision], anywhere: bool = False) -> None:
    """Raise `BrokenDecision` unless the decisions can all be carried out on `snapshot`.

    Holds what P7 of `reliability.md` 4 promises: allowed counts only, never more GPUs than a node has idle or a victim
    gives up, one operation per job, no limit on a job that is being changed, and none that is rigid is
    stopped. `anywhere`: a job may be spread over any number of hosts, whatever its `max_workers` (G7,
    `placement="count_only"`).
    """
    idle = {n.name: n.idle for n in snapshot.nodes}
    touched: set[str] = set()
    for decision in decisions:
        if isinstance(decision, Hold | Stay):
            continue
        for job_id in _jobs(decision):
            job = snapshot.job[job_id]
            if job_id in touched or job.leased:
                raise BrokenDecision(f"a second operation on job {job_id}")
            touched.add(job_id)
        if (stopped := _stopped(decision)) is not None:
            _check_may_stop(snapshot.job[stopped], decision)
        if isinstance(decision, Start | Reshape | Move):
            _check_gpus(snapshot, decision, idle, anywhere)
        elif isinstance(decision, Limit) and not (
            decision.lasts_s > 0 and (decision.cores is None or decision.cores > 0)
        ):
            raise BrokenDecision(
                f"job {decision.job} cannot be limited to {decision.cores} cores for {decision.lasts_s} s"
            )


def _jobs(decision: Operation | Limit) -> list[str]:
    victim = decision.victim if isinstance(decision, Start) else None
    return [decision.job] if victim is None else [decision.job, victim]


def _stopped(decision: Operation | Limit) -> str | None:
    """Whose training it stops. Not one that ends: its own record names the target that ends it."""
    match decision:
        case Reshape() | Move() | Requeue():
            return decision.job
        case Start():
            return decision.victim
    return None


def _check_may_stop(job: Job, decision: Operation | Limit) -> None:
    """A rigid job is stopped for nothing but the count that an operator wished, who agreed to what it loses."""
    agreed = job.forced and isinstance(decision, Reshape) and decision.num_gpus == job.wanted
    if not job.stoppable and not agreed:
        raise BrokenDecision(f"job {job.id} has not shown that it can save and resume: it must not be stopped")


def _check_gpus(
    snapshot: ClusterSnapshot, decision: Start | Reshape | Move, idle: dict[str, int], anywhere: bool
) -> None:
    """Takes what the decision needs out of `idle`."""
    job = snapshot.job[decision.job]
    workers = workers_of(decision)
    if decision.num_gpus not in job.optional or sum(w.num_gpus for w in workers) != decision.num_gpus:
        raise BrokenDecision(f"job {job.id} may not run on {decision.num_gpus} GPUs, only on {job.optional}")
    too_many = len(workers) > max(1, job.max_workers) and not anywhere
    if too_many or len({w.node for w in workers}) < len(workers):
        raise BrokenDecision(f"job {job.id} may not be spread over {', '.join(w.node for w in workers)}")
    has = {w.node: w.num_gpus for w in placed_on(job)}
    if job.gpus_per_pod:
        _check_gang(job, decision, workers)
    if isinstance(decision, Reshape) and not {w.node for w in workers} & has.keys():
        raise BrokenDecision(f"job {job.id} runs on {job.node}, not on {decision.node}")
    if isinstance(decision, Start) and has:
        raise BrokenDecision(f"job {job.id} runs already, on {job.node}")
    if isinstance(decision, Move) and decision.node == job.node:
        raise BrokenDecision(f"job {job.id} cannot move to {job.node}, where it is")
    if isinstance(decision, Start) and decision.victim is not None:
        _take_from_victim(snapshot, decision, idle)
    for worker in workers:
        idle[worker.node] -= worker.num_gpus - (has.get(worker.node, 0) if isinstance(decision, Reshape) else 0)
        if idle[worker.node] < 0:
            raise BrokenDecision(f"node {worker.node} has not that many idle GPUs")


def _check_gang(job: Job, decision: Start | Reshape | Move, workers: tuple[Worker, ...]) -> None:
    """Whole pods on each host; those that stay are its first ones."""
    if isinstance(decision, Move) or any(w.num_gpus % job.gpus_per_pod for w in workers):
        raise BrokenDecision(
            f"job {job.id} has pods of {job.gpus_per_pod} GPUs: its gang can be spread, but no pod moved"
        )
    if isinstance(decision, Reshape):
        stays = {w.node: w.num_gpus for w in first_pods(job, min(job.num_gpus, decision.num_gpus))}
        planned = {w.node: w.num_gpus for w in workers}
        shrinks = decision.num_gpus < job.num_gpus
        if (shrinks and planned != stays) or any(planned.get(node, 0) < count for node, count in stays.items()):
            raise BrokenDecision(f"the first pods of gang {job.id} stay where they are: {stays}")


def _take_from_victim(snapshot: ClusterSnapshot, decision: Start, idle: dict[str, int]) -> None:
    victim = snapshot.job[decision.victim or ""]
    if decision.victim_num_gpus is None:
        raise BrokenDecision(f"victim {victim.id} without the count it keeps")
    if decision.victim_num_gpus not in victim.optional:
        raise BrokenDecision(
            f"job {victim.id} may not run on {decision.victim_num_gpus} GPUs, only on {victim.optional}"
        )
    gives = victim.num_gpus - decision.victim_num_gpus
    has = {w.node: w.num_gpus for w in placed_on(victim)}
    if decision.node not in has:
        raise BrokenDecision(f"job {victim.id} runs on {victim.node}, not on {decision.node}")
    if gives >= dict(givable(victim)).get(decision.node, 0):
        raise BrokenDecision(
            f"job {victim.id} has {has[decision.node]} GPUs on {decision.node} and cannot give {gives} of them"
        )
    idle[decision.node] += gives


def workers_of(decision: Start | Reshape | Move) -> tuple[Worker, ...]:
    """GPUs per host of what was decided, also where one host has them all."""
    named = () if isinstance(decision, Move) else decision.workers
    return named or (Worker(decision.node, decision.num_gpus),)


def placed_on(job: Job) -> tuple[Worker, ...]:
    """GPUs per host that a job has now; empty for one that waits."""
    if job.node is None:
        return ()
    return job.workers or (Worker(job.node, job.num_gpus),)


def gpus_on(job: Job, node: str) -> int:
    return sum(w.num_gpus for w in placed_on(job) if w.node == node)


def givable(job: Job) -> list[tuple[str, int]]:
    """(node, more GPUs than it can give there): it keeps some on each of its hosts.

    A gang gives its last pods, and all that it has on a node if these are the last.
    """
    if not job.gpus_per_pod:
        return [(worker.node, worker.num_gpus) for worker in placed_on(job)]
    if len(set(job.pods)) <= 1:
        return [(node, job.num_gpus) for node in job.pods[:1]]
    last = sum(1 for _ in itertools.takewhile(lambda node: node == job.pods[-1], reversed(job.pods)))
    return [(job.pods[-1], last * job.gpus_per_pod + 1)]


def gives_on(job: Job, node: str, gives: int) -> tuple[Worker, ...]:
    """GPUs per host that a victim keeps after giving on one host. Empty where it was on one host only."""
    kept = (replace(w, num_gpus=w.num_gpus - gives) if w.node == node else w for w in job.workers)
    return tuple(worker for worker in kept if worker.num_gpus)


def first_pods(job: Job, num_gpus: int) -> tuple[Worker, ...]:
    """GPUs per host of a gang that keeps its first pods, so many GPUs."""
    kept = Counter(job.pods[: num_gpus // job.gpus_per_pod])
    return tuple(Worker(node, pods * job.gpus_per_pod) for node, pods in kept.items())


def idle_after(node: Node, taken: int) -> Node:
    """The node with `taken` idle GPUs marked reserved: to try the next decision on."""
    gpus = list(node.gpus)
    for i, gpu in enumerate(gpus):
        if taken and gpu.state == "idle":
            gpus[i] = replace(gpu, state="reserved")
            taken -= 1
    return replace(node, gpus=tuple(gpus))
