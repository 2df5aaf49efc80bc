"""Defines the verb `token`: a user's own tokens, for calls to a shared machine over TCP.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import re
import time
from typing import Any

import click

from reshape.output.terminal import CliSettings, Group, print_out, printing, width

UNITS = {"h": 3_600, "d": 86_400}
HEAD = ("TOKEN", "MADE", "ENDS")


class _Lasting(click.ParamType[int]):
    """A time such as 30d or 12h, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,4})([hd])", value)
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is no time such as 30d or 12h.", param, ctx)
        return int(found[1]) * UNITS[found[2]]


@click.group(cls=Group)
def token() -> None:
    """Make, list or revoke your tokens for a shared machine (`reshape up --shared`)."""


@token.command()
@click.option(
    "--expires", type=_Lasting(), default="30d", show_default=True, metavar="TIME", help="Such as 30d or 12h."
)
@printing
@click.pass_obj
def create(settings: CliSettings, expires: int) -> None:
    """Print a new token: now, and never again."""
    made = settings.client().make_token(expires)
    print_out(
        settings,
        made,
        lambda view: (
            f"{view['token']}\nIt is shown this once. With RESHAPE_URL={view['url']} and it as RESHAPE_TOKEN "
            f"programs act as you until {_moment(view['ends'])}; `reshape token revoke {view['id']}` ends it."
        ),
    )


@token.command("list")
@printing
@click.pass_obj
def list_(settings: CliSettings) -> None:
    """List your tokens that hold."""
    from reshape.output.tables import fitted

    def table(rows: list[dict[str, Any]]) -> str:
        return fitted(HEAD, [[row["id"], _moment(row["made"]), _moment(row["ends"])] for row in rows], width(), ())

    print_out(settings, settings.client().tokens(), table)


@token.command()
@click.argument("token_id", metavar="ID")
@printing
@click.pass_obj
def revoke(settings: CliSettings, token_id: str) -> None:
    """End one of your tokens at once."""
    print_out(settings, settings.client().revoke_token(token_id), lambda view: f"Token {view['id']} is revoked.")


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
