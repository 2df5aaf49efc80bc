"""Decides what the sidecar does next: a pure function of its state and an event.

Promises, each with a test in `tests/unit/sidecar/test_core.py`:
- never two heartbeats at once, and none while the shim is unreachable: its last status is outdated;
- a heartbeat every `heartbeat_s`, and at once after a change that the coordinator waits for, a hook's announcement or
  the first checkpoint verified while a trainer runs, since from then on it may be stopped;
- a lease runs from the moment the answered heartbeat was *sent* (`reliability.md` 5);
- the first heartbeat that reports a trainer's end also names its verified checkpoint, so that it is not restarted from
  an older one (`reliability.md` 4, P3).

`service.py` feeds the events and carries out the instructions. No clock, no I/O, no random numbers: times
(CLOCK_BOOTTIME, seconds) and back-off jitter come with the events.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from sidecar.protocol import ENDLESS_LEASE_S, Checkpoint, HeartbeatReply, ShimStatus

BEFORE_BEAT_S = 0.01  # what a measurement takes, and how early a heartbeat may be
UNSAID = "its hook has withdrawn that it saves, and could not write why"
BACKOFF_S = 0.2  # pause after the first failed heartbeat, doubling up to `heartbeat_s`

TrainerEnd = tuple[int, float | None, float | None]  # identifies one trainer's end: shim_pid, spawn_at, exit_at


# events


class ShimReported(msgspec.Struct, frozen=True):
    """The shim sent its status."""

    at: float
    status: ShimStatus


class ShimDisconnected(msgspec.Struct, frozen=True):
    """The connection to the shim was lost."""

    at: float


class EndInspected(msgspec.Struct, frozen=True):
    """The output has been read to its end and the checkpoints verified, as `InspectEnd` instructs."""

    at: float
    end: TrainerEnd
    checkpoint: Checkpoint | None


class OutputRead(msgspec.Struct, frozen=True):
    """Output was read.

    `first_step_at`: of the current generation; `hook`: whether its trainer announced a hook; `withdrawn`: why it has
    withdrawn that.
    """

    at: float
    first_step_at: float | None
    hook: bool = False
    withdrawn: str = ""


class CheckpointVerified(msgspec.Struct, frozen=True):
    """A checkpoint completed while the trainer runs was verified."""

    at: float
    checkpoint: Checkpoint


class TimerFired(msgspec.Struct, frozen=True):
    """The heartbeat timer fired."""

    at: float


class HeartbeatAnswered(msgspec.Struct, frozen=True):
    """The heartbeat in flight got a reply with a valid signature."""

    at: float
    reply: HeartbeatReply


class HeartbeatFailed(msgspec.Struct, frozen=True):
    """The heartbeat in flight got no valid reply. `jitter`: 0..1, drawn by the caller."""

    at: float
    jitter: float


Event = (
    ShimReported
    | ShimDisconnected
    | EndInspected
    | OutputRead
    | CheckpointVerified
    | TimerFired
    | HeartbeatAnswered
    | HeartbeatFailed
)


# instructions


class SendHeartbeat(msgspec.Struct, frozen=True):
    """Send a heartbeat with this content."""

    seq: int
    shim: ShimStatus
    checkpoint: Checkpoint | None


class RenewLease(msgspec.Struct, frozen=True):
    """Renew the trainer's lease with the shim until `deadline`."""

    deadline: float


class LimitCpu(msgspec.Struct, frozen=True):
    """Limit the trainer to `cores` until `until`; None: lift the limit."""

    cores: float | None
    until: float


class EndShim(msgspec.Struct, frozen=True):
    """Stop training and end: the coordinator knows no such launch."""

    completed: bool  # whether the job has reached its end


class InspectEnd(msgspec.Struct, frozen=True):
    """Read the output to its end and verify the checkpoints, then feed `EndInspected`."""

    end: TrainerEnd


class NewGeneration(msgspec.Struct, frozen=True):
    """Another trainer writes the output, from byte `output_from` of its file if known.

    `generation` is None if a command of the next one has already arrived, so that it is unknown.
    """

    spawn_at: float
    generation: int | None
    output_from: int | None


Instruction = SendHeartbeat | RenewLease | LimitCpu | EndShim | InspectEnd | NewGeneration


