"""Keeps a local copy of Pods, Volcano Jobs and Queues by watches of the API server.

Promises: the copy was true a moment ago or `in_step` is False; a watch that ends goes on where it was, one that
expires, fails or falls silent is restarted from a fresh list; where a kind is no longer served the copy is kept, out of
step, as that proves nothing about its objects; the last state of a pod that vanished is kept until `looked_at` is
called, because it may be the only proof that a trainer has ended. Lists come page by page, and of each object only what
is read is kept, since a cluster may have many. Read by `launch_service.py`; each watch is one thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from coordinator.errors import ReshapeError
from launcher.cluster.api import Doc, Expired, KubernetesApi, NoSuchKind
from launcher.cluster.pods.pod_state import Pod

WATCH_S = 20  # so late a dead connection is noticed
WATCHES = 15  # then a fresh list, which repairs whatever a watch missed
PAUSE_S = 1.0
LOOK_AGAIN_S = 10.0  # whether a kind that the cluster does not have has been installed
VANISHED = (
    "The API server no longer serves the kind {kind}, which was there. That does not prove that such objects are gone, "
    "so nothing is started, changed or cancelled until it is back. If it was removed for good: "
    "kubectl -n reshape-system rollout restart deployment/reshape-launcher"
)
MOST_VANISHED = 1000  # older ones are dropped: a launcher that stands by reads none

log = logging.getLogger(__name__)


class Changes:
    """Collects what has changed since the last `take`, for one reader: a turn need not look at all that is there.

    A reader that takes nothing, as on a launcher that stands by, costs no more than what is there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed: dict[str, Doc | None] = {}
        self._taken: set[str] = set()  # uids that the reader knows of

    def note(self, changed: Mapping[str, Doc | None]) -> None:
        with self._lock:
            for uid, item in changed.items():
                if item is None and uid not in self._taken:
                    self._changed.pop(uid, None)
                else:
                    self._changed[uid] = item

    def take_objects(self) -> dict[str, Doc | None]:
        """Return the objects that have come or changed, by uid; None for one that is gone."""
        with self._lock:
            changed = self._changed
            self._changed = {}
            for uid, item in changed.items():
                if item is None:
                    self._taken.discard(uid)
                else:
                    self._taken.add(uid)
        return changed


class Informer:
    """The objects of one kind, of one namespace or (None) of all."""

    def __init__(
        self,
        cluster: KubernetesApi,
        kind: str,
        namespace: str | None,
        labels: str | None,
        changed: Callable[[], None],
        shortened: Callable[[Doc], Doc] = dict,
    ) -> None:
        """`shortened`: returns what is to be kept of an object, its metadata at least."""
        self._cluster, self.kind, self._namespace, self._labels = cluster, kind, namespace, labels
        self._changed = changed
        self._shortened = shortened
        self._readers: list[Changes] = []
        self._lock = threading.Lock()
        self._items: dict[str, Doc] = {}
        self._vanished: dict[str, Pod] = {}
        self._stopping = threading.Event()
        self._tries = 0  # to list since it last succeeded
        self.in_step = False
        """Whether a list has been read since the last trouble."""
        self.known = False
        """Whether one has ever been read."""
        self.absent = False
        """Whether the cluster does not have this kind, and did not have it since this was started."""
        self.trouble = ""
        """Why it is out of step, as a sentence, where a user can do something about it."""

    def items(self) -> dict[str, Doc]:
        """Return the objects by uid."""
        with self._lock:
            return dict(self._items)

    def changes(self) -> Changes:
        """Return a log of changes for one reader, who must take from it. It begins with all that is there."""
        log_of_reader = Changes()
        with self._lock:
            self._readers.append(log_of_reader)
            log_of_reader.note(self._items)
        return log_of_reader

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
                self._list_and_follow()
            except Expired:
                log.info("the watch of %s has expired; listing again", self.kind)
            except NoSuchKind:
                self._note_no_such_kind()
            except ReshapeError as error:
                if self.in_step or self._tries == 0:
                    log.warning("%s; listing %s until it answers again", error, self.kind)
                self._tries, self.in_step = self._tries + 1, False
                self._stopping.wait(PAUSE_S)
            except Exception:  # a watch must never end for good
                self.in_step = False
                log.exception("the watch of %s", self.kind)
                self._stopping.wait(PAUSE_S)

    def _note_no_such_kind(self) -> None:
        """Note that the API server does not serve this kind: it never did, or does no longer."""
        if not self.known:
            if not self.absent:
                log.warning("this cluster has no kind %s: it is not watched until it is installed", self.kind)
            self.absent = True
            self._changed()
            self._stopping.wait(LOOK_AGAIN_S)
            return
        self.trouble = VANISHED.format(kind=self.kind)
        if self.in_step:
            log.warning("%s", self.trouble)
        self.in_step = False
        self._stopping.wait(PAUSE_S)

    def _list_and_follow(self) -> None:
        since = self._read()
        for _ in range(WATCHES):
            if not self._stopping.is_set():
                since = self._follow(since)

    def _read(self) -> str:
        new: dict[str, Doc] = {}
        version = ""
        for page in self._cluster.pages(self.kind, self._namespace, self._labels):
            new |= {str(item["metadata"]["uid"]): self._kept_part(item) for item in page.items}
            version = page.version
        with self._lock:
            old = self._items
            for uid, item in old.items():
                if uid not in new and self.kind == "Pod":  # what it was last is not known
                    self._keep(uid, Pod(item, deleted=True, sure=False))
            self._items = new
        self._note(dict.fromkeys(old.keys() - new.keys()))  # first: another may have the name of one that is gone
        self._note({uid: item for uid, item in new.items() if item != old.get(uid)})
        self._tries = 0
        self.in_step = True
        self.known = True
        self.absent = False
        self.trouble = ""
        self._changed()
        return version

    def _follow(self, since: str) -> str:
        """Take changes until the watch ends; return the version from which the next one goes on."""
        for event, item in self._cluster.watch(self.kind, since, WATCH_S, self._namespace, self._labels):
            since = str(item["metadata"].get("resourceVersion") or since)
            if self._stopping.is_set():
                return since
            if event != "BOOKMARK":
                self._take(event, self._kept_part(item))
                self._changed()
        return since

    def _kept_part(self, item: Doc) -> Doc:
        item["metadata"].pop("managedFields", None)  # nobody reads them, and they are large
        return self._shortened(item)

    def _take(self, event: str, item: Doc) -> None:
        uid = str(item["metadata"]["uid"])
        gone = event == "DELETED"
        with self._lock:
            if gone:
                self._items.pop(uid, None)
                if self.kind == "Pod":
                    self._keep(uid, Pod(item, deleted=True))
            else:
                self._items[uid] = item
        self._note({uid: None if gone else item})

    def _note(self, changed: Mapping[str, Doc | None]) -> None:
        for reader in self._readers:
            reader.note(changed)

    def _keep(self, uid: str, last: Pod) -> None:
        self._vanished[uid] = last
        while len(self._vanished) > MOST_VANISHED:
            del self._vanished[next(iter(self._vanished))]
