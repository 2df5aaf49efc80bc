"""Lets torchrun, whose processes have saved and ended when it was asked to stop, end as one of them would have.

It tells its processes of SIGTERM by itself, but ends with 1 and a stack trace after it, and dies of SIGUSR1. Called by
`on_import` in the process of torchrun.
"""

from __future__ import annotations

import functools
import signal
import sys
from types import FrameType, ModuleType
from typing import Any

from reshape_hooks import plain

_contexts: list[Any] = []


def adapt(module: ModuleType) -> None:
    """Replace the methods that start and end its processes."""
    of_processes: Any = module.SubprocessContext
    begin, close = of_processes._start, of_processes._close

    @functools.wraps(begin)
    def _start(self: Any, *args: Any, **kwargs: Any) -> Any:
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _tell_first)
        _contexts.append(self)
        return begin(self, *args, **kwargs)

    @functools.wraps(close)
    def _close(self: Any, *args: Any, **kwargs: Any) -> Any:
        for one in self.subprocess_handlers.values():
            one.close = functools.partial(_close_one, one, one.close)
        close(self, *args, **kwargs)
        codes = {one.proc.returncode for one in self.subprocess_handlers.values()}
        told = sys.exc_info()[1]
        if getattr(told, "sigval", None) == signal.SIGTERM and codes and codes <= {0, plain.STOPPED}:
            raise SystemExit(max(codes))

    of_processes._start, of_processes._close = _start, _close


def _close_one(one: Any, theirs: Any, death_sig: Any = None) -> None:
    """Ask a process to stop, and not what it has started: a training whose DataLoader workers end does not save."""
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
