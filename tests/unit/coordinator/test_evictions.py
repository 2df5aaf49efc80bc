"""Promise: what an operator suspends or drains leaves as soon as it can without losing work, and nothing starts there.

Decisions are tested on small snapshots and, for their safety, on drawn clusters (`any_world.py`); what becomes of them
in a whole coordinator with machines of the tests' own.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.decision import (
    Decision,
    Hold,
    Move,
    Requeue,
    Reshape,
    Start,
    check,
    placed_on,
    workers_of,
)
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.evictions import DRAIN, SUSPENDED
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Worker
from coordinator.dashboard import words
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode, register_nodes
from tests.fakes.shims import Behaviour
from tests.fakes.world import GPU_TYPE, World
from tests.unit.adaptive_scheduler.any_world import NOW, drawn
from tests.unit.adaptive_scheduler.worlds import cluster, cpu_node, node, on_cpu, running, waiting

NOBODY = Settings(systems=())


def shown(snapshot: ClusterSnapshot, drained: Collection[str] = (), suspended: Collection[str] = ()) -> ClusterSnapshot:
    """With what an operator wants as the snapshot builder shows it."""
    nodes = (replace(n, schedulable=False, drained=True) if n.name in drained else n for n in snapshot.nodes)
    jobs = (
        replace(j, suspended=True, busy=j.busy or j.state == "submitted") if j.id in suspended else j
        for j in snapshot.jobs
    )
    return replace(snapshot, nodes=tuple(nodes), jobs=tuple(jobs))


def decided(snapshot: ClusterSnapshot, **wanted: Any) -> list[Decision]:
    return list(decide(shown(snapshot, **wanted), 0.0, NOBODY))


def one(snapshot: ClusterSnapshot, **wanted: Any) -> Any:
    (answer,) = decided(snapshot, **wanted)
    return answer


# suspending


def test_a_running_job_that_is_suspended_saves_and_goes_back_to_the_queue() -> None:
    answer = one(cluster(running("one", 2)), suspended=["one"])
    assert isinstance(answer, Requeue) and answer.yields_to == ()
    assert answer.explanation.sentence == (
        "one saves and gives its 2 GPUs up: an operator suspended it; `reshape resume one` lets it go on."
    )


def test_a_waiting_job_that_is_suspended_says_so_and_is_not_started_on_idle_gpus() -> None:
    answer = one(cluster(waiting("one"), idle=4), suspended=["one"])
    assert isinstance(answer, Hold) and answer.explanation.algorithm == SUSPENDED
    assert answer.explanation.sentence == "one is suspended by an operator; `reshape resume one` lets it start."


@pytest.mark.parametrize(
    ("more", "why"),
    [({"rigid": True}, "it has not shown that it can save and resume"), ({"stays": True}, "no checkpoint_claim")],
)
def test_a_job_that_would_lose_work_trains_on_though_it_is_suspended(more: dict[str, Any], why: str) -> None:
    answer = one(cluster(running("one", 2, **more)), suspended=["one"])
    assert isinstance(answer, Hold) and why in answer.explanation.sentence
    assert answer.explanation.sentence.startswith("one trains on, although an operator suspended it")


def test_what_is_being_changed_is_suspended_only_afterwards() -> None:
    assert decided(cluster(running("one", 2, busy=True, state="adjusting")), suspended=["one", "unknown"]) == []


# draining


def two_nodes(*jobs: Any, idle: int = 4, **there: Any) -> ClusterSnapshot:
    return cluster(*jobs, nodes=(node("a", used=4), node("b", idle=idle, **there)))


def test_a_job_on_a_drained_node_moves_to_another_one_with_as_many_gpus() -> None:
    answer = one(two_nodes(running("one", 2)), drained=["a"])
    assert isinstance(answer, Move) and (answer.node, answer.num_gpus) == ("b", 2)
    assert answer.explanation.sentence == "one moves from a to b: an operator drains a."
    assert [(c.num_gpus, bool(c.rejected)) for c in answer.explanation.candidates] == [(2, False), (1, True)]


def test_it_shrinks_where_the_other_node_has_fewer_and_the_next_job_takes_what_is_left() -> None:
    first, second = decided(
        two_nodes(running("one", 4, submit_s=1.0), running("two", 1, submit_s=2.0), idle=3), drained=["a"]
    )
    assert isinstance(first, Move) and (first.job, first.num_gpus) == ("one", 2)
    assert "moves from a to b and from 4 to 2 GPUs: an operator drains a." in first.explanation.sentence
    assert isinstance(second, Move) and (second.job, second.num_gpus) == ("two", 1)


def test_it_keeps_the_count_that_an_operator_requested() -> None:
    answer = one(two_nodes(running("one", 2, wanted=2), idle=1), drained=["a"])
    assert isinstance(answer, Hold)
    assert answer.explanation.sentence == (
        "one stays on a, which an operator drains: no other node has 2 idle GPUs on which it can train; it leaves when "
        "one has."
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"rigid": True}, "it has not shown that it can save and resume, so it trains there to its end"),
        ({"pinned": "a"}, "it is pinned to a"),
        ({"stays": True}, "no checkpoint_claim"),
        ({"gpu_type": "K80"}, "no other node has 1 or 2 idle GPUs"),
    ],
)
def test_what_cannot_leave_is_left_alone_and_says_why(more: dict[str, Any], why: str) -> None:
    answer = one(two_nodes(running("one", 2, **more)), drained=["a"])
    assert isinstance(answer, Hold) and answer.explanation.algorithm == DRAIN
    assert why in answer.explanation.sentence


def test_a_job_on_a_silent_node_is_not_told_to_leave() -> None:
    silent = cluster(running("one", 1), nodes=(node("a", used=1, heard=False), node("b", idle=4)))
    assert "not been heard of" in one(silent, drained=["a"]).explanation.sentence


def test_neither_a_drained_nor_a_closed_node_takes_what_leaves_another() -> None:
    nodes = (node("a", used=1), node("b", idle=4), node("c", idle=4, schedulable=False))
    assert isinstance(one(cluster(running("one", 1), nodes=nodes), drained=["a", "b"]), Hold)


def test_a_job_over_several_hosts_keeps_what_it_has_elsewhere() -> None:
    spread = running("one", 4, max_workers=2, workers=(Worker("a", 2), Worker("b", 2)))
    answer = one(cluster(spread, nodes=(node("a", used=2), node("b", used=2))), drained=["b"])
    assert isinstance(answer, Reshape) and (answer.node, answer.num_gpus, answer.workers) == ("a", 2, ())
    assert answer.explanation.sentence == "one goes from 4 to 2 GPUs on a: an operator drains b."
    launched_there = one(cluster(spread, nodes=(node("a", used=2), node("b", used=2))), drained=["a"])
    assert isinstance(launched_there, Hold), "its launch is on a"


def test_a_gang_gives_its_last_pods_and_stays_where_its_first_one_is() -> None:
    gang = running("one", 4, gpus_per_pod=1, max_workers=4, pods=("a", "a", "b", "b"),
                   workers=(Worker("a", 2), Worker("b", 2)))  # fmt: skip
    nodes = (node("a", used=2), node("b", used=2), node("c", idle=4))
    answer = one(cluster(gang, nodes=nodes), drained=["b"])
    assert isinstance(answer, Reshape) and (answer.node, answer.num_gpus) == ("a", 2)
    assert "its first pods are there" in one(cluster(gang, nodes=nodes), drained=["a"]).explanation.sentence


def test_a_job_trained_on_cpu_moves_where_a_new_one_would_start() -> None:
    nodes = (cpu_node("c"), cpu_node("d"))
    answer = one(cluster(on_cpu("one"), nodes=nodes), drained=["c"])
    assert isinstance(answer, Move) and (answer.node, answer.num_gpus) == ("d", 0)
    full = one(cluster(on_cpu("one"), nodes=nodes), drained=["c", "d"])
    assert "no other node has the cores for it" in full.explanation.sentence


def test_a_suspended_job_on_a_drained_node_has_one_answer() -> None:
    assert isinstance(one(two_nodes(running("one", 2)), drained=["a"], suspended=["one"]), Requeue)


@given(st.integers(0, 10**6))
def test_whatever_is_suspended_and_drained_no_decision_loses_work_or_uses_what_was_taken_away(seed: int) -> None:
    snapshot, settings = drawn(seed)
    rng = random.Random(f"evicted {seed}")
    drained = frozenset(n.name for n in snapshot.nodes if rng.random() < 0.4)
    suspended = frozenset(j.id for j in snapshot.jobs if rng.random() < 0.3)
    given = shown(snapshot, drained, suspended)
    decisions = decide(given, NOW, settings)
    check(given, decisions, anywhere=settings.placement == "count_only")
    for decision in decisions:
        job = given.job[decision.job]
        if isinstance(decision, Requeue) and not decision.yields_to:
            assert job.id in suspended and job.stoppable and not job.stays
        if isinstance(decision, Start | Reshape | Move):
            had = {w.node: w.num_gpus for w in placed_on(job)}
            more = {w.node for w in workers_of(decision) if w.num_gpus > had.get(w.node, 0)}
            assert not more & drained and not (isinstance(decision, Start) and job.id in suspended)
    reasons = [d.job for d in decisions if isinstance(d, Hold)]
    assert len(reasons) == len(set(reasons)), "two reasons to wait would be told in turns for ever"


# in a coordinator


def test_a_suspended_job_saves_lets_others_have_its_gpus_and_goes_on_where_it_was_when_it_is_resumed() -> None:
    world = World.training([4])
    world.submit("two", [4], Behaviour(iterations=10))
    decision_id = world.api.operator.suspend("one")["decision_id"]
    world.run(lambda w: w.states() == {"one": s.SUBMITTED, "two": s.COMPLETED}, 200)
    record = world.job("one")
    view = world.api.jobs.job("one")
    assert (record.preempts, view["suspended"]) == (0, True) and record.doc["checkpoint"]
    assert view["message"] == "one is suspended by an operator; `reshape resume one` lets it start."
    assert world.api.history.decision(decision_id)["kind"] == "requeue", "what became of the wish is told under its id"
    world.pass_time(60)
    assert [gpu["state"] for gpu in world.api.fleet.gpus()] == ["idle"] * 4, "nothing starts it unasked"
    done = world.job("one").iterations_done
    world.api.operator.resume("one")
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    world.pass_time(5)
    assert world.job("one").generation == 2 and not world.api.jobs.job("one")["suspended"]
    assert world.machines.present("one").steps > done > 0, "no step was lost"  # type: ignore[union-attr]
    assert world.broken() == []


def test_a_job_that_does_not_start_again_after_a_reshape_is_held_and_its_newcomer_trains_on() -> None:
    world = World.training([2, 4])
    world.pass_time(20)
    tail = "Traceback\nFileExistsError: [Errno 17] File exists: 'out'\n"
    world.submit("two", [2], Behaviour(iterations=40_000))
    world.run(lambda w: bool(w.machines.disk))  # it has been stopped and has saved
    behaviour = world.machines.of("one")
    behaviour.exits, behaviour.output_tail = [1] * 4, tail
    world.run(lambda w: bool(w.job("one").held) and w.job("one").doc.get("down") == 1, 200)
    view = world.api.jobs.job("one")
    done = world.job("one").iterations_done
    assert (view["state"], view["suspended"], view["num_gpus"]) == ("submitted", True, 0) and done > 0
    assert view["held"] == "the training process ended with exit code 1: FileExistsError: [Errno 17] File exists: 'out'"
    assert view["message"] == (
        f"one is held: {view['held']}. Mend this, then `reshape resume one` starts it from what it has saved; "
        "`reshape cancel one` ends it."
    )
    assert (words.state(view), view["starts_between"], view["ends_between"]) == ("held", None, None)
    assert "one is held: " in next(
        e["sentence"] for e in world.api.history.events_after(0, 1_000) if e["type"] == "held"
    )
    assert 'reshape_pending_jobs{reason="held"} 1.0' in world.api.status.metrics().decode()
    two = world.job("two")
    world.boot()
    world.pass_time(120)
    assert world.api.jobs.job("one")["message"] == view["message"], "it is not tried again, and says so still"
    assert sorted(gpu["state"] for gpu in world.api.fleet.gpus()) == ["idle", "idle", "in use", "in use"]
    assert (world.job("two").generation, world.states()["two"]) == (two.generation, s.RUNNING) and two.generation == 1
    world.api.operator.resume("one")
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    assert world.machines.present("one").base == done, "no step was lost"  # type: ignore[union-attr]
    assert (world.api.jobs.job("one")["held"], world.api.jobs.job("one")["suspended"], world.broken()) == (
        None,
        False,
        [],
    )


def test_a_waiting_job_that_is_resumed_waits_for_gpus_again_with_that_reason() -> None:
    world = World.training([4], elastic=False)
    world.submit("two", [4])
    world.tick()
    reason = world.api.jobs.job("two")["message"]
    world.api.operator.suspend("two")
    world.tick()
    assert "is suspended by an operator" in world.api.jobs.job("two")["message"] != reason
    world.api.operator.resume("two")
    world.tick()
    assert world.api.jobs.job("two")["message"] == reason


def refused(call: Any, *arguments: Any) -> tuple[str, int]:
    with pytest.raises(Rejected) as refusal:
        call(*arguments)
    return str(refusal.value), refusal.value.status


def test_a_wish_that_makes_no_sense_is_refused_with_what_to_do() -> None:
    world = World.training([1, 2], elastic=None)
    sentence, status = refused(world.api.operator.suspend, "one")
    assert status == 409 and sentence.endswith("cancel it, or let it train to its end.")
    assert sentence.startswith("Job one cannot be suspended: it has not shown that it can save and resume")
    assert refused(world.api.operator.resume, "one") == ("Job one is not suspended: there is nothing to resume.", 409)
    assert refused(world.api.operator.suspend, "nobody")[1] == 404
    assert refused(world.api.drains.drain, "nowhere", True) == (
        "There is no node 'nowhere'; `reshape nodes` lists all.", 404,
    )  # fmt: skip
    world.api.operator.cancel("one")
    world.run(lambda w: w.states()["one"] == s.CANCELLED, 60)
    assert refused(world.api.operator.suspend, "one")[1] == 409


OTHER = FoundNode("b", tuple(FoundGpu(f"b-{i}", GPU_TYPE, None, True) for i in range(2)))


def test_a_drained_node_is_left_by_what_can_and_takes_nothing_until_it_is_undrained() -> None:
    world = World(nodes=[OTHER])
    world.submit("kept", [2], Behaviour(iterations=4_000), elastic=False, node="n1")
    world.submit("moves", [1, 2], Behaviour(iterations=4_000), gpu_type=GPU_TYPE)
    world.run(lambda w: set(w.states().values()) == {s.RUNNING}, 60)
    home = world.job("moves").node
    assert home is not None
    told = {job["job_id"]: job["stays"] for job in world.api.drains.drain(home, True)["jobs"]}
    assert told["moves"] is None and ("kept" not in told or "false" in told["kept"])
    world.run(lambda w: w.job("moves").node != home and w.states()["moves"] == s.RUNNING, 200)
    why = next(d for d in world.api.history.decisions("moves", 10) if d["kind"] == "move")
    assert (why["algorithm"], f"an operator drains {home}" in why["sentence"]) == (DRAIN, True)
    world.api.drains.drain("n1", True)
    world.api.drains.drain("b", True)
    world.submit("new", [1])
    world.pass_time(10)
    assert world.states() == {"kept": s.RUNNING, "moves": s.RUNNING, "new": s.SUBMITTED}
    assert "every node is closed to new jobs" in world.api.jobs.job("new")["message"]
    assert "it leaves when one has" in world.job("moves").doc["message"]
    assert [(n["node"], n["drained"], n["schedulable"]) for n in world.api.fleet.nodes()] == [
        ("b", True, False), ("n1", True, False),
    ]  # fmt: skip
    world.api.drains.drain("n1", False)
    world.run(lambda w: w.states()["new"] != s.SUBMITTED, 60)
    assert world.job("new").node == "n1" and world.broken() == []


@pytest.mark.parametrize("restarted", [False, True], ids=["same coordinator", "another coordinator"])
def test_a_job_that_stayed_on_a_drained_node_says_so_until_it_is_undrained(restarted: bool) -> None:
    world = World.training([1, 2], elastic=False)
    world.api.drains.drain("n1", True)
    world.pass_time(15)
    assert "stays on n1, which an operator drains" in world.job("one").doc["message"]
    if restarted:
        world.boot()
        world.pass_time(15)
        assert "stays on n1" in world.job("one").doc["message"]
    world.api.drains.drain("n1", False)
    world.pass_time(15)
    assert world.job("one").doc["message"] == "trains"
    told = [event["type"] for event in world.c.event_log.after(0, 1_000) if event.get("job_id") == "one"]
    assert told.count("hold withdrawn") == 1
    world.api.drains.drain("n1", True)
    world.pass_time(15)
    assert "stays on n1" in world.job("one").doc["message"]


def test_the_reason_why_a_request_waits_goes_with_the_request() -> None:
    world = World()
    world.submit("fills", [2], Behaviour(iterations=4_000), elastic=False)
    world.run(lambda w: w.states()["fills"] == s.RUNNING, 100)
    world.submit("one", [1, 4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 100)
    world.api.operator.request("one", 4, None)
    world.pass_time(15)
    assert "one keeps 1 GPU, although 4 were requested" in world.job("one").doc["message"]
    world.api.operator.request("one", None, None)
    world.pass_time(15)
    assert world.job("one").doc["message"] == "trains"


def test_a_move_off_a_drained_node_spends_no_move_of_specon() -> None:
    world = World(nodes=[FoundNode("c", cores=2.0), FoundNode("d", cores=2.0)], settings=DEFAULTS)
    world.submit("one", [0], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    home = world.job("one").node
    world.api.drains.drain(str(home), True)
    world.run(lambda w: w.job("one").doc.get("moves") == 1, 100)
    assert world.job("one").node != home and world.job("one").doc.get("migrated_ts") is None


def test_a_drain_outlives_a_restart_of_reshape_up() -> None:
    world = World()
    world.api.drains.drain("n1", True)
    own = tuple(FoundGpu(f"gpu-{i}", GPU_TYPE, None, True) for i in range(4))
    register_nodes(world.store, [FoundNode("n1", own, cores=3.0)])
    row = world.users.get("nodes", "n1")
    assert row is not None and (row["drained"], row["cores"]) == (True, 3.0)
