"""Makes and removes the pods that hold GPUs for trainings, as table `placeholders` asks, and tells what became of them.

Promises: a row without its pod is answered by a pod, a pod without its row by a row, so that neither a lost store nor
a new launcher loses a placeholder; a pod is removed only if its row asks for that, which the coordinator writes once
no training uses its GPU; all rows are as the watch has them when the mark in table `pool` is renewed. What the API
server refuses, a quota above all, stands in the row as a sentence. Called by `launch_service.py` at each turn.
"""

from __future__ import annotations

import http.client
import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from coordinator.errors import Conflict, Fatal, Rejected
from coordinator.model.tables import PlaceholderChanges, PlaceholderRow, plain
from coordinator.ports import Clock, Store
from launcher.admission.inject import PodSettings
from launcher.cluster.api import KubernetesApi
from launcher.cluster.informer import Informer
from launcher.cluster.pods import placeholder_pods
from launcher.cluster.pods.foreign_usage import ForeignUsage
from launcher.cluster.pods.pod_state import Pod
from launcher.names import DEVICES, PLACEHOLDER
from sidecar import placeholder

Doc = dict[str, Any]

TABLE = "placeholders"
SEEN = "seen"
POOL = "pool"  # device mode of a queue
AGAIN_S = 5.0  # until a pod that was refused is tried again, and until one that was made must have been seen
REMOVE_AGAIN_S = 2.0
CALLS = 4  # at once
CALL_S = 2.0  # for each
LAST_S = 1  # grace period of a pod that is no longer needed: it ignores SIGTERM

FORBIDDEN = re.compile(r'^pods "[^"]*" is forbidden: ')  # each pod has another name, and they are one reason

log = logging.getLogger(__name__)


