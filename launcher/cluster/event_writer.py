"""Writes Kubernetes Events about users' objects: few, and each once.

An Event that cannot be written is dropped with a line in the log: no state depends on it. Called by the launcher's
service and its controllers.
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


class EventApi(Protocol):
    """The call of `launcher.cluster.api.KubernetesApi` that is used."""

    def create(self, doc: dict[str, Any]) -> dict[str, Any]: ...


class WallClock(Protocol):
    """A clock that tells the time of day, in seconds since 1970."""

    def wall(self) -> float: ...


class EventWriter:
    """`write` an Event about an object, given as its dict."""

    def __init__(self, cluster: EventApi, clock: WallClock, holder: str) -> None:
        self._cluster, self._clock, self._holder = cluster, clock, holder
        self._written: set[str] = set()

    def write(self, about: Mapping[str, Any], reason: str, message: str, warning: bool = False) -> None:
        name = _name(about, reason, message)
        if name in self._written:
            return
        if len(self._written) > KEPT:
            self._written.clear()
        self._written.add(name)
        try:
            self._cluster.create(self._event(about, name, reason, message, warning))
        except Conflict:
            return  # written by an earlier launcher
        except ReshapeError as error:
            log.warning("Event %s of %s was not written: %s", reason, about["metadata"]["name"], error)

    def _event(self, about: Mapping[str, Any], name: str, reason: str, message: str, warning: bool) -> dict[str, Any]:
        meta, stamp = about["metadata"], event_stamp(self._clock.wall())
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": meta.get("namespace") or "default"},
            "involvedObject": {
                "apiVersion": about.get("apiVersion"),
                "kind": about.get("kind"),
                "name": meta["name"],
                "namespace": meta.get("namespace"),
                "uid": meta.get("uid"),
            },
            "reason": reason,
            "message": message[:MESSAGE_LENGTH],
            "type": "Warning" if warning else "Normal",
            "source": {"component": self._holder},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


def _name(about: Mapping[str, Any], reason: str, message: str) -> str:
    """Return the Event's name, the same for the same content: all launchers together write it once."""
    meta = about["metadata"]
    digest = hashlib.sha256(f"{meta.get('uid')}|{reason}|{message}".encode("utf-8", "replace")).hexdigest()[:16]
    return f"{str(meta['name'])[:200]}.{digest}"


def event_stamp(wall: float) -> str:
    """Return a time of day, seconds since 1970, as Events have it; later times are greater texts."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
