"""The one next step of a gang in situations that come up between two looks at it."""

from __future__ import annotations

from typing import Any

from coordinator.model import states as s
from coordinator.model.gang import merged_report
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.reconcile.actions import RequestLaunch, RequestRemoval, StartTrainer, StopTrainer
from coordinator.reconcile.lifecycle import next_step
from coordinator.reconcile.observed_state import ComingLaunch, ObservedState
from tests.unit.coordinator.situations import gpu, job, mine, reshape_of, waits, world, written
from tests.unit.coordinator.test_gang import exited, gang


def situation(of: JobRecord, told: tuple[Any, ...], gpus: list[GpuRecord], **more: Any) -> ObservedState:
    """`told`: by each pod that is there, of its shim."""
    pods, lost_pods = gang(*told).beats, more.get("lost_pods", frozenset())
    seen = merged_report(pods, of.members, lost_pods)
    return world(of, seen, gpus, **{"pods": pods, "pods_asked": of.members, "launch_asked": True, **more})


def restarting(*gpus: str, **more: Any) -> JobRecord:
    """Granted under generation 2, and to be started."""
    op = {"kind": "restart", "from": list(gpus), "to": list(gpus), "generation": 2}
    return job(s.RESTARTING, *gpus, op=op, generation=2, gpus_per_pod=1, **more)


RESTARTED = restarting("a", "b")
STOPPED = exited(143, generation=2, verb="stop", stop_asked=True)
STARTED = {"trainer": "running", "generation": 2}
OURS = mine("a", "b")


def test_nobody_starts_before_all_have_stopped() -> None:
    saving = {"trainer": "stopping", "generation": 2, "verb": "stop"}
    waits(situation(RESTARTED, (STOPPED, saving), OURS), "saving")
    assert isinstance(next_step(situation(RESTARTED, (STOPPED, STOPPED), OURS)), StartTrainer)


def test_one_that_still_trains_by_an_earlier_start_is_stopped_first() -> None:
    step = next_step(situation(RESTARTED, (STARTED, {"trainer": "running", "generation": 1}), OURS))
    assert step == StopTrainer(2)


def test_one_that_ended_as_the_others_were_being_started_sends_all_back() -> None:
    changes = written(situation(RESTARTED, (exited(1, generation=2), STOPPED), OURS), "restart")
    assert "in pod 0 ended with exit code 1" in changes["message"]
    assert changes["reshape"]["generation"] == 3


def test_a_gang_that_breaks_while_it_waits_for_a_pod_to_grow_by_is_mended_first() -> None:
    growing = job(s.ADJUSTING, "a", "b", op=reshape_of(("a", "b"), ("a", "b", "c")), gpus_per_pod=1)
    gpus = [*OURS, *mine("c")]
    waiting = ComingLaunch(asked=True)
    waits(situation(growing, ("running", "running"), gpus, growth=waiting), "come up")
    changes = written(situation(growing, ("running", exited(1)), gpus, growth=waiting), "undo")
    assert (changes["state"], changes["reshape"]) == (s.RUNNING, None)


def test_pods_to_grow_by_are_asked_for_once_those_that_train_are_heard_of() -> None:
    growing = job(s.ADJUSTING, "a", "b", op=reshape_of(("a", "b"), ("a", "b", "c")), gpus_per_pod=1)
    gpus = [*OURS, *mine("c")]
    waits(situation(growing, ("running",), gpus, growth=ComingLaunch()), "not reported")
    step = next_step(situation(growing, ("running", "running"), gpus, growth=ComingLaunch()))
    assert step == RequestLaunch(gpu_ids=("a", "b", "c"))
    assert next_step(situation(growing, ("running", "running"), gpus, growth=ComingLaunch(up=True))) == StopTrainer(2)


def test_no_gpu_is_given_up_before_each_pod_refuses_a_start_that_may_be_on_its_way() -> None:
    cancelled = job(s.CANCELLED, op=None, generation=2, gpus_per_pod=1, members=2)
    never_told = exited(143, generation=1, verb="stop", stop_asked=True)
    step = next_step(situation(cancelled, (exited(143, generation=3, verb="stop", stop_asked=True), never_told), OURS))
    assert step == StopTrainer(3)


def test_one_that_lets_go_of_its_gpus_remembers_how_many_pods_may_train_on_them() -> None:
    cancelled = job(s.RUNNING, "a", "b", gpus_per_pod=1, cancel=True)
    assert written(situation(cancelled, (STOPPED, STOPPED), OURS), "cancelled")["members"] == 2
    after = job(s.CANCELLED, generation=2, gpus_per_pod=1, members=2)
    assert next_step(situation(after, (STOPPED,), OURS)) == RequestRemoval(), "the other one may still train"


def test_a_gang_of_which_a_pod_is_gone_is_not_completed_though_the_others_have_finished() -> None:
    running = job(s.RUNNING, "a", "b", gpus_per_pod=1)
    changes = written(situation(running, (exited(0), "running"), OURS, lost_pods=frozenset({1})), "restart")
    assert changes["reshape"]["how"] == "relaunch"


def test_where_its_first_pod_lost_its_gpu_it_is_launched_where_the_others_were() -> None:
    running = job(s.RUNNING, "a", "b", gpus_per_pod=1, node="one", optional_num_gpus=[1, 2])
    broken = gpu("a", "one", "one", state=s.FAULTY)
    gpus = [broken, *mine("b")]
    changes = written(situation(running, (exited(1), "running"), gpus), "restart")
    assert (changes["reshape"]["to"], changes["reshape"]["how"]) == (["b"], "relaunch")
    there = [broken, GpuRecord({**mine("b")[0].doc, "node": "two"})]
    stopped = job(s.RESTARTING, "a", "b", op=changes["reshape"], gpus_per_pod=1, node="one")
    w = situation(stopped, (exited(1), STOPPED), there, lost=True, remove_asked=True)
    granted = written(w, "grant")
    assert (granted["node"], granted["launch"], granted["gpu_ids"]) == ("two", 2, ["b"])
