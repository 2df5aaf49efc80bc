"""Defines and signs the messages between coordinator, sidecar and shim.

The only module of the sidecar that other packages import. Pure: no I/O, no clock. It covers two wires:
- HTTP between coordinator and sidecar, both ways, signed with the launch key (`reliability.md` 6). The signature covers
  method, path and body; generation and command id are inside the body, so a captured call is useless under another
  generation. No timestamps: clocks cannot be trusted.
- JSON lines on the Unix socket between sidecar and shim. The shim is a single file that cannot import this module;
  `ShimStatus` is what it writes there (test: `tests/contract/test_shim_wire.py`).

All times are in seconds. Times named `*_at` are CLOCK_BOOTTIME of the machine that runs the job: on another machine
only their differences are meaningful.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal

import msgspec

VERSION = 1
ENDLESS_LEASE_S = 1e8  # a lease longer than this, from now, ends no training

HEADER_JOB = "X-Reshape-Job"
HEADER_LAUNCH = "X-Reshape-Launch"
HEADER_SIGNATURE = "X-Reshape-Signature"

STAYS = "state stays on GPU"  # prefix of `ShimStatus.on_gpu`
HAD_TO_KILL = "had to kill"  # prefix of `ShimStatus.exit_note` if the shim sent SIGKILL

Trainer = Literal["none", "running", "stopping", "frozen", "exited"]


class Progress(msgspec.Struct, omit_defaults=True):
    """The progress of training, read from the trainer's output (`output/progress.py`)."""

    iterations: int = 0  # global steps done since the job began, never going back across restarts
    epochs: float = 0.0
    total_iterations: int | None = None  # where the output tells it
    value: float | None = None  # last evaluation value (loss, accuracy, ...)
    value_name: str = ""
    evaluations: int = 0  # how many such values there were since this sidecar began to read
    seconds_per_iteration: float | None = None  # mean over the last window of this generation
    first_step_at: float | None = None  # first step of this generation
    last_step_at: float | None = None  # newest step of this generation
    previous_last_step_at: float | None = None  # newest step of the generation before
    longest_gap_s: float = 0.0  # longest time between two reports of steps of one generation, such as an evaluation
    save_s: float | None = None  # how long the newest checkpoint took, where its hook tells it


class GpuReading(msgspec.Struct, omit_defaults=True):
    """The state of one GPU, by NVML or emulated."""

    gpu_id: str
    utilisation: float | None = None  # share of time busy, 0..1
    memory_used: int | None = None  # bytes, by whomever
    memory_total: int | None = None  # bytes
    memory_own: int | None = None  # bytes that this launch's own processes hold; None: not known
    memory_others: int | None = None  # bytes that anybody else holds; None: not known
    healthy: bool = True
    problem: str = ""


class Usage(msgspec.Struct, omit_defaults=True):
    """Resource usage of the trainer and its children, from control groups or /proc (`resources/usage.py`)."""

    cpu_cores: float | None = None  # mean over the last heartbeat interval
    memory: int | None = None  # bytes resident
    block_io: float | None = None  # bytes per second, mean over the last heartbeat interval
    network_io: float | None = None  # likewise, both ways; of its whole pod, so only known there
    limit: float | None = None  # cores it is held to now
    limited_by: str = ""  # a control group, stop and go, pod resize; or its pod, if it had that limit before
    cpu_weight: int | None = None  # of its container among others, in the kernel's own measure; only known in a pod


class Checkpoint(msgspec.Struct, omit_defaults=True):
    """The newest checkpoint verified against its manifest."""

    name: str  # a plain name inside the job's checkpoint folder
    step: int
    generation: int

    def newer_than(self, other: Checkpoint) -> bool:
        return (self.generation, self.step) > (other.generation, other.step)


class Lost(msgspec.Struct, omit_defaults=True, frozen=True):
    """The work that a generation repeated, read from the output (`output/lost.py`)."""

    iterations: int = 0
    epochs: float = 0.0
    generation: int = 0  # the one that repeated it