class PlaceholderController:
    """`start` begins its watches, `stop` ends them."""

    def __init__(
        self,
        store: Store,
        cluster: KubernetesApi,
        clock: Clock,
        settings: PodSettings,
        master_key: bytes,
        foreign: ForeignUsage,
        namespaces: tuple[str, ...],
        groups: Sequence[Informer],
        wake: Callable[[], None],
    ) -> None:
        """`groups`: the PodGroups, which the caller watches."""
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._settings = settings
        self._master_key = master_key
        self._foreign = foreign
        self._calls = ThreadPoolExecutor(CALLS, "release")
        within = namespaces or (None,)
        self._pods = [Informer(cluster, "Pod", namespace, PLACEHOLDER, wake) for namespace in within]
        self._groups = groups
        self._changes = [informer.changes() for informer in groups]
        self._waits_by_group: dict[str, Doc] = {}  # by uid
        self._our_groups: dict[str, Doc] = {}  # metadata by uid
        self._tried: dict[str, float] = {}  # when a pod of each row was made, or asked to be removed, last
        self._written: object = None

    def start(self) -> None:
        for informer in self._pods:
            informer.start()

    def stop(self) -> None:
        for informer in self._pods:
            informer.stop()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def turn(self, queues: Mapping[str, Doc]) -> None:
        """Bring pods and rows together. `queues`: Volcano's, by name."""
        self._note_groups()
        if not all(informer.in_step for informer in self._pods):
            return
        pods = {pod.name: pod for informer in self._pods for pod in map(Pod, informer.items().values())}
        if not pods and not any(_is_pool(queue) for queue in queues.values()):
            return
        rows: dict[str, PlaceholderRow] = {str(row["_id"]): row for row in self._store.list(TABLE)}
        changed = False
        for name in sorted({*rows, *pods}):
            changed |= self._bring_together(rows.get(name), pods.get(name))
        known = {*rows, *pods, *(pod.uid for pod in pods.values())}
        self._tried = {name: at for name, at in self._tried.items() if name in known}
        self._remove_groups({str(row["group"]) for row in rows.values()})
        self._renew_mark(changed)

    def _bring_together(self, row: PlaceholderRow | None, pod: Pod | None) -> bool:
        """Bring one row and its pod together; True if the row has changed."""
        if row is None:
            return pod is not None and self._write_row_of(pod)
        if pod is None:
            return (
                self._make_pod(row) if row.get("pod") is None and row.get("wanted") == "hold" else self._delete_row(row)
            )
        if pod.finished or row.get("wanted") == "release":
            self._remove_pod(pod)
        return self._update_row(row, placeholder_pods.seen(pod))

    def _write_row_of(self, pod: Pod) -> bool:
        """Write the row of a pod that has none: the store was lost, or the row was removed too early."""
        if pod.leaving:
            return False
        log.info("placeholder %s/%s had no row; it is written again", pod.namespace, pod.name)
        self._store.put(TABLE, {**placeholder_pods.row_of(pod), **plain(placeholder_pods.seen(pod))})
        return True

    def _make_pod(self, row: PlaceholderRow) -> bool:
        name = str(row["_id"])
        now = self._clock.now()
        if now - self._tried.get(name, float("-inf")) < AGAIN_S:
            return False
        self._tried[name] = now
        try:
            pod = placeholder_pods.pod_of(row, self._settings, self._master_key)
            for doc in (placeholder_pods.pod_group_of(row, self._settings), pod):
                with suppress(Conflict):  # there already
                    self._cluster.create(doc)
        except (Rejected, Fatal) as refusal:
            return self._update_row(row, {"failure": _words_of(refusal)})
        return self._update_row(row, {"failure": None})

    def _delete_row(self, row: PlaceholderRow) -> bool:
        """Delete the row of a pod that is gone, or that is no longer wanted."""
        with suppress(Conflict):
            self._store.delete(TABLE, row["_id"])
        return True

    def _remove_pod(self, pod: Pod) -> None:
        """Delete the pod. One that is being deleted is told to end: no kubelet shortens a grace that has begun."""
        now = self._clock.now()
        if now - self._tried.get(pod.uid, float("-inf")) < REMOVE_AGAIN_S:
            return
        self._tried[pod.uid] = now
        address = pod.status.get("podIP")
        if pod.leaving and address and not pod.finished:
            self._calls.submit(tell_to_end, str(address), placeholder.word_of(self._master_key, pod.name))
        else:
            self._cluster.delete("Pod", pod.name, pod.namespace, pod.uid, grace_s=LAST_S)

    def _update_row(self, row: PlaceholderRow, changes: PlaceholderChanges) -> bool:
        new: PlaceholderChanges = {field: value for field, value in changes.items() if row.get(field) != value}
        if not new:
            return False
        with suppress(Conflict):  # deleted meanwhile
            self._store.update(TABLE, row["_id"], {}, new)
        return True

    def _note_groups(self) -> None:
        """Take what has changed: a cluster may have many PodGroups, of which few wait or are ours."""
        for uid, group in [entry for log in self._changes for entry in log.take_objects().items()]:
            self._waits_by_group.pop(uid, None)
            self._our_groups.pop(uid, None)
            if group is None:
                continue
            if wait := placeholder_pods.wait_of_group(group):
                self._waits_by_group[uid] = wait
            if PLACEHOLDER in (group["metadata"].get("labels") or {}):
                self._our_groups[uid] = group["metadata"]

    def _remove_groups(self, wanted: set[str]) -> None:
        if not all(informer.in_step for informer in self._groups):
            return
        for uid, meta in self._our_groups.items():
            if meta["labels"][PLACEHOLDER] not in wanted and "deletionTimestamp" not in meta:
                self._cluster.delete("PodGroup", meta["name"], meta.get("namespace"), uid)

    def _renew_mark(self, changed: bool) -> None:
        """Renew the mark by which the coordinator sees that something has changed, with what others wait for."""
        of_groups = sorted(self._waits_by_group.values(), key=lambda wait: str(wait["name"]))
        waits = [*self._foreign.waiting_for_gpus(), *of_groups]
        if not changed and waits == self._written and self._store.get("pool", SEEN) is not None:
            return
        self._store.put("pool", {"_id": SEEN, "mark": uuid.uuid4().hex, "waits": waits})
        self._written = waits


def tell_to_end(address: str, word: str) -> None:
    """Let the process of a placeholder pod end."""
    connection = http.client.HTTPConnection(address, placeholder.PORT, timeout=CALL_S)
    try:
        connection.request("POST", placeholder.PATH, headers={placeholder.WORD: word})
        connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        log.info("placeholder at %s does not answer (%s); it is told again", address, error)
    finally:
        connection.close()


def _is_pool(queue: Mapping[str, Any]) -> bool:
    return bool((queue["metadata"].get("annotations") or {}).get(DEVICES) == POOL)


def _words_of(refusal: Exception) -> str:
    """Return the API server's own words, without what our client puts before them."""
    said = str(refusal)
    _, found, rest = said.partition("): ")
    said = rest if found and said.startswith("the API server refuses this account") else said
    return FORBIDDEN.sub("", said)
