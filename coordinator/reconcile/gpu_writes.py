"""Writes the GPUs of one step of an operation in one round trip to the store.

Each row changes under its own compare-and-set, as if it were written alone, and none relies on another one: whatever a
crash or an error leaves of them, `next_step` goes on from it. Called by the reconciler.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from coordinator.errors import Transient
from coordinator.model.records import GpuRecord
from coordinator.model.tables import plain
from coordinator.reconcile.actions import Step, WriteGpu
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.observed_state import ObservedState
from coordinator.stores.cache import Cache


def together(observed: ObservedState, step: Step) -> list[WriteGpu]:
    """The writes of GPUs that follow each other under one name, if each of them succeeds."""
    steps: list[WriteGpu] = []
    while isinstance(step, WriteGpu) and (not steps or step.name == steps[0].name):
        steps.append(step)
        after = GpuRecord({**observed.gpus[step.gpu].doc, **step.changes})
        observed = replace(observed, gpus={**observed.gpus, step.gpu: after})
        step = next_step(observed)
    return steps


def write_together(cache: Cache, gpus: Mapping[str, GpuRecord], steps: Sequence[WriteGpu]) -> list[GpuRecord]:
    """The rows that were written; the others have changed meanwhile and were read again."""
    pairs = [(plain(gpus[step.gpu].doc), step) for step in steps]
    if len(steps) == 1 or not all(isinstance(doc.get("version"), int) for doc, _ in pairs):
        return [cache.write_gpu(gpus[step.gpu], step.expect, step.changes) for step in steps]
    named = {"last_op": f"gpus:{secrets.token_hex(8)}"}  # by it a write whose reply was lost is recognised
    # With the version in the filter, the rows that result are known without reading them.
    updates = [
        (doc["_id"], {**step.expect, "version": doc["version"]}, {**step.changes, **named}) for doc, step in pairs
    ]
    with suppress(Transient):  # whether they were written shows below
        if cache.store.update_many("gpus", updates) == len(updates):
            return [
                cache.take_gpu({**doc, **changes, "version": doc["version"] + 1})
                for (doc, _), (_, _, changes) in zip(pairs, updates, strict=True)
            ]
    read = [row for doc, _ in pairs if (row := cache.store.get("gpus", doc["_id"])) is not None]
    return [gpu for gpu in map(cache.take_gpu, read) if gpu.doc.get("last_op") == named["last_op"]]
