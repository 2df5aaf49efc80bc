"""Serves the admission webhook, which injects shim and sidecar into the pods of users' Volcano Jobs and batch Jobs and
into bare pods, and notes who made these.

Promises: an answer within `PATIENCE_S` whatever the store does: a decision not known in time is left out, then the pod
waits for its GPUs; pods that are not managed pass unchanged; a refusal is a sentence. Writes nothing but, through
`report`, an Event about a refusal. Called by the API server; started by `launcher/cluster/process.py`.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from coordinator.errors import Transient
from coordinator.http.server_limits import limited_server
from coordinator.model.owner_names import namespace_of_user
from launcher.admission import kinds
from launcher.admission.gate import gated_job, has_gate, waits_for_node, with_node_gate, without_gate
from launcher.admission.inject import CannotInject, Devices, InjectedPod, Injection, PodSettings, inject, is_injected
from launcher.admission.json_patch import Operation, difference
from launcher.admission.owners import owner_annotations
from launcher.names import (
    BATCH_JOBS,
    COUNTS,
    FIELDS,
    INJECT,
    JOB,
    JOB_ID,
    LAUNCH,
    OWNER,
    OWNER_PROOF,
    QUEUE_LABEL,
    QUEUE_NOTE,
    SUSPENDED,
    VOLCANO_JOBS,
    WAITS,
    is_launch_of,
    is_secret_of_pod,
    job_name,
    member_of,
    secret_of_pod,
    secret_prefix,
)

log = logging.getLogger(__name__)

Doc = dict[str, Any]

PATIENCE_S = 0.7  # for the store; the API server also waits for the rest
BODY_LIMIT = 4 * 1024 * 1024  # bytes: etcd takes no object above 1.5 MiB, and an update holds two
AT_ONCE = 8
NO_QUEUE: tuple[bool, Devices] = (False, "shared")
VOLCANO_GROUP = VOLCANO_JOBS.rstrip("/")
BATCH_GROUP = BATCH_JOBS.rstrip("/")
JOB_NAME = "volcano.sh/job-name"
COPIED = (
    "This pod was injected before, so it is a copy of one that ran: apply it as you wrote it, without what "
    "volcano-reshape has added."
)


@dataclass(frozen=True, slots=True)
class PodDecision:
    """The coordinator's decision about a pod of a Volcano Job."""

    job_id: str
    node: str | None = None
    gpu_ids: tuple[str, ...] = ()
    emulated: bool = False  # whether that node's GPUs are
    devices: Devices | None = None  # how this job gets GPUs, whatever its queue says by now
    claim: str | None = None  # PersistentVolumeClaim of this job's checkpoints


class PodDecisions(Protocol):
    """The launcher's answers to the webhook."""

    def queue(self, name: str) -> tuple[bool, Devices]:
        """Return whether jobs of this queue are managed, and how they get GPUs. From memory: never waits.

        `Transient` for one that is not known yet.
        """
        ...

    def decided(self, uid: str, launch: str | None = None, member: int = 0) -> PodDecision | None:
        """Return the decision about this pod of the Volcano Job of that uid; None if the job is not known.

        `launch`: the launch, if the launcher made the Volcano Job; the uid is then not used.

        Called in a thread; may wait for the store and raise any exception.
        """
        ...


Report = Callable[[str, Mapping[str, Any], str, str], None]
"""`report(namespace, owner, reason, sentence)`: an Event on the Volcano Job of that ownerReference. Must not wait."""


class LeftAlone(Exception):
    """The pod is in a queue of ours but of another kind, and does not ask: it runs as it is; says so to its user."""


class BadReview(Exception):
    """The request is no AdmissionReview."""


