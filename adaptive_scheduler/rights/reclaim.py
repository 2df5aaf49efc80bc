"""Finds GPUs for a claim that idle ones and one victim cannot serve: several shrink, or whole jobs are suspended.

Never a job that cannot resume, and none of a queue that would fall below what it is entitled to, but for a guarantee
that no smaller count can serve, and for turns: of owners whose jobs need the whole machine one lets the other go first.
Called by the engine. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from adaptive_scheduler.candidates import change_obstacle, gpus, nodes_for, protected_gpus
from adaptive_scheduler.decision import Explanation, Hold, Requeue, Start, Victim
from adaptive_scheduler.models.prediction import t_keep, t_run
from adaptive_scheduler.rights.entitlements import TINY
from adaptive_scheduler.rights.rights import SHARE, GpuClaim, Rights, name_of
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

RECLAIM, SUSPEND = "rights.reclaim", "rights.suspend"


class _Gift(NamedTuple):
    """What one job can give of its GPUs on a node."""

    job: Job
    keeps: int
    gives: int
    costs_s: float


def reclaim(
    world: ClusterSnapshot, rights: Rights, job: Job, answer: Start | Hold
) -> tuple[list[Requeue], Start | Hold]:
    """Return the jobs to suspend for a waiting job, and its start or why it waits. `answer`: without taking GPUs of
    several jobs, which stays if no right to more binds."""
    if isinstance(answer, Start) or job.uses_cpu or not rights.binds or not rights.could_start(world, job):
        return [], answer
    claim = rights.claim(job)
    if claim.any and (start := shrink_several(world, rights, job, claim)):
        return [], start
    stopped = suspend(world, rights, job, claim)
    standing = rights.sentence(rights.owner(job))
    if stopped:
        rights.promise(job)
        names = " and ".join(one.job for one in stopped)
        return stopped, Hold(job.id, Explanation(SUSPEND, f"{job.id} waits until {names} has saved. {standing}"))
    algorithm = answer.explanation.algorithm if claim.any else SHARE
    sentence = f"{answer.explanation.sentence} {standing}"
    return [], replace(answer, explanation=replace(answer.explanation, algorithm=algorithm, sentence=sentence))


def shrink_several(world: ClusterSnapshot, rights: Rights, job: Job, claim: GpuClaim) -> Start | None:
    """Return the start of a job on the smallest count that several jobs of one node give way to; None if none do."""
    count = min(job.optional, default=0)
    found = list[tuple[tuple[int, float, str], Node, list[_Gift]]]()
    for node, there in _open_nodes(world, job, count):
        gifts = [gift for other in there for gift in _gifts(world, rights, node, other)]
        chosen = _enough(rights, claim, job, gifts, count - node.idle)
        if chosen:
            key = len(chosen), math.fsum(gift.costs_s for gift in chosen), node.name
            found.append((key, node, chosen))
    if not found:
        return None
    _, node, chosen = min(found, key=lambda one: one[0])
    victims = tuple(Victim(gift.job.id, gift.keeps) for gift in chosen)
    gives = " and ".join(f"{gift.job.id} goes from {gift.job.num_gpus} to {gift.keeps}" for gift in chosen)
    sentence = f"{job.id} starts on {gpus(count)} of {node.name}: {gives}. {rights.sentence(rights.owner(job))}"
    explanation = Explanation(RECLAIM, sentence)
    first = victims[0]
    return Start(job.id, node.name, count, explanation, first.job, first.num_gpus, more_victims=victims[1:])


def _open_nodes(world: ClusterSnapshot, job: Job, count: int) -> Iterator[tuple[Node, Sequence[Job]]]:
    """Yield the nodes on which GPUs are missing for the job, with the jobs that are on this node alone."""
    there: dict[str | None, list[Job]] = defaultdict(list)
    for other in world.placed:
        if not other.workers:
            there[other.node].append(other)
    for node in nodes_for(world, job):
        if node.open and node.idle < count <= node.healthy:
            yield node, there[node.name]


def _gifts(world: ClusterSnapshot, rights: Rights, node: Node, other: Job) -> Iterator[_Gift]:
    if other.preemption == "never" or change_obstacle(other) or other.gpus_per_pod:
        return
    kept = protected_gpus(other, rights.now)
    stays_s = t_keep(world.profiles, other, node.gpu_type)
    for keeps in other.optional:
        if 0 < keeps < other.num_gpus and keeps >= kept and world.profiles.speed(other.type, node.gpu_type, keeps):
            costs_s = t_run(world.profiles, other, node.gpu_type, keeps) - stays_s
            yield _Gift(other, keeps, other.num_gpus - keeps, costs_s)


def _enough(rights: Rights, claim: GpuClaim, job: Job, gifts: Sequence[_Gift], need: int) -> list[_Gift]:
    """Return the gifts that make up for what is missing, the largest first; nothing if they do not."""
    claimant = rights.owner(job)
    budgets = Budgets(rights, claimant, claim)
    chosen = dict[str, _Gift]()
    missing = need
    for gift in sorted(gifts, key=lambda gift: (-min(gift.gives, need), gift.costs_s, gift.job.id)):
        if (
            missing > 0
            and gift.job.id not in chosen
            and budgets.take(rights.owner(gift.job), rights.units(gift.job, gift.gives))
        ):
            chosen[gift.job.id] = gift
            missing -= gift.gives
    return list(chosen.values()) if missing <= 0 else []


class Budgets:
    """What owners and their queues may still be made to give for one claim."""

    def __init__(self, rights: Rights, claimant: JobOwner, claim: GpuClaim) -> None:
        self._rights, self._claimant, self._claim = rights, claimant, claim
        self._taken: dict[JobOwner | str, float] = defaultdict(float)

    def take(self, victim: JobOwner, units: float) -> bool:
        """Take these standard GPUs if that leaves the owner and its queue what they are entitled to."""
        if victim != self._claimant:
            rights = self._rights
            own = rights.over(victim, self._claimant, self._claim) - self._taken[victim]
            queue = math.inf
            if victim.queue != self._claimant.queue:
                queue = rights.held(victim.queue) - rights.standing(victim.queue).whole - self._taken[victim.queue]
            if units > min(own, queue) + TINY:
                return False
        self._taken[victim] += units
        self._taken[victim.queue] += units
        return True


def suspend(world: ClusterSnapshot, rights: Rights, job: Job, claim: GpuClaim) -> list[Requeue]:
    """Return the jobs to suspend, as few as possible on one node, for a waiting one that has waited long enough."""
    waited_s = rights.now - (job.submit_s if job.queued_s is None else job.queued_s)
    if waited_s < rights.shares.patience_s or rights.is_promised(job):
        return []
    for below in (False, True):
        if below and not claim.guaranteed:
            break
        found = list[tuple[tuple[int, int, str], list[Job]]]()
        for node, there in _open_nodes(world, job, min(job.optional, default=0)):
            chosen = _suspended(rights, job, claim, there, min(job.optional) - node.idle, below)
            if chosen:
                found.append(((len(chosen), sum(one.num_gpus for one in chosen), node.name), chosen))
        if found:
            _, chosen = min(found, key=lambda one: one[0])
            return [_requeue(rights, one, job) for one in sorted(chosen, key=lambda one: one.id)]
    return []


def _suspended(rights: Rights, job: Job, claim: GpuClaim, there: Sequence[Job], need: int, below: bool) -> list[Job]:
    """Return one job that suffices, the smallest, else several by priority and size; nothing if they do not."""
    limits = {other.id: _most_taken(rights, job, claim, other, below) for other in there if _may_suspend(rights, other)}
    could = [other for other in there if rights.units(other, other.num_gpus) <= limits.get(other.id, 0.0) + TINY]
    one = min(
        (other for other in could if other.num_gpus >= need),
        key=lambda other: (other.num_gpus, other.priority, other.unsaved_s, other.id),
        default=None,
    )
    if one is not None:
        return [one]
    chosen, missing = list[Job](), need
    taken: dict[JobOwner | str, float] = defaultdict(float)
    for other in sorted(could, key=lambda other: (other.priority, -other.num_gpus, other.id)):
        owner, units = rights.owner(other), rights.units(other, other.num_gpus)
        group = owner if owner.queue == rights.owner(job).queue else owner.queue
        if missing > 0 and taken[group] + units <= limits[other.id] + TINY:
            taken[group] += units
            missing -= other.num_gpus
            chosen.append(other)
    return chosen if missing <= 0 else []


def _may_suspend(rights: Rights, job: Job) -> bool:
    ran = job.started_s is None or rights.now - job.started_s >= rights.shares.min_run_s
    cooled = job.cooling_until <= rights.now
    return job.preemption == "any" and ran and cooled and not change_obstacle(job) and not job.stays


def _most_taken(rights: Rights, job: Job, claim: GpuClaim, other: Job, below: bool) -> float:
    """Return the standard GPUs that may be taken of the owner of a running job by suspending its jobs."""
    claimant, victim = rights.owner(job), rights.owner(other)
    if victim == claimant:
        return 0.0
    across = victim.queue != claimant.queue
    if claim.any and not claim.odd:
        over = rights.over(victim, claimant, claim)
        guaranteed = rights.shares.queue(victim.queue).guaranteed
        if below and across and over > 0 and rights.held(victim.queue) > guaranteed:
            return max(over, rights.units(other, other.num_gpus))
        return over
    if not rights.has_turn(claimant, victim):
        return 0.0
    keeps = min(rights.shares.queue(victim.queue).guaranteed, rights.standing(victim.queue).demand) if across else 0.0
    return rights.held(victim.queue if across else victim) - keeps


def _requeue(rights: Rights, victim: Job, job: Job) -> Requeue:
    owner, claimant = rights.owner(victim), rights.owner(job)
    sentence = (
        f"{victim.id} saves and waits until {job.id} of {name_of(claimant)} has started. {rights.sentence(claimant)} "
        f"{rights.sentence(owner)}"
    )
    return Requeue(victim.id, Explanation(SUSPEND, sentence), (job.id,))
