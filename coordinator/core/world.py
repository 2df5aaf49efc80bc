"""Everything that decides what happens next to one job. Built by the reconciler, read by `lifecycle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.config import Config
from coordinator.core.records import GpuRecord, JobRecord, Operation, name
from sidecar.protocol import Heartbeat, ShimStatus

POLL_S = 1.0  # how soon to look again while something should be reported by itself

REMOVING_S = 0.2  # a removal tells nobody when it is done


def how_of(job: JobRecord, config: Config) -> str:
    """How this job is reshaped: `in place`, or by another launch (`relaunch`)."""
    return "relaunch" if job.recreated or config.reshape_by == "relaunch" else "in place"


def starts_early(job: JobRecord, config: Config) -> bool:
    """Whether it may be launched while its victim still trains: not if its launch takes its GPUs as it is made."""
    return config.early_initialization and not job.recreated


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
    away: bool = False  # the node of the job is not heard of: nothing can be launched there
    launch_asked: bool = False
    launch_failure: str | None = None
    unplaced: str | None = None  # why the launch has not been begun for long, though nothing is wrong with it
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
        return name(written.get("name")) if isinstance(written, Mapping) and not self.saved_in_vain else None

    @property
    def saved_in_vain(self) -> bool:
        """Whether what it saved has gone with an earlier launch: in a pod's own folder, and the pod is gone."""
        written = self.job.doc.get("checkpoint")
        lasting = self.config.checkpoints_last or bool(self.job.doc.get("checkpoint_claim"))
        return not lasting and isinstance(written, Mapping) and written.get("launch") != self.job.launch

    @property
    def trains(self) -> bool:
        """Whether a trainer may be using GPUs, as far as anybody knows."""
        return not self.lost and self.shim.trainer in ("running", "stopping")

    @property
    def at_rest(self) -> bool:
        """Certain that no trainer of this job uses a GPU."""
        return self.lost or self.job.launch == 0 or (self.seen is not None and not self.trains)
