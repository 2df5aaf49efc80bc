"""Makes torchrun wait for processes that save and end when it is asked to stop, and end as they do.

By itself torchrun forwards SIGTERM to its processes, kills those that are still running 30 s later, and exits with 1
and a stack trace. SIGUSR1 kills it. Called by `on_import` in torchrun's process.
"""

from __future__ import annotations

import functools
import signal
import sys
from types import FrameType, ModuleType
from typing import Any

from reshape_hooks import plain

NEVER_S = 10.0**9  # the shim knows how long a training may save, and kills it then

_contexts: list[Any] = []  # whose processes were started and are not closed


def adapt(module: ModuleType) -> None:
    """Replace its signal handler, and the methods that start, poll and end its processes."""
    theirs: Any = module
    handler = _LateHandler(theirs._terminate_process_handler)
    theirs._terminate_process_handler = handler
    of_processes = theirs.SubprocessContext
    begin = of_processes._start
    look = of_processes._poll
    close = of_processes._close

    @functools.wraps(begin)
    def _start(self: Any, *args: Any, **kwargs: Any) -> Any:
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _tell_first)
        _contexts.append(self)
        return begin(self, *args, **kwargs)

    @functools.wraps(look)
    def _poll(self: Any) -> Any:
        handler.raise_late()
        found = look(self)
        handler.raise_late()
        return found

    @functools.wraps(close)
    def _close(self: Any, death_sig: Any, timeout: float = 30) -> None:
        for one in self.subprocess_handlers.values():
            one.close = functools.partial(_close_one, one, one.close)
        asked = getattr(sys.exc_info()[1], "sigval", None) == signal.SIGTERM
        close(self, death_sig, NEVER_S if asked else timeout)
        if self in _contexts:
            _contexts.remove(self)
        codes = {one.proc.returncode for one in self.subprocess_handlers.values()}
        if asked and codes and codes <= {0, plain.STOPPED}:
            raise SystemExit(max(codes))
        if not asked:
            handler.raise_late()

    of_processes._start = _start
    of_processes._poll = _poll
    of_processes._close = _close


class _LateHandler:
    """Torchrun's signal handler, whose exception is deferred to the next poll of its processes.

    Raised anywhere, it would interrupt code that then leaves a lock held, so that a process never seems to end, or a
    clock unread. Where torchrun only sleeps between two polls, it is raised at once.
    """

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs
        self._came: tuple[int, FrameType | None] | None = None  # a signal that waits until nothing is in progress

    def __call__(self, number: int, frame: FrameType | None) -> None:
        asleep = frame is not None and frame.f_code.co_name == "_invoke_run"
        if _contexts and not asleep:
            self._came = number, frame
        else:
            self._theirs(number, frame)

    def raise_late(self) -> None:
        """Raise what a deferred signal would have raised."""
        came, self._came = self._came, None
        if came is not None:
            self._theirs(*came)


def _close_one(one: Any, theirs: Any, death_sig: Any = None) -> None:
    """Ask a process to stop, but not its children: a training whose DataLoader workers end does not save."""
    if death_sig == signal.SIGTERM:
        if one.proc.poll() is None:
            one.proc.send_signal(death_sig)
    else:
        theirs(death_sig)


def _tell_first(number: int, _frame: FrameType | None) -> None:
    """Ask one process to save, which asks the others."""
    for context in _contexts:
        first = context.subprocess_handlers.get(0)
        if first is not None and first.proc.poll() is None:
            first.proc.send_signal(number)
