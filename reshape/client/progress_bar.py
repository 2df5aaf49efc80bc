"""Shows how far a job is, in a terminal or a notebook; nothing where the output goes elsewhere, or rich is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from reshape.client.connection import View

Show = Callable[[View], None]


@contextlib.contextmanager
def progress_bar(wanted: bool) -> Iterator[Show]:
    """Yield a function that shows a job as it is now."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        wanted = False
    if not wanted or not ((console := Console(stderr=True)).is_terminal or console.is_jupyter):
        yield lambda job: None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rest]}")
    with Progress(*columns, console=console) as bar:
        line = bar.add_task("", total=None, rest="")
        yield lambda job: bar.update(
            line, description=_where(job), total=job["iterations"], completed=job["iters_done"], rest=_rest(job)
        )


def _where(job: View) -> str:
    gpus = f" on {job['num_gpus']} GPU{'s' * (job['num_gpus'] != 1)}" if job["num_gpus"] else ""
    return f"{job['job_id']} {job['state']}{gpus}"


def _rest(job: View) -> str:
    """Seconds until its end, or its start; empty if they are not known."""
    end_s, start_s = job.get("eta_s"), job.get("start_in_s")
    if end_s is not None:
        return f"ends in {end_s:.0f} s"
    return "" if start_s is None else f"starts in {start_s:.0f} s"
