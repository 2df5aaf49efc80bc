"""The ways a policy looks at, and the words that say why one was taken and the others were not.

Promises that every decision is stored with its rivals, at most `LISTED` of them, at little cost: the
search keeps plain tuples and only the listed ones become `Candidate`s. Called by the policies.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from adaptive_scheduler.decision import Candidate, Explanation
from adaptive_scheduler.models.prediction import RemainingTimes, is_certain
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node, Worker

LISTED = 50
"""Candidates kept with a decision: enough for a person, small enough for a document."""

GOOD, TO_MEASURE, LATE, REFUSED = 0, 1, 2, 3
"""Ranks of a way: predicted, possible but without a known speed, breaking a deadline, not to be taken."""


class RankedCandidate(NamedTuple):
    """One way to give `job` its GPUs. The smallest `key` wins; it begins with the rank."""

    key: tuple[Any, ...]
    job: Job
    node: Node
    num_gpus: int
    makespan_s: float
    sum_s: float
    job_s: float
    victim: Job | None = None
    keeps: int = 0
    refused: str = ""
    workers: tuple[Worker, ...] = ()  # GPUs per host; empty: all on `node`

    @property
    def rank(self) -> int:
        return int(self.key[0])


class CandidateList(NamedTuple):
    """The best of all ways, in order, as many as can be listed; how many more there are."""

    ways: list[RankedCandidate]
    more: int


def nodes_for(snapshot: ClusterSnapshot, job: Job) -> list[Node]:
    """Nodes with GPUs that the user, or Volcano (X12), lets the job run on, also those closed to new jobs."""
    allowed = (n for n in snapshot.nodes if n.gpus and job.gpu_type in (None, n.gpu_type))
    return [n for n in allowed if job.pinned in (None, n.name)]


def spread(
    count: int, nodes: Iterable[Node], most: int, own: Mapping[str, int] | None = None, each: int = 1
) -> tuple[Worker, ...]:
    """So many GPUs: its `own`, then idle ones of its own hosts, then of as few others as possible.

    On each host a multiple of `each`, the GPUs of one pod. Empty where that would be more than `most` hosts, or
    too few are idle.
    """
    got = dict(own or {})
    missing = count - sum(got.values())
    for node in sorted(nodes, key=lambda n: (n.name not in got, -n.idle, n.name)):
        if taken := min(node.idle, missing) // each * each:
            got[node.name] = got.get(node.name, 0) + taken
            missing -= taken
    return () if missing or len(got) > most else tuple(Worker(*host) for host in got.items())


def fixed_count(snapshot: ClusterSnapshot, job: Job) -> int:
    """What a job runs on that is never reshaped: the largest allowed count that some node could hold; 0: none."""
    largest = max((len(node.gpus) for node in nodes_for(snapshot, job)), default=0)
    return max((n for n in job.optional if n <= largest), default=0)


def min_start_gpus(snapshot: ClusterSnapshot, job: Job, settings: Settings) -> int:
    """The fewest GPUs that a waiting job may be started on."""
    return min(job.optional, default=0) if "elastic" in settings.systems else fixed_count(snapshot, job)


CANNOT_RESUME = "it has not shown that it can save and resume"


def protected_gpus(job: Job, now: float) -> int:
    """With how many GPUs at least a placed job must be left now, whoever waits; 0: nothing forbids to take more.

    A cool-down keeps what it had before it grew, never what it grew into.
    """
    if _change_obstacle(job):
        return job.num_gpus
    if job.cooling_until <= now:
        return 0
    return min(job.grew_from or job.num_gpus, job.num_gpus)


def reshape_obstacle(job: Job, now: float) -> str:
    """Why a placed job may not be reshaped for its own good now, for people; empty if it may."""
    if why := _change_obstacle(job):
        return why
    if job.cooling_until > now:
        return f"was reshaped a short while ago and is left alone for {seconds(job.cooling_until - now)} more"
    return ""


def _change_obstacle(job: Job) -> str:
    """Why a placed job may not be changed at all now; empty if it may."""
    if job.leased:
        return "has an operation under way"
    if job.state != "running":
        return f"is {job.state}"
    if not job.stoppable:
        return f"keeps its {gpus(job.num_gpus)}: {CANNOT_RESUME}"
    if job.wanted is not None:
        return "keeps the count an operator wished"
    if job.stays and job.relaunches:
        return "would lose what it has trained: it has no checkpoint_claim"
    return ""


def gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 0.05 else "less than 0.1 s"


def explain(
    algorithm: str,
    sentence: str,
    ways: list[RankedCandidate],
    chosen: RankedCandidate | None,
    times: RemainingTimes,
    profiles: Profiles,
    more: int = 0,
) -> Explanation:
    """The explanation with the chosen way first, then its rivals, best first.

    `more`: how many others there are, none of them better.
    """
    rivals = [way for way in ways if way is not chosen]
    room = LISTED - (chosen is not None)
    listed = heapq.nsmallest(room, rivals, key=lambda way: way.key)
    candidates = [_candidate(profiles, way, _why_rejected(way, chosen)) for way in listed]
    if chosen is not None:
        candidates.insert(0, _candidate(profiles, chosen, ""))
    if unlisted := len(rivals) + more - len(listed):
        sentence += f" {unlisted} more ways were looked at and are not listed."
    return Explanation(algorithm, sentence, tuple(candidates), times.max, times.sum)


def _candidate(profiles: Profiles, way: RankedCandidate, rejected: str) -> Candidate:
    hosts = len(way.workers) or 1
    sure = is_certain(profiles, way.job, way.node.gpu_type, way.num_gpus, hosts) and (
        way.victim is None
        or is_certain(profiles, way.victim, way.node.gpu_type, way.keeps, len(way.victim.workers) or 1)
    )
    return Candidate(
        node=way.node.name,
        num_gpus=way.num_gpus,
        makespan_s=way.makespan_s,
        sum_s=way.sum_s,
        job_s=way.job_s,
        job=way.job.id,
        victim=way.victim.id if way.victim else None,
        victim_num_gpus=way.keeps if way.victim else None,
        rejected=rejected,
        low_confidence=not sure,
    )


def _why_rejected(way: RankedCandidate, chosen: RankedCandidate | None) -> str:
    if way.refused or chosen is None:
        return way.refused
    if way.rank == TO_MEASURE and chosen.rank == GOOD:
        return no_speed(way.num_gpus, way.node)
    if way.rank == TO_MEASURE and way.num_gpus > chosen.num_gpus:
        return f"{gpus(chosen.num_gpus)} are enough to measure it" if chosen.num_gpus > 1 else "1 GPU is enough"
    if way.rank == chosen.rank == TO_MEASURE and way.num_gpus < chosen.num_gpus:
        return f"{way.job.id} keeps what it starts on: {CANNOT_RESUME}"
    longer = way.makespan_s - chosen.makespan_s
    if longer > 0:
        return f"makespan {seconds(longer)} longer"
    more = way.sum_s - chosen.sum_s
    if longer == 0 and more > 0:
        return f"same makespan, sum {seconds(more)} longer"
    if way.victim and not chosen.victim:
        return "same times, but it takes GPUs from a running job"
    if way.job is chosen.job and chosen.node.name == way.job.node != way.node.name:
        return "same times, but on another node"
    return "same times with more GPUs" if way.num_gpus > chosen.num_gpus else "no better, and later in order"


def no_speed(count: int, node: Node, job: str = "") -> str:
    return f"no measured speed{f' of {job}' if job else ''} for {gpus(count)} on {node.gpu_type}"


def infeasibility(snapshot: ClusterSnapshot, job: Job, together: int = 0) -> str:
    """Why no node could ever start this job, as a sentence that says what to do; empty if one could.

    `together`: how many GPUs several nodes could give it.
    """
    kind = f"{job.gpu_type} " if job.gpu_type else ""
    allowed = nodes_for(snapshot, job)
    if not job.optional:
        return f"{job.id} waits: it allows no GPU count at all; submit it again with optional_num_gpus."
    if not allowed and job.pinned is not None:
        return f"{job.id} waits: it is pinned to {job.pinned}, which has no {kind}GPUs; pin it to another node."
    if not allowed:
        return f"{job.id} waits: no node has {kind}GPUs; register one{', or drop gpu_type' if kind else ''}."
    largest = max(allowed, key=lambda n: (n.healthy, n.name))
    if job.optional[0] > max(largest.healthy, together):
        return (
            f"{job.id} waits: it wants more GPUs than any node has: at least {job.optional[0]}, while the largest "
            f"{kind}node, {largest.name}, has {largest.healthy} working; allow a smaller count or add a larger node."
        )
    if not any(n.schedulable for n in allowed):
        return f"{job.id} waits: every {kind}node is closed to new jobs; open one."
    if not any(n.heard for n in allowed):
        return f"{job.id} waits: no {kind}node has been heard of lately; see whether their agents run."
    return ""


def healthy_on(nodes: Iterable[Node], hosts: int) -> int:
    """The most working GPUs that so many of the open nodes have, all of one GPU type."""
    by_kind: dict[str, list[int]] = {}
    for node in nodes:
        if node.schedulable:
            by_kind.setdefault(node.gpu_type, []).append(node.healthy)
    return max((sum(sorted(of_kind)[-hosts:]) for of_kind in by_kind.values()), default=0)
