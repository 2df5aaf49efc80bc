"""How long jobs still take: the formulas of `algorithms.md` 1.5, in seconds from now.

Called by the policies and by whoever wants to show a predicted end. Every answer is finite, also where
nothing is known: then it rests on `assumed_s` and `is_certain` says no. Imports no clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping

from adaptive_scheduler.profiles.profiles import LARGEST, Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Job

ASSUMED_AT_LEAST_S = 600.0
"""A job of unknown length is assumed to train for at least so long: ten minutes make a reshape worth
its cost, and an error in either direction is put right as the job goes on."""


def assumed_s(job: Job) -> float:
    """For a job of unknown length or speed: it goes on as long again as it has trained so far."""
    return max(ASSUMED_AT_LEAST_S, job.running_s)


def t_train(profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, hosts: int = 1) -> float:
    """Seconds of training left on so many GPUs of this type: iterations left x seconds per iteration.

    `hosts`: over how many they are spread. Unknown length: `assumed_s` holds for the present count (for a
    waiting job its smallest) and scales with the speed. Unknown speed: `assumed_s` whatever the count.
    """
    speed = profiles.speed(job.type, gpu_type, num_gpus, hosts)
    if speed is not None and job.iterations_left is not None:
        return min(max(job.iterations_left, 0.0) * speed.seconds, LARGEST)
    present = profiles.speed(job.type, gpu_type, job.num_gpus or min(job.optional))
    if speed is None or present is None:  # of a type measured on several hosts only, the present one may be unknown
        return min(assumed_s(job), LARGEST)
    return min(assumed_s(job) * speed.seconds / present.seconds, LARGEST)


def t_new(profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, hosts: int = 1) -> float:
    """A waiting job started now: launch, training process, training, and all that ends it."""
    o = profiles.overheads(job.type)
    return o.k8s_init + o.proc_init + t_train(profiles, job, gpu_type, num_gpus, hosts) + o.finish


def t_keep(profiles: Profiles, job: Job, gpu_type: str) -> float:
    """A placed job that is left as it is (the paper is silent; ours)."""
    hosts = len(job.workers) or 1
    return t_train(profiles, job, gpu_type, job.num_gpus, hosts) + profiles.overheads(job.type).finish


def t_run(
    profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, trains_on_s: float = 0.0, hosts: int = 1
) -> float:
    """A running job reshaped to `num_gpus` on its node: checkpoint, new process, what is lost again, training, its end.

    `hosts`: over how many it is spread then. `trains_on_s`: how long it first trains on as it is, while its
    newcomer is launched (G5 refined).
    A job that ends within that time is not reshaped at all.
    """
    o = profiles.overheads(job.type)
    training = t_train(profiles, job, gpu_type, num_gpus, hosts)
    if trains_on_s == 0.0:
        return reshape_delay_s(profiles, job) + training + o.finish
    as_is = t_train(profiles, job, gpu_type, job.num_gpus, len(job.workers) or 1)
    if as_is <= trains_on_s:
        return as_is + o.finish
    return trains_on_s + reshape_delay_s(profiles, job) + training * (1.0 - trains_on_s / as_is) + o.finish


def reshape_delay_s(profiles: Profiles, job: Job) -> float:
    """What a reshape delays the job by: the change, and what it has trained since it last saved, done again."""
    return reshape_overhead_s(profiles, job) + job.unsaved_s


def reshape_overhead_s(profiles: Profiles, job: Job) -> float:
    """What a reshape on the same node takes by the profile: in its launch, or by another launch."""
    o = profiles.overheads(job.type)
    return o.reshape + (o.k8s_term + o.k8s_init if job.relaunches else 0.0)


def gpu_release_s(profiles: Profiles, job: Job) -> float:
    """How long the GPUs that it gives up are still in use: checkpoint, exit, and its launch where that has them."""
    o = profiles.overheads(job.type)
    return o.ckpt + o.proc_term + (o.k8s_term if job.relaunches else 0.0)


def cross_host_s(profiles: Profiles, job: Job) -> float:
    """What a move to another node costs on top of a reshape: the old launch ends, a new one comes up (1.5)."""
    o = profiles.overheads(job.type)
    return 0.0 if job.relaunches else o.k8s_term + o.k8s_init


def reshape_cost_s(profiles: Profiles, job: Job) -> float:
    """Seconds a reshape of this job costs: its own measured ones, else those of its type (1.9)."""
    return reshape_overhead_s(profiles, job) if job.reshape_cost_s is None else job.reshape_cost_s


def is_certain(profiles: Profiles, job: Job, gpu_type: str, num_gpus: int, hosts: int = 1) -> bool:
    """False where the length is unknown or only a maximum, or the speed unknown or extrapolated."""
    speed = profiles.speed(job.type, gpu_type, num_gpus, hosts)
    known = job.iterations_left is not None and not job.length_unsure
    return known and speed is not None and not speed.low_confidence


def end_is_certain(snapshot: ClusterSnapshot, job: Job) -> bool:
    """Whether a placed job's end rests on no guess: its length and its speed as it is placed are known."""
    node = snapshot.node.get(job.node or "")
    hosts = len(job.workers) or 1
    return node is not None and is_certain(snapshot.profiles, job, node.gpu_type, job.num_gpus, hosts)


