"""Builds SpeCon's workloads: models trained on the CPUs of several nodes, with its moves and without.

Each job starts where the paper's round robin places it, so that only moves differ (2.8). `specon-fixed` has the work
that the paper's mean under its default scheduler (DS) implies; the others draw models and arrivals: the random ones
with the losses and the work of recorded trainings, the fitted ones with modelled losses, and work fitted to the paper's
times. Jobs on one node slow each other as trainings of the zoo did (`measured_contention.py`).

SpeCon's gain is a trend: it depends on loss curves. Where all jobs are equal (`fixed`, `parameters`) the paper's gains
cannot occur: round robin distributes their work evenly, so that DS is within 6 % of the bound, and in `fixed` hardly
two jobs are on a node at a time, so that no job may ask (S7).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import Overheads, Profiles
from adaptive_scheduler.settings import Settings, SpeCon
from adaptive_scheduler.snapshot import Node
from reshape_papers import loss_curves
from reshape_papers.workloads import measured_contention, recorded_trainings
from reshape_papers.workloads.recorded_trainings import STEP
from simulator.scenario import Costs, CpuWork, PolicySetup, Submission, Workload

FIXED, PARAMETERS = "specon-fixed", "specon-parameters"
DS = "ds"
NODES, EACH, GAP_S = 4, 5, 50.0  # of the fixed schedule: nodes, jobs per node, seconds between two arrivals
DS_MEAN_S = 275.2  # Figure 5

SAVE_S, RESTORE_S = 2.0, 3.0
"""Together what the paper measured at most, whatever the progress (Fig. 2); how it divides is ours."""
COSTS = Costs(
    launch=0.0, begin=0.0, stop=0.0, shrunk=0.0, grown=0.0, end=0.0, cpu_save=SAVE_S, cpu_restore=RESTORE_S
)  # fmt: skip
OVERHEADS = Overheads(k8s_init=0.0, k8s_term=0.0, proc_init=RESTORE_S, proc_term=0.0, ckpt=SAVE_S, origin="given")


@dataclass(frozen=True, slots=True)
class _Container:
    """A model on PyTorch (P) or TensorFlow (T), and its core-seconds."""

    name: str
    model: str
    core_s: float

    def at(self, arrival_s: float, number: int, node: Node) -> Submission:
        model = loss_curves.MODELS[self.model]
        work = CpuWork(self.core_s, 1.0, loss_curves.falling(model.first, model.last, model.fallen), self.name)
        iterations = self.core_s / STEP
        return Submission(f"job-{number:02d}", self.name, arrival_s, (0,), iterations, 0, cpu=work, node=node.name)


VAE = _Container("VAE(P)", "VAE", 215.04)  # 2.8: yields the paper's mean under DS without contention
ANY = (
    VAE,
    _Container("VAE(T)", "VAE", 215.0),
    _Container("GRU(P)", "GRU", 90.0),
    _Container("GRU(T)", "GRU", 130.0),
    _Container("Bi-RNN(P)", "Bi-RNN", 300.0),
    _Container("Bi-RNN(T)", "Bi-RNN", 500.0),
    _Container("RNN(P)", "RNN", 70.0),
    _Container("RNN(T)", "RNN", 110.0),
    _Container("Dynamic RNN(P)", "Dynamic RNN", 240.0),
    _Container("Dynamic RNN(T)", "Dynamic RNN", 400.0),
)
FITTED_WORK = (
    "the work of a VAE, 215 s alone, or less where jobs lose speed to each other (2.8): the paper's mean completion "
    "time under DS comes out by construction"
)
INVENTED_WORK = (
    "the work of all other models, so chosen that 20, 30 and 50 jobs take about as long as the paper's under DS"
)


def fixed(seed: int = 0, data: Path | None = None) -> Workload:
    """Return 20 VAEs, one every 50 s, on 4 nodes; alpha 0.01 every 30 s."""
    jobs = [(VAE, GAP_S * i) for i in range(NODES * EACH)]
    return contended(_workload(FIXED, seed, jobs, NODES, _both()), measured_contention.per_job())


def parameters(seed: int = 0, data: Path | None = None) -> Workload:
    """Return 20 VAEs within 300 s on 4 nodes, with every alpha and interval of the paper's table."""
    rng = random.Random(seed)
    arrivals = sorted(rng.uniform(0.0, 300.0) for _ in range(20))
    tried = ((0.05, 20.0), (0.05, 25.0), (0.05, 30.0), (0.01, 30.0), (0.10, 30.0))
    policy_setups = [
        c for alpha, interval_s in tried for c in _both(alpha, interval_s, f"-{alpha:.2f}-{interval_s:.0f}s")
    ]
    workload = _workload(PARAMETERS, seed, [(VAE, at) for at in arrivals], 4, policy_setups)
    return contended(workload, measured_contention.per_job())


def fitted(seed: int, data: Path | None = None, count: int = 20, within_s: float = 300.0, nodes: int = 4) -> Workload:
    """Return jobs with models, platforms and arrivals drawn uniformly; alpha 0.01 every 30 s."""
    return contended(_drawn_jobs(seed, count, within_s, nodes), measured_contention.per_job())


