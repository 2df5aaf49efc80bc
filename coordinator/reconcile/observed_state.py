"""The observed state of one job, from which `lifecycle` computes the next step. Built by the reconciler."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.config import Config
from coordinator.model.gang import NO_MEMBERS, GangFailure, find_failure, find_stall, first_failed
from coordinator.model.records import GpuRecord, JobRecord, Moment, Operation, name
from coordinator.model.resumption import resumes
from coordinator.model.tables import JobChanges
from sidecar.protocol import HAD_TO_KILL, Heartbeat, ShimStatus, command_id

POLL_S = 1.0  # pause between looks while a report is expected

KILLED = frozenset({-signal.SIGKILL, 128 + signal.SIGKILL})  # exit codes of a process that was killed, and of its shell
REMOVING_S = 0.2  # pause between looks at a removal, which reports nothing


def reshape_method(job: JobRecord, config: Config) -> str:
    """The method by which this job is reshaped: `in place`, or by another launch (`relaunch`)."""
    fixed = job.recreated and job.gpus_per_pod is None  # pods of a gang keep their GPUs; pods come and go
    return "relaunch" if fixed or config.reshape_by == "relaunch" else "in place"


def initializes_early(job: JobRecord, config: Config) -> bool:
    """True if it may be launched while its victim still trains: not if a launch needs its GPUs from the beginning."""
    return config.early_initialization and not job.recreated


@dataclass(frozen=True)
class ComingLaunch:
    """A launch that a job moves to, or pods that a gang grows by, coming up while the present ones train on."""

    up: bool = False  # its sidecar, or that of each pod, has reported
    lost: bool = False  # it had come up, and certainly no process of it runs any more
    node_unavailable: bool = False  # its node is silent or takes no new pods
    asked: bool = False
    failure: str | None = None
    unplaced: str | None = None  # why it could not be placed for long
    removed: str | None = None  # reason of its removal, if that was requested


@dataclass(frozen=True)
class ObservedState:
    """Inputs of `next_step`."""

    job: JobRecord
    jobs: Mapping[str, JobRecord]
    gpus: Mapping[str, GpuRecord]
    config: Config
    wall: float  # seconds since 1970
    now: float = 0.0  # of the coordinator's own clock
    boot: str = ""  # in which that counts
    seen: Heartbeat | None = None  # the newest report of the job's present launch
    unreachable: bool = False  # the present launch is silent for so long that commands cannot reach it
    lost: bool = False  # the present launch had come up, and certainly no process of it runs any more
    node_unavailable: bool = False  # the job's node is silent or closed to new pods
    launch_asked: bool = False
    launch_failure: str | None = None
    unplaced: str | None = None  # why there was no place for a launch that is late or failed, such as full nodes
    remove_asked: bool = False
    waited_s: float = 0.0  # time since the job's last transition
    newcomer: ComingLaunch | None = None  # while a move waits for one
    peer_seen: Heartbeat | None = None  # the newest report of the newcomer that gets its GPUs
    old_launch_removed: bool = False  # removal of the launch that a move left was requested
    pods: Mapping[int, Heartbeat] = field(default_factory=dict)  # of a gang: the newest report of each pod
    lost_pods: frozenset[int] = NO_MEMBERS  # of a gang: its pods that are certainly gone while others are not
    silent_pods: frozenset[int] = NO_MEMBERS  # of a gang: its pods that have been silent for some heartbeats
    pods_asked: int | None = None  # of a gang: pods requested of the platform
    growth: ComingLaunch | None = None  # of a gang: the pods that it is to grow by
    last_course: JobChanges = field(default_factory=dict)  # of a job that has ended: how its training went

    @property
    def at(self) -> Moment:
        return Moment(self.now, self.wall, self.boot)

    @property
    def op(self) -> Operation:
        assert self.job.operation is not None
        return self.job.operation

    @property
    def reshapes_in_place(self) -> bool:
        """True if its operation stops it so that it goes on in the same launch with other GPUs."""
        return self.op.kind == "reshape" and self.op.how != "relaunch"

    @property
    def copy_lost(self) -> bool:
        """True if its launch is gone with a checkpoint that was in memory only, as far as is known: a fault."""
        return self.lost and self.seen is not None and self.seen.unwritten

    @property
    def broken_off(self) -> bool:
        """True if a fault ended its training before our stop, or before it had answered that: a kill, a lost launch.

        What it has lost then shows nothing of whether it can save and resume. One that the shim itself had to kill has
        not answered in its time, which does.
        """
        pods = [self.pods[k].shim if k in self.pods else ShimStatus() for k in self.lost_pods]
        ends = [*pods, *([self.shim] if self.lost else [])]
        if any(shim.trainer != "exited" for shim in ends) or not self.shim.stop_asked or self.copy_lost:
            return True
        killed = self.shim.exit_code in KILLED and not self.shim.exit_note.startswith(HAD_TO_KILL)
        return killed or self.shim.fenced

    @property
    def shim(self) -> ShimStatus:
        return self.seen.shim if self.seen else ShimStatus()

    @property
    def shims(self) -> tuple[ShimStatus, ...]:
        """Shim status of each pod that is not lost."""
        here = [self.pods[k].shim for k in range(self.job.members) if k in self.pods and k not in self.lost_pods]
        return tuple(here) or (self.shim,)

    @property
    def gang_failure(self) -> GangFailure | None:
        """Return why a gang cannot go on; None if it can, and for a job of one pod."""
        if self.job.gpus_per_pod is None or self.seen is None or self.lost:
            return None
        op = self.job.operation
        starting = op is not None and (op.kind == "start" or self.job.generation >= op.generation)
        command = self.start_id if starting else None
        return find_failure(self.pods, self.job.members, self.lost_pods, command, self.job.reshape_exit_codes)

    @property
    def partly_ended(self) -> GangFailure | None:
        """Pods of a gang that train on after others ended, which is a failure if it lasts."""
        gang = self.job.gpus_per_pod is not None
        return find_stall(self.pods, self.job.members) if gang and self.trains else None

    @property
    def stall(self) -> GangFailure | None:
        """A failure if pods of a gang train on long after others ended: they would keep their GPUs for ever."""
        return self.partly_ended if self.waited_s > self.config.init_timeout_s else None

    @property
    def start_id(self) -> str:
        """The command that starts the present generation."""
        return command_id(self.job.id, self.job.generation, "start")

    @property
    def freeze_id(self) -> str:
        """The command that freezes the trainer for the operation: of each another one, since it may be in vain."""
        return command_id(self.job.id, self.op.generation, f"freeze-{self.op.doc.get('at')}")

    @property
    def frozen(self) -> bool:
        """True if its trainer lives on without a GPU, frozen in memory, as far as is known."""
        if self.lost:
            return False
        return self.shim.trainer == "frozen" if self.seen is not None else self.job.frozen is not None

    @property
    def exit_place(self) -> str:
        """The pod whose exit code `shim` has, such as ` in pod 1`; empty for a job of one pod."""
        if self.job.gpus_per_pod is None or not self.pods:
            return ""
        return f" in pod {first_failed(list(self.pods.values()), self.job.reshape_exit_codes).member}"

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint to start from; None: the newest one that the sidecar finds.

        The sidecar's is newer than the persisted one, since a trainer may have saved while unreachable; except in the
        new launch of a move, whose sidecar looked before the trainer stopped. One that was in memory when that was
        persisted may have come to the disk since; in the same launch the shim names it.
        """
        written, op = self.job.doc.get("checkpoint"), self.job.operation
        looked_early = self.job.launch == self.job.newest_launch and self.shim.trainer == "none"
        if looked_early and (op is None or op.stopped.get("exit_at") is None or op.stopped.get("unwritten")):
            return None
        if self.seen is not None and self.seen.checkpoint is not None and not looked_early:
            return self.seen.checkpoint.name
        return name(written.get("name")) if isinstance(written, Mapping) and not self.checkpoint_lost else None

    @property
    def checkpoints_in_pod(self) -> bool:
        """True if its checkpoints go with its launch."""
        return not (self.config.checkpoints_last or self.job.doc.get("checkpoint_claim"))

    @property
    def checkpoint_lost(self) -> bool:
        """True if its checkpoints were lost with an earlier launch: they were in the folder of a pod that is gone."""
        written = self.job.doc.get("checkpoint")
        return self.checkpoints_in_pod and isinstance(written, Mapping) and written.get("launch") != self.job.launch

    @property
    def has_checkpoint(self) -> bool:
        """True if a checkpoint is known from which it can resume."""
        copy = None if self.lost else self.shim.in_memory
        found = self.seen is not None and (self.seen.checkpoint or copy) is not None
        return found or (isinstance(self.job.doc.get("checkpoint"), Mapping) and not self.checkpoint_lost)

    @property
    def has_trained(self) -> bool:
        """True if it is known to have made a step or a checkpoint, in whatever generation."""
        return self.has_checkpoint or self.job.iterations_done > 0

    @property
    def must_not_rerun(self) -> bool:
        """True if it may have begun and must not begin again, since it has not shown that it resumes.

        Volcano itself recreates the pods of a user's own Volcano Job, which is not prevented here.
        """
        agreed = self.job.operation is not None and self.job.operation.forced
        gone = self.lost or bool(self.lost_pods) or self.seen is None
        theirs = self.job.doc.get("origin") == "volcano" and gone
        if self.shim.taken or self.frozen:  # nothing was started, or it goes on
            return False
        return self.job.generation > 0 and not (agreed or theirs or resumes(self.job, self.seen))

    @property
    def stop_is_unasked(self) -> bool:
        """True if its trainer is to be stopped and started again though its user has not asked for a stop."""
        op = self.job.operation
        if op is None or op.kind not in ("reshape", "move", "requeue") or self.job.generation >= op.generation:
            return False
        return not (op.freezes or op.forced or self.job.code_agreed or self.job.cancel)

    @property
    def trains(self) -> bool:
        """True if a trainer may be using GPUs."""
        return not self.lost and self.shim.trainer in ("running", "stopping")

    @property
    def runs(self) -> bool:
        """True if a trainer runs that was not asked to stop."""
        return not self.lost and any(shim.trainer == "running" for shim in self.shims)

    @property
    def warming(self) -> bool:
        """True while an interpreter for the next start does its imports, and it pays to train on until it is ready.

        At most twice as long as these or the present start took, counted from the job's last transition: more is not
        to be gained.
        """
        gone = self.lost or bool(self.lost_pods) or self.remove_asked or self.unreachable
        if self.seen is None or gone or any(shim.trainer != "running" for shim in self.shims):
            return False
        first, spawned = self.seen.progress.first_step_at, self.shim.spawn_at
        start_s = 0.0 if first is None or spawned is None else first - spawned
        worth_s = min(2 * max(start_s, *(shim.warm_s or 0.0 for shim in self.shims)), self.config.init_timeout_s)
        return self.waited_s < worth_s and any(shim.waits == "begins" for shim in self.shims)

    @property
    def at_rest(self) -> bool:
        """Certain that no trainer of this job uses a GPU."""
        return self.lost or self.job.launch == 0 or (self.seen is not None and not self.trains)
