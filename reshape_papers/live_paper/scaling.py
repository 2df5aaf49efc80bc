"""Scales an experiment down to this machine: its nodes, jobs and contenders as a `reshape up` takes them.

Pure. All times of the paper are multiplied by one factor, the scale: arrivals, work, monitor intervals. An emulated
core is a share of a real one where the machine has fewer than the experiment, so that nodes keep their proportions.
Called by `runner.py` and `outcome.py`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS
from adaptive_scheduler.settings import DEFAULTS, Settings
from reshape_papers import sidecar_baselines
from reshape_papers.comparison_policies import PLANNER, policy_setup
from reshape_papers.live_paper import grows_only
from reshape_papers.sidecar_policy import PAPERS
from simulator.scenario import NoWorkload, PolicySetup, Submission, Workload

View = dict[str, Any]

KEPT = 0.1  # share of the machine for coordinator and launcher, which belong to no emulated node
STEP_S = 0.2  # seconds of a scaled iteration on one GPU of the first type
BASELINES = {
    "default": "each job on the count that the workload drew (G17), left alone",
    "termination": "the case study's (G15): it shrinks, too, and each reshape ends the launch and makes another",
}
"""Contenders that are policies of `reshape up`; of a simulated one with a planner of its own no live one exists."""
UNORDERED = dataclasses.replace(PAPERS, queue_order="arrival", reserve_after_s=0.0)
"""Settings of baselines: the paper's queue has no order (G17); ours puts short jobs first, which is not its default."""
GROWS_ONLY = "the evaluation's (G15): it only grows jobs, step by step, each time with a launch anew"


@dataclass(frozen=True)
class Contender:
    """One policy as a `reshape up` of its own. `variables`: its environment."""

    name: str
    policy: str
    variables: Mapping[str, str]
    says: str
    program: str = "reshape"
    """The module that runs it as `reshape up`."""


@dataclass(frozen=True)
class Training:
    """The script of a model: `option` says how long it trains, in units of `steps` iterations.

    Each unit prints a line that begins with `mark`.
    """

    command: tuple[str, ...]
    option: str = "--iterations"
    steps: int = 1
    mark: str = "step="

    def units(self, iterations: int) -> int:
        return max(1, round(iterations / self.steps))


@dataclass(frozen=True)
class LiveJob:
    """One job: seconds from the beginning to its submission, and the node on which it begins."""

    id: str
    kind: str
    arrival_s: float
    iterations: int
    counts: tuple[int, ...]
    fixed_gpus: int
    node: str | None = None
    step_s: float | None = None  # of one iteration, where the job leaves cores of its node idle

    def document(self, training: Training, fixed: bool) -> View:
        """Return the job document. `fixed`: only the count that the workload drew is allowed."""
        counts = [self.fixed_gpus] if fixed and self.fixed_gpus else list(self.counts)
        units = training.units(self.iterations)
        doc: View = {
            "job_id": self.id, "state": "submitted", "job_type": self.kind, "iterations": units * training.steps,
            "command": [*training.command, training.option, str(units)], "optional_num_gpus": counts, "elastic": True,
        }  # fmt: skip
        if self.node is not None:
            doc["node"] = self.node
        if self.step_s is not None:
            doc["env"] = {"RESHAPE_EMULATED_SPEED": f'{{"0": {self.step_s}}}'}
        return doc


def uses_cpu(workload: Workload) -> bool:
    return any(job.cpu is not None for job in workload.jobs)


def check(workload: Workload) -> None:
    """Raise `NoWorkload` with a sentence for an experiment that cannot run on emulated nodes of one machine."""
    if any(job.tasks or job.sla_s is not None for job in workload.jobs):
        raise NoWorkload(
            f"{workload.name} has deadlines and tasks that Volcano places, so it runs on no single machine: "
            "make bench-cluster, in a clone of the project, runs its jobs on a real Volcano."
        )
    if any(job.accuracy_target is not None for job in workload.jobs):
        raise NoWorkload(f"{workload.name} trains to published accuracies, which no small training has; take W1 to W3.")
    if not contenders(workload, 1.0):
        raise NoWorkload(f"no policy of {workload.name} exists live.")


def real_cores(workload: Workload, machine_cores: int) -> float:
    """Return how much of a real core an emulated one is: 1 where the machine has enough."""
    total = sum(node.cores for node in workload.nodes)
    return min(1.0, machine_cores * (1.0 - KEPT) / total) if total else 1.0


def node_options(workload: Workload, core: float) -> list[str]:
    """Return the options of `reshape up`."""
    given = [
        f"{n.name}={len(n.gpus)}x{n.gpu_type}" if n.gpus else f"{n.name}=cpu:{n.cores * core:.3f}"
        for n in workload.nodes
    ]
    return [word for node in given for word in ("--node", node)]


def contenders(workload: Workload, scale: float, programs: bool = True) -> list[Contender]:
    """Return the workload's policies that exist live, in their order, and beside SideCar scheduling the planner.

    `programs`: whether a contender may be a program in the place of `reshape up`; not in an installed cluster.
    """
    setups = list(workload.policy_setups)
    if any(setup.name == "sidecar" for setup in setups):
        setups.append(policy_setup(PLANNER, workload))
    return [made for setup in setups if (made := _contender(setup, scale, programs)) is not None]


