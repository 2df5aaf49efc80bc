"""What each decision writes into a job: concrete GPUs, and nothing where they are no longer there."""

from __future__ import annotations

import pytest

from adaptive_scheduler.decision import Explanation, Finish, Move, Operation, Requeue, Reshape, Start, Victim
from adaptive_scheduler.snapshot import Gpu, Node, Worker
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.records import Doc, GpuRecord, JobRecord
from coordinator.scheduling.binding import BindingContext, bind
from tests.unit.coordinator.situations import WALL, gpu, job, reshape_of, start_of

WHY = Explanation("test", "so.")


def on(node: str, *gpus: GpuRecord) -> list[GpuRecord]:
    return [GpuRecord({**g.doc, "node": node, "index": n}) for n, g in enumerate(gpus)]


def write(decision: Operation, jobs: list[JobRecord], gpus: list[GpuRecord]) -> Doc:
    known = {j.id: j for j in jobs}
    nodes = {
        name: Node(name, "V100", tuple(Gpu(g.id) for g in gpus if g.node == name)) for name in {g.node for g in gpus}
    }
    return bind(decision, BindingContext(known, nodes, known, {g.id: g for g in gpus}, WALL, "in place"))


def queued(name: str = "one", **more: object) -> JobRecord:
    return job(s.SUBMITTED, name=name, generation=3, launch=2, **more)


def test_a_start_takes_idle_gpus_of_its_node_in_their_order() -> None:
    gpus = on("n", gpu("b"), gpu("a"), gpu("c", "x", "x")) + on("m", gpu("d"))
    found = write(Start("one", "n", 2, WHY), [queued(yields_to=["x"])], gpus)
    assert (found["state"], found["node"], found["gpu_ids"], found["launch"]) == (s.INITIALIZING, "n", ["b", "a"], 3)
    assert (found["reshape"]["kind"], found["reshape"]["generation"], found["yields_to"]) == ("start", 4, None)


def test_a_start_on_cpu_takes_a_node_and_no_gpu() -> None:
    found = write(Start("one", "n", 0, WHY), [queued()], on("n", gpu("a")))
    assert (found["node"], found["gpu_ids"], found["num_gpus"], found["reshape"]["to"]) == ("n", [], 0, [])


def test_a_start_over_several_hosts_takes_from_each_what_was_decided() -> None:
    gpus = on("n", gpu("a"), gpu("b")) + on("m", gpu("c"), gpu("d"))
    spread = Start("one", "n", 3, WHY, workers=(Worker("n", 2), Worker("m", 1)))
    assert write(spread, [queued()], gpus)["gpu_ids"] == ["a", "b", "c"]


def test_gpus_that_another_intent_names_are_not_idle() -> None:
    starting = job(s.INITIALIZING, "a", name="two", op=start_of("a"))
    with pytest.raises(Conflict, match="2 GPUs are no longer there"):
        write(Start("one", "n", 2, WHY), [queued(), starting], on("n", gpu("a"), gpu("b")))


def test_what_a_victim_gives_comes_after_the_idle_ones() -> None:
    victim = job(s.RUNNING, "a", "b", "c", name="v", node="n")
    gpus = on("n", gpu("a", "v", "v"), gpu("b", "v", "v"), gpu("c", "v", "v"), gpu("d"))
    found = write(Start("one", "n", 3, WHY, victim="v", victim_num_gpus=1), [queued(), victim], gpus)
    assert found["gpu_ids"] == ["d", "b", "c"]
    assert found["reshape"]["victims"] == [{"job": "v", "generation": 1, "keeps": ["a"]}]


def test_each_of_several_victims_gives_its_last_gpus() -> None:
    victims = [job(s.RUNNING, "a", "b", name="v", node="n"), job(s.RUNNING, "c", "d", "e", name="w", generation=4)]
    gpus = on("n", *(gpu(name, "v", "v") for name in "ab"), *(gpu(name, "w", "w") for name in "cde"))
    start = Start("one", "n", 3, WHY, victim="v", victim_num_gpus=1, more_victims=(Victim("w", 1),))
    found = write(start, [queued(), *victims], gpus)
    assert found["gpu_ids"] == ["b", "d", "e"]
    promised = [{"job": "v", "generation": 1, "keeps": ["a"]}, {"job": "w", "generation": 4, "keeps": ["c"]}]
    assert found["reshape"]["victims"] == promised