class GpuHolder(msgspec.Struct):
    """A process beside a launch's trainers that may hold memory of one of their GPUs."""

    pid: int
    gpu_id: str


class ShimStatus(msgspec.Struct, omit_defaults=True):
    """The shim's status: facts only, which the coordinator interprets."""

    version: int = VERSION
    shim_pid: int = 0
    trainer: Trainer = "none"
    trainer_pid: int | None = None
    generation: int = 0  # the highest one obeyed
    gpu_ids: list[str] = []
    command_id: str = ""  # the last command executed
    stop_asked: bool = False  # whether SIGTERM was sent to this trainer
    fenced: bool = False  # whether the lease ran out and stopped it, or broke off a stop
    exit_code: int | None = None  # negative: the signal that ended it
    exit_note: str = ""  # why it could not be started, or the processes that had to be killed
    output_tail: str = ""  # the end of its output, at most 2 KiB, once it exited badly
    lease_deadline: float = 0.0
    stop_at: float | None = None  # SIGTERM sent
    exit_at: float | None = None  # last process of the trainer gone
    spawn_at: float | None = None  # this trainer spawned
    output_from: int | None = None  # where in its log file the output of this trainer begins, bytes
    patient: bool = False  # whether it was asked to stop and no SIGKILL follows before it has answered
    freezes: bool = False  # whether it can freeze trainers by the driver's checkpoint calls (`freezer.py`)
    unfrozen: str = ""  # why the newest command to freeze this trainer, or to thaw it, was not carried out
    unfrozen_by: str = ""  # that command
    taken: str = ""  # why nothing was started: one of its GPUs is used by somebody else of this machine
    gpu_access: str = ""  # which GPUs of the machine its processes can open, and why others, too; empty: not known
    ending: bool = False  # whether the shim will be gone as soon as its trainer is
    unfit: str = ""  # why its command certainly cannot be started
    warm: str = ""  # begins with `ready` or `begins` if an interpreter waits for the next start; else why none does
    warm_s: float | None = None  # how long the newest one took to do its imports
    in_memory: Checkpoint | None = None  # the newest that it had in memory first; saved once it is verified on the disk
    copy_lost: Checkpoint | None = None  # that one, if only a GPU had its state when the process that held it ended
    on_gpu: str = ""  # `state stays on GPU` and which, if it stayed there at the last stop in place; else why not
    holder: GpuHolder | None = None  # the process that holds memory of a GPU between two trainers
    cold: str = ""  # why this trainer was started without one though it was not the first; empty if one had waited
    cpu_s: float | None = None  # ever used by the shim's container; only where the sidecar is in another one
    memory: int | None = None  # bytes that container holds
    block_io: int | None = None  # bytes it ever read and wrote on disks
    cpu_limit: float | None = None  # cores that it may use at most, by its quota in force
    cpu_weight: int | None = None  # among others, as the kernel counts: shares (version 1) or weight (version 2)

    @property
    def leased(self) -> bool:
        """Return whether the end of its lease ends this trainer."""
        return 0 < self.lease_deadline < (self.spawn_at or 0.0) + ENDLESS_LEASE_S

    @property
    def waits(self) -> str:
        """Return `ready` if an interpreter waits for the next start, `begins` while one prepares to, else empty."""
        return next((word for word in ("ready", "begins") if self.warm.startswith(word)), "")


