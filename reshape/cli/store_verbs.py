"""Verbs about the store itself, which need no coordinator: `reshape store compact`, `export`, `import` and others.

They import their modules when they run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reshape.output.terminal import CliSettings, Group, complain

if TYPE_CHECKING:
    from coordinator.ports import Store
    from coordinator.stores.retention import Removed

SQLITE = "sqlite:///"
FILE = "reshape.sqlite"
AGAIN_S = 1.0  # after which what contradicts is looked at once more


@click.group(cls=Group)
def store() -> None:
    """Look after the store: jobs, decisions and events."""


STORE = click.option(
    "--store",
    "url",
    metavar="URL",
    envvar="RESHAPE_STORE",
    help="sqlite:///FILE or mongodb://HOST/NAME.  [env: RESHAPE_STORE; default: that of the last `reshape up`]",
)


@store.command()
@STORE
@click.pass_obj
def compact(settings: CliSettings, url: str | None) -> None:
    """Remove what is too old now, and make the file smaller.

    A coordinator does the first once an hour. How much is kept say the variables RESHAPE_KEEP_JOBS,
    RESHAPE_KEEP_JOBS_S, RESHAPE_KEEP_DECISIONS, RESHAPE_KEEP_EVENTS, RESHAPE_KEEP_EVENTS_S and
    RESHAPE_KEEP_OBSERVATIONS. Both may run at the same time.
    """
    where = _url(settings, url)
    file = _file(where)
    before = _size(file)
    click.echo(f"Removed {_compact(where)}.")
    if file is not None:
        click.echo(f"{file} has {_size(file) / 2**20:.1f} MiB now; it had {before / 2**20:.1f}.")


@store.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@STORE
@click.pass_obj
def export(settings: CliSettings, file: Path, url: str | None) -> None:
    """Write all that the store holds into FILE, as JSON lines: a backup.

    A coordinator may run meanwhile. The file holds the environments of jobs, so only you can read it.
    """
    import os

    from coordinator.adapters.clock import SystemClock
    from coordinator.errors import Rejected
    from coordinator.recovery.transfer import exported
    from coordinator.stores.salvage import PARTS

    file = file.resolve()  # of a link the file that it leads to
    _check_ordinary(file)
    own = _file(_url(settings, url))
    if own is not None and file in [own.resolve().with_name(f"{own.name}{part}") for part in PARTS]:
        raise Rejected(f"{file} belongs to the store itself: name another file.")
    new = file.with_name(f"{file.name}.new")
    if not os.access(file.absolute().parent, os.W_OK):
        raise Rejected(f"The folder of {file} is missing or not yours to write in: name another file.")
    with _opened(settings, url) as opened:
        new.unlink(missing_ok=True)  # it may be another user's, or a link
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as lines:
            rows = exported(opened, SystemClock().wall(), complain)
            written = sum(lines.write(f"{line}\n") > 0 for line in rows)
        new.replace(file)
    count = written - 1  # the first line is no row
    click.echo(f"Wrote {count:,} row{'s' * (count != 1)} into {file}.")


@store.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace all that a store holds, even jobs.")
@STORE
@click.pass_obj
def import_(settings: CliSettings, file: Path, force: bool, url: str | None) -> None:
    """Fill the store with what `export` wrote into FILE, while no coordinator runs.

    The next coordinator compares it with what trains, and follows that.
    """
    import os

    from coordinator.adapters.clock import SystemClock
    from coordinator.config import Config
    from coordinator.errors import Rejected
    from coordinator.recovery.transfer import import_all
    from coordinator.stores.elector import Elector, Holder

    _check_ordinary(file)
    if not url and (last := _of_last_up(settings.state)) != _default(settings.state):
        import re

        plain = re.sub("//[^/]*@", "//", last)  # without a password
        raise Rejected(f"The last `reshape up` used {plain}: name the store to fill with --store or in RESHAPE_STORE.")
    with _opened(settings, url, must_exist=False) as opened:
        elector = Elector(opened, SystemClock(), Config().term_s, Holder.of_process(os.getpid()))
        count = import_all(opened, lambda: file.read_text("utf-8", "replace").splitlines(), elector, force)
    click.echo(
        f"Read {count:,} row{'s' * (count != 1)} from {file}. `reshape store check` says whether they fit together."
    )


@store.command()
@STORE
@click.pass_obj
def check(settings: CliSettings, url: str | None) -> int:
    """Say what contradicts in the store, such as a GPU of a job that does not exist; exit code 1 if anything does."""
    import time

    with _opened(settings, url) as opened:
        found = _contradictions(opened)
        if found:  # a coordinator may have been in the middle of something
            time.sleep(AGAIN_S)
            again = set(_contradictions(opened))
            found = [sentence for sentence in found if sentence in again]
    from reshape.output.tables import plain

    for sentence in found:
        click.echo(plain(f"{sentence[0].upper()}{sentence[1:]}."))
    if not found:
        click.echo("Nothing contradicts.")
    return 1 if found else 0


@store.command()
@click.argument("job")
@STORE
@click.pass_obj
def settle(settings: CliSettings, job: str, url: str | None) -> None:
    """Let JOB go on where two trainings claim one GPU, and cancel the others, which save first if they can.

    `reshape job NAME` says of which jobs that is so.
    """
    from coordinator.recovery.check import settle as decide

    with _opened(settings, url) as opened:
        docs, rows = opened.list("jobs", {"closed": False}), opened.list("gpus")
        jobs, gpus = decide(docs, rows, job)
        for row in rows:
            if (mine := gpus.get(str(row["_id"]))) is not None:
                opened.update("gpus", row["_id"], {"version": row.get("version")}, mine)
        # The one that goes on comes last: where a coordinator changed a row meanwhile, all are held still.
        for doc in sorted(docs, key=lambda doc: doc.get("job_id") == job):
            if (changes := jobs.get(str(doc.get("job_id")))) is not None:
                opened.update("jobs", doc["_id"], {"version": doc.get("version")}, changes)
    others = sorted(name for name in jobs if name != job)
    click.echo(f"Job {job} goes on" + (f"; cancelled: {', '.join(others)}." if others else "."))


def _contradictions(opened: Store) -> list[str]:
    from coordinator.recovery.check import contradictions

    return list(contradictions(opened.list("jobs"), opened.list("gpus"), opened.list("nodes")))


@contextmanager
def _opened(settings: CliSettings, url: str | None, must_exist: bool = True) -> Iterator[Store]:
    from coordinator.stores.opening import open_store

    where = _url(settings, url)
    if must_exist:
        _size(_file(where))
    opened = open_store(where)
    try:
        yield opened
    finally:
        opened.close()


def _check_ordinary(file: Path) -> None:
    """Raise `Rejected` for a device, a pipe or a folder: one would be replaced, another read without end."""
    from coordinator.errors import Rejected

    if file.exists() and not file.is_file():
        raise Rejected(f"{file} is not a regular file: name another one.")


def _url(settings: CliSettings, url: str | None) -> str:
    return url or _of_last_up(settings.state)


def _default(state: Path) -> str:
    return f"{SQLITE}{state / FILE}"


def _of_last_up(state: Path) -> str:
    """URL of the store that the last `reshape up` with this state folder used."""
    import json

    try:
        found = json.loads((state / "up.json").read_text("utf-8"))["store"]
    except (OSError, ValueError, LookupError, TypeError):
        return _default(state)
    return found if isinstance(found, str) and found else _default(state)


def _file(url: str) -> Path | None:
    return Path(url.removeprefix(SQLITE)).absolute() if url.startswith(SQLITE) else None


def _compact(url: str) -> Removed:
    import os

    from coordinator.adapters.clock import SystemClock
    from coordinator.config import Keep, from_environment
    from coordinator.errors import Rejected
    from coordinator.stores import retention
    from coordinator.stores.opening import open_store
    from reshape_hooks.plain import boot_id

    try:
        keep = from_environment(Keep, os.environ, "RESHAPE_KEEP_")
    except ValueError as error:
        raise Rejected(f"{error}.") from None
    opened = open_store(url)
    try:
        clock = SystemClock()
        watch = retention.ClockWatch(clock, opened, boot_id())
        removed = retention.prune(opened, keep, clock.wall(), watch.steady(), watch.doubted())
        opened.compact()
        return removed
    finally:
        opened.close()


def _size(file: Path | None) -> int:
    """Bytes of the file and of its log of writes; `Rejected` if there is none, which opening would make."""
    from coordinator.errors import Rejected

    if file is None:
        return 0
    if not file.is_file():
        raise Rejected(f"There is no store {file}: name another one with --store.")
    log = file.with_name(f"{file.name}-wal")
    return file.stat().st_size + (log.stat().st_size if log.exists() else 0)
