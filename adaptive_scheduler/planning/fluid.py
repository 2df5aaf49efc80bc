"""Simulates how a plan goes on: the fluid policy, which acts at each end of a job until all known jobs have ended.

Speeds and lengths are as predicted, no further job arrives, and each operation costs its standstill. It starts waiting
jobs, on idle GPUs or those of a longer job, lets running ones grow, and moves them, shortest first or late ones first.
The planner (`algorithms.md` 1.12) compares plans by what follows them, and offers this policy's first action as a plan.
Called by `planner.py`. Pure and deterministic: the number of placements that it looks at bounds it, not a clock,
so that the simulator decides as the coordinator does."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import NamedTuple

from adaptive_scheduler.planning.planned_jobs import PlannedCluster

SAME_MOMENT_S = 1e-9
LATE_FIRST = 1e6
"""Seconds of gain that a late job's growth counts more than another's, where late ones go first."""


class TooMuchToLookAt(Exception):
    """The budget of a decision is used up."""


class Budget:
    """Counts the placements that one decision may still look at."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def spend(self, looks: int) -> None:
        """Take so many; raises `TooMuchToLookAt` if none are left."""
        self.looks -= looks
        if self.looks < 0:
            raise TooMuchToLookAt


class Place(NamedTuple):
    """The place of a job; `host` -1: it waits. Seconds from now until it trains, and until it may be changed."""

    host: int
    num_gpus: int
    trains_at_s: float
    changes_at_s: float


class PlannedGift(NamedTuple):
    """A running job that gives GPUs of its host to a newcomer, and the count that it keeps."""

    victim: int
    keeps: int


class PlannedChange(NamedTuple):
    """One operation: the job gets `num_gpus` on `host`, some of them perhaps from victims there."""

    job: int
    host: int
    num_gpus: int
    gifts: tuple[PlannedGift, ...] = ()


class PlanOutcome(NamedTuple):
    """Sum of all completion times since submission, and the last end from now; infinite if some job never starts."""

    sum_s: float
    last_s: float

    def objective(self, makespan_weight: float) -> float:
        """Return ln SUM + `makespan_weight` ln LAST; less is better.

        With 1, one per cent of mean completion time counts as one per cent of makespan.
        """
        return math.log(max(self.sum_s, SAME_MOMENT_S)) + makespan_weight * math.log(max(self.last_s, SAME_MOMENT_S))


NEVER = PlanOutcome(math.inf, math.inf)


def present_places(cluster: PlannedCluster) -> list[Place]:
    """Return where each job is now."""
    return [Place(one.host, one.num_gpus, one.trains_at_s, one.changes_at_s) for one in cluster.jobs]


