"""Writes the initial rows of a store, the shipped profile tables, and registers nodes and their GPUs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.records import ASKED_BACK, UNRESERVED
from coordinator.model.tables import GpuChanges, GpuRow, NodeChanges, plain
from coordinator.ports import Doc, Store

TABLES = Path(__file__).parent.parent / "tables"
WORDS = ("job_type", "gpu_type", "origin")  # columns that are text; all others are numbers


@dataclass(frozen=True)
class FoundGpu:
    """One GPU of a node, found by NVML or emulated."""

    gpu_id: str
    gpu_type: str
    memory_total: int | None  # bytes
    emulated: bool
    problem: str = ""  # why it cannot be used now; empty where it can
    others: str = ""  # who else uses it beside a training of ours
    holder: str | None = None  # of a node with pools: the pod that the kubelet has given it to, or empty


@dataclass(frozen=True)
class FoundNode:
    """One node: its GPUs, and the cores and memory (bytes) that jobs trained on CPU may share."""

    name: str
    gpus: tuple[FoundGpu, ...] = ()
    cores: float = 0.0
    memory: float = 0.0  # 0: not known


def seed_profiles(store: Store) -> None:
    """Insert the shipped rows; existing rows stay, edited or not."""
    for path in sorted(TABLES.glob("*.csv")):
        known = {row["_id"] for row in store.list(path.stem)}
        for row in shipped(path.stem):
            if row["_id"] not in known:
                _insert(store, path.stem, row)


def shipped(table: str) -> list[Doc]:
    """The rows of one shipped table, with their keys."""
    with (TABLES / f"{table}.csv").open(newline="") as file:
        rows = [{k: v if k in WORDS else _number(v) for k, v in row.items()} for row in csv.DictReader(file)]
    keys = ("job_type", "gpu_type", "num_gpus", "iterations")
    return [{"_id": "|".join([*(str(row[k]) for k in keys if k in row), "shipped"]), **row} for row in rows]


def register_nodes(store: Store, nodes: Sequence[FoundNode]) -> None:
    """Register these as the complete list of nodes; missing GPUs are retired as in `register_gpus`."""
    for node in nodes:
        _write_facts(store, node, {"heard": True})
        _add(store, node.name, node.gpus)
    _retire_others(store, {gpu.gpu_id for node in nodes for gpu in node.gpus}, store.list("gpus"))
    for doc in store.list("nodes"):
        if doc["_id"] not in {node.name for node in nodes}:
            store.delete("nodes", doc["_id"])
    for node in nodes:
        if any(not gpu.emulated for gpu in node.gpus):
            _judge(store, node)


def register_node(store: Store, node: FoundNode) -> None:
    """Register one node as its agent reported it; other nodes stay as they are.

    A GPU with a problem is faulty until it is reported without one.
    """
    _write_facts(store, node, {"heard": True, "agent": True})
    register_gpus(store, node.name, node.gpus)
    _judge(store, node)


def _judge(store: Store, node: FoundNode) -> None:
    for gpu in node.gpus:
        if (store.get("gpus", gpu.gpu_id) or {}).get("holder") != gpu.holder:
            store.update("gpus", gpu.gpu_id, {}, {"holder": gpu.holder})
        judge_gpu(store, gpu.gpu_id, gpu.problem)
        if ((store.get("gpus", gpu.gpu_id) or {}).get("others") or "") != gpu.others:
            store.update("gpus", gpu.gpu_id, {}, {"others": gpu.others})


def _write_facts(store: Store, node: FoundNode, more: NodeChanges) -> None:
    """Write what was found of a node; what the launcher (`schedulable`) and operators (`drained`) wrote stays.

    Called before its GPUs are written: a row of one that its node does not list is not believed
    (`coordinator/scheduling/unlisted_gpus.py`).
    """
    gpus = [gpu.gpu_id for gpu in node.gpus]
    facts: NodeChanges = {"cores": node.cores, "memory": node.memory, "gpus": gpus, **more}
    _insert(store, "nodes", {"_id": node.name, **plain(facts)})
    with suppress(Conflict):  # deleted meanwhile: the next report registers it again
        store.update("nodes", node.name, {}, facts)


def forget_node(store: Store, node: str) -> None:
    """Delete a node that is gone and whose GPUs no job has."""
    register_gpus(store, node, ())
    if store.get("nodes", node) is not None:
        store.delete("nodes", node)


def judge_gpu(store: Store, gpu_id: str, problem: str) -> None:
    """Write that a GPU is faulty, or with an empty `problem` that it is well. `Conflict` if it changed meanwhile."""
    doc: GpuRow = store.get("gpus", gpu_id) or {}
    of_pool = str(doc.get("problem") or "").startswith((UNRESERVED, ASKED_BACK))  # judged by `scheduling/pool.py`
    if problem and doc.get("state") is not None and (doc["state"] != s.FAULTY or of_pool):
        changes: GpuChanges = {"state": s.FAULTY, "unhealthy": True, "problem": problem}
        store.update("gpus", gpu_id, {"version": doc.get("version")}, changes)
    elif not problem and doc.get("unhealthy") and not (of_pool and doc.get("holder") is not None):
        changes = {"state": _sound(doc), "unhealthy": False, "problem": ""}
        store.update("gpus", gpu_id, {"version": doc.get("version")}, changes)


def register_gpus(store: Store, node: str, gpus: Sequence[FoundGpu]) -> None:
    """Register a node's GPUs. Known ones keep their state; missing ones are retired."""
    _add(store, node, gpus)
    _retire_others(store, {gpu.gpu_id for gpu in gpus}, store.list("gpus", {"node": node}))


