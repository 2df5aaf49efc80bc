"""Takes signed messages of sidecars and node agents: heartbeats, operator requests, inventories. Signs each reply."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from coordinator.config import Config
from coordinator.errors import Rejected, Transient, Unauthorized
from coordinator.events.metrics import Metrics
from coordinator.model import requirements, resumption
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.ports import Clock, moment_of
from coordinator.stores.cache import Cache
from coordinator.telemetry.ingest import Telemetry
from coordinator.telemetry.node_load import NodeLoad
from sidecar.protocol import (
    VERSION,
    Heartbeat,
    HeartbeatReply,
    NodeReply,
    NodeReport,
    OperatorRequest,
    launch_key,
    sign,
    signed,
)

log = logging.getLogger(__name__)

NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,399}")
HERE = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")
KIND = re.compile(r"[ -~]{1,128}")
MOST_GPUS = 1024  # of one node
MOST_PROTOCOLS = 16  # that are said: a sender may name any number

T = TypeVar("T")

# Made at import: msgspec 0.20 crashes if two threads meet a nested type for the first time at once.
HEARTBEAT = msgspec.json.Decoder(Heartbeat)
REQUEST = msgspec.json.Decoder(OperatorRequest)
REPORT = msgspec.json.Decoder(NodeReport)


class SignedMessages:
    """Thread-safe."""

    def __init__(
        self,
        cache: Cache,
        telemetry: Telemetry,
        metrics: Metrics,
        clock: Clock,
        config: Config,
        master_key: bytes,
        agent_key: bytes,
        leads: Callable[[], bool],
        succeeded: Callable[[], bool],
        notify: Callable[[str | None], None],
        node_load: Callable[[str], NodeLoad | None],
        request: Callable[[str, int | None, str | None, bool], dict[str, Any]],
    ) -> None:
        """`notify` wakes the loop, and the reconciler for a job; `node_load` is of the last turn. `succeeded` is true
        once another coordinator acts.

        `request` carries out an operator's request and returns its decision id.
        """
        self._cache = cache
        self._telemetry = telemetry
        self._metrics = metrics
        self._clock = clock
        self._config = config
        self._master_key = master_key
        self._agent_key = agent_key
        self._leads = leads
        self._succeeded = succeeded
        self._notify = notify
        self._node_load = node_load
        self._request = request
        self._request_seq: dict[tuple[str, int], int] = {}  # the newest of each launch
        self._protocols_said: set[tuple[str, int]] = set()

    def knows(self, job_id: str) -> bool:
        """Return whether `heartbeat` of this job needs no store, so that it may be called on the server's thread."""
        return self._cache.job(job_id) is not None

    def heartbeat(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        """Take a heartbeat; the reply renews the lease, or says that the launch must end."""
        job, key = self._authenticate(job_id, launch, "/v1/heartbeats", raw, signature)
        beat = _decode(raw, HEARTBEAT)
        if beat.job_id != job_id or beat.launch != launch:
            raise Rejected("The heartbeat is for another job or launch than its headers say.")
        self._compare_protocol("Sidecars", beat.version)
        if job.doc.get("owner_uid") is not None:
            beat = self._of_user(job, beat)
        acts = self._leads()
        if not acts and not self._may_hear(job, beat):
            raise Transient("This coordinator does not act now.")
        if self._cache.read_number is None:  # the row that was found may be damaged, which only a reading repairs
            raise Transient("This coordinator has not read its store yet; try again.")
        known = self._hear(job, beat) if acts else self._hear_only(job, beat)
        config = self._config
        limit, limit_s = job.limit_left(moment_of(self._clock))
        reply = msgspec.json.encode(
            HeartbeatReply(
                seq=beat.seq,
                lease_s=config.granted_s(resumption.leased(job)),
                grace_s=config.grace_s,
                known=known,
                completed=job.state == s.COMPLETED,
                limit=limit,
                limit_s=limit_s,
            )
        )
        return reply, sign(key, "REPLY", "/v1/heartbeats", reply)

    def _compare_protocol(self, who: str, version: int) -> None:
        """Say once that senders speak another version of the protocol, as where only a part was upgraded."""
        if version == VERSION or (who, version) in self._protocols_said or len(self._protocols_said) >= MOST_PROTOCOLS:
            return
        self._protocols_said.add((who, version))
        older, newer = ("they are", "this coordinator") if version < VERSION else ("this coordinator is", "they")
        log.warning(
            "%s report by version %d of the protocol, and this coordinator knows version %d: %s older than %s. What "
            "only one of them knows is lost; install one version of all (docs/explanation/versions.md)",
            who,
            version,
            VERSION,
            older,
            newer,
        )

    def _of_user(self, job: JobRecord, beat: Heartbeat) -> Heartbeat:
        """Return what may be believed of a heartbeat on a shared machine, where a job's user can send any.

        It tells of GPUs that the job holds, and names a sidecar of this machine: we call no other address for a user.
        """
        if not self._config.many_pods and not HERE.fullmatch(beat.url):
            raise Rejected("The sidecar of a job on this machine listens on 127.0.0.1.")
        known = self._cache.gpus()
        held = [gpu for gpu in beat.gpus if (row := known.get(gpu.gpu_id)) is not None and row.held_by == job.id]
        return msgspec.structs.replace(beat, gpus=held)

    def _may_hear(self, job: JobRecord, beat: Heartbeat) -> bool:
        """True if a report may be taken though the term is over, as on a full disk, so that what is shown is true.

        Only where no lease ends a training: the answer then renews nothing that another coordinator could wait for.
        The end of a training is for one that acts: this one forgets all reports once it does again.
        """
        lives = beat.shim.trainer in ("running", "stopping") and not beat.shim.ending
        present = beat.launch == job.launch and not job.doc.get("closed") and not self._cache.is_set_aside(job.id)
        return not self._config.fences and not self._succeeded() and lives and present

    def _hear_only(self, job: JobRecord, beat: Heartbeat) -> bool:
        """Keep a heartbeat without a term. The launch goes on: one that does not act ends none."""
        self._metrics.heartbeat()
        self._telemetry.keep_heartbeat(job, beat)
        self._telemetry.learn(job, beat)
        return True

    def _hear(self, job: JobRecord, beat: Heartbeat) -> bool:
        """Keep a heartbeat; returns whether its launch shall go on. A job that is set aside keeps its lease only."""
        if self._cache.is_set_aside(job.id):
            self._telemetry.reports.renewed(job.id)
            return True
        coming = job.coming is not None and beat.launch == job.coming.launch
        present = beat.launch == job.launch and not job.doc.get("closed") and not coming
        if coming or present:
            self._metrics.heartbeat()
            if (self._telemetry.keep_heartbeat if present else self._telemetry.take_coming)(job, beat):
                self._notify(job.id)  # before learning: news must not wait for it, nor be lost with it
        if present:
            self._telemetry.learn(job, beat)
        lives = job.state in s.LAUNCHED or (job.state == s.SUBMITTED and job.frozen is not None)
        return (coming or beat.launch == job.launch) and lives

    def take_request(self, job_id: str, launch: int, raw: bytes, signature: str) -> tuple[bytes, str]:
        """Carry out a request that an operator made of the job's sidecar; a repeated one is `Rejected` with 409."""
        _, key = self._authenticate(job_id, launch, "/v1/wishes", raw, signature)
        request = _decode(raw, REQUEST)
        if request.job_id != job_id:
            raise Rejected("The request is for another job than its headers say.")
        if request.seq <= self._request_seq.get((job_id, launch), -1):
            raise Rejected("This request was made before; make it again.", 409)
        jobs = self._cache.jobs()
        kept = {of: seq for of, seq in self._request_seq.items() if of[0] in jobs}
        self._request_seq = {**kept, (job_id, launch): request.seq}
        answer = msgspec.json.encode(self._request(job_id, request.gpus, request.signal, request.force))
        return answer, sign(key, "REPLY", "/v1/wishes", answer)

    def node_reported(self, name: str, path: str, raw: bytes, signature: str) -> tuple[bytes, str]:
        """Take a node agent's report. `path` is the address as it was signed, which names the node."""
        key = self._agent_key
        if not key or not signed(key, "POST", path, raw, signature):
            raise Unauthorized("Not a report of a known node agent.")
        if not NODE.fullmatch(name):
            raise Rejected("A node's name has up to 253 letters, digits, dots and dashes.")
        report = _decode(raw, REPORT)
        self._compare_protocol("Node agents", report.version)
        if not self._leads():
            raise Transient("This coordinator does not act now.")
        if problem := self._unfit(name, report):
            raise Rejected(problem)
        if self._telemetry.nodes.keep_report(name, report):
            self._notify(None)
        load = self._node_load(name)
        jobs = None if load is None else load.jobs
        reply = msgspec.json.encode(NodeReply(report.seq, self._config.heartbeat_s, jobs))
        return reply, sign(key, "REPLY", path, reply)

    def _unfit(self, name: str, report: NodeReport) -> str:
        """The reason why this inventory cannot be true, as a sentence; empty if it can."""
        ids = [gpu.gpu_id for gpu in report.gpus]
        if len(ids) > MOST_GPUS or len(set(ids)) != len(ids) or not all(GPU.fullmatch(gpu_id) for gpu_id in ids):
            return f"Report at most {MOST_GPUS} GPUs, each once and by a name of letters, digits, dots and dashes."
        if not all(KIND.fullmatch(gpu.gpu_type) for gpu in report.gpus):
            return "Report a type of at most 128 printable characters for each GPU."
        if not 0 <= report.cores <= requirements.MAX_CORES or not 0 <= report.memory <= requirements.MAX_MEMORY:
            return "Report cores and memory (bytes) as numbers that a machine can have."
        if not all(0 <= use <= 1 for use in (report.cpu_use or 0.0, report.memory_use or 0.0)):
            return "Report the use of cores and memory as shares from 0 to 1."
        known = self._cache.gpus()
        for gpu_id in ids:
            owner = known[gpu_id].node if gpu_id in known else name
            if owner != name and not self._telemetry.nodes.silent(owner):
                return f"GPU {gpu_id} is on node {owner}, which is heard: two nodes cannot have the same GPU."
        return ""

    def _authenticate(self, job_id: str, launch: int, path: str, raw: bytes, signature: str) -> tuple[JobRecord, bytes]:
        job = self._cache.find(job_id)  # also a closed one: the reply lets its sidecar end
        key = launch_key(self._master_key, job.uid if job else "", launch)
        if not signed(key, "POST", path, raw, signature) or job is None:
            raise Unauthorized("Not a call of a known job.")
        return job, key


def _decode(raw: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"The message cannot be read: {error}.") from None
