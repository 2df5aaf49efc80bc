"""Runs the experiments of one night, `reshape paper all --live`: one after the other, whatever becomes of each.

A failed one does not end the others, and what has ended well is not repeated by a later run of the same command: its
figures in the folder `out` are the record of that. At the end, after Ctrl-C too, it says what became of each.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from coordinator.errors import Rejected
from reshape.output.tables import table
from reshape.output.terminal import to_json
from reshape_papers.live_paper import outcome, runner
from reshape_papers.papers.results import OF_ONE_NIGHT

ALL = "all"
DONE = "done"
BEFORE = "done before"
REFUSED = "refused"
FAILED = "failed"
INTERRUPTED = "interrupted"
LEFT = "not begun"
AGAIN = "The same command runs again what is not done, and nothing else."

log = logging.getLogger(__name__)


class Became(NamedTuple):
    """The outcome of an experiment, and the reason in a sentence; empty where it is done."""

    outcome: str
    why: str = ""


def run(
    *,
    scale: float | None,
    runs: int,
    trainer: str,
    data: Path | None,
    out: Path,
    output: str,
    names: Sequence[str] = OF_ONE_NIGHT,
) -> int:
    """Run what is not done yet; return 0 once all is. Raises `Rejected` where `out` cannot take the figures."""
    runner.begin(out)
    became = dict.fromkeys(names, Became(LEFT))
    try:
        for name in names:
            became[name] = Became(INTERRUPTED)  # unless it comes to its end
            became[name] = _run_one(name, runner.scale_of(name, scale), runs, trainer, data, out, output)
    finally:
        click.echo(_as_json(became) if output == "json" else _as_table(became))
    return 0 if _all_done(became) else 1


def _run_one(name: str, scale: float, runs: int, trainer: str, data: Path | None, out: Path, output: str) -> Became:
    try:
        if _is_done(out / f"{name}.json", scale, runs, trainer):
            return Became(BEFORE)
        result = runner.experiment(name, scale, runs, trainer, data)
        paths = runner.written(result, out)
    except (Rejected, OSError) as failed:
        return Became(FAILED, str(failed))
    except Exception as fault:  # one bad experiment must not cost the others their night
        log.exception("experiment %s", name)
        return Became(FAILED, f"{type(fault).__name__}: {fault}")
    if output != "json":
        click.echo(outcome.as_table(result) + "\n")
    click.echo("\n".join(f"wrote {path}" for path in paths), err=True)
    return Became(REFUSED, " ".join(result["off"])) if result["off"] else Became(DONE)


def _is_done(file: Path, scale: float, runs: int, trainer: str) -> bool:
    """Return whether the file holds as many draws, of this scale and trainer, of which each tells something."""
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # there is none, or its writing was interrupted
        return False
    wanted = {"scale": scale, "runs": runs, "trainer": trainer, "off": []}
    return isinstance(found, dict) and all(found.get(field) == value for field, value in wanted.items())


def _all_done(became: dict[str, Became]) -> bool:
    return {one.outcome for one in became.values()} <= {DONE, BEFORE}


def _as_json(became: dict[str, Became]) -> str:
    return to_json([{"experiment": name, "outcome": one.outcome, "why": one.why} for name, one in became.items()])


def _as_table(became: dict[str, Became]) -> str:
    rows = table(("EXPERIMENT", "OUTCOME"), ((name, one.outcome) for name, one in became.items()))
    whys = [f"{name}: {one.why}" for name, one in became.items() if one.why]
    return "\n\n".join([rows, *whys, *([] if _all_done(became) else [AGAIN])])