def test_a_reshape_keeps_what_it_has_and_adds_or_gives_up_the_rest() -> None:
    running, gpus = (
        job(s.RUNNING, "b", "a", node="n"),
        on("n", gpu("a", "one", "one"), gpu("b", "one", "one"), gpu("c")),
    )
    assert write(Reshape("one", "n", 3, WHY), [running], gpus)["reshape"]["to"] == ["b", "a", "c"]
    assert write(Reshape("one", "n", 1, WHY), [running], gpus)["reshape"]["to"] == ["b"]


def test_a_reshape_over_a_further_host_keeps_the_gpus_of_the_first() -> None:
    running, gpus = job(s.RUNNING, "a", node="n"), on("n", gpu("a", "one", "one")) + on("m", gpu("c"))
    grown = Reshape("one", "n", 2, WHY, workers=(Worker("n", 1), Worker("m", 1)))
    assert write(grown, [running], gpus)["reshape"]["to"] == ["a", "c"]


def test_a_move_names_both_nodes_and_always_takes_another_launch() -> None:
    running, gpus = job(s.RUNNING, "a", node="n"), on("n", gpu("a", "one", "one")) + on("m", gpu("c"))
    found = write(Move("one", "m", 1, WHY), [running], gpus)
    op = found["reshape"]
    assert (found["state"], op["kind"], op["from"], op["to"]) == (s.ADJUSTING, "move", ["a"], ["c"])
    assert (op["from_node"], op["node"], op["how"], op["spends"]) == ("n", "m", "relaunch", {})
    assert "node" not in found, "it stays where it is until it has stopped there"


@pytest.mark.parametrize(("rebalance", "spends"), [(False, {"migrated_ts": WALL}), (True, {"rebalanced": True})])
def test_a_move_of_a_job_on_cpu_spends_its_one_chance_of_that_kind(rebalance: bool, spends: Doc) -> None:
    running = job(s.RUNNING, node="n", optional_num_gpus=[0])
    found = write(Move("one", "m", 0, WHY, rebalance=rebalance), [running], [])
    assert found["reshape"]["spends"] == spends


def test_who_yields_or_finishes_is_stopped_and_given_nothing() -> None:
    running = job(s.RUNNING, "a", node="n")
    yields = write(Requeue("one", WHY, ("two",)), [running], on("n", gpu("a", "one", "one")))["reshape"]
    assert (yields["kind"], yields["to"], yields["yields_to"], yields["how"]) == ("requeue", [], ["two"], "in place")
    assert write(Finish("one", WHY), [running], [])["reshape"]["kind"] == "finish"


def test_a_job_that_grows_elsewhere_does_not_take_what_a_growing_one_was_promised() -> None:
    growing = job(s.ADJUSTING, "a", name="two", op=reshape_of(("a",), ("a", "b")))
    with pytest.raises(Conflict):
        write(Start("one", "n", 1, WHY), [queued(), growing], on("n", gpu("a", "two", "two"), gpu("b")))


def gang_of(*gpus: str, **more: object) -> JobRecord:
    return job(s.RUNNING, *gpus, node="n", gpus_per_pod=1, optional_num_gpus=[1, 2, 3, 4], **more)


def test_a_gang_that_grows_keeps_all_its_gpus_in_their_order_and_gets_more_behind_them() -> None:
    gpus = on("n", gpu("a", "one", "one"), gpu("b", "one", "one"), gpu("c")) + on("m", gpu("d", "one", "one"), gpu("e"))
    grows = Reshape("one", "n", 4, WHY, (Worker("n", 3), Worker("m", 1)))
    assert write(grows, [gang_of("a", "d", "b")], gpus)["reshape"]["to"] == ["a", "d", "b", "c"]


def test_a_gang_that_shrinks_keeps_its_first_pods_wherever_they_are() -> None:
    gpus = on("n", gpu("a", "one", "one"), gpu("b", "one", "one")) + on("m", gpu("d", "one", "one"))
    shrinks = Reshape("one", "n", 2, WHY, (Worker("n", 1), Worker("m", 1)))
    assert write(shrinks, [gang_of("a", "d", "b")], gpus)["reshape"]["to"] == ["a", "d"]
