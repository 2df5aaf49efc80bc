"""Lists the tables, figures and claims of the four papers that no simulated figure represents.

Their figures and tables with numbers are in `published_figures.py`. Called by `page.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from reshape_papers.papers import verdicts
from reshape_papers.papers.results import Figures, value
from reshape_papers.workloads import build, measured_contention, printed_speeds, recorded_trainings, saving_times
from reshape_papers.workloads.sidecar_workloads import SIZES, SMALL

SIDECAR, SPECON, FLOWCON, SLAML = "SideCar scheduling", "SpeCon", "FlowCon", "Slaml"
BY_TEST, NO_NUMBER, OPEN = "by test", "no number is printed", "open"
PICTURE = "the paper has only a picture"
INPUT = "an input: what real trainings gave"


@dataclass(frozen=True, slots=True)
class Claim:
    """One table, figure or claim, and what shows it here; `-` in an empty column."""

    paper: str
    where: str
    what: str
    shown_by: str  # a command, or a test
    verdict: str
    reason: str = "-"
    figure: str = "-"
    simulated: str = "-"
    live: str = "-"
    live_verdict: str = "-"
    live_reason: str = "-"


def _picture(paper: str, where: str, what: str, command: str) -> Claim:
    return Claim(paper, where, what, f"`reshape paper {command} --plot DIR`", NO_NUMBER, PICTURE)


def _falls(paper: str, what: str, experiment: str, after: float, printed: Mapping[str, float]) -> Claim:
    """Return the row of a Figure 1: the share of its fall that a recorded loss has made after a share of the work."""
    curves = {kind: recorded_trainings.loss(kind) for kind in printed}
    fallen = {kind: (curve(0) - curve(after)) / (curve(0) - curve(1)) for kind, curve in curves.items()}
    verdict = " / ".join(verdicts.of_amount(printed[kind], share) for kind, share in fallen.items())
    command = f"`reshape paper {experiment} --plot DIR`"
    papers, ours = _percent(printed.values()), _percent(fallen.values())
    return Claim(
        paper, "Figure 1", what, command, "shown", INPUT, papers, live=ours, live_verdict=verdict,
        live_reason="recorded",
    )  # fmt: skip


def _percent(shares: Iterable[float]) -> str:
    return " / ".join(f"{100 * share:.3g}" for share in shares) + " %"


def _saved() -> Claim:
    """Return the row of saving and resuming times: seconds, mean and deviation over the shares of a VAE."""
    rows = [row for row in saving_times.rows() if row["model"] == "vae"]
    others = [seconds for row in saving_times.rows() if row not in rows for seconds in saving_times.both(row)]
    ours = ", ".join(f"{row['framework']} {saving_times.mean(saving_times.both(row))}" for row in rows)
    most = max(seconds for row in rows for seconds in saving_times.both(row))
    return Claim(
        SPECON, "Figures 2, 3", "to save and resume a VAE takes so long at any progress",
        f"`reshape paper {saving_times.EXPERIMENT} --plot DIR`",
        "shown", INPUT, f"< {saving_times.BELOW_S:g} s, σ {saving_times.SIGMA_S}", "5 s are charged",
        f"{ours}; other models {min(others):.1f} to {max(others):.1f} s",
        "below, as stated" if most < saving_times.BELOW_S else "more", "cold",
    )  # fmt: skip


def _contention() -> Claim:
    """Return the row of how much trainings on one node slow each other, for which no paper prints a number."""
    rows = measured_contention.rows()
    each = ", ".join(f"{row['model']} {row['framework']} {_percent([row['contention']])}" for row in rows)
    rough = max(max(row["alone"]) / min(row["alone"]) - 1.0 for row in rows)
    each += f"; roughly: on a busy machine the speeds of one alone differ by up to {_percent([rough])}"
    return Claim(
        SPECON, "VI", "speed that a training loses to each further one on its node (*resource competition*)",
        "`reshape record MODEL --beside 4`", "shown", INPUT, simulated=_percent([measured_contention.per_job()]),
        live=each, live_verdict=NO_NUMBER, live_reason="the paper names it only",
    )  # fmt: skip


def figure_2() -> Claim:
    """Return the row of Figure 2: how many times as fast as on one GPU W1's jobs on ImageNet are, on each count."""
    profiles = build("elastic-w1", 0).policy_setups[0].profiles
    known = [of for (job_type, _), of in profiles.speeds.items() if job_type != SMALL]
    ups = {n: sorted({round(of[1].seconds / of[n].seconds, 2) for of in known}) for n in SIZES}
    found = [verdicts.of_amount(paper, ups[n][-1]) for n, paper in printed_speeds.PRINTED.items()]
    verdict = " / ".join(found) if len({*found}) > 1 else found[0]
    return Claim(
        SIDECAR, "Figure 2", "ResNet on 1, 2, 4 GPUs is 1, 1.7, 2.4 times as fast; more GPUs can even slow it down",
        "`reshape paper elastic-w1 --plot DIR`", verdict,
        "an input: what W1 to W4 run on; on 8 GPUs the rule of `reshape_papers/workloads/printed_speeds.py`",
        " / ".join(f"{up:g}" for up in printed_speeds.PRINTED.values()),
        " / ".join(" to ".join(f"{up:g}" for up in dict.fromkeys((ups[n][0], ups[n][-1]))) for n in SIZES),
    )  # fmt: skip


