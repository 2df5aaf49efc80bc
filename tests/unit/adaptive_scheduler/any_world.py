"""Any cluster at all, for the properties of the judgement: GPU and CPU jobs in every state, and any settings.

Books are drawn in order: whoever is placed holds or is promised its GPUs, so that what decisions lead to can be
followed GPU by GPU. Everything that an answer may depend on is drawn so often that every kind of answer comes up.
"""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from functools import cache
from typing import get_args, get_type_hints

from adaptive_scheduler.profiles.growth import Efficiency, EvaluationReading, Growth
from adaptive_scheduler.profiles.observations import Observation, Observations
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Deadlines, FlowCon, Settings, SpeCon, System
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node, Task, Worker
from tests.unit.adaptive_scheduler.worlds import OVERHEADS, speed_rows

NOW = 5000.0
SPEED_UP = {1: 1.0, 2: 1.7, 4: 2.4, 8: 3.9}
CHEAP = {"job_type": "cheap", "k8s_init": 2, "proc_init": 1, "ckpt": 1, "proc_term": 1, "k8s_term": 1}
PROFILES = Profiles.from_rows(
    [
        *speed_rows("known", "V100", SPEED_UP),
        *speed_rows("known", "K80", {n: 0.3 * s for n, s in SPEED_UP.items()}),
        *speed_rows("cheap", "V100", SPEED_UP),
        *speed_rows("partly", "V100", {2: 1.5}),
    ],
    [{"job_type": "known", **OVERHEADS}, CHEAP],
)
OBSERVED = Observations.from_rows(Observation(1.0, 1e9, 0, 30.0 * (i + 1)) for i in range(8))
SYSTEMS = get_args(System)


def snapshot(rng):
    nodes = [_node(rng, f"n{i}") for i in range(rng.randint(1, 4))]
    free = {n.name: len(n.gpus) for n in nodes}
    jobs = [_gpu_job(rng, f"g{i}", nodes, free) for i in range(rng.randint(0, 6))]
    jobs += [_cpu_job(rng, f"c{i}", nodes) for i in range(rng.randint(0, 7))]
    jobs = [_yielding(rng, job, jobs) for job in jobs]
    leaning = rng.choice((lambda rng, job: job, _roomy, _overdue_beside_urgent, _converged))
    jobs = [leaning(rng, job) for job in jobs]
    observed = OBSERVED if rng.random() < 0.5 else Observations()
    return ClusterSnapshot(tuple(_filled(rng, n, jobs) for n in nodes), tuple(jobs), PROFILES, observed)


def _node(rng, name):
    gpus = tuple(Gpu(f"{name}.{i}") for i in range(rng.choice((0, 1, 2, 4, 8, 8))))
    cores = rng.choice((0.0, 1.0, 4.0)) if gpus else rng.choice((0.5, 1.0, 4.0))
    return Node(
        name, rng.choice(("V100", "V100", "K80")) if gpus else "", gpus, schedulable=rng.random() < 0.9, cores=cores,
        memory=rng.choice((0.0, 4e9)), cpu_use=rng.choice((0.2, 0.9)), heard=rng.random() < 0.9,
    )  # fmt: skip


def _filled(rng, node, jobs):
    """Its GPUs with those of the jobs that are placed there; a few of the others are broken or being let go."""
    owners = [j.id for j in jobs for w in _on(j) if w.node == node.name for _ in range(w.num_gpus)]
    gpus = []
    for gpu, owner in zip(node.gpus, owners + [None] * len(node.gpus), strict=False):
        if owner is not None:
            gpus.append(Gpu(gpu.id, rng.choice(("in use", "in use", "reserved")), owner, owner))
        else:
            gpus.append(Gpu(gpu.id, rng.choice(("idle",) * 8 + ("reserved", "faulty"))))
    return replace(node, gpus=tuple(gpus))


def _on(job):
    return () if job.node is None or job.uses_cpu else job.workers or (Worker(job.node, job.num_gpus),)


def _common(rng):
    drawn = {
        "submit_s": rng.choice((0.0, 1000.0, 4000.0, 4990.0)),
        "iterations_left": rng.choice((None, 0.0, 10.0, 200.0, 1000.0, 5000.0, 1e308)),
        "running_s": rng.choice((0.0, 900.0)),
        "sla_s": rng.choice((None, None, 500.0, 1500.0, 5500.0, 9000.0)),
        "estimate_s": rng.choice((None, None, 60.0, 2000.0)),
        "preempts": rng.choice((0, 0, 0, 1, 2)),
        "pinned": rng.choice((None,) * 9 + ("n0",)),
        "wanted": None,
    }
    # By what was drawn: one more draw would make all these worlds others.
    return drawn | {"time_limit_s": 950.0 if drawn["submit_s"] == 4000.0 else None}


