"""What is wanted of each launch, carried out by playbooks: two at once, one at a time for each launch.

Promises: asking returns at once; what was wanted last wins, and stops what is under way against it; a fault of
ours ends as a sentence, never as a launch that is under way for ever. Used by every platform of the launcher.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal

from coordinator.errors import ReshapeError
from coordinator.ports import Doc

AT_ONCE = 2  # playbooks; each keeps one core busy for about a second

Verb = Literal["launch", "remove"]
Cancelled = Callable[[], bool]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Work:
    """What is wanted of one launch, and how far that has come."""

    doc: Doc
    wanted: Verb | None = None
    under_way: bool = False
    failure: str | None = None  # why what is wanted was not reached
    heard: bool = False  # whether somebody asked for the failure


class PlaybookQueue:
    """Thread-safe. `carry_out(verb, doc, cancelled)` raises a `ReshapeError` that says why it failed."""

    def __init__(self, carry_out: Callable[[Verb, Doc, Cancelled], None]) -> None:
        self._carry_out = carry_out
        self._works: dict[str, _Work] = {}
        self._runs: set[Future[None]] = set()
        self._lock = threading.Lock()  # guards the two above and each _Work
        self.closing = threading.Event()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="playbook")

    def want(self, name: str, verb: Verb, doc: Doc) -> None:
        """Nothing if it is under way, has succeeded, or has failed and nobody asked why yet."""
        with self._lock:
            work = self._works.setdefault(name, _Work(doc))
            new = work.wanted != verb or (work.failure is not None and work.heard)
            if self.closing.is_set() or not new or (work.wanted == verb and work.under_way):
                return
            work.doc, work.wanted, work.failure, work.heard = doc, verb, None, False
            if not work.under_way:
                work.under_way = True
                run = self._pool.submit(self._until_done, name, work)
                self._runs.add(run)
                run.add_done_callback(self._runs.discard)

    def failure(self, name: str) -> str | None:
        """Why the launch failed; once that was asked, wanting it again tries again."""
        with self._lock:
            work = self._works.get(name)
            if work is None or work.wanted != "launch" or work.failure is None:
                return None
            work.heard = True
            return work.failure

    def forget(self, name: str) -> None:
        """Its failure is written down elsewhere: what is wanted next begins anew."""
        with self._lock:
            if name in self._works and not self._works[name].under_way:
                del self._works[name]

    def under_way(self, name: str) -> bool:
        with self._lock:
            work = self._works.get(name)
            return work is not None and work.under_way

    def stop_all(self, timeout: float) -> None:
        """Let playbooks that run come to their end for `timeout` seconds, then stop them. Launches live on."""
        with self._lock:
            runs = list(self._runs)
        wait(runs, timeout)
        self.closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _until_done(self, name: str, work: _Work) -> None:
        """Until what was done last is what is wanted."""
        done: Verb | None = None
        failure: str | None = None
        while True:
            with self._lock:
                verb, doc = work.wanted, work.doc
                if verb is None or done == verb or self.closing.is_set():
                    work.under_way, work.failure = False, failure
                    work.heard = done == "remove"  # nobody asks why a removal failed: it is in the log
                    if done == "remove" and failure is None:
                        self._works.pop(name, None)
                    return
            done, failure = verb, self._try(name, verb, doc, work)

    def _try(self, name: str, verb: Verb, doc: Doc, work: _Work) -> str | None:
        """One playbook; the sentence if it failed."""

        def cancelled() -> bool:
            return self.closing.is_set() or work.wanted != verb

        try:
            self._carry_out(verb, doc, cancelled)
        except ReshapeError as error:
            log.warning("%s of %s failed: %s", verb, name, error)
            return str(error)
        except Exception:  # a fault of ours must not leave the launch under way for ever
            log.exception("%s of %s", verb, name)
            return "a fault in reshape itself; its log has the details"
        return None
