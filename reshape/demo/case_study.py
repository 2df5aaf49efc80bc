"""Runs `reshape demo`: the case study of SideCar scheduling with real processes, with live output and a summary.

Two trainings share four emulated GPUs. The second gets two of the first's while both run, and the
first takes them back. Beside it stand the two baselines: predicted from the same run's measured
overheads, or with `--measure-all` really run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from reshape.demo import baseline_prediction, lengths
from reshape.demo.lengths import DemoPlan
from reshape.demo.run import FIRST, SECOND, DemoRun, DemoSystem, system
from reshape.demo.teller import Teller
from reshape.output.tables import table
from reshape.services.temporary_system import RunFailed

View = dict[str, Any]

BASELINES = ("default", "termination")
READY = "newcomer ready"  # only where it is for one
STAGES = ("decide", READY, "signal", "checkpoint", "exit", "spawn", "first step")


def run(*, trainer: str | None, as_json: bool, measure_all: bool, out: Path | None) -> int:
    """Run the demo and return 0 if both jobs completed, each step was done once, and no GPU had two users.

    One reshape down and one up are required, too, unless the machine became slower than measured just before; the
    report then says so. Otherwise returns 1.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a SIGTERM to the demo ends its jobs, too
    say = Teller(quiet=as_json)
    trainer, folder = _trainer(trainer, say), _folder(out)
    try:
        with say.screen():
            plan, ours = _measured_and_run(trainer, folder, say)
            measured = {name: _baseline(plan, name, folder, say) for name in BASELINES} if measure_all else {}
    except RunFailed as failed:
        click.echo(f"The demo failed: {failed}\nIts files are in {folder}.", err=True)
        return 1
    result = summary(plan, ours, measured)
    (folder / "result.json").write_text(json.dumps(result, indent=2))
    pictures = _draw(ours, folder)
    if as_json:
        click.echo(json.dumps(result))
    else:
        _print(result, [*pictures, folder / "result.json"])
    return 0 if not result["complaints"] else 1


def summary(plan: DemoPlan, ours: DemoRun, measured: dict[str, DemoRun]) -> View:
    """Return everything that the demo reports, as one object."""
    predicted = _predict(plan, ours)
    baselines: View = {}
    for name in BASELINES:
        seconds = measured[name].makespan_s if name in measured else predicted[name]
        baselines[name] = {
            "makespan_s": seconds,
            "measured": name in measured,
            "predicted_makespan_s": predicted[name],
            "ours_over_it": ours.makespan_s / seconds,
        }
    result: View = {
        "emulated": True,
        "trainer": plan.trainer,
        "gpus": 4,
        "makespan_s": ours.makespan_s,
        "what_if": _what_if(ours),
        "jct_s": ours.jct_s,
        "mean_jct_s": sum(ours.jct_s.values()) / 2,
        "reshapes": ours.reshapes,
        "starts": [{"job": e["job_id"], "stages_s": e["stages_s"]} for e in ours.events_of_kind("started")],
        "baselines": baselines,
        "gpu_owner_violations": sum(len(r.violations) for r in (ours, *measured.values())),
        "pids": ours.pids,
        "every_step_once": all(r.every_step_once for r in (ours, *measured.values())),
        "measured_first": {
            "launch_s": plan.start.launch_s,
            "first_step_s": plan.start.first_step_s,
            "restart_s": plan.start.restart_s,
            "cold_stages_s": plan.start.cold,
        },
        "iterations": {FIRST: plan.first_iterations, SECOND: plan.second_iterations},
        "overheads": {k: v for k, v in ours.overheads.items() if isinstance(v, float | int)},
    }
    slower = _slowed(plan, ours)
    shown = lengths.not_shown(ours.makespan_s, {n: b["makespan_s"] for n, b in baselines.items()}, slower)
    reshaped = _reshaped(result)
    if slower and reshaped:
        shown, reshaped = [f"a reshape down and one up; {r}: {slower}" for r in reshaped] + shown, []
    return result | {"complaints": complaints(result, ours) + reshaped, "not_shown": shown}


