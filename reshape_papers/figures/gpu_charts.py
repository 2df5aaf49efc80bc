"""Builds the charts of SideCar scheduling's paper from simulated runs: speeds, idle GPUs, makespans, queues, GPU usage.

Numbers from the paper's text are in section II-C (case study), VI and Table VIII. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from reshape_papers.figures.chart import (
    Chart,
    ChartBars,
    ChartLine,
    ChartMark,
    ChartPanel,
    ChartSpan,
    Points,
    at_once,
    distribution,
)
from reshape_papers.figures.results import SINCE, ExperimentResults
from reshape_papers.workloads import printed_speeds
from reshape_papers.workloads.sidecar_workloads import JOB_SETS, SIZES

APPROACHES = ("default", "termination", "sidecar")
EVALUATED = ("default", "termination", "sidecar-printed", "sidecar")
"""Of W1 to W4: `sidecar-printed`, where it was simulated, is the algorithm as printed."""
FIRST, SECOND = "J1", "J2"  # jobs of the case study

PRINTED_TIMES: Mapping[str, Mapping[float, str]] = {
    "default": {633.0: "job 1 ends", 807.0: "job 2 starts", 1249.0: "job 2 ends"},
    "termination": {384.0: "job 2 starts", 815.0: "job 2 ends", 1057.0: "job 1 has 4 GPUs", 1143.0: "job 1 ends"},
    "sidecar": {290.0: "job 2 starts", 692.0: "job 2 ends", 729.0: "job 1 has 4 GPUs", 845.0: "job 1 ends"},
}
"""Seconds printed in II-C, with what happened then."""

PRINTED_IDLE_S = {"termination": 204.0, "sidecar": 27.0}
"""How long the reallocated GPUs stood idle as job 1 shrank (II-C)."""

SHRINK_WINDOW_S = (160.0, 420.0)


def idle_interval(results: ExperimentResults) -> Chart:
    """Return who trains on each GPU while job 1 gives two GPUs to job 2 (Figure 1)."""
    return Chart(
        "GPUs stand idle while job 1 gives two of them to job 2",
        results.one_run,
        [_shrinking(results, policy) for policy in ("termination", "sidecar")],
        ("The paper's Figure 1 is a sketch of one GPU; the seconds in brackets are those of its case study.",),
    )


def _shrinking(results: ExperimentResults, policy: str) -> ChartPanel:
    begin, end = SHRINK_WINDOW_S
    spans = []
    for gpu, busy in _trained_on(results, policy).items():
        at = begin
        for span in (s for s in busy if s.end > begin and s.begin < end):
            if span.begin > at:
                spans.append(ChartSpan(gpu, "idle", at, span.begin, idle=True))
            spans.append(replace(span, begin=max(begin, span.begin), end=min(end, span.end)))
            at = span.end
    idle_s = max((s.end - s.begin for s in spans if s.idle), default=0.0)
    title = f"{policy}: two GPUs stand idle for {idle_s:.0f} s (paper: {PRINTED_IDLE_S[policy]:.0f} s)"
    return ChartPanel(title, SINCE, spans=spans, marks=[ChartMark(180.0, "job 2 is submitted")])


def _trained_on(results: ExperimentResults, policy: str) -> dict[str, list[ChartSpan]]:
    """Return by GPU, the last first, when which job trained on it."""
    trained: dict[str, list[ChartSpan]] = {}
    for held in sorted(results.run(policy).outcome.held, key=lambda h: (h.gpu, h.begin_s), reverse=True):
        begin, end = held.begin_s - results.zero, held.end_s - results.zero
        here = [
            ChartSpan(held.gpu, f"job {held.job[1:]} trains", max(a, begin), min(b, end))
            for a, b, rate in results.rates(policy, held.job)
            if rate > 0 and a < end and b > begin
        ]
        trained[held.gpu] = [*here, *trained.get(held.gpu, [])]
    return trained


def speed_by_gpus(results: ExperimentResults) -> Chart:
    """Return the speed of ResNet-18 and -34 by number of GPUs, on both types, and relative to one GPU (Figure 2).

    The lines are the speeds on which the workload runs; models of the same batch have the same ratio, drawn once.
    """
    types = list(dict.fromkeys(node.gpu_type for node in results.runs[0].workload.nodes))
    speeds = {gpu_type: _speeds(results, gpu_type) for gpu_type in types}
    shapes = {tuple((n, round(y / line.points[0][1], 3)) for n, y in line.points): line for line in speeds[types[0]]}
    multiples = [ChartLine(line.name, list(points)) for points, line in shapes.items()]
    printed = [(float(n), up) for n, up in printed_speeds.PRINTED.items()]
    multiples.append(ChartLine("", printed, published=True))
    of_one = ChartPanel(f"{types[0]}, as a multiple of one GPU", "GPUs", "speed", multiples, ticks=SIZES)
    panels = [ChartPanel(kind, "GPUs", "images per second", lines, ticks=SIZES) for kind, lines in speeds.items()]
    return Chart(
        "Training speed does not grow in proportion to GPUs",
        "Not simulated: the speeds that workload one runs on",
        [*panels, of_one],
        (
            'On one GPU: the shipped table, measured by others. On 2 and 4: the multiples that the paper prints of "a',
            'ResNet model" (section I), its marks. On 8 it prints none: a scalability law through these, by batch.',
        ),
    )  # fmt: skip


def _speeds(results: ExperimentResults, gpu_type: str) -> list[ChartLine]:
    profiles = results.runs[0].workload.policy_setups[0].profiles
    lines = []
    for number, named in enumerate(JOB_SETS["one"]):
        model, _, batch = named.partition("-")
        speeds = [(n, profiles.speed(str(number), gpu_type, n)) for n in SIZES]
        points = [(float(n), int(batch) / speed.seconds) for n, speed in speeds if speed is not None]
        if model in ("resnet18", "resnet34") and points:
            lines.append(ChartLine(f"ResNet-{model.removeprefix('resnet')}, batch {batch}", points))
    return lines


def iterations_per_second(results: ExperimentResults) -> Chart:
    """Return the speed of both jobs of the case study over time, by approach (Figure 3)."""
    panels = [
        ChartPanel(
            policy, SINCE, "iterations per second",
            [ChartLine(f"job {job[1:]}", results.rate_steps(policy, job), "step") for job in (FIRST, SECOND)],
            marks=[ChartMark(at, words, published=True) for at, words in PRINTED_TIMES[policy].items()],
        )
        for policy in APPROACHES
    ]  # fmt: skip
    note = "Unit: job 1 on four GPUs does one iteration a second, and so does job 2 on two: the paper prints no speed."
    return Chart("Iterations per second of two jobs under three approaches", results.one_run, panels, (note,))


def case_study_bars(results: ExperimentResults) -> Chart:
    """Return makespan and mean completion time of the case study (Figure 4)."""
    named = {"makespan": "makespan_s", "mean completion time": "mean_jct_s"}
    bars = [
        ChartBars(
            policy,
            {words: results.mean(policy, measure) for words, measure in named.items()},
            {w: p for w, measure in named.items() if (p := results.published(policy, measure)) is not None},
        )
        for policy in APPROACHES
    ]
    panel = ChartPanel("", "", "seconds", bars=bars)
    return Chart("Two jobs on four GPUs: makespan and mean completion time", results.one_run, [panel])


def evaluation_bars(results: ExperimentResults) -> Chart:
    """Return makespan and mean completion time as shares of the default scheduler's (Figure 6)."""
    named = {"makespan": "makespan", "mean completion time": "mean_jct"}
    bars = []
    for policy in results.simulated(*EVALUATED):
        values = {w: results.mean(policy, f"{m}_s") / results.mean("default", f"{m}_s") for w, m in named.items()}
        papers = {w: _of_default(results, policy, f"{m}_ratio") for w, m in named.items()}
        bars.append(ChartBars(policy, values, {w: p for w, p in papers.items() if p is not None}))
    panel = ChartPanel("", "", "share of the default scheduler's", bars=bars)
    note = "The paper's mark for termination follows from the two reductions that it prints for its own framework."
    title = f"Makespan and mean completion time, {results.summary['workload']}"
    return Chart(title, results.all_runs, [panel], (note,))


