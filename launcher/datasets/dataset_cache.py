"""Keeps the data sets that jobs of this machine name by an address: each is fetched once, into a folder for all jobs.

Promises: a download has a thread of its own, so that nothing else waits for it; it serves all jobs that name it, and
outlives the launch that asked for it for `LINGER_S`, since its job soon comes again; it ends with this process, and the
next one goes on with it. Called by `local.py`. What makes the file whole is `sidecar.startup.fetch`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from coordinator.errors import Fatal, Transient
from coordinator.model.schema import dataset_fields
from coordinator.model.tables import JobRow
from sidecar.startup.fetch import FetchFailed, FetchProgress, FetchStopped, fetch, shown

LINGER_S = 600.0
LOOK_S = 0.1

log = logging.getLogger(__name__)


class _Fetch:
    """One download under way, or one that has ended."""

    def __init__(self) -> None:
        self.progress, self.asked_at = FetchProgress(), time.monotonic()
        self.over = threading.Event()
        self.failure: str | None = None


class DatasetCache:
    """Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._fetches: dict[str, _Fetch] = {}  # by place
        self._closing = threading.Event()

    def wait_for(self, doc: JobRow, cancelled: Callable[[], bool]) -> None:
        """Return once the job's data set is there. `Fatal` if it cannot be fetched, `Transient` if cancelled."""
        place, address = dataset_fields.place(doc), dataset_fields.address(doc)
        if place is None or address is None or (self._folder / place).exists():
            return
        one = self._fetch(place, address, str(doc.get("dataset_sha256") or ""))
        while not one.over.wait(LOOK_S):
            one.asked_at = time.monotonic()
            if cancelled():
                raise Transient(f"it was removed while its data set was fetched ({one.progress})")
        if one.failure is not None:
            raise Fatal(one.failure)

    def under_way(self, doc: JobRow) -> str | None:
        """Return a sentence about the download that a job waits for; None if it waits for none."""
        place, address = dataset_fields.place(doc), dataset_fields.address(doc)
        with self._lock:
            one = self._fetches.get(place or "")
        if one is None or address is None or one.over.is_set():
            return None
        return f"its data set {shown(address)} is still being fetched ({one.progress})"

    def close(self) -> None:
        """Stop all downloads; what is there stays."""
        self._closing.set()

    def _fetch(self, place: str, address: str, sha256: str) -> _Fetch:
        """Return the download of that data set; a new one if none is under way."""
        with self._lock:
            one = self._fetches.get(place)
            if one is None or one.over.is_set():
                one = self._fetches[place] = _Fetch()
                words = (one, place, address, sha256)
                threading.Thread(target=self._run, args=words, name="fetch a data set", daemon=True).start()
            return one

    def _run(self, one: _Fetch, place: str, address: str, sha256: str) -> None:
        def stopped() -> bool:
            return self._closing.is_set() or time.monotonic() - one.asked_at > LINGER_S

        log.info("fetches %s", shown(address))
        try:
            fetch(address, self._folder / place, sha256, stopped, one.progress)
            log.info("has fetched %s (%s)", shown(address), one.progress)
        except FetchFailed as error:
            one.failure = str(error)
        except FetchStopped:
            one.failure = "its data set is no longer fetched: reshape ends here"
        except Exception:  # a fault of ours must not let its jobs wait for ever
            log.exception("fetch of %s", shown(address))
            one.failure = f"{shown(address)} cannot be fetched by a fault in reshape itself; its log has the details"
        finally:
            one.over.set()
