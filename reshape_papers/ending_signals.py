"""Lets SIGTERM and SIGHUP end a command as Ctrl-C does, so that what it started ends, too."""

from __future__ import annotations

import signal


def end_as_by_ctrl_c() -> None:
    """Raise `KeyboardInterrupt` on both signals from now on. SIGHUP stays as it is where `nohup` has it ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