def _contender(setup: PolicySetup, scale: float, programs: bool) -> Contender | None:
    if programs and setup.plan is sidecar_baselines.termination:
        return Contender(setup.name, setup.name, variables(PAPERS, scale), GROWS_ONLY, grows_only.__name__)
    if setup.name in BASELINES:
        return Contender(setup.name, setup.name, variables(UNORDERED, scale), BASELINES[setup.name])
    planned = setup.plan.func if isinstance(setup.plan, partial) else setup.plan
    if planned is not decide:
        return None
    policy = "planner" if setup.settings.planner == "rollout" else "sidecar"
    return Contender(setup.name, policy, variables(setup.settings, scale), setup.says)


def variables(settings: Settings, scale: float) -> dict[str, str]:
    """Return the environment that gives a coordinator these settings, with its times scaled."""
    return dict(_variables(settings, DEFAULTS, "RESHAPE_", scale))


def _variables(settings: Any, usual: Any, prefix: str, scale: float) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(settings):
        value, name = getattr(settings, field.name), prefix + field.name.upper()
        if dataclasses.is_dataclass(value):
            yield from _variables(value, getattr(usual, field.name), name + "_", scale)
            continue
        value = value * scale if field.name.endswith("_s") else value
        if value != getattr(usual, field.name):
            yield name, text(value)


def text(value: object) -> str:
    """Return a setting as a variable has it."""
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(value) if isinstance(value, tuple) else f"{value}"


def heartbeat_s(workload: Workload, scale: float) -> float:
    """Return the interval of heartbeats: several in each interval of the monitors."""
    monitors = [
        s for c in workload.policy_setups for s in (c.settings.specon.interval_s, c.settings.flowcon.interval_s)
    ]
    return min(1.0, max(0.25, min(monitors) * scale / 4.0)) if uses_cpu(workload) else 1.0


def live_jobs(workload: Workload, scale: float, core: float, step_cpu_s: Mapping[str, float]) -> list[LiveJob]:
    """Return the jobs. `core`: `real_cores`; `step_cpu_s`: CPU seconds of one iteration by kind, for jobs on CPU."""
    return [
        _on_cpu(job, scale, core, step_cpu_s[kind(job)]) if job.cpu is not None else _on_gpus(workload, job, scale)
        for job in workload.jobs
    ]


def kind(job: Submission) -> str:
    """Return the model of a job trained on CPU, the type of any other."""
    return job.cpu.kind if job.cpu is not None else job.type


def _live_id(job_id: str) -> str:
    """Return a name that a job may have: `VAE-P` for VAE(P)."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", job_id).strip("-")


def _on_cpu(job: Submission, scale: float, core: float, step_cpu_s: float) -> LiveJob:
    assert job.cpu is not None
    steps = max(2, round(job.cpu.core_s * scale * core / step_cpu_s))
    idle = job.cpu.demand < 1.0
    step_s = step_cpu_s / (job.cpu.demand * core) if idle else None
    return LiveJob(_live_id(job.id), kind(job), job.arrival_s * scale, steps, (0,), 0, job.node, step_s)


def _on_gpus(workload: Workload, job: Submission, scale: float) -> LiveJob:
    steps = max(2, round(job.iterations * _one_gpu_s(workload, job.type) * scale / STEP_S))
    return LiveJob(_live_id(job.id), job.type, job.arrival_s * scale, steps, job.optional, job.fixed_gpus, job.node)


def _one_gpu_s(workload: Workload, job_type: str) -> float:
    speed = workload.policy_setups[0].profiles.speed(job_type, workload.nodes[0].gpu_type, 1)
    assert speed is not None  # a count that no row has is extrapolated
    return speed.seconds


def speed_rows(workload: Workload) -> list[View]:
    """Return the profile of the scaled iterations, which is also the pace of emulated GPUs."""
    profiles = workload.policy_setups[0].profiles
    return [
        {"job_type": job_type, "gpu_type": gpu_type, "num_gpus": count,
         "seconds_per_iteration": speed.seconds / _one_gpu_s(workload, job_type) * STEP_S}
        for job_type, counts in sorted({job.type: job.optional for job in workload.jobs if job.cpu is None}.items())
        for gpu_type in sorted({node.gpu_type for node in workload.nodes if node.gpus})
        for count in counts
        if (speed := profiles.speed(job_type, gpu_type, count)) is not None
    ]  # fmt: skip


def overhead_rows(workload: Workload, scale: float) -> list[View]:
    """Return what a coordinator believes of starts and reshapes until it has measured them: the paper's, scaled."""
    given = {
        f: getattr(DEFAULT_OVERHEADS, f) * scale for f in ("k8s_init", "k8s_term", "proc_init", "proc_term", "ckpt")
    }
    return [{"job_type": job_type, **given} for job_type in sorted({kind(job) for job in workload.jobs})]
