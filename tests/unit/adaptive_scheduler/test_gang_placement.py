"""Gangs, jobs of several pods: whole pods on each node, the first ones stay where they are, the last ones leave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler.candidates import spread
from adaptive_scheduler.decision import (
    BrokenDecision,
    Explanation,
    Move,
    Reshape,
    Start,
    check,
    givable,
    gives_on,
)
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node, Worker
from adaptive_scheduler.tentative_snapshot import after

ELASTIC = Settings(systems=("elastic",))
WHY = Explanation("test", "so.")
ROWS = [
    {"job_type": "t", "gpu_type": "V100", "num_gpus": n, "seconds_per_iteration": 1 / n} for n in (1, 2, 3, 4, 6, 8)
]
PROFILES = Profiles.from_rows(ROWS, [], [])


def node(name: str, idle: int, used: int = 0) -> Node:
    gpus = [Gpu(f"{name}{i}", "in use" if i < used else "idle") for i in range(idle + used)]
    return Node(name, "V100", tuple(gpus))


def gang(*pods: str, each: int = 1, optional: tuple[int, ...] = (2, 3, 4), **more: object) -> Job:
    workers = tuple(Worker(n, each * pods.count(n)) for n in dict.fromkeys(pods)) if len(set(pods)) > 1 else ()
    about = Job(
        "gang", "t", "running", optional, num_gpus=each * len(pods), node=pods[0] if pods else None,
        iterations_left=1e5, gpus_per_pod=each, pods=pods, workers=workers, max_workers=max(optional) // each,
    )  # fmt: skip
    return replace(about, **more)  # type: ignore[arg-type]


def world(*jobs: Job, nodes: tuple[Node, ...]) -> ClusterSnapshot:
    return ClusterSnapshot(nodes=nodes, jobs=jobs, profiles=PROFILES)


def test_a_spread_takes_whole_pods_of_each_node() -> None:
    nodes = [node("a", 3), node("b", 3)]
    assert spread(4, nodes, 2, each=2) == (Worker("a", 2), Worker("b", 2))
    assert spread(4, nodes, 2) == (Worker("a", 3), Worker("b", 1))
    assert spread(6, nodes, 2, each=2) == ()


def test_a_waiting_gang_starts_over_nodes_that_each_hold_whole_pods() -> None:
    waiting = gang(each=2, optional=(4,), state="submitted")
    found = decide(world(waiting, nodes=(node("a", 3), node("b", 3))), 0.0, ELASTIC)
    (start,) = [d for d in found if isinstance(d, Start)]
    assert start.workers == (Worker("a", 2), Worker("b", 2))


def test_it_grows_onto_a_further_node_and_its_pods_stay() -> None:
    running = gang("a", "a", optional=(2, 3))
    found = decide(world(running, nodes=(node("a", 0, used=2), node("b", 2))), 0.0, ELASTIC)
    (reshape,) = found
    assert isinstance(reshape, Reshape)
    assert (reshape.num_gpus, reshape.workers) == (3, (Worker("a", 2), Worker("b", 1)))


def test_it_is_never_moved_as_a_whole() -> None:
    """A single-process job in its place is: sequence D. A gang's pods stay, and more come."""
    here, there = node("a", 0, used=2), node("b", 4)
    alone = gang("a", "a", gpus_per_pod=0, pods=(), max_workers=1, optional=(2, 4))
    assert [type(d) for d in decide(world(alone, nodes=(here, there)), 0.0, ELASTIC)] == [Move]
    (grown,) = decide(world(gang("a", "a", optional=(2, 4)), nodes=(here, there)), 0.0, ELASTIC)
    assert isinstance(grown, Reshape) and grown.workers == (Worker("a", 2), Worker("b", 2))


@pytest.mark.parametrize(
    ("pods", "gives"),
    [
        (("a", "a", "a"), [("a", 3)]),  # fewer than all
        (("a", "a", "b"), [("b", 2)]),  # all on its last node
        (("a", "b", "a"), [("a", 2)]),  # only the one behind b
    ],
)
def test_it_gives_its_last_pods_only(pods: tuple[str, ...], gives: list[tuple[str, int]]) -> None:
    assert givable(gang(*pods)) == gives