TABLES = "`tests/contract/test_tables_of_the_paper.py`"
CLAIMS: tuple[Claim, ...] = (
    Claim(SIDECAR, "Figure 1", "steps of a reshaping down; how long two GPUs of the case study stand idle meanwhile",
          "`reshape paper case-study --plot DIR`, `tests/e2e/test_demo.py`", "near / 1.5 times it",
          "cost", "termination 204 s / sidecar 27 s", "174 s / 37 s"),
    figure_2(),
    _picture(SIDECAR, "Figures 3, 4", "the case study over time", "case-study"),
    Claim(SIDECAR, "Figure 5", "the parts and their messages", "docs/architecture.md", "shown"),
    Claim(SIDECAR, "Tables II to V", "GPUs, jobs, speeds, accuracies", TABLES, BY_TEST),
    Claim(SIDECAR, "Tables VI, VII", "seven job types each", "`reshape_papers/workloads/sidecar_workloads.py`", "shown",
          "seconds on one GPU are others' measurements, type 6's invented; on several as in Figure 2"),
    _picture(SIDECAR, "Figure 7", "pending and running jobs over time", "elastic-w1"),
    _picture(SIDECAR, "Figure 8", "pending jobs at each submission", "elastic-w1"),
    _picture(SIDECAR, "Figure 9", "completion times of W1 and W2 as a distribution", "elastic-w1"),
    _picture(SIDECAR, "Figure 10", "GPUs in use over time", "elastic-w1"),
    Claim(SIDECAR, "VI-E", "there are no stragglers, as no GPU has two users", "`tests/e2e/test_own_gpus_only.py`",
          OPEN, "tested is that a job opens only its own GPUs; a GPU that is slow for another reason holds up its "
          "whole job, and nothing looks for it"),
    Claim(SIDECAR, "VI-E", "parameter servers are scheduled like AllReduce", "-", OPEN,
          "predictions take the seconds of an iteration, whatever makes them; no training with such servers was run"),
    _falls(SPECON, "share of their fall that the losses of VAE, Bi-RNN and GRU have after a fifth of the time",
           "specon-random-20", 0.2, {"VAE(P)": 0.65, "Bi-RNN(P)": 0.98, "GRU(P)": 0.9}),
    _saved(),
    _contention(),
    Claim(SPECON, "Figure 4", "the parts and their messages", "docs/architecture.md", "shown"),
    Claim(
        SPECON, "Table II", "five models on two frameworks", "`reshape_papers/workloads/specon_workloads.py`", "shown"
    ),
    _picture(SPECON, "Figures 8 to 11", "containers and CPU use of each worker over time", "specon-random-30"),
    _falls(FLOWCON, "RNN-GRU has 96.8 % of its accuracy after 14.5 % of the time; ours: of the fall of its loss",
           "flowcon-random-5", 0.145, {"GRU(T)": 0.968}),
    Claim(FLOWCON, "Figure 2", "the parts and their messages", "docs/architecture.md", "shown"),
    Claim(FLOWCON, "Table 1", "six models", "`reshape_papers/workloads/flowcon_workloads.py`", "shown"),
    _picture(FLOWCON, "Figures 7, 8", "CPU of three jobs over time, with limits and without", "flowcon-fixed"),
    _picture(FLOWCON, "Figures 10, 11", "CPU of five jobs over time", "flowcon-random-5"),
    _picture(FLOWCON, "Figures 13, 14", "growth efficiency of two jobs over time", "flowcon-random-10"),
    _picture(FLOWCON, "Figures 15, 16", "CPU of ten jobs over time", "flowcon-random-10"),
    Claim(FLOWCON, "3.2.1, 4", "growth efficiency by four resources, and weights of block I/O among the limits", "-",
          OPEN, "only CPU is limited (F11); memory, block I/O and network I/O are measured where Prometheus has them, "
          "and no experiment of the paper limits them"),
    Claim(SLAML, "Figure 1", "queue waits of random queue states", "-", "not repeated",
          "an argument against another system; nothing of the paper's rests on it"),
    Claim(SLAML, "Figures 2, 3", "the parts and their messages", "docs/architecture.md", "shown"),
    Claim(SLAML, "Listing 1", "a Slaml of three tasks", "`tests/e2e/test_slaml_example.py`", BY_TEST),
    _picture(SLAML, "Figure 5", "failed and rescheduled jobs differ by placement", "deadline-gang"),
)  # fmt: skip


