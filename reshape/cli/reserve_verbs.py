"""Defines the verbs `reserve`, `reservations` and `unreserve`, and reads the times that users name.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import re
import time
from typing import Any

import click

from reshape.output.terminal import CliSettings, print_out, printing, tell_trouble

DAY_S = 86400
LATE_S = 60
"""Seconds by which a time that is named may have passed."""
UNITS = {"m": 60, "h": 3600, "d": DAY_S}
FORMS = ("%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M")
HEAD = ("ID", "NODE", "GPUS", "FOR", "FROM", "UNTIL", "STATE")


def moment(option: str, text: str, now: float, begin: float | None = None) -> float:
    """Return the time that a user names in local time, in seconds since 1970; a span counts from `begin`, or now.

    14:00 is today's, or with a `begin` the first one after it. Raises `BadParameter` for anything else.
    """
    if span := re.fullmatch(r"(\d{1,6})([mhd])", text, re.ASCII):
        return (now if begin is None else begin) + int(span[1]) * UNITS[span[2]]
    if re.fullmatch(r"\d{1,2}:\d{2}", text, re.ASCII):
        day = time.strftime("%Y-%m-%d", time.localtime(now if begin is None else begin))
        found = _local_time(f"{day} {text}", FORMS[1])
        if found is not None and begin is not None and found <= begin:
            day = time.strftime("%Y-%m-%d", time.localtime(begin + DAY_S))
            found = _local_time(f"{day} {text}", FORMS[1])
        if found is not None and found < now - LATE_S and (begin is None or begin >= now - LATE_S):
            raise click.BadParameter(
                f"{text} has passed today; write the day, too, such as {_date_of_tomorrow(now)}T{text}.",
                param_hint=option,
            )
    else:
        found = next((at for form in FORMS if (at := _local_time(text, form)) is not None), None)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is no time: write 14:00, {_date_of_tomorrow(now)}T14:00, or a span such as 90m, 4h or 2d.",
            param_hint=option,
        )
    if found < now - LATE_S:
        raise click.BadParameter(
            f"{text} has passed; now it is {time.strftime(FORMS[0], time.localtime(now))}.", param_hint=option
        )
    return found


def _local_time(text: str, form: str) -> float | None:
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return None


def _date_of_tomorrow(now: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(now + DAY_S))


def shown(at: float | None) -> str:
    """Return a time for people; `undrain` where there is none."""
    return "undrain" if at is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


@click.command()
@click.argument("count", metavar="GPUS", type=click.IntRange(1))
@click.option("--until", required=True, metavar="TIME", help="Its end: 18:00, 2026-05-31T18:00, or a span such as 4h.")
@click.option("--from", "begin", metavar="TIME", help="Its beginning, likewise.  [default: now]")
@click.option("--node", help="The node that they are to be on.  [default: any one node]")
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="On N nodes, as many on each.  [default: on one]")
@click.option("--type", "gpu_type", metavar="TYPE", help="Their GPU type.  [default: any]")
@click.option("--for", "user", metavar="USER", help="Whose jobs may use them.  [default: yours]")
@printing
@click.pass_obj
def reserve(
    settings: CliSettings,
    count: int,
    until: str,
    begin: str | None,
    node: str | None,
    nodes: int | None,
    gpu_type: str | None,
    user: str | None,
) -> None:
    """Keep GPUs for your jobs for a time, also for `reshape run`.

    Jobs of others give them up in time: they shrink, move, or save and wait. If they cannot be had, the refusal names
    the earliest time.
    """
    from reshape.client.connection import CoordinatorRefused

    if nodes is not None and count % nodes:
        raise click.BadParameter(f"{count} GPUs are not as many on each of {nodes} nodes.", param_hint="--nodes")
    now = time.time()
    from_s = None if begin is None else moment("--from", begin, now)
    until_s = moment("--until", until, now, from_s)
    try:
        made = settings.client().reserve(count, until_s, from_s, node=node, gpu_type=gpu_type, user=user, nodes=nodes)
    except CoordinatorRefused as refusal:
        # Its sentence names the earliest time; the seconds beside it are for programs.
        raise CoordinatorRefused(str(refusal), refusal.status) from None
    print_out(settings, made, _told_reservation)


def _told_reservation(view: dict[str, Any]) -> str:
    gpus = f"{view['gpus']} GPU{'s' * (view['gpus'] != 1)} of {_node_names(view)}"
    verb = "is" if view["gpus"] == 1 else "are"
    kept = f"{gpus} {verb} reserved for {view['user']} from {shown(view['from'])} until {shown(view['until'])}"
    being = "is" if view["missing"] == 1 else "are"
    freeing = f" {view['missing']} of them {being} being freed now." if view["missing"] else ""
    them = "it" if view["gpus"] == 1 else "them"
    return f"{kept}.{freeing} `reshape unreserve {view['reservation_id']}` gives {them} back."


def _node_names(view: dict[str, Any]) -> str:
    """Return the nodes of a reservation for people."""
    *others, last = view["nodes"]
    return f"{', '.join(others)} and {last}" if others else str(last)


@click.command()
@printing
@click.pass_obj
def reservations(settings: CliSettings) -> None:
    """List reserved GPUs, and nodes that are drained for a time.

    STATE: whether it has begun; `frees N`: so many of its GPUs are still being freed, or kept by jobs that cannot give
    them up (`reshape explain` says why).
    """
    client = settings.client()
    rows = client.reservations()
    print_out(settings, rows, _reservation_table)
    if not rows and settings.output == "table":
        click.echo("Nothing is reserved.", err=True)
    tell_trouble(client)


def _reservation_table(rows: list[dict[str, Any]]) -> str:
    from reshape.output.tables import table

    cells = [
        [
            row["reservation_id"],
            row["node"],
            str(row["gpus"]),
            "maintenance" if row["purpose"] == "maintenance" else row["user"] or "another user",
            shown(row["from"]),
            shown(row["until"]),
            "to come" if row["missing"] is None else f"frees {row['missing']}" if row["missing"] else "kept",
        ]
        for row in rows
    ]
    return table(HEAD, cells)


@click.command()
@click.argument("reservation_id", metavar="ID")
@printing
@click.pass_obj
def unreserve(settings: CliSettings, reservation_id: str) -> None:
    """End a reservation, or the drain of a node that is planned; jobs on its GPUs keep training."""
    gone = settings.client().unreserve(reservation_id)
    print_out(settings, gone, _told_cancelled)


def _told_cancelled(view: dict[str, Any]) -> str:
    return f"{view['reservation_id']} is cancelled: its GPUs of {_node_names(view)} are kept for nobody."
