"""Rights by Volcano's queues: their limits hold in growth too, what they deserve is taken back by a shrink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptive_scheduler.engine import decide
from adaptive_scheduler.rights.standing import entitle, read_owners
from adaptive_scheduler.shares import QueueShare, Shares
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.scheduling.queue_shares import QueueShares
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World
from tests.unit.adaptive_scheduler.shared_world import NOW, queues, runs, told, waits, world

ENDLESS = Behaviour(iterations=100_000)


def row(name: str, weight: int = 1, guaranteed: int = 0, limit: int | None = None, **more: Any) -> dict[str, Any]:
    """A row of table `queues`, as the launcher writes it."""
    shares = {"weight": weight, "guaranteed": guaranteed, "limit": limit, "reclaimable": True}
    return {"_id": name, "inject": True, "devices": "shared", **shares, **more}


def cluster(*rows: dict[str, Any], **settings: Any) -> World:
    """Four idle GPUs and these queues of Volcano."""
    found = World(config=SHORT if not settings else type(SHORT)(**{**_fields(SHORT), **settings}))
    for one in rows:
        found.users.put("queues", one)
    found.tick()
    return found


def _fields(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def counts(w: World, *names: str) -> list[int]:
    return [len(w.job(name).gpu_ids) for name in names]


def test_a_queues_capability_holds_also_in_growth() -> None:
    w = cluster(row("gold", limit=2))
    w.submit("one", [1, 2, 4], ENDLESS, queue="gold")
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    w.pass_time(60)
    assert counts(w, "one") == [2]
    w.submit("two", [1, 2], ENDLESS, queue="gold", elastic=False)
    w.pass_time(10)
    assert "queue gold has 2 of at most 2 GPUs" in str(w.job("two").doc["message"]) or counts(w, "one", "two") == [1, 1]
    w.users.put("queues", row("gold", limit=4))
    w.run(lambda w: sum(counts(w, "one", "two")) == 4)


def test_the_capability_of_a_parent_binds_all_its_queues_together() -> None:
    w = cluster(row("lab", limit=3), row("gold", parent="lab"), row("silver", parent="lab"), row("other"))
    w.submit("one", [1, 2, 4], ENDLESS, queue="gold")
    w.submit("two", [1, 2, 4], ENDLESS, queue="silver")
    w.run(lambda w: set(w.states().values()) == {s.RUNNING})
    w.pass_time(60)
    assert sum(counts(w, "one", "two")) == 3
    with pytest.raises(Rejected, match=r"queue gold is part of lab, which has \d of at most 3 GPUs"):
        w.api.operator.request("one", 4, None)
    w.submit("three", [1], ENDLESS, queue="gold", elastic=False)
    w.submit("four", [1], ENDLESS, queue="other", elastic=False)
    w.run(lambda w: w.states()["four"] == s.RUNNING)
    assert sum(counts(w, "one", "two", "three")) == 3
    w.users.put("queues", row("lab", limit=4))
    w.api.operator.cancel("four")
    w.run(lambda w: sum(counts(w, "one", "two", "three")) == 4)


def test_queues_of_a_parent_are_entitled_to_no_more_than_its_limit_together() -> None:
    terms = queues(lab={"limit": 2}, gold={"parent": "lab", "guaranteed": 2}, silver={"parent": "lab"}, other={})
    jobs = [waits(f"w-{name}", name, (1, 2, 4, 8)) for name in ("gold", "silver", "other")]
    snapshot = world(8, *jobs, shares=Shares(terms))
    who = entitle(snapshot, read_owners(snapshot, NOW))
    assert {name: one.entitled for name, one in who.of_queue.items()} == {"gold": 2.0, "silver": 0.0, "other": 6.0}
    full = world(8, runs("r", "gold", 2), waits("w", "silver"), shares=Shares(terms))
    (hold,) = decide(full, NOW)
    assert hold.explanation.sentence == (
        "w waits: queue silver is part of lab, which has 2 of at most 2 GPUs, and it needs 1."
    )


def test_a_queues_capability_binds_what_is_requested_and_reserved() -> None:
    w = cluster(row("gold", limit=2), queue="gold")
    w.submit("one", [1, 2, 4], ENDLESS, namespace="team-a")
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    with pytest.raises(Rejected, match="cannot have 4 GPUs: queue gold has 0 of at most 2 GPUs"):
        w.api.operator.request("one", 4, None)
    with pytest.raises(Rejected, match="queue gold may have at most 2"):
        w.api.reservations.reserve({"gpus": 3, "until": w.clock.wall() + 600, "user": "ada"})


def test_what_a_queue_deserves_is_taken_back_by_a_shrink() -> None:
    w = cluster(row("gold", guaranteed=2), row("silver"))
    w.submit("hers", [2, 4], ENDLESS, queue="silver", owner="ada")
    w.run(lambda w: w.states() == {"hers": s.RUNNING} and counts(w, "hers") == [4])
    launch = w.job("hers").launch
    w.submit("his", [2], ENDLESS, queue="gold", owner="bob")
    w.run(lambda w: w.states() == {"hers": s.RUNNING, "his": s.RUNNING})
    assert counts(w, "hers", "his") == [2, 2]
    assert w.job("hers").launch == launch, "its pod lives on"


def test_a_job_of_an_unknown_queue_waits_for_that_queue() -> None:
    w = cluster(row("gold"))
    w.submit("one", [1], ENDLESS, queue="silver")
    w.tick()
    assert w.job("one").doc["problems"] == ["queue 'silver' is unknown; the queues are default, gold"]
    w.users.put("queues", row("silver"))
    w.run(lambda w: w.states() == {"one": s.RUNNING})


def test_jobs_without_an_owner_are_their_namespaces() -> None:
    w = cluster(row("gold"))
    w.submit("one", [1], ENDLESS, queue="gold", namespace="team-a")
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    assert [(one["queue"], one["user"]) for one in w.api.rights.shares()["users"]] == [("gold", "team-a")]


def test_shares_yaml_wins_and_shares_says_what_is_in_force(tmp_path: Path) -> None:
    file = tmp_path / "shares.yaml"
    file.write_text("queues: {gold: {limit: 1}}")
    w = cluster(row("gold", limit=3, weight=5), row("silver", weight=2), row("root"), {"_id": "old"}, shares=str(file))
    w.submit("one", [1, 2, 4], ENDLESS, queue="gold")
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    w.pass_time(60)
    assert counts(w, "one") == [1]
    rows = {one["queue"]: (one["from"], one["weight"], one["limit"]) for one in w.api.rights.shares()["queues"]}
    assert rows == {"default": (None, 1, None), "gold": ("shares.yaml", 1, 1), "silver": ("Volcano", 2, None)}


def test_jobs_that_name_no_queue_are_in_that_of_the_launcher() -> None:
    w = cluster(row("gold", limit=2), queue="gold")
    w.submit("one", [1, 2, 4], ENDLESS)
    w.run(lambda w: w.states() == {"one": s.RUNNING})
    w.pass_time(60)
    assert counts(w, "one") == [2]


def test_the_same_object_is_in_force_until_something_changes() -> None:
    found = QueueShares("")
    file = Shares()
    first = found.update(file, {"gold": row("gold", limit=2)})
    assert first.queues == {"gold": QueueShare(limit=2)}
    assert found.update(file, {"gold": row("gold", limit=2)}) is first
    assert found.update(file, {"gold": row("gold", limit=3)}) is not first


@pytest.mark.parametrize(("reclaimable", "wanted"), [(True, ["p starts 2 (r 4->2)"]), (False, [])])
def test_nobody_else_gets_back_what_a_queue_holds_that_is_not_reclaimable(reclaimable: bool, wanted: list[str]) -> None:
    terms = queues(a={"reclaimable": reclaimable}, b={"guaranteed": 2})
    given = Shares(terms, patience_s=0.0, min_run_s=0.0)
    found = world(4, runs("r", "a/ada", 4, (2, 4)), waits("p", "b/bob", (2,)), shares=given)
    assert told(found, decide(found, NOW)) == wanted


def test_a_queue_of_volcano_says_how_its_plans_are_judged() -> None:
    w = cluster(row("sweeps", makespan_weight=3.0), row("gold"))
    rows = {one["queue"]: one["makespan_weight"] for one in w.api.rights.shares()["queues"]}
    assert rows == {"default": None, "gold": None, "sweeps": 3.0}
