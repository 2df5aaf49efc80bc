"""Proposes a plan from the work that each node can do soon: a knapsack over its GPUs (`algorithms.md` 1.12; ours).

Per node the jobs on it, the first waiting ones, and where none waits jobs of other nodes compete for its GPUs. Each
count is worth the weighted work that the job does within a short horizon, less what it loses by the change. Its numbers
only propose: the planner takes the plan where what follows it is better. Called by `planner.py`. Pure."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Collection
from itertools import islice
from typing import NamedTuple

from adaptive_scheduler.planning.fluid import Budget, PlannedChange, PlannedGift
from adaptive_scheduler.planning.planned_jobs import PlannedCluster, PlannedJob

WAITING = 24
"""Only so many waiting jobs, the most urgent first, compete for the GPUs of one node."""
MOVERS = 40
"""Only so many jobs of other nodes do."""
EARLY = 0.05
"""The first waiting job counts by this share more than the last one."""
LATE = 4.0
"""A late job counts so many times as much."""
WEIGHT_EXPONENT = 0.5
"""Of the weights by which short jobs come first: 1 as heSRPT has them, 0 all alike."""
HORIZON = 0.3
"""Of the median of the jobs' fastest runs; at least four standstills long."""
LEAST_EXPONENT = 0.3
"""Lower bound of the exponent p with which speed grows with the GPU count, where heSRPT's weights can be computed."""
LARGEST_EXPONENT = 0.95
"""Upper bound of it."""


class Share(NamedTuple):
    """GPUs of the node for one job."""

    job: int
    num_gpus: int


class NodePlan(NamedTuple):
    """One use of a node's GPUs, and how much more it is worth than the present one."""

    gain: float
    shares: tuple[Share, ...]


def knapsack_plan(cluster: PlannedCluster, may_start: Collection[int], budget: Budget) -> list[PlannedChange]:
    """Return the changes of the nodes with the largest gain first; each job has a part in one of them only."""
    return _KnapsackSearch(cluster, may_start, budget).propose_changes() if cluster.jobs else []


