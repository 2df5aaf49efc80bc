"""Builds the workloads of SideCar scheduling: the case study, S, and W1 to W4.

`case_study` and workload S define all their figures here; W1 to W4 use on one GPU the speeds with which a coordinator
starts, on several those of `printed_speeds.py`, and W4 the accuracy curves of `accuracy_workloads.py`. Under a name
that ends in `MEASURED` they also use the coordinator's speeds on several GPUs, measured by others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, DEFAULT_TYPE, Overheads, Profiles
from adaptive_scheduler.snapshot import Gpu, Node
from coordinator.stores.bootstrap import shipped
from reshape_papers import sidecar_baselines
from reshape_papers.sidecar_policy import PAPERS, plan_as_the_paper, sidecar_setup
from reshape_papers.workloads import accuracy_workloads, printed_speeds
from reshape_papers.workloads.printed_speeds import PRINTED as PRINTED_SPEED_UP
from simulator.accuracy_targets import told
from simulator.scenario import Costs, PolicySetup, Submission, Workload

SIZES = (1, 2, 4, 8)
WINDOW_S = 11000.0  # arrivals of all generated workloads (1.10)
JOB_SETS: Mapping[str, tuple[str, ...]] = {
    "one": ("resnet18-64", "resnet18-128", "resnet18-256", "resnet34-64", "resnet34-128", "resnet50-64"),
    "two": ("resnet18-256", "resnet34-128", "inceptionv3-128", "vgg16-64", "googlenet-512", "alexnet-256"),
}
"""Tables VI and VII: model and batch of the types 0 to 5, as the shipped speed table names them."""
SMALL = "6"
SMALL_ITERATIONS: Mapping[str, int] = {"one": 10 * math.ceil(50_000 / 1024), "two": 10 * math.ceil(60_000 / 1024)}
"""Their type 6 trains ten epochs in batches of 1024: ResNet-8 on CIFAR-10, LeNet on MNIST."""
SMALL_S = 150.0  # its seconds on one V100; nobody has published its speed, so this and how it scales are invented
SMALL_SPEED_UP = (1.0, 1.2, 1.3, 1.1)


# the case study (SideCar scheduling, II-C)

CASE_STUDY = "case-study"
PRINTED = replace(PAPERS, allow_noop=False, min_gain_factor=0.0, cooldown_factor=0.0)
"""As printed: idle GPUs are always added (G6) and nothing cools down."""
LITERAL = "as printed: it always adds idle GPUs (G6), no cool-down"


def case_study(seed: int = 0, data: Path | None = None) -> Workload:
    """Return two jobs on four GPUs, with the fit of 1.10; does not depend on `seed`."""
    profiles = _profiles(
        [
            *_speed_rows("first", "GPU", {2: PRINTED_SPEED_UP[4] / PRINTED_SPEED_UP[2], 4: 1.0}),
            *_speed_rows("second", "GPU", {2: 1.0}),
        ]
    )
    jobs = (
        Submission("J1", "first", 0.0, (2, 4), iterations=525.0, fixed_gpus=4),
        Submission("J2", "second", 180.0, (2,), iterations=442.0, fixed_gpus=2),
    )
    in_place, relaunched = Costs.in_place(DEFAULT_OVERHEADS), Costs.relaunched(DEFAULT_OVERHEADS)
    printed = partial(decide, settings=PRINTED)
    return Workload(
        CASE_STUDY, seed, jobs, (_node("node", "GPU", 4),),
        (
            PolicySetup("default", sidecar_baselines.default(jobs), relaunched, profiles),
            PolicySetup("termination", printed, relaunched, profiles, PRINTED, f"up and down (G15), {LITERAL}"),
            PolicySetup("sidecar", printed, in_place, profiles, PRINTED, LITERAL),
            sidecar_setup(in_place, profiles, name="sidecar-resolved", says="doing nothing competes (G6)"),
        ),
        fitted=("the five overheads (1.10)", "the work of both jobs (1.10)"),
    )  # fmt: skip


# workload S: one host of 16 equal GPUs, and a synthetic profile of seven job types

S_WORK = (3600.0, 2900.0, 2600.0, 6000.0, 5200.0, 9000.0, SMALL_S)  # seconds on one GPU, by type
S_SPEED_UP = (
    (1.0, 1.55, 2.1, 2.3),
    (1.0, 1.7, 2.4, 3.0),
    (1.0, 1.8, 3.0, 4.2),
    (1.0, 1.6, 2.3, 2.7),
    (1.0, 1.75, 2.8, 3.8),
    (1.0, 1.7, 2.6, 3.6),
    SMALL_SPEED_UP,
)
S_SIDECAR = Overheads(k8s_init=85.0, k8s_term=0.0, proc_init=25.0, proc_term=7.0, ckpt=5.0, origin="given")
S_RELAUNCHED = Overheads(k8s_init=150.0, k8s_term=55.0, proc_init=25.0, proc_term=7.0, ckpt=5.0, origin="given")
"""Only the sums are given: start 110 s and 175 s, up 37 s and 242 s. How they divide is ours."""
S_IN_PLACE = Costs(launch=85.0, begin=25.0, stop=12.0, shrunk=15.0, grown=25.0, end=0.0)  # down 27 s, up 37 s
S_BY_POD = Costs(launch=0.0, begin=175.0, stop=67.0, shrunk=137.0, grown=175.0, end=0.0)  # down 204 s, up 242 s


def workload_s(seed: int, data: Path | None = None, count: int = 40) -> Workload:
    """Return workload S: `count` jobs on one node of 16 equal GPUs; needs no file."""
    jobs = _draw(seed, count, [_Kind(str(i), work) for i, work in enumerate(S_WORK)])
    rows = [
        row
        for i, speed_ups in enumerate(S_SPEED_UP)
        for row in _speed_rows(str(i), "GPU", {n: 1.0 / up for n, up in zip(SIZES, speed_ups, strict=True)})
    ]
    by_pod = _profiles(rows, S_RELAUNCHED)
    return Workload(
        "workload-s", seed, jobs, (_node("node", "GPU", 16),),
        (
            PolicySetup("default", sidecar_baselines.default(jobs), S_BY_POD, by_pod),
            PolicySetup("termination", sidecar_baselines.termination, S_BY_POD, by_pod),
            sidecar_setup(S_IN_PLACE, _profiles(rows, S_SIDECAR)),
        ),
        invented=("all work, speed-ups and sizes: a synthetic profile",),
    )  # fmt: skip


# W1 to W4 (SideCar scheduling, V)

MEASURED = "-measured"


def w1(
    seed: int, data: Path | None = None, name: str = "elastic-w1", count: int = 40, *, measured: bool = False
) -> Workload:
    """Return Job Set One on 8 V100 and 8 P100, two epochs each. `measured`: with others' speeds on several GPUs."""
    kinds, rows = _job_set("one", ("V100", "P100"), 2, measured)
    jobs = _draw(seed, count, kinds)
    invented = "two epochs a job, where the paper trains one"
    return _evaluation(name, seed, jobs, ("V100", "P100"), rows, measured, invented)


