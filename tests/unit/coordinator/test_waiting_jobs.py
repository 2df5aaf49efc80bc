"""Jobs that wait cost no decision and no write per turn, and are told why they wait."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import pytest

from adaptive_scheduler.decision import Explanation, Hold
from coordinator.model import states as s
from coordinator.scheduling import loop as loop_module
from coordinator.stores.elector import TERM
from tests.fakes.shims import Behaviour
from tests.fakes.world import World


def message(world: World, job: str) -> str:
    return str(world.job(job).doc["message"])


def writes_but_terms(world: World) -> int:
    term = world.users.get("terms", TERM)
    return world.store.writes - (term["version"] if term else 0)


def test_many_that_wait_cost_no_decision_and_no_write_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world, numbers = World.training([4], Behaviour(iterations=10**6)), count()
    turned = loop_module.decide

    def counting(*given: Any) -> Any:
        """As decided, but with a number in each reason that is another one each time."""
        found = turned(*given)
        return [
            Hold(d.job, Explanation(d.explanation.algorithm, f"{d.explanation.sentence} {next(numbers)}.5 s to go"))
            if isinstance(d, Hold) else d for d in found
        ]  # fmt: skip

    monkeypatch.setattr(loop_module, "decide", counting)
    for n in range(20):
        world.submit(f"w{n:02}", [4], Behaviour())
    world.tick()
    stored, writes = len(world.users.list("decisions")), writes_but_terms(world)
    for _ in range(100):
        world.tick()
    holds = [d for d in world.users.list("decisions") if d["kind"] == "hold"]
    assert sorted(d["job_id"] for d in holds) == [f"w{n:02}" for n in range(20)]
    assert next(numbers) > 20 * 100
    assert len(world.users.list("decisions")) == stored
    assert writes_but_terms(world) == writes


def test_a_reason_that_really_changed_is_told_though_not_at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    world, words = World.training([4], Behaviour(iterations=10**6)), iter("abcdefghij" * 40)

    def holding(snapshot: Any, *_: Any) -> list[Hold]:
        why = Explanation("elastic.incoming", f"because {next(words)}")
        return [Hold("two", why)] if "two" in snapshot.job else []

    monkeypatch.setattr(loop_module, "decide", holding)
    world.submit("two", [4], Behaviour())
    world.tick()
    told = []
    for _ in range(100):
        world.tick()
        told.append(message(world, "two"))
    changes = sum(a != b for a, b in pairwise(told))
    assert 8 <= changes <= 10, told
    assert [d["sentence"] for d in world.users.list("decisions") if d["kind"] == "hold"] == [told[-1]]


def test_why_each_wish_must_wait_is_told_at_once() -> None:
    world = World.training([1, 2, 3, 4], Behaviour(iterations=10**6))
    world.submit("two", [2], Behaviour(iterations=10**6))
    world.run(lambda w: w.states() == {"one": s.RUNNING, "two": s.RUNNING})
    for wanted in (4, 3):
        wish = world.api.operator.request("one", wanted, None)["decision_id"]
        world.tick()
        assert f"although {wanted} were requested" in message(world, "one")
        assert world.api.history.decision(wish)["sentence"] == message(world, "one")
