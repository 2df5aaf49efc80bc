"""Small worlds of several owners, written as the test vectors of the rights are."""

from __future__ import annotations

from adaptive_scheduler.decision import Move, Requeue, Reshape, Start
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.shares import JobOwner, QueueShare, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from tests.unit.adaptive_scheduler.worlds import OVERHEADS, speed_rows

NOW = 10_000.0
SPEED_UP = {count: count**0.8 for count in range(1, 33)}
SLOW = {count: 0.25 * speed_up for count, speed_up in SPEED_UP.items()}
PROFILES = Profiles.from_rows(
    [*speed_rows(speed_up=SPEED_UP), *speed_rows(gpu_type="K80", speed_up=SLOW)], [{"job_type": "t", **OVERHEADS}]
)


def queues(**given):
    """Queues by name: (guaranteed, weight), or fields."""
    return {
        name: QueueShare(**share) if isinstance(share, dict) else QueueShare(guaranteed=share[0], weight=share[1])
        for name, share in given.items()
    }


def shares(patience_s=0.0, min_run_s=0.0, **given):
    return Shares(queues(**given), patience_s=patience_s, min_run_s=min_run_s)


def runs(name, owner, num_gpus, optional=None, node="n", **more):
    """A running job; `owner`: QUEUE or QUEUE/USER. Without counts it has one, that which it runs on."""
    queue, _, user = owner.partition("/")
    fields = {"iterations_left": 50_000.0, "running_s": 5000.0, "submit_s": 0.0} | more
    return Job(
        name, "t", "running", optional or (num_gpus,), num_gpus=num_gpus, node=node, queue=queue, owner=user, **fields
    )


def waits(name, owner, optional=(1,), **more):
    queue, _, user = owner.partition("/")
    fields = {"iterations_left": 50_000.0, "submit_s": 9000.0} | more
    return Job(name, "t", "submitted", optional, queue=queue, owner=user, **fields)


def world(nodes, *jobs, shares=None, used=None, profiles=PROFILES, slow=()):
    """`nodes`: GPUs by name, or the number of those of node n. GPUs of running jobs are in use. `slow`: nodes with
    K80, a quarter as fast as V100."""
    nodes = {"n": nodes} if isinstance(nodes, int) else nodes
    made = []
    for name, count in nodes.items():
        holders = [job.id for job in jobs if job.node == name for _ in range(job.num_gpus)]
        gpus = [Gpu(f"{name}{i}", "in use", job, job) for i, job in enumerate(holders)]
        gpus += [Gpu(f"{name}{i}") for i in range(len(holders), count)]
        made.append(Node(name, "K80" if name in slow else "V100", tuple(gpus)))
    return ClusterSnapshot(tuple(made), jobs, profiles, shares=shares or Shares(), used=used or {})


def used(**gpu_s):
    """GPU-seconds used lately, by queue, of its user without a name."""
    return {JobOwner(queue, ""): value for queue, value in gpu_s.items()}


def told(snapshot, decisions):
    """Return the operations in short, in order of the jobs: `p starts 1 (r 2->1)`, `r 1->2`, `r suspended for p`."""
    short = []
    for one in decisions:
        if isinstance(one, Start):
            gives = ", ".join(f"{v.job} {snapshot.job[v.job].num_gpus}->{v.num_gpus}" for v in one.victims)
            short.append(f"{one.job} starts {one.num_gpus}" + (f" ({gives})" if gives else ""))
        elif isinstance(one, Requeue):
            short.append(f"{one.job} suspended for {' '.join(one.yields_to)}")
        elif isinstance(one, Reshape):
            short.append(f"{one.job} {snapshot.job[one.job].num_gpus}->{one.num_gpus}")
        elif isinstance(one, Move):
            short.append(f"{one.job} moves to {one.num_gpus} of {one.node}")
    return sorted(short)
