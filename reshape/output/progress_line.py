"""Shows how far a job is in one line of a terminal, which it writes again and again; elsewhere nothing.

The line is gone once the body has ended, also by an error, so that what is printed afterwards stands alone. A program
that waits has the line of `reshape/client/progress_bar.py`, which is shorter, since the client knows no table of jobs.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from coordinator.dashboard import words
from coordinator.dashboard.words import text
from reshape.client.progress_bar import TO_END_OF_LINE, text_bar
from reshape.output import job_table
from reshape.output.tables import GAP, NONE, cut, middle_cut, plain, shortened

View = Mapping[str, Any]

START_OF_LINE = "\r"


@contextlib.contextmanager
def shown() -> Iterator[Callable[[View], None]]:
    """Yield a function that shows a job as it is now, on standard error."""
    if not sys.stderr.isatty():
        yield lambda view: None
        return

    def show(view: View) -> None:
        columns = shutil.get_terminal_size().columns - 1  # a full line would be wrapped
        _write(line(view, time.time(), columns))

    try:
        yield show
    finally:
        _write("")


def line(view: View, now: float, width: int) -> str:
    """Return name, state, GPUs, bar and end of a job in at most so many columns; of one that waits, its reason."""
    name = middle_cut(plain(text(view.get("job_id"))), max(int(width * job_table.LONGEST_NAME), 2))
    end = job_table.short_end(view, now)
    parts = [name, plain(words.state(view))]
    if view.get("num_gpus"):
        parts.append(f"{job_table.gpus(view)} GPUs")
    if (share := job_table.share_done(view)) is not None:
        parts += [text_bar(share), job_table.percent(view)]
    elif view.get("iters_done"):
        parts.append(job_table.percent(view))
    if end != NONE:
        parts.append(end)
    told = GAP.join(parts)
    room = width - len(GAP) - len(told)
    why = words.short_reason(view)
    if isinstance(why, str) and view.get("state") != "running" and room > 0:
        told += GAP + shortened(plain(why), room)
    return cut(told, width)


def _write(words_now: str) -> None:
    sys.stderr.write(f"{START_OF_LINE}{words_now}{TO_END_OF_LINE}")
    sys.stderr.flush()
