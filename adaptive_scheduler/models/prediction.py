"""Predicts remaining times of jobs on GPUs (`algorithms.md` 1.5) and tardiness (5.4, X7), in seconds from now.

Every answer is finite, also for unknown lengths and speeds: then it rests on `assumed_s`, and `is_certain` is false.
Called by the policies, by views of predicted ends and by comparison policies. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

from adaptive_scheduler.models import pause
from adaptive_scheduler.profiles.profiles import LARGEST, Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Job, has_deadline, is_placed

ASSUMED_AT_LEAST_S = 600.0
"""Least assumed length of a job of unknown length: ten minutes make a reshape worth its cost."""


def assumed_s(job: Job) -> float:
    """Return the assumed remaining seconds of a job of unknown length or speed: as long as it has trained so far."""
    return max(ASSUMED_AT_LEAST_S, job.running_s)


def time_left_s(job: Job) -> float:
    """Return the seconds of training that its time limit leaves; infinite without one. It ends then, done or not."""
    return math.inf if job.time_limit_s is None else max(0.0, job.time_limit_s - job.running_s)


def t_train(profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, hosts: int = 1) -> float:
    """Return the seconds of training left on `num_gpus` GPUs over `hosts` hosts: iterations left x seconds per
    iteration, at most what its time limit leaves. Unknown length: `assumed_s` holds for the present count (the smallest
    of a waiting job) and scales with the speed. Unknown speed: `assumed_s` for every count."""
    most = min(time_left_s(job), LARGEST)
    speed = profiles.speed(job.type, gpu_type, num_gpus, hosts)
    if speed is not None and job.iterations_left is not None:
        return min(max(job.iterations_left, 0.0) * speed.seconds, most)
    present = profiles.speed(job.type, gpu_type, job.num_gpus or min(job.optional))
    if speed is None or present is None:  # a type may be measured on several hosts only
        return min(assumed_s(job), most)
    return min(assumed_s(job) * speed.seconds / present.seconds, most)


def t_new(profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, hosts: int = 1) -> float:
    """Return the seconds of a waiting job started now: launch, process start, training, end."""
    o = profiles.overheads(job.type)
    return o.k8s_init + o.proc_init + t_train(profiles, job, gpu_type, num_gpus, hosts) + o.finish


def t_keep(profiles: Profiles, job: Job, gpu_type: str) -> float:
    """Return the seconds of a placed job left as it is (ours; the paper is silent)."""
    hosts = len(job.workers) or 1
    return t_train(profiles, job, gpu_type, job.num_gpus, hosts) + profiles.overheads(job.type).finish


def t_run(
    profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, trains_on_s: float = 0.0, hosts: int = 1
) -> float:
    """Return the seconds of a running job reshaped to `num_gpus` over `hosts` hosts. They include checkpoint, new
    process, repeated work, training and its end. `trains_on_s`: how long it trains on unchanged while its newcomer is
    launched (G5 refined); a job that ends within that time is not reshaped."""
    o = profiles.overheads(job.type)
    training = t_train(profiles, job, gpu_type, num_gpus, hosts)
    if trains_on_s == 0.0:
        return reshape_delay_s(profiles, job) + training + o.finish
    as_is = t_train(profiles, job, gpu_type, job.num_gpus, len(job.workers) or 1)
    if as_is <= trains_on_s:
        return as_is + o.finish
    return trains_on_s + reshape_delay_s(profiles, job) + training * (1.0 - trains_on_s / as_is) + o.finish


def reshape_delay_s(profiles: Profiles, job: Job) -> float:
    """Return the delay by a reshape: its overhead, and the training since the last checkpoint, repeated."""
    return reshape_overhead_s(profiles, job) + job.unsaved_s


def reshape_overhead_s(profiles: Profiles, job: Job) -> float:
    """Return the profile's seconds of a reshape on the same node, in its launch or with a relaunch, by the size of its
    state."""
    o = profiles.overheads(job.type)
    return o.reshape + pause.more_of_s(o, job) + (o.k8s_term + o.k8s_init if job.relaunches else 0.0)


def cross_host_s(profiles: Profiles, job: Job) -> float:
    """Return the extra seconds of a move over a reshape: the old launch ends, a new one starts (1.5), and its state
    goes by the disk."""
    o = profiles.overheads(job.type)
    return (0.0 if job.relaunches else o.k8s_term + o.k8s_init) + pause.more_elsewhere_s(o, job)


def reshape_cost_s(profiles: Profiles, job: Job) -> float:
    """Return the seconds a reshape of this job costs: its own measured ones, else those of its type (1.9)."""
    return reshape_overhead_s(profiles, job) if job.reshape_cost_s is None else job.reshape_cost_s


def pause_words(profiles: Profiles, job: Job, moves: bool = False) -> str:
    """Return `pause 34 s: 15.7 GB to disk` of a reshape of this job, or of a move; empty for one of a small state."""
    cost_s = reshape_cost_s(profiles, job) + (cross_host_s(profiles, job) if moves else 0.0)
    return pause.described(cost_s, job.state_bytes, "disk" if moves else pause.path_of(job))


def is_certain(profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, hosts: int = 1) -> bool:
    """Return False if the length is unknown or only a maximum, or the speed is unknown or extrapolated."""
    speed = profiles.speed(job.type, gpu_type, num_gpus, hosts)
    known = job.iterations_left is not None and not job.length_unsure
    return known and speed is not None and not speed.low_confidence


def end_is_certain(snapshot: ClusterSnapshot, job: Job) -> bool:
    """Return whether the length and speed of a placed job are known as it is placed."""
    return not _is_of_unknown_end(job, snapshot.profiles, snapshot.gpu_types)


def of_unknown_end(snapshot: ClusterSnapshot) -> tuple[Job, ...]:
    """Return the placed jobs for which that is not so; a makespan that counts them is a guess."""
    return snapshot.where(_is_of_unknown_end, snapshot.profiles, snapshot.gpu_types)


def _is_of_unknown_end(job: Job, profiles: Profiles, gpu_types: Mapping[str, str]) -> bool:
    gpu_type, hosts = gpu_types.get(job.node or ""), len(job.workers) or 1
    return is_placed(job) and (gpu_type is None or not is_certain(profiles, job, gpu_type, job.num_gpus, hosts))


class RemainingTimes:
    """Remaining seconds by job, with O(1) answers to the effect of replacing one of them."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds
        self.sum = math.fsum(seconds.values())  # exact, so independent of the order of jobs
        # The two longest suffice: one of them stays when one job is replaced.
        self._last, values = max(seconds, key=seconds.__getitem__, default=None), [*seconds.values(), 0.0]
        self.max = max(values)
        values.remove(self.max)
        self.runner_up = max(values, default=0.0)

    @classmethod
    def estimate(cls, snapshot: ClusterSnapshot) -> RemainingTimes:
        """Return those of all placed jobs left as they are (G1); under an operation with the count that it leads to. A
        job on a node outside the snapshot counts with `assumed_s`."""
        gpu_types = {node.name: node.gpu_type for node in snapshot.nodes}
        return cls({j.id: t_keep(snapshot.profiles, j, gpu_types.get(j.node or "", "")) for j in snapshot.placed})

    def replace(self, job: str, seconds: float) -> tuple[float, float]:
        """Return (makespan, sum) if this job, placed or new, took `seconds` instead."""
        others = self.runner_up if job == self._last else self.max
        return max(others, seconds), self.sum + (seconds - self.seconds.get(job, 0.0))


