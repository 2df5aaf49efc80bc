"""Finds GPUs for a claim that idle ones and one victim cannot serve: several shrink, or whole jobs are suspended.

Never a job that cannot resume, and none of a queue that would fall below what it is entitled to, but for a guarantee
that no smaller count can serve, and for turns: of owners whose jobs need the whole machine one lets the other go first.
Called by the engine. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from adaptive_scheduler.candidates import gpus, protected_gpus
from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Explanation, Hold, Requeue, Start, Victim
from adaptive_scheduler.models.prediction import t_keep, t_run
from adaptive_scheduler.rights.entitlements import TINY
from adaptive_scheduler.rights.givers import Givers
from adaptive_scheduler.rights.rights import SHARE, GpuClaim, Rights
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, Node

T = TypeVar("T")
RECLAIM = "rights.reclaim"
SUSPEND = "rights.suspend"

MOST_PLACES = 200
"""Nodes among which the one is chosen on which several jobs give least, of many on which as few could give."""


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
        self._givers: Givers | None = None
        self._version = -1  # of the rights, as the givers were read
        self._refused = set[object]()  # requests that were searched for since
        self._gifts: dict[str, tuple[Job, list[_Gift]]] = {}

    def answer(self, table: CostTable, job: Job, answer: Start | Hold) -> tuple[list[Requeue], Start | Hold]:
        """Return the jobs to suspend for a waiting job, and its start or why it waits. `answer`: Algorithm 1's, which
        stays if no right to more binds. `table`: of what the job sees."""
        rights = self._rights
        world = table.snapshot
        if job.uses_cpu or not rights.binds or not rights.could_start(world, job):
            return [], answer
        if isinstance(answer, Start):
            return [], self._with_standings(world, answer)
        claim = rights.claim(job)
        if claim.any and (start := self._once(self._shrink_several, table, job, claim)):
            return [], self._with_standings(world, start)
        stopped = self._suspend(table, job, claim) or []
        standing = rights.sentence(rights.owner(job))
        if stopped:
            rights.promise(job)
            names = " and ".join(one.job for one in stopped)
            have = "has" if len(stopped) == 1 else "have"
            return stopped, Hold(job.id, Explanation(SUSPEND, f"{job.id} waits until {names} {have} saved. {standing}"))
        algorithm = answer.explanation.algorithm if claim.any else SHARE
        sentence = f"{answer.explanation.sentence} {standing}"
        return [], replace(answer, explanation=replace(answer.explanation, algorithm=algorithm, sentence=sentence))

    def _enter(self, table: CostTable) -> Givers:
        givers = self._givers
        if givers is None or givers.world is not table.snapshot or self._version != self._rights.version:
            givers = self._givers = Givers(table, self._rights)
            self._version = self._rights.version
            self._refused = set()
        return givers

    def _once(
        self, search: Callable[[Givers, Job, GpuClaim], T | None], table: CostTable, job: Job, claim: GpuClaim
    ) -> T | None:
        """Return what a search finds, unless it has failed for an equal request in this world."""
        givers = self._enter(table)
        asked = search, self._rights.owner(job), claim, job.optional, job.gpu_type, job.pinned
        if asked in self._refused:
            return None
        if not (found := search(givers, job, claim)):
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

    # several shrink

    def _shrink_several(self, givers: Givers, job: Job, claim: GpuClaim) -> Start | None:
        """Return the start on the smallest count that several jobs of one node give way to; None if none do."""
        rights = self._rights
        claimant = rights.owner(job)
        most = rights.by_job(givers.world, partial(rights.given_to, claimant, claim))
        if not ((most > 0) & (most < math.inf)).any():
            return None
        count = min(job.optional, default=0)
        found: tuple[tuple[int, float, str], Node, list[_Gift]] | None = None
        for looked, place in enumerate(givers.places(job, givers.most_by_shrinking(most))):
            if found is not None and (place.fewest > found[0][0] or looked >= MOST_PLACES):
                break
            gifts = [gift for other in place.jobs for gift in self._gifts_of(givers.world, place.node, other)]
            chosen = _enough(rights, claim, job, gifts, count - place.node.idle)
            if chosen:
                key = len(chosen), math.fsum(gift.costs_s for gift in chosen), place.node.name
                if found is None or key < found[0]:
                    found = key, place.node, chosen
        if found is None:
            return None
        _, node, chosen = found
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

    def _suspend(self, table: CostTable, job: Job, claim: GpuClaim) -> list[Requeue] | None:
        """Return the jobs to suspend, as few as possible on one node, for a job that has waited long enough."""
        rights = self._rights
        if rights.waited_s(job) < rights.shares.patience_s or rights.is_promised(job):
            return None
        return self._once(self._search_suspended, table, job, claim)

    def _search_suspended(self, givers: Givers, job: Job, claim: GpuClaim) -> list[Requeue] | None:
        rights = self._rights
        for below in (False, True) if claim.guaranteed or claim.types else (False,):
            limits = {name: _limits_of_owners(rights, job, claim, below, name) for name in rights.types_told_apart}
            in_order = {name: list(of_type.values()) for name, of_type in limits.items()}
            gives = givers.all_by_suspending(rights.by_job(givers.world, in_order.__getitem__))
            found: tuple[tuple[int, int, str], list[Job]] | None = None
            for place in givers.places(job, gives):
                if found is not None and (place.fewest, place.gpus, place.node.name) > found[0]:
                    break
                if below and place.fewest > 1:
                    break
                need = min(job.optional) - place.node.idle
                of_type = limits[rights.type_told_apart(place.node.gpu_type)]
                chosen = _suspended(rights, job, of_type, place.jobs, need)
                if chosen:
                    key = len(chosen), sum(one.num_gpus for one in chosen), place.node.name
                    if found is None or key < found[0]:
                        found = key, chosen
            if found is not None:
                return [_requeue(rights, one, job) for one in sorted(found[1], key=lambda one: one.id)]
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
        if missing > 0 and gift.job.id not in chosen and budgets.take_gpus(gift.job, gift.gives):
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

    def take_gpus(self, giver: Job, count: int) -> bool:
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
    rights: Rights, job: Job, limits: Mapping[JobOwner, float], there: Sequence[Job], need: int
) -> list[Job]:
    """Return one job that suffices, the smallest, else several by priority and size; nothing if they do not."""
    one = min(
        (other for other in there if other.num_gpus >= need),
        key=lambda other: (other.num_gpus, other.priority, other.unsaved_s, other.id),
        default=None,
    )
    if one is not None:
        return [one]
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


def _limits_of_owners(
    rights: Rights, job: Job, claim: GpuClaim, below: bool, gpu_type: str
) -> Mapping[JobOwner, float]:
    """Return the standard GPUs that may be taken of each owner by suspending its jobs on nodes of this type. `below`:
    also if that takes its queue below its share, for a guarantee."""
    claimant = rights.owner(job)
    if not claim.is_sure_on(gpu_type):
        return {owner: _taken_in_turn(rights, claimant, owner, gpu_type) for owner in rights.who.owners}
    found = dict(zip(rights.who.owners, rights.given_to(claimant, claim, gpu_type), strict=True))
    found[claimant] = 0.0
    for owner in found if below and claim.is_guaranteed_on(gpu_type) else ():
        keeps_guarantee = rights.held(owner.queue) <= rights.shares.queue(owner.queue).guaranteed
        if owner.queue != claimant.queue and found[owner] > 0 and not keeps_guarantee:
            found[owner] = math.inf  # one job, which has no smaller count
    return found


def _taken_in_turn(rights: Rights, claimant: JobOwner, victim: JobOwner, gpu_type: str) -> float:
    """Return the standard GPUs that may be taken of an owner whose turn has ended."""
    if victim == claimant or not rights.has_turn(claimant, victim):
        return 0.0
    if victim.queue == claimant.queue:
        return rights.held(victim)
    return min(rights.beyond_any_type(victim.queue), rights.beyond_guarantee(victim.queue, gpu_type))


def _requeue(rights: Rights, victim: Job, job: Job) -> Requeue:
    owner, claimant = rights.owner(victim), rights.owner(job)
    does = f"{victim.id} saves and waits until {job.id} of {rights.name(claimant)} has started."
    sentence = " ".join([does, rights.sentence(claimant), rights.sentence(owner)])
    return Requeue(victim.id, Explanation(SUSPEND, sentence), (job.id,))
