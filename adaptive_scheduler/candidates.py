"""Ranks and explains the candidates of a GPU decision, and states which jobs may be reshaped.

Every decision is stored with at most `LISTED` of its candidates: a search keeps tuples, and only the listed ones become
`Candidate`s. Called by the policies. Pure."""

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
"""Candidates stored with a decision; bounds the size of its document."""

GOOD, TO_MEASURE, LATE, REFUSED = 0, 1, 2, 3
"""Ranks of a ranked: predicted, possible but without a known speed, breaking a deadline, not to be taken."""


class RankedCandidate(NamedTuple):
    """One placement of `job`. The smallest `key` wins; it begins with the rank."""

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
    possible: bool = True  # False: it would have to wait, and its times do not count that

    @property
    def rank(self) -> int:
        return int(self.key[0])


class CandidateList(NamedTuple):
    """The best candidates in order, at most `LISTED`, and the number of those that are left out (`more`)."""

    candidates: list[RankedCandidate]
    more: int


def nodes_for(snapshot: ClusterSnapshot, job: Job) -> tuple[Node, ...]:
    """Return the nodes with GPUs on which the job may run by GPU type and pin (X12), including closed ones."""
    return snapshot.allowed(job.gpu_type, job.pinned)


def spread(
    count: int, nodes: Iterable[Node], most: int, own: Mapping[str, int] | None = None, each: int = 1
) -> tuple[Worker, ...]:
    """Place `count` GPUs on at most `most` hosts: its `own` first, then idle ones there, then on as few others as
    possible. Each host gets a multiple of `each`, the GPUs of one pod. Empty if there is no such placement."""
    got = dict(own or {})
    missing = count - sum(got.values())
    for node in sorted(nodes, key=lambda n: (n.name not in got, -n.idle, n.name)):
        if taken := min(node.idle, missing) // each * each:
            got[node.name] = got.get(node.name, 0) + taken
            missing -= taken
    return () if missing or len(got) > most else tuple(Worker(*host) for host in got.items())


def fixed_count(snapshot: ClusterSnapshot, job: Job) -> int:
    """Return the GPU count of a job that is never reshaped: the largest allowed one that some node has; 0 if none."""
    largest = max((len(node.gpus) for node in nodes_for(snapshot, job)), default=0)
    return max((n for n in job.optional if n <= largest), default=0)


def min_start_gpus(snapshot: ClusterSnapshot, job: Job, settings: Settings) -> int:
    """Return the fewest GPUs on which a waiting job may be started."""
    return min(job.optional, default=0) if "elastic" in settings.systems else fixed_count(snapshot, job)


CANNOT_RESUME = "it has not shown that it can save and resume"


def protected_gpus(job: Job, now: float) -> int:
    """Return how many of its GPUs a placed job must keep now; 0 if all may be taken for waiting jobs. A cool-down
    protects the count that the job had before it last grew, never what it grew into."""
    if change_obstacle(job):
        return job.num_gpus
    if job.cooling_until <= now:
        return 0
    return min(job.grew_from or job.num_gpus, job.num_gpus)


def reshape_obstacle(job: Job, now: float) -> str:
    """Return the reason, for people, why a placed job may not be reshaped for its own gain now; empty if it may."""
    if why := change_obstacle(job):
        return why
    if job.cooling_until > now:
        return f"was reshaped a short while ago and is left alone for {seconds(job.cooling_until - now)} more"
    return ""


def change_obstacle(job: Job) -> str:
    """Return the reason why a placed job may not be changed at all now; empty if it may."""
    if job.busy:
        return "has an operation under way"
    if job.state != "running":
        return f"is {job.state}"
    if not job.stoppable:
        return f"keeps its {gpus(job.num_gpus)}: {CANNOT_RESUME}"
    if job.wanted is not None:
        return "keeps the count an operator requested"
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
    evaluated: list[RankedCandidate],
    chosen: RankedCandidate | None,
    times: RemainingTimes,
    profiles: Profiles,
    more: int = 0,
) -> Explanation:
    """Return the explanation: the chosen candidate first, then the others, best first. `more`: number of further
    candidates, none of them better."""
    others = [ranked for ranked in evaluated if ranked is not chosen]
    limit = LISTED - (chosen is not None)
    listed = heapq.nsmallest(limit, others, key=lambda ranked: ranked.key)
    candidates = [_candidate(profiles, ranked, _why_rejected(ranked, chosen)) for ranked in listed]
    if chosen is not None:
        candidates.insert(0, _candidate(profiles, chosen, ""))
    if unlisted := len(others) + more - len(listed):
        sentence += f" {unlisted} more candidates were evaluated and are not listed."
    return Explanation(algorithm, sentence, tuple(candidates), times.max, times.sum)


