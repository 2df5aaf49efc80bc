"""Elects one acting coordinator (or launcher) per store, by compare-and-set on one document.

Election only saves work: safety comes from versions and generations. Only locally observed time counts: a successor
takes the term after seeing it unchanged for T(1 + drift), or at once if the holder's process on this machine is gone.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from coordinator.config import CLOCK_DRIFT
from coordinator.errors import Conflict
from coordinator.ports import Clock, Doc, Store

TERM = "coordinator"


@dataclass(frozen=True)
class Holder:
    """The identity of a process, by which another one on its machine can check that it still lives."""

    machine: str  # boot id and PID namespace
    pid: int
    started: str  # clock ticks after boot at which the process began

    @classmethod
    def of_process(cls, pid: int) -> Holder:
        """Raises OSError if there is no such process."""
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if stat[0] in "ZX":
            raise ProcessLookupError(f"process {pid} has ended")
        boot, space = Path("/proc/sys/kernel/random/boot_id").read_text().strip(), Path("/proc/self/ns/pid").readlink()
        return cls(f"{boot} {space}", pid, stat[19])

    def as_doc(self) -> Doc:
        return {"machine": self.machine, "pid": self.pid, "started": self.started}


class Elector:
    """Call `try_to_lead` periodically, from any thread; it is free while the term is younger than T/3."""

    def __init__(self, store: Store, clock: Clock, term_s: float, me: Holder, term: str = TERM) -> None:
        """`term`: the contended document, one for each kind of process."""
        self._store, self._clock, self.term_s, self._me, self._term = store, clock, term_s, me, term
        self._seen: tuple[object, float] = (None, 0.0)
        self._renewed_at = float("-inf")
        self._lock = threading.Lock()  # one try at a time
        self._version = 0  # of the document as it was last written here
        self.rewound = False  # found the store emptied or older than that; whoever mends it sets it back

    @property
    def leads(self) -> bool:
        """True if this process renewed its term within T; if not, it must not act."""
        return self._clock.now() - self._renewed_at < self.term_s

    def try_to_lead(self) -> bool:
        """Take or renew the term, unless it is fresh. `Transient` errors of the store pass through."""
        with self._lock:
            return self._try_to_lead()

    def _try_to_lead(self) -> bool:
        asked_at = self._clock.now()
        if asked_at - self._renewed_at < self.term_s / 3:
            return True
        doc = self._store.get("terms", self._term)
        rewound = self._is_older(doc)  # then the store's holder is one from before this process led
        try:
            if doc is None:
                doc = {"_id": self._term, "version": 1, **self._me.as_doc()}
                self._store.insert("terms", doc)
            elif rewound or self._mine(doc) or self._vacant(doc):
                expect = {"version": doc.get("version")}
                doc = self._store.update("terms", self._term, expect, {**self._me.as_doc(), "released": False})
            else:
                return False
        except Conflict:
            return False
        self._renewed_at, self._version = asked_at, _version(doc)
        self.rewound |= rewound
        return True

    def continuous(self, lost_rows: bool = False) -> bool:
        """True unless the store was emptied, or replaced by an older one, since this process wrote its term there.

        `lost_rows`: whether a reading has shown that it was (`rules.are_lost`).
        """
        with self._lock:
            self.rewound |= lost_rows or self._is_older(self._store.get("terms", self._term))
            return not self.rewound

    def _is_older(self, doc: Doc | None) -> bool:
        return self._version > _version(doc or {})

    def resign(self) -> None:
        """Let a successor begin at once."""
        doc = self._store.get("terms", self._term)
        if doc is not None and self._mine(doc):
            self._store.update("terms", self._term, {"version": doc.get("version")}, {"released": True})
        self._renewed_at = float("-inf")

    def holder(self) -> str:
        """The leader, as a phrase for messages."""
        doc = self._store.get("terms", self._term) or {}
        return f"process {doc.get('pid')}"

    def _mine(self, doc: Doc) -> bool:
        return {k: doc.get(k) for k in self._me.as_doc()} == self._me.as_doc()

    def _vacant(self, doc: Doc) -> bool:
        if doc.get("released") or self._dead(doc):
            return True
        now = self._clock.now()
        if self._seen[0] != doc.get("version"):
            self._seen = (doc.get("version"), now)
        return now - self._seen[1] > self.term_s * (1 + CLOCK_DRIFT)

    def _dead(self, doc: Doc) -> bool:
        if doc.get("machine") != self._me.machine:
            return False
        try:
            return Holder.of_process(int(doc["pid"])).started != doc.get("started")
        except (OSError, KeyError, ValueError):
            return True


def _version(doc: Doc) -> int:
    found = doc.get("version")
    return found if isinstance(found, int) else 0
