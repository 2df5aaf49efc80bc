"""What sidecars have reported, in memory: the newest heartbeat of each job's present launch.

Only times that this process observed itself count here; after a restart every lease is treated as
renewed at the start (`reliability.md` 5). Thread-safe: records are replaced as a whole.
"""

from __future__ import annotations

import threading

import msgspec

from coordinator.core.records import JobRecord
from coordinator.ports import Clock
from sidecar.protocol import Heartbeat, ShimStatus

FRESH_BEATS = 2.4  # heartbeats that may fail before anybody asks the platform whether the launch lives


class Reports:
    def __init__(self, clock: Clock, heartbeat_s: float) -> None:
        self._clock, self._heartbeat_s = clock, heartbeat_s
        self._started = clock.now()
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[Heartbeat, float]] = {}
        self._left: dict[str, set[tuple[int, str]]] = {}  # by job: launches and boots of their machine that are over

    def begin(self) -> None:
        """Only from now on nobody else renews leases: silence counts from here, and what was heard is old."""
        with self._lock:
            self._started = self._clock.now()
            self._newest.clear()

    def take(self, job: JobRecord, beat: Heartbeat) -> bool:
        """Keep a heartbeat; True if it says something that calls for action."""
        with self._lock:
            old = self._newest.get(job.id)
            left = self._left.setdefault(job.id, set())
            if (beat.launch, beat.boot) in left or (old is not None and _older(beat, old[0])):
                return False
            if old is not None and (old[0].launch, old[0].boot) != (beat.launch, beat.boot):
                left.add((old[0].launch, old[0].boot))
            self._newest[job.id] = (beat, self._clock.now())
        return old is None or _news(old[0], beat)

    def learn(self, job: JobRecord, status: ShimStatus, sent_at: float) -> None:
        """A command sent at `sent_at` was answered: newer than any heartbeat that does not know of it."""
        with self._lock:
            if (old := self._newest.get(job.id)) is None:
                return
            overtaken = old[1] > sent_at and old[0].shim.command_id == status.command_id
            if not overtaken:
                self._newest[job.id] = (msgspec.structs.replace(old[0], shim=status), old[1])

    def of(self, job: JobRecord) -> Heartbeat | None:
        """The newest report of the job's present launch."""
        newest = self._newest.get(job.id)
        return newest[0] if newest is not None and newest[0].launch == job.launch else None

    def silent_s(self, job: JobRecord) -> float:
        """Seconds since the last report was handled, at most since this process started."""
        newest = self._newest.get(job.id)
        heard = newest[1] if newest is not None and newest[0].launch == job.launch else self._started
        return self._clock.now() - heard

    def fresh(self, job: JobRecord) -> bool:
        """Whether the launch reported so recently that nobody needs to ask after it."""
        return self.of(job) is not None and self.silent_s(job) < FRESH_BEATS * self._heartbeat_s

    def forget(self, job_id: str) -> None:
        with self._lock:
            self._newest.pop(job_id, None)
            self._left.pop(job_id, None)

    def all(self) -> dict[str, Heartbeat]:
        with self._lock:
            return {job_id: beat for job_id, (beat, _) in self._newest.items()}


def _older(new: Heartbeat, old: Heartbeat) -> bool:
    """A late or repeated heartbeat, of this sidecar or an earlier one, or one of an earlier launch.

    `seq` begins at the machine's uptime in milliseconds, so it grows over restarts of the sidecar.
    """
    if new.launch != old.launch:
        return new.launch < old.launch
    if new.boot != old.boot:  # both count from nothing
        return False
    return new.seq <= old.seq or new.shim.generation < old.shim.generation


def _news(old: Heartbeat, new: Heartbeat) -> bool:
    first_step = (old.progress.first_step_at is None) != (new.progress.first_step_at is None)
    return first_step or _facts(old) != _facts(new)


def _facts(beat: Heartbeat) -> tuple[object, ...]:
    shim = beat.shim
    told = shim.trainer, shim.trainer_pid, shim.generation, shim.command_id, shim.ending
    return beat.launch, beat.sidecar_pid, beat.url, *told
