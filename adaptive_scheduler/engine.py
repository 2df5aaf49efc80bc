"""Decides who gets how many GPUs: the one door to the judgement, read from top to bottom.

Called by the coordinator's loop and by the simulator with a frozen snapshot; the same snapshot gives
the same decisions in every process. Reads no clock: `now` is on the clock of the snapshot's times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from adaptive_scheduler.decision import Decision, Hold, Reshape, Start, check, idle_after
from adaptive_scheduler.policies import baselines, elastic
from adaptive_scheduler.policies.operator import schedule_wished
from adaptive_scheduler.prediction import RemainingTimes
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job


class Policy(Protocol):
    """One way to judge: what a waiting job gets, and which running job grows next."""

    def schedule_incoming(
        self, snapshot: ClusterSnapshot, job: Job, now: float, settings: Settings, times: RemainingTimes | None = None
    ) -> Start | Hold: ...

    def schedule_running(self, snapshot: ClusterSnapshot, now: float, settings: Settings) -> Reshape | None: ...


POLICIES: dict[str, Policy] = {"elastic": elastic, "default": baselines}
DEFAULTS = Settings()


def decide(snapshot: ClusterSnapshot, now: float, settings: Settings = DEFAULTS) -> tuple[Decision, ...]:
    """All decisions of one tick, in the order to carry them out; each job gets at most one operation.

    A Hold says why a queued job waits, or an operator's wish. Raises `Broken` where a policy answered
    what cannot be carried out (a bug).
    """
    policy = POLICIES[settings.policy]

    # 1. What an operator wished comes first (5.4).
    decisions: list[Decision] = [*schedule_wished(snapshot, now, settings)]
    world = after(snapshot, *decisions)

    moved = True
    while moved:
        moved, held, times = False, list[Hold](), RemainingTimes.of(world)

        # 2. Every queued job, oldest first; one that must wait does not hold up the next (G14).
        for job in world.queue:
            answer = policy.schedule_incoming(world, job, now, settings, times)
            if isinstance(answer, Hold):
                held.append(answer)
                continue
            decisions.append(answer)
            world, moved = after(world, answer), True
            times = RemainingTimes.of(world)

        # 3. What is still idle goes to running jobs, one at a time, while somebody gains.
        may_grow = settings.reshape_up_with_pending or not held
        while may_grow and (grown := policy.schedule_running(world, now, settings)):
            decisions.append(grown)
            world, moved = after(world, grown), True

        # 4. With fewer idle GPUs a running job may give exactly what is missing (G3): ask again who waits.
        moved = moved and bool(held)

    # 5. Nothing leaves here that cannot be carried out.
    decisions += held
    check(snapshot, decisions)
    return tuple(decisions)


def after(snapshot: ClusterSnapshot, *decisions: Decision) -> ClusterSnapshot:
    """The snapshot once the decisions are accepted: GPUs promised, the jobs under an operation.

    GPUs that a job is still to let go are not idle yet.
    """
    for decision in decisions:
        if not isinstance(decision, Hold):
            snapshot = _after_one(snapshot, decision)
    return snapshot


def _after_one(snapshot: ClusterSnapshot, decision: Start | Reshape) -> ClusterSnapshot:
    job, node = snapshot.job[decision.job], snapshot.node[decision.node]
    changed = {job.id: replace(job, node=node.name, num_gpus=decision.num_gpus, leased=True)}
    taken = decision.num_gpus
    if isinstance(decision, Start):
        changed[job.id] = replace(changed[job.id], state="initializing")
        if decision.victim is not None and decision.victim_num_gpus is not None:
            victim = snapshot.job[decision.victim]
            changed[victim.id] = replace(victim, num_gpus=decision.victim_num_gpus, leased=True)
    else:
        taken = max(0, decision.num_gpus - job.num_gpus)
    fuller = idle_after(node, min(node.idle, taken))
    return replace(
        snapshot,
        nodes=tuple(fuller if n is node else n for n in snapshot.nodes),
        jobs=tuple(changed.get(j.id, j) for j in snapshot.jobs),
    )
