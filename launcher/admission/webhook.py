"""Serves the admission webhook, which injects shim and sidecar into the pods of users' Volcano Jobs.

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
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from tornado.httpserver import HTTPServer
from tornado.web import Application, RequestHandler

from coordinator.errors import Transient
from launcher.admission.inject import CannotInject, Devices, InjectedPod, Injection, PodSettings, inject, is_injected
from launcher.admission.json_patch import difference
from launcher.names import INJECT, JOB, JOB_ID, VOLCANO_JOBS, is_launch_of, job_name, member_of, secret_of_pod

log = logging.getLogger(__name__)

Doc = dict[str, Any]

IDLE_S = 60.0  # seconds that a connection may stay open without a request, or with half of its header
PATIENCE_S = 0.7  # for the store; the API server also waits for the rest
BODY_LIMIT = 4 * 1024 * 1024  # bytes: etcd takes no object above 1.5 MiB, and an update holds two
AT_ONCE = 8
NO_QUEUE: tuple[bool, Devices] = (False, "shared")
JOB_NAME, QUEUE_NAME = "volcano.sh/job-name", "volcano.sh/queue-name"


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
    """The pod is in a queue of ours but of no Volcano Job: it runs as it is; says so to its user."""


class BadReview(Exception):
    """The request is no AdmissionReview."""


class Injector:
    """Answers AdmissionReviews, any number at once."""

    def __init__(
        self, settings: PodSettings, decisions: PodDecisions, report: Report, counted: Callable[[str, float], None]
    ) -> None:
        """`counted(outcome, seconds)`: of each answer; injected, unchanged, refused, or unknown if asked too early."""
        self._settings, self._decisions, self._report, self._counted = settings, decisions, report, counted
        self._threads = ThreadPoolExecutor(AT_ONCE, "decided")

    async def review(self, body: bytes) -> Doc:
        """Return the AdmissionReview to answer with. `BadReview` if `body` is none."""
        request, began = _request(body), time.monotonic()
        outcome, answer = await self._judged(request)
        self._counted(outcome, time.monotonic() - began)
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}

    async def _judged(self, request: Doc) -> tuple[str, Doc]:
        """Return the outcome for the metrics, and the response."""
        outcome, answer = "unchanged", {"uid": request["uid"], "allowed": True}
        pod, namespace = request["object"], str(request.get("namespace") or "")
        if request.get("operation") == "CREATE" and request["kind"].get("kind") == "Pod":
            try:
                if changes := _patch(pod, await self._injected(pod, namespace)):
                    return "injected", answer | changes
            except LeftAlone as why:
                self._tell(request, _first_owner(pod), namespace, "NotReshaped", str(why))
            except CannotInject as why:
                outcome = "refused"
                answer |= {"allowed": False, "status": {"code": 400, "reason": why.reason, "message": str(why)}}
                self._tell(request, _owner(pod.get("metadata") or {}), namespace, why.reason, str(why))
            except Transient as why:  # Volcano tries again
                outcome = "unknown"
                answer |= {"allowed": False, "status": {"code": 503, "reason": "NotKnownYet", "message": str(why)}}
        return outcome, answer

    async def _injected(self, pod: Mapping[str, Any], namespace: str) -> InjectedPod | None:
        """Return the injected pod; None if it is not managed or was injected before."""
        metadata: Mapping[str, Any] = pod.get("metadata") or {}
        labels = metadata.get("labels") or {}
        queue = labels.get(QUEUE_NAME)
        by_queue, devices = self._decisions.queue(queue) if queue else NO_QUEUE
        owner, name = _owner(metadata), labels.get(JOB_NAME)
        wanted = labels.get(INJECT) == "true" or by_queue
        if not wanted and (owner is None or not await self._stays_ours(owner, metadata)):
            return None
        if owner is None and labels.get(INJECT) != "true":
            raise LeftAlone(_left_alone(metadata, str(queue)))
        if owner is None or not name:
            raise CannotInject(
                f"This pod is labelled {INJECT}, but it is not of a Volcano Job: label the pods of a Volcano Job's "
                "template, or let the job into a queue that is labelled."
            )
        if _made(metadata) and is_injected(pod.get("spec") or {}, metadata):
            return None  # by the launcher, before it made the Volcano Job
        decided = await self._decided(owner, metadata) or PodDecision(_job_id(metadata) or f"{namespace}.{name}")
        one = Injection(
            job_id=decided.job_id,
            job=labels[JOB] if _made(metadata) else job_name(f"{namespace}.{name}", str(owner.get("uid"))),
            launch=_launch(metadata), devices=decided.devices or devices, emulated=decided.emulated,
            gpu_ids=decided.gpu_ids, node=decided.node, claim=decided.claim,
        )  # fmt: skip
        return inject(pod.get("spec") or {}, metadata, one, self._settings)

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
    return HTTPServer(app, ssl_options=tls, max_body_size=BODY_LIMIT, idle_connection_timeout=IDLE_S)


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
    if injected is None:
        return {}
    metadata = {**(pod.get("metadata") or {}), "annotations": injected.annotations, "labels": injected.labels}
    before = {"metadata": pod.get("metadata") or {}, "spec": pod.get("spec") or {}}
    operations = difference(before, {"metadata": metadata, "spec": injected.spec})
    if not operations:
        return {}
    return {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(operations)).decode()}


def _owner(metadata: Mapping[str, Any]) -> Doc | None:
    """Return the ownerReference of the Volcano Job that made this pod, or None."""
    owners = metadata.get("ownerReferences") or []
    return next((one for one in owners if str(one.get("apiVersion", "")).startswith(VOLCANO_JOBS)), None)


def _first_owner(pod: Mapping[str, Any]) -> Doc | None:
    return next(iter((pod.get("metadata") or {}).get("ownerReferences") or []), None)


def _left_alone(metadata: Mapping[str, Any], queue: str) -> str:
    owner = next(iter(metadata.get("ownerReferences") or []), None)
    whose = f"a {owner.get('kind')} ({owner.get('apiVersion')})" if owner else "no Volcano Job"
    return (
        f"Pods of queue {queue} are reshaped, but this one is of {whose}: it runs as it is, without a sidecar. "
        f"Only Volcano Jobs ({VOLCANO_JOBS}) are reshaped; put others into a queue without the label {INJECT}."
    )


def _made(metadata: Mapping[str, Any]) -> bool:
    """True if the launcher made its Volcano Job; the pod then carries the job's names."""
    label, owner = (metadata.get("labels") or {}).get(JOB), _owner(metadata)
    return owner is not None and label is not None and is_launch_of(str(label), str(owner.get("name")))


def _job_id(metadata: Mapping[str, Any]) -> str | None:
    return (metadata.get("annotations") or {}).get(JOB_ID) if _made(metadata) else None


def _launch(metadata: Mapping[str, Any]) -> str:
    """Return a new Secret's name, unique because Volcano reuses the names of earlier pods."""
    return secret_of_pod(str(metadata.get("name") or "pod"), secrets.token_hex(4))
