"""Keeps the newest heartbeat of each pod of a job's present and coming launch, in memory.

Only times that this process observed itself count; after a restart every lease is treated as renewed at the start
(`reliability.md` 5). Thread-safe: entries are replaced as a whole.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

import msgspec

from coordinator.model.gang import merged_report
from coordinator.model.records import JobRecord
from coordinator.ports import Clock
from coordinator.telemetry.changed_jobs import ChangedJobs
from sidecar.protocol import Heartbeat, ShimStatus

FRESH_BEATS = 2.4  # heartbeats that may be missed before the platform is asked whether the launch is alive

_Place: TypeAlias = tuple[int, int]  # (launch, rank of the pod)
_Kept: TypeAlias = tuple[Heartbeat, float]


class Reports:
    def __init__(self, clock: Clock, heartbeat_s: float) -> None:
        self._clock, self._heartbeat_s = clock, heartbeat_s
        self._started = clock.now()
        self.changed = ChangedJobs()  # jobs of which `of` or `pods` may answer something else
        self.heard = 0  # heartbeats that were kept
        self._lock = threading.Lock()
        self._newest: dict[str, dict[_Place, _Kept]] = {}  # by job and place: the heartbeat, and when it came
        self._renewed: dict[str, float] = {}  # by job that is set aside: when its lease was last renewed
        self._left: dict[str, set[tuple[_Place, str]]] = {}  # by job: (place, boot) of pods that have ended or must end

    def begin(self) -> None:
        """Start to lead: only this process renews leases from now on, so silence counts from now; old reports go."""
        with self._lock:
            self._started = self._clock.now()
            heard = list(self._newest)
            self._newest.clear()
        self.changed.add(*heard)

    def keep_heartbeat(self, job: JobRecord, beat: Heartbeat) -> bool:
        """Keep a heartbeat; True if it calls for a decision or a step.

        A pod of a gang that reports beyond the gang's size is about to end and is ignored from then on: the next pod of
        that rank is another one.
        """
        place = beat.launch, beat.member
        with self._lock:
            old = self._kept(job.id, place)
            left = self._left.setdefault(job.id, set())
            if beat.member >= job.most_members:
                left.add((place, beat.boot))
            over = beat.launch < job.launch or (place, beat.boot) in left
            if over or (old is not None and _older(beat, old[0])):
                return False
            if old is not None and old[0].boot != beat.boot:
                left.add((place, old[0].boot))
            others = {at: kept for at, kept in self._newest.get(job.id, {}).items() if at[0] >= job.launch}
            self._newest[job.id] = {**others, place: (beat, self._clock.now())}
            self.heard += 1
        self.changed.add(job.id)
        return old is None or _calls_for_action(old[0], beat)

    def renewed(self, job_id: str) -> None:
        """Note that the lease of a job that is set aside was renewed: its silence counts from now."""
        with self._lock:
            self._renewed[job_id] = self._clock.now()

    def learn(self, job: JobRecord, status: ShimStatus, sent_at: float, member: int = 0) -> None:
        """Take the answer to a command sent at `sent_at`: newer than any heartbeat that does not show the command."""
        place = job.launch, member
        with self._lock:
            if (old := self._kept(job.id, place)) is None:
                return
            overtaken = old[1] > sent_at and old[0].shim.command_id == status.command_id
            if not overtaken:
                kept = msgspec.structs.replace(old[0], shim=status), old[1]
                self._newest[job.id] = {**self._newest[job.id], place: kept}
        self.changed.add(job.id)

    def keep_only(self, job: JobRecord, members: int) -> None:
        """Note that a gang has `members` pods from now on: later reports of pods beyond them are ignored."""
        with self._lock:
            kept, left = self._newest.get(job.id, {}), self._left.setdefault(job.id, set())
            out = [at for at in kept if at[0] == job.launch and at[1] >= members]
            left.update((at, kept[at][0].boot) for at in out)
            self._newest[job.id] = {at: one for at, one in kept.items() if at not in out}
        self.changed.add(job.id)

    def _kept(self, job_id: str, place: _Place) -> _Kept | None:
        return self._newest.get(job_id, {}).get(place)

    def newest_of_job(self, job: JobRecord) -> Heartbeat | None:
        """The newest report of the job's present launch, joined for a gang; given `job.coming`, of the next."""
        if job.gpus_per_pod is not None:
            return merged_report(self.pods(job), job.members, fine=job.reshape_exit_codes)
        newest = self._kept(job.id, (job.launch, 0))
        return None if newest is None else newest[0]

    def pods(self, job: JobRecord) -> dict[int, Heartbeat]:
        """By rank, the newest report of each pod of the present launch that has reported."""
        kept = self._newest.get(job.id, {})
        return {member: beat for (launch, member), (beat, _) in kept.items() if launch == job.launch}

    def silent_s(self, job: JobRecord, member: int | None = None) -> float:
        """Seconds since the last report of one pod or of any; at most the time since this process started."""
        if member is None:
            return min(self.silent_s(job, k) for k in range(job.members))
        newest = self._kept(job.id, (job.launch, member))
        heard = self._started if newest is None else newest[1]
        return self._clock.now() - max(heard, self._renewed.get(job.id, heard))

    def fresh(self, job: JobRecord) -> bool:
        """True if each pod reported so recently that the platform need not be asked."""
        return self.newest_of_job(job) is not None and all(self.recent(job, member) for member in range(job.members))

    def recent(self, job: JobRecord, member: int) -> bool:
        """True if this pod has missed at most `FRESH_BEATS` heartbeats."""
        return self.silent_s(job, member) < FRESH_BEATS * self._heartbeat_s

    def stale_s(self, job: JobRecord) -> float:
        """Seconds until `recent` is false for one of its pods unless it reports; 0 or less if it is already."""
        longest = max(self.silent_s(job, member) for member in range(job.members))
        return FRESH_BEATS * self._heartbeat_s - longest

    def forget_job(self, job_id: str) -> None:
        with self._lock:
            self._newest.pop(job_id, None)
            self._left.pop(job_id, None)
            self._renewed.pop(job_id, None)
        self.changed.add(job_id)

    def all(self) -> list[Heartbeat]:
        """The newest report of every pod that has reported."""
        with self._lock:
            return [beat for pods in self._newest.values() for beat, _ in pods.values()]


def _older(new: Heartbeat, old: Heartbeat) -> bool:
    """True if `new` is a late or repeated heartbeat, of this sidecar or an earlier one of the same launch.

    `seq` begins at the machine's uptime in milliseconds, so it grows over restarts of the sidecar.
    """
    if new.boot != old.boot:  # `seq` begins anew with each boot
        return False
    return new.seq <= old.seq or new.shim.generation < old.shim.generation


def _calls_for_action(old: Heartbeat, new: Heartbeat) -> bool:
    first_step = (old.progress.first_step_at is None) != (new.progress.first_step_at is None)
    return first_step or _facts(old) != _facts(new)


def _facts(beat: Heartbeat) -> tuple[object, ...]:
    shim = beat.shim
    command = shim.trainer, shim.trainer_pid, shim.generation, shim.command_id, shim.ending, shim.waits
    return (
        beat.launch,
        beat.sidecar_pid,
        beat.url,
        beat.hook,
        beat.withdrawn,
        beat.checkpoint is None,
        beat.unwritten,
        beat.lost,
        *command,
    )