class SidecarState(msgspec.Struct, frozen=True):
    """The sidecar's whole state; a restarted sidecar recovers it from shim, output and disk."""

    heartbeat_s: float
    seq: int  # of the newest heartbeat
    shim: ShimStatus | None = None  # as heartbeats report it; None: unreachable, or not yet inspected
    ended: ShimStatus | None = None  # a trainer's end under inspection
    inspected: TrainerEnd | None = None
    checkpoint: Checkpoint | None = None
    spawn_at: float | None = None
    first_step_at: float | None = None
    hook: bool = False  # whether this generation's trainer announced that it saves when asked
    withdrawn: str = ""  # why it has withdrawn that
    sent_at: float | None = None  # of the heartbeat in flight; None: there is none
    sending: ShimStatus | None = None  # the status in it
    told: ShimStatus | None = None  # the status in the newest answered one
    due_at: float = 0.0
    failures: int = 0
    lease_from: float | None = None  # when the newest answered heartbeat was sent; until then, the first one


Result = tuple[SidecarState, tuple[Instruction, ...]]


def step(state: SidecarState, event: Event) -> Result:
    """Return the new state and the instructions in order."""
    match event:
        case ShimReported():
            return _shim_said(state, event.at, event.status)
        case ShimDisconnected():
            return replace(state, shim=None, ended=None), ()
        case EndInspected():
            return _inspected(state, event)
        case OutputRead():
            return _read(state, event)
        case CheckpointVerified():
            return _verified(state, event)
        case TimerFired():
            return _beat(state, event.at)
        case HeartbeatAnswered():
            return _answered(state, event)
        case HeartbeatFailed():
            return _failed(state, event.at, event.jitter), ()


def reportable(state: SidecarState, status: ShimStatus) -> ShimStatus:
    """Return the status that a reply may show: an end only after a heartbeat has reported it with its checkpoint."""
    if status.trainer != "exited" or (state.told is not None and trainer_end(state.told) == trainer_end(status)):
        return status
    return replace(status, trainer="stopping")


def start_deadline(state: SidecarState, lease_s: float, at: float) -> float:
    """Return the deadline of a trainer started now. If it has passed, the call was late: do not start.

    It does not count from when the call was received: a call that sat in a frozen sidecar's socket would otherwise
    start a trainer after the coordinator has waited out the lease and given the GPUs away.
    """
    granted = (at if state.lease_from is None else state.lease_from) + lease_s
    held = 0.0 if state.shim is None else state.shim.lease_deadline
    return granted if held > at + ENDLESS_LEASE_S else max(granted, held)


def until_beat(state: SidecarState, at: float) -> float:
    """Return the seconds until just before the next heartbeat, so that batched work wakes us, and a core, only once."""
    left = state.due_at - BEFORE_BEAT_S - at
    left += state.heartbeat_s if left < BEFORE_BEAT_S else 0.0
    return left if left > 0 else state.heartbeat_s


def newest_save(state: SidecarState, shim: ShimStatus) -> Checkpoint | None:
    """Return the newest checkpoint, whether verified or only in memory."""
    copy, verified = shim.in_memory, state.checkpoint
    return copy if copy and (verified is None or copy.newer_than(verified)) else verified


def has_unwritten_copy(state: SidecarState) -> bool:
    """Return whether a checkpoint in memory is newer than the verified one: its trainer may have ended since."""
    copy = state.shim.in_memory if state.shim is not None else None
    return copy is not None and (state.checkpoint is None or copy.newer_than(state.checkpoint))


def settled(state: SidecarState) -> bool:
    """Return whether the coordinator has received every change."""
    if state.shim is None:
        return True
    heard = state.told is not None and _facts(state.told) == _facts(state.shim)
    return heard and state.sent_at is None and state.ended is None


def running(state: SidecarState) -> bool:
    """Return whether a trainer runs, according to the last status."""
    trains = state.shim is not None and state.ended is None and trainer_end(state.shim) is None
    return trains and state.shim is not None and state.shim.trainer != "frozen"


def leaving(state: SidecarState) -> bool:
    """Return whether the shim, in another container, only waits for its trainer's end to be reported."""
    return state.shim is not None and state.shim.ending and trainer_end(state.shim) is not None and settled(state)


def trainer_end(status: ShimStatus) -> TrainerEnd | None:
    """Return what identifies a trainer's end; None while it runs."""
    return (status.shim_pid, status.spawn_at, status.exit_at) if status.trainer in ("none", "exited") else None


