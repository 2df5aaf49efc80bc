"""Calls the Kubernetes API with plain documents; the only module that knows the `kubernetes` client.

Promises: every call ends after `TIMEOUT_S`, a watch after the time it was given; objects come and go as
dicts, unchanged; no exception of the client leaves this module: `Transient` when the API server does not answer
or is overloaded, `Rejected` when it calls the request wrong, `Fatal` when it forbids it, `Conflict` when the object
exists already or has changed. Paths are built here, without the server's discovery API. Called by the
launcher's service, its playbooks, `reshape setup` and `reshape doctor`, from any thread.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from coordinator.errors import Conflict, Fatal, Rejected, ReshapeError, Transient

Doc = dict[str, Any]

FIELD_MANAGER = "volcano-reshape"
TIMEOUT_S = 15.0
PAGE = 500  # objects of one answer: those of a large cluster at once would be gigabytes, and late
SLACK_S = 5.0  # a watch that is silent so long after its end has a dead connection
NOT_INSTALLED = "the Kubernetes client is not installed here: pip install '.[k8s]' in a checkout of volcano-reshape"
IN_CLUSTER = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
APPLY = "application/apply-patch+yaml"
MERGE = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JSON_MERGE = "application/merge-patch+json"


class _Kind(NamedTuple):
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None) -> str:
        group = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        within = f"/namespaces/{quote(namespace, '')}" if self.namespaced and namespace else ""
        return f"{group}{within}/{self.plural}" + (f"/{quote(name, '')}" if name else "")


KINDS = {
    "ConfigMap": _Kind("v1", "configmaps"),
    "Event": _Kind("v1", "events"),
    "Namespace": _Kind("v1", "namespaces", False),
    "Node": _Kind("v1", "nodes", False),
    "Pod": _Kind("v1", "pods"),
    "Secret": _Kind("v1", "secrets"),
    "Service": _Kind("v1", "services"),
    "RuntimeClass": _Kind("node.k8s.io/v1", "runtimeclasses", False),
    "DaemonSet": _Kind("apps/v1", "daemonsets"),
    "Deployment": _Kind("apps/v1", "deployments"),
    "StatefulSet": _Kind("apps/v1", "statefulsets"),
    "CustomResourceDefinition": _Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "MutatingWebhookConfiguration": _Kind("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False),
    "Job": _Kind("batch.volcano.sh/v1alpha1", "jobs"),  # Volcano's
    "BatchJob": _Kind("batch/v1", "jobs"),  # Kubernetes' own, whose kind is Job, too
    "Command": _Kind("bus.volcano.sh/v1alpha1", "commands"),
    "Slaml": _Kind("sla-operator.dcn.com/v1alpha1", "slamls"),
    "PodGroup": _Kind("scheduling.volcano.sh/v1beta1", "podgroups"),
    "Queue": _Kind("scheduling.volcano.sh/v1beta1", "queues", False),
    "PriorityClass": _Kind("scheduling.k8s.io/v1", "priorityclasses", False),
    "TokenReview": _Kind("authentication.k8s.io/v1", "tokenreviews", False),
    "SubjectAccessReview": _Kind("authorization.k8s.io/v1", "subjectaccessreviews", False),
}


class ListResult(NamedTuple):
    """The objects of a list call, and the resource version from which a watch goes on."""

    items: list[Doc]
    version: str


class ApiUnavailable(Transient):
    """The API server does not answer now: the result of the call is unknown."""


class Expired(ReshapeError):
    """A watch cannot continue from its resource version: list again."""


class NoSuchKind(Transient):
    """The API server does not serve this kind now: nothing is known about its objects, not even that they are gone."""


class KubernetesApi:
    """A client of one API server: this pod's own, or the one of the kubeconfig (KUBECONFIG, ~/.kube/config)."""

    def __init__(self, kubeconfig: str | None = None, context: str | None = None) -> None:
        """`Fatal` when the client is not installed or no cluster is configured."""
        self._client = _connect(kubeconfig, context)

    def get(self, kind: str, name: str, namespace: str | None = None) -> Doc | None:
        """Return the object, or None if there is none. `NoSuchKind` where its kind is not served."""
        try:
            return self._ask("get", KINDS[kind].path(namespace, name))
        except _NotFound:
            return None

    def list(
        self, kind: str, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        """Return all objects of a kind, of every namespace if none is given. `NoSuchKind` where it is not served."""
        pages = [*self.pages(kind, namespace, labels, fields)]
        return ListResult([item for page in pages for item in page.items], pages[-1].version)

    def pages(
        self, kind: str, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> Iterator[ListResult]:
        """Yield all objects of a kind in parts, at least one, all of the same version; an empty one may be the last.

        `Expired` when the caller took longer than the server keeps that version (five minutes by default).
        """
        about = {"apiVersion": KINDS[kind].version, "kind": kind}
        more = ""
        while True:
            query = [("limit", str(PAGE)), *([("continue", more)] if more else []), *_selector_query(labels, fields)]
            found = self._ask("get", KINDS[kind].path(namespace), query_params=query)
            meta = found.get("metadata") or {}
            more = str(meta.get("continue") or "")
            items = [{**about, **item} for item in found.get("items") or []]
            yield ListResult(items, str(meta.get("resourceVersion", "")))
            if not more:
                return

    def watch(
        self,
        kind: str,
        since: str,
        seconds: int,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Iterator[tuple[str, Doc]]:
        """Yield changes after `since` as (ADDED, MODIFIED, DELETED or BOOKMARK, object), for about `seconds`.

        An object that no longer has these labels or fields counts as DELETED. `Expired` when the server no longer
        knows `since`, `Transient` when the connection fails or falls silent.
        """
        query = [("watch", "true"), ("resourceVersion", since), ("timeoutSeconds", str(seconds))]
        query += [("allowWatchBookmarks", "true"), *_selector_query(labels, fields)]
        yield from self._stream(KINDS[kind].path(namespace), query, seconds + SLACK_S)

    def create(self, doc: Doc) -> Doc:
        """Create the object. `Conflict` if one of that name exists."""
        return self._ask("post", self._path(doc, named=False), body=doc)

    def rehearse(self, doc: Doc) -> Doc:
        """Return what `create` would make, after admission, without keeping it (dry run)."""
        return self._ask("post", self._path(doc, named=False), body=doc, query_params=[("dryRun", "All")])

    def through_service(self, namespace: str, service: str, path: str, body: Doc | None = None) -> bytes:
        """GET, or POST a body, to a Service through the API server's proxy: a user's kubeconfig suffices for it."""
        whole = f"{KINDS['Service'].path(namespace, service)}/proxy{path}"
        method = "get" if body is None else "post"
        with _translating(f"{method} {whole}"):
            about = {"serialize": False, "_request_timeout": TIMEOUT_S}
            return bytes(self._client.request(method, whole, body=body, **about).data)

    def apply(self, doc: Doc) -> Doc:
        """Server-side apply: set the fields that `doc` has, also those other managers own; keep all others."""
        return self._ask("patch", self._path(doc), body=doc, content_type=APPLY, **_OURS)

    def patch(self, kind: str, name: str, changes: Doc, namespace: str | None = None, part: str = "") -> Doc:
        """Strategic merge: entries of lists such as `webhooks` are found by their name. `part`: a subresource."""
        path = KINDS[kind].path(namespace, name) + (f"/{part}" if part else "")
        return self._ask("patch", path, body=changes, content_type=MERGE, field_manager=FIELD_MANAGER)

    def patch_json(self, kind: str, name: str, operations: Sequence[Doc], namespace: str | None = None) -> Doc:
        """JSON patch; `Rejected` when a `test` among the operations does not hold."""
        path = KINDS[kind].path(namespace, name)
        return self._ask("patch", path, body=[*operations], content_type=JSON_PATCH, field_manager=FIELD_MANAGER)

    def show(self, seen: Doc, status: Doc) -> Doc:
        """Write the status of a custom resource; None removes a field. `Conflict` if it has changed since `seen`."""
        about = {"resourceVersion": seen["metadata"]["resourceVersion"]}
        body = {"metadata": about, "status": status}
        return self._ask("patch", f"{self._path(seen)}/status", body=body, content_type=JSON_MERGE)

    def delete(
        self,
        kind: str,
        name: str,
        namespace: str | None = None,
        uid: str | None = None,
        foreground: bool = False,
        grace_s: int | None = None,
    ) -> bool:
        """Delete the object. False if there is none, or if the one of that name has another uid.

        `foreground`: the objects that it owns go first. `grace_s`: of a pod, also one that is being deleted already.
        """
        options: Doc = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if foreground:
            options["propagationPolicy"] = "Foreground"
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._ask("delete", KINDS[kind].path(namespace, name), body=options)
        except (_NotFound, Conflict):
            return False
        return True

    def answers(self) -> bool:
        """True if the API server can be reached and is ready to work."""
        try:
            self._ask("get", "/version")
        except ReshapeError:
            return False
        return True

    def serves(self, part: str) -> bool:
        """True if the server has this subresource of a core kind, such as `pods/resize`."""
        return any(found.get("name") == part for found in self._ask("get", "/api/v1").get("resources") or [])

    def serves_kind(self, kind: str) -> bool:
        """Return whether objects of this kind can be made. False while its definition is being deleted, with them."""
        version = KINDS[kind].version
        plural = KINDS[kind].plural
        group = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            found = self._ask("get", group).get("resources") or []
        except (_NotFound, NoSuchKind):
            return False
        return any(one.get("name") == plural and "create" in (one.get("verbs") or ()) for one in found)

    def version(self) -> str:
        """Return the server's version, such as v1.34.3."""
        return str(self._ask("get", "/version").get("gitVersion", ""))

    @staticmethod
    def _path(doc: Doc, named: bool = True) -> str:
        about = doc["metadata"]
        kind = "BatchJob" if doc["kind"] == "Job" and doc["apiVersion"] == KINDS["BatchJob"].version else doc["kind"]
        return KINDS[kind].path(about.get("namespace"), about["name"] if named else None)

    def _ask(self, method: str, path: str, **more: Any) -> Doc:
        with _translating(f"{method} {path}"):
            answer = self._client.request(method, path, serialize=False, _request_timeout=TIMEOUT_S, **more)
            found: Doc = json.loads(answer.data)
            return found

    def _stream(self, path: str, query: Sequence[tuple[str, str]], silent_s: float) -> Iterator[tuple[str, Doc]]:
        with _translating(f"watch {path}"):
            answer = self._client.request(
                "get", path, serialize=False, query_params=[*query], _request_timeout=(TIMEOUT_S, silent_s)
            )
            try:
                for line in _lines(answer):
                    yield _event(json.loads(line))
            finally:
                answer.close()
                answer.release_conn()


_OURS: Doc = {"field_manager": FIELD_MANAGER, "force_conflicts": True}


class _NotFound(Rejected):
    """There is no such object."""


def _connect(kubeconfig: str | None, context: str | None) -> Any:
    # Imported by name: mypy would ask for types in the parts of the client that have none.
    try:
        modules = importlib.import_module("kubernetes"), importlib.import_module("kubernetes.dynamic")
    except ImportError as error:
        raise Fatal(NOT_INSTALLED) from error
    client, config, dynamic = modules[0].client, modules[0].config, modules[1]
    settings = client.Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ and IN_CLUSTER.exists():
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(kubeconfig, context, client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise Fatal(f"no cluster is named: set KUBECONFIG, or start this in a pod ({error})") from error
    except Exception as error:  # the client raises many types for a file that is no kubeconfig
        raise Fatal(
            f"KUBECONFIG names a file that is no kubeconfig ({type(error).__name__}): name another one"
        ) from error
    # No discoverer: it would ask the server for all that it has.
    return dynamic.DynamicClient(client.ApiClient(settings), discoverer=lambda *_: None)


def _selector_query(labels: str | None, fields: str | None) -> list[tuple[str, str]]:
    return [(name, value) for name, value in (("labelSelector", labels), ("fieldSelector", fields)) if value]


def _lines(answer: Any) -> Iterator[bytes]:
    rest = b""
    for chunk in answer.stream(amt=None, decode_content=False):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)


def _event(message: Mapping[str, Any]) -> tuple[str, Doc]:
    kind, item = str(message.get("type")), message.get("object") or {}
    if kind == "ERROR":
        if item.get("code") == 410:
            raise Expired(str(item.get("message")))
        raise Transient(f"the API server ended a watch: {item.get('message')}")
    return kind, dict(item)


class _translating:
    """Translates the client's exceptions into our errors, with the server's own message."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        if isinstance(error, ApiException) and error.status:
            if error.status == 404 and self._what.startswith(("get ", "watch ")) and not _names_object(error):
                raise NoSuchKind(f"the API server does not serve this kind ({self._what})") from None
            raise _judged(int(error.status), _said(error), self._what) from None
        if isinstance(error, ApiException | HTTPError | OSError | ValueError):
            raise ApiUnavailable(f"the API server does not answer ({self._what}): {_cause(error)}") from None


def _judged(status: int, said: str, what: str) -> ReshapeError:
    if status == 404:
        return _NotFound(said, 404)
    if status == 409:
        return Conflict(said)
    if status == 410:
        return Expired(said)
    if status in (401, 403):
        return Fatal(f"the API server refuses this account ({what}): {said}")
    if status in (400, 405, 413, 415, 422):
        return Rejected(said, status)
    return ApiUnavailable(f"the API server cannot work now ({status}, {what}): {said}")


def _cause(error: BaseException) -> str:
    """Return the cause that urllib3 wraps: `Connection refused`, a certificate that is not trusted, …"""
    reason = getattr(error, "reason", None) or error
    words = str(reason).rpartition(": ")[2] if type(reason).__module__.startswith("urllib3") else ""
    return words[:200] or type(error).__name__


def _names_object(error: Any) -> bool:
    """Return whether a 404 is about one object, which its answer then names. About a kind it is a plain text."""
    try:
        return bool(json.loads(error.body)["details"]["name"])
    except (TypeError, ValueError, LookupError):
        return False


def _said(error: Any) -> str:
    """Return the `message` of the Status object, else the HTTP reason."""
    try:
        return str(json.loads(error.body)["message"])[:400]
    except (TypeError, ValueError, KeyError):
        return str(error.reason or "no reason was given")[:400]
