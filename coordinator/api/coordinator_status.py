"""Says of the coordinator itself whether it acts, how it is, and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.events.metrics import Metrics
from coordinator.ports import Clock
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache
from coordinator.stores.elector import Elector

View = dict[str, Any]


class CoordinatorStatus:
    """Thread-safe, from memory, and the same for all callers: it tells nothing of single jobs."""

    def __init__(
        self,
        elector: Elector,
        cache: Cache,
        loop: DecisionLoop,
        metrics: Metrics,
        clock: Clock,
        shares: Callable[[], View],
        gpus: Callable[[], list[View]],
        trouble: Callable[[], str],
    ) -> None:
        """`trouble` returns why the coordinator does not work, as a sentence; empty if it does.

        `shares` and `gpus` return what the services of these names show to whoever may see all.
        """
        self._elector = elector
        self._cache = cache
        self._loop = loop
        self._metrics = metrics
        self._clock = clock
        self._shares = shares
        self._gpus = gpus
        self._trouble = trouble

    def acts(self) -> bool:
        """Return whether this is the coordinator that acts. Never raises."""
        return self._elector.leads

    def health(self) -> View:
        """Return whether all is `ok`, and a `sentence` about it. Never raises."""
        trouble = self._trouble()
        ok = not trouble and self._elector.leads
        return {"ok": ok, "sentence": "All is well." if ok else trouble or "This coordinator does not act now."}

    def metrics(self) -> bytes:
        """Return Prometheus text."""
        cache = self._cache
        misfits = {table: len(cache.invalid_fields(table)) for table in ("jobs", "gpus")}
        kept = sum(gpu["kept_for"] is not None for gpu in self._gpus()) if self._loop.reservations else 0
        return self._metrics.text(
            cache.jobs().values(), cache.gpus().values(), self._loop.node_loads, misfits, self._shares()["queues"], kept
        )

    def wall(self) -> float:
        """Return the time in seconds since 1970, as events have it."""
        return self._clock.wall()
