"""Lists every figure of the four papers: its number, the experiment that yields it, and the function that builds it.

`reshape paper NAME --plot` draws those of one experiment; documents may name their files. A figure that cannot be drawn
says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from reshape_papers.figures import cpu_charts, gpu_charts, job_charts, saving_charts
from reshape_papers.figures.chart import Chart
from reshape_papers.figures.results import ExperimentResults
from reshape_papers.workloads.saving_times import EXPERIMENT as SAVING


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One figure. `build` takes what its experiment yields: its results, or recorded rows.

    `part`: the experiment's part of a figure drawn from several; `not_drawn`: the reason.
    """

    paper: str  # sidecar, specon, flowcon, slaml
    number: int
    shows: str
    experiment: str = ""
    build: Callable[[Any], Chart] | None = None
    part: str = ""
    not_drawn: str = ""

    @property
    def file(self) -> str:
        """Return the name of its files, without .svg or .png."""
        return f"{self.paper}-fig-{self.number}" + (f"-{self.part}" if self.part else "")


DIAGRAM = "a diagram of the design, without numbers"

NA = ("na", "flowcon")
SETTINGS = (*NA, "flowcon-3%-60s", "flowcon-5%-30s", "flowcon-5%-60s")
"""Of Figure 9, `flowcon` with 3 % and 30 s first; drawn are those that were simulated."""
DS = ("ds", "specon")


def _bars(title: str, policies: tuple[str, ...]) -> Callable[[ExperimentResults], Chart]:
    return partial(job_charts.completion_times, title=title, policies=policies)


def _of_interval(alpha: int) -> Callable[[ExperimentResults], Chart]:
    settings = {f"flowcon-{alpha}%-{s}s": f"{s} s" for s in (20, 30, 40, 50, 60)}
    title = f"FlowCon with α = {alpha} % and different intervals"
    return partial(job_charts.by_setting, title=title, settings=settings)


def _of_alpha(interval_s: int) -> Callable[[ExperimentResults], Chart]:
    settings = {f"flowcon-{a}%-{interval_s}s": f"α = {a} %" for a in (1, 3, 5, 10, 15)}
    title = f"FlowCon every {interval_s} s with different α"
    return partial(job_charts.by_setting, title=title, settings=settings)


def _cpu(policy: str, title: str, *notes: str) -> Callable[[ExperimentResults], Chart]:
    return partial(cpu_charts.cpu_usage, policy=policy, title=title, notes=notes)


def _growth(job: str) -> Callable[[ExperimentResults], Chart]:
    return partial(cpu_charts.growth_efficiency, job_id=job, policies=NA)


def _where(policy: str, words: str) -> Callable[[ExperimentResults], Chart]:
    return partial(cpu_charts.containers_by_node, policy=policy, title=f"Where 30 containers train, {words}")


W1 = "elastic-w1"
CASE_STUDY = "case-study"
AT_40_S = "In the paper VAE(P) has 25 % and MNIST(P) 75 % from 40 s on."

