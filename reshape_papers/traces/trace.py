"""Defines a trace, as every reader returns it, and builds a workload from it. Pure.

A reader knows only its format. What else a simulation needs (allowed GPU counts, speed-ups, nodes, costs) is assumed
here and reported in the workload's `fitted` and `invented`. Called by the readers and by `__init__.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.observations import Observation, Observations
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, DEFAULT_TYPE, Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Gpu, Node, Task
from reshape_papers import sidecar_baselines, volcano_policy
from reshape_papers.sidecar_policy import sidecar_setup
from simulator.scenario import Costs, CpuWork, NoWorkload, PolicySetup, Submission, Workload

PER_NODE, GPU_TYPE = 8, "V100"  # of the nodes that are assumed if none are named
CORES = 32.0
SHARE = 0.8
"""Size of these nodes, as a share of the peak that the jobs would hold if none waited."""
CURVE = "resnet50-256"
SOURCE = "ResNet-50 with a global batch of 256 on A100 (ElasticFlow, throughputs_A100/resnet50.csv)"
SPEED_UP = {1: 1.0, 2: 1.871, 4: 3.358, 8: 5.630, 16: 8.220, 32: 9.668, 64: 10.223}
"""Speed-up of traces without speeds, by GPUs: strong scaling, since the global batch is kept."""


def speed_up(gpus: int) -> float:
    """Interpolate `SPEED_UP` over log2 of the count, constant beyond its end.

    Raises ValueError for less than one GPU.
    """
    if gpus < 1:
        raise ValueError(f"A job runs on at least 1 GPU, not {gpus}.")
    below = max(n for n in SPEED_UP if n <= gpus)
    above = min((n for n in SPEED_UP if n >= gpus), default=below)
    if above == below:
        return SPEED_UP[below]
    share = math.log2(gpus / below) / math.log2(above / below)
    return SPEED_UP[below] + share * (SPEED_UP[above] - SPEED_UP[below])


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job that ended by itself. Without a `model` it lasts as long as it did on its original GPUs."""

    id: str
    arrival_s: float
    gpus: int  # that it had; 0: trained on CPU
    duration_s: float  # from start to completion on them (D11)
    cores: float = 0.0
    memory: float = 0.0  # bytes
    model: str = ""  # a type for which the trace has speeds
    iterations: float = 0.0  # with a model
    sla_s: float | None = None  # deadline, from submission


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace, ordered by arrival, counted from its first."""

    name: str
    jobs: tuple[TraceJob, ...]
    speeds: tuple[Mapping[str, Any], ...] = ()  # speed profile rows of its models
    nodes: tuple[Node, ...] = ()  # for which it was made, if published
    counts: tuple[int, ...] = ()  # that every job may have; none: up to its requested count
    fitted: tuple[str, ...] = ()
    invented: tuple[str, ...] = ()

    @classmethod
    def from_jobs(cls, name: str, jobs: Iterable[TraceJob], **more: Any) -> Trace:
        """Drop jobs that cannot have run: no duration, or neither GPUs nor cores (D11).

        Raises NoWorkload if none is left.
        """
        kept = [job for job in jobs if 0 < job.duration_s < math.inf and (job.gpus > 0 or job.cores > 0)]
        if not kept:
            raise NoWorkload(f"the {name} trace has no job that ran to its end; name another file of it.")
        kept.sort(key=lambda job: (job.arrival_s, job.id))
        first = kept[0].arrival_s
        return cls(name, tuple(_from(job, first) for job in kept), **more)

    @property
    def observations(self) -> Observations:
        """Return request and duration of each job, for Slaml's prediction."""
        return _observed(self.jobs)


