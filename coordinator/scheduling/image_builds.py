"""Holds jobs back until `launcher.image_builder` has built their images, and fails those whose images it cannot build.

The builder notes in `image_build` which image it builds, and how often and why that has failed. A job counts as failed
after as many retries as a launch has (`Config.retries`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from adaptive_scheduler.decision import Explanation, Hold
from coordinator.config import Config
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.events import JobFailed, RecordEvent
from coordinator.model.records import JobRecord, whole
from coordinator.model.schema import image_fields
from coordinator.model.tables import JobChanges
from coordinator.ports import Clock
from coordinator.scheduling import dependencies
from coordinator.stores.cache import Cache
from coordinator.telemetry.changed_jobs import Picked

ALGORITHM = "image"


class ImageBuilds:
    """Looks at all jobs that wait for an image at each cycle."""

    def __init__(self, cache: Cache, clock: Clock, config: Config, record: RecordEvent) -> None:
        self._cache = cache
        self._clock = clock
        self._config = config
        self._record = record
        self._waiting = Picked(lambda job: job.state == s.SUBMITTED and image_fields.is_wanted(job.doc))

    def sync(self) -> list[Hold]:
        """Fail jobs whose image cannot be built; return a `Hold` for each other one that waits for nothing else."""
        return [hold for job in self._waiting.from_jobs(self._cache.jobs()).values() for hold in self._judge_job(job)]

    def _judge_job(self, job: JobRecord) -> Iterator[Hold]:
        build = job.doc.get("image_build") or {}
        failures = build.get("failures")
        if whole(failures, 0) and failures > self._config.retries:
            why = f"its image could not be built: {build.get('why')}"
            changes: JobChanges = {"state": s.FAILED, "message": why, "finish_ts": self._clock.wall()}
            with suppress(Conflict):
                self._record(self._cache.write_job(job, changes, "fail"), JobFailed(why))
        elif not dependencies.is_waiting(job):  # else it says so
            yield Hold(job.id, Explanation(ALGORITHM, _tell_waiting(job, build)))


def _tell_waiting(job: JobRecord, build: dict[str, Any]) -> str:
    if why := build.get("why"):
        return f"{job.id} waits for its image, which could not be built ({why}); tries again."
    if name := build.get("image"):
        return f"{job.id} waits while its image {name} is built."
    return f"{job.id} waits for its image, which `reshape builder` builds in its turn."