def _of_default(results: ExperimentResults, policy: str, ratio: str) -> float | None:
    """Return the paper's ratio to the default scheduler; termination's follows from those to both."""
    if policy == "default":
        return 1.0
    if policy != "termination":
        return results.published(policy, ratio, "default")
    ours, of_termination = (results.published("sidecar", ratio, baseline) for baseline in ("default", "termination"))
    return None if ours is None or of_termination is None else ours / of_termination


def _waits(results: ExperimentResults, policy: str) -> list[tuple[float, float, float]]:
    """Return (submitted, started, ended) of each job, seconds from the first submission."""
    zero = results.zero
    return [
        (job.given.arrival_s - zero, (job.began_s or 0.0) - zero, (job.finished_s or 0.0) - zero)
        for job in results.run(policy).outcome.jobs
    ]


def pending_and_running(results: ExperimentResults) -> Chart:
    """Return the numbers of pending and running jobs over time (Figure 7)."""
    counts: dict[str, Callable[[str], Points]] = {
        "pending jobs": lambda policy: at_once((came, began) for came, began, _ in _waits(results, policy)),
        "running jobs": lambda policy: at_once((began, end) for _, began, end in _waits(results, policy)),
    }
    panels = [_by_approach(results, words, SINCE, words, points) for words, points in counts.items()]
    return Chart("Pending and running jobs, workload one", results.one_run, panels)