FIGURES: Sequence[PaperFigure] = (
    PaperFigure("sidecar", 1, "idle interval of GPUs that change hands", CASE_STUDY, gpu_charts.idle_interval),
    PaperFigure("sidecar", 2, "training speed by number of GPUs", W1, gpu_charts.speed_by_gpus),
    PaperFigure("sidecar", 3, "iterations per second of two jobs", CASE_STUDY, gpu_charts.iterations_per_second),
    PaperFigure("sidecar", 4, "makespan and mean completion time", CASE_STUDY, gpu_charts.case_study_bars),
    PaperFigure("sidecar", 5, "architecture", not_drawn=DIAGRAM),
    *(
        PaperFigure("sidecar", 6, "makespan and mean completion time", name, gpu_charts.evaluation_bars, name)
        for name in (W1, "elastic-w2", "elastic-w3", "elastic-w4")
    ),
    PaperFigure("sidecar", 7, "pending and running jobs", W1, gpu_charts.pending_and_running),
    PaperFigure("sidecar", 8, "pending jobs at each submission", W1, gpu_charts.pending_at_submission),
    *(
        PaperFigure(
            "sidecar", 9, "distribution of completion times", name, gpu_charts.completion_time_distribution, name
        )
        for name in (W1, "elastic-w2")
    ),
    PaperFigure("sidecar", 10, "GPUs in use", W1, gpu_charts.gpu_usage),
    PaperFigure("sidecar", 11, "adding and removing events", W1, gpu_charts.changes),
    PaperFigure("specon", 1, "loss curves of three models", "specon-random-20", cpu_charts.specon_progress),
    PaperFigure("specon", 2, "time to save and resume a VAE by progress", SAVING, saving_charts.by_progress),
    PaperFigure("specon", 3, "time to save and resume models at 30 and 70 %", SAVING, saving_charts.by_model),
    PaperFigure("specon", 4, "modules", not_drawn=DIAGRAM),
    PaperFigure("specon", 5, "completion times, 20 VAEs", "specon-fixed", _bars("20 VAEs, one every 50 s", DS)),
    PaperFigure("specon", 6, "completion times, 20 jobs", "specon-random-20", _bars("20 random jobs within 300 s", DS)),
    PaperFigure("specon", 7, "completion times, 30 jobs", "specon-random-30", _bars("30 random jobs within 600 s", DS)),
    PaperFigure("specon", 8, "containers by worker, DS", "specon-random-30", _where("ds", "default scheduler (DS)")),
    PaperFigure("specon", 9, "containers by worker, SpeCon", "specon-random-30", _where("specon", "SpeCon")),
    PaperFigure("specon", 10, "CPU use, DS", "specon-random-30", _cpu("ds", "CPU use of 30 containers, DS")),
    PaperFigure(
        "specon", 11, "CPU use, SpeCon", "specon-random-30", _cpu("specon", "CPU use of 30 containers, SpeCon")
    ),
    PaperFigure("specon", 12, "completion times, 50 jobs", "specon-random-50", _bars("50 random jobs, 8 workers", DS)),
    PaperFigure("flowcon", 1, "loss curves of five models", "flowcon-random-5", cpu_charts.flowcon_progress),
    PaperFigure("flowcon", 2, "architecture", not_drawn=DIAGRAM),
    PaperFigure("flowcon", 3, "completion times by interval, α = 5 %", "flowcon-parameters", _of_interval(5)),
    PaperFigure("flowcon", 4, "completion times by interval, α = 10 %", "flowcon-parameters", _of_interval(10)),
    PaperFigure("flowcon", 5, "completion times by α, every 20 s", "flowcon-parameters", _of_alpha(20)),
    PaperFigure("flowcon", 6, "completion times by α, every 30 s", "flowcon-parameters", _of_alpha(30)),
    PaperFigure(
        "flowcon", 7, "CPU use, FlowCon, 3 jobs", "flowcon-fixed", _cpu("flowcon", "CPU use, FlowCon", AT_40_S)
    ),
    PaperFigure("flowcon", 8, "CPU use, NA, 3 jobs", "flowcon-fixed", _cpu("na", "CPU use without limits (NA)")),
    PaperFigure("flowcon", 9, "completion times, 5 jobs", "flowcon-random-5", _bars("5 jobs within 200 s", SETTINGS)),
    PaperFigure("flowcon", 10, "CPU use, FlowCon, 5 jobs", "flowcon-random-5", _cpu("flowcon", "CPU use, FlowCon")),
    PaperFigure("flowcon", 11, "CPU use, NA, 5 jobs", "flowcon-random-5", _cpu("na", "CPU use without limits (NA)")),
    PaperFigure("flowcon", 12, "completion times, 10 jobs", "flowcon-random-10", _bars("10 jobs within 200 s", NA)),
    PaperFigure("flowcon", 13, "growth efficiency of job 2", "flowcon-random-10", _growth("job-02")),
    PaperFigure("flowcon", 14, "growth efficiency of job 6", "flowcon-random-10", _growth("job-06")),
    PaperFigure("flowcon", 15, "CPU use, FlowCon, 10 jobs", "flowcon-random-10", _cpu("flowcon", "CPU use, FlowCon")),
    PaperFigure("flowcon", 16, "CPU use, NA, 10 jobs", "flowcon-random-10", _cpu("na", "CPU use without limits (NA)")),
    PaperFigure("flowcon", 17, "completion times, 15 jobs", "flowcon-random-15", _bars("15 jobs within 200 s", NA)),
    PaperFigure("slaml", 1, "random states of a queue", not_drawn="an illustration taken from another paper"),
    PaperFigure("slaml", 2, "architecture", not_drawn=DIAGRAM),
    PaperFigure("slaml", 3, "workflow of a job", not_drawn=DIAGRAM),
    *(
        PaperFigure("slaml", number, shows, f"deadline-{placement}", build, placement)
        for number, shows, build in (
            (4, "response times", job_charts.response_times),
            (5, "late and rescheduled jobs", job_charts.rescheduled_jobs),
        )
        for placement in ("gang", "binpack", "task-topology")
    ),
)


def figures_of(experiment: str) -> list[PaperFigure]:
    """Return the figures that this experiment yields; none if its paper shows none of it."""
    return [figure for figure in FIGURES if figure.experiment == experiment]