def all_work_s(snapshot: ClusterSnapshot) -> float:
    """Return the seconds that all GPU jobs, also waiting ones, take on all working GPUs at their most efficient counts.
    Ours: a makespan of placed jobs alone ignores the queue. A job that would end after this bound is critical: the end
    of all work hangs on it."""
    gpus, kinds = snapshot.capacity["gpus"], tuple(sorted({node.gpu_type for node in snapshot.allowed(None, None)}))
    work = math.fsum(snapshot.rows(_gpu_s, snapshot.once(_least_work, snapshot.profiles, kinds)).tolist())
    return work / gpus if gpus else math.inf


def _least_work(profiles: Profiles, kinds: tuple[str, ...]) -> Callable[[str, tuple[int, ...]], float | None]:
    @lru_cache
    def gpu_s(job_type: str, optional: tuple[int, ...]) -> float | None:
        speeds = ((n, profiles.speed(job_type, kind, n)) for kind in kinds for n in optional)
        return min((n * speed.seconds for n, speed in speeds if speed is not None), default=None)

    return gpu_s


def _gpu_s(job: Job, each: Callable[[str, tuple[int, ...]], float | None]) -> float:
    if job.uses_cpu:
        return 0.0
    seconds = each(job.type, job.optional)
    most = min(time_left_s(job), LARGEST)
    if job.iterations_left is None or seconds is None:
        return min(assumed_s(job), most) * max(1, job.num_gpus)
    return min(max(job.iterations_left, 0.0) * seconds, most * min(job.optional), LARGEST)


class Tardiness:
    """Deadlines with tolerance (`Deadlines.beta`), and by how much each job is predicted to exceed its own."""

    def __init__(self, limits: Mapping[str, float], before: Mapping[str, float]) -> None:
        self.limits = limits
        self._before = before
        # By job, so that one change is a subtraction instead of another pass over all jobs.
        self.late = {i: max(0.0, before[i] - limit) for i, limit in sorted(limits.items()) if i in before}
        self.total = math.fsum(self.late.values())

    @classmethod
    def estimate(cls, snapshot: ClusterSnapshot, times: RemainingTimes, now: float, settings: Settings) -> Tardiness:
        """Return that of all jobs with a deadline; of none where deadlines are switched off."""
        if "deadline" not in settings.systems:
            return cls({}, {})
        beta = settings.deadlines.beta
        with_one = snapshot.where(has_deadline)
        limits = {j.id: j.submit_s + (1 + beta) * j.sla_s - now for j in with_one if j.sla_s is not None}
        return cls(limits, times.seconds)

    def broken_by(self, after: Mapping[str, float]) -> dict[str, float]:
        """Return by how many seconds these jobs would miss a deadline that held before, or for a waiting job is not
        past."""
        limits = {job: self.limits[job] for job in after if job in self.limits}
        return {
            job: after[job] - limit for job, limit in limits.items() if self._before.get(job, 0.0) <= limit < after[job]
        }
