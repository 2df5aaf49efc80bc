"""Defines the verbs `what-if` and `replay`: options, usage errors and help.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import math
import re
from typing import Any

import click

from reshape.output.terminal import POLICY_NAMES, REFUSED, CliSettings, print_out, printing, tell_trouble

_GPUS = "must be a count and a type of GPUs, such as --gpus +2 V100, or --gpus -2 V100 for fewer."


def _gpu_changes(_: click.Context, __: click.Parameter, given: tuple[tuple[str, str], ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for count, kind in given:
        if not re.fullmatch(r"[+-]?[1-9][0-9]{0,4}", count) or kind.startswith("-"):
            raise click.BadParameter(f"'{count} {kind}' {_GPUS}")
        found[kind] = found.get(kind, 0) + int(count)
    return found


def _parse_documents(_: click.Context, __: click.Parameter, given: tuple[Any, ...]) -> list[Any]:
    if not given:
        return []
    from reshape.cli import documents

    return [doc for file in given for doc in documents.read(file.read())]


def _parse_weights(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in given:
        name, _sign, weight = one.rpartition("=")
        if not name or not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", weight):
            raise click.BadParameter(f"{one!r} must be the name of a queue or user and a number, such as vision=2.")
        found[name] = float(weight)
    return found


class _WhatIf(click.Command):
    """Says how `--gpus` is written where its type was left out, of which click only says that it wants 2 arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            if error.option_name == "--gpus":
                raise click.BadOptionUsage("--gpus", f"--gpus {_GPUS}", ctx) from None
            raise


@click.command("what-if", cls=_WhatIf)
@click.option(
    "--submit", type=click.File("rb"), multiple=True, callback=_parse_documents, help="Job documents, JSON or YAML."
)
@click.option(
    "--gpus",
    type=(str, str),
    multiple=True,
    callback=_gpu_changes,
    metavar="N TYPE",
    help="More GPUs (+2 V100), or fewer (-2 V100).",
)
@click.option("--drain", multiple=True, metavar="NODE", help="Close a node; its jobs go elsewhere.")
@click.option("--policy", type=click.Choice(POLICY_NAMES), help="Another policy.")
@click.option(
    "--queue-order", type=click.Choice(["arrival", "shortest", "deadline"]), help="Another order of waiting jobs."
)
@click.option("--deadline", "deadlines", multiple=True, metavar="JOB=TIME", help="Another deadline, such as a=30m.")
@click.option(
    "--weight",
    "weights",
    multiple=True,
    callback=_parse_weights,
    metavar="NAME=N",
    help="Another weight of a queue or user, such as vision=2.",
)
@printing
@click.pass_obj
def what_if(settings: CliSettings, /, deadlines: tuple[str, ...], **changes: Any) -> None:
    """Predict who starts and ends when, as things stand and with changes; touches nothing."""
    from reshape import foreign

    foreign.check()
    from reshape.output import forecast_table

    client = settings.client()
    found = client.what_if(**changes, deadlines=dict(map(_parse_deadline, deadlines)))
    print_out(settings, forecast_table.as_object(found), lambda _: forecast_table.as_table(found))
    tell_trouble(client)


def _parse_deadline(given: str) -> tuple[str, float]:
    from coordinator.errors import Rejected
    from coordinator.forecasts.what_if import deadline_s

    job_id, _, time = given.rpartition("=")
    try:
        return job_id, deadline_s(job_id, time)
    except Rejected as refused:
        raise click.BadParameter(str(refused)) from None


@click.command()
@click.option(
    "--policy",
    "policies",
    multiple=True,
    type=click.Choice(POLICY_NAMES),
    help="Replay under this policy; repeat for several.  [default: all but the one that ran]",
)
@click.option("--since", metavar="TIME", help="Only jobs that are open or ended in the last TIME, such as 6h.")
@printing
@click.pass_obj
def replay(settings: CliSettings, /, policies: tuple[str, ...], since: str | None) -> int:
    """Simulate what happened once more under other policies, and tell the regret in GPU-hours; touches nothing."""
    from reshape import foreign

    foreign.check()
    from coordinator.model import requirements
    from reshape.output import replay_table
    from reshape.what_if.replay import replay as simulate_again

    within_s = None if since is None else requirements.seconds(since)
    if since is not None and not within_s:
        raise click.BadParameter(f"{since!r} is not a duration; write 90s, 30m or 6h.", param_hint="--since")
    found = simulate_again(settings.client(), policies, math.ceil(within_s or 0))
    if not found.came.jobs:
        click.echo("There is nothing to replay: no job on GPUs has started in that time.", err=True)
        return REFUSED
    print_out(settings, replay_table.as_object(found), lambda _: replay_table.as_table(found))
    return 0
