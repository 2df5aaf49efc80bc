"""Builds the charts that compare jobs and policies by bars: completion times (SpeCon, FlowCon), response times (Slaml).

The published numbers beside ours come from `reshape_papers/published_figures.py`, those of single jobs from this
module. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reshape_papers import report
from reshape_papers.figures.chart import Chart, ChartBars, ChartPanel
from reshape_papers.figures.gpu_charts import counted
from reshape_papers.figures.results import ExperimentResults

PRINTED_JOBS = {
    "specon-fixed": {"ds": {"job-17": 348.7}, "specon": {"job-17": 217.6}},
    "flowcon-random-5": {
        "na": {"job-04": 422.5, "job-05": 489.4},
        "flowcon": {"job-04": 424.6, "job-05": 401.6},
        "flowcon-5%-60s": {"job-04": 472.4, "job-05": 396.4},
    },
}
"""Completion times of single jobs (SpeCon, VI-B; FlowCon, 5.4), by policy and job. Where models are drawn they would be
of other jobs."""


def completion_times(results: ExperimentResults, title: str, policies: tuple[str, ...]) -> Chart:
    """Return the completion time of each job under the first policy, the baseline, and the others; and their means."""
    policies = results.simulated(*policies)
    printed = PRINTED_JOBS.get(results.summary["workload"], {})
    bars = [
        ChartBars(policy, dict(sorted(results.completion_times(policy).items())), printed.get(policy, {}))
        for policy in policies
    ]
    panels = [
        ChartPanel("", "job", "completion time, seconds", bars=bars),
        ChartPanel("", "", "seconds", bars=[_means(results, policy, policies[0]) for policy in policies]),
    ]
    means = results.all_runs.partition(", ")[2]
    origin = f"{results.one_run}; below: {means}" if means else results.one_run
    notes = [line for policy in policies[1:] for line in _gains_over(results, policies[0], policy)]
    return Chart(title, origin, panels, notes)


def _means(results: ExperimentResults, policy: str, baseline: str) -> ChartBars:
    named = {"mean completion time": "mean_jct", "makespan": "makespan"}
    papers = {words: _printed_s(results, policy, baseline, measure) for words, measure in named.items()}
    return ChartBars(
        policy,
        {words: results.mean(policy, f"{measure}_s") for words, measure in named.items()},
        {words: paper for words, paper in papers.items() if paper is not None},
    )


def _printed_s(results: ExperimentResults, policy: str, baseline: str, measure: str) -> float | None:
    """Return the paper's seconds, or what its ratio to the baseline implies."""
    seconds = results.published(policy, f"{measure}_s")
    before = results.published(baseline, f"{measure}_s")
    ratio = results.published(policy, f"{measure}_ratio", baseline)
    return before * ratio if seconds is None and before is not None and ratio is not None else seconds


def _gains_over(results: ExperimentResults, baseline: str, policy: str) -> list[str]:
    """Return what a policy's jobs gain over a baseline, and in a second line what the paper prints about that."""
    found = report.gains(results.completion_times(baseline), results.completion_times(policy))
    printed = {name: paper for name in found if (paper := results.published(policy, name)) is not None}
    lines = [f"{policy} beside {baseline}: {_gains_in_words(found)}."]
    return [*lines, f"In the paper {_gains_in_words(printed)}."] if printed else lines


def _gains_in_words(found: Mapping[str, float]) -> str:
    """Return how many jobs end earlier, by how much the best one, and the means of those that gain and that lose."""
    words = [f"{found['jobs_faster']:.0f} jobs end earlier"]
    if "best" in found:
        words.append(f"the best by {found['best']:.1%}")
    if earlier := _on_average(found, "mean_faster"):
        words.append(f"on average by {earlier}")
    later = _on_average(found, "mean_slower")
    return ", ".join(words) + (f"; those that end later on average by {later}" if later else "")


def _on_average(found: Mapping[str, float], measure: str) -> str:
    """Return a mean as a share if known as one, else in seconds; empty if there is none."""
    if found.get(measure):
        return f"{abs(found[measure]):.1%}"
    return f"{abs(found[f'{measure}_s']):.1f} s" if found.get(f"{measure}_s") else ""


def by_setting(results: ExperimentResults, title: str, settings: Mapping[str, str]) -> Chart:
    """Return the completion time of each of FlowCon's three jobs by setting (Figures 3 to 6).

    `settings`: words by policy; NA, without limits, comes last.
    """
    kinds = [job.cpu.kind for job in results.jobs if job.cpu is not None]
    chosen = {**settings, "na": "NA"}
    times = {policy: dict(zip(kinds, results.completion_times(policy).values(), strict=True)) for policy in chosen}
    bars = [
        ChartBars(
            kind,
            {words: times[policy][kind] for policy, words in chosen.items()},
            {words: p for policy, words in chosen.items() if (p := _of_kind(results, policy, kind)) is not None},
        )
        for kind in kinds
    ]
    note = "The paper's marks of VAE(P) are its makespans: VAE(P) ends last."
    return Chart(title, results.one_run, [ChartPanel("", "", "completion time, seconds", bars=bars)], (note,))


def _of_kind(results: ExperimentResults, policy: str, kind: str) -> float | None:
    alone = results.published(policy, "mean_jct_by_kind_s", kind=kind)
    return results.published(policy, "makespan_s") if alone is None and kind == "VAE(P)" else alone


def response_times(results: ExperimentResults) -> Chart:
    """Return the average response time by algorithm, with and without deadlines (Slaml, Figure 4)."""
    return _slaml(results, "Average response time", "seconds", {"average response time": "art_s"})


def rescheduled_jobs(results: ExperimentResults) -> Chart:
    """Return how many jobs end too late and how many are stopped and queued again (Slaml, Figure 5)."""
    return _slaml(
        results, "Late and rescheduled jobs", "jobs", {"beyond the target": "failed", "rescheduled": "rescheduled"}
    )


def _slaml(results: ExperimentResults, what: str, unit: str, named: Mapping[str, str]) -> Chart:
    policies = [run.policy for run in results.runs]
    bars: Sequence[ChartBars] = counted(results, policies, named)
    placement = results.summary["workload"].removeprefix("deadline-")
    return Chart(
        f"{what}: Volcano's {placement}, with deadlines and without",
        results.all_runs,
        [ChartPanel("", "", unit, bars=bars)],
        ("The paper prints no number of this figure.",),
    )