class Injector:
    """Answers AdmissionReviews, any number at once."""

    def __init__(
        self,
        settings: PodSettings,
        decisions: PodDecisions,
        report: Report,
        counted: Callable[[str, float], None],
        master_key: bytes,
    ) -> None:
        """`counted(outcome, seconds)`: of each answer; injected, unchanged, refused, or unknown if asked too early."""
        self._master_key = master_key
        self._settings = settings
        self._decisions = decisions
        self._report = report
        self._counted = counted
        self._threads = ThreadPoolExecutor(AT_ONCE, "decided")

    async def review(self, body: bytes) -> Doc:
        """Return the AdmissionReview to answer with. `BadReview` if `body` is none."""
        request = _request(body)
        began = time.monotonic()
        outcome, answer = await self._judged(request)
        self._counted(outcome, time.monotonic() - began)
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}

    async def _judged(self, request: Doc) -> tuple[str, Doc]:
        """Return the outcome for the metrics, and the response."""
        outcome = "unchanged"
        answer = {"uid": request["uid"], "allowed": True}
        pod = request["object"]
        namespace = str(request.get("namespace") or "")
        if request["kind"].get("kind") == "Job":
            return self._judged_job(request, answer)
        if request.get("operation") == "CREATE" and request["kind"].get("kind") == "Pod":
            try:
                injected = await self._injected(pod, request)
                if changes := _patch(pod, injected):
                    return "unchanged" if injected is None else "injected", answer | changes
            except LeftAlone as why:
                answer |= {"warnings": [str(why)], **_patch(pod, None)}
                self._tell(request, _first_owner(pod), namespace, "NotReshaped", str(why))
            except CannotInject as why:
                outcome = "refused"
                answer |= _refusal_answer(why)
                whom = _owner(pod.get("metadata") or {}) or _first_owner(pod)
                self._tell(request, whom, namespace, why.reason, str(why))
            except Transient as why:  # Volcano tries again, and one with a gate waits with it
                outcome = "unknown"
                if has_gate(pod.get("spec") or {}):
                    return outcome, answer
                answer |= {"allowed": False, "status": {"code": 503, "reason": "NotKnownYet", "message": str(why)}}
        return outcome, answer

    def _judged_job(self, request: Doc, answer: Doc) -> tuple[str, Doc]:
        """Return outcome and response for a Volcano Job or a batch Job."""
        group = request["kind"].get("group")
        operation = request.get("operation")
        if operation not in ("CREATE", "UPDATE"):
            return "unchanged", answer
        if group == BATCH_GROUP:
            try:
                answer |= self._changed_batch_job(request)
            except CannotInject as why:
                return "refused", answer | _refusal_answer(why)
        elif group == VOLCANO_GROUP:
            answer |= self._changed_job(request)
        return "owned" if operation == "CREATE" else "unchanged", answer

    def _changed_batch_job(self, request: Doc) -> Doc:
        """Return the patch that labels a batch Job that opts in, and notes who makes it. `CannotInject` for a new one
        that cannot be reshaped.

        What its annotations ask for is copied to its pods, of which the webhook sees nothing else."""
        job = request["object"]
        template = (job.get("spec") or {}).get("template") or {}
        about = template.get("metadata") or {}
        if (about.get("labels") or {}).get(INJECT) != "true" or not isinstance(job.get("metadata"), dict):
            return {}
        meta: Mapping[str, Any] = job["metadata"]
        notes = dict(meta.get("annotations") or {})
        is_new = request.get("operation") == "CREATE"
        if is_new:
            if why := kinds.refuse_batch_job(job):
                raise CannotInject(why)
            trial = Injection(job_id="trial", job="trial", launch="trial", emulated=True)
            inject(template.get("spec") or {}, about, trial, self._settings)
            asked = {name: notes[name] for name in (COUNTS, FIELDS, QUEUE_NOTE) if name in notes}
            template = {**template, "metadata": {**about, "annotations": asked | (about.get("annotations") or {})}}
            self._refuse_recreate(kinds.queue_of_pod(template["metadata"], meta))
            notes = self._with_owner(notes, request, meta)
        if is_new or not (job.get("spec") or {}).get("suspend"):
            notes.pop(SUSPENDED, None)  # it is not by the launcher that the next suspension will be
        labels = {**(meta.get("labels") or {}), JOB: WAITS}
        metadata = {**meta, "annotations": notes, "labels": labels}
        return _as_patch(difference(job, {**job, "metadata": metadata, "spec": {**job["spec"], "template": template}}))

    def _refuse_recreate(self, queue: str) -> None:
        """Raise `CannotInject` for a batch Job in a queue of this mode. Its pods do not tell the name of Kueue's."""
        with suppress(Transient):  # a queue that is not known yet
            if self._decisions.queue(queue)[1] == "recreate":
                raise CannotInject(kinds.RECREATE.format(queue=queue))

    def _with_owner(self, notes: dict[str, Any], request: Doc, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the annotations of a new batch Job with who makes it.

        One that the controller of a CronJob or a JobSet makes is its namespace's: that user is one for all tenants.
        """
        user = _user_of(request)
        elsewhere = namespace_of_user(user) != str(request.get("namespace") or "")
        if user.startswith("system:") and elsewhere and kinds.controller_of(metadata.get("ownerReferences") or []):
            return {name: value for name, value in notes.items() if name not in (OWNER, OWNER_PROOF)}
        return notes | self._owner_notes(request, metadata)

    def _owner_notes(self, request: Doc, metadata: Mapping[str, Any]) -> dict[str, str]:
        """Return the annotations that say who makes an object."""
        namespace = str(request.get("namespace") or "")
        return owner_annotations(self._master_key, namespace, metadata, _user_of(request))

    def _changed_job(self, request: Doc) -> Doc:
        """Return the patch that notes who makes a Volcano Job, whatever its document says, and gates the pods of one
        that opts in."""
        job = request["object"]
        old = request.get("oldObject") or None
        if not isinstance(job.get("metadata"), dict):
            return {}
        if request.get("operation") == "UPDATE":
            return _as_patch(difference(job, gated_job(job, old)))
        about: Mapping[str, Any] = job["metadata"]
        made = self._owner_notes(request, about)
        metadata = {**about, "annotations": {**(about.get("annotations") or {}), **made}}
        gated = gated_job(job) if self._opts_in(job) else job
        return _as_patch(difference(job, {**gated, "metadata": metadata}))

    def _opts_in(self, job: Mapping[str, Any]) -> bool:
        spec = job.get("spec") or {}
        about = [(task.get("template") or {}).get("metadata") or {} for task in spec.get("tasks") or []]
        if any(LAUNCH in (each.get("annotations") or {}) for each in about):
            return False  # the launcher made it, and has injected it
        if any((each.get("labels") or {}).get(INJECT) == "true" for each in about):
            return True
        try:
            return self._decisions.queue(str(spec.get("queue") or "default"))[0]
        except Transient:  # its pods are asked about one by one
            return False

    async def _injected(self, pod: Mapping[str, Any], request: Doc) -> InjectedPod | None:
        """Return the injected pod; None if it is not managed or was injected before."""
        namespace = str(request.get("namespace") or "")
        metadata: Mapping[str, Any] = pod.get("metadata") or {}
        labels = metadata.get("labels") or {}
        queue = labels.get(QUEUE_LABEL)
        by_queue, devices = self._decisions.queue(queue) if queue else NO_QUEUE
        owner = _owner(metadata)
        name = labels.get(JOB_NAME)
        wanted = labels.get(INJECT) == "true" or by_queue
        if not wanted and (owner is None or not await self._stays_ours(owner, metadata)):
            return None
        if owner is None and labels.get(INJECT) != "true":
            raise LeftAlone(kinds.left_alone(metadata.get("ownerReferences") or [], labels, str(queue)))
        if owner is None and kinds.one_pod_kind(metadata.get("ownerReferences") or [], labels):
            return await self._injected_alone(pod, request)
        if owner is None or not name:
            raise CannotInject(kinds.refused(metadata.get("ownerReferences") or [], labels))
        if _made(metadata) and is_injected(pod.get("spec") or {}, metadata):
            return None  # by the launcher, before it made the Volcano Job
        decided = await self._decided(owner, metadata) or PodDecision(_job_id(metadata) or f"{namespace}.{name}")
        one = Injection(
            job_id=decided.job_id,
            job=labels[JOB] if _made(metadata) else job_name(f"{namespace}.{name}", str(owner.get("uid"))),
            launch=_launch(metadata),
            devices=decided.devices or devices,
            emulated=decided.emulated,
            gpu_ids=decided.gpu_ids,
            node=decided.node,
            claim=decided.claim,
        )
        return inject(pod.get("spec") or {}, metadata, one, self._settings)

    async def _injected_alone(self, pod: Mapping[str, Any], request: Doc) -> InjectedPod | None:
        """Return the injected pod of a batch Job, or the bare pod, with a gate; None if it was injected before."""
        namespace = str(request.get("namespace") or "")
        metadata: Mapping[str, Any] = pod.get("metadata") or {}
        spec: Mapping[str, Any] = pod.get("spec") or {}
        owner = next(filter(kinds.is_batch_job, metadata.get("ownerReferences") or []), None)
        prefix = secret_prefix(metadata)
        if is_injected(spec, metadata):
            if waits_for_node(spec) and is_secret_of_pod(prefix, str((metadata.get("annotations") or {}).get(LAUNCH))):
                return None  # by another webhook of ours
            raise CannotInject(COPIED)
        queue = kinds.queue_of_pod(metadata)
        if self._decisions.queue(queue)[1] == "recreate":
            raise CannotInject(kinds.RECREATE.format(queue=queue))
        launch = secret_of_pod(prefix, secrets.token_hex(4))
        decided = await self._decided(owner, metadata) if owner is not None else None
        name = prefix if owner is None else str(owner["name"])
        uid = launch if owner is None else str(owner.get("uid"))
        one = Injection(
            job_id=decided.job_id if decided else f"{namespace}.{name}",
            job=job_name(f"{namespace}.{name}", uid),
            launch=launch,
            emulated=bool(decided and decided.emulated),
            claim=decided.claim if decided else _claim_asked_for(metadata),
        )
        made = inject(spec, metadata, one, self._settings)
        notes = made.annotations | (self._owner_notes(request, metadata) if owner is None else {})
        return InjectedPod(with_node_gate(made.spec), notes, made.labels)

    async def _decided(self, owner: Doc, metadata: Mapping[str, Any]) -> PodDecision | None:
        try:
            return await self._asked(owner, metadata)
        except Exception as error:  # a failing store must not hold up the pod
            log.warning("what was decided about %s is not known: %r", owner.get("name"), error)
            return None

    async def _stays_ours(self, owner: Doc, metadata: Mapping[str, Any]) -> bool:
        """True if its job was admitted before its queue lost the label: uninjected its pod would see every GPU."""
        try:
            return await self._asked(owner, metadata) is not None
        except Exception as error:
            raise Transient(f"It is not known now whether {owner.get('name')} is reshaped; asked again.") from error

    async def _asked(self, owner: Doc, metadata: Mapping[str, Any]) -> PodDecision | None:
        launch = str(owner.get("name")) if _made(metadata) else None
        about = str(owner.get("uid")), launch, member_of(str(metadata.get("name"))) or 0
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._decisions.decided, *about)
        return await asyncio.wait_for(work, PATIENCE_S)

    def _tell(self, request: Doc, owner: Doc | None, namespace: str, reason: str, sentence: str) -> None:
        if owner is not None and not request.get("dryRun"):
            self._report(namespace, owner, reason, sentence)


class MutateHandler(RequestHandler):
    """`POST /mutate`."""

    def initialize(self, injector: Injector) -> None:
        self._injector = injector

    async def post(self) -> None:
        try:
            answer = await self._injector.review(self.request.body)
        except BadReview as why:
            self.set_status(400)
            answer = {"error": str(why)}
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(answer))


class LiveProbe(RequestHandler):
    """`GET /livez`: the process answers."""

    def get(self) -> None:
        self.finish("ok\n")


class ReadyProbe(RequestHandler):
    """`GET /readyz`: 200 once the list of queues was read."""

    def initialize(self, ready: Callable[[], bool]) -> None:
        self._ready = ready

    def get(self) -> None:
        ready = self._ready()
        self.set_status(200 if ready else 503)
        self.finish("ok\n" if ready else "The list of queues has not been read yet.\n")


class MetricsPage(RequestHandler):
    """`GET /metrics`, for Prometheus."""

    def initialize(self, metrics: Callable[[], bytes]) -> None:
        self._metrics = metrics

    def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(self._metrics())


def make_server(
    injector: Injector, tls: ssl.SSLContext | None, ready: Callable[[], bool], metrics: Callable[[], bytes]
) -> HTTPServer:
    """Return the server, not listening yet. `tls` None is for tests: the API server speaks HTTPS only."""
    routes: list[Any] = [
        ("/mutate", MutateHandler, {"injector": injector}),
        ("/livez", LiveProbe),
        ("/readyz", ReadyProbe, {"ready": ready}),
        ("/metrics", MetricsPage, {"metrics": metrics}),
    ]
    app = Application(routes, log_function=lambda _: None)
    return limited_server(app, BODY_LIMIT, tls=tls)


def _request(body: bytes) -> Doc:
    try:
        review = msgspec.json.decode(body)
        request: Doc = review["request"]
        if isinstance(request["uid"], str) and isinstance(request["kind"], dict):
            request["object"] = request.get("object") or {}
            return request
    except (msgspec.DecodeError, RecursionError, UnicodeError, TypeError, LookupError):
        pass
    raise BadReview("send an AdmissionReview of admission.k8s.io/v1 as JSON")


def _patch(pod: Mapping[str, Any], injected: InjectedPod | None) -> Doc:
    """Return the patch that injects a pod, or only takes its gate off; empty if nothing changes."""
    before = {"metadata": pod.get("metadata") or {}, "spec": pod.get("spec") or {}}
    after = {**before, "spec": without_gate(before["spec"])}
    if injected is not None:
        metadata = {**before["metadata"], "annotations": injected.annotations, "labels": injected.labels}
        after = {"metadata": metadata, "spec": without_gate(injected.spec)}
    return _as_patch(difference(before, after))


def _as_patch(operations: list[Operation]) -> Doc:
    if not operations:
        return {}
    return {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}


def _claim_asked_for(metadata: Mapping[str, Any]) -> str | None:
    """Return the claim for checkpoints that a pod's annotation names: it has no record yet. Junk is told of later."""
    try:
        found = msgspec.json.decode(str((metadata.get("annotations") or {}).get(FIELDS) or "{}"))
    except (msgspec.DecodeError, RecursionError):
        return None
    claim = found.get("checkpoint_claim") if isinstance(found, dict) else None
    return claim if isinstance(claim, str) and claim else None


def _user_of(request: Doc) -> str:
    return str((request.get("userInfo") or {}).get("username") or "")


def _refusal_answer(why: CannotInject) -> Doc:
    return {"allowed": False, "status": {"code": 400, "reason": why.reason, "message": str(why)}}


def _owner(metadata: Mapping[str, Any]) -> Doc | None:
    """Return the ownerReference of the Volcano Job that made this pod, or None."""
    owners = metadata.get("ownerReferences") or []
    return next(filter(kinds.is_volcano_job, owners), None)


def _first_owner(pod: Mapping[str, Any]) -> Doc | None:
    return next(iter((pod.get("metadata") or {}).get("ownerReferences") or []), None)


def _made(metadata: Mapping[str, Any]) -> bool:
    """True if the launcher made its Volcano Job; the pod then carries the job's names."""
    label = (metadata.get("labels") or {}).get(JOB)
    owner = _owner(metadata)
    return owner is not None and label is not None and is_launch_of(str(label), str(owner.get("name")))


def _job_id(metadata: Mapping[str, Any]) -> str | None:
    return (metadata.get("annotations") or {}).get(JOB_ID) if _made(metadata) else None


def _launch(metadata: Mapping[str, Any]) -> str:
    """Return a new Secret's name, unique because Volcano reuses the names of earlier pods."""
    return secret_of_pod(secret_prefix(metadata), secrets.token_hex(4))