def workload(trace: Trace, count: int | None = None, nodes: Sequence[Node] = ()) -> Workload:
    """Return a workload of the first `count` jobs on `nodes`, else on the trace's nodes, else on as many as it needs.

    The other jobs become the observations of past jobs. Raises NoWorkload if no node can run the jobs.
    """
    jobs = trace.jobs[:count]
    on_cpu = all(job.gpus == 0 for job in jobs)
    given = tuple(nodes) or trace.nodes or (_machines(jobs) if on_cpu else _gpu_nodes(jobs))
    largest = max((len(node.gpus) for node in given), default=0)
    roomiest = max((node.cores for node in given), default=0.0)
    if not on_cpu and not largest:
        raise NoWorkload(f"the {trace.name} trace needs GPUs; name a node that has some, such as --node a=8xV100.")
    if any(job.gpus == 0 for job in jobs) and not roomiest:
        raise NoWorkload(f"the {trace.name} trace has jobs trained on CPU; name a node for them: --node c=cpu:32.")
    submissions = tuple(_submission(trace, job, largest, roomiest) for job in jobs)
    profiles = Profiles.from_rows(_speeds(trace, given))
    profiles = Profiles(profiles.speeds, overhead_rows={DEFAULT_TYPE: DEFAULT_OVERHEADS})
    _check_speeds(trace, submissions, profiles, given)
    return Workload(
        trace.name, 0, submissions, given,
        _on_cpu() if on_cpu else _on_gpus(submissions, profiles),
        observations=_observed(trace.jobs[len(jobs):]),
        fitted=("the five overheads: the case study's (1.10), the same for every type", *trace.fitted),
        invented=(*_assumed(trace, bool(nodes), on_cpu, largest), *trace.invented),
    )  # fmt: skip


def on_nodes(kind: str, gpu_type: str, count: int, gpus: int) -> tuple[Node, ...]:
    """Return `count` equal nodes with `gpus` GPUs each."""
    names = [f"{kind}-{i:03d}" for i in range(count)]
    return tuple(Node(n, gpu_type, tuple(Gpu(f"{n}-{i}") for i in range(gpus))) for n in names)


def _from(job: TraceJob, first_s: float) -> TraceJob:
    return TraceJob(
        job.id, job.arrival_s - first_s, job.gpus, job.duration_s, job.cores, job.memory, job.model, job.iterations,
        job.sla_s,
    )  # fmt: skip


def _observed(jobs: Iterable[TraceJob]) -> Observations:
    return Observations.from_rows(Observation(job.cores, job.memory, job.gpus, job.duration_s) for job in jobs)


def _submission(trace: Trace, job: TraceJob, largest: int, roomiest: float) -> Submission:
    if job.gpus == 0:
        cores = min(job.cores, roomiest)
        work = cores * job.duration_s
        return Submission(
            job.id, "cpu", job.arrival_s, (0,), iterations=work, fixed_gpus=0, cpu=CpuWork(work, cores),
            tasks=(Task("task", cores, job.memory),), sla_s=job.sla_s,
        )  # fmt: skip
    fixed = min(job.gpus, largest)
    tasks = (Task("task", job.cores, job.memory, job.gpus),) if job.cores or job.memory else ()
    return Submission(
        job.id, job.model or CURVE, job.arrival_s, _counts(trace, fixed, largest),
        iterations=job.iterations if job.model else job.duration_s * speed_up(job.gpus),
        fixed_gpus=fixed, sla_s=job.sla_s, tasks=tasks,
    )  # fmt: skip


def _counts(trace: Trace, fixed: int, largest: int) -> tuple[int, ...]:
    """Return the GPU counts that the trace's authors allowed, else the requested count and powers of two up to it."""
    if trace.counts:
        return tuple(n for n in trace.counts if n <= largest)
    return tuple(sorted({1 << i for i in range(fixed.bit_length()) if 1 << i <= fixed} | {fixed}))


def _speeds(trace: Trace, nodes: Sequence[Node]) -> list[Mapping[str, Any]]:
    """Return the trace's profile rows; jobs without a model follow `speed_up`, with 1 s per iteration on one GPU."""
    kinds = sorted({node.gpu_type for node in nodes if node.gpus})
    most = max((len(node.gpus) for node in nodes), default=0)
    by_curve: list[Mapping[str, Any]] = [
        {
            "job_type": CURVE, "gpu_type": kind, "num_gpus": n,
            "seconds_per_iteration": 1.0 / speed_up(n), "origin": "given",
        }
        for kind in kinds
        for n in range(1, most + 1)
    ]  # fmt: skip
    return [*by_curve, *trace.speeds]