def _shim_said(state: SidecarState, at: float, status: ShimStatus) -> Result:
    before: tuple[Instruction, ...] = ()
    if status.spawn_at is not None and status.spawn_at != state.spawn_at:
        state = replace(state, spawn_at=status.spawn_at, first_step_at=None, hook=False, withdrawn="")
        generation = None if status.stop_asked else status.generation
        before = (NewGeneration(status.spawn_at, generation, status.output_from),)
    end = trainer_end(status)
    if end is None or end == state.inspected:
        state, after = _adopt(replace(state, ended=None), at, status)
        return state, before + after
    asked = state.ended is not None and trainer_end(state.ended) == end
    return replace(state, ended=status), before if asked else (*before, InspectEnd(end))


def _inspected(state: SidecarState, event: EndInspected) -> Result:
    state = replace(state, inspected=event.end, checkpoint=event.checkpoint)
    if state.ended is None or trainer_end(state.ended) != event.end:
        return state, ()
    return _adopt(replace(state, ended=None), event.at, state.ended)


def _adopt(state: SidecarState, at: float, status: ShimStatus) -> Result:
    """Report this status in heartbeats from now on, at once if it has changed."""
    news = state.shim is None or _facts(state.shim) != _facts(status)
    state = replace(state, shim=status, due_at=at if news else state.due_at)
    return _beat(state, at)


def _facts(status: ShimStatus) -> ShimStatus:
    """Return the fields that the coordinator waits for, without deadlines and counters, which always change."""
    counters = {"cpu_s": None, "memory": None, "block_io": None, "warm_s": None}
    return replace(status, lease_deadline=0.0, warm=status.waits, **counters)


def _read(state: SidecarState, event: OutputRead) -> Result:
    if event.first_step_at is not None and event.first_step_at != state.first_step_at:
        state = replace(state, first_step_at=event.first_step_at, due_at=event.at)
    withdrawn = event.withdrawn or (UNSAID if state.hook and not event.hook else "")
    if not event.hook and not withdrawn:
        withdrawn = state.withdrawn
    if (event.hook, withdrawn) != (state.hook, state.withdrawn):
        state = replace(state, hook=event.hook, withdrawn=withdrawn, due_at=event.at)
    return _beat(state, event.at)


def _verified(state: SidecarState, event: CheckpointVerified) -> Result:
    """Record a verified checkpoint; report the first one at once, since it shows that the training can save."""
    have, found = state.checkpoint, event.checkpoint
    expected = running(state) or has_unwritten_copy(state)
    if not expected or (have is not None and not found.newer_than(have)):
        return state, ()
    due_at = event.at if have is None else state.due_at
    return _beat(replace(state, checkpoint=found, due_at=due_at), event.at)


def _beat(state: SidecarState, at: float) -> Result:
    """Send a heartbeat if one is due, the shim's status is known and none is in flight."""
    if state.shim is None or state.sent_at is not None or at < state.due_at - BEFORE_BEAT_S:
        return state, ()
    beat = SendHeartbeat(state.seq + 1, state.shim, state.checkpoint)
    state = replace(
        state,
        seq=beat.seq,
        sent_at=at,
        sending=beat.shim,
        due_at=at + state.heartbeat_s,
        lease_from=at if state.lease_from is None else state.lease_from,
    )
    return state, (beat,)


def _answered(state: SidecarState, event: HeartbeatAnswered) -> Result:
    if state.sent_at is None or event.reply.seq != state.seq:
        return _failed(state, event.at, 1.0), ()  # a reply to another heartbeat renews nothing
    sent_at = state.sent_at
    state = replace(state, sent_at=None, told=state.sending, failures=0)
    if not event.reply.known:
        return state, (EndShim(event.reply.completed),)
    state, more = _beat(replace(state, lease_from=sent_at), event.at)
    limit = LimitCpu(event.reply.limit, sent_at + event.reply.limit_s)
    return state, (RenewLease(sent_at + event.reply.lease_s), limit, *more)


def _failed(state: SidecarState, at: float, jitter: float) -> SidecarState:
    pause = min(state.heartbeat_s, BACKOFF_S * 2.0 ** min(state.failures, 30))
    return replace(state, sent_at=None, failures=state.failures + 1, due_at=at + pause * (0.5 + 0.5 * jitter))
