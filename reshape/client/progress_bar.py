"""Shows how far a job is while a program waits for it, in a terminal or a notebook; elsewhere nothing is written.

Promises to import nothing: in a notebook IPython is there already, in a terminal one line is written again and again.
"""

from __future__ import annotations

import contextlib
import html
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reshape.client.job_output import has_ended, not_accepted

Show = Callable[[Mapping[str, Any]], None]

BAR_WIDTH = 24  # characters
TO_END_OF_LINE = "\x1b[K"


@contextlib.contextmanager
def progress_bar(wanted: bool) -> Iterator[Show]:
    """Yield a function that shows a job as it is now; of one that has not completed also why, and what to do next."""
    if not wanted:
        yield lambda job: None
    elif (display := _notebook_display()) is not None:
        yield _InNotebook(display).show
    elif sys.stderr is not None and sys.stderr.isatty():
        line = _InTerminal()
        try:
            yield line.show
        finally:
            line.end()
    else:
        yield lambda job: None


def waiting_given_up(job_id: str) -> None:
    """Say where somebody looks that Ctrl-C has ended the waiting and not the job."""
    if _notebook_display() is not None or (sys.stderr is not None and sys.stderr.isatty()):
        sys.stderr.write(f"Job {job_id} keeps running: wait() waits for it again, cancel() ends it.\n")
        sys.stderr.flush()


class _InNotebook:
    """One output of the cell, changed in place; the saved notebook holds the last one."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._output: Any = None

    def show(self, job: Mapping[str, Any]) -> None:
        shown = _Shown(job)
        if self._output is None:
            self._output = self._display(shown, display_id=True)
        else:
            self._output.update(shown)


class _Shown:
    """A job in one line, for a notebook or a program that shows notebooks as text."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = job

    def __repr__(self) -> str:
        return _job_in_a_line(self._job)

    def _repr_html_(self) -> str:
        before = _name_and_state(self._job)
        after = _outlook(self._job)
        parts = [html.escape(before), html_bar(self._job), html.escape(after)]
        return f"<div>{' &nbsp; '.join(part for part in parts if part)}</div>"


class _InTerminal:
    """A line of standard error, written over itself."""

    def __init__(self) -> None:
        self._line = ""

    def show(self, job: Mapping[str, Any]) -> None:
        line = _job_in_a_line(job)
        if not _ended_otherwise(job):  # why it failed is told whole, over several lines if need be
            line = line[: shutil.get_terminal_size().columns - 1]
        if line != self._line:
            sys.stderr.write(f"\r{_printable(line)}{TO_END_OF_LINE}")
            sys.stderr.flush()
            self._line = line

    def end(self) -> None:
        if self._line:
            sys.stderr.write("\n")
            sys.stderr.flush()


def _notebook_display() -> Callable[..., Any] | None:
    """Return the function that shows an object in this notebook; None where this is none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):  # IPython in a terminal has none
        return None
    display: Callable[..., Any] = sys.modules["IPython.display"].display
    return display


def _printable(text: str) -> str:
    """Return a text, which a training may have printed, without what would change a terminal or cannot be written."""
    encoding = sys.stderr.encoding or "ascii"
    plain = "".join(letter if letter.isprintable() else "?" for letter in text)
    return plain.encode(encoding, "replace").decode(encoding)


def html_bar(job: Mapping[str, Any]) -> str:
    """Return how many of its iterations a job has done as a bar and a text, for a page; empty if it is not known."""
    done, total = _done_and_length(job)
    if done is None or total is None:
        return ""
    return f'<progress value="{done}" max="{total}"></progress> {html.escape(iterations_done(job))}'


def _done_and_length(job: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the iterations that a job has done, and all that it has; each None where it is not known."""
    found = [job.get(field) for field in ("iters_done", "iterations")]
    done, length = (value if isinstance(value, int) else None for value in found)
    return done, length


def text_bar(share: float) -> str:
    """Return a bar of characters; `share`: what is done of a job, 0 to 1."""
    full = min(BAR_WIDTH, int(BAR_WIDTH * share))
    return f"[{'#' * full}{'-' * (BAR_WIDTH - full)}]"


def iterations_done(job: Mapping[str, Any]) -> str:
    """Return such as `7/20`, or `7 iterations` where the length is not known; empty if there is nothing to tell."""
    done, total = _done_and_length(job)
    if done is None:
        return ""
    if total is not None:
        return f"{done}/{total}"
    return f"{done} iteration{'s' * (done != 1)}" if done else ""


def expected(job: Mapping[str, Any]) -> str:
    """Return when a job is expected to end, or to start; empty if that is not known, or it has ended."""
    if has_ended(job):
        return ""
    end_s, start_s = job.get("eta_s"), job.get("start_in_s")
    if end_s is not None:
        return f"ends in {duration(end_s)}"
    return "" if start_s is None else f"starts in {duration(start_s)}"


def duration(seconds: float) -> str:
    """Return such as `45 s`, `12 min` or `3 h 05 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"


def state_in_words(job: Mapping[str, Any]) -> str:
    """Return the state of a job and its GPUs, such as `running on 2 GPUs`."""
    state = str(job.get("state", ""))
    if not_accepted(job):
        state = "not accepted"
    elif job.get("suspended") and state == "submitted":
        state = "suspended"
    count = job.get("num_gpus")
    return f"{state} on {count} GPU{'s' * (count != 1)}" if count else state


def reason(job: Mapping[str, Any]) -> str:
    """Return what the coordinator says of a job; empty if that is no more than its state."""
    message = "; ".join(job["problems"]) if not_accepted(job) else str(job.get("message") or "")
    return "" if message == job.get("state") else message


def _job_in_a_line(job: Mapping[str, Any]) -> str:
    done, total = _done_and_length(job)
    bar = ""
    if done is not None and total:
        bar = text_bar(done / total)
    return "  ".join(part for part in (_name_and_state(job), bar, iterations_done(job), _outlook(job)) if part)


def _name_and_state(job: Mapping[str, Any]) -> str:
    return f"{job['job_id']} {state_in_words(job)}"


def _outlook(job: Mapping[str, Any]) -> str:
    if _ended_otherwise(job):
        output = "job.logs() shows what it printed." if job.get("state") == "failed" else ""
        why = reason(job)
        return f"{why.rstrip('.')}. {output}".strip() if why else output
    return expected(job)


def _ended_otherwise(job: Mapping[str, Any]) -> bool:
    return job.get("state") == "failed" or not_accepted(job)
