"""Gates pods until their sidecar is in them, or until it is decided where they start. Pure.

The pods of a Volcano Job get their gate once, at its admission, so that a pod may be made while no launcher is there.

A pod that opted in must not start without its sidecar: it would see every GPU. So the template of its Volcano Job gets
a scheduling gate, which the webhook takes off each pod as it injects it. While no launcher answers, Volcano makes pods
all the same, and they wait with their gate, where before the API server refused them until Volcano gave the job up.
The launcher replaces such pods once it is back (`launcher/cluster/controllers/gated_pods.py`). Called by `webhook`.

A batch Job's pod and a bare pod get another gate as they are injected: their schedulers, unlike Volcano with a Volcano
Job, do not ask the coordinator whether they may start. The launcher takes it off, and pins the pod to its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.names import GATE, JOB, NODE_GATE, WAITS

Doc = dict[str, Any]


def has_gate(spec: Mapping[str, Any]) -> bool:
    """True if a pod with this spec waits for the webhook."""
    return any(gate.get("name") == GATE for gate in spec.get("schedulingGates") or [])


def waits_for_node(spec: Mapping[str, Any]) -> bool:
    """True if a pod with this spec waits until it is decided where it starts."""
    return any(gate.get("name") == NODE_GATE for gate in spec.get("schedulingGates") or [])


def with_node_gate(spec: Mapping[str, Any]) -> Doc:
    """Return the spec of a pod that waits until it is decided where it starts."""
    return {**spec, "schedulingGates": [*(spec.get("schedulingGates") or []), {"name": NODE_GATE}]}


def without_gate(spec: Mapping[str, Any]) -> Doc:
    """Return the spec of a pod without our gate; those of others stay."""
    left = [gate for gate in spec.get("schedulingGates") or [] if gate.get("name") != GATE]
    rest = {name: value for name, value in spec.items() if name != "schedulingGates"}
    return {**rest, "schedulingGates": left} if left else rest


def gated_job(job: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> Doc:
    """Return the Volcano Job with a gate in the template of each task.

    `old`: what it was before an update. Volcano refuses changed templates, so those that had a gate keep it, also when
    their user applies the file again, and no others get one.
    """
    spec = job.get("spec") or {}
    tasks = spec.get("tasks") or []
    if not tasks:
        return dict(job)
    had = [_template_has_gate(task) for task in ((old or {}).get("spec") or {}).get("tasks") or []]
    wanted = [True] * len(tasks) if old is None else [*had, *[False] * len(tasks)]
    made = [_gated_task(task) if gate else task for task, gate in zip(tasks, wanted, strict=False)]
    return {**job, "spec": {**spec, "tasks": made}}


def _template_has_gate(task: Mapping[str, Any]) -> bool:
    return has_gate((task.get("template") or {}).get("spec") or {})


def _gated_task(task: Mapping[str, Any]) -> Doc:
    """Return the task with our gate, and a label by which the launcher sees its pods."""
    template = task.get("template") or {}
    meta = template.get("metadata") or {}
    spec = template.get("spec") or {}
    gates = spec.get("schedulingGates") or []
    if not has_gate(spec):
        spec = {**spec, "schedulingGates": [*gates, {"name": GATE}]}
    labels = {JOB: WAITS, **(meta.get("labels") or {})}
    return {**task, "template": {**template, "metadata": {**meta, "labels": labels}, "spec": spec}}
