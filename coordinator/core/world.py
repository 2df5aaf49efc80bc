"""Everything that decides what happens next to one job. Built by the reconciler, read by `lifecycle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.config import Config
from coordinator.core.records import GpuRecord, JobRecord, Operation, name
from sidecar.protocol import Heartbeat, ShimStatus

POLL_S = 1.0  # how soon to look again while something should be reported by itself

REMOVING_S = 0.2  # a removal tells nobody when it is done


@dataclass(frozen=True)
class World:
    """Everything `next_step` may look at."""

    job: JobRecord
    jobs: Mapping[str, JobRecord]
    gpus: Mapping[str, GpuRecord]
    config: Config
    wall: float  # seconds since 1970
    seen: Heartbeat | None = None  # the newest report of the job's present launch
    lost: bool = False  # the present launch had come up, and certainly no process of it runs any more
    launch_asked: bool = False
    launch_failure: str | None = None
    remove_asked: bool = False
    waited_s: float = 0.0  # how long the job has stood at the same point

    @property
    def op(self) -> Operation:
        assert self.job.operation is not None
        return self.job.operation

    @property
    def shim(self) -> ShimStatus:
        return self.seen.shim if self.seen else ShimStatus()

    @property
    def checkpoint(self) -> str | None:
        """What the sidecar found is newer than what was written: a trainer may have saved while nobody heard it."""
        if self.seen is not None and self.seen.checkpoint is not None:
            return self.seen.checkpoint.name
        written = self.job.doc.get("checkpoint")
        return name(written.get("name")) if isinstance(written, Mapping) else None

    @property
    def trains(self) -> bool:
        """Whether a trainer may be using GPUs, as far as anybody knows."""
        return not self.lost and self.shim.trainer in ("running", "stopping")

    @property
    def at_rest(self) -> bool:
        """Certain that no trainer of this job uses a GPU."""
        return self.lost or self.job.launch == 0 or (self.seen is not None and not self.trains)
