"""Defines the verbs `shares` and `usage`: who may have how many GPUs, and who has used them.

Added to the command by `main.py`. Imports only click until a verb runs.
"""

from __future__ import annotations

import time
from typing import Any

import click

from reshape.output.terminal import CliSettings, Group, print_out, printing, tell_trouble

QUEUES = ("QUEUE", "WEIGHT", "GUARANTEED", "LIMIT", "ENTITLED", "HELD", "BORROWED", "WANTED", "USED", "WAITS")
USERS = ("QUEUE", "USER", "WEIGHT", "ENTITLED", "HELD", "BORROWED", "WANTED", "USED", "CREDIT", "WAITS")
BUDGETS = ("BUDGET", "OF", "PER", "GPU-HOURS", "USED", "LEFT")
ACCOUNTS = {
    "gpu_hours": "HOURS",
    "own_gpu_hours": "OWN",
    "borrowed_gpu_hours": "BORROWED",
    "lent_gpu_hours": "LENT",
    "lost_gpu_hours": "LOST",
    "reclaimed_gpus": "RECLAIMED",
    "shrinks": "SHRINKS",
    "suspensions": "SUSPENDS",
}
BY = {"user": ("queue", "user"), "queue": ("queue",), "type": ("queue", "user", "gpu_type")}
"""Fields by which accounts are kept apart."""
UNITS = {"m": 60, "h": 3600, "d": 86400}


@click.group(cls=Group, invoke_without_command=True)
@printing
@click.pass_context
def shares(ctx: click.Context) -> None:
    """Show who may have, has and has used how many GPUs.

    ENTITLED: GPUs that it gets back from others. WANTED: that its jobs could have. USED: GPU-hours, each of which
    counts half after a day. CREDIT: above 0 for who has used less than the share. WAITS: longest wait of its jobs now.
    FROM, on a cluster: what says which rights a queue has.
    """
    settings: CliSettings = ctx.obj
    if ctx.invoked_subcommand is None:
        client = settings.client()
        _show(settings, client.shares())
        tell_trouble(client)


@shares.command("set")
@click.argument("file", type=click.File("r", encoding="utf-8"), metavar="FILE")
@printing
@click.pass_obj
def set_shares(settings: CliSettings, file: Any) -> None:
    """Let FILE be the shares from now on, as if it had been written over `shares.yaml`; `-` reads standard input."""
    view = settings.client().set_shares(file.read())
    print_out(settings, view, lambda _: "The shares are set, from the next decision on; `reshape shares` shows them.")


def _show(settings: CliSettings, view: dict[str, Any]) -> None:
    print_out(settings, view, _share_tables)
    if settings.output == "table":
        if view["problem"]:
            click.echo(view["problem"], err=True)
        _warn_of_budgets(view)


def _warn_of_budgets(view: dict[str, Any]) -> None:
    for one in view["budgets"]:
        if one["state"] != "ok":
            click.echo(f"{one['sentence'][:1].upper()}{one['sentence'][1:]}", err=True)


def _budget_rows(view: dict[str, Any]) -> list[str]:
    """Return a table of the budgets, if there are any."""
    from reshape.output.tables import table

    rows = [
        [
            one["kind"],
            one["name"],
            one["per"],
            *_cells(one["gpu_hours"], one["used_gpu_hours"], max(0.0, one["gpu_hours"] - one["used_gpu_hours"])),
        ]
        for one in view["budgets"]
    ]
    return [table(BUDGETS, rows)] if rows else []


