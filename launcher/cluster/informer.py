"""Keeps a local copy of Pods, Volcano Jobs and Queues by watches of the API server.

Promises: the copy was true a moment ago or `in_step` is False; a watch that expires, fails or falls silent is
restarted from a fresh list; the last state of a pod that vanished is kept until `looked_at` is called, because it
may be the only proof that a trainer has ended. Read by `launch_service.py`; each watch is one thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from coordinator.errors import Rejected, ReshapeError
from launcher.cluster.api import Doc, Expired, KubernetesApi
from launcher.cluster.pods.pod_state import Pod

WATCH_S = 20  # then from a fresh list, which repairs whatever a watch missed
PAUSE_S = 1.0
MOST_VANISHED = 1000  # older ones are dropped: a launcher that stands by reads none

log = logging.getLogger(__name__)


class Informer:
    """The objects of one kind, of one namespace or (None) of all."""

    def __init__(
        self, cluster: KubernetesApi, kind: str, namespace: str | None, labels: str | None, changed: Callable[[], None]
    ) -> None:
        self._cluster, self.kind, self._namespace, self._labels = cluster, kind, namespace, labels
        self._changed = changed
        self._lock = threading.Lock()
        self._items: dict[str, Doc] = {}
        self._vanished: dict[str, Pod] = {}
        self._stopping = threading.Event()
        self._tries = 0  # to list since it last succeeded
        self.in_step = False
        """Whether a list has been read since the last trouble."""
        self.known = False
        """Whether one has ever been read."""

    def items(self) -> dict[str, Doc]:
        """Return the objects by uid."""
        with self._lock:
            return dict(self._items)

    def vanished(self) -> dict[str, Pod]:
        """Return the pods that have vanished, by uid, in their last state."""
        with self._lock:
            return dict(self._vanished)

    def looked_at(self, uids: Iterable[str]) -> None:
        """Drop these vanished pods: the caller has stored what their last state proves."""
        with self._lock:
            for uid in uids:
                self._vanished.pop(uid, None)

    def start(self) -> None:
        threading.Thread(target=self.run, name=f"watch {self.kind}", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end: at its next change or at the end of its watch."""
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow(self._read())
            except Expired:
                log.info("the watch of %s has expired; listing again", self.kind)
            except ReshapeError as error:
                if self.in_step or self._tries == 0:
                    log.warning("%s; listing %s until it answers again", _lacks(error, self.kind) or error, self.kind)
                self._tries, self.in_step = self._tries + 1, False
                self._stopping.wait(PAUSE_S)
            except Exception:  # a watch must never end for good
                self.in_step = False
                log.exception("the watch of %s", self.kind)
                self._stopping.wait(PAUSE_S)

    def _read(self) -> str:
        seen = self._cluster.list(self.kind, self._namespace, self._labels)
        new = {str(item["metadata"]["uid"]): item for item in seen.items}
        with self._lock:
            for uid, item in self._items.items():
                if uid not in new and self.kind == "Pod":  # what it was last is not known
                    self._keep(uid, Pod(item, deleted=True, sure=False))
            self._items = new
        self._tries, self.in_step, self.known = 0, True, True
        self._changed()
        return seen.version

    def _follow(self, since: str) -> None:
        for event, item in self._cluster.watch(self.kind, since, WATCH_S, self._namespace, self._labels):
            if self._stopping.is_set():
                return
            if event != "BOOKMARK":
                self._take(event, item)
                self._changed()

    def _take(self, event: str, item: Doc) -> None:
        uid = str(item["metadata"]["uid"])
        with self._lock:
            if event == "DELETED":
                self._items.pop(uid, None)
                if self.kind == "Pod":
                    self._keep(uid, Pod(item, deleted=True))
            else:
                self._items[uid] = item

    def _keep(self, uid: str, last: Pod) -> None:
        self._vanished[uid] = last
        while len(self._vanished) > MOST_VANISHED:
            del self._vanished[next(iter(self._vanished))]


def _lacks(error: ReshapeError, kind: str) -> str:
    """Return what to do if the server lacks this kind: its own message is only `Not Found`."""
    absent = isinstance(error, Rejected) and error.status == 404
    return f"this cluster has no kind {kind}: apply its CustomResourceDefinition" if absent else ""
