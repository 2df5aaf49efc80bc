"""Shows events and decisions to callers, of other users' jobs no more than that they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from coordinator.api.access import Access, UserService
from coordinator.api.decided import Decided
from coordinator.errors import Rejected
from coordinator.events.event_log import KEPT, EventLog

View = dict[str, Any]

EVENT_SEEN = (
    "_id",
    "type",
    "at",
    "job_id",
    "state",
    "generation",
    "num_gpus",
    "gpu_id",
    "held_by",
    "from_gpus",
    "to_gpus",
    "to",
)
DECISION_SEEN = ("decision_id", "job_id", "jobs", "at", "kind", "algorithm")
OF_OTHERS = "A decision about jobs of other users."


class History(UserService):
    """Thread-safe."""

    def __init__(self, access: Access, event_log: EventLog, decided: Decided) -> None:
        super().__init__(access)
        self._event_log = event_log
        self._decided = decided

    # decisions

    def decisions(self, job_id: str | None, limit: int) -> list[View]:
        """Return the newest decisions, newest first; of one job with its receipts."""
        return self._seen_decisions(self._decided.newest(job_id, limit))

    def decision(self, decision_id: str) -> View:
        """Return one decision; `Rejected` with status 404 if there is none that the caller may see."""
        for view in self._seen_decisions([self._decided.one(decision_id)]):
            return view
        raise Rejected(f"There is no decision {decision_id!r}.", 404)

    def decided(self, offset: int, limit: int) -> tuple[list[View], bool]:
        """Return decisions that the newest events speak of, newest first, and whether there are more."""
        newest = reversed(self._newest_events())
        ids = list(dict.fromkeys(found for event in newest if (found := _decision_of_event(event))))
        page = self._decided.some(ids[offset : offset + limit])
        return self._seen_decisions(page), len(ids) > offset + limit

    def _seen_decisions(self, views: Iterable[View]) -> list[View]:
        """Return those that the caller may see; of jobs of others alone no more than that there is one."""
        return [shown for view in views if (shown := self._seen_decision(view)) is not None]

    def _seen_decision(self, view: View) -> View | None:
        if self.access.is_admin:
            return view
        names = {str(view.get("job_id")), *map(str, view.get("jobs") or ())}
        own = {name for name in names if self.access.is_own(name, view["at"])}
        if own:
            return view if self.access.sees_all else self.access.without_names(view | {"candidates": []}, names - own)
        if not self.access.sees_all:
            return None
        shown = {field: view[field] for field in DECISION_SEEN if field in view}
        return shown | {"sentence": OF_OTHERS, "candidates": [], "receipt": None}

    # events

    def events_after(self, seq: int, limit: int) -> list[View]:
        """Return events, oldest first; each has an integer `_id` greater than `seq` and a `type`."""
        return [self._seen_event(event) for event in self._event_log.after(seq, limit)]

    def newest_events(self) -> list[View]:
        """Return the newest events, oldest first."""
        return [self._seen_event(event) for event in self._newest_events()]

    def last_event(self) -> int:
        """Return the number of the newest event; 0 if there is none."""
        return self._event_log.last()

    def on_event(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, whenever events were appended; returns the function that ends this."""
        return self._event_log.listen(callback)

    def _newest_events(self) -> list[View]:
        return self._event_log.after(max(0, self._event_log.last() - KEPT), KEPT)

    def _seen_event(self, event: View) -> View:
        """Return what the caller may see of an event; its number always, since followers continue after it."""
        if self._caller is None or self._caller.admin or self._caller.reads_row(event):
            return self.access.without_names(event)
        names_nobody = event.get("job_id") is None and event.get("held_by") is None
        if names_nobody or self._caller.others_seen:
            return {field: event[field] for field in EVENT_SEEN if field in event}
        return {"_id": event["_id"], "at": event.get("at"), "type": "hidden"}


def _decision_of_event(event: View) -> str | None:
    """Return the id of the decision that an event speaks of; of reasons to wait only the last one is kept per job."""
    name = {"waits": "waits", "stays": "stays"}.get(event["type"])
    return f"{event.get('job_id')}-{name}" if name else event.get("decision_id")
