"""Removes, once an hour, the folders of jobs that ended so long ago that the store does not keep them. Run by `up`."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from coordinator.config import Keep
from coordinator.errors import ReshapeError
from coordinator.ports import Clock, Store
from coordinator.stores.retention import FRESH_S, ClockWatch
from launcher.ended_folders import remove_ended
from reshape_hooks.plain import boot_id

AGAIN_S = 3600.0

log = logging.getLogger(__name__)


def watch_folders(state: Path, store: Store, keep: Keep, clock: Clock, end: threading.Event) -> None:
    """Look once an hour, until `end`. An error costs one look."""
    while not end.wait(AGAIN_S):
        try:
            look(state, store, keep, clock)
        except (OSError, ReshapeError) as error:
            log.info("folders of ended jobs stay for now: %s", error)


def look(state: Path, store: Store, keep: Keep, clock: Clock) -> None:
    """Remove them now, if the wall clock can be believed. A job that is too old by number alone keeps its folder."""
    if not ClockWatch(clock, store, boot_id()).steady():
        return
    known = {str(row.get("uid")) for row in store.scan("jobs", ("uid",))}
    if removed := remove_ended(state / "jobs", known, clock.wall() - max(keep.jobs_s, FRESH_S)):
        log.info("removed the folders of %d jobs that ended long ago, but for checkpoints and their own files", removed)
