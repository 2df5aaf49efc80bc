"""Finds GPUs for a claim that idle ones and one victim cannot serve: several shrink, or whole jobs are suspended.

Never a job that cannot resume, and none of a queue that would fall below what it is entitled to, but for a guarantee
that no smaller count can serve, and for turns: of owners whose jobs need the whole machine one lets the other go first.
Called by the engine. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from adaptive_scheduler.candidates import change_obstacle, gpus, nodes_for, protected_gpus
from adaptive_scheduler.decision import Explanation, Hold, Requeue, Start, Victim
from adaptive_scheduler.models.prediction import t_keep, t_run
from adaptive_scheduler.rights.entitlements import TINY
from adaptive_scheduler.rights.rights import SHARE, GpuClaim, Rights
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

T = TypeVar("T")
RECLAIM = "rights.reclaim"
SUSPEND = "rights.suspend"


class _Gift(NamedTuple):
    """GPUs that one job can give on a node."""

    job: Job
    keeps: int
    gives: int
    costs_s: float


class Reclaimer:
    """Looks for GPUs during one decision. A search that has failed is not repeated for an equal request."""

    def __init__(self, rights: Rights) -> None:
        self._rights = rights
        self._world: tuple[ClusterSnapshot, int] | None = None  # and the version of the rights
        self._refused = set[object]()  # requests that were searched for in that world
        self._of_node: Mapping[str, list[Job]] = {}  # jobs in it that could give something now
        self._gifts: dict[str, tuple[Job, list[_Gift]]] = {}

    def answer(self, world: ClusterSnapshot, job: Job, answer: Start | Hold) -> tuple[list[Requeue], Start | Hold]:
        """Return the jobs to suspend for a waiting job, and its start or why it waits. `answer`: Algorithm 1's, which
        stays if no right to more binds."""
        rights = self._rights
        if job.uses_cpu or not rights.binds or not rights.could_start(world, job):
            return [], answer
        if isinstance(answer, Start):
            return [], self._with_standings(world, answer)
        self._enter(world)
        claim = rights.claim(job)
        if claim.any and (start := self._once(self._shrink_several, world, job, claim)):
            return [], self._with_standings(world, start)
        stopped = self._suspend(world, job, claim) or []
        standing = rights.sentence(rights.owner(job))
        if stopped:
            rights.promise(job)
            names = " and ".join(one.job for one in stopped)
            have = "has" if len(stopped) == 1 else "have"
            return stopped, Hold(job.id, Explanation(SUSPEND, f"{job.id} waits until {names} {have} saved. {standing}"))
        algorithm = answer.explanation.algorithm if claim.any else SHARE
        sentence = f"{answer.explanation.sentence} {standing}"
        return [], replace(answer, explanation=replace(answer.explanation, algorithm=algorithm, sentence=sentence))

    def _enter(self, world: ClusterSnapshot) -> None:
        if self._world is not None and self._world[0] is world and self._world[1] == self._rights.version:
            return
        of_node: dict[str, list[Job]] = defaultdict(list)
        for other in world.placed:
            if other.preemption != "never" and not other.workers and not change_obstacle(other):
                of_node[other.node or ""].append(other)
        self._world = (world, self._rights.version)
        self._refused = set()
        self._of_node = of_node

    def _once(
        self,
        search: Callable[[ClusterSnapshot, Job, GpuClaim], T | None],
        world: ClusterSnapshot,
        job: Job,
        claim: GpuClaim,
    ) -> T | None:
        """Return what a search finds, unless it has failed for an equal request in this world."""
        asked = search, self._rights.owner(job), claim, job.optional, job.gpu_type, job.pinned
        if asked in self._refused:
            return None
        if not (found := search(world, job, claim)):
            self._refused.add(asked)
        return found

    def _with_standings(self, world: ClusterSnapshot, start: Start) -> Start:
        """Say with a start that takes GPUs of others what each side holds by right."""
        rights = self._rights
        claimant = rights.owner(world.job[start.job])
        victims = {rights.owner(world.job[victim.job]) for victim in start.victims} - {claimant}
        if not victims:
            return start
        standings = [rights.sentence(owner) for owner in (claimant, *sorted(victims))]
        sentence = " ".join([start.explanation.sentence, *standings])
        return replace(start, explanation=replace(start.explanation, sentence=sentence))

    def _nodes(
        self, world: ClusterSnapshot, job: Job, gives: Callable[[Job], bool]
    ) -> Iterator[tuple[Node, list[Job]]]:
        """Yield the nodes on which GPUs are missing for the job and the jobs that could give some have enough, with
        these jobs."""
        count = min(job.optional, default=0)
        for node in nodes_for(world, job) if self._of_node else ():
            if node.name in self._of_node and node.idle < count <= node.healthy and node.open:
                there = [other for other in self._of_node[node.name] if gives(other)]
                if node.idle + sum(other.num_gpus for other in there) >= count:
                    yield node, there

    # several shrink

    def _shrink_several(self, world: ClusterSnapshot, job: Job, claim: GpuClaim) -> Start | None:
        """Return the start on the smallest count that several jobs of one node give way to; None if none do."""
        rights = self._rights
        claimant = self._rights.owner(job)
        others = [owner for owner in rights.who.owners if owner != claimant]

        def gives_on(gpu_type: str) -> Mapping[JobOwner, bool]:
            return {owner: rights.over(owner, claimant, claim, gpu_type) > 0 for owner in others}

        gives = {gpu_type: gives_on(gpu_type) for gpu_type in rights.types_told_apart}
        if not any(any(of_type.values()) for of_type in gives.values()):
            return None

        def may_give(other: Job) -> bool:
            owner = rights.owner(other)
            return owner == claimant or gives[rights.gpu_type_of(other)][owner]

        count = min(job.optional, default=0)
        found = list[tuple[tuple[int, float, str], Node, list[_Gift]]]()
        for node, there in self._nodes(world, job, may_give):
            gifts = [gift for other in there for gift in self._gifts_of(world, node, other)]
            chosen = _enough(rights, claim, job, gifts, count - node.idle)
            if chosen:
                key = len(chosen), math.fsum(gift.costs_s for gift in chosen), node.name
                found.append((key, node, chosen))
        if not found:
            return None
        _, node, chosen = min(found, key=lambda one: one[0])
        victims = tuple(Victim(gift.job.id, gift.keeps) for gift in chosen)
        words = " and ".join(f"{gift.job.id} goes from {gift.job.num_gpus} to {gift.keeps}" for gift in chosen)
        explanation = Explanation(RECLAIM, f"{job.id} starts on {gpus(count)} of {node.name}: {words}.")
        first = victims[0]
        return Start(job.id, node.name, count, explanation, first.job, first.num_gpus, more_victims=victims[1:])

    def _gifts_of(self, world: ClusterSnapshot, node: Node, other: Job) -> list[_Gift]:
        known = self._gifts.get(other.id)
        if known is None or known[0] is not other:
            known = self._gifts[other.id] = other, list(_gifts(world, self._rights.now, node, other))
        return known[1]

    # jobs are suspended

    def _suspend(self, world: ClusterSnapshot, job: Job, claim: GpuClaim) -> list[Requeue] | None:
        """Return the jobs to suspend, as few as possible on one node, for a job that has waited long enough."""
        rights = self._rights
        if rights.waited_s(job) < rights.shares.patience_s or rights.is_promised(job):
            return None
        return self._once(self._search_suspended, world, job, claim)

    def _search_suspended(self, world: ClusterSnapshot, job: Job, claim: GpuClaim) -> list[Requeue] | None:
        rights = self._rights
        for below in (False, True) if claim.guaranteed or claim.types else (False,):
            limits = {
                gpu_type: {
                    owner: _most_taken(rights, job, claim, owner, below, gpu_type) for owner in rights.who.owners
                }
                for gpu_type in rights.types_told_apart
            }
            found = list[tuple[tuple[int, int, str], list[Job]]]()

            def gives(other: Job, limits: Mapping[str, Mapping[JobOwner, float]] = limits) -> bool:
                most = limits[rights.gpu_type_of(other)][rights.owner(other)]
                return rights.units(other, other.num_gpus) <= most + TINY and _may_suspend(rights, other)

            for node, there in self._nodes(world, job, gives):
                of_type = limits[rights.type_told_apart(node.gpu_type)]
                chosen = _suspended(rights, job, of_type, there, min(job.optional) - node.idle, only_one=below)
                if chosen:
                    found.append(((len(chosen), sum(one.num_gpus for one in chosen), node.name), chosen))
            if found:
                _, chosen = min(found, key=lambda one: one[0])
                return [_requeue(rights, one, job) for one in sorted(chosen, key=lambda one: one.id)]
        return None


def _gifts(world: ClusterSnapshot, now: float, node: Node, other: Job) -> Iterator[_Gift]:
    if other.gpus_per_pod:
        return
    kept = protected_gpus(other, now)
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
        if missing > 0 and gift.job.id not in chosen and budgets.take(gift.job, gift.gives):
            chosen[gift.job.id] = gift
            missing -= gift.gives
    return list(chosen.values()) if missing <= 0 else []


class Budgets:
    """Counts what owners and their queues may still be made to give for one claim."""

    def __init__(self, rights: Rights, claimant: JobOwner, claim: GpuClaim) -> None:
        self._rights = rights
        self._claimant = claimant
        self._claim = claim
        self._taken: dict[JobOwner | str, float] = defaultdict(float)

    def take(self, giver: Job, count: int) -> bool:
        """Take these GPUs of a job if that leaves its owner and its queue what they are entitled to."""
        rights = self._rights
        victim = rights.owner(giver)
        units = rights.units(giver, count)
        if victim != self._claimant:
            own, queue = rights.surplus(victim, self._claimant, self._claim, rights.gpu_type_of(giver))
            if units > min(own - self._taken[victim], queue - self._taken[victim.queue]) + TINY:
                return False
        self._taken[victim] += units
        self._taken[victim.queue] += units
        return True


def _suspended(
    rights: Rights, job: Job, limits: Mapping[JobOwner, float], there: Sequence[Job], need: int, only_one: bool
) -> list[Job]:
    """Return one job that suffices, the smallest, else several by priority and size; nothing if they do not."""
    one = min(
        (other for other in there if other.num_gpus >= need),
        key=lambda other: (other.num_gpus, other.priority, other.unsaved_s, other.id),
        default=None,
    )
    if one is not None or only_one:
        return [] if one is None else [one]
    chosen = list[Job]()
    missing = need
    taken: dict[JobOwner | str, float] = defaultdict(float)
    for other in sorted(there, key=lambda other: (other.priority, -other.num_gpus, other.id)):
        owner = rights.owner(other)
        units = rights.units(other, other.num_gpus)
        group = owner if owner.queue == rights.owner(job).queue else owner.queue
        if missing > 0 and taken[group] + units <= limits[owner] + TINY:
            taken[group] += units
            missing -= other.num_gpus
            chosen.append(other)
    return chosen if missing <= 0 else []


def _may_suspend(rights: Rights, job: Job) -> bool:
    ran = job.started_s is None or rights.now - job.started_s >= rights.shares.min_run_s
    cooled = job.cooling_until <= rights.now
    return job.preemption == "any" and ran and cooled and not job.stays


def _most_taken(rights: Rights, job: Job, claim: GpuClaim, victim: JobOwner, below: bool, gpu_type: str) -> float:
    """Return the standard GPUs that may be taken of another owner by suspending its jobs on nodes of this type."""
    claimant = rights.owner(job)
    if victim == claimant:
        return 0.0
    across = victim.queue != claimant.queue
    guaranteed = rights.shares.queue(victim.queue).guaranteed
    if claim.is_sure_on(gpu_type):
        over = rights.over(victim, claimant, claim, gpu_type)
        keeps_guarantee = rights.held(victim.queue) <= guaranteed
        if below and across and over > 0 and claim.is_guaranteed_on(gpu_type) and not keeps_guarantee:
            return math.inf  # one job, which has no smaller count
        return over
    if not rights.has_turn(claimant, victim):
        return 0.0
    if not across:
        return rights.held(victim)
    return min(rights.beyond_any_type(victim.queue), rights.beyond_guarantee(victim.queue, gpu_type))


def _requeue(rights: Rights, victim: Job, job: Job) -> Requeue:
    owner, claimant = rights.owner(victim), rights.owner(job)
    does = f"{victim.id} saves and waits until {job.id} of {rights.name(claimant)} has started."
    sentence = " ".join([does, rights.sentence(claimant), rights.sentence(owner)])
    return Requeue(victim.id, Explanation(SUSPEND, sentence), (job.id,))