def _by_approach(results: ExperimentResults, title: str, x: str, y: str, points: Callable[[str], Points]) -> ChartPanel:
    lines = [ChartLine(policy, points(policy), "step") for policy in results.simulated(*EVALUATED)]
    return ChartPanel(title, x, y, lines)


def pending_at_submission(results: ExperimentResults) -> Chart:
    """Return how many jobs are pending when each job is submitted (Figure 8)."""

    def pending(policy: str) -> Points:
        waits = sorted(_waits(results, policy))
        return [
            (float(i), float(sum(other <= came < began for other, began, _ in waits)))
            for i, (came, _, _) in enumerate(waits, 1)
        ]

    policies = results.simulated(*EVALUATED)
    lines = [ChartLine(policy, pending(policy)) for policy in policies]
    last = float(len(results.jobs))
    for policy in policies:
        if (number := results.published(policy, "pending_at_last_arrival")) is not None:
            lines.append(ChartLine(policy, [(last, number)], published=True))
    panel = ChartPanel("", "number of the submitted job", "pending jobs", lines)
    return Chart("Pending jobs when each job is submitted, workload one", results.one_run, [panel])


def completion_time_distribution(results: ExperimentResults) -> Chart:
    """Return the distribution of job completion times (Figure 9)."""
    panel = _by_approach(
        results, "", "job completion time, seconds", "share of jobs",
        lambda policy: distribution(results.completion_times(policy).values()),
    )  # fmt: skip
    title = f"Distribution of job completion times, {results.summary['workload']}"
    return Chart(title, results.one_run, [panel], ("The paper prints no value of this figure.",))


def gpu_usage(results: ExperimentResults) -> Chart:
    """Return the number of GPUs in use over time (Figure 10)."""
    zero = results.zero
    panel = _by_approach(
        results, "", SINCE, "GPUs in use",
        lambda policy: at_once((h.begin_s - zero, h.end_s - zero) for h in results.run(policy).outcome.held),
    )  # fmt: skip
    return Chart("GPUs in use, workload one", results.one_run, [panel])


def changes(results: ExperimentResults) -> Chart:
    """Return how often GPUs were added to running jobs and removed from them (Figure 11)."""
    return Chart(
        "GPUs added to and removed from running jobs, workload one",
        results.all_runs,
        [ChartPanel("", "", "events", bars=counted(results, results.simulated(*EVALUATED[1:]), ADDED))],
    )


ADDED = {"adding": "adds", "removing": "removes"}


def counted(results: ExperimentResults, policies: Sequence[str], named: Mapping[str, str]) -> list[ChartBars]:
    """Return a bar per measure and policy: the mean of all seeds, its spread, and the paper's number."""
    return [
        ChartBars(
            policy,
            {words: results.mean(policy, measure) for words, measure in named.items()},
            {w: p for w, measure in named.items() if (p := results.published(policy, measure)) is not None},
            {words: results.spread(policy, measure) for words, measure in named.items()},
        )
        for policy in policies
    ]
