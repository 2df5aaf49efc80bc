"""The shim looks at the clock rarely while nothing changes, and in time for all that it has promised to do then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sidecar import shim
from sidecar.shim import CALM_S, CALM_TICK_S, NEVER, REST_S, TICK_S, Shim

GRACE_S, NOW = 20.0, 1000.0
CALM = {"trainer": "running", "spawn_at": NOW - CALM_S - 1.0, "lease_deadline": 0.0}


def pause(
    monkeypatch: pytest.MonkeyPatch, busy: bool = False, kill_at: float = NEVER, strict: bool = False,
    wrote_at: float = 0.0, **status: Any,
) -> float:  # fmt: skip
    monkeypatch.setattr(shim, "boottime", lambda: NOW)
    one = object.__new__(Shim)
    one.status, one.ending, one.kill_at = {**CALM, **status}, False, kill_at
    one.launch = SimpleNamespace(sidecar=["x"], grace_s=GRACE_S)  # type: ignore[assignment]
    one.sidecar, one.warm = object(), SimpleNamespace(busy=busy, strict=strict)  # type: ignore[assignment]
    one.copy = None
    one.trainer = SimpleNamespace(watched=not wrote_at, wrote_at=wrote_at)  # type: ignore[assignment]
    one.trainer.pipe = SimpleNamespace(closed=False)  # type: ignore[union-attr]
    return one._pace()


def test_beside_an_undisturbed_trainer_it_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause(monkeypatch) == CALM_TICK_S
    assert pause(monkeypatch, lease_deadline=NOW + GRACE_S + 60.0) == CALM_TICK_S


@pytest.mark.parametrize(
    "changes",
    [{"trainer": "exited"}, {"spawn_at": NOW - 1.0}, {"spawn_at": None}, {"busy": True}, {"kill_at": NOW + 5.0}],
    ids=str,
)
def test_where_something_changes_it_looks_often(monkeypatch: pytest.MonkeyPatch, changes: Any) -> None:
    assert pause(monkeypatch, **changes) == TICK_S


def test_it_wakes_when_the_lease_asks_for_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause(monkeypatch, lease_deadline=NOW + GRACE_S + 0.5) == pytest.approx(0.5)
    assert pause(monkeypatch, lease_deadline=NOW) == TICK_S


def test_memory_whose_shortage_ends_the_training_too_is_looked_at_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause(monkeypatch, strict=True) == shim.WARM.LOOK_S < CALM_TICK_S


def test_output_that_rests_in_the_pipe_is_read_when_its_rest_is_over_or_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pause(monkeypatch, wrote_at=NOW + 0.25 - REST_S) == pytest.approx(0.25)
    assert pause(monkeypatch, wrote_at=NOW - REST_S) == 0.0
    assert pause(monkeypatch, wrote_at=NOW, kill_at=NOW + 5.0) == 0.0
