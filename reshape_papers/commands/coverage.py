"""Runs `reshape simulate --coverage`: how many of the 90 % intervals of predicted starts and ends hold.

Called by `simulate_verbs.py`. The table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coordinator.dashboard.words import seconds
from coordinator.errors import Rejected
from reshape.output.tables import table
from reshape.output.terminal import to_json
from reshape_papers.commands.simulate import JobSource
from reshape_papers.validation.coverage import COSTS, PACE, Row, measure, summary
from simulator.scenario import NoWorkload
from simulator.state import SimulationStuck

HEAD = ("INTERVALS OF", "NUMBER", "HELD", "CAME EARLIER", "CAME LATER", "MEDIAN WIDTH", "MEDIAN TIME LEFT")
DRAWN = (
    f"Drawn: by which factor a job trains slower or faster than its profile (log-normal, sigma {PACE:g}), and a type's "
    f"launches and reshapes take longer (sigma {COSTS:g});\nno prediction knows the jobs that are submitted after it. "
    "Each seed begins without a past. A forecast is made before each decision, of all jobs there are."
)


def run(jobs: JobSource, *, seeds: int, output: str, data: Path | None) -> None:
    """Measure and print. Raises `Rejected` with a sentence for a workload that cannot be simulated."""
    if output == "csv":
        raise Rejected("coverage is printed as a table or as JSON; take -o table or -o json.")
    said = []
    try:
        with click.progressbar(jobs.draws(seeds, data), label=f"Simulating {jobs.name}", file=sys.stderr) as draws:
            for draw in draws:
                said += measure(draw())
    except (NoWorkload, SimulationStuck) as refused:
        raise Rejected(str(refused)) from refused
    rows = summary(said)
    click.echo(to_json({"workload": jobs.name, "seeds": seeds, "rows": rows}) if output == "json" else as_table(rows))


def as_table(rows: list[Row]) -> str:
    cells = [
        (row["of"], str(row["intervals"]), *(f"{row[name]:.1%}" for name in ("held", "early", "late")),
         seconds(row["median_width_s"]), seconds(row["median_to_go_s"]))
        for row in rows
    ]  # fmt: skip
    return f"{table(HEAD, cells)}\n\n{DRAWN}"
