"""How long tests wait for what has to happen: one factor for all, because no timing decides a test.

A test names how long a thing takes at most on a machine that is not loaded, and waits `FACTOR` times that: so tests
hold at a load of ten, and a broken promise still fails within minutes. What hangs is ended by pytest's `timeout`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

FACTOR = 4.0
POLL_S = 0.02

T = TypeVar("T")


def patient(seconds: float) -> float:
    """The deadline, seconds, for what takes at most `seconds` on a machine that is not loaded."""
    return seconds * FACTOR


def eventually(true: Callable[[], T], what: str = "", within: float = 15.0) -> T:
    """What `true` returns, once that is true; AssertionError with `what` after `patient(within)` seconds."""
    limit = time.monotonic() + patient(within)
    while not (found := true()):
        assert time.monotonic() < limit, f"{what or true}: not within {patient(within):.0f} s"
        time.sleep(POLL_S)
    return found
