"""Tells the owners of pods in our queues that are not reshaped that they run as they are.

The webhook does not see most of them: it is asked by a label that only Volcano's Jobs write, and others name their
queue in an annotation. Volcano gives each of them a PodGroup, which says queue and owner. Promises: one Event for each
owner; nothing else is changed. Called by `launch_service.py`, in its one thread.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from launcher.admission.kinds import controller_of, is_batch_job, is_volcano_job, left_alone
from launcher.cluster.api import KubernetesApi
from launcher.cluster.event_writer import EventWriter
from launcher.cluster.informer import Informer
from launcher.names import JOB

Doc = dict[str, Any]

OVER = frozenset({"Completed", "Failed"})


class OtherKinds:
    """`turn` looks at each PodGroup once, and at all again after a change of the labelled queues."""

    def __init__(self, cluster: KubernetesApi, events: EventWriter, groups: Sequence[Informer]) -> None:
        """`groups`: the PodGroups, which the caller watches."""
        self._cluster = cluster
        self._events = events
        self._groups = groups
        self._changes = [informer.changes() for informer in groups]
        self._seen: set[str] = set()
        self._left: dict[str, Mapping[str, Any] | None] = {}  # what has changed and was not looked at
        self._queues: frozenset[str] = frozenset()

    def turn(self, queues: Collection[str], reshaped: Collection[str] = ()) -> None:
        """`queues`: names of the labelled ones; `reshaped`: uids of the batch Jobs and bare pods that are known to have
        asked for it. Without the right to see PodGroups nobody is told."""
        if not all(informer.in_step for informer in self._groups):
            return
        for log in self._changes:
            self._left |= log.take_objects()
        if self._queues != frozenset(queues):
            self._queues = frozenset(queues)
            self._seen = set()
            for informer in self._groups:
                self._left |= informer.items()
        for uid, group in sorted(self._left.items()):
            if group is None:
                self._seen.discard(uid)
            elif uid not in self._seen:
                self._look(group, reshaped)
                self._seen.add(uid)
            del self._left[uid]

    def _look(self, group: Mapping[str, Any], reshaped: Collection[str]) -> None:
        meta = group["metadata"]
        queue = str((group.get("spec") or {}).get("queue") or "default")
        owners = meta.get("ownerReferences") or []
        phase = (group.get("status") or {}).get("phase")
        if queue not in self._queues or not owners or any(map(is_volcano_job, owners)) or phase in OVER:
            return
        owner = controller_of(owners) or {}
        if owner.get("uid") in reshaped or self._is_reshaped(owner, meta.get("namespace")):
            return
        about = {
            "apiVersion": owner.get("apiVersion"),
            "kind": owner.get("kind"),
            "metadata": {"name": owner["name"], "namespace": meta.get("namespace"), "uid": owner.get("uid")},
        }
        sentence = left_alone(owners, meta.get("labels"), queue)
        self._events.write(about, "NotReshaped", sentence, warning=True)

    def _is_reshaped(self, owner: Mapping[str, Any], namespace: str | None) -> bool:
        """True for a batch Job or bare pod that asked for it. Asks the API server about one that is not known to have:
        watches may be behind each other."""
        kind = "BatchJob" if is_batch_job(owner) else "Pod" if owner.get("kind") == "Pod" else None
        found = self._cluster.get(kind, str(owner["name"]), namespace) if kind else None
        return found is not None and JOB in (found["metadata"].get("labels") or {})
