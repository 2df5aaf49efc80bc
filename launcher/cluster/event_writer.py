"""Kubernetes Events about users' objects: few, and each once. Called by `service.py` and `doors.py`.

An Event that cannot be written is dropped with a line in the log: it is news, never state.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from coordinator.errors import Conflict, ReshapeError

KEPT = 10_000
MESSAGE_LENGTH = 1000  # the API server takes 1,024

log = logging.getLogger(__name__)


class Creates(Protocol):
    def create(self, doc: dict[str, Any]) -> dict[str, Any]: ...


class Wall(Protocol):
    def wall(self) -> float: ...


class EventWriter:
    """`tell` about an object, given as its dict."""

    def __init__(self, cluster: Creates, clock: Wall, holder: str) -> None:
        self._cluster, self._clock, self._holder = cluster, clock, holder
        self._told: set[str] = set()

    def tell(self, about: Mapping[str, Any], reason: str, message: str, warning: bool = False) -> None:
        name = _name(about, reason, message)
        if name in self._told:
            return
        if len(self._told) > KEPT:
            self._told.clear()
        self._told.add(name)
        try:
            self._cluster.create(self._event(about, name, reason, message, warning))
        except Conflict:
            return  # told by an earlier launcher
        except ReshapeError as error:
            log.warning("Event %s of %s was not written: %s", reason, about["metadata"]["name"], error)

    def _event(self, about: Mapping[str, Any], name: str, reason: str, message: str, warning: bool) -> dict[str, Any]:
        meta, stamp = about["metadata"], _stamp(self._clock.wall())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta.get("namespace") or "default"},
            "involvedObject": {
                "apiVersion": about.get("apiVersion"), "kind": about.get("kind"), "name": meta["name"],
                "namespace": meta.get("namespace"), "uid": meta.get("uid"),
            },
            "reason": reason,
            "message": message[:MESSAGE_LENGTH],
            "type": "Warning" if warning else "Normal",
            "source": {"component": self._holder},
            "firstTimestamp": stamp, "lastTimestamp": stamp, "count": 1,
        }  # fmt: skip


def _name(about: Mapping[str, Any], reason: str, message: str) -> str:
    """The same for the same news, so that it is told once, whoever tells it."""
    meta = about["metadata"]
    digest = hashlib.sha256(f"{meta.get('uid')}|{reason}|{message}".encode("utf-8", "replace")).hexdigest()[:16]
    return f"{str(meta['name'])[:200]}.{digest}"


def _stamp(wall: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