class FluidPolicy:
    """One simulation from `places`. Use it once: `first_action` or `run`."""

    def __init__(self, cluster: PlannedCluster, places: Sequence[Place], late_first: bool, budget: Budget) -> None:
        self.cluster = cluster
        self.jobs = cluster.jobs
        self.late_first = late_first
        self.budget = budget
        self.now_s = 0.0
        self.hosts = range(len(cluster.names))
        self.open_hosts = [host for host in self.hosts if cluster.is_open[host]]
        self.host = [place.host for place in places]
        self.num_gpus = [place.num_gpus for place in places]
        self.trains_at_s = [place.trains_at_s for place in places]
        self.changes_at_s = [place.changes_at_s for place in places]
        self.fraction_left = [1.0] * len(places)
        self.counted_at_s = [0.0] * len(places)
        self.version = [0] * len(places)
        self.on_host: list[list[int]] = [[] for _ in self.hosts]
        self.whole_s = [
            self._whole_s(job, place.host, place.num_gpus) if place.host >= 0 else math.inf
            for job, place in enumerate(places)
        ]
        for job, place in enumerate(places):
            if place.host >= 0:
                self.on_host[place.host].append(job)
        self.free = [
            max(0, cluster.gpus[host] - sum(self.num_gpus[job] for job in self.on_host[host]))
            if cluster.is_open[host]
            else 0
            for host in self.hosts
        ]
        self.queue = sorted((self._queue_key(job), job) for job, place in enumerate(places) if place.host < 0)
        heapq.heapify(self.queue)
        self.ends: list[tuple[float, int, int]] = []  # (moment, job, version); version -1: the policy is only asked
        # Of the first action, in which GPUs that are released are not free before it is carried out.
        self.changes: list[PlannedChange] | None = None

    def first_action(self, may_start: Collection[int]) -> list[PlannedChange]:
        """Return what the policy does now. Of the waiting jobs only `may_start` are looked at. GPUs that a victim or a
        move will release are not given to anybody yet."""
        self.changes = []
        self.queue = [(key, job) for key, job in self.queue if job in may_start]
        heapq.heapify(self.queue)
        self.free = [min(idle, free) for idle, free in zip(self.cluster.idle, self.free, strict=True)]
        self._act_now()
        return self.changes

    def run(self) -> PlanOutcome:
        """Continue to the end of all jobs. The policy acts first when a job or an operation ends: if it acted at once,
        a plan that does nothing would look as good as one that acts, and be put off for ever."""
        for job, host in enumerate(self.host):
            if host >= 0:
                self._push_end(job)
                if self.trains_at_s[job] > 0:
                    heapq.heappush(self.ends, (self.trains_at_s[job], job, -1))
        if not self.ends and self.queue:
            self.ends.append((min(self.jobs[job].start_s for _, job in self.queue), -1, -1))
        ended = 0
        sum_s = 0.0
        while self.ends:
            moment_s, job, version = heapq.heappop(self.ends)
            if version >= 0 and version != self.version[job]:
                continue  # it was changed since
            self.now_s = moment_s
            if version >= 0:
                ended += 1
                sum_s += moment_s + self.jobs[job].age_s
                self._leave_host(job)
                self.version[job] += 1
            self._act_now()
        return PlanOutcome(sum_s, self.now_s) if ended == len(self.jobs) else NEVER

    def _act_now(self) -> None:
        self._start_waiting()
        for host in self.open_hosts:
            if self.free[host] > 0:
                self._grow_on(host)
        if self.cluster.moves and not self.queue:
            for host in self.open_hosts:
                if self.free[host] > 0:
                    self._move_to(host)

    # Waiting jobs.

    def _queue_key(self, job: int) -> tuple[bool, float, str]:
        one = self.jobs[job]
        return (not (self.late_first and one.late), one.least_gpu_s, one.job.id)

    def _start_waiting(self) -> None:
        while self.queue:
            job = self.queue[0][1]
            if self._start_on_free(job) or self._start_with_victim(job) or self._start_with_victims(job):
                heapq.heappop(self.queue)
            else:
                return

    def _start_on_free(self, job: int) -> bool:
        """Start the job where it is fastest on its share of the free GPUs."""
        one = self.jobs[job]
        best = None
        waiting_per_host = -(-len(self.queue) // max(1, len(self.open_hosts)))
        self.budget.spend(len(self.open_hosts))
        for host in self.open_hosts:
            free = self.free[host]
            if free <= 0 or not self.cluster.may_be_on(job, host):
                continue
            counts = one.counts[self.cluster.kinds[host]]
            share = max(1, self.cluster.gpus[host] // (len(self.on_host[host]) + waiting_per_host))
            if self.late_first and one.late:
                share = self.cluster.gpus[host]
            count = _largest_within(counts, min(share, free)) or _smallest_within(counts, free)
            if count:
                took_s = one.seconds[self.cluster.kinds[host]][count]
                if best is None or took_s < best[0]:
                    best = took_s, host, count
        if best is None:
            return False
        _, host, count = best
        self.free[host] -= count
        self._put_on_host(job, host, count, one.start_s)
        self._note_change(PlannedChange(job, host, count))
        return True

    def _start_with_victim(self, job: int) -> bool:
        """Shrink the job that loses least, if it lasts longer than the newcomer would."""
        one = self.jobs[job]
        best = None
        for host in self.open_hosts:
            if not self.cluster.may_be_on(job, host):
                continue
            kind = self.cluster.kinds[host]
            self.budget.spend(len(self.on_host[host]))
            for victim in self.on_host[host]:
                if not self._may_give(victim):
                    continue
                has = self.num_gpus[victim]
                keeps = _largest_within(self.jobs[victim].counts[kind], has - 1)
                count = keeps and _largest_within(one.counts[kind], self.free[host] + has - keeps)
                if not count:
                    continue
                if self.fraction_left[job] * one.seconds[kind][count] + one.start_s > self._left_s(victim):
                    continue
                loss_s = self._loss_s(victim, keeps)
                if best is None or (loss_s, victim) < best[:2]:
                    best = loss_s, victim, host, keeps, count
        if best is None:
            return False
        _, victim, host, keeps, count = best
        self._take_from_victims(PlannedChange(job, host, count, (PlannedGift(victim, keeps),)))
        return True

    def _start_with_victims(self, job: int) -> bool:
        """Start the job on its smallest count where several victims together lose least, if each lasts longer."""
        one = self.jobs[job]
        best = None
        for host in self.open_hosts:
            if not self.cluster.may_be_on(job, host):
                continue
            counts = one.counts[self.cluster.kinds[host]]
            if counts[0] > self.cluster.gpus[host]:
                continue
            ends_s = self.fraction_left[job] * one.seconds[self.cluster.kinds[host]][counts[0]] + one.start_s
            found = self._least_loss(host, counts[0] - self.free[host], ends_s)
            if found is not None and (best is None or found[0] < best[0]):
                best = found[0], PlannedChange(job, host, counts[0], found[1])
        if best is None:
            return False
        self._take_from_victims(best[1])
        return True

    def _least_loss(self, host: int, missing: int, ends_s: float) -> tuple[float, tuple[PlannedGift, ...]] | None:
        """Return victims that give `missing` GPUs of the host together, and the seconds that all of them lose.

        The one that loses least per GPU takes its next smaller count, until the GPUs suffice; those whose gift turns
        out not to be needed keep it, the largest loss first. `ends_s`: a victim must last longer than that.
        """
        kind = self.cluster.kinds[host]
        # By victim: its loss, and what it keeps.
        gifts = dict[int, tuple[float, int]]()
        while missing > 0:
            best = None
            self.budget.spend(len(self.on_host[host]))
            for victim in self.on_host[host]:
                lost_s, has = gifts.get(victim, (0.0, self.num_gpus[victim]))
                keeps = _largest_within(self.jobs[victim].counts[kind], has - 1)
                if not keeps or not self._may_give(victim) or ends_s > self._left_s(victim):
                    continue
                loss_s = self._loss_s(victim, keeps)
                score = (loss_s - lost_s) / (has - keeps), victim
                if best is None or score < best[0]:
                    best = score, victim, loss_s, keeps, has - keeps
            if best is None:
                return None
            _, victim, loss_s, keeps, given = best
            gifts[victim] = loss_s, keeps
            missing -= given
        for victim, (_, keeps) in sorted(gifts.items(), key=lambda gift: (-gift[1][0], gift[0])):
            given = self.num_gpus[victim] - keeps
            if given <= -missing:
                del gifts[victim]
                missing += given
        total_s = sum(loss_s for loss_s, _ in gifts.values())
        return total_s, tuple(PlannedGift(victim, keeps) for victim, (_, keeps) in sorted(gifts.items()))

    def _may_give(self, victim: int) -> bool:
        return not self._must_not_change(victim) and not (self.late_first and self.jobs[victim].late)

    def _left_s(self, job: int) -> float:
        """Return the seconds that a running job still trains as it is placed now."""
        return self._fraction_left_now(job) * self.whole_s[job]

    def _loss_s(self, victim: int, keeps: int) -> float:
        """Return the seconds by which a job ends later with fewer GPUs of its host."""
        one = self.jobs[victim]
        kept_s = self._fraction_left_now(victim) * one.seconds[self.cluster.kinds[self.host[victim]]][keeps]
        return kept_s - self._left_s(victim) + one.reshape_s

    def _take_from_victims(self, change: PlannedChange) -> None:
        """Start the newcomer of `change` on its victims' GPUs and free ones."""
        given = 0
        for victim, keeps in change.gifts:
            given += self.num_gpus[victim] - keeps
            self._change_place(victim, change.host, keeps, self.jobs[victim].reshape_s)
        if self.changes is None:
            self.free[change.host] += given - change.num_gpus
        else:
            self.free[change.host] -= max(0, change.num_gpus - given)
        self._put_on_host(change.job, change.host, change.num_gpus, self.jobs[change.job].start_s)
        self._note_change(change)

    def _put_on_host(self, job: int, host: int, count: int, still_s: float) -> None:
        self.on_host[host].append(job)
        self._change_place(job, host, count, still_s)

    # Running jobs.

    def _must_not_change(self, job: int) -> bool:
        return max(self.trains_at_s[job], self.changes_at_s[job]) > self.now_s + SAME_MOMENT_S

    def _grow_on(self, host: int) -> None:
        """Give free GPUs of the host to the jobs on it that gain most per GPU, while one gains more than its cost."""
        kind = self.cluster.kinds[host]
        while self.free[host] > 0:
            best = None
            self.budget.spend(len(self.on_host[host]))
            for job in self.on_host[host]:
                if self._must_not_change(job):
                    continue
                one = self.jobs[job]
                has = self.num_gpus[job]
                left = self._fraction_left_now(job)
                for count in one.counts[kind]:
                    if not has < count <= has + self.free[host]:
                        continue
                    gain_s = left * (self.whole_s[job] - one.seconds[kind][count]) - one.reshape_s
                    if gain_s <= one.reshape_s:
                        continue
                    score = gain_s + LATE_FIRST * one.late if self.late_first else gain_s / (count - has)
                    if best is None or (score, -job) > best[0]:
                        best = (score, -job), job, count
            if best is None:
                return
            _, job, count = best
            self.free[host] -= count - self.num_gpus[job]
            self._change_place(job, host, count, self.jobs[job].reshape_s)
            self._note_change(PlannedChange(job, host, count))

    def _move_to(self, host: int) -> None:
        """Bring jobs of other hosts here that gain more than the move costs, the largest gain first."""
        kind = self.cluster.kinds[host]
        while self.free[host] > 0:
            best = None
            self.budget.spend(len(self.jobs))
            for job, here in enumerate(self.host):
                one = self.jobs[job]
                if here < 0 or here == host or one.job.pinned is not None or self._must_not_change(job):
                    continue
                count = _largest_within(one.counts[kind], self.free[host])
                if not count:
                    continue
                gain_s = self._fraction_left_now(job) * (self.whole_s[job] - one.seconds[kind][count]) - one.move_s
                if gain_s > one.move_s and (best is None or (gain_s, -job) > best[0]):
                    best = (gain_s, -job), job, count
            if best is None:
                return
            _, job, count = best
            before = self.host[job]
            had = self.num_gpus[job]
            self.on_host[before].remove(job)
            if self.changes is None and self.cluster.is_open[before]:
                self.free[before] += had
            self.free[host] -= count
            self._put_on_host(job, host, count, self.jobs[job].move_s)
            self._note_change(PlannedChange(job, host, count))

    # Bookkeeping.

    def _whole_s(self, job: int, host: int, count: int) -> float:
        """Return the seconds of all iterations left at the beginning, with this placement."""
        one = self.jobs[job]
        found = one.seconds[self.cluster.kinds[host]].get(count)
        return one.here_s if found is None else found

    def _fraction_left_now(self, job: int) -> float:
        """Return the fraction of its iterations that is left now."""
        began_s = max(self.trains_at_s[job], self.counted_at_s[job])
        if self.now_s <= began_s:
            return self.fraction_left[job]
        return max(0.0, self.fraction_left[job] - (self.now_s - began_s) / self.whole_s[job])

    def _change_place(self, job: int, host: int, count: int, still_s: float) -> None:
        """Place the job from now on; it trains once it has stood still for `still_s`."""
        if self.host[job] >= 0:
            self.fraction_left[job] = self._fraction_left_now(job)
        self.counted_at_s[job] = self.now_s
        self.host[job] = host
        self.num_gpus[job] = count
        self.trains_at_s[job] = self.now_s + still_s
        self.whole_s[job] = self._whole_s(job, host, count)
        if self.changes is None:
            self._push_end(job)

    def _push_end(self, job: int) -> None:
        self.version[job] += 1
        starts_s = max(self.trains_at_s[job], self.now_s)
        end_s = starts_s + self.fraction_left[job] * self.whole_s[job]
        heapq.heappush(self.ends, (end_s, job, self.version[job]))

    def _leave_host(self, job: int) -> None:
        host = self.host[job]
        self.on_host[host].remove(job)
        if self.cluster.is_open[host]:
            self.free[host] += self.num_gpus[job]
        self.host[job] = -1

    def _note_change(self, change: PlannedChange) -> None:
        if self.changes is not None:
            self.changes.append(change)


def _largest_within(counts: tuple[int, ...], most: int) -> int:
    """Return the largest count of at most `most`, which is the fastest; 0 if there is none."""
    position = bisect_right(counts, most)
    return counts[position - 1] if position else 0


def _smallest_within(counts: tuple[int, ...], most: int) -> int:
    return counts[0] if counts and counts[0] <= most else 0