class Heartbeat(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Sidecar -> coordinator, `POST /v1/heartbeats`: every 5 s, and at once after a change."""

    version: int = VERSION
    job_id: str
    launch: int
    member: int = 0  # rank of this pod in a gang; 0 without a gang
    seq: int  # grows with each heartbeat, over restarts of the sidecar, too: begins at uptime in ms
    url: str  # of this sidecar
    sidecar_pid: int
    boot: str = ""  # of the machine, as uptime begins anew with it, and which pod: another one may follow on it
    shim: ShimStatus
    progress: Progress = msgspec.field(default_factory=Progress)
    gpus: list[GpuReading] = []
    usage: Usage = msgspec.field(default_factory=Usage)
    checkpoint: Checkpoint | None = None
    checkpoint_at: float | None = None  # when the newest one, in memory or on the disk, was complete
    checkpoint_bytes: int = 0  # of the verified one; 0: not known, as of a sidecar that does not tell
    emulated: bool = False
    unfit: str = ""  # why a trainer would certainly fail at its start, as a sentence; set before one is started
    hook: bool = False  # whether this generation's trainer has announced that it saves when asked
    withdrawn: str = ""  # why it has withdrawn that: a stop would cost work now
    lost: Lost | None = None  # None: not known yet, or there was no work before
    edited: list[str] = []  # files of the training's code that differ from what they were when it was started

    @property
    def unwritten(self) -> bool:
        """Return whether a checkpoint in memory is newer than all known to be on disk."""
        copy, saved = self.shim.in_memory, self.checkpoint
        return copy is not None and (saved is None or copy.newer_than(saved))


class HeartbeatReply(msgspec.Struct, omit_defaults=True):
    """Coordinator -> sidecar. Renews the lease to `lease_s` after the heartbeat was *sent*."""

    seq: int
    lease_s: float
    grace_s: float
    known: bool = True  # False: no such job or launch any more; stop training and end
    completed: bool = False  # with known False: the job has reached its end, so its pod has succeeded
    limit: float | None = None  # CPU cores that the trainer may use; None: no limit
    limit_s: float = 0.0  # the limit lifts itself so long after the heartbeat was *sent*, unless renewed


class StartCall(msgspec.Struct, kw_only=True):
    """`POST /v1/start`. Command and image were fixed at launch."""

    generation: int
    command_id: str
    gpu_ids: list[str]
    checkpoint: str | None = None
    lease_s: float = 300.0
    env: dict[str, str] = {}  # rendezvous of a gang's pods in this generation: TF_CONFIG, MASTER_ADDR, ...


class StopCall(msgspec.Struct, kw_only=True):
    """`POST /v1/stop`: SIGTERM, save, exit; SIGKILL after `grace_s`, or later while it writes checkpoints."""

    generation: int
    command_id: str
    grace_s: float
    wait: bool = False  # for one that announced that it saves when asked, without a SIGKILL: it ends at a safe point
    in_place: bool = False  # training goes on here at once, so what it saves may be in memory before it is on the disk
    gpu_ids: list[str] = []  # on which it goes on in place, so that its state may stay on one; empty: not known
    freeze: bool = False  # the driver keeps it in host memory instead; one that cannot be frozen trains on
    unasked: bool = False  # nobody asked for it: refused (409) where the next start would run other code


class CheckpointCall(msgspec.Struct, kw_only=True):
    """`POST /v1/checkpoint`: save without exit, where the trainer's hook announced that it can."""

    generation: int
    command_id: str


class OutputCall(msgspec.Struct, kw_only=True):
    """`POST /v1/output`: the trainer's output from `offset` on, below 0 from the end, at most `limit` bytes."""

    offset: int
    limit: int


class Output(msgspec.Struct):
    """Answer to `OutputCall`: `data` (base64) and the next offset, as `kept_output.read` returns them."""

    data: bytes
    offset: int


class OperatorRequest(msgspec.Struct, kw_only=True):
    """An operator's `POST /v1/reshape {gpus}` or `/v1/signal {signal}`, forwarded to the coordinator."""

    job_id: str
    launch: int
    seq: int  # grows with each request of one launch: a captured one is not fulfilled again
    gpus: int | None = None
    signal: str | None = None
    force: bool = False  # even if work is lost


class NodeGpu(msgspec.Struct, omit_defaults=True):
    """One GPU of a node, by NVML or emulated."""

    gpu_id: str
    gpu_type: str  # short, as speed profiles are kept under
    memory_total: int | None = None  # bytes
    emulated: bool = False
    healthy: bool = True
    problem: str = ""
    others: str = ""  # who else uses it beside a training of ours
    holder: str | None = (
        None  # namespace and name of the pod that the kubelet gave it to, empty: to none; None: not read
    )


class NodeJobs(msgspec.Struct, frozen=True):
    """The jobs of one node: how many in all, and of those trained on CPU how many are in each category (SpeCon)."""

    jobs: int = 0
    pc: int = 0
    wc: int = 0
    cc: int = 0


class NodeReport(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Node agent -> coordinator, `POST /v1/nodes/NAME` at every heartbeat, signed with the agents' key."""

    version: int = VERSION
    boot: str  # boot id of the machine
    seq: int  # grows within one boot: a captured report is not believed again
    gpus: list[NodeGpu] = []
    cores: float = 0.0
    memory: int = 0  # bytes
    cpu_use: float | None = None  # R(w, t): share of the cores busy since the last report, 0..1; None: not known
    memory_use: float | None = None  # share of the memory that is not available
    jobs: NodeJobs | None = None  # from the last reply: shown beside the coordinator's own, never trusted
    permits: str = ""  # address that takes `PermitCall`s, new with each agent; empty: no seats on this node


class NodeReply(msgspec.Struct, omit_defaults=True):
    """Coordinator -> node agent."""

    seq: int
    heartbeat_s: float  # when to report again
    jobs: NodeJobs | None = None  # of this node, as the coordinator knows them


class PermitCall(msgspec.Struct, kw_only=True):
    """Coordinator -> node agent, at the address of its report, signed with the agents' key: what a pod may open.

    A generation below one that was obeyed is refused (409). To open, a GPU is closed to all other pods first.
    """

    pod: str  # uid
    generation: int  # of its job; that of a job at rest counts one more
    gpu_ids: list[str]
    opens: bool = False  # exactly these; else all others are closed, and none is opened


class PermitReply(msgspec.Struct):
    """Node agent -> coordinator: the GPUs that the pod can open now, by the kernel."""

    call: str  # its signature, so that the answer to another call is not taken for it
    gpu_ids: list[str]


def command_id(job_id: str, generation: int, verb: str) -> str:
    """Return a command's id, derived so that a repeated command has the same id (`reliability.md` 3)."""
    return f"{job_id}:{generation}:{verb}"


def launch_key(master: bytes, uid: str, launch: int) -> bytes:
    """Return the key of one launch of a job, derived so that it survives the loss of the database."""
    return hmac.digest(master, f"{uid}|{launch}".encode(), "sha256").hex().encode()


def launch_token(master: bytes, uid: str, launch: int) -> bytes:
    """Return the operator's token for one launch, valid for no other: on a cluster it is in a user's namespace."""
    return hmac.new(master, f"operator token\n{uid}|{launch}".encode(), hashlib.sha256).hexdigest().encode()


def sign(key: bytes, method: str, path: str, body: bytes) -> str:
    """Return the HMAC-SHA256 over method, path and body, in hex. A reply is signed with method `REPLY`."""
    return hmac.digest(key, f"{method}\n{path}\n".encode() + body, "sha256").hex()


def signed(key: bytes, method: str, path: str, body: bytes, signature: str) -> bool:
    """Return whether `signature` is valid, compared in constant time."""
    return hmac.compare_digest(sign(key, method, path, body).encode(), signature.encode("utf-8", "replace"))


def refusal(body: bytes, otherwise: str) -> str:
    """Return the coordinator's sentence from {"error": sentence} or {"error": {"sentence": …}}."""
    try:
        error = msgspec.json.decode(body).get("error")
        sentence = error.get("sentence") if isinstance(error, dict) else error
    except (msgspec.MsgspecError, AttributeError):
        sentence = None
    return sentence if isinstance(sentence, str) else otherwise