class RemainingTimes:
    """Remaining seconds by job; what replacing one of them leads to is answered in O(1)."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds
        self.sum = math.fsum(seconds.values())  # the same sum in whatever order the jobs come
        # The two longest are enough: whatever one job is replaced by, one of them stays.
        longest = heapq.nlargest(2, seconds, key=seconds.__getitem__)
        self._last = longest[0] if longest else None
        self.max = seconds[longest[0]] if longest else 0.0
        self.runner_up = seconds[longest[1]] if len(longest) > 1 else 0.0

    @classmethod
    def of(cls, snapshot: ClusterSnapshot) -> RemainingTimes:
        """All placed jobs, each left as it is (G1); one under an operation with the count it will have.

        A job on a node that is not in the snapshot counts with `assumed_s`.
        """
        gpu_types = {node.name: node.gpu_type for node in snapshot.nodes}
        return cls({j.id: t_keep(snapshot.profiles, j, gpu_types.get(j.node or "", "")) for j in snapshot.placed})

    def replace(self, job: str, seconds: float) -> tuple[float, float]:
        """(makespan, sum of all) if this job, perhaps a new one, took so many seconds instead."""
        others = self.runner_up if job == self._last else self.max
        return max(others, seconds), self.sum + (seconds - self.seconds.get(job, 0.0))


def all_work_s(snapshot: ClusterSnapshot) -> float:
    """What all jobs on GPUs, also waiting ones, take together on all working GPUs, each on its thriftiest count."""
    gpus = sum(node.healthy for node in snapshot.nodes if node.schedulable)
    kinds = tuple(sorted({node.gpu_type for node in snapshot.nodes if node.gpus}))
    each: dict[object, float | None] = {}
    work = math.fsum(_gpu_s(snapshot.profiles, job, kinds, each) for job in snapshot.jobs if not job.uses_cpu)
    return work / gpus if gpus else math.inf


def _gpu_s(profiles: Profiles, job: Job, kinds: tuple[str, ...], each: dict[object, float | None]) -> float:
    key = job.type, job.optional
    if key not in each:
        speeds = ((n, profiles.speed(job.type, kind, n)) for kind in kinds for n in job.optional)
        each[key] = min((n * speed.seconds for n, speed in speeds if speed is not None), default=None)
    seconds = each[key]
    if job.iterations_left is None or seconds is None:
        return min(assumed_s(job), LARGEST) * max(1, job.num_gpus)
    return min(max(job.iterations_left, 0.0) * seconds, LARGEST)
