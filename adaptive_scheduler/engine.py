"""Decides on all jobs of a snapshot: `decide` is the entry point of the scheduler.

Evicts what must leave, then runs the four systems in the precedence of `algorithms.md` 5.4: a later one adapts to the
decisions of earlier ones and never blocks them. Called by the coordinator's loop and by the simulator, so that
forecasts foresee evictions, too. Deterministic: equal snapshots give equal
decisions in every process. Reads no clock; `now` is on the clock of the snapshot's times."""

from __future__ import annotations

from typing import Protocol

from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Decision, Hold, Move, Reshape, Start, check
from adaptive_scheduler.planning.planner import choose_plan
from adaptive_scheduler.policies import (
    cpu,
    deadline,
    default,
    evictions,
    flowcon,
    operator,
    specon,
    targets,
    time_limits,
)
from adaptive_scheduler.policies.elastic import algorithms as elastic
from adaptive_scheduler.queueing.aging import ReservedNodes
from adaptive_scheduler.queueing.order import Queue
from adaptive_scheduler.rights.reclaim import Reclaimer
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.settings import DEFAULTS, Settings
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


def decide(snapshot: ClusterSnapshot, now: float, settings: Settings = DEFAULTS) -> tuple[Decision, ...]:
    """Return all decisions of one tick in the order to carry them out; each job gets at most one operation. A Hold
    gives the reason why a queued job waits or an operator's request is not met. Raises `BrokenDecision` if a policy
    returned what cannot be carried out (a bug)."""
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

    # 1. What must give GPUs up comes first: suspended jobs, and what is on drained nodes and faulty GPUs.
    accept(*(answer for answer in evictions.schedule_evictions(world, now, settings) if answer.job not in ended))
    evicted = tuple(decisions)

    # 2. Operators' requests; jobs that have reached their target finish.
    accept(*operator.schedule_requests(world, now, settings))
    accept(*targets.schedule_finished(world, now, settings))

    # 3. Overdue jobs yield to lighter ones (Slaml, Algorithm 2; X9), of others only what these owe.
    rights = Rights(world, now, settings)
    if "deadline" in settings.systems:
        for answer in deadline.schedule_overdue(world, now, settings, rights.may_yield):
            rights.took(world, answer)
            accept(answer)

    # 4. Queued jobs in the order of rights and of the queue, then idle GPUs to running jobs (SideCar scheduling).
    filled, reserved = _fill(world, now, settings, rights)
    if settings.planner == "rollout" and "elastic" in settings.systems:
        filled = choose_plan(world, now, settings, filled, reserved.any, rights.binds)
    accept(*deadline.with_alerts(world, now, settings, filled))

    # 5. Converged jobs move to less loaded nodes one by one, then nodes are rebalanced (SpeCon).
    if "specon" in settings.systems:
        while accept(*specon.schedule_move(reserved.mark_reserved(world, on_cpu=True), now, settings)):
            pass
        accept(*specon.schedule_rebalance(reserved.mark_reserved(world, on_cpu=True), now, settings))

    # 6. CPU limits last, on the resulting placement (FlowCon).
    if "flowcon" in settings.systems:
        accept(*flowcon.schedule_limits(world, now, settings))

    # 7. Of two reasons to leave a job as it is only the first counts, so that they do not take turns at each tick.
    answered = {decision.job for decision in evicted}
    others = (one for one in decisions[len(evicted) :] if not (isinstance(one, Hold) and one.job in answered))
    decisions = [*evicted, *others]

    # 8. Verify that all decisions can be carried out.
    check(snapshot, decisions, anywhere=settings.placement == "count_only")
    return tuple(decisions)


def _fill(
    world: ClusterSnapshot, now: float, settings: Settings, rights: Rights
) -> tuple[list[Decision], ReservedNodes]:
    """Alternate Algorithms 1 and 2 until neither places a job; return decisions, then Holds, and reserved nodes.
    `rights`: of `world`; they say whose job is next, and what may be taken for it."""
    policy, table = POLICIES["elastic" in settings.systems], CostTable(world, now, settings)
    decisions, held, moved, queue = list[Decision](), list[Hold](), True, Queue(now, settings)
    reclaimer = Reclaimer(rights)

    def accept(decision: Decision) -> None:
        nonlocal world, moved
        decisions.append(decision)
        rights.took(world, decision)
        world = after(world, decision)
        moved = True

    while moved:
        moved, held, reserved, table = False, list[Hold](), ReservedNodes(), table.then(world)

        # Every queued job: one that must wait does not block the next (G14).
        line = rights.line_up(queue.in_order(world))
        for job in line:
            if barred := rights.hold(job):
                held.append(barred)
                continue
            asked = rights.capped(job, line.others_wait(job))
            if job.uses_cpu:
                answer = cpu.schedule_incoming(reserved.mark_reserved(world, on_cpu=True), job, now, settings)
            else:
                seen = rights.seen(table, asked)
                answer = policy.schedule_incoming(table.snapshot, asked, now, settings, seen)
            if isinstance(answer, Hold):
                answer = reserved.backfill(world, asked) or answer
            suspended, answer = reclaimer.answer(table.snapshot, asked, answer)
            for requeued in suspended:
                accept(requeued)
            if isinstance(answer, Start):
                accept(answer)
            else:
                held.append(answer)
                aged = queue.is_aged(world, job) and rights.may_reserve(job)
                if aged or rights.reserves(job):
                    reserved.reserve(world, job)
            table = table.then(reserved.mark_reserved(world))

        # Idle GPUs left go to running jobs, one at a time, while one gains.
        may_grow = settings.reshape_up_with_pending or not held
        for borrows in rights.growth_steps(world, held) if may_grow else ():
            while grown := policy.schedule_running(table.snapshot, now, settings, rights.growing(table, borrows)):
                accept(grown)
                table = table.then(reserved.mark_reserved(world))

        # With fewer idle GPUs a victim may now give exactly what is missing (G3), and a job that yielded may start
        # once the others have: try the queue again.
        moved = moved and bool(world.queue)
    return [*decisions, *held], reserved
