"""A step that failed half-way is done again, and a failure that began elsewhere costs a job none of its tries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from adaptive_scheduler.decision import Explanation, Move
from coordinator.errors import Transient
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World
from tests.unit.coordinator.situations import job, mine, written
from tests.unit.coordinator.test_gang_lifecycle import gang, runs_on, trains
from tests.unit.coordinator.test_gang_steps import situation


def fails_once(call: Callable[..., None]) -> Callable[..., None]:
    left = [Transient("the store does not answer")]

    def failing(doc: Any) -> None:
        if left:
            raise left.pop()
        call(doc)

    return failing


def test_a_launch_that_could_not_be_asked_for_is_asked_for_again() -> None:
    w = World()
    w.machines.launch = fails_once(w.machines.launch)  # type: ignore[method-assign]
    w.submit("one", [1], Behaviour(iterations=30))
    w.run(lambda w: w.job("one").state == s.RUNNING, SHORT.init_timeout_s / 2)
    assert w.job("one").retries == 0


def test_a_removal_that_could_not_be_asked_for_is_asked_for_again() -> None:
    w = World()
    w.submit("one", [1], Behaviour(iterations=300))
    w.run(lambda w: w.job("one").state == s.RUNNING)
    w.machines.remove = fails_once(w.machines.remove)  # type: ignore[method-assign]
    w.api.operator.cancel("one")
    w.run(lambda w: w.at_rest())
    assert w.machines.launches["one", 1].removal_asked


def test_a_gang_does_not_move_to_pods_of_which_one_is_gone_again() -> None:
    w = gang(2)
    w.machines.of("gang").launch_s = 3.0
    w.order(Move("gang", "n2", 2, Explanation("test", "so it was decided.")))
    w.tick()
    first, late = w.machines.launches["gang", 2], w.machines.launches["gang#1", 2]
    late.up_at += 10
    w.run(lambda _: first.up)
    first.alive = False
    w.run(lambda w: w.job("gang").operation is None)
    assert (w.job("gang").launch, w.job("gang").retries) == (1, 0), w.story()
    assert "ended before it was needed" in w.job("gang").doc["message"]
    assert w.machines.launches["gang", 1].status.trainer == "running"


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_lost_node_costs_no_try_though_the_trainers_elsewhere_fail_with_it_at_once(comes_back: bool) -> None:
    w = gang(3)
    w.machines.of("gang").cut = {2}
    w.tick(SHORT.heartbeat_s * 3)
    w.machines.end_member("gang", 0, 1)
    w.machines.end_member("gang", 1, 1)
    for _ in range(10):
        w.tick()
    assert w.job("gang").state == s.RUNNING, "nothing can be done before it is known to be gone, nor said"
    if not comes_back:
        w.machines.kill_pod("gang", 2)
    w.machines.of("gang").cut = set()
    w.run(lambda w: w.job("gang").state == s.RESTARTING)
    w.run(runs_on(3))
    assert w.job("gang").retries == (1 if comes_back else 0)


def test_a_pod_that_fences_itself_costs_no_try_though_the_others_fail_with_it() -> None:
    w = gang(3)
    w.machines.of("gang").cut = {2}
    w.run(lambda w: w.machines.pod("gang", 2).status.fenced)
    w.machines.end_member("gang", 0, 1)
    w.machines.end_member("gang", 1, 1)
    w.tick()
    w.machines.of("gang").cut = set()
    w.run(lambda w: w.job("gang").state == s.RESTARTING)
    assert "out of the coordinator's reach" in w.job("gang").doc["message"]
    assert w.job("gang").retries == 0


def test_a_pod_that_somebody_ends_before_its_gang_trained_costs_no_try() -> None:
    starting = job(s.INITIALIZED, "a", "b", op={"kind": "start", "to": ["a", "b"], "generation": 2}, gpus_per_pod=1)
    told: tuple[Any, ...] = ({"trainer": "none", "generation": 0}, {"trainer": "none", "generation": 0, "ending": True})
    changes = written(situation(starting, told, mine("a", "b"), lost_pods=frozenset({1})), "undo")
    assert (changes["state"], changes["retries"]) == (s.SUBMITTED, 0)


def test_a_pod_that_ends_while_the_others_hang_is_not_waited_for_without_end() -> None:
    w = gang(3)
    w.machines.end_member("gang", 1, 0)
    w.run(lambda w: w.job("gang").state == s.RESTARTING, SHORT.init_timeout_s + 5)
    assert "in pod 1 has ended, and that in other pods goes on without it" in w.job("gang").doc["message"]
    w.run(runs_on(3))
    assert (w.job("gang").launch, w.job("gang").retries) == (1, 1)
    assert trains(w, 3)


def test_ids_that_nobody_knows_are_looked_for_only_as_the_store_is_read() -> None:
    w = World()
    w.submit("one", [1], depends_on=[f"no-{i}" for i in range(50)])
    w.tick()
    reads, read = [0], w.store.list

    def counted(*of: Any) -> Any:
        reads[0] += 1
        return read(*of)

    w.store.list = counted  # type: ignore[method-assign]
    for _ in range(10):
        w.c.loop.tick(read=False)
    assert reads[0] == 0
