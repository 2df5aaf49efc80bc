"""Defines the verbs that show what goes on: `jobs`, `queue`, `top`, `events` and `policy`.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from reshape.output.terminal import (
    CliSettings,
    coloured,
    print_out,
    printing,
    tell_trouble,
    trouble,
    width,
    with_job_id,
)

if TYPE_CHECKING:
    from reshape.client import Client
    from reshape.client.connection import View
    from reshape.output.live_screen import Draw

STATES = (
    "submitted",
    "suspended",
    "held",
    "initializing",
    "initialized",
    "running",
    "adjusting",
    "restarting",
    "completed",
    "failed",
    "cancelled",
)
ORDERS = ("age", "name", "state", "gpus", "progress", "end", "start", "deadline")


@click.command()
@click.option("-a", "--all", "ended", is_flag=True, help="Include jobs that ended earlier.")
@click.option("--sort", "order", type=click.Choice(ORDERS), default="age", show_default=True, help="Order of the jobs.")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, help="Only these; repeat for several.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--node", help="Only jobs on this node.")
@click.option("--owner", help="Only jobs submitted by this user.")
@click.option("-w", "--watch", is_flag=True, help="Show the list as it changes, until Ctrl-C.")
@printing
@click.pass_obj
def jobs(settings: CliSettings, /, ended: bool, watch: bool, **conditions: Any) -> None:
    """List jobs that wait, run or ended within a day.

    GPUS: how many it has, and the most that it can run on. END: until its end, or its start: `<` marks the latest time
    (of 9 in 10), `?` a guess. TIME: how long it has run, or ran. A terminal shows one line per job, cut to fit; a pipe
    gets all, and `reshape job ID` and `reshape explain ID` tell the whole reason.
    """
    client = settings.client()
    if watch and settings.output == "table":
        from reshape.output import live_screen

        live_screen.show(partial(_under_trouble, client, partial(_picture, client, ended, conditions)))
        return
    if settings.output == "json":
        print_out(settings, _chosen(client, ended, conditions), str)
    else:
        table, none = _listed(client, ended, width(), conditions)
        click.echo(table)
        if none:
            click.echo(none, err=True)
    tell_trouble(client)


def _chosen(client: Client, ended: bool, conditions: dict[str, Any]) -> Sequence[Any]:
    from reshape.client import LATELY_S
    from reshape.output import job_table

    return job_table.chosen(client.jobs(ended, LATELY_S), **conditions)


def _listed(client: Client, ended: bool, columns: int | None, conditions: dict[str, Any]) -> tuple[str, str]:
    """The table, and a sentence where it has no rows."""
    from reshape.output import job_table

    rows = _chosen(client, ended, conditions)
    none = "No jobs." if ended else "No job is waiting or running, and none ended within a day; -a lists older ones."
    if any(value for name, value in conditions.items() if name != "order"):
        none = "No job matches all these filters; `reshape jobs -a` lists all."
    return job_table.table(rows, time.time(), columns, coloured()), "" if rows else none


def _picture(client: Client, ended: bool, conditions: dict[str, Any], columns: int | None, lines: int | None) -> str:
    listed = "\n".join(_listed(client, ended, columns, conditions))
    return "\n".join(listed.splitlines()[: lines and lines - 1])


def _under_trouble(client: Client, draw: Draw, columns: int | None, lines: int | None) -> str:
    """Draw, under a sentence that says why it may be old where the coordinator cannot work now."""
    sentence = textwrap.wrap(trouble(client), columns or 100)
    return "\n".join([*sentence, draw(columns, lines and max(1, lines - len(sentence)))])


@click.command()
@click.pass_obj
def top(settings: CliSettings) -> None:
    """Show the fleet, its jobs and the last decisions as they change, until Ctrl-C; without a terminal once."""
    from reshape.output import live_screen
    from reshape.output.top import drawn

    client = settings.client()
    live_screen.show(partial(_under_trouble, client, partial(drawn, client)))


@click.command()
@printing
@click.pass_obj
def queue(settings: CliSettings) -> None:
    """List the jobs that wait, the one that is expected to start first at the top, with their reasons."""
    from reshape.output import job_table

    client = settings.client()
    rows = job_table.chosen(client.jobs(), "start", ["submitted"])
    print_out(settings, rows, lambda found: job_table.table(found, time.time(), width(), coloured()))
    if not rows and settings.output == "table":
        click.echo("No job waits.", err=True)
    tell_trouble(client)


@click.command()
@click.argument("job_id", metavar="[ID]", required=False)
@click.option("--after", type=click.IntRange(0), metavar="N", help="Begin after event N; 0: with the first one kept.")
@printing
@click.pass_obj
def events(settings: CliSettings, job_id: str | None, after: int | None) -> None:
    """Print events as they happen, until Ctrl-C or the end of the job ID; as JSON one in a line.

    Of a job that has ended, print the events that are kept.
    """
    import json

    from reshape.output import render

    client = settings.client()
    for event in client.events(after) if job_id is None else _events_of(client, job_id, after):
        click.echo(json.dumps(event) if settings.output == "json" else render.event(event))


def _events_of(client: Client, given: str, after: int | None) -> Iterator[View]:
    """Yield the events of a job or Slaml, those of a job until it has ended: nothing more would come of it."""
    from reshape.cli import slaml_verbs
    from reshape.client.job_output import has_ended

    if slaml_verbs.known(client, given):
        yield from client.events(after, given)
        return
    job = with_job_id(client, given, client.job)
    job_id = str(job["job_id"])
    begin = after or 0 if has_ended(job) else after
    yield from client.events(begin, job_id, until_end=True)


@click.command()
@printing
@click.pass_obj
def policy(settings: CliSettings) -> None:
    """Show which systems decide, and with which settings."""
    from reshape.output import render

    print_out(settings, settings.client().policy(), render.policy)
