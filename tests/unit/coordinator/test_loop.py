"""One turn of the decision loop on a real world: what it lets in, refuses, promises and does not carry out."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import Fatal, Transient
from coordinator.model import states as s
from coordinator.scheduling import loop as loop_module
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

JUNK: list[dict[str, Any]] = [
    {"_id": "no-state"},
    {"_id": "list-id", "job_id": ["a"], "state": "submitted"},
    {"_id": "object-id", "job_id": {"a": 1}, "state": "submitted"},
    {"_id": "minus", "state": "submitted", "optional_num_gpus": [-1], "command": "x"},
    {"_id": "huge", "state": "submitted", "optional_num_gpus": [10**9], "command": "x"},
    {"_id": "claims-to-be-ours", "state": "running", "closed": False, "gpu_ids": ["gpu-0"], "num_gpus": 1},
    {"_id": "half-ours", "state": "submitted", "closed": False, "uid": "x", "optional_num_gpus": "1"},
    {"_id": "strange-version", "state": "submitted", "version": {"a": 1}},
    {"_id": "newer", "state": "submitted", "schema": 99, "optional_num_gpus": [1], "command": "x"},
    {"_id": "{{ lookup('pipe', 'x') }}", "state": "submitted", "optional_num_gpus": [1], "command": "x"},
]


def document(world: World, key: str) -> dict[str, Any]:
    doc = world.users.get("jobs", key)
    assert doc is not None
    return doc


def test_bad_documents_are_marked_and_kept_and_hurt_nobody_else() -> None:
    world = World()
    for doc in JUNK:
        world.users.insert("jobs", doc)
    world.submit("good", [1], Behaviour(iterations=5))
    world.run(lambda w: w.states()["good"] == s.COMPLETED, 60)
    for doc in JUNK:
        now = document(world, doc["_id"])
        kept = set(doc) - {"version"}
        assert {field: now[field] for field in kept} == {field: doc[field] for field in kept}
        if "uid" not in doc:
            assert now["problems"], now
    assert list(world.machines.launches) == [("good", 1)]


def test_a_bad_document_that_is_put_right_is_let_in() -> None:
    world = World()
    world.submit("one", [], Behaviour(iterations=5))
    world.tick()
    assert "optional_num_gpus must be a list" in document(world, "one")["problems"][0]
    writes = world.store.writes
    world.tick()
    assert world.store.writes == writes, "what is known to be wrong is not written again"
    world.users.update("jobs", "one", {}, {"optional_num_gpus": [1]})
    world.run(lambda w: w.states()["one"] == s.COMPLETED, 60)
    assert document(world, "one")["problems"] == []


def test_a_name_belongs_to_one_job_until_it_has_ended_and_who_was_refused_is_not_let_in_unasked() -> None:
    world = World()
    world.submit("one", [1], Behaviour(iterations=5))
    world.tick()
    world.users.insert("jobs", {**_spec(), "_id": "x", "job_id": "one"})
    world.run(lambda w: w.job("one").doc.get("closed"), 60)
    world.users.insert("jobs", {**_spec(), "_id": "y", "job_id": "one"})
    world.tick()
    assert document(world, "x")["problems"] == ["job_id 'one' belongs to another job; choose another one"]
    assert document(world, "y")["problems"] == []
    assert document(world, "y")["uid"] != document(world, "one")["uid"]


def test_ids_of_the_users_own_types_stay_as_they_are() -> None:
    world = World()
    world.submit(3, [1], Behaviour(iterations=5))
    world.run(lambda w: w.states()["3"] == s.COMPLETED, 60)
    done = document(world, 3)  # type: ignore[arg-type]
    assert (done["job_id"], done["state"], done["num_gpus"], done["gpu_ids"]) == (3, s.COMPLETED, 0, None)


def test_gpus_that_an_intent_names_are_not_promised_again_before_they_are_claimed() -> None:
    world = World()
    world.submit("one", [2], Behaviour())
    world.decide()
    world.submit("two", [2, 3, 4], Behaviour())
    world.decide()
    taken = [set(world.job(name).gpu_ids) for name in ("one", "two")]
    assert taken == [{"gpu-0", "gpu-1"}, {"gpu-2", "gpu-3"}]


def test_a_decision_on_a_job_that_changed_meanwhile_is_not_carried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.submit("one", [1, 2, 4], Behaviour(iterations=100))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    world.api.operator.request("one", 2, None)
    real = loop_module.decide

    def slowly(*given: Any) -> Any:
        decisions = real(*given)
        world.machines.end_trainer("one", 1)
        world.carry()
        world.settle()
        return decisions

    monkeypatch.setattr(loop_module, "decide", slowly)
    world.decide()
    assert world.states()["one"] == s.RESTARTING
    operation = world.job("one").operation
    assert operation is not None
    assert operation.kind == "restart"
    monkeypatch.undo()
    world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING, 60)


def test_a_job_that_must_wait_is_told_why_once() -> None:
    world = World()
    world.submit("one", [8], Behaviour())
    world.tick()
    assert "it wants more GPUs than any node has" in document(world, "one")["message"]
    writes = world.store.writes
    world.tick()
    assert world.store.writes == writes


def test_every_decision_is_stored_with_its_rejected_alternatives_before_anything_is_done() -> None:
    world = World()
    world.submit("one", [1, 2, 4], Behaviour())
    world.decide()
    (decision,) = world.users.list("decisions")
    assert (decision["kind"], decision["job_id"], decision["num_gpus"]) == ("start", "one", 4)
    chosen, *others = decision["candidates"]
    assert chosen["rejected"] == ""
    assert {other["num_gpus"] for other in others} == {1, 2}
    assert all("longer" in other["rejected"] and other["makespan_s"] > chosen["makespan_s"] for other in others)
    operation = world.job("one").operation
    assert operation is not None
    assert operation.decision == decision["_id"]


def vanished() -> World:
    """The document of job one, which trains, was deleted while no coordinator ran; one has begun since."""
    world = World()
    world.submit("one", [4], Behaviour(iterations=500))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    world.users.delete("jobs", "one")
    world.boot()
    world.tick()
    return world


def test_the_gpus_of_a_job_whose_document_vanished_unseen_come_back_after_its_lease() -> None:
    world = vanished()
    assert world.gpu("gpu-0").held_by == "one"
    world.submit("two", [4], Behaviour(iterations=20))
    vanished_at = world.clock.time
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 120)
    assert world.clock.time - vanished_at > SHORT.wait_out_s


def test_the_gpus_of_a_vanished_job_are_not_forgotten_by_who_leads_again_while_nothing_changes() -> None:
    world = vanished()
    collector = world.c.loop.garbage_collector
    collector.begin()
    for _ in range(3):
        collector.collect(world.clock.now())
        world.clock.time += world.c.config.wait_out_s
    assert world.gpu("gpu-0").held_by is None


def test_a_gpu_that_somebody_marked_as_used_by_hand_is_left_alone() -> None:
    world = World()
    world.users.update("gpus", "gpu-3", {}, {"state": s.IN_USE, "job_id": "theirs", "held_by": "theirs"})
    world.submit("one", [1, 2, 4], Behaviour(iterations=100))
    world.run(lambda w: w.at_rest(), 400)
    assert world.gpu("gpu-3").job == "theirs"


def test_while_the_newcomer_cannot_be_launched_its_victim_is_undisturbed() -> None:
    world = World()
    world.submit("one", [1, 2, 4], Behaviour(iterations=400))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    spawned = world.machines.present("one")
    assert spawned is not None
    before = (spawned.status.spawn_at, spawned.status.generation, world.job("one").gpu_ids)
    world.submit("two", [2], Behaviour(launch_failures=10))
    world.run(lambda w: w.states()["two"] == s.FAILED, 200)
    world.run(lambda w: w.states()["one"] == s.RUNNING, 5)
    assert (spawned.status.spawn_at, spawned.status.generation, world.job("one").gpu_ids) == before
    assert world.job("two").doc["message"] == "could not be launched: the disk is full"
    assert {world.gpu(f"gpu-{i}").job for i in range(4)} == {"one"}


def _spec() -> dict[str, Any]:
    return {"state": "submitted", "optional_num_gpus": [1], "command": "x"}


def test_what_a_sidecar_refuses_for_good_is_shown_on_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.submit("one", [1])
    world.tick()
    (job_id,) = world.c.cache.jobs()

    def refuse(job_id: str) -> None:
        raise Fatal("the sidecar refused: no such GPU")

    monkeypatch.setattr(world.c.reconciler, "reconcile", refuse)
    world.c._reconcile(job_id)
    assert world.api.jobs.job(job_id)["message"] == "the sidecar refused: no such GPU"


def test_of_jobs_that_are_gone_nothing_is_kept() -> None:
    world = World(gpus=1)
    world.submit("one", [1], Behaviour(iterations=40))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    world.submit("two", [1], Behaviour(iterations=5))
    world.run(lambda w: "two" in w.c.loop._holds._told, 60)
    world.c.telemetry.reshaped_at["two"] = 0.0
    world.api.operator.cancel("two")
    world.run(lambda w: "two" not in w.c.cache.jobs(), 60)
    world.tick()
    assert ("two" in world.c.loop._holds._told, "two" in world.c.telemetry.reshaped_at) == (False, False)


def test_who_leads_again_believes_what_another_one_wrote_meanwhile() -> None:
    world = World()
    world.submit("one", [1], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    assert world.c.telemetry.progress.progress_of_job(world.job("one"))[0].category == "PC"
    world.users.update("jobs", "one", {}, {"category": "WC"})
    world.users.update("terms", "coordinator", {}, {"released": True})
    world.clock.time += world.config.term_s + 1
    assert not world.c.elector.leads
    world.c._turn()
    assert world.c.trouble == ""
    assert world.c.telemetry.progress.progress_of_job(world.job("one"))[0].category == "WC"


def test_a_document_that_is_never_let_in_leaves_nothing_in_memory() -> None:
    world = World()
    for n in range(3):
        world.users.insert("jobs", {"_id": f"bad-{n}"})
    world.tick()
    assert document(world, "bad-0")["problems"]
    assert world.c.recorder._marks == {}


def test_a_refused_document_says_since_when_so_that_it_is_not_kept_for_ever() -> None:
    world = World()
    world.submit("bad", [1], command=[])
    world.tick()
    refused_at = world.job("bad").submit_ts
    assert refused_at > 0
    assert world.job("bad").doc["problems"] and refused_at <= world.clock.wall()
    world.pass_time(20)
    assert world.job("bad").submit_ts == refused_at


def test_a_store_that_takes_nothing_is_told_once_and_so_is_that_it_does_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    with caplog.at_level("INFO"):
        world.c._turn()
    assert not [one for one in caplog.records if "works again" in one.getMessage()], "it has only begun"
    caplog.clear()
    faults = iter([Transient("the disk is full")] * 3 + [Transient("it is gone")])

    def refuses() -> bool:
        raise next(faults)

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "coordinator.service"]

    with monkeypatch.context() as changed, caplog.at_level("INFO"):
        changed.setattr(world.c.elector, "try_to_lead", refuses)
        for _ in range(4):
            world.c._turn()
    assert told() == [f"The store does not answer: {why}" for why in ("the disk is full", "it is gone")]
    caplog.clear()
    with caplog.at_level("INFO"):
        world.c._turn()
        world.c._turn()
    again = [text for text in told() if "works again" in text]
    assert again == ["The coordinator works again; before: The store does not answer: it is gone"]
