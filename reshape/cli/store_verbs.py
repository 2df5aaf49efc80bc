"""Verbs about the store itself, which need no coordinator: `reshape store compact`.

They import their modules when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reshape.output.terminal import CliSettings

if TYPE_CHECKING:
    from coordinator.stores.retention import Removed

SQLITE = "sqlite:///"
FILE = "reshape.sqlite"


@click.group()
def store() -> None:
    """Look after the store: jobs, decisions and events."""


@store.command()
@click.option(
    "--store",
    "url",
    metavar="URL",
    envvar="RESHAPE_STORE",
    help="sqlite:///FILE or mongodb://HOST/NAME.  [env: RESHAPE_STORE; default: SQLite in the state folder]",
)
@click.pass_obj
def compact(settings: CliSettings, url: str | None) -> None:
    """Remove what is too old now, and make the file smaller.

    A coordinator does the first once an hour. How much is kept say the variables RESHAPE_KEEP_JOBS,
    RESHAPE_KEEP_JOBS_S, RESHAPE_KEEP_DECISIONS, RESHAPE_KEEP_EVENTS, RESHAPE_KEEP_EVENTS_S and
    RESHAPE_KEEP_OBSERVATIONS. Both may run at the same time.
    """
    where = url or f"{SQLITE}{settings.state / FILE}"
    file = Path(where.removeprefix(SQLITE)) if where.startswith(SQLITE) else None
    before = _size(file)
    click.echo(f"Removed {_compact(where)}.")
    if file is not None:
        click.echo(f"{file} has {_size(file) / 2**20:.1f} MiB now; it had {before / 2**20:.1f}.")


def _compact(url: str) -> Removed:
    import os

    from coordinator.adapters.clock import SystemClock
    from coordinator.config import Keep, from_environment
    from coordinator.errors import Rejected
    from coordinator.stores import retention
    from coordinator.stores.opening import open_store

    try:
        keep = from_environment(Keep, os.environ, "RESHAPE_KEEP_")
    except ValueError as error:
        raise Rejected(f"{error}.") from None
    opened = open_store(url)
    try:
        removed = retention.prune(opened, keep, SystemClock().wall())
        opened.compact()
        return removed
    finally:
        opened.close()


def _size(file: Path | None) -> int:
    """Bytes of the file and of its log of writes; `Rejected` if there is none, which opening would make."""
    from coordinator.errors import Rejected

    if file is None:
        return 0
    if not file.exists():
        raise Rejected(f"There is no store {file}: name another one with --store.")
    log = file.with_name(f"{file.name}-wal")
    return file.stat().st_size + (log.stat().st_size if log.exists() else 0)