def test_a_victim_may_leave_its_last_node_altogether() -> None:
    running = gang("a", "a", "b", optional=(2, 3))
    waiting = replace(gang(optional=(1,), state="submitted"), id="new", gpus_per_pod=0, max_workers=1, pinned="b")
    found = decide(world(running, waiting, nodes=(node("a", 0, used=2), node("b", 0, used=1))), 0.0, ELASTIC)
    (start,) = [d for d in found if isinstance(d, Start)]
    assert (start.node, start.victim, start.victim_num_gpus) == ("b", "gang", 2)
    later = after(world(running, waiting, nodes=(node("a", 0, used=2), node("b", 0, used=1))), start)
    assert (later.job["gang"].pods, later.job["gang"].workers) == (("a", "a"), (Worker("a", 2),))


def test_a_victim_keeps_the_pods_before_those_on_the_node_that_is_wanted() -> None:
    running = gang("b", "a", optional=(1, 2))
    waiting = replace(gang(optional=(1,), state="submitted"), id="new", gpus_per_pod=0, max_workers=1, pinned="b")
    found = decide(world(running, waiting, nodes=(node("a", 0, used=1), node("b", 0, used=1))), 0.0, ELASTIC)
    assert [d for d in found if isinstance(d, Start)] == []


def test_gives_on_drops_a_node_with_nothing_left() -> None:
    assert gives_on(gang("a", "a", "b"), "b", 1) == (Worker("a", 2),)


@pytest.mark.parametrize(
    ("wanted", "workers"), [(3, (Worker("a", 2), Worker("b", 1))), (4, (Worker("a", 2), Worker("b", 2)))]
)
def test_an_operator_may_wish_for_more_pods(wanted: int, workers: tuple[Worker, ...]) -> None:
    running = gang("a", "a", wanted=wanted)
    found = decide(world(running, nodes=(node("a", 0, used=2), node("b", 2))), 0.0, ELASTIC)
    (reshape,) = [d for d in found if isinstance(d, Reshape)]
    assert (reshape.num_gpus, reshape.workers) == (wanted, workers)


def test_an_operator_may_wish_for_fewer_and_the_first_stay() -> None:
    running = gang("a", "b", "a", wanted=2)
    found = decide(world(running, nodes=(node("a", 0, used=2), node("b", 3, used=1))), 0.0, ELASTIC)
    (reshape,) = [d for d in found if isinstance(d, Reshape)]
    assert (reshape.num_gpus, reshape.workers) == (2, (Worker("a", 1), Worker("b", 1)))


def test_a_wish_without_room_says_so() -> None:
    running = gang("a", "a", wanted=4)
    (hold,) = decide(world(running, nodes=(node("a", 1, used=2), node("b", 0))), 0.0, ELASTIC)
    assert "no place for 2 more of its pods of 1 GPU" in hold.explanation.sentence


@pytest.mark.parametrize(
    "wrong",
    [
        Reshape("gang", "a", 2, WHY, (Worker("a", 2),)),  # of pods on a, b, a the first two stay
        Reshape("gang", "a", 4, WHY, (Worker("a", 1), Worker("b", 3))),  # no pod moves
        Move("gang", "c", 3, WHY),
    ],
)
def test_answers_that_would_move_a_pod_are_broken(wrong: Reshape | Move) -> None:
    nodes = (node("a", 4, used=2), node("b", 4, used=1), node("c", 4))
    with pytest.raises(BrokenDecision, match="gang"):
        check(world(gang("a", "b", "a"), nodes=nodes), [wrong])


def test_half_a_pod_is_broken() -> None:
    waiting = gang(each=2, optional=(4,), state="submitted")
    halves = Start("gang", "a", 4, WHY, workers=(Worker("a", 3), Worker("b", 1)))
    with pytest.raises(BrokenDecision, match="pods of 2 GPUs"):
        check(world(waiting, nodes=(node("a", 4), node("b", 4))), [halves])
