"""Makes the view of one job from its document, the newest report of it and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from coordinator.api import views
from coordinator.api.access import Access
from coordinator.expected_times import ExpectedTimes
from coordinator.forecasts.forecaster import Forecaster
from coordinator.forecasts.intervals import WhenExpected
from coordinator.model.records import JobRecord
from coordinator.ports import Clock, moment_of
from coordinator.reconcile.reconciler import Unanswered
from coordinator.scheduling.loop import DecisionLoop
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry

View = dict[str, Any]
Expected = tuple[Mapping[str, ExpectedTimes], float]


class JobViews:
    """Thread-safe."""

    def __init__(
        self,
        cache: Cache,
        telemetry: Telemetry,
        loop: DecisionLoop,
        forecaster: Forecaster,
        clock: Clock,
        unanswered: Callable[[str], Unanswered | None],
    ) -> None:
        """`unanswered` returns the command to a job's sidecar that is sent again until it is answered."""
        self._cache = cache
        self._telemetry = telemetry
        self._loop = loop
        self._forecaster = forecaster
        self._clock = clock
        self._unanswered = unanswered

    def view(self, job: JobRecord, access: Access, expected: Expected = ({}, 0.0)) -> View:
        """Return what may be shown of a job. `expected`: times by job, and when they were computed."""
        view = self._whole_view(job, expected)
        return access.without_names(views.of_another_user(view) if access.hides(job) else view)

    def _whole_view(self, job: JobRecord, expected: Expected) -> View:
        gpus = self._cache.gpus()
        node_gpus = [g for g in gpus.values() if job.node in (None, g.node) and not job.uses_cpu]
        emulated = any(g.doc.get("emulated") for g in node_gpus)
        if job.doc.get("closed"):  # another job may have its name by now, which all reports are of
            view = views.job_view(job, None, {}, emulated)
            times = views.times(job, view, *expected, self._clock.wall()) | views.between(WhenExpected())
            return {**view, **times, "pods": []}
        stored = self._telemetry.batches.row(job)
        _, efficiency, needs = self._telemetry.progress.progress_of_job(job)
        beat, used_from = self._telemetry.report(job)
        view = views.job_view(job, beat, stored, emulated, needs, efficiency)
        view["usage"] |= {"used_from": used_from}
        view["problems"] = [
            *view["problems"],
            *self._cache.invalid_fields_of(job),
            *self._loop.unmarked.told_of_job(job),
        ]
        reports = self._telemetry.reports
        at = moment_of(self._clock)
        if reports.stale_s(job) < 0:
            silent_s = max(reports.silent_s(job, member) for member in range(job.members))
            lives_on = self._loop.config.many_pods and job.unleased
            view |= views.silence(job, silent_s) if lives_on else views.no_report(job, view, silent_s)
        if (unanswered := self._unanswered(job.id)) is not None:
            view |= views.no_answer(view, unanswered.command, at.now - unanswered.since, unanswered.why)
        view |= views.standstill(job, at)
        view |= views.time_left(job, view, at)
        view |= views.pause(job, beat, self._telemetry.reshape_s(job))
        pods = views.pods_view(job, self._telemetry.reports.pods(job), gpus)
        why = views.starts_if(self._loop.reasons.known(job.id))
        times = views.times(job, view, *expected, self._clock.wall()) | views.between(
            self._forecaster.forecast_of_job(job)
        )
        return {**view, **times, **why, "pods": pods}
