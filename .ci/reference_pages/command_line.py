"""The commands with their options, from the parser itself."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from reference_pages.markdown import table
from reshape.cli.main import cli
from reshape.cli.papers_verbs import PapersVerb

BEGIN = "<!-- begin: written by make reference -->\n"
END = "<!-- end: written by make reference -->\n"


def page(text: str) -> str:
    """Return docs/reference/command-line.md with everything between its markers made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + "\n".join(_command(cli, "reshape")) + END + after


def _command(command: click.Command, called: str) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands."""
    context = click.Context(command, info_name=called)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## `{called}`\n" if called == "reshape" else f"### `{called}`\n"
    yield f"{_help(command)}\n"
    yield f"```text\n{called} {usage}\n```\n"
    rows = list(_options(command, context))
    if rows:
        yield table(("Option", "Meaning"), rows)
    if isinstance(command, click.Group):
        for name, inner in subcommands(command, context):
            if not inner.hidden:
                yield from _command(inner, f"{called} {name}")


def subcommands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield a group's commands, sorted by name, with those of reshape-papers, without which no page is whole."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, PapersVerb):
            sys.exit(f"`reshape {name}` is not installed here: run `make install`, then this again.")
        yield name, command


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").replace("\b\n", "").partition("\f")[0].strip()


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record:
            yield f"`{record[0]}`", record[1]
