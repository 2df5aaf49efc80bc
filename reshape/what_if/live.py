"""Asks a coordinator for the live state that `reshape what-if` simulates."""

from __future__ import annotations

from typing import Any, Protocol

from adaptive_scheduler.profiles.profiles import Profiles
from coordinator.forecasts.live_state import TABLES, LiveState


class LiveSource(Protocol):
    """The part of `reshape.client.Client` by which the live state is read."""

    def profiles(self, table: str) -> list[dict[str, Any]]: ...

    def snapshot(self) -> dict[str, Any]: ...


def live_state(source: LiveSource) -> LiveState:
    return LiveState.read(source.snapshot(), profiles_of(source))


def profiles_of(source: LiveSource) -> Profiles:
    return Profiles.from_rows(*(source.profiles(table) for table in TABLES))
