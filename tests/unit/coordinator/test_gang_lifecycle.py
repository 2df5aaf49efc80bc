"""A job of several pods, from its start to its end, on fake machines that notice every GPU with two users, every pod
that meets its peers at another place, and every start from an old checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adaptive_scheduler.decision import Explanation, Move
from coordinator.config import Config
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from tests.fakes.shims import Behaviour
from tests.fakes.world import GPU_TYPE, SHORT, World

OTHERS = tuple(FoundGpu(f"other-{i}", GPU_TYPE, None, True) for i in range(2))


def cluster(**more: Any) -> World:
    """Two nodes with two GPUs each."""
    return World(gpus=2, nodes=[FoundNode("n2", OTHERS)], **more)


def runs_on(count: int, job: str = "gang") -> Any:
    def holds(w: World) -> bool:
        record = w.job(job)
        return record.state == s.RUNNING and len(record.gpu_ids) == count and record.operation is None

    return holds


def gang(count: int, config: Config = SHORT, queue: str = "default", iterations: int = 2_000) -> World:
    """A gang that trains on so many GPUs, one in each pod, until an operator asks for others."""
    w = cluster(config=config)
    w.users.put("queues", {"_id": "recreate", "devices": "recreate"})
    w.submit("gang", [2, 3, 4], Behaviour(iterations=iterations), gpus_per_pod=1, queue=queue)
    w.tick()
    w.api.operator.request("gang", count, None)
    w.run(runs_on(count))
    w.tick(5)
    return w


def pids(w: World, members: int) -> list[int]:
    """Of the shims, one in each pod: who keeps its number was not touched."""
    return [w.machines.pod("gang", k).pid for k in range(members)]


def executed(w: World, verb: str) -> int:
    """How many pods have obeyed a command of the present generation."""
    return w.machines.executed[f"gang:{w.job('gang').generation}:{verb}"]


def trains(w: World, members: int) -> bool:
    before = w.machines.pod("gang", 0).steps
    w.tick(2)
    pods = [w.machines.pod("gang", k) for k in range(members)]
    return all(p.status.trainer == "running" for p in pods) and pods[0].steps > before


def test_it_starts_once_each_of_its_pods_is_up_and_is_completed_once_each_has_ended() -> None:
    w = gang(4, iterations=60)
    assert {w.gpu(g).node for g in w.job("gang").gpu_ids} == {"n1", "n2"}
    assert w.job("gang").node == "n1"
    assert trains(w, 4)
    w.run(lambda w: w.at_rest())
    assert (w.job("gang").state, w.job("gang").iterations_done) == (s.COMPLETED, 60)
    assert all(gpu["state"] == s.IDLE for gpu in w.users.list("gpus"))


def test_it_grows_by_pods_that_come_up_while_it_trains_and_those_that_stay_are_not_touched() -> None:
    w = gang(2)
    stay, steps = pids(w, 2), w.machines.pod("gang", 0).steps
    w.machines.of("gang").launch_s = 10.0
    w.api.operator.request("gang", 3, None)
    w.tick(1)
    assert w.job("gang").state == s.ADJUSTING
    w.tick(8)
    assert w.machines.pod("gang", 0).status.trainer == "running", "it trains until the third is there"
    w.run(runs_on(3))
    assert (pids(w, 2), w.job("gang").launch) == (stay, 1)
    assert trains(w, 3)
    assert w.machines.pod("gang", 0).steps > steps
    assert executed(w, "start") == 3
    assert executed(w, "stop") == 2


def test_it_shrinks_by_its_last_pods_which_go_only_after_the_grant() -> None:
    w = gang(4)
    stay, gone = pids(w, 2), w.machines.pod("gang", 3)
    w.api.operator.request("gang", 2, None)
    w.run(runs_on(2))
    assert (pids(w, 2), w.job("gang").gpu_ids) == (stay, ("gpu-0", "gpu-1"))
    assert gone.removal_asked
    passed = w.passed
    assert passed.index("before:grant", passed.index("before:stop")) < len(passed) - 1 - passed[::-1].index(
        "before:launch"
    )
    w.tick(5)
    assert not gone.alive
    assert trains(w, 2)
    assert executed(w, "stop") == 4


def test_a_pod_of_the_same_number_is_another_one_and_what_the_old_one_still_says_revives_nothing() -> None:
    w = gang(3)
    old = w.machines.pod("gang", 2)
    w.machines.of("gang").cut = {2}  # what it says is held up on its way
    w.tick(1)
    held = list(w.late)
    w.machines.of("gang").cut = set()
    w.api.operator.request("gang", 2, None)
    w.run(runs_on(2))
    w.late = held
    w.deliver_late()
    assert 2 not in w.c.telemetry.reports.pods(w.job("gang"))
    w.machines.of("gang").launch_s = 8.0
    w.api.operator.request("gang", 3, None)
    w.tick(2)
    w.late = held
    w.deliver_late()
    w.tick(1)
    assert w.machines.pod("gang", 0).status.trainer == "running", "nobody took the old pod for the new one"
    w.run(runs_on(3))
    assert w.machines.pod("gang", 2) is not old
    assert trains(w, 3)


def test_a_pod_to_grow_by_that_does_not_come_up_costs_nothing() -> None:
    w = gang(2)
    stay = pids(w, 2)
    w.machines.of("gang").launch_failures = 1
    w.api.operator.request("gang", 3, None)
    w.run(lambda w: "before:undo" in w.passed)
    assert "failed: the disk is full" in w.job("gang").doc["message"]
    assert w.job("gang").retries == 0
    assert (pids(w, 2), w.states()) == (stay, {"gang": s.RUNNING}), "it does not try again at once"
    assert w.gpu("other-0").state == s.IDLE
    assert w.machines.pod("gang", 0).status.trainer == "running"
    w.run(runs_on(3))
    assert trains(w, 3)


def test_a_pod_to_grow_by_that_is_never_heard_of_is_given_up() -> None:
    w = gang(2)
    w.machines.of("gang").never_comes_up = True
    w.api.operator.request("gang", 3, None)
    w.run(lambda w: "before:undo" in w.passed)
    assert "came up within" in w.job("gang").doc["message"]
    assert w.job("gang").operation is None
    assert w.machines.pod("gang", 0).status.trainer == "running"
    late = w.machines.pod("gang", 2)
    w.run(lambda w: not late.alive)


def test_where_each_pod_has_only_its_own_gpus_pods_that_stay_are_not_touched_either() -> None:
    w = gang(2, queue="recreate")
    stay = pids(w, 2)
    for count in (4, 2):
        w.api.operator.request("gang", count, None)
        w.run(runs_on(count))
        assert (w.job("gang").recreated, w.job("gang").launch, pids(w, 2)) == (True, 1, stay)
        assert trains(w, count)


def test_where_each_reshape_is_another_launch_all_pods_are_made_anew() -> None:
    w = gang(2, replace(SHORT, reshape_by="relaunch"))
    before = w.job("gang").launch
    w.api.operator.request("gang", 3, None)
    w.run(runs_on(3))
    assert w.job("gang").launch == before + 1
    assert trains(w, 3)


def test_it_moves_once_all_of_its_next_pods_are_up() -> None:
    w = gang(2)
    w.machines.of("gang").launch_s = 10.0
    w.order(Move("gang", "n2", 2, Explanation("test", "so it was decided.")))
    for _ in range(8):
        w.tick()
    assert w.machines.launches["gang", 1].status.trainer == "running"
    w.run(lambda w: runs_on(2)(w) and w.job("gang").launch == 2)
    assert (w.job("gang").node, w.job("gang").gpu_ids) == ("n2", ("other-0", "other-1"))
    assert trains(w, 2)
    w.run(lambda w: not any(one.alive for one in w.machines.launches.values() if one.number == 1))


# what goes wrong


def test_a_trainer_that_crashes_sends_the_whole_gang_back_to_the_last_checkpoint_in_the_same_pods() -> None:
    w = gang(3)
    stay = pids(w, 3)
    w.machines.end_member("gang", 1, 1)
    w.run(lambda w: w.job("gang").state == s.RESTARTING)
    assert "in pod 1 ended with exit code 1: out of memory" in w.job("gang").doc["message"]
    w.run(runs_on(3))
    assert (pids(w, 3), w.job("gang").launch, w.job("gang").retries) == (stay, 1, 1)
    assert trains(w, 3)


def test_a_gang_whose_trainers_crash_again_and_again_has_failed() -> None:
    w = cluster()
    w.submit("gang", [2], Behaviour(exits=[3] * 20), gpus_per_pod=1)
    w.run(lambda w: w.at_rest())
    assert w.job("gang").state == s.FAILED
    assert "gave up after 4 tries" in w.job("gang").doc["message"]


def test_a_gang_that_has_trained_and_does_not_start_again_is_held_without_gpus() -> None:
    w = gang(2)
    w.machines.of("gang").exits = [3] * 20
    w.machines.end_member("gang", 1, 3)
    w.run(lambda w: bool(w.job("gang").held) and w.job("gang").doc.get("down") == 1)
    assert w.job("gang").held == "the training process in pod 0 ended with exit code 3"
    assert {gpu["state"] for gpu in w.api.fleet.gpus()} == {"idle"} and w.job("gang").retries == 0


def test_a_pod_that_is_gone_takes_another_launch_and_is_no_fault_of_the_job() -> None:
    w = gang(3)
    w.machines.kill_pod("gang", 1)
    w.run(lambda w: w.job("gang").state == s.RESTARTING)
    assert "pod 1 is gone" in w.job("gang").doc["message"]
    w.run(runs_on(3))
    assert (w.job("gang").launch, w.job("gang").retries) == (2, 0)
    assert trains(w, 3)
    assert all(not one.alive for one in w.machines.launches.values() if one.number == 1)


@pytest.mark.parametrize("agrees", [False, True])
def test_a_pod_that_somebody_ends_costs_no_try_though_the_others_may_stop_with_it(agrees: bool) -> None:
    w = gang(3)
    w.machines.of("gang").agrees = agrees
    w.machines.pod("gang", 1).removal_asked = True  # an eviction, say
    w.run(lambda w: runs_on(3)(w) and w.job("gang").launch == 2)
    assert w.job("gang").retries == 0
    assert trains(w, 3)


def test_those_that_stop_at_the_same_step_as_the_one_that_was_asked_first_are_stopped() -> None:
    w = gang(4)
    w.machines.of("gang").agrees = True
    for count in (2, 3):
        w.api.operator.request("gang", count, None)
        w.run(runs_on(count))
    assert (w.job("gang").retries, w.job("gang").launch) == (0, 1)
    assert trains(w, 3)


def test_the_first_pod_that_is_gone_is_no_different() -> None:
    w = gang(2)
    w.machines.kill_pod("gang", 0)
    w.run(lambda w: w.job("gang").launch == 2)
    w.run(runs_on(2))
    assert trains(w, 2)


def test_a_pod_out_of_reach_fences_itself_and_the_gang_goes_on_without_it_only_then() -> None:
    w = gang(3)
    w.machines.of("gang").cut = {2}
    w.run(lambda w: w.job("gang").state == s.RESTARTING or w.job("gang").launch == 2, 100)
    assert w.machines.pod("gang", 2).status.trainer != "running" or w.job("gang").launch == 1
    w.tick(SHORT.wait_out_s + 2)
    w.machines.of("gang").cut = set()
    w.run(runs_on(3))
    assert w.job("gang").retries == 0
    assert trains(w, 3)


def test_one_that_finishes_before_the_others_is_waited_for() -> None:
    w = gang(2)
    w.machines.end_member("gang", 1, 0)
    w.tick(3)
    assert w.job("gang").state == s.RUNNING
    w.machines.end_member("gang", 0, 0)
    w.run(lambda w: w.at_rest())
    assert w.job("gang").state == s.COMPLETED


def test_an_answer_that_was_lost_stops_and_starts_nobody_twice() -> None:
    w = gang(3)
    w.machines.of("gang").answers_lost = 2
    w.api.operator.request("gang", 2, None)
    w.run(runs_on(2))
    assert executed(w, "stop") == 3
    assert executed(w, "start") == 2
    assert trains(w, 2)


@pytest.mark.parametrize("when", [0, 3, 6])
def test_it_can_be_cancelled_at_any_time(when: int) -> None:
    w = gang(2)
    w.api.operator.request("gang", 3, None)
    w.tick(when)
    w.api.operator.cancel("gang")
    w.run(lambda w: w.at_rest())
    assert w.job("gang").state == s.CANCELLED
    assert not w.machines.owners


def test_one_that_cannot_be_reached_to_be_stopped_does_not_keep_the_others_from_it() -> None:
    w = gang(3)
    w.machines.of("gang").cut = {1}
    w.api.operator.cancel("gang")
    for _ in range(4):
        w.tick()
    assert [w.machines.pod("gang", k).status.trainer for k in range(3)] == ["exited", "running", "exited"]
    assert w.machines.pod("gang", 0).status.generation == w.job("gang").generation + 1, "asked once"
    w.machines.of("gang").cut = set()
    w.run(lambda w: w.at_rest())


def test_a_lost_gpu_takes_its_pod_and_the_gang_goes_on_with_the_others() -> None:
    w = gang(3)
    w.users.update("gpus", "gpu-1", {}, {"state": s.FAULTY, "problem": "it fell off the bus"})
    w.tick(SHORT.poll_s + 1)
    w.machines.end_member("gang", 1, 1)
    w.run(lambda w: w.job("gang").launch == 2 and w.job("gang").state == s.RUNNING)
    assert "gpu-1" not in w.job("gang").gpu_ids
    assert trains(w, len(w.job("gang").gpu_ids))


def test_it_gives_its_last_pods_to_a_newcomer() -> None:
    w = gang(4)
    w.api.operator.request("gang", None, None)
    stay = pids(w, 2)
    w.submit("late", [2], Behaviour(iterations=30))
    w.run(lambda w: w.job("late").state == s.RUNNING)
    assert set(w.job("late").gpu_ids) == {"other-0", "other-1"}
    assert (pids(w, 2), len(w.job("gang").gpu_ids)) == (stay, 2)
    w.run(lambda w: w.job("late").state == s.COMPLETED)
    w.run(runs_on(4))
    assert trains(w, 4)


# whatever happens to the coordinator


@pytest.mark.parametrize("at", range(0, 60, 2))
def test_a_coordinator_that_dies_anywhere_is_followed_by_one_that_goes_on(at: int) -> None:
    w = gang(2)
    w.crash_at = len(w.passed) + at
    w.api.operator.request("gang", 4, None)
    w.run(runs_on(4))
    w.api.operator.request("gang", 2, None)
    w.run(runs_on(2))
    assert trains(w, 2)
    assert w.job("gang").launch == 1, "no pod that stays was touched"
    w.machines.kill_pod("gang", 1)
    w.run(lambda w: runs_on(2)(w) and w.job("gang").launch == 2)
    assert trains(w, 2)


def test_a_new_coordinator_asks_for_the_pods_again_and_changes_nothing() -> None:
    w = gang(3)
    stay = pids(w, 3)
    w.boot()
    w.tick(8)
    assert (pids(w, 3), w.states()) == (stay, {"gang": s.RUNNING})


# what people see


def test_it_is_shown_as_one_job_with_each_of_its_pods() -> None:
    w = gang(2)
    w.machines.of("gang").cores = 1.5
    w.tick()
    view = w.api.jobs.job("gang")
    assert (view["usage"]["cpu_cores"], view["iters_done"]) == (3.0, w.machines.pod("gang", 0).steps)
    assert [(pod["node"], pod["gpu_ids"], pod["trainer"]) for pod in view["pods"]] == [
        ("n1", ["gpu-0"], "running"),
        ("n1", ["gpu-1"], "running"),
    ]
    w.api.operator.cancel("gang")
    w.run(lambda w: w.at_rest())
    assert w.api.jobs.job("gang")["pods"] == []


def test_it_is_asked_for_a_checkpoint_in_each_of_its_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    w = gang(3)
    asked: list[str] = []
    monkeypatch.setattr(w.machines, "checkpoint", lambda url, *call: asked.append(url))
    w.api.operator.request("gang", None, "checkpoint")
    assert asked == [w.machines.pod("gang", k).url for k in range(3)]


# what is not let in


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"gpus_per_pod": 0}, "gpus_per_pod must be a whole number from 1"),
        ({"gpus_per_pod": "2"}, "gpus_per_pod must be a whole number from 1"),
        ({"gpus_per_pod": 2}, "pods of 2 GPUs cannot have 3 together; list multiples such as [2, 4, 8]"),
        ({"gpus_per_pod": 1, "optional_num_gpus": [0]}, "a job trained on CPU has one pod"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(more: dict[str, Any], sentence: str) -> None:
    w = cluster()
    w.submit("gang", more.pop("optional_num_gpus", [2, 3]), **more)
    w.tick()
    assert sentence in w.job("gang").doc["problems"][0]


def test_it_needs_checkpoints_that_last_and_a_cluster() -> None:
    forgetful = replace(SHORT, checkpoints_last=False)
    w = cluster(config=forgetful)
    w.submit("gang", [2], gpus_per_pod=1)
    w.submit("other", [2], gpus_per_pod=1, checkpoint_claim="claim")
    w.tick()
    assert "checkpoint_claim" in w.job("gang").doc["problems"][0]
    assert w.job("other").doc["problems"] == []
    w = cluster(config=replace(SHORT, many_pods=False))
    w.submit("gang", [2], gpus_per_pod=1)
    w.tick()
    assert "gpus_per_pod is for clusters" in w.job("gang").doc["problems"][0]
    w = cluster(config=replace(SHORT, volcano=False))
    w.submit("gang", [2], gpus_per_pod=1, checkpoint_claim="claim")
    w.tick()
    assert "which needs Volcano, and this installation is without it" in w.job("gang").doc["problems"][0]
