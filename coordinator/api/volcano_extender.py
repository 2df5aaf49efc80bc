"""Answers Volcano's scheduler, which calls through its `extender` plugin. No I/O.

Promises: answers from memory and reads only the fields that matter; abstains on jobs that are not ours, so that
Volcano and its other plugins decide alone. Called by `ExtenderHandler` with the body as Volcano sent it. Field names
without JSON tags in Go are Go's own (`volcano/pkg/scheduler/plugins/extender` and `api`, 1.10 and 1.15).

jobEnqueueable  0 (no opinion) or -1 (not now), never 1: in a tier without a -1, a 1 skips all later tiers.
                A Volcano Job of a user that is to be reshaped waits until the coordinator has decided where it
                starts; one that our launcher made was decided before it existed. A PodGroup that cannot be read
                waits too if it bears a sign of ours: let in, its pods would be bound before anything is decided.
predicate       refuses any node but the decided one. Not in the configuration that we ship: one call for each task
                and node, and the pods are pinned to their node anyway.
preemptable     a job of ours never is. Its GPUs are not in Volcano's books, so evicting it frees none that Volcano
                could give away. The coordinator orders the jobs of our queues and makes room by reshaping.
                Others: no opinion.
reclaimable     a queue that takes back what it is owed may evict a job of ours, which goes on from its checkpoint:
                shares of queues are the administrator's word (`reclaimable: false` on the queue says no). But not
                while an operation is under way, when two jobs would lose: the next session may ask again.
queueOverused   never: Volcano itself counts what a queue has used.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import Doc, JobRecord
from coordinator.model.tables import QueueRow

PREFIX = "volcano-reshape.io/"
JOB_LABEL = PREFIX + "job"  # on objects that our launcher made or attached
JOB_ID = PREFIX + "job-id"
INJECT = PREFIX + "inject"
ASKS = frozenset({PREFIX + "gpus", PREFIX + "job"})  # annotations of a user's Volcano Job that is to be reshaped
ENTER, WAIT = 0, -1
ABSTAIN, PERMIT = 0, 1
NEVER_HERE = 3  # Volcano's UnschedulableAndUnresolvable: no eviction would help

VOLCANO_GROUP = "batch.volcano.sh/"  # Kubernetes' own Jobs and those of others have the kind Job, too
UNREADABLE = (
    "Volcano's scheduler asks about a job whose PodGroup is in no shape that this version reads (%s). It and others "
    "like it wait; running jobs keep training. Install a volcano-reshape that knows your Volcano, or Volcano 1.10 to "
    "1.15; `reshape doctor` says when it is well."
)

log = logging.getLogger(__name__)
T = TypeVar("T")


class Owner(msgspec.Struct):
    apiVersion: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[Owner] | None = None

    @property
    def volcano_job(self) -> Owner | None:
        """The Volcano Job that owns the object, if any."""
        owners = self.ownerReferences or ()
        return next((o for o in owners if o.kind == "Job" and o.apiVersion.startswith(VOLCANO_GROUP)), None)


class PodGroup(Metadata):
    """Up to Volcano 1.13 Go embeds its metadata without a name, so that its fields lie flat; since 1.14 it has one."""

    metadata: Metadata | None = None

    @property
    def about(self) -> Metadata | None:
        """Its metadata in either shape; None if it is in neither."""
        return next((found for found in (self.metadata, self) if found is not None and found.name), None)


class JobInfo(msgspec.Struct, rename="pascal"):
    namespace: str = ""
    queue: str = ""
    pod_group: PodGroup | None = None


class ExtenderPod(msgspec.Struct):
    metadata: Metadata | None = None


class TaskInfo(msgspec.Struct, rename="pascal"):
    namespace: str = ""
    node_name: str = ""
    pod: ExtenderPod | None = None


class NodeInfo(msgspec.Struct, rename="pascal"):
    name: str = ""


class EnqueueableRequest(msgspec.Struct):
    job: JobInfo


class PredicateRequest(msgspec.Struct):
    task: TaskInfo
    node: NodeInfo


class EvictionRequest(msgspec.Struct):
    """`evictees` go back as they came."""

    evictees: list[msgspec.Raw] | None = None


class VolcanoExtender:
    """`job` finds a job that is not closed by its id; `queues` gives the queues' documents by name.

    `node_of` finds the node of a GPU.
    """

    def __init__(
        self,
        job: Callable[[str], JobRecord | None],
        queues: Callable[[], Mapping[str, QueueRow]],
        node_of: Callable[[str], str | None] = lambda gpu: None,
    ) -> None:
        self._job, self._queues, self._node_of = job, queues, node_of
        self._said_unreadable = False
        self._verbs: dict[str, Callable[[bytes], Any]] = {
            "jobEnqueueable": self._enqueueable,
            "predicate": self._predicate,
            "preemptable": lambda raw: self._victims(raw, lambda job: True),
            "reclaimable": lambda raw: self._victims(raw, lambda job: job.operation is not None),
            "queueOverused": lambda raw: {"overused": False},
        }

    def answer(self, verb: str, raw: bytes) -> bytes:
        """The answer to a request body. `Rejected` for an unknown verb (404) and for a body that is not Volcano's."""
        if verb not in self._verbs:
            raise Rejected(f"There is no verb {verb[:40]!r}; there are {', '.join(self._verbs)}.", 404)
        return msgspec.json.encode(self._verbs[verb](raw))

    def _enqueueable(self, raw: bytes) -> Doc:
        try:
            job = _read(raw, EnqueueableRequest).job
        except Rejected as why:
            if PREFIX.encode() not in raw:
                raise  # a refusal lets the job in, since Volcano is told to go on without us
            return {"status": self._held(str(why))}
        by_queue = bool(self._queues().get(job.queue, {}).get("inject"))
        group = (job.pod_group or PodGroup()).about
        if group is None:
            of_us = by_queue or PREFIX.encode() in raw
            return {"status": self._held(f"namespace {job.namespace}, queue {job.queue}") if of_us else ENTER}
        if group.volcano_job is None or _made(group, group.volcano_job):
            return {"status": ENTER}
        known = self._user_job(job.namespace, group.volcano_job)
        if known is not None:
            return {"status": ENTER if known.state in s.LAUNCHED else WAIT}
        # It asks to be reshaped, but the launcher has not made its record yet, or has reported a problem to its user.
        # Volcano gives a PodGroup the annotations and labels of its Volcano Job, not those of the template.
        labelled = (group.labels or {}).get(INJECT) == "true"
        asks = labelled or not (group.annotations or {}).keys().isdisjoint(ASKS)
        return {"status": WAIT if asks or by_queue else ENTER}

    def _held(self, about: str) -> int:
        if not self._said_unreadable:  # Volcano asks about each job once a second
            self._said_unreadable = True
            log.warning(UNREADABLE, about)
        return WAIT

    def _predicate(self, raw: bytes) -> Doc:
        asked = _read(raw, PredicateRequest)
        job = self._of(asked.task)
        node = self._decided(job, asked.task)
        if job is None or node == asked.node.name:
            return {"status": "", "code": 0}
        why = f"is to start on node {node}" if node else "waits for the coordinator to choose its node"
        return {"status": f"job {job.id} {why}", "code": NEVER_HERE}

    def _victims(self, raw: bytes, spared: Callable[[JobRecord], bool]) -> Doc:
        """The evictees as they came, without those of spared jobs; abstains if no job is spared."""
        evictees = _read(raw, EvictionRequest).evictees or []
        jobs = [self._of(_read(evictee, TaskInfo)) for evictee in evictees]
        left = [evictee for evictee, job in zip(evictees, jobs, strict=True) if job is None or not spared(job)]
        return {"status": ABSTAIN, "victims": []} if len(left) == len(evictees) else {"status": PERMIT, "victims": left}

    def _decided(self, job: JobRecord | None, task: TaskInfo) -> str | None:
        """The node decided for this pod. While a gang grows, its new pods follow the operation."""
        if job is None or job.gpus_per_pod is None:
            return job.node if job is not None else None
        name = ((task.pod or ExtenderPod()).metadata or Metadata()).name
        number = name.rpartition("-")[2]
        parts = job.parts(job.operation.to if job.operation is not None and job.operation.to else job.gpu_ids)
        part = parts[int(number)] if number.isdecimal() and int(number) < len(parts) else ()
        return self._node_of(part[0]) if part else None

    def _of(self, task: TaskInfo) -> JobRecord | None:
        """The record of the job that a pod belongs to, unless it has ended."""
        metadata = (task.pod or ExtenderPod()).metadata or Metadata()
        job = self._user_job(task.namespace, metadata.volcano_job) if metadata.volcano_job else None
        if job is None:  # the annotation of a pod that was made before its record may name an earlier job
            job = self._job((metadata.annotations or {}).get(JOB_ID, ""))
        return job if job is not None and job.state not in s.ENDED else None

    def _user_job(self, namespace: str, owner: Owner) -> JobRecord | None:
        """The record that the launcher made from this Volcano Job of a user, told apart by its uid."""
        plain = f"{namespace}.{owner.name}"
        for job_id in (plain, f"{plain}.{owner.uid[:8]}"):
            job = self._job(job_id)
            made_from = job.doc.get("volcano") if job is not None else None
            if isinstance(made_from, Mapping) and made_from.get("uid") == owner.uid:
                return job
        return None


def _made(group: Metadata, owner: Owner) -> bool:
    """True if our launcher made it: it has the name of a launch, which a user's job with our label does not have."""
    job = (group.labels or {}).get(JOB_LABEL)
    return job is not None and re.fullmatch(f"{re.escape(job)}-l[0-9]+", owner.name) is not None


def _read(raw: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Rejected(f"The body is not what Volcano's extender plugin sends: {str(error)[:200]}.") from None
