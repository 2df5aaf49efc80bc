"""Pods, Volcano Jobs and Queues as the API server shows them, kept by watches.

Promises: what is here was true a moment ago or `in_step` is False; a watch that expires, fails or falls silent is
begun again from a fresh list; the last state of a pod that vanished is kept until somebody has looked at it,
because it may be the only proof that a trainer has ended. Read by `service.py`; each watch is one thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from coordinator.errors import Rejected, ReshapeError
from launcher.cluster.api import Doc, Expired, KubernetesApi
from launcher.cluster.pods.pod_state import Pod

WATCH_S = 20  # then from a fresh list: what was missed, whatever the reason, is mended by then
PAUSE_S = 1.0
MOST_VANISHED = 1000  # of those that are older nothing is certain: a launcher that stands by looks at none

log = logging.getLogger(__name__)


class Informer:
    """One kind of objects, of one namespace or (None) of all."""

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
        """By uid."""
        with self._lock:
            return dict(self._items)

    def vanished(self) -> dict[str, Pod]:
        """By uid: pods that were seen and are there no more."""
        with self._lock:
            return dict(self._vanished)

    def looked_at(self, uids: Iterable[str]) -> None:
        """What was to be learned from these is written down."""
        with self._lock:
            for uid in uids:
                self._vanished.pop(uid, None)

    def start(self) -> None:
        threading.Thread(target=self.run, name=f"watch {self.kind}", daemon=True).start()

    def stop(self) -> None:
        """It ends at the next change or at the end of its watch, and says nothing more."""
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
    """The API server's own word for a kind that it does not have is `Not Found`."""
    absent = isinstance(error, Rejected) and error.status == 404
    return f"this cluster has no kind {kind}: apply its CustomResourceDefinition" if absent else ""
