"""Small clusters for the tests of the judgement: the profile of `algorithms.md` 1.8 and short builders."""

from __future__ import annotations

from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node

SPEED_UP = {1: 1.0, 2: 1.7, 4: 2.4}
OVERHEADS = {"k8s_init": 83, "proc_init": 25, "ckpt": 5, "proc_term": 7, "k8s_term": 54}


def speed_rows(job_type="t", gpu_type="V100", speed_up=SPEED_UP):
    return [
        {
            "job_type": job_type,
            "gpu_type": gpu_type,
            "num_gpus": n,
            "seconds_per_iteration": 1 / s,
            "origin": "measured",
        }
        for n, s in speed_up.items()
    ]


PROFILES = Profiles.from_rows(speed_rows(), [{"job_type": "t", **OVERHEADS}])


def node(name="a", idle=0, used=0, gpu_type="V100", **more):
    gpus = [Gpu(f"{name}{i}") for i in range(idle)]
    gpus += [Gpu(f"{name}u{i}", "in use", "somebody") for i in range(used)]
    return Node(name, gpu_type, tuple(gpus), **more)


def running(job_id, n, left=1000, optional=(1, 2, 4), **more):
    fields = {"type": "t", "state": "running", "num_gpus": n, "node": "a", "iterations_left": left} | more
    return Job(id=job_id, optional=optional, **fields)


def waiting(job_id="new", left=600, optional=(1, 2, 4), **more):
    fields = {"type": "t", "state": "submitted", "iterations_left": left} | more
    return Job(id=job_id, optional=optional, **fields)


def cluster(*jobs, nodes=None, profiles=PROFILES, idle=0, used=8):
    return ClusterSnapshot(nodes or (node(idle=idle, used=used),), tuple(jobs), profiles)


def cpu_node(name="c", cores=1.0, **more):
    return Node(name, "", cores=cores, **more)


def on_cpu(job_id, node="c", **more):
    """A job that trains on CPU."""
    fields = {"type": "t", "state": "running", "optional": (0,), "node": node} | more
    return Job(id=job_id, **fields)