def _add(store: Store, node: str, gpus: Sequence[FoundGpu]) -> None:
    for index, gpu in enumerate(gpus):
        doc: GpuChanges = {
            "_id": gpu.gpu_id,
            "gpu_id": gpu.gpu_id,
            "node": node,
            "index": index,
            "gpu_type": gpu.gpu_type,
            "memory_total": gpu.memory_total,
            "emulated": gpu.emulated,
            "state": s.IDLE,
            "job_id": None,
            "worker_id": None,
            "held_by": None,
            "version": 1,
        }
        if gpu.holder is not None:  # until a reservation of ours is known to hold it
            doc |= {"holder": gpu.holder, "pool": "", "state": s.FAULTY, "unhealthy": True, "problem": UNRESERVED}
        _insert(store, "gpus", plain(doc))
        _bring_back(store, gpu.gpu_id)
        _follow(store, gpu.gpu_id, node, index)


def _retire_others(store: Store, present: Set[str], rows: Iterable[GpuRow]) -> None:
    for doc in rows:
        if doc["_id"] not in present:
            _retire(store, doc)


def _retire(store: Store, doc: GpuRow) -> None:
    """Delete an unused GPU; a used one is faulty until its job releases it."""
    try:
        store.delete("gpus", doc["_id"], {"job_id": None, "held_by": None})
    except Conflict:
        store.update("gpus", doc["_id"], {"version": doc.get("version")}, {"state": s.FAULTY, "retired": True})


def _bring_back(store: Store, gpu_id: str) -> None:
    """Restore a GPU that was retired while in use and is back."""
    doc = store.get("gpus", gpu_id)
    if doc is not None and doc.get("retired"):
        store.update(
            "gpus", gpu_id, {"version": doc.get("version")}, {"state": _sound(doc), "retired": False, "problem": ""}
        )


def _sound(doc: GpuRow) -> str:
    """The state of a GPU that is no longer faulty."""
    job, held_by = doc.get("job_id"), doc.get("held_by")
    return s.IDLE if job is None else s.IN_USE if job == held_by else s.RESERVED


def _follow(store: Store, gpu_id: str, node: str, index: int) -> None:
    """Update node and index of a GPU whose machine was renamed, unless a job has it: then after its release."""
    doc: GpuRow = store.get("gpus", gpu_id) or {}
    if (doc.get("node"), doc.get("index")) != (node, index):
        with suppress(Conflict):
            store.update("gpus", gpu_id, {"job_id": None, "held_by": None}, {"node": node, "index": index})


def _insert(store: Store, table: str, doc: Doc) -> None:
    try:
        store.insert(table, doc)
    except Conflict:
        return


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() else value
