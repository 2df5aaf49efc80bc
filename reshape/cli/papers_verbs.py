"""Finds the verbs of reshape-papers by its entry points, or says how to install it.

That distribution, `reshape_papers/` in this repository, holds everything that reruns published experiments. Nothing of
the product imports it.
"""

from __future__ import annotations

from typing import Any

import click

from reshape.output.terminal import Group

ENTRY_POINTS = "reshape.commands"
"""Group of the entry points; each is a click command, named as its verb."""
DISTRIBUTION = "reshape-papers"
INSTALL = "run `pip install ./reshape_papers` in a clone of volcano-reshape; container images leave it out"
NOT_INSTALLED = f"It comes with {DISTRIBUTION}, which is not installed: {INSTALL}."


class PapersVerb(click.Command):
    """Stands for a verb of reshape-papers until it is called; takes its place where it cannot be loaded."""

    def __init__(self, name: str, why_missing: str = NOT_INSTALLED) -> None:
        super().__init__(
            name,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            help=why_missing,
        )

    def invoke(self, ctx: click.Context) -> Any:
        raise click.ClickException(f"`{ctx.command_path}` is not available. {self.help}")

    def loaded(self) -> click.Command:
        """Return the command of the entry point; one that says why there is none, if it cannot be had."""
        from importlib import metadata

        for found in metadata.entry_points(group=ENTRY_POINTS, name=str(self.name)):
            try:
                command = found.load()
            except (ImportError, AttributeError) as why:
                return PapersVerb(found.name, f"{DISTRIBUTION} cannot be imported ({why}): {INSTALL}.")
            assert isinstance(command, click.Command)
            return command
        return self


class GroupWithPapers(Group):
    """A group some of whose verbs come with reshape-papers."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return found.loaded() if isinstance(found, PapersVerb) else found
