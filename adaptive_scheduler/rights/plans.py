"""Tells whether a whole plan is one that rights allow. Called by the planner. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from adaptive_scheduler.decision import Decision, Move, Reshape, Start
from adaptive_scheduler.rights.entitlements import TINY
from adaptive_scheduler.rights.reclaim import Budgets
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job


def keeps_priorities(
    snapshot: ClusterSnapshot, plan: Sequence[Start | Reshape | Move], papers: Sequence[Decision]
) -> bool:
    """Return whether a plan starts no job before another one of its owner that has a higher priority, and that the
    paper's rules start. `papers`: those rules' decisions."""
    started = {one.job for one in plan if isinstance(one, Start)}
    passed_over = [snapshot.job[one.job] for one in papers if isinstance(one, Start) and one.job not in started]
    owner_of = snapshot.shares.owner_of
    highest: dict[JobOwner, int] = {}
    for job in passed_over:
        owner = owner_of(job.queue, job.owner)
        highest[owner] = max(highest.get(owner, job.priority), job.priority)
    for job in map(snapshot.job.__getitem__, started):
        owner = owner_of(job.queue, job.owner)
        if owner in highest and job.priority < highest[owner]:
            return False
    return True


def keeps_rights(
    rights: Rights, snapshot: ClusterSnapshot, plan: Sequence[Start | Reshape | Move], papers: Sequence[Decision]
) -> bool:
    """Return whether a plan takes of others only what claims may, keeps the limits, and leaves no claim unserved that
    the paper's rules serve. `rights`: of `snapshot`; they are used up. `papers`: those rules' decisions."""
    started = {one.job for one in plan if isinstance(one, Start)}
    missed = [snapshot.job[one.job] for one in papers if isinstance(one, Start) and one.job not in started]
    claims = {rights.owner(job) for job in missed if rights.claim(job).any}
    # An owner's other job serves the claim as well, if the owner gets as many GPUs by it.
    if claims and not claims.issubset(_owners_with_as_much(rights, snapshot, plan, papers)):
        return False
    waits = any(job.id not in started and not job.uses_cpu for job in snapshot.queue)
    for one in plan:
        job = snapshot.job[one.job]
        may = (
            _may_start(rights, snapshot, one, job, waits)
            if isinstance(one, Start)
            else _may_grow(rights, one, job, waits)
        )
        if not may:
            return False
        rights.took(snapshot, one)
    return True


def _owners_with_as_much(
    rights: Rights, snapshot: ClusterSnapshot, plan: Sequence[Decision], papers: Sequence[Decision]
) -> set[JobOwner]:
    """Return the owners whose jobs start on at least as much in the plan as by the paper's rules."""
    more = defaultdict[JobOwner, float](float)
    for decisions, sign in ((plan, 1), (papers, -1)):
        for one in decisions:
            if isinstance(one, Start):
                job = snapshot.job[one.job]
                more[rights.owner(job)] += sign * rights.units(job, one.num_gpus)
    return {owner for owner, units in more.items() if units >= -TINY}


def _may_start(rights: Rights, snapshot: ClusterSnapshot, start: Start, job: Job, waits: bool) -> bool:
    if rights.hold(job) or start.num_gpus not in rights.capped(job, waits).optional:
        return False
    budgets = Budgets(rights, rights.owner(job), rights.claim(job))
    for victim in start.victims:
        giver = snapshot.job[victim.job]
        own = rights.owner(giver) == rights.owner(job)
        if giver.preemption == "never" and not own:
            return False
        if not budgets.take_gpus(giver, giver.num_gpus - victim.num_gpus):
            return False
    return True


def _may_grow(rights: Rights, change: Reshape | Move, job: Job, waits: bool) -> bool:
    more = change.num_gpus - job.num_gpus
    owner = rights.owner(job)
    if more <= 0:
        return True
    within = not waits or rights.units(job, more) <= rights.room(owner) + TINY
    return within and more <= rights.limit_left(owner)
