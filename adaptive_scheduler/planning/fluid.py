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

from adaptive_scheduler.planning.planned_jobs import PlanGroup, PlannedCluster

SAME_MOMENT_S = 1e-9
MOST_ENDS = 200
"""Ends of jobs that are simulated; what is left then is estimated. A plan differs from others by what it does soon."""
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
    """Weighted sums of the completion times since submission, and last ends from now, by group of jobs.

    All are infinite if some job never starts."""

    sums_s: tuple[float, ...]
    lasts_s: tuple[float, ...]

    @property
    def sum_s(self) -> float:
        return sum(self.sums_s)

    @property
    def last_s(self) -> float:
        return max(self.lasts_s)

    def objective(self, groups: Sequence[PlanGroup], makespan_weight: float) -> float:
        """Return ln SUM + m ln LAST; less is better. With m = 1, one per cent of mean completion time counts as one per
        cent of makespan.

        Of several groups the mean over jobs counts. Each group has the votes of `makespan_weight`, the setting: a
        queue with a larger m shifts them between its two measures, and gets no more of them.
        """
        if math.inf in self.lasts_s:
            return math.inf  # also where the last end counts nothing: 0 times infinity is no number
        num_jobs = sum(group.num_jobs for group in groups)
        total = 0.0
        for group, sum_s, last_s in zip(groups, self.sums_s, self.lasts_s, strict=True):
            score = math.log(max(sum_s, SAME_MOMENT_S)) + group.makespan_weight * math.log(max(last_s, SAME_MOMENT_S))
            total += group.num_jobs / num_jobs * (1 + makespan_weight) / (1 + group.makespan_weight) * score
        return total


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
        self.version = [0] * len(places)
        self.whole_s = [math.inf] * len(places)  # by job: seconds of all iterations left at the beginning, where it is
        self.ends_at_s = [math.inf] * len(places)
        self.changeable_at_s = [math.inf] * len(places)
        self.on_host: list[set[int]] = [set() for _ in self.hosts]
        self.keeps = [0] * len(places)  # by job: its next smaller count where it is; 0: it has the smallest
        self.givers: list[set[int]] = [set() for _ in self.hosts]  # by host: the jobs there with a smaller count
        self.movers = set[int]()  # running jobs that might gain by a move
        self.free = [cluster.gpus[host] if cluster.is_open[host] else 0 for host in self.hosts]
        # What could not be done stays impossible until its host changes: jobs have ever less left to gain, and victims
        # ever less time. So only hosts that changed are looked at again.
        self.useful_hosts = set[int]()  # those with free GPUs or a giver
        self.changed_for_start = set[int]()
        self.changed_for_growth = set[int]()
        self.changed_for_moves = set[int]()
        self.changed_movers = set[int]()  # jobs
        self.refused = -1  # the first waiting job, if no host could take it when it was last looked at
        self.wakes: list[tuple[float, int]] = []  # (moment, job): when it may be changed again
        for job, place in enumerate(places):
            if place.host >= 0:
                self._settle(job, fraction_left=1.0)
                if cluster.is_open[place.host]:
                    self.free[place.host] = max(0, self.free[place.host] - place.num_gpus)
        for host in self.open_hosts:
            self._touch(host)
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
        for host in self.open_hosts:
            self._touch(host)
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
        sums_s = [0.0] * len(self.cluster.groups)
        lasts_s = [0.0] * len(self.cluster.groups)
        while self.ends:
            moment_s, job, version = heapq.heappop(self.ends)
            if version >= 0 and version != self.version[job]:
                continue  # it was changed since
            self.now_s = moment_s
            if version >= 0:
                ended += 1
                one = self.jobs[job]
                sums_s[one.group] += one.weight * (moment_s + one.age_s)
                lasts_s[one.group] = moment_s
                self._leave_host(job)
                self.version[job] += 1
                if ended == MOST_ENDS:
                    return self._estimate_rest(sums_s, lasts_s)
            self._act_now()
        if ended < len(self.jobs):
            sums_s = lasts_s = [math.inf] * len(self.cluster.groups)
        return PlanOutcome(tuple(sums_s), tuple(lasts_s))

    def _estimate_rest(self, sums_s: list[float], lasts_s: list[float]) -> PlanOutcome:
        """Return what would follow if all GPUs did the work that is left without a loss, the shortest job first.

        `sums_s`, `lasts_s`: those of the jobs that have ended, by group; they are changed."""
        work = list[tuple[float, int, float, float]]()  # order, job, GPU-seconds, least seconds
        for job, one in enumerate(self.jobs):
            if self.host[job] >= 0:
                left = self._fraction_left_now(job)
                gpu_s = left * one.least_gpu_s
                fastest_s = max(self.trains_at_s[job] - self.now_s, left * one.fastest_s)
            elif not self.version[job]:  # neither running nor ended
                gpu_s = one.least_gpu_s
                fastest_s = one.start_s + one.fastest_s
            else:
                continue
            work.append((gpu_s / one.weight, job, gpu_s, fastest_s))
        total = max(1, sum(self.cluster.gpus))  # those of closed nodes, too: jobs train there to their end
        done_gpu_s = 0.0
        for _, job, gpu_s, fastest_s in sorted(work):
            done_gpu_s += gpu_s
            end_s = self.now_s + max(done_gpu_s / total, fastest_s)
            one = self.jobs[job]
            lasts_s[one.group] = max(lasts_s[one.group], end_s)
            sums_s[one.group] += one.weight * (end_s + one.age_s)
        return PlanOutcome(tuple(sums_s), tuple(lasts_s))

    def _act_now(self) -> None:
        while self.wakes and self.wakes[0][0] <= self.now_s + SAME_MOMENT_S:
            job = heapq.heappop(self.wakes)[1]
            if self.host[job] >= 0:
                self._touch(self.host[job])
                self.changed_movers.add(job)
        self._start_waiting()
        for host in sorted(self.changed_for_growth):
            self._grow_on(host)
        self.changed_for_growth.clear()
        if self.cluster.moves and not self.queue:
            self._move_jobs()

    # Waiting jobs.

    def _queue_key(self, job: int) -> tuple[bool, float, str]:
        one = self.jobs[job]
        return (not (self.late_first and one.late), one.least_gpu_s / one.weight, one.job.id)

    def _start_waiting(self) -> None:
        while self.queue:
            job = self.queue[0][1]
            changed = self.changed_for_start if job == self.refused else self.useful_hosts
            hosts = sorted(host for host in changed if self.cluster.may_be_on(job, host))
            self.budget.spend(len(changed))
            if (
                self._start_on_free(job, hosts)
                or self._start_with_victim(job, hosts)
                or self._start_with_victims(job, hosts)
            ):
                heapq.heappop(self.queue)
                self.refused = -1
            else:
                self.refused = job
                self.changed_for_start.clear()
                return

    def _start_on_free(self, job: int, hosts: Sequence[int]) -> bool:
        """Start the job where it is fastest on its share of the free GPUs."""
        one = self.jobs[job]
        best = None
        waiting_per_host = -(-len(self.queue) // max(1, len(self.open_hosts)))
        for host in hosts:
            free = self.free[host]
            if free <= 0:
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
        self._change_free(host, -count)
        self._change_place(job, host, count, one.start_s)
        self._note_change(PlannedChange(job, host, count))
        return True

    def _start_with_victim(self, job: int, hosts: Sequence[int]) -> bool:
        """Shrink the job that loses least, if it lasts longer than the newcomer would."""
        one = self.jobs[job]
        best = None
        for host in hosts:
            kind = self.cluster.kinds[host]
            soonest_s = self.now_s + one.seconds[kind][one.counts[kind][-1]] + one.start_s
            self.budget.spend(len(self.givers[host]))
            for victim in self.givers[host]:
                if self.ends_at_s[victim] < soonest_s or not self._may_give(victim):
                    continue
                keeps = self.keeps[victim]
                count = _largest_within(one.counts[kind], self.free[host] + self.num_gpus[victim] - keeps)
                if not count:
                    continue
                if one.seconds[kind][count] + one.start_s > self._left_s(victim):
                    continue
                loss_s = self._loss_s(victim, keeps)
                if best is None or (loss_s, victim) < best[:2]:
                    best = loss_s, victim, host, keeps, count
        if best is None:
            return False
        _, victim, host, keeps, count = best
        self._take_from_victims(PlannedChange(job, host, count, (PlannedGift(victim, keeps),)))
        return True

    def _start_with_victims(self, job: int, hosts: Sequence[int]) -> bool:
        """Start the job on its smallest count where several victims together lose least, if each lasts longer."""
        one = self.jobs[job]
        best = None
        for host in hosts:
            counts = one.counts[self.cluster.kinds[host]]
            if counts[0] > self.cluster.gpus[host] or not self.givers[host]:
                continue
            ends_s = one.seconds[self.cluster.kinds[host]][counts[0]] + one.start_s
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
            self.budget.spend(len(self.givers[host]))
            for victim in self.givers[host]:
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
        return max(0.0, self.ends_at_s[job] - max(self.now_s, self.trains_at_s[job]))

    def _loss_s(self, victim: int, keeps: int) -> float:
        """Return the seconds by which a job ends later with fewer GPUs of its host, as often as it counts."""
        one = self.jobs[victim]
        kept_s = self._fraction_left_now(victim) * one.seconds[self.cluster.kinds[self.host[victim]]][keeps]
        return one.weight * (kept_s - self._left_s(victim) + one.reshape_s)

    def _take_from_victims(self, change: PlannedChange) -> None:
        """Start the newcomer of `change` on its victims' GPUs and free ones."""
        given = 0
        for victim, keeps in change.gifts:
            given += self.num_gpus[victim] - keeps
            self._change_place(victim, change.host, keeps, self.jobs[victim].reshape_s)
        released = given if self.changes is None else min(given, change.num_gpus)
        self._change_free(change.host, released - change.num_gpus)
        self._change_place(change.job, change.host, change.num_gpus, self.jobs[change.job].start_s)
        self._note_change(change)

    # Running jobs.

    def _must_not_change(self, job: int) -> bool:
        return self.changeable_at_s[job] > self.now_s + SAME_MOMENT_S

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
                    if gain_s <= one.least_growth_gain_s:
                        continue
                    score = one.weight * gain_s
                    score = score + LATE_FIRST * one.late if self.late_first else score / (count - has)
                    if best is None or (score, -job) > best[0]:
                        best = (score, -job), job, count
            if best is None:
                return
            _, job, count = best
            self._change_free(host, self.num_gpus[job] - count)
            self._change_place(job, host, count, self.jobs[job].reshape_s)
            self._note_change(PlannedChange(job, host, count))

    def _move_jobs(self) -> None:
        """Look at all jobs for hosts that have changed, and at jobs that have changed for all hosts."""
        changed_jobs = self.changed_movers & self.movers
        self.changed_movers = set()
        for host in sorted(self.useful_hosts if changed_jobs else self.changed_for_moves):
            jobs = self.movers if host in self.changed_for_moves else changed_jobs
            self.changed_for_moves.discard(host)
            if self.free[host] > 0:
                self._move_to(host, jobs)

    def _move_to(self, host: int, jobs: Collection[int]) -> None:
        """Bring jobs of other hosts here that gain more than the move costs, the largest gain first."""
        kind = self.cluster.kinds[host]
        while self.free[host] > 0:
            best = None
            self.budget.spend(len(jobs))
            for job in tuple(jobs):
                one = self.jobs[job]
                left = self._fraction_left_now(job)
                if left * (self.whole_s[job] - one.fastest_s) - one.move_s <= one.least_move_gain_s:
                    self.movers.discard(job)  # whatever host it moved to
                    continue
                if self.host[job] == host or self._must_not_change(job):
                    continue
                count = _largest_within(one.counts[kind], self.free[host])
                if not count:
                    continue
                gain_s = left * (self.whole_s[job] - one.seconds[kind][count]) - one.move_s
                if gain_s > one.least_move_gain_s and (best is None or (gain_s, -job) > best[0]):
                    best = (gain_s, -job), job, count
            if best is None:
                return
            _, job, count = best
            if self.changes is None:
                self._change_free(self.host[job], self.num_gpus[job])
            self._change_free(host, -count)
            self._change_place(job, host, count, self.jobs[job].move_s)
            self._note_change(PlannedChange(job, host, count))

    # Bookkeeping.

    def _whole_s(self, job: int, host: int, count: int) -> float:
        """Return the seconds of all iterations left at the beginning, with this placement."""
        one = self.jobs[job]
        found = one.seconds[self.cluster.kinds[host]].get(count)
        return one.here_s if found is None else found

    def _fraction_left_now(self, job: int) -> float:
        """Return the fraction of its iterations that a running job has left now."""
        return self._left_s(job) / self.whole_s[job]

    def _change_place(self, job: int, host: int, count: int, still_s: float) -> None:
        """Place the job from now on; it trains once it has stood still for `still_s`."""
        fraction_left = 1.0
        if self.host[job] >= 0:
            fraction_left = self._fraction_left_now(job)
            self._forget_place(job)
        self.host[job] = host
        self.num_gpus[job] = count
        self.trains_at_s[job] = self.now_s + still_s
        self._settle(job, fraction_left)
        self._touch(host)
        if self.changes is None:
            self._push_end(job)

    def _settle(self, job: int, fraction_left: float) -> None:
        """Note what follows from the place that a job has got."""
        host = self.host[job]
        one = self.jobs[job]
        self.whole_s[job] = self._whole_s(job, host, self.num_gpus[job])
        self.on_host[host].add(job)
        self.keeps[job] = _largest_within(one.counts[self.cluster.kinds[host]], self.num_gpus[job] - 1)
        if self.keeps[job]:
            self.givers[host].add(job)
        if one.job.pinned is None:
            self.movers.add(job)
            self.changed_movers.add(job)
        self.ends_at_s[job] = max(self.trains_at_s[job], self.now_s) + fraction_left * self.whole_s[job]
        self.changeable_at_s[job] = max(self.trains_at_s[job], self.changes_at_s[job])
        if self.now_s < self.changeable_at_s[job] < math.inf:
            heapq.heappush(self.wakes, (self.changeable_at_s[job], job))

    def _forget_place(self, job: int) -> None:
        host = self.host[job]
        self.on_host[host].discard(job)
        self.givers[host].discard(job)
        self.movers.discard(job)
        self._touch(host)

    def _change_free(self, host: int, more: int) -> None:
        """Count GPUs of the host that become free, or are no longer; those of a closed one never are."""
        if self.cluster.is_open[host]:
            self.free[host] += more
            self._touch(host)

    def _touch(self, host: int) -> None:
        """Note that the host has changed, so that it is looked at again."""
        if not self.cluster.is_open[host]:
            return
        if self.free[host] > 0 or self.givers[host]:
            self.useful_hosts.add(host)
        else:
            self.useful_hosts.discard(host)
        self.changed_for_start.add(host)
        if self.free[host] > 0:
            self.changed_for_growth.add(host)
            self.changed_for_moves.add(host)

    def _push_end(self, job: int) -> None:
        self.version[job] += 1
        heapq.heappush(self.ends, (self.ends_at_s[job], job, self.version[job]))

    def _leave_host(self, job: int) -> None:
        self._forget_place(job)
        self._change_free(self.host[job], self.num_gpus[job])
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