def binpack(simulated: Figures, live: Figures) -> Claim:
    """Return the row of Slaml's claim that binpack alone has the highest response time."""
    times = _response_times(simulated)
    really = _response_times(live)
    ran = not any(map(math.isnan, really.values()))
    return Claim(
        SLAML, "Figure 4", "binpack alone has the highest response time", "`reshape paper deadline-binpack`",
        _of_binpack(times), "load", simulated=_each(times), live=_each(really),
        live_verdict=_of_binpack(really) if ran else "-", live_reason="live-short" if ran else "-",
    )  # fmt: skip


def _of_binpack(times: Mapping[str, float]) -> str:
    """Return the verdict on response times, seconds by placement; within 2 % there is no difference."""
    above = times["binpack"] / max(times["gang"], times["task-topology"]) - 1
    return "no difference" if abs(above) <= 0.02 else "shown" if above > 0 else "opposite sign"


def overheads(simulated: Figures, live: Figures) -> Claim:
    """Return the row of the averages of Table VIII: overheads of termination and of the paper's framework."""
    printed = {"termination": 0.267, "sidecar-printed": 0.079}
    ours, really = (
        {policy: _overhead(figures, policy) for policy in printed} for figures in (simulated, live)
    )  # fmt: skip
    verdict, lived = (
        " / ".join(verdicts.of_amount(printed[policy], share) for policy, share in shares.items())
        for shares in (ours, really)
    )
    ran = not any(map(math.isnan, really.values()))
    return Claim(
        SIDECAR, "Table VIII", "overheads of termination and of the framework, averages of W1 to W4",
        "`reshape paper elastic-w1`, `-w2`, `-w3`, `-w4`", verdict, "length", _percent(printed.values()),
        _percent(ours.values()), *((_percent(really.values()), lived, "live-length") if ran else ()),
    )  # fmt: skip


def _overhead(figures: Figures, policy: str) -> float:
    return statistics.fmean(value(figures, f"elastic-w{n}", policy, "overhead_share") for n in (1, 2, 3, 4))


def _response_times(figures: Figures) -> dict[str, float]:
    return {name: value(figures, f"deadline-{name}", name, "art_s") for name in ("binpack", "gang", "task-topology")}


def _each(times: Mapping[str, float]) -> str:
    known = [f"{name} {seconds:.0f}" for name, seconds in times.items() if not math.isnan(seconds)]
    return ", ".join(known) or "-"
