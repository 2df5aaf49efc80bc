"""Defines the verb `record`: trains a model of the zoo alone and measures it. Added to the command by `main.py`."""

from __future__ import annotations

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
@click.option("--into", type=click.Path(path_type=Path, dir_okay=False), help="Keep it in this JSON file, too.")
@printing
@click.pass_obj
def record(
    settings: CliSettings, /, model: str, framework: str, python: str, epochs: int | None, samples: int,
    saving: bool, into: Path | None,
) -> int:  # fmt: skip
    """Train MODEL of the zoo alone, and measure its loss, CPU time, memory and I/O (examples/zoo)."""
    from reshape import recording
    from reshape.saving import SHARES, measure

    if (program := shutil.which(python)) is None:
        raise click.BadParameter(f"{python} is no program.", param_hint="--python")
    if into:
        try:
            recording.kept(into)
        except (OSError, ValueError) as why:
            raise click.BadParameter(f"{into} cannot take a recording: {why}", param_hint="--into") from None
    python = str(Path(program).absolute())  # a training runs in a folder of its own
    options = [*(("--epochs", str(epochs)) if epochs else ()), "--samples", str(samples)]
    try:
        found = (
            measure(model, framework, python, options, SHARES)
            if saving
            else recording.record(model, framework, python, options)
        )
    except recording.RecordingFailed as fault:
        complain(str(fault))
        return REFUSED
    print_out(settings, asdict(found), lambda _: as_text(found))
    if into:
        recording.keep(found, into)
    return 0


def as_text(found: object) -> str:
    return "\n".join(f"{name:<13}{value}" for name, value in asdict(found).items())  # type: ignore[call-overload]
