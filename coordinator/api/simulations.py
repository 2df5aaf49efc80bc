"""Gives administrators what they simulate with: the cluster as it is now, and what happened before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.api.access import Access, UserService
from coordinator.api.ended_jobs import EndedJobs
from coordinator.api.journal_view import Journal, journal_view
from coordinator.api.snapshot_view import snapshot_view
from coordinator.events.event_log import EventLog
from coordinator.forecasts import what_if_form
from coordinator.forecasts.forecaster import Forecaster
from coordinator.ports import Clock
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache

View = dict[str, Any]


class Simulations(UserService):
    """Thread-safe."""

    def __init__(
        self,
        access: Access,
        cache: Cache,
        clock: Clock,
        loop: DecisionLoop,
        forecaster: Forecaster,
        event_log: EventLog,
        ended: EndedJobs,
    ) -> None:
        super().__init__(access)
        self._cache = cache
        self._clock = clock
        self._loop = loop
        self._forecaster = forecaster
        self._event_log = event_log
        self._ended = ended

    def snapshot(self) -> View:
        """Return nodes, jobs on GPUs and settings as the scheduler sees them now, to simulate what would happen."""
        self.access.require_admin("simulate with the jobs of all users")
        at = self._forecaster.present()
        return snapshot_view(at.snapshot, at.now, self._loop.settings, at.relaunches, at.silent_s, at.held)

    def journal(self, within_s: float = 0.0) -> View:
        """Return jobs as they were submitted, to simulate them under another policy, and what came of them.

        Open ones and those that ended in the last `within_s` seconds; 0: all that are kept.
        """
        self.access.require_admin("read what all users have submitted")
        until = self._clock.wall()
        present, _ = self._loop.present()
        since = until - within_s if within_s else 0.0
        jobs = {str(job.key): job for job in self._ended.ended_since(since)}
        jobs |= {str(job.key): job for job in self._cache.jobs().values()}
        predicted = {j.id: j.iterations_left + j.iterations_done for j in present.jobs if j.iterations_left is not None}
        began = min((job.submit_ts for job in jobs.values()), default=until)
        events = [event for event in self._event_log.events_since(began) if event["type"] == "gpu"]
        journal = Journal(list(jobs.values()), events, predicted, began, until)
        relaunches = self._loop.config.reshape_by == "relaunch"
        return journal_view(journal, present.nodes, self._loop.inputs, self._loop.settings, relaunches)

    def what_if(self, fields: Mapping[str, str]) -> View:
        """Simulate with the changes of a form: `head` and `rows` of a table, `said`, `times`. Takes seconds."""
        self.access.require_admin("simulate with the jobs of all users")
        return what_if_form.answer(self._forecaster.live(), fields)
