"""Keeps which GPUs have fallen sick under a training, as its sidecar reads them.

A sidecar that cannot read GPUs at all, without a library or rights, says nothing about them: only a GPU counts as sick
of which this coordinator has seen a good reading before. Thread-safe. The loop's thread writes what has changed
(`coordinator/service.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sidecar.protocol import GpuReading


class GpuFaults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._good: set[str] = set()  # read well at least once
        self._sick: set[str] = set()
        self._news: dict[str, str] = {}  # GPU -> what is wrong; empty: it is well again

    def begin(self) -> None:
        """Another coordinator may have acted: its readings and what it wrote are not known."""
        with self._lock:
            self._good.clear()
            self._sick.clear()
            self._news.clear()

    def keep_readings(self, readings: Iterable[GpuReading]) -> bool:
        """Keep the readings of a heartbeat; True if a GPU has fallen sick or is well again."""
        news = False
        for reading in readings:
            gpu_id = reading.gpu_id
            sick = gpu_id in self._sick
            if reading.healthy and not sick:
                self._good.add(gpu_id)
            elif reading.healthy == sick and gpu_id in self._good:
                with self._lock:
                    (self._sick.discard if sick else self._sick.add)(gpu_id)
                    self._news[gpu_id] = "" if sick else reading.problem or "it does not work"
                news = True
        return news

    def changed(self) -> dict[str, str]:
        """What is still to be written."""
        with self._lock:
            return dict(self._news)

    def written(self, gpu_id: str, problem: str) -> None:
        with self._lock:
            if self._news.get(gpu_id) == problem:
                del self._news[gpu_id]
