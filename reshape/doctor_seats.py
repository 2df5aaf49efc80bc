"""Judges what keeps the GPUs of pods apart on a cluster, and which way of seats its nodes need. Called by `doctor`.

Reads objects that the API server has: the agents' DaemonSet, nodes and RuntimeClasses. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

Doc = Mapping[str, Any]
Told = tuple[Literal["well", "unknown", "warning", "missing"], str]

SEAT = "volcano-reshape.io/seat"
GPU = "nvidia.com/gpu"
GPU_LABEL = "nvidia.com/gpu.present"  # of the GPU Operator, also where no device plugin runs
SEATS = "RESHAPE_SEATS"
RUNTIME_CLASS = "RESHAPE_RUNTIME_CLASS"
NVIDIA = "nvidia"
CONTAINERD = re.compile(r"containerd://(\d+)\.(\d+)")
KNOWS_CDI = (1, 7)  # an older containerd ignores CDI devices without a word
CDI_BY_DEFAULT = (2, 0)


def judge_seats(
    agents: Doc, settings: Mapping[str, str], nodes: Sequence[Doc], classes: Sequence[Doc]
) -> Iterator[Told]:
    """Yield what is true of seats. `settings`: those of coordinator and launcher; `classes`: the RuntimeClasses."""
    way = settings.get(SEATS, "")
    with_gpus = [node for node in nodes if _has_gpus(node)]
    if way and not _seat_offers(agents):
        yield (
            "missing",
            f"{SEATS} is set, and the agents offer no seats, so no job with GPUs starts: add components/seats, or "
            f"unset {SEATS}.",
        )
        return
    if not way:
        yield (
            "warning" if with_gpus else "unknown",
            "Pods of modes shared and pool can open all GPUs of their node: nothing but our books keeps them apart. "
            "Add components/seats (docs/how-to/gpu-pool.md).",
        )
        return
    without_seats = sorted(_agent_name(node) for node in with_gpus if not _allocatable(node, SEAT))
    offering = sum(_allocatable(node, SEAT) for node in nodes)
    if without_seats:
        yield (
            "missing",
            f"Nodes {', '.join(without_seats)} have GPUs and offer no seats, so no job starts there; the agents' logs "
            "say why, such as a node without control groups v2.",
        )
    if offering:
        yield "well", f"Nodes whose kernel lets pods open their own GPUs only: {offering} (seats by {way})."
    elif not without_seats:
        yield "missing", "No node offers seats, so no job with GPUs starts: look at the agents' logs."
    yield from _judge_way(way, settings, nodes, {_agent_name(each) for each in classes})


def _judge_way(way: str, settings: Mapping[str, str], nodes: Sequence[Doc], classes: set[str]) -> Iterator[Told]:
    versions = {_agent_name(node): _containerd(node) for node in nodes if _has_gpus(node)}
    ignorant = sorted(name for name, version in versions.items() if version is not None and version < KNOWS_CDI)
    if way == "cdi" and ignorant:
        said = f"containerd of nodes {', '.join(ignorant)} is older than 1.7 and ignores CDI devices"
        yield "missing", f"{said}, so that pods see no GPU: set {SEATS}=files."
    asked = [
        name for name, version in versions.items() if version is not None and KNOWS_CDI <= version < CDI_BY_DEFAULT
    ]
    if way == "cdi" and asked:
        said = f"containerd 1.7 of nodes {', '.join(sorted(asked))} needs enable_cdi = true in its configuration"
        yield "unknown", f"{said}; whether it has that cannot be asked."
    if way == "files" and NVIDIA in classes and not settings.get(RUNTIME_CLASS):
        yield (
            "warning",
            f"This cluster has the RuntimeClass {NVIDIA}, so NVIDIA's runtime may not be the default one, and pods get "
            f"no driver: set {RUNTIME_CLASS}={NVIDIA}, or {SEATS}=cdi (GPU Operator 25.10 and newer).",
        )


def _seat_offers(agents: Doc) -> bool:
    containers = ((agents.get("spec") or {}).get("template") or {}).get("spec", {}).get("containers") or []
    return any(variable.get("name") == SEATS for each in containers for variable in each.get("env") or [])


def _allocatable(node: Doc, resource: str) -> bool:
    return str(((node.get("status") or {}).get("allocatable") or {}).get(resource, "0")) != "0"


def _has_gpus(node: Doc) -> bool:
    labels = (node.get("metadata") or {}).get("labels") or {}
    return _allocatable(node, GPU) or labels.get(GPU_LABEL) == "true"


def _containerd(node: Doc) -> tuple[int, int] | None:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    match = CONTAINERD.match(str(info.get("containerRuntimeVersion", "")))
    return None if match is None else (int(match[1]), int(match[2]))


def _agent_name(each: Doc) -> str:
    return str((each.get("metadata") or {}).get("name"))
