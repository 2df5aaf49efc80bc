"""Builds the nodes of `reshape up`: this machine with its GPUs, or emulated nodes on it.

Called by `up` before it starts anything. Raises `Rejected` with a sentence that says how to write nodes.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Collection, Sequence

from coordinator.errors import Rejected
from coordinator.model import fields
from coordinator.stores.bootstrap import FoundGpu, FoundNode

GPUS = re.compile(r"([1-9][0-9]{0,4})x([A-Za-z0-9][A-Za-z0-9._-]{0,31})")
NODE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,62})=(?:cpu:([0-9]{1,5}(?:\.[0-9]{1,3})?)|(.*))")
EMULATED_MEMORY = 16 * 2**30


def inventory(gpus: str | None, nodes: Sequence[str] = ()) -> list[FoundNode]:
    """Return the nodes of `--node`, or this machine with the GPUs of `--gpus` or those that NVML finds."""
    if gpus is not None and nodes:
        raise Rejected("Give either --gpus or --node, one --node for each node.")
    if not nodes:
        return [this_machine(_by_nvml() if gpus is None else _emulated(gpus, "--gpus must be"))]
    found = [_node(text) for text in nodes]
    if again := sorted({n.name for n in found if sum(m.name == n.name for m in found) > 1}):
        raise Rejected(f"--node {again[0]} is given twice: give each node a name of its own.")
    return found


def check_types(nodes: Sequence[FoundNode], known: Collection[str]) -> None:
    """Raise `Rejected` for an emulated GPU type without profiles; real types come from NVML."""
    for gpu in [gpu for node in nodes for gpu in node.gpus if gpu.emulated]:
        if why := fields.unknown_gpu_type(gpu.gpu_type, known):
            end = "" if why.endswith("?") else "."
            raise Rejected(f"{why[0].upper()}{why[1:]}{end} GPUs to emulate are a number and a type, such as 4xV100.")


def _node(text: str) -> FoundNode:
    match = NODE.fullmatch(text)
    if match is None or (match[2] is not None and float(match[2]) == 0) or (match[3] or "").startswith("cpu:"):
        raise Rejected(
            f"--node must be a name and what the node has, such as a=8xV100 or c=cpu:2 (cores), not {text!r}."
        )
    name, cores, gpus = match.groups()
    if cores is not None:
        return FoundNode(name, cores=float(cores), memory=float(_memory()))
    return FoundNode(name, tuple(_emulated(gpus, f"--node {name}= must be followed by", f"{name}-")))


def _emulated(text: str, what: str, prefix: str = "") -> list[FoundGpu]:
    match = GPUS.fullmatch(text)
    if match is None:
        raise Rejected(f"{what} a number and a type, such as 4xV100, not {text!r}.")
    count, kind = int(match[1]), match[2]
    return [FoundGpu(f"EMULATED-{prefix}{kind}-{i}", kind, EMULATED_MEMORY, True) for i in range(count)]


def this_machine(gpus: Sequence[FoundGpu]) -> FoundNode:
    """Return this machine under its own name; jobs trained on CPU share the cores that this process may use."""
    return FoundNode(socket.gethostname(), tuple(gpus), float(len(os.sched_getaffinity(0))), float(_memory()))


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _by_nvml() -> list[FoundGpu]:
    from sidecar.resources.gpus import list_gpus, short_type

    found = [FoundGpu(g.gpu_id, short_type(g.gpu_type), g.memory, False) for g in list_gpus()]
    if not found:
        raise Rejected("No NVIDIA GPU was found on this machine; to emulate some, give --gpus 4xV100.")
    return found


def in_words(nodes: Sequence[FoundNode]) -> str:
    """Describe the nodes for the line that reports that all services are up."""
    parts = [_has(node) + (f" on {node.name}" if len(nodes) > 1 else "") for node in nodes]
    return ", ".join(parts)


def _has(node: FoundNode) -> str:
    if not node.gpus:
        return f"{node.cores:g} emulated core{'s' * (node.cores != 1)}"
    first, count = node.gpus[0], len(node.gpus)
    return f"{count} {'emulated ' if first.emulated else ''}{first.gpu_type} GPU{'s' * (count != 1)}"