def _check_speeds(trace: Trace, jobs: Sequence[Submission], profiles: Profiles, nodes: Sequence[Node]) -> None:
    kinds = {node.gpu_type for node in nodes if node.gpus}
    for job_type in sorted({job.type for job in jobs if job.cpu is None}):
        if not any(profiles.speed(job_type, kind, 1) for kind in kinds):
            known = sorted({gpu_type for name, gpu_type in profiles.speeds if name == job_type})
            raise NoWorkload(
                f"the {trace.name} trace has no speed of {job_type} on {', '.join(sorted(kinds))}"
                + (f"; name nodes of {' or '.join(known)}." if known else "; no figures of it are stored.")
            )


def _gpu_nodes(jobs: Sequence[TraceJob]) -> tuple[Node, ...]:
    return on_nodes("node", GPU_TYPE, _enough(jobs, [float(job.gpus) for job in jobs], PER_NODE), PER_NODE)


def _machines(jobs: Sequence[TraceJob]) -> tuple[Node, ...]:
    count = _enough(jobs, [job.cores for job in jobs], CORES)
    return tuple(Node(f"machine-{i:03d}", "", cores=CORES) for i in range(count))


def _enough(jobs: Sequence[TraceJob], wanted: Sequence[float], each: float) -> int:
    """Return the number of equal nodes that together provide `SHARE` of the peak demand if no job waited."""
    changes = [(job.arrival_s, amount) for job, amount in zip(jobs, wanted, strict=True)]
    changes += [(job.arrival_s + job.duration_s, -amount) for job, amount in zip(jobs, wanted, strict=True)]
    changes.sort()  # at equal times, ends sort before arrivals: an ended job makes room
    most = max(accumulate(amount for _, amount in changes))
    return max(1, math.ceil(SHARE * most / each - 1e-9))


def _on_gpus(jobs: tuple[Submission, ...], profiles: Profiles) -> tuple[PolicySetup, ...]:
    in_place, relaunched = Costs.in_place(DEFAULT_OVERHEADS), Costs.relaunched(DEFAULT_OVERHEADS)
    return (
        PolicySetup("default", sidecar_baselines.default(jobs), relaunched, profiles),
        PolicySetup("termination", sidecar_baselines.termination, relaunched, profiles),
        sidecar_setup(in_place, profiles),
    )


def _on_cpu() -> tuple[PolicySetup, ...]:
    costs, alone = Costs.in_place(DEFAULT_OVERHEADS), Settings(systems=())
    return (
        PolicySetup("volcano", volcano_policy.alone(volcano_policy.PLACEMENTS["binpack"]), costs, Profiles(), alone),
        PolicySetup("reshape", decide, costs, Profiles(), says="decide(), all four systems"),
    )


def _assumed(trace: Trace, named: bool, on_cpu: bool, largest: int) -> list[str]:
    said = ["the scheduler knows how long each job is"]
    if any(not job.model and job.gpus for job in trace.jobs):
        said.append(f"a job gains from more GPUs as {SOURCE}: {_in_words(SPEED_UP)}; alike on every GPU type")
    if not on_cpu:
        allowed = ", ".join(map(str, trace.counts)) or "powers of two up to what it asked for"
        said.append(
            f"it may run on {allowed} GPUs of one node; jobs that asked for more than {largest} get at most these"
        )
    if not named and not trace.nodes:
        kind = f"{CORES:g} cores" if on_cpu else f"{PER_NODE} {GPU_TYPE}"
        said.append(f"the nodes: of {kind} each, {SHARE:.0%} of the most that the jobs would hold at once")
    return said


def _in_words(curve: Mapping[int, float]) -> str:
    return ", ".join(f"{up:g} on {n}" for n, up in curve.items())
