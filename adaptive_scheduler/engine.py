"""Decides who gets what: the one door to the judgement, read from top to bottom.

The four seed systems in the precedence of `algorithms.md` 5.4: a later one adapts to what the earlier
ones decided and never blocks them. Called by the coordinator's loop and by the simulator with a frozen
snapshot; the same snapshot gives the same decisions in every process. Reads no clock: `now` is on the
clock of the snapshot's times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Decision, Hold, Move, Reshape, Start, check
from adaptive_scheduler.policies import cpu, deadline, default, flowcon, operator, specon, targets
from adaptive_scheduler.policies.elastic import algorithms as elastic
from adaptive_scheduler.queueing.aging import ReservedNodes
from adaptive_scheduler.queueing.order import Queue
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job
from adaptive_scheduler.tentative_snapshot import after


class Policy(Protocol):
    """One way to give out GPUs: what a waiting job gets, and which running job grows next."""

    def schedule_incoming(
        self, snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, table: CostTable | None = None
    ) -> Start | Hold: ...

    def schedule_running(
        self, snapshot: ClusterSnapshot, now: float, settings: Settings, table: CostTable | None = None
    ) -> Reshape | Move | None: ...


POLICIES: dict[bool, Policy] = {True: elastic, False: default}
"""By whether seed 004 may act."""


def decide(snapshot: ClusterSnapshot, now: float, settings: Settings = DEFAULTS) -> tuple[Decision, ...]:
    """All decisions of one tick, in the order to carry them out; each job gets at most one operation.

    A Hold says why a queued job waits, or an operator's wish. Raises `Broken` where a policy answered
    what cannot be carried out (a bug).
    """
    # G12: from here on lengths are in batches of one GPU, where each GPU has a batch of its own.
    world = replace(snapshot, profiles=snapshot.profiles.scaled(settings.batch_scaling))
    decisions = list[Decision]()

    def accept(*more: Decision) -> bool:
        nonlocal world
        decisions.extend(more)
        world = after(world, *more)
        return bool(more)

    # 1. What an operator wished comes first; jobs end that have reached their target.
    accept(*operator.schedule_wished(world, now, settings))
    accept(*targets.schedule_finished(world, now, settings))

    # 2. Overdue jobs give way to lighter ones (seed 003, Algorithm 2; X9).
    if "deadline" in settings.systems:
        accept(*deadline.schedule_overdue(world, now, settings))

    # 3. Queued jobs, in the order of their setting, then idle GPUs to running jobs (seed 004).
    filled, kept = _fill(world, now, settings)
    accept(*deadline.with_alerts(world, now, settings, filled))

    # 4. Converged jobs go where they disturb less, one after the other, then nodes even out (seeds 000, 002).
    if "specon" in settings.systems:
        while accept(*specon.schedule_move(kept.hidden(world, on_cpu=True), now, settings)):
            pass
        accept(*specon.schedule_rebalance(kept.hidden(world, on_cpu=True), now, settings))

    # 5. CPU limits last, from what has come of all that (seed 001).
    if "flowcon" in settings.systems:
        accept(*flowcon.schedule_limits(world, now, settings))

    # 6. Nothing leaves here that cannot be carried out.
    check(snapshot, decisions, anywhere=settings.placement == "count_only")
    return tuple(decisions)


def _fill(world: ClusterSnapshot, now: float, settings: Settings) -> tuple[list[Decision], ReservedNodes]:
    """Algorithms 1 and 2 until neither has an answer, then why the others wait; and what is kept for some of them."""
    policy, table = POLICIES["elastic" in settings.systems], CostTable(world, now, settings)
    decisions, held, moved, queue = list[Decision](), list[Hold](), True, Queue(now, settings)
    while moved:
        moved, held, kept, table = False, list[Hold](), ReservedNodes(), table.then(world)

        # Every queued job; one that must wait does not hold up the next (G14).
        for job in queue.in_order(world):
            chosen, seen = (cpu, kept.hidden(world, on_cpu=True)) if job.uses_cpu else (policy, table.snapshot)
            answer = chosen.schedule_incoming(seen, job, now, settings, table)
            if isinstance(answer, Hold):
                answer = kept.lent(world, job) or answer
            if isinstance(answer, Start):
                decisions.append(answer)
                world, moved = after(world, answer), True
            else:
                held.append(answer)
                if not (queue.is_aged(world, job) and kept.keep(world, job)):
                    continue
            table = table.then(kept.hidden(world))

        # What is still idle goes to running jobs, one at a time, while somebody gains.
        may_grow = settings.reshape_up_with_pending or not held
        while may_grow and (grown := policy.schedule_running(table.snapshot, now, settings, table)):
            decisions.append(grown)
            world, moved = after(world, grown), True
            table = table.then(kept.hidden(world))

        # With fewer idle GPUs a running job may give exactly what is missing (G3), and whoever let others go first may
        # start once they have: ask again who waits.
        moved = moved and bool(world.queue)
    return [*decisions, *held], kept