def w2(seed: int, data: Path | None = None, name: str = "elastic-w2", *, measured: bool = False) -> Workload:
    """Return W1 with 20 jobs."""
    return w1(seed, data, name, 20, measured=measured)


def w3(seed: int, data: Path | None = None, name: str = "elastic-w3", *, measured: bool = False) -> Workload:
    """Return Job Set Two on 8 V100 and 8 K80, one epoch each."""
    kinds, rows = _job_set("two", ("V100", "K80"), 1, measured)
    return _evaluation(name, seed, _draw(seed, 40, kinds), ("V100", "K80"), rows, measured)


W4_ERROR = 0.3


def w4(seed: int, data: Path | None = None, name: str = "elastic-w4", *, measured: bool = False) -> Workload:
    """Return W3's jobs with the Top-5 reached there as targets: the same work, its length predicted from the curve.

    The policy is compared with one that knows every length, and one whose lengths are wrong by up to 30 % (O8).
    """
    given = w3(seed, data, name, measured=measured)
    targets = accuracy_workloads.targets(data)
    jobs = tuple(
        replace(job, iterations=targets[job.type].length, accuracy_target=targets[job.type])
        if job.type in targets else job
        for job in given.jobs
    )  # fmt: skip
    ours = given.policy_setups[-1]
    knowing = replace(ours, name="sidecar-knowing", plan=told(jobs, plan_as_the_paper), says="knows every length")
    guesses = told(jobs, plan_as_the_paper, W4_ERROR, seed)
    wrong = f"believes lengths that are wrong by up to {W4_ERROR:.0%} either way (O8)"
    return replace(
        given, jobs=jobs,
        policy_setups=(*given.policy_setups, knowing, replace(ours, name="sidecar-misled", plan=guesses, says=wrong)),
        fitted=(*given.fitted, *accuracy_workloads.sources(data)),
        invented=(*given.invented, *accuracy_workloads.invented(data)),
    )  # fmt: skip


_ALL_MEASURED = "seconds per iteration: the shipped table: others' measurements, strong scaling by an A100's curve"
_ONE_MEASURED = f"seconds per iteration: on one GPU the shipped table, others' measurements; {printed_speeds.RULE}"


