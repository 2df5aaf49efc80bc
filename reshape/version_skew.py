"""Finds versions of volcano-reshape on a cluster that differ: of its parts, of sidecars in pods, of this command.

Called by `reshape doctor`. Which of them work together: docs/explanation/versions.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Protocol

Doc = dict[str, Any]

PARTS = (("Deployment", "reshape-coordinator"), ("Deployment", "reshape-launcher"), ("DaemonSet", "reshape-agent"))
JOB_PODS = "volcano-reshape.io/job"
SIDECAR = "reshape-sidecar"
BUILD = re.compile(r'(?m)^reshape_build_info\{version="([^"]+)"\}')
PAGE = "docs/explanation/versions.md"


class Lookup(Protocol):
    """The calls of `launcher.cluster.api.KubernetesApi` that are used."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Doc | None: ...

    def list(self, kind: str, namespace: str | None = None, labels: str | None = None) -> Any: ...


def of_parts(api: Lookup, namespace: str) -> Iterator[str]:
    """Yield a sentence if coordinator, launcher and agents do not all run one image."""
    images = {name: _image_of(api.get(kind, name, namespace)) for kind, name in PARTS}
    if len(set(filter(None, images.values()))) > 1:
        named = ", ".join(f"{name} {image}" for name, image in images.items() if image)
        yield f"Parts of volcano-reshape run different images ({named}): install one version of all, {PAGE}."


def of_command(metrics: str) -> Iterator[str]:
    """Yield a sentence if this command has another version than the coordinator. `metrics`: the coordinator's."""
    told = BUILD.search(metrics)
    try:
        ours = metadata.version("volcano-reshape")
    except metadata.PackageNotFoundError:  # run from its source folder
        return
    if told is not None and told[1] != ours:
        yield (
            f"This command is volcano-reshape {ours}, the coordinator {told[1]}: install that version here, as "
            f"what only one of them knows is refused, {PAGE}."
        )


def of_sidecars(api: Lookup, namespace: str) -> Iterator[str]:
    """Yield a sentence for each other image whose sidecars are in pods, as after an upgrade."""
    newest = _image_of(api.get("Deployment", "reshape-launcher", namespace))
    if not newest:
        return
    pods = api.list("Pod", labels=JOB_PODS).items
    others = Counter(image for pod in pods if (image := _sidecar_image(pod)) not in ("", newest))
    for image, count in sorted(others.items()):
        whose = "1 pod has" if count == 1 else f"{count} pods have"
        yield f"{whose} a sidecar of {image}; new ones get {newest}. Running jobs keep theirs until they end, {PAGE}."


def _image_of(found: Doc | None) -> str:
    containers = (found or {}).get("spec", {}).get("template", {}).get("spec", {}).get("containers") or [{}]
    return str(containers[0].get("image", ""))


def _sidecar_image(pod: Doc) -> str:
    inits = (pod.get("spec") or {}).get("initContainers") or []
    return next((str(each.get("image")) for each in inits if each.get("name") == SIDECAR), "")