def _drawn_jobs(seed: int, count: int, within_s: float, nodes: int) -> Workload:
    rng = random.Random(seed)
    containers = [rng.choice(ANY) for _ in range(count)]
    arrivals = sorted(rng.uniform(0.0, within_s) for _ in range(count))
    jobs = list(zip(containers, arrivals, strict=True))
    return _workload(f"specon-fitted-{count}", seed, jobs, nodes, _both(), (INVENTED_WORK,))


def drawn(seed: int, data: Path | None = None, count: int = 20, within_s: float = 300.0, nodes: int = 4) -> Workload:
    """Return the jobs of `fitted` with the work and the losses of recorded trainings."""
    models = {container.name: container.core_s for container in ANY}
    workload = contended(
        recorded_trainings.trained(_drawn_jobs(seed, count, within_s, nodes), models), measured_contention.per_job()
    )
    return replace(workload, name=f"specon-random-{count}")


def contended(workload: Workload, contention: float) -> Workload:
    """Return the workload with this share of speed lost per further job on a node, 0..1, replacing its own.

    All works shrink in proportion to a VAE's, so that the paper's mean under DS still results.
    """
    factor = vae_core_s(contention) / vae_core_s(workload.contention)
    jobs = tuple(_shortened(job, factor) for job in workload.jobs)
    fitted = tuple(dict.fromkeys((*workload.fitted, measured_contention.MEASURED)))
    return replace(workload, jobs=jobs, contention=contention, fitted=fitted)


def _shortened(job: Submission, factor: float) -> Submission:
    assert job.cpu is not None
    work = replace(job.cpu, core_s=job.cpu.core_s * factor)
    return replace(job, cpu=work, iterations=work.core_s / STEP)


def vae_core_s(contention: float) -> float:
    """Return the core-seconds of a VAE that yield the paper's mean under DS in `specon-fixed` (2.8).

    On each node one arrives every 200 s and still has `left` = W - 200 s to do, together with the next one, when that
    arrives; together they advance by 1 - contention. So what is left of a job when the next one comes is W - 200 + r
    times what was left of the one before, with r = 2 / (1 - contention) - 1: the mean is linear in W.
    """
    every_s = NODES * GAP_S
    r = 2.0 / (1.0 - contention) - 1.0
    left = [math.fsum(r**power for power in range(number)) for number in range(1, EACH)]  # in multiples of W - 200 s
    of_all = (1.0 + r) * math.fsum(left) + 1.0 + r * left[-1]
    return every_s + EACH * (DS_MEAN_S - every_s) / of_all


def _workload(
    name: str, seed: int, jobs: Sequence[tuple[_Container, float]], count: int, policy_setups: Iterable[PolicySetup],
    invented: tuple[str, ...] = (),
) -> Workload:  # fmt: skip
    """Return the jobs on nodes of one core, because the paper only gives shares of a node; first without moves (DS)."""
    nodes = tuple(Node(f"worker-{i}", "", cores=1.0) for i in range(1, count + 1))
    without = Settings(systems=())
    ds = PolicySetup(DS, partial(decide, settings=without), COSTS, _profiles(), without, "no job moves")
    return Workload(
        name, seed,
        tuple(container.at(at, i + 1, nodes[i % count]) for i, (container, at) in enumerate(jobs)),
        nodes, (ds, *policy_setups),
        emulated=("all nodes and jobs: nothing trained",),
        fitted=(FITTED_WORK, loss_curves.SOURCED),
        invented=(*invented, loss_curves.INVENTED, f"one value of the loss every {STEP} core-seconds"),
    )  # fmt: skip


def _both(alpha: float = 0.01, interval_s: float = 30.0, suffix: str = "") -> list[PolicySetup]:
    """Return the paper's SpeCon and the one that judges moves by the makespan (5.5)."""
    return [_specon(f"specon{suffix}", "always", alpha, interval_s),
            _specon(f"specon-makespan{suffix}", "makespan", alpha, interval_s)]  # fmt: skip


def _specon(name: str, accept: Literal["makespan", "always"], alpha: float, interval_s: float) -> PolicySetup:
    specon = SpeCon(alpha=alpha, interval_s=interval_s, accept_move=accept)
    if accept == "always":
        specon = replace(specon, slowing="strict", request_beside="progressing")
    settings = Settings(systems=("specon",), specon=specon)
    says = f"alpha {alpha:g}, every {interval_s:.0f} s; " + (
        "every move is made, as in the paper" if accept == "always" else "a move must lower the predicted makespan"
    )
    return PolicySetup(name, partial(decide, settings=settings), COSTS, _profiles(), settings, says)


def _profiles() -> Profiles:
    return Profiles(overhead_rows={container.name: OVERHEADS for container in ANY})


NAMES: Mapping[str, Callable[[int, Path | None], Workload]] = {
    FIXED: fixed,
    PARAMETERS: parameters,
    **{
        f"specon-{kind}-{count}": partial(draw, count=count, within_s=within_s, nodes=nodes)
        for kind, draw in (("random", drawn), ("fitted", fitted))
        for count, within_s, nodes in ((20, 300.0, 4), (30, 600.0, 4), (50, 1200.0, 8))
    },
}
