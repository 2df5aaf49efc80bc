"""Metrics of the launcher for Prometheus: launches, playbooks, admitted pods, watches. No job ids as labels.

Called by whoever does what is counted; served by the webhook's server (`admission/webhook.py`).
"""

from __future__ import annotations

from collections import Counter as Count
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest

from coordinator.model.tables import LaunchRow

PLAYBOOK_TIMES = (0.5, 1, 2, 5, 10, 20, 30, 60, 120)
ADMISSION_TIMES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
STATES = ("asked", "applied", "failed", "removing")
"""Of launches: its objects are not applied yet; they are; it cannot be launched; it is being removed."""


class LauncherMetrics:
    """One registry per launcher. Thread-safe."""

    def __init__(self, acts: Callable[[], bool], out_of_step: Callable[[], int]) -> None:
        """Both are asked at each scrape: whether this launcher acts, and how many watches must list again."""
        self._is_acting = acts
        self._registry = registry = CollectorRegistry()
        self._launches = Gauge(
            "reshape_launches", "Launches on record: asked, applied, failed, removing", ["state"], registry=registry
        )
        self._playbook = Histogram(
            "reshape_playbook_seconds",
            "One playbook; verb: launch, remove; outcome: done, failed, cancelled",
            ["verb", "outcome"],
            buckets=PLAYBOOK_TIMES,
            registry=registry,
        )
        self._admission = Histogram(
            "reshape_admission_seconds",
            "One pod at the webhook: injected, unchanged, refused, or unknown as yet",
            ["outcome"],
            buckets=ADMISSION_TIMES,
            registry=registry,
        )
        self._turn = Histogram("reshape_launcher_turn_seconds", "One turn over all launches", registry=registry)
        leads = Gauge("reshape_launcher_acts", "1 on the launcher that acts, 0 on others", registry=registry)
        leads.set_function(acts)
        late = Gauge("reshape_watches_out_of_step", "Watches of the API server that must list again", registry=registry)
        late.set_function(out_of_step)
        ProcessCollector(registry=registry)

    def launches(self, records: Iterable[LaunchRow]) -> None:
        count = Count(_state(record) for record in records)
        for state in STATES:
            self._launches.labels(state).set(count[state])

    def playbook(self, verb: str, outcome: str, seconds: float) -> None:
        """`outcome`: done, failed or cancelled."""
        self._playbook.labels(verb, outcome).observe(seconds)

    def admission(self, outcome: str, seconds: float) -> None:
        """`outcome`: injected, unchanged, refused, or unknown where the webhook could not tell yet."""
        self._admission.labels(outcome).observe(seconds)

    def turned(self, seconds: float) -> None:
        self._turn.observe(seconds)

    def text(self) -> bytes:
        """Prometheus text. One that stands by counts no launches, so that the sum over all launchers is right."""
        if not self._is_acting():
            self._launches.clear()
        return bytes(generate_latest(self._registry))


def _state(record: LaunchRow) -> str:
    if record.get("wanted") == "remove":
        return "removing"
    if record.get("failure") is not None:
        return "failed"
    return "applied" if record.get("applied") else "asked"