def _evaluation(
    name: str,
    seed: int,
    jobs: tuple[Submission, ...],
    gpu_types: Iterable[str],
    rows: list[Any],
    measured: bool,
    *invented: str,
) -> Workload:
    profiles = _profiles(rows)
    in_place, relaunched = Costs.in_place(DEFAULT_OVERHEADS), Costs.relaunched(DEFAULT_OVERHEADS)
    return Workload(
        name, seed, jobs, tuple(_node(g.lower(), g, 8) for g in gpu_types),
        (
            PolicySetup("default", sidecar_baselines.default(jobs), relaunched, profiles),
            PolicySetup("termination", sidecar_baselines.termination, relaunched, profiles),
            PolicySetup("sidecar-printed", partial(decide, settings=PRINTED), in_place, profiles, PRINTED, LITERAL),
            sidecar_setup(in_place, profiles),
        ),
        fitted=(
            "the five overheads: the case study's (1.10), the same for every type",
            _ALL_MEASURED if measured else _ONE_MEASURED,
        ),
        invented=(
            "arrivals: sorted uniforms", "every job may run on 1, 2, 4 or 8 GPUs",
            f"type 6: {SMALL_S:.0f} s on one V100, {', '.join(map(str, SMALL_SPEED_UP[1:]))} times as fast on 2, 4, 8; "
            "on other GPUs slower as ResNet-18 is",
            *invented,
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """A job type and the length of its jobs."""

    type: str
    iterations: float


def _draw(seed: int, count: int, kinds: Sequence[_Kind]) -> tuple[Submission, ...]:
    """Draw all arrivals first, then type and fixed size of each job in that order."""
    rng = random.Random(seed)
    arrivals = sorted(rng.uniform(0.0, WINDOW_S) for _ in range(count))
    drawn = [(at, kinds[rng.randrange(len(kinds))], rng.choice(SIZES)) for at in arrivals]
    return tuple(
        Submission(
            id=f"job-{i:02d}", type=kind.type, arrival_s=at, optional=SIZES, iterations=kind.iterations,
            fixed_gpus=size,
        )
        for i, (at, kind, size) in enumerate(drawn)
    )  # fmt: skip


def batch_of(named: str) -> int:
    """Return the batch size of a type named as in `JOB_SETS`."""
    return int(named.rpartition("-")[2])


def _job_set(name: str, gpu_types: Sequence[str], epochs: int, measured: bool) -> tuple[list[_Kind], list[Any]]:
    """Return the types of Table VI or VII with the speeds of types 0 to 5, and the invented one of type 6.

    On one GPU they are the shipped ones; on several too, if `measured`, else those of `printed_speeds.py`.
    """
    number = {named: str(i) for i, named in enumerate(JOB_SETS[name])}
    kinds = [
        _Kind(i, float(epochs * math.ceil(accuracy_workloads.IMAGENET / batch_of(named))))
        for named, i in number.items()
    ]
    rows = [
        {**row, "job_type": number[row["job_type"]]}
        for row in shipped("speed_profiles")
        if row["job_type"] in number and row["gpu_type"] in gpu_types
    ]
    one = {row["gpu_type"]: row["seconds_per_iteration"] for row in shipped("speed_profiles")
           if (row["job_type"], row["num_gpus"]) == ("resnet18-256", 1)}  # fmt: skip
    if not measured:
        rows = _on_several(name, rows)
    length = SMALL_ITERATIONS[name]
    for gpu_type in gpu_types:
        alone_s = SMALL_S / length * one[gpu_type] / one["V100"]
        speeds = {n: alone_s / up for n, up in zip(SIZES, SMALL_SPEED_UP, strict=True)}
        rows += _speed_rows(SMALL, gpu_type, speeds)
    return [*kinds, _Kind(SMALL, float(length))], rows


def _on_several(name: str, shipped_rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return rows of speeds on all of `SIZES`, derived from the one-GPU rows among these."""
    batches = [batch_of(named) for named in JOB_SETS[name]]
    rows: list[Any] = []
    for row in shipped_rows:
        if row["num_gpus"] == 1:
            alone_s, batch = row["seconds_per_iteration"], batches[int(row["job_type"])]
            speeds = {n: alone_s / printed_speeds.speed_up(n, batch) for n in SIZES}
            rows += _speed_rows(row["job_type"], row["gpu_type"], speeds)
    return rows


def _speed_rows(job_type: str, gpu_type: str, seconds: Mapping[int, float]) -> list[dict[str, Any]]:
    return [
        {"job_type": job_type, "gpu_type": gpu_type, "num_gpus": n, "seconds_per_iteration": s, "origin": "given"}
        for n, s in seconds.items()
    ]


def _profiles(speed_rows: Iterable[Mapping[str, Any]], overheads: Overheads = DEFAULT_OVERHEADS) -> Profiles:
    known = Profiles.from_rows(speed_rows)
    return Profiles(known.speeds, overhead_rows={DEFAULT_TYPE: overheads})


def _node(name: str, gpu_type: str, gpus: int) -> Node:
    return Node(name, gpu_type, tuple(Gpu(f"{name}-{i:02d}") for i in range(gpus)))


_EVALUATED: Mapping[str, Callable[..., Workload]] = {
    "elastic-w1": w1,
    "elastic-w2": w2,
    "elastic-w3": w3,
    "elastic-w4": w4,
}

NAMES: Mapping[str, Callable[[int, Path | None], Workload]] = {
    CASE_STUDY: case_study,
    "workload-s": workload_s,
    **_EVALUATED,
    **{
        f"{name}{MEASURED}": partial(draw, name=f"{name}{MEASURED}", measured=True) for name, draw in _EVALUATED.items()
    },
}
