"""Runs `reshape simulate --validate`: published figures beside those of the simulator.

Called by `simulate_verbs.py`. The table goes to standard output, progress to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from coordinator.errors import Rejected
from reshape.output.tables import NONE, table
from reshape.output.terminal import to_json
from reshape_papers.validation import SOURCES, validate
from simulator.scenario import NoWorkload

HEAD = ("ROW", "PUBLISHED", "OURS", "ERROR", "WITHIN", "HOLDS")
VERDICT = {True: "yes", False: "no", None: NONE}


def run(*, output: str, data: Path | None) -> None:
    """Validate and print. Raises `Rejected` with a sentence if the published figures are missing."""
    if output == "csv":
        raise Rejected("validation is printed as a table or as JSON; take -o table or -o json.")
    try:
        with click.progressbar(SOURCES, label="Validating", file=sys.stderr, item_show_func=_name) as sources:
            result = validate(data, sources)
    except NoWorkload as refused:
        raise Rejected(str(refused)) from refused
    click.echo(to_json(result) if output == "json" else as_table(result["rows"]))


def as_table(rows: list[dict[str, Any]]) -> str:
    """Return a table of all rows, the number of claims that hold, and the reasons of rows that miss."""
    claimed = [row for row in rows if row["holds"] is not None]
    parts = [
        table(HEAD, map(_cells, rows)),
        f"{sum(row['holds'] for row in claimed)} of {len(claimed)} rows are within the claimed error.",
        "\n".join(f"{row['name']}: {row['reason']}" for row in rows if row["reason"]),
        "Published in:\n" + "\n".join(dict.fromkeys(row["source"] for row in rows)),
    ]
    return "\n\n".join(part for part in parts if part)


def _name(source: str | None) -> str:
    """Return the label of the progress bar; empty when done."""
    return source or ""


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["name"],
        f"{row['published']:.5g}",
        f"{row['ours']:.5g}",
        NONE if row["error"] is None else f"{row['error']:+.1%}",
        NONE if row["within"] is None else f"{row['within']:.0%}",
        VERDICT[row["holds"]],
    )
