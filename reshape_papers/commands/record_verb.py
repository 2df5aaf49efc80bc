"""Defines the verb `record`: trains a model of the zoo, alone or beside others.

An entry point of the group `reshape.commands`. Imports only click until it runs.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import click

from reshape.output.terminal import REFUSED, CliSettings, complain, print_out, printing


@click.command()
@click.argument("model")
@click.option("--framework", type=click.Choice(["keras", "torch"]), default="keras", show_default=True)
@click.option("--python", default=sys.executable, metavar="PATH", help="A Python that has it.  [default: this one]")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the samples.  [default: the model's own]")
@click.option("--samples", type=click.IntRange(1), default=2048, show_default=True, help="Samples of an epoch.")
@click.option("--saving", is_flag=True, help="Stop it at 10 to 90 % and start it again, and measure that instead.")
@click.option(
    "--beside",
    type=click.IntRange(2),
    metavar="N",
    help="Train two to N side by side as well, and measure the speed that each loses instead.",
)
@click.option("--cpus", type=click.IntRange(1), help="With --beside: bind all to so many CPUs.  [default: 1]")
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="Keep it in this JSON file, too.")
@printing
@click.pass_obj
def record(
    settings: CliSettings, /, model: str, framework: str, python: str, epochs: int | None, samples: int,
    saving: bool, beside: int | None, cpus: int | None, into: Path | None,
) -> int:  # fmt: skip
    """Train MODEL of the zoo alone, and measure its loss, CPU time, memory and I/O (examples/zoo)."""
    from reshape_papers.ending_signals import end_as_by_ctrl_c
    from reshape_papers.recordings import contention, recording
    from reshape_papers.recordings.saving import SHARES, measure

    if (program := shutil.which(python)) is None:
        raise click.BadParameter(f"{python} is no program.", param_hint="--python")
    if into:
        try:
            recording.kept(into)
        except (OSError, ValueError) as why:
            raise click.BadParameter(f"{into} cannot take a recording: {why}", param_hint="--into") from None
    _check_beside(saving, epochs, beside, cpus)
    allowed = sorted(os.sched_getaffinity(0))
    if (bound_to := cpus or 1) > len(allowed):
        raise click.BadParameter(f"this process may use {len(allowed)}.", param_hint="--cpus")
    end_as_by_ctrl_c()  # else a training that is stopped while others are measured would stay so
    python = str(Path(program).absolute())  # a training runs in a folder of its own
    options = [*(("--epochs", str(epochs)) if epochs else ()), "--samples", str(samples)]
    try:
        found: recording.Recording | recording.SavingTimes | recording.ContentionRecording
        if beside is not None:
            found = contention.measure(model, framework, python, options, beside, allowed[-bound_to:])
        elif saving:
            found = measure(model, framework, python, options, SHARES)
        else:
            found = recording.record(model, framework, python, options)
    except recording.RecordingFailed as fault:
        complain(str(fault))
        return REFUSED
    print_out(settings, asdict(found), lambda _: as_text(found))
    if into:
        recording.keep(found, into)
    return 0


def _check_beside(saving: bool, epochs: int | None, beside: int | None, cpus: int | None) -> None:
    """Raise `UsageError` for options that have no meaning together."""
    if cpus and beside is None:
        raise click.UsageError("--cpus goes only with --beside.")
    if beside is not None and (saving or epochs):
        raise click.UsageError("--beside goes without --saving and --epochs: it trains until each is measured.")


def as_text(found: object) -> str:
    return "\n".join(f"{name:<13}{value}" for name, value in asdict(found).items())  # type: ignore[call-overload]
