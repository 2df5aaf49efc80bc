"""Merges the reports of a gang, a job of several pods that train together, and finds out why one cannot go on.

Promises: the gang counts as training until no pod trains, as running only while each pod runs, and as having obeyed a
command only once each pod has. A failed or lost pod is named, because the whole gang has to be stopped then. Pure;
called by `telemetry.reports` and the `reconcile` room.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from coordinator.model.last_words import last_words, quoted
from coordinator.model.records import RESHAPE_EXIT_CODES
from sidecar.protocol import Checkpoint, Heartbeat, ShimStatus, Trainer, Usage

FIRST_PORT, PORTS, STRIDE = 20_000, 10_000, 97
"""Ports for rendezvous: below Linux' ephemeral ports and Kubernetes' node ports, different in each generation."""

SUMMED = ("cpu_cores", "memory", "block_io", "network_io")  # fields of `Usage` that are added up over the pods

NO_MEMBERS: frozenset[int] = frozenset()


@dataclass(frozen=True)
class GangFailure:
    """The reason why a gang cannot go on training."""

    why: str
    own: bool = False  # the job's own fault: counts as a retry
    ran_s: float = 0.0


def merged_report(
    beats: Mapping[int, Heartbeat],
    wanted: int,
    ended: Collection[int] = NO_MEMBERS,
    fine: Collection[int] = RESHAPE_EXIT_CODES,
) -> Heartbeat | None:
    """Merge the reports of all pods into one; None until each pod that has not certainly `ended` has reported.

    `fine`: exit codes that mean `stopped for reshape`. Progress and times come from rank 0, or from the first pod that
    is left, since clocks of different nodes cannot be compared.
    """
    living = [k for k in range(wanted) if k not in ended]
    if not living or any(k not in beats for k in living):
        return None
    here = [beats[k] for k in living]
    return msgspec.structs.replace(
        here[0],
        seq=max(beat.seq for beat in here),
        shim=_shim(here, fine),
        gpus=[gpu for beat in here for gpu in beat.gpus],
        usage=_usage([beat.usage for beat in here]),
        checkpoint=_newest([beat.checkpoint for beat in here]),
        unfit=next((beat.unfit for beat in here if beat.unfit), ""),
        hook=all(beat.hook for beat in here),
        withdrawn=next((beat.withdrawn for beat in here if beat.withdrawn), ""),
    )


def _shim(here: Sequence[Heartbeat], fine: Collection[int]) -> ShimStatus:
    shims, worst = [beat.shim for beat in here], first_failed(here, fine)
    commands = {shim.command_id for shim in shims}
    return msgspec.structs.replace(
        shims[0],
        trainer=_trainer(shims),
        generation=max(shim.generation for shim in shims),
        command_id=shims[0].command_id if len(commands) == 1 else "",
        gpu_ids=[gpu for shim in shims for gpu in shim.gpu_ids],
        stop_asked=any(shim.stop_asked for shim in shims),
        fenced=any(shim.fenced for shim in shims),
        ending=any(shim.ending for shim in shims),
        lease_deadline=min(shim.lease_deadline for shim in shims),
        exit_code=worst.shim.exit_code,
        exit_note=worst.shim.exit_note,
        output_tail=worst.shim.output_tail,
    )


def _trainer(shims: Sequence[ShimStatus]) -> Trainer:
    states = {shim.trainer for shim in shims}
    if len(states) == 1:
        return states.pop()
    return "stopping" if states & {"running", "stopping"} else "exited"


def _usage(usages: Sequence[Usage]) -> Usage:
    known = {name: [v for usage in usages if (v := getattr(usage, name)) is not None] for name in SUMMED}
    return msgspec.structs.replace(usages[0], **{name: sum(each) if each else None for name, each in known.items()})


def _newest(found: Sequence[Checkpoint | None]) -> Checkpoint | None:
    """The newest checkpoint: the pods share one folder, and the pod that ended last has read it last."""
    return max((c for c in found if c is not None), key=lambda c: (c.step, c.generation), default=None)


def first_failed(here: Sequence[Heartbeat], fine: Collection[int] = RESHAPE_EXIT_CODES) -> Heartbeat:
    """The report of the pod that failed first: unasked, else with a bad exit code, else with any code but 0.

    Of several, the one that ran shortest: the pods began together, and the failure of one makes the others fail.
    """

    def guilt(beat: Heartbeat) -> tuple[int, float]:
        code, shim = beat.shim.exit_code, beat.shim
        bad = code is not None and code != 0
        odd = bad and code not in fine
        kind = 0 if odd and not shim.stop_asked else 1 if odd else 2 if bad else 3 if code == 0 else 4
        return kind, lived_s(shim)

    return min(here, key=guilt)


def find_failure(
    beats: Mapping[int, Heartbeat],
    wanted: int,
    ended: Collection[int] = NO_MEMBERS,
    starting: str | None = None,
    fine: Collection[int] = RESHAPE_EXIT_CODES,
) -> GangFailure | None:
    """Return why the gang cannot go on: a pod is gone, or its trainer has ended; None if it can.

    A trainer that ended with 0 without being asked is only the first to finish. `starting`: the command by which the
    gang is being started, which a pod may not have obeyed yet; None: all have been started, so a pod without a trainer
    has lost it. `fine`: exit codes that mean `stopped for reshape`.
    """
    if gone := [k for k in range(wanted) if k in ended]:
        return GangFailure(f"pod {gone[0]} is gone")
    here = [beats[k] for k in range(wanted) if k in beats]
    if starting is None and (afresh := [beat for beat in here if beat.shim.trainer == "none"]):
        return GangFailure(f"pod {afresh[0].member} began afresh")
    begun = [beat for beat in here if starting in (None, beat.shim.command_id)]
    over = [beat for beat in begun if beat.shim.trainer == "exited" and not _done(beat.shim)]
    asked = any(beat.shim.stop_asked for beat in begun)
    first = [beat for beat in over if beat.shim.fenced] or over  # the others fail once one has fenced itself
    return _why(first_failed(first, fine), fine if asked else ()) if over else None


def find_stall(beats: Mapping[int, Heartbeat], wanted: int) -> GangFailure | None:
    """A failure if some trainers have ended while others go on, else None. Callers ignore it until it lasts."""
    over = [beats[k] for k in range(wanted) if k in beats and beats[k].shim.trainer == "exited"]
    if not over or len(over) == wanted:
        return None
    why = f"the training in pod {over[0].member} has ended, and that in other pods goes on without it"
    return GangFailure(why, True, max(lived_s(beat.shim) for beat in over))


def _why(worst: Heartbeat, fine: Collection[int]) -> GangFailure:
    """`fine`: exit codes of pods that stop because another pod was asked to, which they do at the same step."""
    shim = worst.shim
    if shim.fenced:
        return GangFailure(f"pod {worst.member} was out of the coordinator's reach longer than its lease")
    if shim.stop_asked or shim.exit_code in fine:
        return GangFailure(f"the training in pod {worst.member} was stopped")
    return GangFailure(describe_exit(shim, f" in pod {worst.member}"), True, lived_s(shim))


def lived_s(shim: ShimStatus) -> float:
    """Seconds that the shim's last trainer lived."""
    return (shim.exit_at or 0.0) - (shim.spawn_at or 0.0)


