"""Everything that decides what happens next to one job. Built by the reconciler, read by `lifecycle`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.config import Config
from coordinator.model.gang import NO_MEMBERS, GangFailure, find_failure, find_stall, first_failed
from coordinator.model.records import GpuRecord, JobRecord, Operation, name
from coordinator.model.resumption import resumes
from sidecar.protocol import Heartbeat, ShimStatus, command_id

POLL_S = 1.0  # how soon to look again while something should be reported by itself

REMOVING_S = 0.2  # a removal tells nobody when it is done


def reshape_method(job: JobRecord, config: Config) -> str:
    """How this job is reshaped: `in place`, or by another launch (`relaunch`)."""
    fixed = job.recreated and job.gpus_per_pod is None  # each pod of a gang keeps what it has, only pods come and go
    return "relaunch" if fixed or config.reshape_by == "relaunch" else "in place"


def initializes_early(job: JobRecord, config: Config) -> bool:
    """Whether it may be launched while its victim still trains: not if its launch takes its GPUs as it is made."""
    return config.early_initialization and not job.recreated


@dataclass(frozen=True)
class ComingLaunch:
    """The launch that a job moves to, or pods that a gang grows by, coming up while the present ones train on."""

    up: bool = False  # whether its sidecar has reported; each of them
    lost: bool = False  # it had, and certainly no process of it runs any more
    node_unavailable: bool = False  # its node is not heard of
    asked: bool = False
    failure: str | None = None
    unplaced: str | None = None  # why it has not been begun for long
    removed: str | None = None  # why its removal was asked for, if it was


@dataclass(frozen=True)
class ObservedState:
    """Everything `next_step` may look at."""

    job: JobRecord
    jobs: Mapping[str, JobRecord]
    gpus: Mapping[str, GpuRecord]
    config: Config
    wall: float  # seconds since 1970
    seen: Heartbeat | None = None  # the newest report of the job's present launch
    unreachable: bool = False  # nothing of the present launch was heard for so long that it cannot be told anything
    lost: bool = False  # the present launch had come up, and certainly no process of it runs any more
    node_unavailable: bool = False  # the job's node is silent or closed to new pods
    launch_asked: bool = False
    launch_failure: str | None = None
    unplaced: str | None = None  # why the launch has not been begun for long, though nothing is wrong with it
    remove_asked: bool = False
    waited_s: float = 0.0  # how long the job has stood at the same point
    newcomer: ComingLaunch | None = None  # while a move waits for one
    old_launch_removed: bool = False  # whether the removal of the launch that a move has left was asked for
    pods: Mapping[int, Heartbeat] = field(default_factory=dict)  # of a gang: the newest report of each pod
    lost_pods: frozenset[int] = NO_MEMBERS  # of a gang: its pods that are certainly gone while others are not
    silent_pods: frozenset[int] = NO_MEMBERS  # of a gang: its pods that have been silent for some heartbeats
    pods_asked: int | None = None  # of a gang: how many the platform was asked for
    growth: ComingLaunch | None = None  # of a gang: the pods that it is to grow by

    @property
    def op(self) -> Operation:
        assert self.job.operation is not None
        return self.job.operation

    @property
    def shim(self) -> ShimStatus:
        return self.seen.shim if self.seen else ShimStatus()

    @property
    def shims(self) -> tuple[ShimStatus, ...]:
        """Of each pod that is there."""
        here = [self.pods[k].shim for k in range(self.job.members) if k in self.pods and k not in self.lost_pods]
        return tuple(here) or (self.shim,)

    @property
    def gang_failure(self) -> GangFailure | None:
        """Why a gang cannot go on as it is; no such thing where there is one pod."""
        if self.job.gpus_per_pod is None or self.seen is None or self.lost:
            return None
        op = self.job.operation
        starting = op is not None and (op.kind == "start" or self.job.generation >= op.generation)
        command = self.start_id if starting else None
        return find_failure(self.pods, self.job.members, self.lost_pods, command, self.job.reshape_exit_codes)

    @property
    def stall(self) -> GangFailure | None:
        """Of a gang whose pods have not ended together: those that are left would keep their GPUs for ever."""
        late = self.job.gpus_per_pod is not None and self.waited_s > self.config.init_timeout_s
        return find_stall(self.pods, self.job.members) if late and self.trains else None

    @property
    def start_id(self) -> str:
        """The command that starts the present generation."""
        return command_id(self.job.id, self.job.generation, "start")

    @property
    def exit_place(self) -> str:
        """Whose exit code `shim` has, for a sentence about it."""
        if self.job.gpus_per_pod is None or not self.pods:
            return ""
        return f" in pod {first_failed(list(self.pods.values()), self.job.reshape_exit_codes).member}"

    @property
    def checkpoint(self) -> str | None:
        """What the sidecar found is newer than what was written: a trainer may have saved while nobody heard it.

        Not so the sidecar of a move's newcomer, which looked before the trainer stopped. None: the newest there is.
        """
        written, op = self.job.doc.get("checkpoint"), self.job.operation
        looked_early = self.job.launch == self.job.newest_launch and self.shim.trainer == "none"
        if looked_early and (op is None or op.stopped.get("exit_at") is None):
            return None
        if self.seen is not None and self.seen.checkpoint is not None and not looked_early:
            return self.seen.checkpoint.name
        return name(written.get("name")) if isinstance(written, Mapping) and not self.checkpoint_lost else None

    @property
    def checkpoint_lost(self) -> bool:
        """Whether what it saved has gone with an earlier launch: in a pod's own folder, and the pod is gone."""
        written = self.job.doc.get("checkpoint")
        lasting = self.config.checkpoints_last or bool(self.job.doc.get("checkpoint_claim"))
        return not lasting and isinstance(written, Mapping) and written.get("launch") != self.job.launch

    @property
    def has_checkpoint(self) -> bool:
        """Whether one is known that its next training can go on from."""
        found = self.seen is not None and self.seen.checkpoint is not None
        return found or (isinstance(self.job.doc.get("checkpoint"), Mapping) and not self.checkpoint_lost)

    @property
    def must_not_rerun(self) -> bool:
        """Whether it may have begun and must not begin again: it has not shown that it goes on where it was.

        A pod of a user's own Volcano Job is made again by Volcano, which is not for us to judge.
        """
        agreed = self.job.operation is not None and self.job.operation.forced
        gone = self.lost or bool(self.lost_pods) or self.seen is None
        theirs = self.job.doc.get("origin") == "volcano" and gone
        return self.job.generation > 0 and not (agreed or theirs or resumes(self.job, self.seen))

    @property
    def trains(self) -> bool:
        """Whether a trainer may be using GPUs, as far as anybody knows."""
        return not self.lost and self.shim.trainer in ("running", "stopping")

    @property
    def runs(self) -> bool:
        """Whether a trainer does that was not asked to stop."""
        return not self.lost and any(shim.trainer == "running" for shim in self.shims)

    @property
    def at_rest(self) -> bool:
        """Certain that no trainer of this job uses a GPU."""
        return self.lost or self.job.launch == 0 or (self.seen is not None and not self.trains)
