"""Device modes, chosen per queue: `shared` jobs are reshaped in their launch, `recreate` ones by another launch.

In mode `recreate` a launch takes its GPUs as it is made, so it may be made only when nobody else uses them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adaptive_scheduler.cost_table import CostTable
from adaptive_scheduler.decision import Reshape, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.prediction import cross_host_s, reshape_cost_s, reshape_overhead_s
from adaptive_scheduler.profiles.profiles import Overheads, Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node
from coordinator.config import Config
from coordinator.model import states as s
from coordinator.reconcile.actions import RequestLaunch, StopTrainer, WriteJob
from coordinator.reconcile.lifecycle import next_step
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World
from tests.unit.coordinator.situations import BOOKED, job, mine, newcomer, seen, victim, waits, world

MODES = ("shared", "recreate")
COST = {"k8s_init": 30.0, "k8s_term": 20.0, "proc_init": 2.0, "proc_term": 1.0, "ckpt": 0.5}


def ground(config: Config = SHORT, **queues: str) -> World:
    made = World(config=config)
    for name, devices in queues.items():
        made.users.put("queues", {"_id": name, "inject": True, "devices": devices})
    launch = made.machines.launch

    def checked(doc: dict[str, Any]) -> None:
        """A device plugin would give nobody a GPU that a pod has."""
        others = [made.gpu(g) for g in doc["gpu_ids"] if made.gpu(g).held_by not in (None, str(doc["job_id"]))]
        assert doc["devices"] == "shared" or not others, f"{doc['job_id']} is launched before {others} are free"
        launch(doc)

    made.machines.launch = checked  # type: ignore[method-assign]
    return made


def runs_on(name: str, count: int) -> Any:
    return lambda w: w.states().get(name) == s.RUNNING and len(w.job(name).gpu_ids) == count


# which mode a job has


def test_a_job_has_the_mode_of_its_queue_and_shared_where_that_says_nothing() -> None:
    w = ground(own="recreate", other="shared")
    for name, queue in (("one", "own"), ("two", "other"), ("three", "unknown"), ("four", None)):
        w.submit(name, [4], queue=queue)
    w.tick()
    modes = {name: w.job(name).doc["devices"] for name in ("one", "two", "three", "four")}
    assert modes == {"one": "recreate", "two": "shared", "three": "shared", "four": "shared"}


def test_a_queue_that_changes_takes_those_along_that_wait_and_nobody_else() -> None:
    w = ground(q="shared")
    w.submit("runs", [4], queue="q")
    w.submit("waits", [4], queue="q")
    w.run(lambda w: w.states()["runs"] == s.RUNNING)
    w.users.put("queues", {"_id": "q", "devices": "recreate"})
    w.tick()
    w.tick()
    assert (w.job("runs").doc["devices"], w.job("waits").doc["devices"]) == ("shared", "recreate")


def test_what_a_user_writes_there_is_not_believed() -> None:
    w = ground(q="shared")
    w.submit("one", [1], queue="q", devices="recreate")
    w.tick()
    assert w.job("one").doc["devices"] == "shared"


# what each mode does


@pytest.mark.parametrize("mode", MODES)
def test_up_in_the_living_launch_or_by_another_one(mode: str) -> None:
    w = ground(q=mode)
    w.submit("blocks", [2], Behaviour(iterations=30))
    w.submit("one", [2, 4], Behaviour(iterations=2_000), queue="q")
    w.run(runs_on("one", 2))
    assert w.job("one").launch == 1
    w.run(runs_on("one", 4))
    assert w.job("one").launch == (1 if mode == "shared" else 2)
    assert w.job("one").doc["reshapes"] == 1


@pytest.mark.parametrize("newcomers", MODES)
@pytest.mark.parametrize("victims", MODES)
def test_down_for_a_newcomer(victims: str, newcomers: str) -> None:
    w = ground(v=victims, n=newcomers)
    w.submit("old", [2, 4], Behaviour(iterations=2_000), queue="v")
    w.run(runs_on("old", 4))
    w.passed.clear()
    w.submit("new", [2], Behaviour(iterations=300), queue="n")
    w.run(lambda w: runs_on("new", 2)(w) and runs_on("old", 2)(w))
    assert w.job("old").launch == (1 if victims == "shared" else 2)
    assert w.job("new").launch == 1
    launched, stopped = w.passed.index("after:launch"), w.passed.index("after:stop")
    assert (launched < stopped) == (newcomers == "shared"), "early initialization is for shared newcomers only"


@pytest.mark.parametrize("mode", MODES)
def test_a_crashed_trainer_starts_again_in_its_launch_in_both_modes(mode: str) -> None:
    w = ground(q=mode)
    w.submit("one", [2], Behaviour(iterations=200, exits=[1]), queue="q")
    w.run(lambda w: w.job("one").generation == 2 and runs_on("one", 2)(w))
    assert w.job("one").launch == 1


# single steps


def test_a_recreate_newcomer_waits_for_its_gpus_and_its_victim_does_not_wait_for_it() -> None:
    late = newcomer(devices="recreate")
    waits(world(late, None, BOOKED, victim()), "still in use")
    assert next_step(world(victim(), seen(), BOOKED, late)) == StopTrainer(2, in_place=True, gpu_ids=("c", "d"))
    assert isinstance(next_step(world(newcomer(), None, BOOKED, victim(devices="recreate"))), RequestLaunch)


@pytest.mark.parametrize(("mode", "how"), [("shared", "in place"), ("recreate", "relaunch")])
def test_a_victim_gives_in_its_own_way_whatever_its_newcomers_is(mode: str, how: str) -> None:
    running = job(s.RUNNING, "c", "d", "a", "b", devices=mode)
    step = next_step(world(newcomer(), None, mine("a", "b", "c", "d"), running))
    assert isinstance(step, WriteJob)
    assert (step.name, step.changes["reshape"]["how"]) == ("book victim", how)


# jobs whose checkpoints end with their pod


FORGETFUL = replace(SHORT, checkpoints_last=False)


def test_without_a_claim_a_recreate_job_is_let_in_only_if_it_is_never_reshaped() -> None:
    w = ground(FORGETFUL, own="recreate", other="shared")
    w.submit("many", [1, 2], queue="own")
    w.submit("one", [2], queue="own")
    w.submit("kept", [1, 2], queue="own", checkpoint_claim="claim")
    w.submit("shared", [1, 2], queue="other")
    w.tick()
    assert "name a PersistentVolumeClaim in checkpoint_claim" in w.job("many").doc["problems"][0]
    assert [w.job(name).doc["problems"] for name in ("one", "kept", "shared")] == [[], [], []]


def test_without_a_claim_a_running_job_stays_where_it_is_and_is_not_sent_back_to_the_queue() -> None:
    w = ground(FORGETFUL, q="shared")
    w.submit("one", [1, 2], Behaviour(iterations=2_000), queue="q")
    w.submit("kept", [2], Behaviour(iterations=2_000), queue="q", checkpoint_claim="claim")
    w.run(lambda w: set(w.states().values()) == {s.RUNNING})
    seen_ = w.c.loop.present()[0].job
    assert (seen_["one"].pinned, seen_["one"].stays) == ("n1", True)
    assert (seen_["kept"].pinned, seen_["kept"].stays) == (None, False)


def test_a_job_that_would_lose_all_in_another_launch_is_never_reshaped() -> None:
    one = snapshot(1000.0, stays=True, relaunches=True)
    assert decide(one, 0.0, Settings(systems=("elastic",))) == ()
    assert [type(d) for d in decide(snapshot(1000.0, stays=True), 0.0, Settings(systems=("elastic",)))] == [Reshape]


# what it costs reaches the decision


def costs() -> Profiles:
    overheads = {"job_type": "t", "origin": "measured", **COST}
    speeds = [
        {"job_type": "t", "gpu_type": "V100", "num_gpus": n, "seconds_per_iteration": 1.0 / n, "origin": "measured"}
        for n in (1, 2, 4)
    ]
    return Profiles.from_rows(speeds, [overheads], [])


def snapshot(left: float, **more: Any) -> ClusterSnapshot:
    held = tuple(Gpu(f"g{i}", "in use", "one", "one") for i in range(2))
    node = Node("n", "V100", (*held, Gpu("g2"), Gpu("g3")))
    one = Job("one", "t", "running", (1, 2, 4), num_gpus=2, node="n", iterations_left=left, **more)
    return ClusterSnapshot((node,), (one,), costs())


def test_another_launch_costs_what_ending_one_and_beginning_one_costs() -> None:
    shared = snapshot(1.0).jobs[0]
    recreate = replace(shared, relaunches=True)
    o: Overheads = costs().overheads("t")
    assert (reshape_overhead_s(costs(), shared), reshape_overhead_s(costs(), recreate)) == (o.reshape, o.reshape + 50.0)
    table = CostTable(replace(snapshot(1.0), jobs=(shared, replace(recreate, id="two"))), 0.0, Settings())
    assert table.jobs.lets_go.tolist() == [1.5, 21.5]
    assert reshape_cost_s(costs(), replace(recreate, reshape_cost_s=7.0)) == 7.0
    assert cross_host_s(costs(), recreate) == 0.0, "it is in the cost of every reshape already"


def test_elastic_grows_a_shared_job_where_it_leaves_a_recreate_one_alone() -> None:
    settings = Settings(systems=("elastic",))
    grown = decide(snapshot(100.0), 0.0, settings)
    assert [type(d) for d in grown] == [Reshape]
    assert decide(snapshot(100.0, relaunches=True), 0.0, settings) == ()
    assert [type(d) for d in decide(snapshot(1000.0, relaunches=True), 0.0, settings)] == [Reshape]


def test_a_recreate_newcomer_counts_the_wait_for_its_victim() -> None:
    def makespan(**more: Any) -> float:
        full = snapshot(1000.0)
        node = replace(full.nodes[0], gpus=tuple(Gpu(f"g{i}", "in use", "one", "one") for i in range(4)))
        old = replace(full.jobs[0], num_gpus=4)
        new = Job("two", "t", "submitted", (2,), submit_s=-1.0, iterations_left=3000.0, **more)
        (start,) = decide(ClusterSnapshot((node,), (old, new), costs()), 0.0, Settings(systems=("elastic",)))
        assert isinstance(start, Start)
        return start.explanation.candidates[0].job_s

    assert makespan(relaunches=True) - makespan() == pytest.approx(1.5)