def _under_way(rng):
    """State of a placed job, and whether an operation is under way."""
    state = rng.choice(("running",) * 12 + ("adjusting", "initializing", "restarting"))
    return {"state": state, "busy": state != "running" or rng.random() < 0.05}


def _overdue(rng):
    return {"expected_s": rng.choice((None, 50.0, 300.0)), "task_s": rng.choice((0.0, 100.0, 2000.0))}


def _gpu_job(rng, name, nodes, free):
    optional = rng.choice(((1, 2, 4, 8), (1, 2, 4), (2, 4), (1,), (4, 8), (8,), (3,)))
    more = _common(rng) | {
        "type": rng.choice(("known", "known", "cheap", "partly", "unknown")), "optional": optional,
        "gpu_type": rng.choice((None, None, None, "V100")), "max_workers": rng.choice((1, 1, 2, 3)),
        "growth": Growth(rng.choice(("PC", "CC"))),
    }  # fmt: skip
    counts = [n for n in optional if n <= max(free.values())]
    if not counts or rng.random() < 0.35:
        return Job(name, state="submitted", **more)
    count = rng.choice(counts)
    workers = _spread(rng, count, nodes, free, more["max_workers"])
    if not workers:
        return Job(name, state="submitted", **more)
    for worker in workers:
        free[worker.node] -= worker.num_gpus
    return Job(
        name, num_gpus=count, node=workers[0].node, workers=tuple(workers) if len(workers) > 1 else (),
        **_under_way(rng), **_overdue(rng), target_reached=rng.random() < 0.05,
        cooling_until=rng.choice((0.0, 0.0, 0.0, NOW + 50)), reshape_cost_s=rng.choice((None, 0.0, 9.0)),
        **(more | {"wanted": rng.choice((None,) * 7 + (1, 2, 4))}),
    )  # fmt: skip


def _spread(rng, count, nodes, free, most):
    """GPUs per host on one node, or sometimes on two of one GPU type."""
    roomy = [n for n in nodes if free[n.name] >= count]
    if roomy and (most == 1 or count == 1 or rng.random() < 0.5):
        return [Worker(rng.choice(roomy).name, count)]
    pairs = [
        (a.name, b.name)
        for a in nodes for b in nodes
        if a is not b and a.gpu_type == b.gpu_type and min(free[a.name], free[b.name]) > 0
        and free[a.name] + free[b.name] >= count > 1
    ]  # fmt: skip
    if most == 1 or not pairs:
        return []
    first, second = rng.choice(pairs)
    there = rng.randint(max(1, count - free[first]), min(count - 1, free[second]))
    return [Worker(first, count - there), Worker(second, there)]


def _cpu_job(rng, name, nodes):
    cores, here = rng.choice((0.25, 0.5, 1.0, 2.0)), rng.choice([n for n in nodes if n.cores] or [None])
    more = _common(rng) | {
        "type": "known", "optional": (0,), "demand": rng.choice((0.2, 1.0, math.inf)),
        "tasks": rng.choice(((), (Task("one", cores, 1e9), Task("two", cores)), (Task("one", cores, 1e9, 0, 2),))),
    }  # fmt: skip
    if here is None or rng.random() < 0.2:
        return Job(name, state="submitted", **more)
    limit = rng.choice((None, None, 0.1, 0.5))
    return Job(
        name, node=here.name, **_under_way(rng), **_overdue(rng), rate=rng.choice((0.5, 2.0)),
        share=rng.choice((0.2, 1.0)), cpu_limit=limit,
        limit_until_s=None if limit is None else NOW + rng.choice((-1.0, 10.0, 290.0)),
        growth=_growth(rng), efficiency=_efficiency(rng), migrated_s=rng.choice((None, None, 100.0, 200.0)),
        rebalanced=rng.random() < 0.3, move_refused_s=rng.choice((None, None, NOW - 1)), **more,
    )  # fmt: skip


def _growth(rng):
    category, at_s = rng.choice(("PC", "WC", "CC", "CC")), rng.choice((NOW - 30, NOW))
    slow = category == "CC" and rng.random() < 0.7
    converged = at_s if category == "CC" and rng.random() < 0.5 else None
    return Growth(category, 0.005, slow, converged, last=EvaluationReading(at_s, 1.0, 3, 3.0, 0))


