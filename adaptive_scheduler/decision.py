"""Defines the decisions of the scheduler with their explanations, and checks their post-conditions. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Worker


@dataclass(frozen=True, slots=True)
class Victim:
    """A running job that gives GPUs to a newcomer, and the count that it keeps."""

    job: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One evaluated placement and its predicted outcome (seconds from now)."""

    node: str
    num_gpus: int
    makespan_s: float
    sum_s: float  # sum of all remaining times, the second criterion (G4)
    job_s: float  # remaining time of the job in question
    job: str
    victim: str | None = None
    victim_num_gpus: int | None = None  # count that the victim would keep
    rejected: str = ""  # reason; empty for the chosen one
    low_confidence: bool = False  # rests on an extrapolated speed or an unknown length
    possible: bool = True  # False: it would have to wait, and its times do not count that
    more_victims: tuple[Victim, ...] = ()  # further jobs that would give GPUs


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason for a decision: a sentence for people, candidates for programs."""

    algorithm: str  # "elastic.incoming", "elastic.running", "operator", ...
    sentence: str
    candidates: tuple[Candidate, ...] = ()
    unchanged_makespan_s: float | None = None  # prediction without any change
    unchanged_sum_s: float | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Give a waiting job its first GPUs, some of them perhaps from running jobs of `node`.

    Algorithm 1 takes from one `victim` at most; the planner may take from `more_victims` beside it.
    """

    job: str
    node: str
    num_gpus: int
    explanation: Explanation
    victim: str | None = None
    victim_num_gpus: int | None = None
    workers: tuple[Worker, ...] = ()  # GPUs per host for a job of several; empty: all on `node`
    more_victims: tuple[Victim, ...] = ()

    @property
    def victims(self) -> tuple[Victim, ...]:
        """Return all jobs that give GPUs. Raises `BrokenDecision` for one without the count that it keeps."""
        if self.victim is None:
            return ()
        if self.victim_num_gpus is None:
            raise BrokenDecision(f"victim {self.victim} without the count it keeps")
        return (Victim(self.victim, self.victim_num_gpus), *self.more_victims)


