"""Queues launches and removals: two at once, on a shared machine of each user, and one at a time for each launch.

What a launch needs first, such as its data set, is waited for before its turn, and so keeps no other launch from its.

Promises: a request returns at once; the last request wins and stops a run that contradicts it; a bug of ours ends as
an error message, never as a run that lasts for ever. Used by every platform of the launcher.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal

from coordinator.errors import ReshapeError
from coordinator.ports import Doc
from sidecar.startup import log_format

AT_ONCE = 2  # launches and removals; each keeps one core busy
THREADS = 64  # that wait for what their launches need, or for their turn

Verb = Literal["launch", "remove"]
Cancelled = Callable[[], bool]
Measured = Callable[[str, str, float], None]
"""`measured(verb, outcome, seconds)` of one run; the outcome is done, failed or cancelled."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Task:
    """The newest request for one launch, and its state."""

    doc: Doc
    requested: Verb | None = None
    under_way: bool = False
    failure: str | None = None  # why the request failed
    reported: bool = False  # whether `failure` was read


class LaunchQueue:
    """Runs `carry_out(verb, doc, cancelled)`, which raises `ReshapeError` with the reason. Thread-safe."""

    def __init__(
        self,
        carry_out: Callable[[Verb, Doc, Cancelled], None],
        measured: Measured = lambda *_: None,
        prepare: Callable[[Doc, Cancelled], None] | None = None,
    ) -> None:
        """`prepare(doc, cancelled)` returns, soon or late, once the launch of `doc` may be carried out, or raises."""
        self._carry_out, self._measured, self._prepare = carry_out, measured, prepare
        self._turns: dict[object, threading.Semaphore] = {}  # by owner; of all launches, where there are no owners
        self._leaving = threading.Event()
        self._tasks: dict[str, _Task] = {}
        self._futures: set[Future[None]] = set()
        self._lock = threading.Lock()  # guards the three above and each _Task
        self.closing = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS if prepare else AT_ONCE, thread_name_prefix="launch")

    def request(self, name: str, verb: Verb, doc: Doc) -> None:
        """Request the verb. Does nothing while it is under way, once it has succeeded, or until `failure` was read."""
        with self._lock:
            task = self._tasks.setdefault(name, _Task(doc))
            new = task.requested != verb or (task.failure is not None and task.reported)
            if self.closing.is_set() or not new or (task.requested == verb and task.under_way):
                return
            task.doc, task.requested, task.failure, task.reported = doc, verb, None, False
            if not task.under_way:
                task.under_way = True
                run = self._pool.submit(self._until_done, name, task)
                self._futures.add(run)
                run.add_done_callback(self._futures.discard)

    def failure(self, name: str) -> str | None:
        """Return why the launch failed; after this call another request tries again."""
        with self._lock:
            task = self._tasks.get(name)
            if task is None or task.requested != "launch" or task.failure is None:
                return None
            task.reported = True
            return task.failure

    def forget(self, name: str) -> None:
        """Drop a launch whose failure is stored elsewhere: the next request begins anew."""
        with self._lock:
            if name in self._tasks and not self._tasks[name].under_way:
                del self._tasks[name]

    def under_way(self, name: str) -> bool:
        with self._lock:
            task = self._tasks.get(name)
            return task is not None and task.under_way

    def stop_all(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what runs, then stop it. Waiting removals still begin; launches live on."""
        self._leaving.set()
        with self._lock:
            runs = list(self._futures)
        wait(runs, timeout)
        self.closing.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _until_done(self, name: str, task: _Task) -> None:
        """Carry out requests until the last one carried out is the newest."""
        done: Verb | None = None
        failure: str | None = None
        while True:
            with self._lock:
                verb, doc = task.requested, task.doc
                # A removal still begins: perhaps nobody starts a launcher here again.
                left = self.closing.is_set() and verb == "launch"
                if verb is None or done == verb or left:
                    task.under_way, task.failure = False, failure
                    task.reported = done == "remove"  # why a removal failed is only in the log
                    if done == "remove" and failure is None:
                        self._tasks.pop(name, None)
                    return

            def cancelled(verb: Verb = verb) -> bool:
                return self.closing.is_set() or task.requested != verb

            with log_format.about(job=doc.get("job_id"), launch=doc.get("launch")):
                done, failure = verb, self._try(name, verb, doc, cancelled)

    def _try(self, name: str, verb: Verb, doc: Doc, cancelled: Cancelled) -> str | None:
        """Wait for what the launch needs and carry it out once; return the reason if that failed."""
        if verb == "launch" and self._prepare is not None:
            prepare = self._prepare
            failure = self._reason(name, verb, lambda: prepare(doc, lambda: self._leaving.is_set() or cancelled()))
            if failure is not None:
                return failure
        with self._turn_of(doc):
            began = time.monotonic()
            failure = self._reason(name, verb, lambda: self._carry_out(verb, doc, cancelled))
            outcome = "done" if failure is None else "cancelled" if cancelled() else "failed"
            self._measured(verb, outcome, time.monotonic() - began)
            return failure

    def _turn_of(self, doc: Doc) -> threading.Semaphore:
        """Return the turns that this launch waits for: on a shared machine one user's that hang are no other user's."""
        with self._lock:
            return self._turns.setdefault(doc.get("owner_uid"), threading.Semaphore(AT_ONCE))

    def _reason(self, name: str, verb: Verb, act: Callable[[], None]) -> str | None:
        """Return why it failed; None if it did not."""
        try:
            act()
        except ReshapeError as error:
            log.warning("%s of %s failed: %s", verb, name, error)
            return str(error)
        except Exception:  # a fault of ours must not leave the launch under way for ever
            log.exception("%s of %s", verb, name)
            return "a fault in reshape itself; its log has the details"
        return None
