"""All four systems on one simulated cluster, with lengths that are believed wrongly: for the tests of their company."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.deadline_feasibility import present_task_s
from adaptive_scheduler.settings import DEFAULTS
from reshape_papers.workloads import build
from simulator.cluster import SimulatedCluster
from simulator.scenario import Workload

NOISE = 0.3
"""A length is believed up to so much too short or too long; a speed that is so wrong comes to the same."""


def believed(rng, job):
    return replace(job, believed_iterations=job.iterations * rng.uniform(1 - NOISE, 1 + NOISE))


def noisy_gpus(seed, exact=False):
    """Workload S, 20 jobs on 16 GPUs, with the settings of its `sidecar` policy."""
    workload, rng = build("workload-s", seed), random.Random(seed)
    jobs = workload.jobs[:20]
    jobs = jobs if exact else tuple(believed(rng, job) for job in jobs)
    return SimulatedCluster(replace(workload, jobs=jobs), workload.policy_setups[-1]).run()


def everything(seed, settings=DEFAULTS):
    """GPU jobs of workload S beside SpeCon's on CPU and DEADLINE's of three tasks; many of all have deadlines."""
    rng = random.Random(seed)
    on_gpus, specon, deadline = (build(name, seed) for name in ("workload-s", "specon-fitted-20", "deadline-gang"))
    jobs = [replace(j, arrival_s=j.arrival_s / 4) for j in on_gpus.jobs[:20]]
    jobs += [replace(j, id=f"cpu-{j.id}", node=None) for j in specon.jobs]
    jobs += [replace(j, arrival_s=j.arrival_s / 2) for j in deadline.jobs[:30]]
    jobs = [believed(rng, j) for j in jobs]
    jobs = [replace(j, sla_s=rng.uniform(1500, 9000)) if j.sla_s is None and rng.random() < 0.3 else j for j in jobs]
    ours = on_gpus.policy_setups[-1]
    profiles = replace(
        ours.profiles, overhead_rows={**ours.profiles.overhead_rows, **specon.policy_setups[0].profiles.overhead_rows}
    )
    costs = replace(ours.costs, **{n: getattr(specon.policy_setups[0].costs, n) for n in ("cpu_launch", "cpu_save")})
    policy_setup = replace(
        ours, plan=partial(decide, settings=settings), settings=settings, profiles=profiles, costs=costs,
        expected=lambda snapshot, job: present_task_s(snapshot, job, settings),
    )  # fmt: skip
    workload = Workload(
        "everything", seed, tuple(sorted(jobs, key=lambda j: (j.arrival_s, j.id))),
        (*on_gpus.nodes, *specon.nodes, *(replace(n, name=f"small-{n.name}") for n in deadline.nodes)),
        (policy_setup,), observations=deadline.observations,
    )  # fmt: skip
    return SimulatedCluster(workload, policy_setup).run()