def _what_if(run: DemoRun) -> View:
    """Return the makespan that `reshape what-if` predicts when job two comes, and by which share that is wrong."""
    from coordinator.forecasts.forecast import forecast

    left_s = forecast(run.asked).makespan_s if run.asked is not None else None
    if left_s is None:
        return {"makespan_s": None, "error": None}
    predicted = run.events_of_kind("submitted", SECOND)[0]["at"] - run.began + left_s
    return {"makespan_s": predicted, "error": predicted / run.makespan_s - 1.0}


def complaints(result: View, ours: DemoRun) -> list[str]:
    """Return broken promises that no slow machine excuses; empty if there are none."""
    found = [f"job {n} ended {j['state']}" for n, j in ours.jobs.items() if j["state"] != "completed"]
    for reshape in result["reshapes"]:
        if missing := [s for s in STAGES if s not in reshape["stages_s"] and (s != READY or reshape["for"])]:
            found.append(f"the reshape {reshape['direction']} of job {reshape['job']} has no {', '.join(missing)}")
    if result["gpu_owner_violations"]:
        found.append(f"a GPU had two users {result['gpu_owner_violations']} times")
    if any(len(pairs) != 1 for pairs in result["pids"].values()):
        found.append("a sidecar or shim was replaced")
    if not result["every_step_once"]:
        found.append("a step was lost or done twice")
    return found


def _reshaped(result: View) -> list[str]:
    directions = [r["direction"] for r in result["reshapes"] if r["job"] == FIRST]
    if directions == ["down", "up"]:
        return []
    return [f"job {FIRST} was reshaped {' and '.join(directions) or 'never'}, not once down and once up"]


def _slowed(plan: DemoPlan, run: DemoRun) -> str:
    """Describe starts of this run that were slower than the one measured for its lengths; empty if none was."""
    starts = [e["stages_s"] for e in run.events_of_kind("started")]
    launches, first_steps = ([s[name] for s in starts if name in s] for name in ("launch", "first step"))
    gaps = [r["gap_s"] for r in run.reshapes if r["gap_s"] is not None]
    newcomers = [r["stages_s"][READY] for r in run.reshapes if READY in r["stages_s"]]
    return lengths.slowed(plan.start, launches, first_steps, gaps, newcomers)


def _measured_and_run(trainer: str, folder: Path, say: Teller) -> tuple[DemoPlan, DemoRun]:
    """One system measures and then runs the case study, so that it knows what a start and a restart take."""
    with _system(folder, "sidecar", say) as live:
        plan = _planned(trainer, live, say)
        return plan, _one(plan, "sidecar", live, say)


@contextlib.contextmanager
def _system(folder: Path, policy: str, say: Teller) -> Iterator[DemoSystem]:
    with system(folder / policy, policy, say.event) as live, say.watching(live.client):
        yield live


def _planned(trainer: str, live: DemoSystem, say: Teller) -> DemoPlan:
    """Measure starts and reshapes on this machine and return the lengths for it."""
    say.heading(f"How long a start and a reshape of the {trainer} trainer take here is measured first")
    start = live.measure(trainer)
    plan = lengths.plan(trainer, start)
    say.line(
        f"{start.launch_s:.1f} s to launch, {start.first_step_s:.1f} s to the first step, {start.restart_s:.1f} s to "
        f"reshape: so job {FIRST} is {plan.first_iterations} iterations long, job {SECOND} {plan.second_iterations}; "
        f"about {plan.expected_s:.0f} s"
    )
    return plan


def _predict(plan: DemoPlan, run: DemoRun) -> dict[str, float]:
    over = run.overheads
    down = run.reshapes[0]["stages_s"] if run.reshapes else {}
    two = run.events_of_kind("submitted", SECOND)[0]["at"] - run.began
    measured = baseline_prediction.MeasuredTimes(
        first_iterations=plan.first_iterations,
        second_iterations=plan.second_iterations,
        arrival_s=two,
        speeds=run.speeds,
        launch_s=over["k8s_init"],
        spawn_s=run.events_of_kind("started", FIRST)[0]["stages_s"].get("first step", 0.0),
        # Job two imported early, beside job one; a launch after a termination has nothing to run beside.
        together_s=max(
            plan.start.first_step_s, run.events_of_kind("started", SECOND)[0]["stages_s"].get("first step", 0.0)
        ),
        stop_s=sum(down.get(stage, 0.0) for stage in ("signal", "checkpoint", "exit")),
        remove_s=over["k8s_term"],
    )
    return {"default": baseline_prediction.default(measured), "termination": baseline_prediction.termination(measured)}