def _done(shim: ShimStatus) -> bool:
    return shim.exit_code == 0 and not shim.stop_asked


def describe_exit(shim: ShimStatus, where: str = "") -> str:
    """Describe the exit of a trainer in a sentence with its last words. `where`: such as ` in pod 1`."""
    code = shim.exit_code or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    said = quoted(last_words(shim.output_tail))
    last = f": {said}" if said else ""
    return shim.exit_note + where if shim.exit_note else f"the training process{where} {how}{last}"


def rendezvous(hosts: Sequence[str], member: int, generation: int, gpus_per_pod: int) -> dict[str, str]:
    """Environment variables for the rendezvous of TensorFlow, PyTorch and torchrun. `hosts`: by member."""
    ports = [FIRST_PORT + (generation * STRIDE + k) % PORTS for k in range(len(hosts) + 1)]
    workers = [
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in zip(hosts, ports[1:], strict=True)
    ]
    task = {"type": "worker", "index": member}
    port = str(ports[0])
    return {
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": task}),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": port,
        "RANK": str(member),
        "WORLD_SIZE": str(len(hosts)),
        "PET_NNODES": str(len(hosts)),
        "PET_NPROC_PER_NODE": str(gpus_per_pod),
        "PET_NODE_RANK": str(member),
        "PET_MASTER_ADDR": hosts[0],
        "PET_MASTER_PORT": port,
    }
