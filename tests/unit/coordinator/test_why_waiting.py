"""A waiting job is told what binds it and the smallest change that would start it, and making that change starts it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adaptive_scheduler.decision import Hold, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.rights.limits import BUDGET
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.shares import GpuBudget, QueueShare, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node, Task
from coordinator.model import states as s
from coordinator.scheduling.why import reasons, search
from coordinator.scheduling.why.reasons import AGAIN_S, TOLD, WaitingReasons
from reshape.output import render
from tests.depth import drawn
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.adaptive_scheduler import any_world
from tests.unit.adaptive_scheduler.worlds import PROFILES, cluster, cpu_node, node, on_cpu, running, speed_rows, waiting

SETTINGS = Settings()
BOTH = type(PROFILES).from_rows([*speed_rows(), *speed_rows(gpu_type="T4")])


def full(*more: Job, **of_one: Any) -> ClusterSnapshot:
    """Job `one` has all four GPUs of node a and gives none."""
    return cluster(running("one", 4, **{"optional": (4,), **of_one}), *more, nodes=(owned("a", 4, "one"),))


def full_beside(other: Node) -> ClusterSnapshot:
    """Job `one` has all four GPUs of node a, a job wants one, and there is another node."""
    return cluster(running("one", 4, optional=(4,)), waiting(optional=(1,)), nodes=(owned("a", 4, "one"), other))


def owned(name: str, count: int, job: str, **more: Any) -> Node:
    gpus = tuple(Gpu(f"{name}{i}", "in use", job, job) for i in range(count))
    return Node(name, "V100", gpus, **more)


def told(snapshot: ClusterSnapshot, settings: Settings = SETTINGS, job: str = "new") -> str:
    """The reason why `job` waits, as far as it was added."""
    decisions = decide(snapshot, 0.0, settings)
    plain = next(d for d in decisions if isinstance(d, Hold) and d.job == job).explanation.sentence
    found = WaitingReasons(settings).told(snapshot, decisions, 0.0)
    (said,) = [d.explanation.sentence for d in found if d.job == job]
    assert said.startswith(plain)
    return said.removeprefix(plain).strip()


OF_OTHERS = Gpu("x", "faulty", used_by_others=True)
CASES: dict[str, tuple[ClusterSnapshot, str, str]] = {
    "fewer GPUs": (
        cluster(waiting(optional=(4,)), idle=2, used=0), "its smallest count, 4 GPUs", "with --gpus 2,4",
    ),
    "another type": (
        cluster(
            waiting(optional=(2,), gpu_type="T4"), profiles=BOTH, nodes=(node("a", idle=2), node("b", gpu_type="T4"))
        ),
        "its GPU type, T4", "with --gpu-type V100",
    ),
    "another node": (
        cluster(waiting(optional=(1,), pinned="b"), nodes=(node("a", idle=2), node("b", used=1))),
        "its pin to node b", "without its pin to node b",
    ),
    "a closed node": (
        full_beside(node("b", idle=4, schedulable=False, cordoned=True)),
        "that node b is closed", "if node b were open",
    ),
    "a drained node": (
        full_beside(node("b", idle=4, schedulable=False, drained=True)),
        "that node b is drained", "after `reshape undrain b`",
    ),
    "a drained node that is cordoned": (
        full_beside(node("b", idle=4, schedulable=False, drained=True, cordoned=True)),
        "that node b is drained, and closed on its cluster", "if node b were open",
    ),
    "a silent node": (
        cluster(
            running("one", 4, optional=(4,)), waiting(optional=(1,)),
            nodes=(owned("a", 4, "one"), node("b", idle=4, heard=False)),
        ),
        "that node b has not been heard of lately", "if the agent of node b reported again",
    ),
    "faulty GPUs": (
        cluster(
            running("one", 4, optional=(4,)), waiting(optional=(1,)),
            nodes=(replace(owned("a", 4, "one"), gpus=(*owned("a", 4, "one").gpus, Gpu("x", "faulty"))),),
        ),
        "that 1 GPU of node a is faulty", "if 1 GPU of node a worked again",
    ),
    "GPUs that others use": (
        cluster(
            running("one", 4, optional=(4,)), waiting(optional=(1,)),
            nodes=(replace(owned("a", 4, "one"), gpus=(*owned("a", 4, "one").gpus, OF_OTHERS)),),
        ),
        "that 1 GPU of node a is used by others of that machine", "if nobody else used GPUs of node a",
    ),
    "a job that must not be stopped": (
        full(waiting(optional=(2,)), optional=(2, 4), rigid=True),
        "that one has not shown that it can save and resume", "if one had shown that it can save and resume",
    ),
    "an operator's count": (
        full(waiting(optional=(2,)), optional=(2, 4), wanted=4),
        "the count that an operator requested for one", "after `reshape reshape one --auto`",
    ),
    "a cool-down": (
        full(waiting(optional=(2,)), optional=(2, 4), cooling_until=50.0),
        "the cool-down of one", "if the cool-down of one, which was reshaped a short while ago, were over",
    ),
    "an operation under way": (
        full(waiting(optional=(2,)), optional=(2, 4), busy=True),
        "the operation under way on one", "if the operation under way on one were done",
    ),
    "a victim's counts": (
        full(waiting(optional=(2,))), "that one may not run on 2 GPUs", "if one might run on 2 GPUs",
    ),
    "a deadline": (
        full(waiting(optional=(2,), left=4000), optional=(2, 4), sla_s=1400.0 / 2.4, left=1000),
        "the deadline of one", "if the deadline of one were 5 min later",
    ),
    "the makespan": (
        cluster(
            running("long", 4, left=90_000), running("next", 1, left=50, optional=(1,)),
            waiting(optional=(1,), left=9_000),
        ),
        "that all jobs are predicted to end earlier if it waits", "with RESHAPE_SPARE_CRITICAL=0",
    ),
    "one more GPU": (
        cluster(running("one", 1, optional=(1,)), waiting(optional=(1,)), nodes=(owned("a", 1, "one"),)),
        "the number of V100 GPUs on node a", "with 1 more V100 GPU on node a",
    ),
    "a node for jobs trained on CPU": (
        ClusterSnapshot(
            (cpu_node("c", 4.0, schedulable=False), cpu_node("d", 1.0)),
            (waiting(optional=(0,), tasks=(Task("t", cores=2.0),)),),
        ),
        "its request of 2 cores", "with 1 of its 2 cores",
    ),
    "cores that another has": (
        ClusterSnapshot(
            (cpu_node("c", 2.0),),
            (on_cpu("one", tasks=(Task("t", cores=2.0),)), waiting(optional=(0,), tasks=(Task("t", cores=2.0),))),
        ),
        "that one has the cores", "if one had ended",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_binds_and_what_would_start_it_are_said(case: str) -> None:
    snapshot, binds, remedy = CASES[case]
    assert told(snapshot) == f"new would start now {remedy}."
    (job,) = [job for job in snapshot.queue if job.id == "new"]
    found = search.smallest_change(snapshot, job, 0.0, SETTINGS)
    assert found is not None and found.binds == binds


def test_if_nothing_single_but_the_end_of_another_helps_the_one_that_ends_first_is_named() -> None:
    gpus = (*owned("a", 3, "one").gpus, *owned("b", 3, "two").gpus)
    jobs = running("one", 3, optional=(3,), left=900), running("two", 3, optional=(3,), left=10, node="a")
    snapshot = cluster(*jobs, waiting(optional=(3,), stays=True), nodes=(Node("a", "V100", gpus),))
    assert told(snapshot) == "new would start now if two had ended."


def test_of_a_large_count_what_is_missing_is_named() -> None:
    snapshot = cluster(running("one", 40, optional=(40,)), waiting(optional=(100,)), nodes=(owned("a", 40, "one"),))
    assert told(snapshot) == "new would start now with 100 more V100 GPUs on node a."
    both = cluster(waiting(optional=(100,)), nodes=(node("a", idle=37),))
    assert told(both) == "new would start now with --gpus 37,100."


def test_under_the_default_policy_a_fixed_count_needs_all_its_gpus() -> None:
    snapshot = cluster(waiting(optional=(2, 4), rigid=True), nodes=(node("a", used=4),))
    assert told(snapshot, Settings(systems=())).endswith("new would start now with 4 more V100 GPUs on node a.")


def test_under_the_default_policy_the_policy_is_what_binds() -> None:
    settings = Settings(systems=())
    snapshot = full(waiting(optional=(2,)), optional=(2, 4))
    assert told(snapshot, settings) == "new would start now under the policy planner."


def test_a_job_behind_an_aged_one_is_told_that_its_place_in_the_queue_binds() -> None:
    settings = Settings(reserve_after_s=100.0, cooldown_factor=0.0)
    old = waiting("old", optional=(8,), submit_s=-1e6, left=10)
    snapshot = cluster(
        running("one", 6, optional=(6,)), old, waiting(left=1e6),
        nodes=(replace(owned("a", 6, "one"), gpus=(*owned("a", 6, "one").gpus, Gpu("i1"), Gpu("i2"))),),
    )  # fmt: skip
    assert told(snapshot, settings) == "new would start now if no other job waited."


@pytest.mark.parametrize("seed", range(drawn(60, 1_500)))
def test_the_change_that_is_named_starts_the_job(seed: int) -> None:
    """Whatever the cluster is: by `decide` on the cluster with that change, where no other job waits."""
    snapshot, settings = any_world.drawn(seed)
    for job in snapshot.queue[:2]:
        there = search.alone(snapshot, job)
        change = search.smallest_change(there, job, any_world.NOW, settings)
        if change is not None:
            decisions = decide(change.apply_to(there), any_world.NOW, change.settings or settings)
            assert [d.job for d in decisions if isinstance(d, Start) and d.job == job.id] == [job.id], change


@pytest.mark.parametrize("seed", range(drawn(60, 1_500)))
def test_no_decision_but_the_reason_of_a_waiting_job_is_touched(seed: int) -> None:
    snapshot, settings = any_world.drawn(seed)
    decisions = decide(snapshot, any_world.NOW, settings)
    found = WaitingReasons(settings).told(snapshot, decisions, any_world.NOW)
    queued = {job.id for job in snapshot.queue}
    for before, after in zip(decisions, found, strict=True):
        same = replace(after, explanation=before.explanation)
        assert same == before
        assert after == before or (isinstance(after, Hold) and after.job in queued)


def test_nothing_is_asked_of_the_scheduler_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, calls = full(waiting(optional=(2,)), optional=(2, 4), rigid=True), list[object]()
    decisions, why = decide(snapshot, 0.0, SETTINGS), WaitingReasons(SETTINGS)
    monkeypatch.setattr(search, "decide", lambda *given: calls.append(given) or decide(*given))
    first = why.told(snapshot, decisions, 0.0)
    assert calls
    calls.clear()
    later = replace(
        snapshot, jobs=tuple(replace(j, iterations_left=(j.iterations_left or 0) - 9) for j in snapshot.jobs)
    )
    assert why.told(later, decisions, 9.0) == first
    assert calls == []
    soft = replace(snapshot, jobs=(replace(snapshot.jobs[0], state="adjusting"), snapshot.jobs[1]))
    why.told(soft, decisions, AGAIN_S - 1.0)
    assert calls == [], "nor soon again"
    why.told(soft, decisions, AGAIN_S)
    assert calls, "but the state of a running job is something that it rests on"


def test_of_many_that_ask_for_the_same_one_search_serves_all_and_few_are_told_unasked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [waiting(f"w{n:03}", optional=(2,), submit_s=float(n)) for n in range(200)]
    snapshot, searched = full(*jobs, rigid=True, optional=(2, 4)), list[str]()
    monkeypatch.setattr(
        reasons, "smallest_change",
        lambda world, job, *rest: searched.append(job.id) or search.smallest_change(world, job, *rest),
    )  # fmt: skip
    why = WaitingReasons(SETTINGS)
    found = why.told(snapshot, decide(snapshot, 0.0, SETTINGS), 0.0)
    assert len(searched) == 1
    assert sum("would start now" in d.explanation.sentence for d in found) == TOLD
    said, change = why.reason_of_job("w150")
    assert said.endswith(" w150 would start now if one had shown that it can save and resume.") and change is not None
    assert len(searched) == 1


def test_the_costs_of_a_search_do_not_grow_with_the_cluster() -> None:
    sizes = []
    for count in (20, 200):
        nodes = tuple(owned(f"n{i}", 8, f"r{i}") for i in range(count))
        jobs = [running(f"r{i}", 8, optional=(8,), node=f"n{i}") for i in range(count)]
        few = search.near(cluster(*jobs, waiting(optional=(9,)), nodes=nodes), waiting(optional=(9,)))
        sizes.append((len(few.nodes), len(few.jobs)))
    assert sizes == [(search.NEAR, search.NEAR + 1)] * 2


# through the coordinator


def test_decision_message_event_view_and_explanation_say_the_same_sentence() -> None:
    world = World.training([4], Behaviour(iterations=10**6))
    world.submit("two", [2])
    world.tick()
    view = world.api.jobs.job("two")
    assert (view["binds"], view["starts_if"]) == ("that one may not run on 2 GPUs", "if one might run on 2 GPUs")
    sentence = view["message"]
    assert sentence.endswith(" two would start now if one might run on 2 GPUs.")
    assert world.job("two").doc["message"] == sentence, "which the launcher makes the Event of"
    (hold,) = [d for d in world.api.history.decisions("two", 9) if d["kind"] == "hold"]
    assert hold["sentence"] == sentence
    assert sentence in render.decision(hold)
    assert sentence in render.job(view)
    told_ = [e["sentence"] for e in world.c.event_log.after(0, 10_000) if e["type"] == "waits"]
    assert told_ == [sentence]
    (listed,) = [j for j in world.api.jobs.list_jobs(False) if j["job_id"] == "two"]
    assert (listed["message"], listed["starts_if"]) == (sentence, "if one might run on 2 GPUs")


def test_the_change_that_is_named_starts_the_job_when_an_operator_makes_it() -> None:
    world = World.training([2, 4], Behaviour(iterations=10**6))
    world.api.operator.request("one", 4, None)
    world.submit("two", [2], Behaviour(iterations=10**6))
    world.tick()
    world.tick()
    assert world.api.jobs.job("two")["starts_if"] == "after `reshape reshape one --auto`"
    world.api.operator.request("one", None, None)
    world.run(lambda w: w.states()["two"] == s.RUNNING)
    assert world.api.jobs.job("two")["starts_if"] is None


@pytest.mark.parametrize(
    ("cordoned", "remedy"), [(False, "after `reshape undrain n1`"), (True, "if node n1 were open")]
)
def test_of_a_drained_node_it_is_said_whether_to_undrain_it_starts_the_job(cordoned: bool, remedy: str) -> None:
    world = World(gpus=1)
    world.users.update("nodes", "n1", {}, {"schedulable": not cordoned})
    world.api.drains.drain("n1", True)
    world.submit("one", [1])
    world.tick()
    assert world.api.jobs.job("one")["starts_if"] == remedy
    world.api.drains.drain("n1", False)
    world.tick()
    assert world.states()["one"] == (s.SUBMITTED if cordoned else s.INITIALIZING)


def test_one_of_many_is_told_when_somebody_asks_and_from_then_on() -> None:
    world = World.training([4], Behaviour(iterations=10**6))
    for n in range(TOLD + 5):
        world.submit(f"w{n:02}", [2])
    world.tick()
    last = f"w{TOLD + 4:02}"
    assert "would start now" not in world.job(last).doc["message"]
    asked = world.api.jobs.job(last)["message"]
    assert asked.endswith(f"{last} would start now if one might run on 2 GPUs.")
    world.pass_time(30.0)
    assert world.job(last).doc["message"] == asked


def test_a_search_that_fails_costs_the_answer_but_not_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, _, _ = CASES["fewer GPUs"]
    decisions, waits = decide(snapshot, 0.0, SETTINGS), WaitingReasons(SETTINGS)
    monkeypatch.setattr(search, "near", lambda world, job: 1 // 0)
    assert waits.told(snapshot, decisions, 0.0) == tuple(decisions)
    assert waits.reason_of_job("new")[1] is None


def test_what_would_start_a_job_is_not_said_of_another_rule_by_which_it_waits_now() -> None:
    """It waited for GPUs; now its budget is used up, and more GPUs would not help."""
    snapshot = full(waiting(optional=(1,)))
    (held,) = [one for one in decide(snapshot, 0.0, SETTINGS) if isinstance(one, Hold) and one.job == "new"]
    found = WaitingReasons(SETTINGS)
    (said,) = found.told(snapshot, [held], 0.0)
    assert "would start now" in said.explanation.sentence
    used_up = replace(held, explanation=replace(held.explanation, algorithm=BUDGET, sentence="new waits: used up."))
    poor = replace(
        snapshot, shares=Shares({"default": QueueShare(budget=GpuBudget(1.0))}), spent={"queue default": 2.0}
    )
    (said,) = found.told(poor, [used_up], 1.0)
    assert said.explanation.sentence == "new waits: used up."
