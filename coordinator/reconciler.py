"""Carries out what `lifecycle` says, one job at a time: read, decide, persist or act, again.

Each step is persisted before the next one begins; a crash at any point is healed by reading. The two
seams of each step are failpoints, so that tests can kill the process exactly there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coordinator.books import Books
from coordinator.config import Config
from coordinator.core.lifecycle import next_step
from coordinator.core.records import JobRecord
from coordinator.core.steps import Launch, Remove, Start, Step, Stop, Wait, WriteGpu, WriteJob
from coordinator.core.world import World
from coordinator.errors import Fatal
from coordinator.ports import Clock, Doc, Platform, Sidecars
from coordinator.reports import Reports
from sidecar.protocol import ShimStatus, StartCall, StopCall, command_id, launch_key

log = logging.getLogger(__name__)

STEPS_AT_ONCE = 200  # more steps in a row than any journey needs: a bug, not a long journey


@dataclass
class _Standing:
    """For how long a job has stood at the same point, and what was asked of the platform."""

    point: tuple[object, ...] = ()
    since: float = 0.0
    launched: set[int] = field(default_factory=set)
    removed: set[int] = field(default_factory=set)


class Reconciler:
    """`reconcile(job_id)` may run in several threads, but never twice at once for one job."""

    def __init__(
        self,
        books: Books,
        reports: Reports,
        sidecars: Sidecars,
        platform: Platform,
        clock: Clock,
        config: Config,
        master_key: bytes,
        tell: Callable[[JobRecord, Mapping[str, Any]], None],
        failpoint: Callable[[str], None] = lambda name: None,
        launch_doc: Callable[[JobRecord], Doc] = lambda job: job.doc,
        away: Callable[[str | None], bool] = lambda node: False,
    ) -> None:
        self.books, self.reports, self.sidecars, self.platform = books, reports, sidecars, platform
        self.clock, self.config, self._master_key = clock, config, master_key
        self._tell, self._failpoint, self._launch_doc = tell, failpoint, launch_doc
        self._away = away
        self._standing: dict[str, _Standing] = {}

    def reconcile(self, job_id: str) -> Wait:
        """Bring one job as far as it gets now; returns what it waits for.

        Raises `Conflict` (read again at once) and `Transient` (try again later).
        """
        for _ in range(STEPS_AT_ONCE):
            world = self._read(job_id)  # 1 read
            if world is None:
                self._standing.pop(job_id, None)
                return Wait(None, "gone")
            step = next_step(world)  # 2 decide
            if isinstance(step, Wait):
                return step
            self._failpoint(f"before:{step.name}")
            self._perform(world, step)  # 3 persist or act
            self._failpoint(f"after:{step.name}")
        raise Fatal(f"job {job_id} takes more than {STEPS_AT_ONCE} steps in a row")

    def _read(self, job_id: str) -> World | None:
        job = self.books.job(job_id)
        if job is None:
            return None
        seen = self.reports.of(job)
        standing = self._stand(job, seen.shim.command_id if seen else "")
        waited_s = self.clock.now() - standing.since
        late = seen is None and job.launch in standing.launched and waited_s > self.config.init_timeout_s
        return World(
            job=job,
            jobs=self.books.jobs(),
            gpus=self.books.gpus(),
            config=self.config,
            wall=self.clock.wall(),
            seen=seen,
            lost=self._lost(job, standing),
            away=self._away(job.node),
            launch_asked=job.launch in standing.launched,
            launch_failure=self.platform.failure(job.doc) if job.launch in standing.launched else None,
            unplaced=self.platform.unplaced(job.doc) if late else None,
            remove_asked=job.launch in standing.removed,
            waited_s=waited_s,
        )

    def _stand(self, job: JobRecord, command: str) -> _Standing:
        standing = self._standing.setdefault(job.id, _Standing())
        asked = job.launch in standing.launched, job.launch in standing.removed
        point = (job.state, job.launch, job.generation, command, asked)
        if point != standing.point:
            standing.point, standing.since = point, self.clock.now()
        return standing

    def _lost(self, job: JobRecord, standing: _Standing) -> bool:
        """Whether the present launch had come up (or was to go) and certainly nothing of it runs."""
        removed = job.launch in standing.removed
        if job.launch == 0:
            return False
        op = job.operation
        coming = op is not None and (op.kind == "start" or job.generation >= op.generation)
        had_come_up = not coming or job.doc.get("up") == job.launch or self.reports.of(job) is not None
        if not (had_come_up or removed) or (not removed and self.reports.fresh(job)):
            return False
        if self.platform.gone(job.doc):
            return True
        # Of one that never came up nobody tells, if its node is lost: since it was to go nobody told it to train.
        was_up = job.doc.get("up") == job.launch or self.reports.of(job) is not None
        over = was_up or (removed and self.clock.now() - standing.since > self.config.wait_out_s)
        return over and self.reports.silent_s(job) > self.config.wait_out_s

    def _perform(self, world: World, step: Step) -> None:
        job = world.job
        if isinstance(step, WriteJob):
            self._write(world, step)
        elif isinstance(step, WriteGpu):
            before = world.gpus[step.gpu]
            after = self.books.write_gpu(before, step.expect, step.changes)
            self._tell(job, {"type": "gpu", "before": before, "after": after})
        elif isinstance(step, Launch):
            self._standing[job.id].launched.add(job.launch)
            self._tell(job, {"type": "launching"})
            self.platform.launch(self._launch_doc(job))
        elif isinstance(step, Remove):
            self._standing[job.id].removed.add(job.launch)
            self.platform.remove(job.doc)
            self._tell(job, {"type": "removing"})
        elif isinstance(step, Stop | Start):
            self._command(job, step)

    def _write(self, world: World, step: WriteJob) -> None:
        before = world.jobs.get(step.job, world.job) if step.job else world.job
        after = self.books.write_job(before, step.changes, step.name)
        log.info("%s %s -> %s g%d v%s", step.name, after.id, after.state, after.generation, after.doc.get("version"))
        self._tell(after, {**step.event, "step": step.name, "before": before})

    def _command(self, job: JobRecord, step: Stop | Start) -> None:
        seen = self.reports.of(job)
        if seen is None:
            return
        sent_at = self.clock.now()
        self.reports.learn(job, self._call(job, seen.url, step), sent_at)
        self._tell(job, {"type": f"{step.name} sent", "generation": step.generation, "sent_at": sent_at})

    def _call(self, job: JobRecord, url: str, step: Stop | Start) -> ShimStatus:
        """`Conflict` says that the shim has seen a higher generation; its next heartbeat names it."""
        key = launch_key(self._master_key, job.uid, job.launch)
        command = command_id(job.id, step.generation, step.name)
        if isinstance(step, Stop):
            stop = StopCall(generation=step.generation, command_id=command, grace_s=self.config.grace_s)
            return self.sidecars.stop(url, key, job.id, job.launch, stop)
        start = StartCall(
            generation=step.generation,
            command_id=command,
            gpu_ids=list(step.gpu_ids),
            checkpoint=step.checkpoint,
            lease_s=self.config.lease_s,
        )
        return self.sidecars.start(url, key, job.id, job.launch, start)