class _KnapsackSearch:
    def __init__(self, cluster: PlannedCluster, may_start: Collection[int], budget: Budget) -> None:
        self.cluster = cluster
        self.jobs = cluster.jobs
        self.budget = budget
        self.weights = _weigh_jobs(self.jobs)
        standstill_s = max((one.reshape_s for one in self.jobs), default=0.0)
        median_s = statistics.median(one.fastest_s for one in self.jobs)
        self.horizon_s = max(4 * standstill_s, HORIZON * median_s)
        waiting = [job for job, one in enumerate(self.jobs) if one.waits and job in may_start]
        waiting.sort(key=self._urgency)
        self.waiting = waiting
        self.bonus = {job: 1 + EARLY * (1 - place / len(waiting)) for place, job in enumerate(waiting)}
        self.used = set[int]()
        changeable = [
            job for job, one in enumerate(self.jobs) if not one.waits and one.changes_at_s <= 0 and one.trains_at_s <= 0
        ]
        self.on_host: list[list[int]] = [[] for _ in cluster.names]
        for job in changeable:
            self.on_host[self.jobs[job].host].append(job)

    def _urgency(self, job: int) -> tuple[bool, float, str]:
        one = self.jobs[job]
        return (not one.late, one.size_gpu_s / one.weight, one.job.id)

    def propose_changes(self) -> list[PlannedChange]:
        """Return the changes node by node. A plan whose jobs another node has taken is made anew only once its turn
        comes: without them it can hardly be worth more."""
        changes = list[PlannedChange]()
        plans = dict[int, NodePlan]()
        best_first = list[tuple[float, int]]()

        def make_plan(host: int) -> None:
            plan = self._fill_node(host)
            if plan is not None:
                plans[host] = plan
                heapq.heappush(best_first, (-plan.gain, host))

        for host, is_open in enumerate(self.cluster.is_open):
            if is_open:
                make_plan(host)
        while best_first:
            _, host = heapq.heappop(best_first)
            jobs = {share.job for share in plans[host].shares}
            if jobs & self.used:
                make_plan(host)
                continue
            self.used |= jobs
            changes += self._changes_for_shares(host, plans[host].shares)
        return changes

    def _fill_node(self, host: int) -> NodePlan | None:
        """Return the best use of the node's GPUs; None if that is the present one."""
        mine = [job for job in self.on_host[host] if job not in self.used]
        newcomers = list(islice((job for job in self.waiting if self._may_still_come(job, host)), WAITING))
        idle = self.cluster.idle[host]
        if not newcomers and not idle:
            return None
        others = newcomers or (self._jobs_to_move(host) if self.cluster.moves else [])
        size = idle + sum(self.jobs[job].num_gpus for job in mine)
        kind = self.cluster.kinds[host]
        # By GPUs used: the largest worth, and who gets how many for it.
        best: list[tuple[float, tuple[Share, ...]] | None] = [(0.0, ())] * (size + 1)
        for job in mine:
            counts = {*self.jobs[job].counts[kind], self.jobs[job].num_gpus}
            options = [(count, self._worth_of_share(job, host, count)) for count in sorted(counts)]
            best = self._with_job(best, job, options, is_needed=True)
        for job in others:
            here = (
                0.0 if self.jobs[job].waits else self._worth_of_share(job, self.jobs[job].host, self.jobs[job].num_gpus)
            )
            options = [(count, self._worth_of_share(job, host, count) - here) for count in self.jobs[job].counts[kind]]
            best = self._with_job(best, job, [option for option in options if option[1] > 0], is_needed=False)
        found = best[size]
        if found is None:
            return None
        worth, shares = found
        gain = worth - sum(self._worth_of_share(job, host, self.jobs[job].num_gpus) for job in mine)
        changed = tuple(
            share
            for share in shares
            if self.jobs[share.job].host != host or self.jobs[share.job].num_gpus != share.num_gpus
        )
        return NodePlan(gain, changed) if changed and gain > 0 else None

    def _with_job(
        self,
        best: list[tuple[float, tuple[Share, ...]] | None],
        job: int,
        options: list[tuple[int, float]],
        is_needed: bool,
    ) -> list[tuple[float, tuple[Share, ...]] | None]:
        """Return the table with one more job, which gets one of its counts, or none if it is not needed here."""
        self.budget.spend(len(best) * len(options))
        later = list[tuple[float, tuple[Share, ...]] | None]()
        for used, present in enumerate(best):
            found = None if is_needed else present
            for count, worth in options:
                before = best[used - count] if count <= used else None
                if before is not None and (found is None or before[0] + worth > found[0]):
                    found = before[0] + worth, (*before[1], Share(job, count))
            later.append(found)
        return later

    def _may_still_come(self, job: int, host: int) -> bool:
        return job not in self.used and self.cluster.may_be_on(job, host)

    def _jobs_to_move(self, host: int) -> list[int]:
        elsewhere = (job for other, jobs in enumerate(self.on_host) if other != host for job in jobs)
        may_move = [job for job in elsewhere if job not in self.used and self.jobs[job].job.pinned is None]
        return may_move[:MOVERS]

    def _worth_of_share(self, job: int, host: int, count: int) -> float:
        """Return the work that the job does with so many GPUs there within the horizon, weighted, of its whole work."""
        one = self.jobs[job]
        present = host == one.host and count == one.num_gpus
        whole_s = one.here_s if present else one.seconds[self.cluster.kinds[host]].get(count, math.inf)
        weight = self.weights[job] * (LATE if one.late else 1.0) * self.bonus.get(job, 1.0)
        trains_s = self.horizon_s if one.waits else min(self.horizon_s, one.here_s)
        if one.waits:
            trains_s -= one.begin_s
        elif not present:
            trains_s -= one.standstill_s(host)
        return weight * one.size_gpu_s / whole_s * trains_s

    def _changes_for_shares(self, host: int, shares: tuple[Share, ...]) -> list[PlannedChange]:
        """Return the operations that give the shares: newcomers first, the largest count first; then growth and moves.

        A victim gives to one newcomer. Shares that neither idle GPUs nor gifts suffice for are left out, and so are
        gifts that nobody takes.
        """
        changes = list[PlannedChange]()
        kind = self.cluster.kinds[host]
        idle = self.cluster.idle[host]
        gifts = {
            share.job: share.num_gpus
            for share in shares
            if self.jobs[share.job].host == host and share.num_gpus < self.jobs[share.job].num_gpus
        }
        newcomers = [share for share in shares if self.jobs[share.job].waits]
        for job, count in sorted(newcomers, key=lambda share: (-share.num_gpus, share.job)):
            taken = self._gifts_for(count - idle, gifts)
            if taken is None:
                continue
            given = sum(self.jobs[gift.victim].num_gpus - gift.keeps for gift in taken)
            idle -= max(0, count - given)
            for gift in taken:
                del gifts[gift.victim]
            changes.append(PlannedChange(job, host, count, taken))
        for job, count in shares:
            one = self.jobs[job]
            more = count - one.num_gpus if one.host == host else count
            if one.waits or not 0 < more <= idle:
                continue
            if one.gains_enough(one.seconds[kind][count], host):
                idle -= more
                changes.append(PlannedChange(job, host, count))
        return changes

    def _gifts_for(self, missing: int, gifts: dict[int, int]) -> tuple[PlannedGift, ...] | None:
        """Return gifts that suffice: first one that does alone, with least surplus, else the largest. None: too few."""
        given = {victim: self.jobs[victim].num_gpus - keeps for victim, keeps in gifts.items()}
        taken = list[PlannedGift]()
        while missing > 0 and given:
            victim = min(given, key=lambda one: (given[one] < missing, abs(given[one] - missing), one))
            missing -= given.pop(victim)
            taken.append(PlannedGift(victim, gifts[victim]))
        return tuple(taken) if missing <= 0 else None


def _weigh_jobs(jobs: tuple[PlannedJob, ...]) -> list[float]:
    """Return by job a weight: that of heSRPT (Berg et al. 2020), which is larger for less work and at most 1, with a
    softened exponent, times the job's own.

    Optimal for the mean completion time if all jobs' speed grows with count^p; p is the mean of what is known here.
    """
    exponents = list[float]()
    for one in jobs:
        speed_ups = [(max(row.values()) / min(row.values()), max(row) / min(row)) for row in one.seconds if row]
        speed_up, count = max(speed_ups)
        if speed_up > 1 and count > 1:
            exponents.append(math.log(speed_up) / math.log(count))
    mean = statistics.fmean(exponents) if exponents else 0.5
    exponent = min(LARGEST_EXPONENT, max(LEAST_EXPONENT, mean))
    power = 1 / (1 - exponent)
    by_size = sorted(
        range(len(jobs)),
        key=lambda job: (-jobs[job].size_gpu_s / jobs[job].weight, jobs[job].job.submit_s, jobs[job].job.id),
    )
    weights = [0.0] * len(jobs)
    for rank, job in enumerate(by_size, 1):
        share = (rank / len(jobs)) ** power - ((rank - 1) / len(jobs)) ** power
        weights[job] = share ** (1 - exponent)
    largest = max(weights)
    return [one.weight * (weight / largest) ** WEIGHT_EXPONENT for one, weight in zip(jobs, weights, strict=True)]
