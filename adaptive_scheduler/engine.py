"""Decides on all jobs of a snapshot: `decide` is the entry point of the scheduler.

Evicts what must leave, then runs the four systems in the precedence of `algorithms.md` 5.4: a later one adapts to the
decisions of earlier ones and never blocks them. Called by the coordinator's loop and by the simulator, so that
forecasts foresee evictions, too. Deterministic: equal snapshots give equal
decisions in every process. Reads no clock; `now` is on the clock of the snapshot's times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Decision, Explanation, Hold, Move, Requeue, Reshape, Start, check
from adaptive_scheduler.index import Floats
from adaptive_scheduler.planning.planner import choose_plan
from adaptive_scheduler.policies import (
    cpu,
    deadline,
    default,
    evictions,
    flowcon,
    operator,
    room,
    specon,
    targets,
    time_limits,
)
from adaptive_scheduler.policies.elastic import algorithms as elastic
from adaptive_scheduler.pools import held_by_owner, split_by_pool
from adaptive_scheduler.queueing.aging import KeptNodes
from adaptive_scheduler.queueing.order import Queue
from adaptive_scheduler.reserved_gpus import ReservedGpus
from adaptive_scheduler.rights.reclaim import Reclaimer
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.shares import JobOwner
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from adaptive_scheduler.tentative_snapshot import after


class Policy(Protocol):
    """A GPU allocation policy: places waiting jobs and grows running ones."""

    def schedule_incoming(
        self, snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, table: CostTable | None = None
    ) -> Start | Hold: ...

    def schedule_running(
        self, snapshot: ClusterSnapshot, now: float, settings: Settings, table: CostTable | None = None
    ) -> Reshape | Move | None: ...


POLICIES: dict[bool, Policy] = {True: elastic, False: default}
"""By whether SideCar scheduling (`elastic`) is active."""

MOST_WORK = 1_500_000
"""Jobs and nodes that are gone through for one decision after the other in one tick: about four seconds. Jobs that
still wait then come in the next tick, so that requests, faults and ends of jobs are not kept waiting."""


def decide(snapshot: ClusterSnapshot, now: float, settings: Settings = DEFAULTS) -> tuple[Decision, ...]:
    """Return all decisions of one tick in the order to carry them out; each job gets at most one operation. A Hold
    gives the reason why a queued job waits or an operator's request is not met. Raises `BrokenDecision` if a policy
    returned what cannot be carried out (a bug)."""
    parts = split_by_pool(snapshot)
    return decide_part(parts[0], now, settings) if len(parts) == 1 else _decide_each(snapshot, parts, now, settings)


def is_cut_short(snapshot: ClusterSnapshot, decisions: Sequence[Decision]) -> bool:
    """Return whether these may be all that there was time for in one tick, so that the next one may decide on more."""
    operations = sum(isinstance(decision, Start | Reshape | Move | Requeue) for decision in decisions)
    return operations * (len(snapshot.jobs) + len(snapshot.nodes)) >= MOST_WORK


def _decide_each(
    snapshot: ClusterSnapshot, parts: Sequence[ClusterSnapshot], now: float, settings: Settings
) -> tuple[Decision, ...]:
    """Decide on one part after the other; limits of queues count what all have."""
    before = [held_by_owner(part) for part in parts]
    in_all = sum(before, Counter[JobOwner](snapshot.elsewhere))
    decisions = list[Decision]()
    for part, its in zip(parts, before, strict=True):
        decided = decide_part(part.then(elsewhere=in_all - its), now, settings)
        decisions += decided
        in_all += held_by_owner(after(part, *decided)) - its
    return tuple(decisions)


def decide_part(snapshot: ClusterSnapshot, now: float, settings: Settings) -> tuple[Decision, ...]:
    """Return the decisions of one tick on jobs that share their GPUs: all of a snapshot without pools, or one part."""
    # G12: with weak scaling, lengths are counted in batches of one GPU.
    profiles = snapshot.profiles.scaled(settings.batch_scaling)
    world = snapshot if profiles is snapshot.profiles else snapshot.then(profiles=profiles)
    decisions = list[Decision]()

    def accept(*more: Decision) -> bool:
        nonlocal world
        decisions.extend(more)
        world = after(world, *more)
        return bool(more)

    # 0. What has trained as long as it may ends, whatever else could become of it.
    accept(*time_limits.schedule_ends(world))
    ended = frozenset(decision.job for decision in decisions)

    # 1. What must give GPUs up comes first: suspended jobs, what is on drained nodes and faulty GPUs, and what others
    #    have reserved.
    reservations = ReservedGpus(world, now)
    leaving = evictions.schedule_evictions(world, now, settings, reservations.seen_by)
    accept(*(answer for answer in leaving if answer.job not in ended))
    freed = tuple(room.schedule_room(world, reservations))
    changed = {answer.job for answer in freed if not isinstance(answer, Hold)}
    # A reason to stay that is written beside an operation would be a change that the operation does not expect.
    decisions = [answer for answer in decisions if not (isinstance(answer, Hold) and answer.job in changed)]
    stays = {answer.job for answer in decisions}
    accept(*(answer for answer in freed if not (isinstance(answer, Hold) and answer.job in stays)))
    evicted = tuple(decisions)

    # 2. Operators' requests; jobs that have reached their target finish.
    refuse = _requests_refused(now, settings, reservations)
    accept(*operator.schedule_requests(world, now, settings, reservations.seen_by, refuse))
    accept(*targets.schedule_finished(world, now, settings))

    # 3. Overdue jobs yield to lighter ones (Slaml, Algorithm 2; X9), of others only what these owe.
    rights = Rights(world, now, settings)
    if "deadline" in settings.systems:
        seen = reservations.seen_by(world)

        def may_yield(heavy: Job, light: Job) -> bool:
            keeps = heavy.owner != light.owner and reservations.protects(seen, heavy)
            return not keeps and reservations.hold(seen, light) is None and rights.may_yield(heavy, light)

        for answer in deadline.schedule_overdue(seen, now, settings, may_yield):
            rights.took(world, answer)
            accept(answer)

    world = rights.without_requests(world)

    # 4. Queued jobs in the order of rights and of the queue, then idle GPUs to running jobs (SideCar scheduling).
    filling = _fill(world, now, settings, rights, reservations)
    filled = [*filling.decisions, *filling.held]
    kept = filling.kept
    if settings.planner == "rollout" and "elastic" in settings.systems and filling.has_time:
        keeps = kept.any or bool(reservations.due) or rights.overrules_requests

        def permits(change: Start | Reshape | Move) -> bool:
            return reservations.permits(world, change)

        filled = choose_plan(world, now, settings, filled, keeps, rights.binds, permits)
    accept(*deadline.with_alerts(world, now, settings, filled))

    # 5. Converged jobs move to less loaded nodes one by one, then nodes are rebalanced (SpeCon).
    if "specon" in settings.systems:
        while accept(*specon.schedule_move(kept.mark_kept(world, on_cpu=True), now, settings)):
            pass
        accept(*specon.schedule_rebalance(kept.mark_kept(world, on_cpu=True), now, settings))

    # 6. CPU limits last, on the resulting placement (FlowCon).
    if "flowcon" in settings.systems:
        accept(*flowcon.schedule_limits(world, now, settings))

    # 7. Of two reasons to leave a job as it is only the first counts, so that they do not take turns at each tick.
    answered = {decision.job for decision in evicted}
    others = (one for one in decisions[len(evicted) :] if not (isinstance(one, Hold) and one.job in answered))
    decisions = [*evicted, *others]
    gave = _jobs_that_gave(decisions)
    decisions = [one for one in decisions if not (_is_refused_request(one) and one.job in gave)]

    # 8. Verify that all decisions can be carried out.
    check(snapshot, decisions, anywhere=settings.placement == "count_only")
    return tuple(decisions)


def _jobs_that_gave(decisions: Sequence[Decision]) -> set[str]:
    """Return the jobs of which others get GPUs."""
    shrunk = {victim.job for one in decisions if isinstance(one, Start) for victim in one.victims}
    return shrunk | {one.job for one in decisions if isinstance(one, Requeue)}


def _is_refused_request(decision: Decision) -> bool:
    return isinstance(decision, Hold) and decision.explanation.algorithm == operator.OPERATOR


def _requests_refused(
    now: float, settings: Settings, reservations: ReservedGpus
) -> Callable[[ClusterSnapshot, Job], str]:
    """Return a function that says why a job may not grow to what was requested for it; what its user has reserved it
    may always have."""
    rights: Rights | None = None
    seen: ClusterSnapshot | None = None  # whose rights these are; only requests that are met change the snapshot

    def refuse(world: ClusterSnapshot, job: Job) -> str:
        nonlocal rights, seen
        grows = job.wanted is not None and job.wanted > job.num_gpus
        if not grows or job.owner in reservations.users:
            return ""
        if rights is None or seen is not world:
            rights = Rights(world, now, settings)
            seen = world
        return rights.refuse_request(world, job)

    return refuse


def _fill(
    world: ClusterSnapshot, now: float, settings: Settings, rights: Rights, reservations: ReservedGpus
) -> _Filling:
    """Alternate Algorithms 1 and 2 until neither places a job; return decisions, then Holds, and kept nodes.
    `rights`: of `world`; they say whose job is next, and what may be taken for it. `reservations` say which GPUs only
    some see."""
    filling = _Filling(world, now, settings, rights, reservations)
    moved = True
    while moved and filling.has_time:
        before = len(filling.decisions)
        filling.try_queue()
        if settings.reshape_up_with_pending or not filling.held:
            filling.grow_running()
        # With fewer idle GPUs a victim may now give exactly what is missing (G3), and a job that yielded may start
        # once the others have: try the queue again.
        moved = len(filling.decisions) > before and bool(filling.world.queue)
    return filling


class _Filling:
    """The snapshot of `_fill` after each decision, and what jobs see of it."""

    def __init__(
        self, world: ClusterSnapshot, now: float, settings: Settings, rights: Rights, reservations: ReservedGpus
    ) -> None:
        self.world = world
        self.decisions = list[Decision]()
        self.held = list[Hold]()
        self.kept = KeptNodes()
        self._work_left = MOST_WORK
        self._now = now
        self._settings = settings
        self._rights = rights
        self._reservations = reservations
        self._policy = POLICIES["elastic" in settings.systems]
        self._table = CostTable(world, now, settings)
        self._queue = Queue(now, settings)
        self._reclaimer = Reclaimer(rights)

    @property
    def has_time(self) -> bool:
        """Return whether more can be decided in this tick."""
        return self._work_left > 0

    def try_queue(self) -> None:
        """Start what can start; `held` says why the others wait. One that must wait does not block the next (G14)."""
        held = self.held = list[Hold]()
        self.kept = KeptNodes()
        self._table = self._table.then(self._reservations.seen_by(self.world))
        line = self._rights.line_up(self._queue.in_order(self.world))
        for job in line:
            own = self._reservations.most_spare(self.world, job)
            if barred := self._rights.hold(job, own) or self._reservations.hold(self.world, job):
                held.append(barred)
                continue
            if not self.has_time:
                held.append(_comes_next(job))
                continue
            asked = self._reservations.capped(self.world, self._rights.capped(job, line.others_wait(job), own))
            answer = self._answer(asked)
            if isinstance(answer, Start):
                self._accept(answer)
            else:
                held.append(self._reservations.told(self.world, job, answer))
                aged = self._queue.is_aged(self.world, job) and self._rights.may_keep_node(job)
                if aged or self._rights.keeps_node(job):
                    self.kept.keep(self.world, job)
            self._table = self._look()

    def _answer(self, asked: Job) -> Start | Hold:
        """Return where a waiting job starts, perhaps after others were suspended for its right, or why it waits."""
        self._table = self._look(asked)
        if asked.uses_cpu:
            on_cpu = self.kept.mark_kept(self.world, on_cpu=True)
            answer = cpu.schedule_incoming(on_cpu, asked, self._now, self._settings)
        else:
            seen = self._rights.seen(self._table, asked)
            answer = self._policy.schedule_incoming(self._table.snapshot, asked, self._now, self._settings, seen)
        if isinstance(answer, Hold):
            answer = self.kept.backfill(self._reservations.seen_by(self.world, asked), asked) or answer
        suspended, answer = self._reclaimer.answer(self._table, asked, answer)
        for one in suspended:
            self._accept(one)
        return answer

    def grow_running(self) -> None:
        """Give idle GPUs that are left to running jobs, one job at a time while one gains; those that are reserved to
        their users' jobs."""
        for borrows in self._rights.growth_steps(self.world, self.held):
            while self.has_time and (grown := self._growth_by_right(borrows)):
                self._accept(grown)
                self._table = self._look()
        for user in self._reservations.users:
            while self.has_time and (grown := self._growth_into_own(user)):
                self._accept(grown)
                self._table = self._look()

    def _growth_by_right(self, borrows: bool) -> Reshape | Move | None:
        """Return the next growth within rights, or beyond them into what nobody wants (`borrows`).

        A job that could not give GPUs up in time for a reservation does not grow.
        """
        table = self._look()
        growing = _without_fixed(self._rights.growing(table, borrows), self._reservations)
        return self._policy.schedule_running(table.snapshot, self._now, self._settings, growing)

    def _growth_into_own(self, user: str) -> Reshape | Move | None:
        """Return the next growth of a user's jobs into GPUs that the user has reserved."""
        table = self._look(user=user)
        most = _most_of_own(table.snapshot, self._rights, self._reservations, user)
        if most is None:
            return None
        return self._policy.schedule_running(table.snapshot, self._now, self._settings, table.growing(most))

    def _accept(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self._work_left -= len(self.world.jobs) + len(self.world.nodes)
        self._rights.took(self.world, decision)
        self.world = after(self.world, decision)

    def _look(self, job: Job | None = None, user: str | None = None) -> CostTable:
        """Return the table of what a job sees, any job of a user, or those of all who have reserved nothing."""
        return self._table.then(self.kept.mark_kept(self._reservations.seen_by(self.world, job, user)))


def _comes_next(job: Job) -> Hold:
    sentence = f"{job.id} waits: there are so many jobs and nodes that others alone were decided on now; it comes soon."
    return Hold(job.id, Explanation(elastic.INCOMING, sentence))


def _without_fixed(table: CostTable, reservations: ReservedGpus) -> CostTable:
    """Return the table in which no job grows that would keep what it grows into."""
    fixed = reservations.never_growing(table.snapshot)
    if not fixed:
        return table
    given = table.most_by_right
    most = np.full(len(table.snapshot.jobs), math.inf) if given is None else given.copy()
    most[list(fixed)] = 0.0
    return table.growing(most)


def _most_of_own(world: ClusterSnapshot, rights: Rights, reservations: ReservedGpus, user: str) -> Floats | None:
    """Return by job the GPUs that it may grow to within what this user has reserved; None if none may grow."""
    most = np.array([float(job.num_gpus) for job in world.jobs])
    may_grow = False
    for row, job in enumerate(world.jobs):
        if job.owner == user and job.node is not None and job.num_gpus:
            spare = float(reservations.spare(world, job.node).get(user, 0))
            more = min(spare, rights.limit_left(rights.owner(job))) if rights.binds else spare
            most[row] += max(0.0, more)
            may_grow = may_grow or more > 0
    return most if may_grow else None
