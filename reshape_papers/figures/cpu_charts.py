"""Builds the charts of jobs that train on CPU: loss curves, CPU use and growth efficiency of containers, moves.

CPU use follows from progress: a job's core-seconds are distributed evenly over its iterations. Pure.
"""

from __future__ import annotations

from adaptive_scheduler.decision import Move
from reshape_papers.figures.chart import Chart, ChartLine, ChartMark, ChartPanel, ChartSpan, Points
from reshape_papers.figures.results import SINCE, ExperimentResults
from simulator.scenario import CpuWork, Submission

STEPS = 200
"""Points of a loss curve."""

SPECON_FALLEN = {"VAE": 0.65, "Bi-RNN": 0.98, "GRU": 0.90}
"""Share of its fall that a loss has after a fifth of the time (SpeCon, III-A)."""

FLOWCON_GRU = [(0.145, 1 - 0.968)]
"""GRU has 96.8 % of its gain in accuracy after 14.5 % of the time (FlowCon, 2.2)."""

EFFICIENCY_EVERY_S = 20.0
"""Interval of growth efficiency, as in FlowCon's 5.5.1."""


def specon_progress(results: ExperimentResults) -> Chart:
    """Return the loss of VAE, Bi-RNN and GRU over the time of a training run alone (SpeCon, Figure 1)."""
    curves = [line for line in _losses(results) if line.name.partition("(")[0] in SPECON_FALLEN]
    named = {line.name.partition("(")[0]: line.points for line in reversed(curves)}
    printed = [ChartLine(model, [(0.2, 1 - fallen)], published=True) for model, fallen in SPECON_FALLEN.items()]
    return _progress([*(ChartLine(model, named[model]) for model in SPECON_FALLEN if model in named), *printed])


def flowcon_progress(results: ExperimentResults) -> Chart:
    """Return the loss of the five models over the time of a training run alone (FlowCon, Figure 1)."""
    return _progress([*_losses(results), ChartLine("GRU(T)", FLOWCON_GRU, published=True)])


def _progress(lines: list[ChartLine]) -> Chart:
    panel = ChartPanel("", "share of the training time", "share of the loss's fall that is left", lines)
    return Chart("How the loss falls while a model trains alone", "Measured: recorded trainings of the zoo", [panel])


def _losses(results: ExperimentResults) -> list[ChartLine]:
    """Return a curve per model, from 1 before training to 0 at its end."""
    works = {job.cpu.kind: job.cpu for job in results.jobs if job.cpu is not None and job.cpu.curve is not None}
    return [ChartLine(kind, _fall(work)) for kind, work in works.items()]


def _fall(work: CpuWork) -> Points:
    assert work.curve is not None
    first, last = work.curve(0.0), work.curve(1.0)
    return [(i / STEPS, (work.curve(i / STEPS) - last) / ((first - last) or 1.0)) for i in range(STEPS + 1)]


def cpu_usage(results: ExperimentResults, policy: str, title: str, notes: tuple[str, ...] = ()) -> Chart:
    """Return the share of each node's cores that each of its containers uses, stacked."""
    workload = results.run(policy).workload
    panels = [
        ChartPanel(
            node.name if len(workload.nodes) > 1 else "", SINCE, "share of the cores",
            [line for job in results.jobs if (line := _use(results, policy, job, node.name, node.cores)).points],
        )
        for node in workload.nodes
    ]  # fmt: skip
    return Chart(title, results.one_run, panels, notes)


def _use(results: ExperimentResults, policy: str, job: Submission, node: str, cores: float) -> ChartLine:
    assert job.cpu is not None
    there = [h for h in results.run(policy).outcome.on_cpu if h.job == job.id and h.gpu == node]
    factor = job.cpu.core_s / job.iterations / cores
    points = [
        (at, use)
        for h in there
        for at, use in results.rate_steps(policy, job.id, factor)
        if h.begin_s <= at + results.zero <= h.end_s
    ]
    ends = [(h.end_s - results.zero, 0.0) for h in there]
    return ChartLine(job.id, sorted(dict([*points, *ends]).items()), "area")


def growth_efficiency(results: ExperimentResults, job_id: str, policies: tuple[str, ...]) -> Chart:
    """Return a job's growth of the loss per second and core, by policy (FlowCon, Figures 13 and 14)."""
    lines = [ChartLine(policy, _efficiency(results, policy, job_id), "step") for policy in policies]
    panel = ChartPanel("", SINCE, "growth efficiency", _to_highest(lines), log=True)
    notes = (
        f"Measured every {EFFICIENCY_EVERY_S:.0f} s: change of the loss per core-second; 1 is the highest.",
        "The paper prints no value of it.",
    )
    return Chart(f"Growth efficiency of {job_id}", results.one_run, [panel], notes)


def _to_highest(lines: list[ChartLine]) -> list[ChartLine]:
    highest = max((y for line in lines for _, y in line.points), default=1.0) or 1.0
    return [ChartLine(line.name, [(x, y / highest) for x, y in line.points], line.drawn) for line in lines]


def _efficiency(results: ExperimentResults, policy: str, job_id: str) -> Points:
    """Return E's change per core-second in each interval: per second, divided by the mean use (FlowCon, 1 and 2)."""
    job = next(job for job in results.jobs if job.id == job_id)
    assert job.cpu is not None and job.cpu.curve is not None
    trail = results.run(policy).outcome.trails[job_id]
    core_s = job.cpu.core_s / job.iterations
    points: Points = []
    at, last = trail[0][0], trail[0][1]
    while at < trail[-1][0]:
        then = min(at + EFFICIENCY_EVERY_S, trail[-1][0])
        done = _done_at(trail, then)
        if done > last:
            change = abs(job.cpu.curve(done / job.iterations) - job.cpu.curve(last / job.iterations))
            points.append((at - results.zero, change / ((done - last) * core_s)))
        at, last = then, done
    return points


def _done_at(trail: Points, at: float) -> float:
    """Return the iterations done at that time; progress is linear between two changes of speed."""
    before = max((point for point in trail if point[0] <= at), default=trail[0])
    after = min((point for point in trail if point[0] > at), default=before)
    if after[0] <= before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (at - before[0]) / (after[0] - before[0])


def containers_by_node(results: ExperimentResults, policy: str, title: str) -> Chart:
    """Return where each container trains, and its moves: M for a converged job, R to rebalance (SpeCon, 8 and 9)."""
    zero, outcome = results.zero, results.run(policy).outcome
    order = [job.id for job in reversed(results.jobs)]
    trained = sorted(outcome.on_cpu, key=lambda h: (order.index(h.job), h.begin_s))
    spans = [ChartSpan(h.job, h.gpu, h.begin_s - zero, h.end_s - zero) for h in trained]
    marks = [
        ChartMark(at - zero, "R" if decision.rebalance else "M", decision.job)
        for at, decision in outcome.decisions
        if isinstance(decision, Move)
    ]
    note = "Each row is a container, coloured by its worker. M: moved as it had converged; R: moved to rebalance."
    return Chart(title, results.one_run, [ChartPanel("", SINCE, spans=spans, marks=marks)], (note,))
