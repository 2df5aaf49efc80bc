"""Lets work in the background give way to the answers to heartbeats, all of which run in one Python process.

Python lets one thread run at a time. A server waits for its turn after each call of the kernel, up to 5 ms, so beside a
thread that computes for a second it answers a hundred messages instead of two thousand. Threads that work through many
jobs therefore call `GiveWay` after each of them: while heartbeats come, all of them together work for 1 ms and rest for
4. Where few sidecars report, nobody rests. For the same reason cyclic garbage is looked for only rarely: with the
records of 10,000 jobs, or as many connections, each look stops all threads for half a second.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

WORK_S, REST_S = 0.001, 0.004
COLLECT_S = 600.0


class GiveWay:
    """Called between two pieces of work, by any thread; `heard` counts the heartbeats that have come."""

    def __init__(self, heard: Callable[[], int]) -> None:
        self._heard, self._count = heard, 0
        self._began, self._rests_until = 0.0, 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._rests_until:
            time.sleep(self._rests_until - now)
        elif now - self._began >= WORK_S:
            before, self._count = self._count, self._heard()
            if self._count != before:
                self._rests_until = now + REST_S
                time.sleep(REST_S)
            self._began = time.monotonic()


async def collect_rarely() -> None:
    """Look for cyclic garbage every `COLLECT_S` seconds and at no other time, until cancelled.

    There is hardly any, as all that matters is freed once nobody names it. But Python's collector begins by itself
    whenever many objects have come, and as each heartbeat replaces those of the one before it they are never few.
    """
    gc.disable()
    try:
        while True:
            await asyncio.sleep(COLLECT_S)
            gc.collect()
    finally:
        gc.enable()