def _share_tables(view: dict[str, Any]) -> str:
    from reshape.output.tables import NONE, table

    queues = [
        [
            one["queue"],
            f"{one['weight']:g}",
            _guarantee_cell(one),
            *_cells(one["limit"], one["entitled"], one["held"], one["borrowed"], one["demand"], one["used_gpu_hours"]),
            _wait(one),
        ]
        for one in view["queues"]
    ]
    users = [
        [
            one["queue"],
            one["user"] or "-",
            f"{one['weight']:g}",
            *_cells(one["entitled"], one["held"], one["borrowed"], one["demand"], one["used_gpu_hours"]),
            f"{one['credit']:+.2f}",
            _wait(one),
        ]
        for one in view["users"]
    ]
    head: tuple[str, ...] = QUEUES
    if any(one["from"] == "Volcano" for one in view["queues"]):
        head = (*QUEUES, "FROM")
        queues = [[*cells, one["from"] or NONE] for cells, one in zip(queues, view["queues"], strict=True)]
    parts = [table(head, queues)]
    return "\n\n".join([*parts, table(USERS, users)] if users else parts)


def _guarantee_cell(queue: dict[str, Any]) -> str:
    by_type = [f"{count}x{gpu_type}" for gpu_type, count in queue.get("guaranteed_types", {}).items()]
    return ",".join(by_type) or str(queue["guaranteed"])


def _cells(*values: float | None) -> list[str]:
    return ["-" if value is None else f"{value:.2f}".rstrip("0").rstrip(".") for value in values]


def _wait(one: dict[str, Any]) -> str:
    from reshape.output.tables import NONE

    return NONE if one["longest_wait_s"] is None else f"{one['longest_wait_s']:.0f} s"


def _since(ctx: click.Context, param: click.Parameter, given: str | None) -> float:
    """Return seconds since 1970 of a span such as 7d, or of a day such as 2026-05-31."""
    if given is None:
        return 0.0
    if given[-1:] in UNITS and given[:-1].isdecimal():
        return max(0.0, time.time() - int(given[:-1]) * UNITS[given[-1]])
    try:
        return max(0.0, time.mktime(time.strptime(given, "%Y-%m-%d")))
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{given!r} is neither a span such as 90m, 24h or 7d nor a day such as 2026-05-31."
        ) from None


@click.command()
@click.option("--by", type=click.Choice([*BY]), default="user", show_default=True, help="What is told apart.")
@click.option(
    "--since", callback=_since, metavar="TIME", help="A span such as 24h or 7d, or a day such as 2026-05-31; by hours."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values, all digits.")
@printing
@click.pass_obj
def usage(settings: CliSettings, by: str, since: float, as_csv: bool) -> None:
    """Show who has used how many GPU-hours.

    OWN: within what its owner was entitled to; BORROWED: beyond that. LENT: of a queue's guarantee, what others had
    meanwhile. LOST: while trainings stood still in reshapes that made room for its jobs, or were for their own sake.
    RECLAIMED: GPUs that were taken by right of others, by SHRINKS and SUSPENDS. Budgets, if there are any, are those
    of the present week or month.
    """
    rows = _added(settings.client().usage(since), BY[by])
    if as_csv:
        click.echo(_csv(rows, BY[by]), nl=False)
        return
    shares_now = settings.client().shares() if settings.output == "table" else {"budgets": []}
    print_out(settings, rows, lambda found: "\n\n".join([_accounts(found, BY[by]), *_budget_rows(shares_now)]))
    _warn_of_budgets(shares_now)


def _added(rows: list[dict[str, Any]], fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """Add up the accounts that differ in no field of these."""
    sums: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(str(row[field]) for field in fields)
        one = sums.setdefault(key, {**dict(zip(fields, key, strict=True)), **dict.fromkeys(ACCOUNTS, 0)})
        for name in ACCOUNTS:
            one[name] += row.get(name) or 0  # a coordinator of an earlier version does not tell all of them
    return [sums[key] for key in sorted(sums)]


def _accounts(rows: list[dict[str, Any]], fields: tuple[str, ...]) -> str:
    from reshape.output.tables import NONE, table

    head = [*(field.upper().replace("GPU_", "") for field in fields), *ACCOUNTS.values()]
    cells = [[*(row[field] or NONE for field in fields), *_cells(*(row[name] for name in ACCOUNTS))] for row in rows]
    return table(head, cells)


def _csv(rows: list[dict[str, Any]], fields: tuple[str, ...]) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, [*fields, *ACCOUNTS], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