def _efficiency(rng):
    share = rng.choice((0.0, 0.03, 0.3, 1.0))
    if rng.random() < 0.3:
        return Efficiency()
    return Efficiency(rng.choice(("NL", "WL", "CL")), True, {"cpu": 5 * share}, {"cpu": 5.0}, {"cpu": share})


def _yielding(rng, job, jobs):
    """A job that gave way waits for another one."""
    others = [j.id for j in jobs if j.state == "submitted" and j is not job]
    if job.state != "submitted" or not others or rng.random() < 0.8:
        return job
    return replace(job, yields_to=(rng.choice(others),))


# towards what comes up seldom otherwise


def _roomy(rng, job):
    """Few long jobs on few GPUs: some are worth a move."""
    if job.uses_cpu or job.num_gpus == 0:
        return job
    return replace(
        job, type="cheap", state="running", busy=False, optional=(1, 2, 4, 8), iterations_left=9000.0, pinned=None,
        wanted=None, cooling_until=0.0, target_reached=False, gpu_type=None,
    )  # fmt: skip


def _overdue_beside_urgent(rng, job):
    if job.node is None:
        return replace(job, sla_s=NOW - job.submit_s + 400, estimate_s=60.0, pinned=None, yields_to=(), tasks=())
    return replace(
        job, state="running", busy=False, expected_s=50.0, task_s=2000.0, wanted=None, cooling_until=0.0,
        target_reached=False, preempts=0, sla_s=None, iterations_left=rng.choice((900.0, 2000.0)), estimate_s=None,
    )  # fmt: skip


def _converged(rng, job):
    """Jobs of which many ask to move or may, and lengths that make a move pay."""
    if not job.uses_cpu or job.node is None:
        return job
    growth = rng.choice((Growth("PC"), Growth("CC", 0.005, True, last=EvaluationReading(NOW, 1.0, 3, 3.0, 0))))
    return replace(
        job, type="cheap", state="running", busy=False, growth=growth, tasks=(), pinned=None, move_refused_s=None,
        iterations_left=rng.choice((200.0, 3000.0)), demand=math.inf, target_reached=False, expected_s=None,
    )  # fmt: skip


def _history(rng, jobs):
    """In every other world some jobs have not shown that they resume, or lose something if stopped; some have grown."""
    share = rng.choice((0.0, 0.0, 0.3, 0.8))
    return tuple(_with_history(rng, job, share) for job in jobs)


def _with_history(rng, job, share):
    grew_from = rng.choice((0, *(n for n in job.optional if 0 < n < job.num_gpus)))
    return replace(
        job, rigid=rng.random() < share, forced=rng.random() < share / 2, grew_from=grew_from,
        cooling_until=NOW + 50.0 if grew_from and rng.random() < 0.5 else job.cooling_until,
        unsaved_s=rng.choice((0.0, 5.0, 500.0)) if rng.random() < share else 0.0,
    )  # fmt: skip


FACTORS = {"cooldown_factor": (0.0, 10.0), "min_gain_factor": (0.0, 1.0, 3.0), "reserve_after_s": (0.0, 500.0, 3600.0)}


def settings(rng, systems=None):
    """Any subset of the systems, and every literal flag either way."""
    if systems is None:
        systems = tuple(s for s in SYSTEMS if rng.random() < 0.7)
    return _any(
        rng, Settings, systems=systems, specon=_any(rng, SpeCon), flowcon=_any(rng, FlowCon),
        deadlines=_any(rng, Deadlines),
    )  # fmt: skip


@cache
def hints(kind):
    return get_type_hints(kind)


def _any(rng, kind, **given):
    """Each flag as it is resolved more often than not; of the numbers those that may well be another."""
    chosen = {}
    for field in fields(kind):
        words = get_args(hints(kind)[field.name])
        if hints(kind)[field.name] is bool:
            words = (True, False)
        if field.name in given or (words and rng.random() < 0.6):
            continue
        if words:
            chosen[field.name] = rng.choice(words)
        elif field.name in FACTORS:
            chosen[field.name] = rng.choice(FACTORS[field.name])
    return kind(**chosen, **given)


def drawn(seed):
    """A cluster and settings for it."""
    rng = random.Random(seed)
    world, chosen = snapshot(rng), settings(rng)
    return replace(world, jobs=_history(random.Random(f"shown {seed}"), world.jobs)), chosen
