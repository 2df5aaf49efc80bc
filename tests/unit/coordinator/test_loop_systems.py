"""What the four systems decide, carried into documents by the loop, on a real world with nodes of several kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adaptive_scheduler.decision import Candidate, Explanation, Move, Requeue, Stay
from adaptive_scheduler.settings import Settings
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundNode
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

CPUS = (FoundNode("c", cores=2.0), FoundNode("d", cores=2.0))
WHY = Explanation("test", "so it was decided.")


def cluster(*systems: Any, nodes: tuple[FoundNode, ...] = CPUS) -> World:
    return World(settings=Settings(systems=systems, cooldown_factor=1.0), nodes=nodes)


def running(world: World, job: str = "one", **doc: Any) -> None:
    world.submit(job, [0], Behaviour(iterations=200), **doc)
    world.run(lambda w: w.states()[job] == s.RUNNING, 30)


def test_a_job_trained_on_cpu_starts_on_a_node_with_cores_and_is_given_no_gpu() -> None:
    world = cluster("elastic")
    running(world, node="d")
    job, launch = world.job("one"), world.machines.present("one")
    assert (job.node, job.gpu_ids, job.doc["num_gpus"]) == ("d", (), 0)
    assert launch is not None and launch.status.gpu_ids == []
    assert world.machines.owners == {}


def test_a_job_that_asks_for_more_cores_than_any_node_has_waits_with_the_reason() -> None:
    world = cluster("elastic")
    world.submit("one", [0], resources={"cores": 8})
    world.tick()
    assert world.states()["one"] == s.SUBMITTED
    assert "one waits: no node takes it" in world.job("one").doc["message"]


def test_in_pods_what_the_sidecars_request_is_room_that_no_other_job_gets() -> None:
    """Else one pod too many is bound to a node, and waits there for the others to end while another node has room."""
    nodes = (FoundNode("c", cores=0.2), FoundNode("d", cores=0.2))
    in_pods = World(settings=Settings(systems=("elastic",)), nodes=nodes)
    in_processes = World(settings=Settings(systems=("elastic",)), nodes=nodes, config=replace(SHORT, many_pods=False))
    for world in (in_pods, in_processes):
        for number in range(6):
            world.submit(f"job-{number}", [0], Behaviour(iterations=200), resources={"cores": 0.06})
        world.tick()
    starts = [sum(state != s.SUBMITTED for state in world.states().values()) for world in (in_pods, in_processes)]
    assert starts == [4, 6], "two of 60m and 10m each fit in 200m, three of 60m do"


def test_staying_is_stored_with_its_rejected_hosts_and_spends_the_move_only_if_nothing_was_better() -> None:
    world = cluster("elastic")
    running(world)
    rival = Candidate("d", 0, float("inf"), 2.0, 1.0, "one", rejected="later")
    refused = Explanation("specon.move", "one stays.", (rival,))
    world.order(Stay("one", 1.0, False, refused))
    doc = world.job("one").doc
    assert doc["move_refused_ts"] >= world.clock.wall() and doc["migrated_ts"] is None
    kept = world.users.get("decisions", "one-stays")
    assert kept is not None
    assert (kept["kind"], kept["candidates"][0]["node"], kept["candidates"][0]["makespan_s"]) == ("stay", "d", None)
    world.order(Stay("one", 2.0, True, refused))
    assert world.job("one").doc["migrated_ts"] is not None


def test_the_same_reason_to_stay_is_told_once_though_its_numbers_change() -> None:
    world = cluster("elastic")
    running(world)
    for later in ("4.2", "17"):
        world.order(Stay("one", 1.0, False, Explanation("specon.move", f"one stays: all ends {later} s later.")))
    world.order(Stay("one", 1.0, False, Explanation("specon.move", "one stays: nothing is better.")))
    told = [event["sentence"] for event in world.c.event_log.after(0, 1_000) if event["type"] == "stays"]
    assert told == ["one stays: all ends 4.2 s later.", "one stays: nothing is better."]
    kept = world.users.get("decisions", "one-stays")
    assert kept is not None and kept["sentence"] == "one stays: nothing is better."


def test_a_move_is_told_with_both_nodes_and_cools_the_job_down() -> None:
    world = cluster("elastic")
    running(world)
    origin = world.job("one").node
    world.order(Move("one", "d" if origin == "c" else "c", 0, WHY))
    world.run(lambda w: w.job("one").doc.get("moves") == 1, 60)
    world.c.event_log.flush()
    (moved,) = [e for e in world.users.events_after(0) if e["type"] == "moved"]
    assert (moved["from_node"], moved["to_node"]) == (origin, world.job("one").node)
    assert moved["gap_s"] > 0
    assert world.c.telemetry.reshaped_at["one"] > 0


def test_who_yields_starts_again_only_after_those_it_yields_to() -> None:
    world = cluster("elastic", "deadline", nodes=(FoundNode("c", cores=1.1),))
    running(world, resources={"cores": 1})
    world.submit("two", [0], Behaviour(iterations=10), resources={"cores": 1})
    world.tick()
    world.order(Requeue("one", WHY, ("two",)))
    world.run(lambda w: w.states()["two"] == s.RUNNING, 60)
    assert (world.states()["one"], world.job("one").preempts, world.job("one").yields_to) == (s.SUBMITTED, 1, ("two",))
    world.run(lambda w: w.states()["one"] == s.COMPLETED, 400)
    assert world.job("one").yields_to == ()
    assert world.job("one").iterations_done == 200


def test_a_deadline_that_cannot_hold_is_told_once_with_the_smallest_that_would() -> None:
    world = cluster("elastic", "deadline")
    world.submit("late", [0], estimate="2h", sla="1h")
    world.submit("fine", [0], estimate="1h", sla="2h")
    world.tick()
    (warning,) = world.job("late").doc["warnings"]
    assert "cannot hold its deadline of 3600 s" in warning and "6857.2 s" in warning
    assert world.job("fine").doc["warnings"] == []
    assert world.api.jobs.job("late")["warnings"] == [warning]


def test_without_the_deadline_system_nobody_judges_a_deadline() -> None:
    world = cluster("elastic")
    world.submit("late", [0], estimate="2h", sla="1h")
    world.tick()
    assert world.job("late").doc["warnings"] is None
    assert world.job("late").doc["expected_s"] is None


def test_as_it_starts_it_is_written_down_how_long_a_job_is_expected_to_train() -> None:
    world = cluster("elastic", "deadline")
    running(world, estimate="5m")
    assert world.job("one").doc["expected_s"] == 300.0


def test_finished_jobs_teach_how_long_tasks_like_theirs_take_also_a_successor() -> None:
    world = cluster("elastic", "deadline")
    world.submit("one", [0], Behaviour(iterations=20), resources={"cores": 1})
    world.run(lambda w: w.at_rest(), 100)
    (known,) = world.c.telemetry.estimator.observations().rows
    assert (known.cores, known.gpus) == (1.0, 0.0)
    assert known.execution_s == pytest.approx(world.job("one").doc["ran_s"])
    world.c._flush()
    world.boot()
    assert world.c.telemetry.estimator.observations().rows == (known,)
    world.submit("two", [0], Behaviour(iterations=20), resources={"cores": 1})
    world.run(lambda w: w.states()["two"] == s.RUNNING, 60)
    assert world.job("two").doc["expected_s"] == pytest.approx(known.execution_s)


def test_a_job_with_a_target_ends_with_a_checkpoint_once_its_value_is_there() -> None:
    world = cluster("elastic")
    behaviour = Behaviour(iterations=500, value=0.5)
    world.submit("one", [0], behaviour, target={"value": 0.9, "name": "val_accuracy"})
    world.run(lambda w: w.states()["one"] == s.RUNNING, 30)
    for _ in range(5):
        world.tick()
    assert world.states()["one"] == s.RUNNING
    behaviour.value = 0.92
    world.run(lambda w: w.at_rest(), 60)
    job = world.job("one")
    assert (job.state, job.doc["checkpoint"]["step"]) == (s.COMPLETED, world.machines.disk["one"].step)
    assert job.iterations_done < 500


def test_a_job_with_a_target_is_as_long_as_its_curve_says_and_teaches_the_next_of_its_type() -> None:
    world, code = cluster("elastic"), Behaviour(iterations=400, value=0.0, value_name="val_top5")
    world.submit("one", [1], code, job_type="t", target_top5=0.9)

    def trains(until: int) -> bool:
        """Its error is 1 / (1 + k/20): it is 0.1 after 180 iterations."""
        beat = world.c.telemetry.reports.newest_of_job(world.job("one"))
        done = beat.progress.iterations if beat is not None else 0
        code.value = 1 - 1 / (1 + done / 20)
        return done >= until or world.states()["one"] == s.COMPLETED

    world.run(lambda w: trains(40))
    left = world.api.jobs.job("one")["iterations_left"]
    assert 100 < left < 180
    world.run(lambda w: trains(400))
    assert world.job("one").doc["value"] >= 0.9
    assert world.job("one").iterations_done < 250, "ended by its target, not by its length"
    world.c._flush()
    assert world.users.list("accuracy_profiles")
    world.submit("two", [1], Behaviour(iterations=400), job_type="t", target_top5=0.9)
    world.tick()
    world.tick()
    view = world.api.jobs.job("two")
    assert not view["length_unsure"]
    assert view["iterations_left"] == pytest.approx(180, rel=0.15)