def _candidate(profiles: Profiles, ranked: RankedCandidate, rejected: str) -> Candidate:
    hosts = len(ranked.workers) or 1
    sure = is_certain(profiles, ranked.job, ranked.node.gpu_type, ranked.num_gpus, hosts) and (
        ranked.victim is None
        or is_certain(profiles, ranked.victim, ranked.node.gpu_type, ranked.keeps, len(ranked.victim.workers) or 1)
    )
    return Candidate(
        node=ranked.node.name,
        num_gpus=ranked.num_gpus,
        makespan_s=ranked.makespan_s,
        sum_s=ranked.sum_s,
        job_s=ranked.job_s,
        job=ranked.job.id,
        victim=ranked.victim.id if ranked.victim else None,
        victim_num_gpus=ranked.keeps if ranked.victim else None,
        rejected=rejected,
        low_confidence=not sure,
        possible=ranked.possible,
    )


def _why_rejected(ranked: RankedCandidate, chosen: RankedCandidate | None) -> str:
    if ranked.refused or chosen is None:
        return ranked.refused
    if ranked.rank == TO_MEASURE and chosen.rank == GOOD:
        return no_speed(ranked.num_gpus, ranked.node)
    if ranked.rank == TO_MEASURE and ranked.num_gpus > chosen.num_gpus:
        return f"{gpus(chosen.num_gpus)} are enough to measure it" if chosen.num_gpus > 1 else "1 GPU is enough"
    if ranked.rank == chosen.rank == TO_MEASURE and ranked.num_gpus < chosen.num_gpus:
        return f"{ranked.job.id} keeps what it starts on: {CANNOT_RESUME}"
    longer = ranked.makespan_s - chosen.makespan_s
    if longer > 0:
        return f"makespan {seconds(longer)} longer"
    more = ranked.sum_s - chosen.sum_s
    if longer == 0 and more > 0:
        return f"same makespan, sum {seconds(more)} longer"
    if ranked.victim and not chosen.victim:
        return "same times, but it takes GPUs from a running job"
    if ranked.job is chosen.job and chosen.node.name == ranked.job.node != ranked.node.name:
        return "same times, but on another node"
    return "same times with more GPUs" if ranked.num_gpus > chosen.num_gpus else "no better, and later in order"


def no_speed(count: int, node: Node, job: str = "") -> str:
    return f"no measured speed{f' of {job}' if job else ''} for {gpus(count)} on {node.gpu_type}"


def infeasibility(snapshot: ClusterSnapshot, job: Job, together: int = 0) -> str:
    """Return a sentence that says why no node can start this job and what to do; empty if one can. `together`: GPUs
    that several nodes could give it. A job that can start once others of a machine have ended is told to wait."""
    kind = f"{job.gpu_type} " if job.gpu_type else ""
    allowed = nodes_for(snapshot, job)
    if job.optional and any(_can_hold(node, job.optional[0]) for node in allowed):
        return ""  # mostly the first node answers: each waiting job is asked about at each decision
    if not job.optional:
        return f"{job.id} waits: it allows no GPU count at all; submit it again with optional_num_gpus."
    if not allowed and job.pinned is not None:
        return f"{job.id} waits: it is pinned to {job.pinned}, which has no {kind}GPUs; pin it to another node."
    if not allowed:
        return f"{job.id} waits: no node has {kind}GPUs; register one{', or drop gpu_type' if kind else ''}."
    largest = max(allowed, key=lambda n: (n.working, n.name))
    if job.optional[0] > max(largest.working, together):
        return (
            f"{job.id} waits: it wants more GPUs than any node has: at least {job.optional[0]}, while the largest "
            f"{kind}node, {largest.name}, has {largest.working} working; allow a smaller count or add a larger node."
        )
    if not any(n.schedulable for n in allowed):
        return f"{job.id} waits: every {kind}node is closed to new jobs; open one."
    if not any(n.heard for n in allowed):
        return f"{job.id} waits: no {kind}node has been heard of lately; see whether their agents run."
    if job.optional[0] > max(*(n.healthy for n in allowed), together):
        return (
            f"{job.id} waits: it wants at least {gpus(job.optional[0])}, and {told_as_used(largest)}; "
            "it can start once these have ended, and `reshape gpus` names them."
        )
    return ""


def _can_hold(node: Node, count: int) -> bool:
    """Return whether so many GPUs of the node can be had once its jobs have ended."""
    return node.schedulable and node.heard and node.healthy >= count


def told_as_used(node: Node) -> str:
    """Return words for those of its GPUs that others use."""
    verb = "is" if node.used_by_others == 1 else "are"
    return f"{gpus(node.used_by_others)} of node {node.name} {verb} used by others of that machine"


def healthy_on(nodes: Iterable[Node], hosts: int) -> int:
    """Return the most working GPUs of one GPU type on `hosts` schedulable nodes."""
    by_kind: dict[str, list[int]] = {}
    for node in nodes:
        if node.schedulable:
            by_kind.setdefault(node.gpu_type, []).append(node.healthy)
    return max((sum(sorted(of_kind)[-hosts:]) for of_kind in by_kind.values()), default=0)
