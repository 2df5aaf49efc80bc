"""A reshape in place waits a bounded while for the interpreter that is to wait for the job's next start."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.reconcile.actions import StopTrainer
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.observed_state import ObservedState
from tests.unit.coordinator.situations import EXITED, SHORT, job, mine, reshape_of, seen, waits, world

START_S = 1.0  # from its spawn to its first step, as `seen` says
BEGINS = "begins to wait"


def growing(waited_s: float, warm: str = BEGINS, op: dict[str, Any] | None = None, **more: Any) -> ObservedState:
    """A job that has the GPU that it grows by, and trains on."""
    asked = {**reshape_of(("a",), ("a", "b")), **(op or {})}
    beat = seen(warm=warm, **{key: more.pop(key) for key in ("warm_s", "trainer", "generation") if key in more})
    return world(job(s.ADJUSTING, "a", op=asked), beat, mine("a", "b"), waited_s=waited_s, **more)


def test_it_trains_on_while_the_interpreter_does_its_imports_twice_as_long_as_its_start_took_at_most() -> None:
    waits(growing(2 * START_S - 0.1), "an interpreter for its next start")
    assert next_step(growing(2 * START_S)) == StopTrainer(2, in_place=True, gpu_ids=("a", "b"))


def test_after_a_warm_start_it_waits_as_long_as_the_last_imports_ask_for() -> None:
    limit = min(20.0, SHORT.init_timeout_s)
    waits(growing(limit - 0.1, warm_s=10.0), "an interpreter for its next start")
    assert next_step(growing(limit, warm_s=10.0)) == StopTrainer(2, in_place=True, gpu_ids=("a", "b"))
    assert next_step(growing(SHORT.init_timeout_s, warm_s=1e9)) == StopTrainer(2, in_place=True, gpu_ids=("a", "b"))


@pytest.mark.parametrize("warm", ["", "ready (80 MiB)", "there is too little memory for a waiting interpreter"])
def test_where_one_waits_or_none_will_it_is_stopped_at_once(warm: str) -> None:
    assert next_step(growing(0.0, warm)) == StopTrainer(2, in_place=True, gpu_ids=("a", "b"))


@pytest.mark.parametrize("op", [{"how": "relaunch"}, {"kind": "requeue"}])
def test_a_launch_that_ends_is_not_waited_for(op: dict[str, Any]) -> None:
    assert next_step(growing(0.0, op=op)) == StopTrainer(2)


def test_a_silent_or_lost_launch_is_not_waited_for() -> None:
    assert next_step(growing(0.0, unreachable=True)) == StopTrainer(2, in_place=True, gpu_ids=("a", "b"))
    assert growing(0.0).warming
    assert not growing(0.0, lost=True).warming
    assert not growing(0.0, remove_asked=True).warming


def test_once_it_was_stopped_nothing_is_waited_for_but_its_end() -> None:
    waits(growing(0.0, trainer="stopping", generation=2), "saving")
    assert not world(job(s.ADJUSTING, "a", op=reshape_of(("a",), ("a", "b"))), EXITED, mine("a", "b")).warming
