"""Tells what the demo does while it runs: line by line, or live on a terminal as `reshape top` shows it.

Promises that each line is printed once, also those that were told while the screen was drawn on, and after a failure.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from reshape.client import CoordinatorRefused, CoordinatorUnreachable
from reshape.output import live_screen
from reshape.output.tables import cut
from reshape.output.top import drawn

if TYPE_CHECKING:
    from reshape.client import Client

View = dict[str, Any]

STOP = "Ctrl-C ends the demo and all that it started."
CHANGES = "`reshape up` starts or ends."


class Teller:
    """Writes to standard output, or to standard error where that is for the JSON object."""

    def __init__(self, quiet: bool) -> None:
        self._err = quiet
        self._told: list[str] | None = None  # what is to be printed once the screen is left; None: print at once
        self._client: Client | None = None  # of the system that is drawn

    @contextlib.contextmanager
    def screen(self) -> Iterator[None]:
        """Draw on the terminal while the body runs, if standard output is one and is not for the JSON object."""
        if self._err or not sys.stdout.isatty():
            yield
            return
        self._told = []
        try:
            with live_screen.beside(self._picture):
                yield
        finally:
            told, self._told = self._told, None
            click.echo("\n".join(told))

    @contextlib.contextmanager
    def watching(self, client: Client) -> Iterator[None]:
        """Draw this system while the body runs, and invite to its dashboard."""
        self.line(f"Watch it in a browser: {client.login_link()}")
        self._client = client
        try:
            yield
        except KeyboardInterrupt:
            self.line("Ctrl-C: the jobs are cancelled, and `reshape up` is ended.")
            raise
        finally:
            self._client = None

    def heading(self, text: str) -> None:
        self.line(f"\n{text}")

    def line(self, text: str) -> None:
        if self._told is not None:
            self._told.extend(text.splitlines())
            return
        click.echo(text, err=self._err)
        (sys.stderr if self._err else sys.stdout).flush()

    def event(self, event: View, seconds: float) -> None:
        """Tell an event that happened so many seconds after the first job was submitted."""
        sentence = _sentence(event)
        if sentence:
            self.line(f"{seconds:7.1f} s  job {event['job_id']:<4} {sentence}")

    def _picture(self, columns: int | None, lines: int | None) -> str:
        """Return the fleet, its jobs and decisions, below them what was told last."""
        width, height = columns or 80, lines or 24
        most = max(3, height // 3)
        told = [cut(line, width) for line in (self._told or [])[-most:]]
        return "\n".join([*self._fleet(width, height - most - 3), "", *told, "", cut(STOP, width)])

    def _fleet(self, columns: int, lines: int) -> list[str]:
        try:
            return drawn(self._client, columns, lines).splitlines()[:lines] if self._client else [CHANGES]
        except (CoordinatorRefused, CoordinatorUnreachable) as away:
            return [cut(str(away), columns)]


def _sentence(e: View) -> str:
    """Return one event in words; empty for an event that matters to programs only."""
    sentences = {
        "submitted": "submitted",
        "waits": f"waits: {e.get('sentence', '')}",
        "launching": "is being launched; no other job is disturbed meanwhile",
        "initialized": "initialized: sidecar and shim are up, no GPU used yet",
        "adjusting": f"is to go down to {e.get('to')} GPUs, but trains on until job {e.get('for')} is initialized",
        "stop sent": "saves and stops",
        "started": f"trains on {e.get('num_gpus')} GPUs",
        "completed": "completed",
        "restarting": f"restarts: {e.get('sentence', '')}",
        "undone": f"back: {e.get('sentence', '')}",
    }
    if e["type"] == "reshaped":
        gap = "?" if e["gap_s"] is None else f"{e['gap_s']:.2f}"
        return f"reshaped {e['direction']}: {e['from_gpus']} -> {e['to_gpus']} GPUs, training stood still for {gap} s"
    return sentences.get(e["type"], "")
