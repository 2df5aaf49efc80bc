"""Defines the verb `slamls`, and what `submit` and `cancel` do with a Slaml.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from reshape.output.terminal import REFUSED, CliSettings, print_out, printing, tell_trouble, width

if TYPE_CHECKING:
    from reshape.client import Client

PREFIX = "slaml."  # of the ids of Slamls; a job may be called so, too
ENDED = ("Refused", "Completed", "Failed", "Cancelled")
HEAD = ("SLAML", "STATE", "TARGET", "EXPECTED", "WAIT", "TASKS", "MESSAGE")
LEAST_WANTED = ("WAIT", "EXPECTED")
LOOK_S = 0.5


@click.command()
@printing
@click.pass_obj
def slamls(settings: CliSettings) -> None:
    """List jobs of tasks with a deadline (Slamls) and how they stand."""
    client = settings.client()
    found = client.slamls()
    print_out(settings, found, _table)
    if not found and settings.output == "table":
        click.echo("There is no Slaml; `reshape submit -f FILE` submits one.", err=True)
    tell_trouble(client)


def _table(found: list[dict[str, Any]]) -> str:
    from coordinator.dashboard.words import measured, text
    from reshape.output.tables import NONE, fitted

    def cells(view: dict[str, Any]) -> list[str]:
        times = (measured(view[name], "{:g} s") or NONE for name in ("target_s", "expected_s", "wait_s"))
        return [view["slaml"], view["state"], *times, text(view["progress"]), text(view["sentence"])]

    return fitted(HEAD, [cells(view) for view in found], width(), LEAST_WANTED)


def cancelled(settings: CliSettings, name: str) -> bool:
    """Cancel the Slaml of that id and return True; False if there is none, so that it is a job's id."""
    from reshape.client import CoordinatorRefused

    if not name.startswith(PREFIX):
        return False
    client = settings.client()
    try:
        view = client.cancel_slaml(name)
    except CoordinatorRefused as refusal:
        # On a cluster any such id is refused by 409, before anything is looked up.
        if refusal.status == 404 or (refusal.status == 409 and _is_job(client, name)):
            return False
        raise
    print_out(settings, view, lambda v: f"{v['slaml']} is being cancelled, with its jobs that have not ended.")
    return True


def _is_job(client: Client, name: str) -> bool:
    from reshape.client import CoordinatorRefused

    try:
        client.job(name)
    except CoordinatorRefused as refusal:
        if refusal.status != 404:
            raise
        return False
    return True


def until_ended(client: Client, name: str) -> int:
    """Wait for the end of a Slaml and say how it ended; return the exit code. A deleted one counts as cancelled."""
    from reshape.output.tables import plain

    while (view := _of(client, name)) is not None and view["state"] not in ENDED:
        time.sleep(LOOK_S)
    state, why = (view["state"].lower(), view["sentence"]) if view else ("cancelled", "")
    click.echo(plain(f"{name} is {state}{f': {why}' if why and state != 'completed' else '.'}"), err=True)
    return 0 if state == "completed" else REFUSED


def known(client: Client, name: str) -> bool:
    """Return whether there is a Slaml of this id."""
    return name.startswith(PREFIX) and _of(client, name) is not None


def _of(client: Client, name: str) -> dict[str, Any] | None:
    return next((view for view in client.slamls() if view["slaml"] == name), None)