def _one(plan: DemoPlan, policy: str, live: DemoSystem, say: Teller) -> DemoRun:
    say.heading(f"{policy}: {plan.trainer} trainings on 4 emulated V100 GPUs")
    return live.execute(plan, policy)


def _baseline(plan: DemoPlan, policy: str, folder: Path, say: Teller) -> DemoRun:
    with _system(folder, policy, say) as live:
        return _one(plan, policy, live, say)


def _trainer(wanted: str | None, say: Teller) -> str:
    """Return `wanted`, by default Keras or, without TensorFlow, NumPy; an unavailable `wanted` is an error."""
    if wanted == "numpy":
        return "numpy"
    if importlib.util.find_spec("tensorflow") is not None:
        return "keras"
    if wanted == "keras":
        raise click.ClickException(
            "TensorFlow is not installed: pip install '.[tensorflow]' in a checkout of volcano-reshape, or "
            "--trainer numpy."
        )
    say.heading("TensorFlow is not installed: the demo trains with NumPy")
    return "numpy"


def _folder(out: Path | None) -> Path:
    """Make a new folder for this run's files."""
    parent = (out or Path("reshape-demo")).absolute()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    except OSError as error:
        raise click.ClickException(
            f"Cannot write to {parent}: {error.strerror}; choose another folder with --out."
        ) from None


def _draw(run: DemoRun, folder: Path) -> list[Path]:
    if importlib.util.find_spec("matplotlib") is None:
        return []
    from coordinator.dashboard.bars import gpu_bars, marks
    from reshape.output.plots import gantt

    bars, notes = gpu_bars(run.events, run.began), marks(run.events, run.began)
    return gantt(bars, folder / "gantt", "Two trainings share 4 emulated GPUs", notes)


def _print(result: View, files: list[Path]) -> None:
    cold = result["measured_first"]["cold_stages_s"]
    rows = [
        [r["job"], f"{r['direction']}, {r['from_gpus']} -> {r['to_gpus']}"]
        + [_seconds(r["stages_s"].get(stage)) for stage in STAGES]
        + [_seconds(r["gap_s"])]
        for r in result["reshapes"]
    ]
    rows.append(["before", "cold", *(_seconds(cold.get(stage)) for stage in (*STAGES, "gap"))])
    click.echo("\nReshapes, seconds per stage (emulated GPUs)")
    click.echo(table(["JOB", "GPUS", *(s.upper() for s in STAGES), "GAP"], rows))
    if result["reshapes"] and cold:
        gaps = " and ".join(f"{r['gap_s']:.2f}" for r in result["reshapes"] if r["gap_s"] is not None)
        without = f"without, as measured first, {_seconds(cold['gap'])} s"
        click.echo(f"An interpreter waited beside job {FIRST}, which stood still for {gaps} s; {without}")
    lines = [["sidecar (this run)", _seconds(result["makespan_s"]), _seconds(result["mean_jct_s"]), "measured", ""]]
    for name, base in result["baselines"].items():
        how = "measured" if base["measured"] else "predicted"
        lines.append([name, _seconds(base["makespan_s"]), "", how, f"{100 * (1 - base['ours_over_it']):.0f} %"])
    click.echo("\nMakespan and mean job completion time, seconds (emulated GPUs)")
    click.echo(table(["", "MAKESPAN", "MEAN JCT", "", "WE ARE SHORTER BY"], lines))
    if (foretold := result["what_if"])["makespan_s"] is not None:
        asked = f"What-if, asked when job {SECOND} came, predicted a makespan of {_seconds(foretold['makespan_s'])} s"
        click.echo(f"{asked}: {100 * foretold['error']:+.1f} %")
    click.echo(f"\nGPUs with two users: {result['gpu_owner_violations']} (by the trainers' own locks)")
    for complaint in result["complaints"]:
        click.echo(f"NOT AS PROMISED: {complaint}")
    for figures in result["not_shown"]:
        click.echo(f"NOT SHOWN HERE: {figures}")
    click.echo("\n".join(f"wrote {path}" for path in files))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
