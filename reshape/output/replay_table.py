"""Sets a replay beside what came: for programs, and as a table and sentences for people. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.dashboard.words import NONE, listed, seconds
from coordinator.forecasts.forecast import Forecast
from reshape.output.tables import table
from reshape.what_if.replay import Replay

HOUR = 3600.0
NOTE = (
    "Assumed: ended jobs do the work they did, open ones what is expected of them, at the speeds measured by now, on "
    "the nodes of now, without requests of operators (docs/reference/command-line.md)."
)


def as_object(found: Replay) -> dict[str, Any]:
    runs = {"came": found.came, "replayed": found.ran, **found.others}
    regrets = {name: _hours(found.regret_s(name)) for name in found.others}
    return {
        "runs": {name: _object(found, run) for name, run in runs.items()},
        "regret_gpu_hours": regrets,
        "left_out": [*found.left_out],
    }


def _object(found: Replay, run: Forecast) -> dict[str, Any]:
    return {
        "makespan_s": run.makespan_s,
        "mean_completion_s": run.mean_completion_s,
        "missed_deadlines": run.missed,
        "job_gpu_hours": run.gpu_s / HOUR,
        "fleet_gpu_hours": _hours(found.fleet_s(run)),
        "jobs": [{"job_id": job.job_id, "start_s": job.start_s, "end_s": job.end_s} for job in run.jobs],
    }


def as_table(found: Replay) -> str:
    """Return a column for what came, for its replay and for each other policy, then the regrets in sentences."""
    runs = {"CAME": found.came, "REPLAYED": found.ran, **found.others}
    cells: dict[str, Callable[[Forecast], str]] = {
        "Makespan": lambda run: _time(run.makespan_s),
        "Mean completion time": lambda run: _time(run.mean_completion_s),
        "Deadlines missed": lambda run: str(run.missed),
        "GPU-hours held by jobs": lambda run: _rounded(run.gpu_s / HOUR),
        "GPU-hours of the fleet while there was work": lambda run: _in_hours(found.fleet_s(run)),
    }
    rows = [[name, *map(cell, runs.values())] for name, cell in cells.items()]
    lines = [table(["", *runs], rows), "", *_accuracy(found), *_regrets(found), NOTE]
    if guesses := [job.job_id for job in found.ran.jobs if job.guess]:
        lines.append(f"Rests on a length or a speed that is not known: {listed(guesses)}.")
    if found.left_out:
        lines.append(f"Left out, on CPU or ended before they started: {listed([*found.left_out])}.")
    return "\n".join(lines)


def _accuracy(found: Replay) -> list[str]:
    came, replayed = found.came.makespan_s, found.ran.makespan_s
    if not came or replayed is None:
        return []
    return [f"The replay of what ran has a makespan {100 * (replayed / came - 1):+.1f} % from the real one."]


def _regrets(found: Replay) -> list[str]:
    lines = []
    for name in found.others:
        regret = found.regret_s(name)
        if regret is None:
            lines.append(f"Under {name} some job never ends, so there is no regret to tell.")
        elif regret > 0:
            lines.append(f"Regret: {name} would have saved {_in_hours(regret)} GPU-hours of the fleet.")
        else:
            lines.append(f"No regret: {name} would have cost {_in_hours(-regret)} GPU-hours of the fleet more.")
    return lines


def _time(value: float | None) -> str:
    return NONE if value is None else seconds(value)


def _hours(value: float | None) -> float | None:
    return None if value is None else value / HOUR


def _in_hours(value: float | None) -> str:
    return NONE if value is None else _rounded(value / HOUR)


def _rounded(hours: float) -> str:
    return f"{hours:.2f}" if hours >= 1 else f"{hours:.3g}"