@dataclass(frozen=True, slots=True)
class Reshape:
    """Change the GPU count of a running job on its own nodes, and further ones (`workers`)."""

    job: str
    node: str
    num_gpus: int
    explanation: Explanation
    workers: tuple[Worker, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Checkpoint, stop and continue on another node, perhaps with another GPU count (sequence D, 1.3). `num_gpus` is 0
    for a job trained on CPU. `rebalance` uses up the job's one rebalancing move; other SpeCon moves use up its
    speculative move, moves of GPU jobs neither."""

    job: str
    node: str
    num_gpus: int
    explanation: Explanation
    rebalance: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """Set or remove (None) a CPU limit. It is no operation: the job trains on (FlowCon). It expires `lasts_s` seconds
    after it was set unless renewed, so that a failed scheduler leaves no limit behind."""

    job: str
    node: str
    cores: float | None
    lasts_s: float
    explanation: Explanation
    by: Literal["quota", "weight"] = "quota"


@dataclass(frozen=True, slots=True)
class Requeue:
    """Checkpoint, stop and return to the queue until the jobs in `yields_to` have started (Slaml, D7). `forced`: the
    cluster takes the job's GPUs away, so that one that cannot save is stopped, too."""

    job: str
    explanation: Explanation
    yields_to: tuple[str, ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Checkpoint, stop and complete a job whose measured value has reached its target."""

    job: str
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class End:
    """Let a job whose time limit is up save and end for good, in whatever state it is: like a cancellation, it takes
    precedence over an operation under way, and is not waited for longer than the job's grace."""

    job: str
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Stay:
    """Reject a job's request for a SpeCon move (SpeCon, Algorithm 2; 5.5). `spends_move`: no other node scored lower,
    which uses up the job's one request; a rejection because of the makespan does not."""

    job: str
    at_s: float
    spends_move: bool
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave the job as it is, with the reason."""

    job: str
    explanation: Explanation


Operation = Start | Reshape | Move | Requeue | Finish
"""Decisions of which a job can have only one under way."""

Decision = Operation | Limit | End | Stay | Hold


class BrokenDecision(Exception):
    """A decision violates a post-condition: a bug; it is never carried out."""


def check(snapshot: ClusterSnapshot, decisions: Collection[Decision], anywhere: bool = False) -> None:
    """Raise `BrokenDecision` unless all decisions can be carried out on `snapshot`. Guarantees P7 of `reliability.md`
    4: only allowed counts, never more GPUs than a node has idle or a victim gives up, one operation per job, no limit
    on a job that is being changed, no stop of a rigid job. `anywhere`: a job may be spread over any number of hosts,
    whatever its `max_workers` (G7, `placement="count_only"`)."""
    places = [d for d in decisions if isinstance(d, Start | Reshape | Move)]
    names = {name for d in places for name in (d.node, *(w.node for w in workers_of(d)))}
    idle = {name: snapshot.node[name].idle for name in names if name in snapshot.node}
    touched: set[str] = set()
    for decision in decisions:
        if isinstance(decision, Hold | Stay):
            continue
        for job_id in _jobs(decision):
            job = snapshot.job[job_id]
            if job_id in touched or (job.busy and not isinstance(decision, End)):
                raise BrokenDecision(f"a second operation on job {job_id}")
            touched.add(job_id)
        for stopped in _stopped(decision):
            _check_may_stop(snapshot.job[stopped], decision)
        if isinstance(decision, Start | Reshape | Move):
            _check_gpus(snapshot, decision, idle, anywhere)
        elif isinstance(decision, Limit) and not (
            decision.lasts_s > 0 and (decision.cores is None or decision.cores > 0)
        ):
            raise BrokenDecision(
                f"job {decision.job} cannot be limited to {decision.cores} cores for {decision.lasts_s} s"
            )


def _jobs(decision: Operation | Limit | End) -> list[str]:
    victims = decision.victims if isinstance(decision, Start) else ()
    return [decision.job, *(victim.job for victim in victims)]


def _stopped(decision: Operation | Limit | End) -> list[str]:
    """Return the jobs whose training the decision stops; none for Finish and End, which its user has asked for."""
    match decision:
        case Reshape() | Move() | Requeue():
            return [decision.job]
        case Start():
            return [victim.job for victim in decision.victims]
    return []


def _check_may_stop(job: Job, decision: Operation | Limit | End) -> None:
    """A rigid job is stopped only for the count that an operator requested and forced; one that freezes may wait."""
    agreed = job.forced and isinstance(decision, Reshape) and decision.num_gpus == job.wanted
    agreed |= isinstance(decision, Requeue) and decision.forced
    yields = job.yields if isinstance(decision, Requeue) else job.stoppable
    if not yields and not agreed:
        raise BrokenDecision(f"job {job.id} has not shown that it can save and resume: it must not be stopped")


def _check_gpus(
    snapshot: ClusterSnapshot, decision: Start | Reshape | Move, idle: dict[str, int], anywhere: bool
) -> None:
    """Subtract the GPUs that the decision needs from `idle`."""
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
    for victim in decision.victims if isinstance(decision, Start) else ():
        _take_from_victim(snapshot, victim, decision.node, idle)
    for worker in workers:
        idle[worker.node] -= worker.num_gpus - (has.get(worker.node, 0) if isinstance(decision, Reshape) else 0)
        if idle[worker.node] < 0:
            raise BrokenDecision(f"node {worker.node} has not that many idle GPUs")


def _check_gang(job: Job, decision: Start | Reshape | Move, workers: tuple[Worker, ...]) -> None:
    """A gang has whole pods on each host and keeps its first ones in place."""
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


def _take_from_victim(snapshot: ClusterSnapshot, victim: Victim, node: str, idle: dict[str, int]) -> None:
    job = snapshot.job[victim.job]
    if victim.num_gpus not in job.optional:
        raise BrokenDecision(f"job {job.id} may not run on {victim.num_gpus} GPUs, only on {job.optional}")
    gives = job.num_gpus - victim.num_gpus
    has = {w.node: w.num_gpus for w in placed_on(job)}
    if node not in has:
        raise BrokenDecision(f"job {job.id} runs on {job.node}, not on {node}")
    if gives <= 0 or gives >= dict(givable(job)).get(node, 0):
        raise BrokenDecision(f"job {job.id} has {has[node]} GPUs on {node} and cannot give {gives} of them")
    idle[node] += gives


def workers_of(decision: Start | Reshape | Move) -> tuple[Worker, ...]:
    """Return the GPUs per host of a decision, also where one host has them all."""
    named = () if isinstance(decision, Move) else decision.workers
    return named or (Worker(decision.node, decision.num_gpus),)


def placed_on(job: Job) -> tuple[Worker, ...]:
    """Return the GPUs per host that a job has now; empty for a waiting job."""
    if job.node is None:
        return ()
    return job.workers or (Worker(job.node, job.num_gpus),)


def gpus_on(job: Job, node: str) -> int:
    return sum(w.num_gpus for w in placed_on(job) if w.node == node)


def givable(job: Job) -> list[tuple[str, int]]:
    """Return (node, exclusive upper bound of GPUs that the job can give there); it keeps some on each host. A gang
    gives its last pods, and all its GPUs on a node if its last pods are all it has there."""
    if not job.gpus_per_pod:
        return [(worker.node, worker.num_gpus) for worker in placed_on(job)]
    if len(set(job.pods)) <= 1:
        return [(node, job.num_gpus) for node in job.pods[:1]]
    last = sum(1 for _ in itertools.takewhile(lambda node: node == job.pods[-1], reversed(job.pods)))
    return [(job.pods[-1], last * job.gpus_per_pod + 1)]


def gives_on(job: Job, node: str, gives: int) -> tuple[Worker, ...]:
    """Return the GPUs per host that a victim keeps after giving on one host; empty if it had one host only."""
    kept = (replace(w, num_gpus=w.num_gpus - gives) if w.node == node else w for w in job.workers)
    return tuple(worker for worker in kept if worker.num_gpus)


def first_pods(job: Job, num_gpus: int) -> tuple[Worker, ...]:
    """Return the GPUs per host of a gang reduced to its first pods with `num_gpus` in all."""
    kept = Counter(job.pods[: num_gpus // job.gpus_per_pod])
    return tuple(Worker(node, pods * job.gpus_per_pod) for node, pods in kept.items())


def idle_after(node: Node, taken: int) -> Node:
    """Return the node with `taken` idle GPUs marked reserved."""
    gpus = list(node.gpus)
    for i, gpu in enumerate(gpus):
        if taken and gpu.state == "idle":
            gpus[i] = replace(gpu, state="reserved")
            taken -= 1
    return replace(node, gpus=tuple(gpus))
