"""A Kubernetes API in memory: `Cluster` of `launcher.cluster.api` on a dict, with watches. Nothing acts by itself."""

from __future__ import annotations

import copy
import queue
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, cast

from coordinator.errors import Conflict, Rejected, ReshapeError, Transient
from launcher.cluster.api import Expired, KubernetesApi, ListResult, NoSuchKind

Doc = dict[str, Any]
Name = tuple[str, str | None, str]  # kind, namespace, name


class Kube:
    """`trouble` is raised by every call while it is set."""

    def __init__(self) -> None:
        self.objects: dict[Name, Doc] = {}
        self.calls: list[tuple[str, str, str]] = []  # verb, kind, name
        self.trouble: ReshapeError | None = None
        self.without: set[str] = set()  # kinds that are not served
        self.refuses: ReshapeError | None = None  # what a resize of a pod is answered
        self._version = 1
        self._lock = threading.RLock()
        self._watches: list[tuple[str, queue.Queue[Any]]] = []

    # what tests do

    def put(self, kind: str, name: str, namespace: str | None = "default", **content: Any) -> Doc:
        """Make or replace an object; fields of `content` stand beside `metadata`, whose fields `meta` adds."""
        with self._lock:
            old = self.objects.get((kind, namespace, name), {})
            meta = {"uid": uuid.uuid4().hex, **old.get("metadata", {}), "name": name, **content.pop("meta", {})}
            if namespace is not None:
                meta["namespace"] = namespace
            return self._store({**old, "kind": kind, **content, "metadata": meta}, "MODIFIED" if old else "ADDED")

    def vanish(self, kind: str, name: str, namespace: str | None = "default") -> None:
        with self._lock:
            self._tell("DELETED", self.objects.pop((kind, namespace, name)))

    def break_watches(self, error: ReshapeError) -> None:
        for _, events in self._watches:
            events.put(error)

    def of(self, kind: str) -> list[Doc]:
        return [doc for name, doc in self.objects.items() if name[0] == kind]

    def events(self) -> list[tuple[str, str]]:
        return [(doc["reason"], doc["message"]) for doc in self.of("Event")]

    # what the launcher does

    def get(self, kind: str, name: str, namespace: str | None = None) -> Doc | None:
        self._call("get", kind, name)
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    def list(
        self, kind: str, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> ListResult:
        """Of `fields` what is equal to a text, such as `involvedObject.uid` of events, or is not (`!=`)."""
        self._call("list", kind, "")
        with self._lock:
            found = [copy.deepcopy(d) for n, d in self.objects.items() if n[0] == kind and namespace in (None, n[1])]
            found = [d for d in found if _labelled(d, labels) and _has_fields(d, fields)]
            return ListResult(found, str(self._version))

    def pages(
        self, kind: str, namespace: str | None = None, labels: str | None = None, fields: str | None = None
    ) -> Iterator[ListResult]:
        """Two objects at a time."""
        found = self.list(kind, namespace, labels, fields)
        for first in range(0, max(1, len(found.items)), 2):
            yield ListResult(found.items[first : first + 2], found.version)

    def watch(
        self,
        kind: str,
        since: str,
        seconds: int,
        namespace: str | None = None,
        labels: str | None = None,
        fields: str | None = None,
    ) -> Iterator[tuple[str, Doc]]:
        self._call("watch", kind, "")
        events: queue.Queue[Any] = queue.Queue()
        with self._lock:
            if since != str(self._version):
                raise Expired("too old resource version")
            self._watches.append((kind, events))
        end = time.monotonic() + seconds
        try:
            while (left := end - time.monotonic()) > 0:
                try:
                    event = events.get(timeout=min(left, 0.2))
                except queue.Empty:
                    continue
                if isinstance(event, BaseException):
                    raise event
                if _labelled(event[1], labels) and namespace in (None, event[1]["metadata"].get("namespace")):
                    yield event if _has_fields(event[1], fields) else ("DELETED", event[1])
        finally:
            self._watches.remove((kind, events))

    def create(self, doc: Doc) -> Doc:
        self._call("create", doc["kind"], doc["metadata"]["name"])
        if _name(doc) in self.objects:
            raise Conflict("it already exists")
        return self._make(doc)

    def apply(self, doc: Doc) -> Doc:
        if doc["kind"] == "Job" and doc.get("apiVersion") == "batch/v1":
            doc = {**doc, "kind": "BatchJob"}
        self._call("apply", doc["kind"], doc["metadata"]["name"])
        return self._make(doc)

    def patch(self, kind: str, name: str, changes: Doc, namespace: str | None = None, part: str = "") -> Doc:
        """A strategic merge of `webhooks` or of a pod's containers, as far as the launcher needs one."""
        self._call(f"patch {part}".strip(), kind, name)
        if part == "resize":
            return self._resize(kind, name, changes, namespace)
        with self._lock:
            doc = copy.deepcopy(self.objects[(kind, namespace, name)])
            if part == "status":
                return self._store({**doc, "status": {**(doc.get("status") or {}), **changes["status"]}}, "MODIFIED")
            for change in changes["webhooks"]:
                next(w for w in doc["webhooks"] if w["name"] == change["name"]).update(change)
            return self._store(doc, "MODIFIED")

    def patch_json(self, kind: str, name: str, operations: Sequence[Doc], namespace: str | None = None) -> Doc:
        """`test`, `remove`, and `add` into what is there."""
        self._call("patch_json", kind, name)
        with self._lock:
            doc = copy.deepcopy(self.objects[(kind, namespace, name)])
            for one in operations:
                parts = [part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]]
                *path, last = [int(part) if part.isdecimal() else part for part in parts]
                place: Any = doc
                for part in path:
                    place = place[part]
                if one["op"] == "test" and place[last] != one["value"]:
                    raise Rejected("the test failed", 422)
                if one["op"] == "remove":
                    del place[last]
                else:
                    place[last] = one["value"]
            return self._store(doc, "MODIFIED")

    def show(self, seen: Doc, status: Doc) -> Doc:
        """The status of a custom resource."""
        self._call("show", seen["kind"], seen["metadata"]["name"])
        with self._lock:
            doc = copy.deepcopy(self.objects[_name(seen)])
            if doc["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]:
                raise Conflict("the object has been modified")
            merged = {**(doc.get("status") or {}), **status}
            return self._store({**doc, "status": {k: v for k, v in merged.items() if v is not None}}, "MODIFIED")

    def delete(
        self, kind: str, name: str, namespace: str | None = None, uid: str | None = None, grace_s: int | None = None
    ) -> bool:
        self._call("delete", kind, name)
        with self._lock:
            found = self.objects.get((kind, namespace, name))
            if found is None or uid not in (None, found["metadata"]["uid"]):
                return False
            self.vanish(kind, name, namespace)
            return True

    def serves_kind(self, kind: str) -> bool:
        self._call("serves_kind", kind, "")
        return kind not in self.without

    def answers(self) -> bool:
        return self.trouble is None

    def _resize(self, kind: str, name: str, changes: Doc, namespace: str | None) -> Doc:
        if (kind, namespace, name) not in self.objects:
            raise Rejected(f'{kind.lower()}s "{name}" not found', 404)
        if self.refuses is not None:
            raise self.refuses
        with self._lock:
            doc = copy.deepcopy(self.objects[(kind, namespace, name)])
            for change in changes["spec"]["containers"]:
                container = next(c for c in doc["spec"]["containers"] if c["name"] == change["name"])
                resources = container.setdefault("resources", {})
                for each, amounts in change["resources"].items():
                    resources[each] = {**resources.get(each, {}), **amounts}
            return self._store(doc, "MODIFIED")

    def _call(self, verb: str, kind: str, name: str) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.calls.append((verb, kind, name))
        if kind in self.without and verb in ("get", "list", "watch"):
            raise NoSuchKind(f"the API server does not serve this kind ({kind})")

    def _make(self, doc: Doc) -> Doc:
        meta, rest = dict(doc["metadata"]), {k: v for k, v in doc.items() if k not in ("kind", "metadata")}
        return self.put(doc["kind"], meta.pop("name"), meta.pop("namespace", None), meta=meta, **rest)

    def _store(self, doc: Doc, event: str) -> Doc:
        self._version += 1
        doc["metadata"]["resourceVersion"] = str(self._version)
        self.objects[_name(doc)] = doc
        self._tell(event, doc)
        return copy.deepcopy(doc)

    def _tell(self, event: str, doc: Doc) -> None:
        for kind, events in self._watches:
            if kind == doc["kind"]:
                events.put((event, copy.deepcopy(doc)))


AWAY = Transient("the API server does not answer")


def as_api(kube: Kube) -> KubernetesApi:
    """Return it as what it stands for, of which it has what the launcher calls."""
    return cast(KubernetesApi, kube)


def _name(doc: Doc) -> Name:
    return doc["kind"], doc["metadata"].get("namespace"), doc["metadata"]["name"]


def _field(doc: Doc, name: str) -> Any:
    head, _, rest = name.partition(".")
    return _field(doc.get(head) or {}, rest) if rest else doc.get(head)


def _has_fields(doc: Doc, fields: str | None) -> bool:
    for part in fields.split(",") if fields else ():
        name, sign, value = part.partition("!=" if "!=" in part else "=")
        if (str(_field(doc, name)) == value) is (sign == "!="):
            return False
    return True


def _labelled(doc: Doc, label: str | None) -> bool:
    """`label` is a name that it must have, or `name=value`."""
    labels = doc["metadata"].get("labels") or {}
    name, _, value = (label or "").partition("=")
    return label is None or (labels.get(name) == value if value else name in labels)
