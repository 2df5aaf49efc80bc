"""Defines the verb `rehearse`: tries whether a command can be reshaped, and measures it on each GPU count.

Added to the command by `main.py`. Imports only click until it runs. Exit codes: 0 if no work was lost, else 1.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reshape.cli.submit_verb import counts, document
from reshape.output.terminal import INTERRUPTED, REFUSED, CliSettings, CommandVerb, complain, print_out, printing

if TYPE_CHECKING:
    from reshape.rehearsal import Rehearsal

NOT_COMPARED = (
    "Its files and printed lines were not compared: rehearse it with so few epochs that it ends within --seconds."
)


@click.command(cls=CommandVerb)
@click.option(
    "--gpus", callback=counts, metavar="N|N,N,…|N-N", required=True, help="The GPU counts to try, such as 1,2,4."
)
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="How long on each count.")
@click.option("--code", metavar="DIR", help="Folder to run in.  [default: the current one]")
@click.option("--job-type", help="The type that the measured speeds are kept for.  [default: after the command]")
@click.argument("command", nargs=-1, required=True)
@printing
@click.pass_obj
def rehearse(settings: CliSettings, /, command: tuple[str, ...], seconds: float, **options: Any) -> int:
    """Try COMMAND on several GPU counts: does it resume, how fast is it, what does a restart cost?

    It runs as a job of its own that is cancelled at the end. The speeds are kept: the next job of this command is
    planned by them. One that ends within that time is run whole instead, in copies of its folder: twice undisturbed and
    once stopped three times; what differs then in files, rows, printed lines and exit code is said (exit code 1).
    """
    with tempfile.TemporaryDirectory(prefix="reshape-rehearsal-") as place:
        return _rehearse(settings, command, seconds, options, Path(place, "before"))


def _rehearse(
    settings: CliSettings, command: tuple[str, ...], seconds: float, options: dict[str, Any], before: Path
) -> int:
    from reshape import rehearsal
    from reshape.client.command import name

    client, here = settings.client(), settings.here
    given = {key: value for key, value in options.items() if value is not None}
    doc, said = document(command, given | {"elastic": None}, here)
    copied = here and rehearsal.kept_copy(Path(doc["code"]), before)
    stem = f"rehearsal-{name(command)}"
    job = str(client.submit_as(doc, stem)["job_id"])

    def tell(sentence: str) -> None:
        click.echo(f"{job} {sentence}", err=True)

    tell(f"is submitted: {said}")
    try:
        try:
            found = rehearsal.rehearse(client, job, doc["optional_num_gpus"], seconds, tell)
        except rehearsal.Completed:
            if not copied:
                raise
            compared = rehearsal.compare(client, doc, stem, before, tell)
            print_out(settings, asdict(compared) | {"verdict": compared.verdict}, lambda _: compared.verdict)
            return REFUSED if compared.differences else 0
    except rehearsal.RehearsalFailed as fault:
        complain(str(fault))
        return REFUSED
    except KeyboardInterrupt:
        complain(f"The rehearsal ended early; {job} is cancelled.")
        return INTERRUPTED
    print_out(settings, asdict(found) | {"verdict": found.verdict}, lambda _: as_table(found))
    return REFUSED if found.lost else 0


def as_table(found: Rehearsal) -> str:
    """The result for people: a row for each count, then what stopping and starting takes, and the verdict."""
    from reshape.output.tables import NONE, table

    def shown(value: float | None, form: str) -> str:
        return NONE if value is None else format(value, form)

    counts = sorted(found.counts, key=lambda one: one.gpus)
    least = next((one for one in counts if one.seconds_per_iteration), None)
    rows = []
    for one in counts:
        faster = None
        if least is not None and one.seconds_per_iteration:
            faster = (least.seconds_per_iteration or 0.0) / one.seconds_per_iteration
        rows.append(
            [
                str(one.gpus),
                shown(one.seconds_per_iteration, ".4g"),
                shown(faster, ".2f"),
                shown(one.restart_s, ".2f"),
                NONE if one.value is None else f"{one.value_name} {one.value:.4g}",
                one.refused or one.lost or NONE,
            ]
        )
    head = ("GPUS", "S/ITERATION", "TIMES FASTER", "STOOD STILL S", "VALUE", "REMARK")
    costs = [
        f"{what} takes {seconds:.2f} s"
        for what, seconds in (
            ("saving and stopping", found.saves_s),
            ("starting", found.starts_s),
            ("starting again", found.restarts_s),
        )
        if seconds is not None
    ]
    kept = f"Kept for the next job of this command: {', '.join(['speeds', *costs])}."
    return "\n".join([table(head, rows), found.verdict, NOT_COMPARED, kept])
