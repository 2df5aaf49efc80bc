"""Lets the scheduler of a cluster's Volcano ask our extender, and ends that: `reshape volcano connect`, `disconnect`.

Promises: one ConfigMap is changed, and only if it still says what was read; Volcano's scheduler reads it again by
itself, so nothing is restarted. Also finds that ConfigMap for `reshape doctor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple, Protocol

from coordinator.errors import Fatal, Rejected
from launcher.volcano_conf import EditedConf, with_extender, without_extender

Doc = dict[str, Any]

NAMESPACE = "volcano-system"
CONFIG_MAP = "volcano-scheduler-configmap"
KEY = "volcano-scheduler.conf"
SCHEDULER_LABEL = "app=volcano-scheduler"  # of the Deployment, in Volcano's installer file and in its chart
FLAG = "--scheduler-conf="


class SchedulerApi(Protocol):
    """The calls of `launcher.cluster.api.KubernetesApi` that are used."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Doc | None: ...

    def list(self, kind: str, namespace: str | None = None, labels: str | None = None) -> Any: ...

    def patch_json(self, kind: str, name: str, operations: Sequence[Doc], namespace: str | None = None) -> Doc: ...


class SchedulerConf(NamedTuple):
    """Says where Volcano's scheduler reads its configuration, and what stands there; None if nothing does."""

    namespace: str
    name: str
    key: str
    text: str | None

    def __str__(self) -> str:
        return f"{self.key} in ConfigMap {self.namespace}/{self.name}"


def scheduler_conf(api: SchedulerApi) -> SchedulerConf:
    """Find the configuration by the scheduler's Deployment; without one it is where Volcano's installer puts it."""
    namespace, name, key = _place_of_conf(api)
    found = api.get("ConfigMap", name, namespace) or {}
    text = (found.get("data") or {}).get(key)
    return SchedulerConf(namespace, name, key, None if text is None else str(text))


def connect(api: SchedulerApi) -> Iterator[str]:
    """Let Volcano's scheduler ask our extender; yield sentences. `Rejected` where it cannot be let."""
    yield from _change_conf(api, with_extender, "Volcano's scheduler asks our extender", "asked our extender already")


def disconnect(api: SchedulerApi) -> Iterator[str]:
    """Take our extender out; yield sentences."""
    if scheduler_conf(api).text is None:
        yield "There is no scheduler configuration of Volcano, so there is nothing to take out."
        return
    yield from _change_conf(api, without_extender, "Volcano's scheduler no longer asks our extender", "did not ask it")


def _change_conf(api: SchedulerApi, change: Callable[[str], EditedConf], done: str, already: str) -> Iterator[str]:
    conf = scheduler_conf(api)
    if conf.text is None:
        raise Rejected(f"There is no {conf}: install Volcano first, then run this again. Nothing was changed.")
    edited = change(conf.text)
    if edited.text == conf.text:
        yield f"Nothing was changed: Volcano's scheduler {already} ({conf})."
    else:
        _write_conf(api, conf, edited.text)
        yield f"{done}: {conf} was changed, and is read again within a minute or two."
        if not edited.keeps_comments:
            yield "It was written anew: its comments could not be kept."
    yield from edited.notes


def _write_conf(api: SchedulerApi, conf: SchedulerConf, text: str) -> None:
    path = f"/data/{conf.key.replace('~', '~0').replace('/', '~1')}"
    operations: list[Doc] = [
        {"op": "test", "path": path, "value": conf.text},
        {"op": "replace", "path": path, "value": text},
    ]
    try:
        api.patch_json("ConfigMap", conf.name, operations, conf.namespace)
    except Rejected as error:
        raise Rejected(f"{conf} was changed by someone else meanwhile: run this again ({error}).") from error


def _place_of_conf(api: SchedulerApi) -> tuple[str, str, str]:
    try:
        found = api.list("Deployment", labels=SCHEDULER_LABEL).items
    except Fatal:  # an account that may change one ConfigMap only
        found = []
    for deployment in found:
        spec = deployment["spec"]["template"]["spec"]
        if place := _mounted_config_map(spec):
            return str(deployment["metadata"].get("namespace") or NAMESPACE), *place
    return NAMESPACE, CONFIG_MAP, KEY


def _mounted_config_map(spec: Doc) -> tuple[str, str] | None:
    """Return the ConfigMap that its container reads the configuration from, and the key there."""
    maps = {
        volume["name"]: volume["configMap"]["name"] for volume in spec.get("volumes") or [] if volume.get("configMap")
    }
    for container in spec.get("containers") or []:
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        path = next((word.removeprefix(FLAG) for word in words if str(word).startswith(FLAG)), None)
        mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts") or []}
        if path is not None and (volume := mounts.get(str(PurePosixPath(path).parent))) in maps:
            return maps[volume], PurePosixPath(path).name
    return None
