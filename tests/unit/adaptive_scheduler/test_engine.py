"""Promise: `decide` gives decisions that can be carried out, the same every time, and never thrashes."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler import engine
from adaptive_scheduler.decision import (
    BrokenDecision,
    End,
    Explanation,
    Finish,
    Hold,
    Limit,
    Move,
    Requeue,
    Reshape,
    Start,
    check,
    workers_of,
)
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.time_limits import in_words
from adaptive_scheduler.profiles.growth import Growth
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import QueueOrder, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Job, Node, Worker
from adaptive_scheduler.tentative_snapshot import after
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, speed_rows, waiting

ROOT = Path(__file__).parents[3]
COUNTS = (1, 2, 3, 4, 8)
SLOW = speed_rows("known", "P100", {1: 0.4, 2: 0.7, 4: 1.2})
PROFILES = Profiles.from_rows([*speed_rows("known"), *SLOW, *speed_rows("partly", speed_up={2: 1.5})])


def moves(decisions):
    return [d for d in decisions if not isinstance(d, Hold)]


# ---- in what order


def test_every_queued_job_is_tried_oldest_first_before_a_running_one_grows():
    world = cluster(
        running("r", 1, 9000, (1, 2, 4)), waiting("late", optional=(1,), submit_s=2),
        waiting("big", optional=(8,), submit_s=0), waiting("early", optional=(1,), submit_s=1), idle=5, used=3,
    )  # fmt: skip
    decisions = decide(world, 10.0)
    assert [(type(d), d.job) for d in decisions] == [
        (Start, "early"), (Start, "late"), (Reshape, "r"), (Hold, "big")
    ]  # fmt: skip
    assert decisions[2].num_gpus == 4


def test_g14_nobody_grows_beside_a_waiting_job_where_that_is_forbidden():
    world = cluster(running("r", 1, 9000), waiting("big", optional=(8,)), idle=4)
    assert [type(d) for d in decide(world, 0.0)] == [Reshape, Hold]
    assert [type(d) for d in decide(world, 0.0, Settings(reshape_up_with_pending=False))] == [Hold]


def test_g14_jobs_grow_where_nobody_is_left_waiting_even_if_it_is_forbidden_beside_them():
    world = cluster(running("r", 1, 9000, (1, 2)), waiting(optional=(1,)), idle=2)
    decisions = decide(world, 0.0, Settings(reshape_up_with_pending=False))
    assert [type(d) for d in decisions] == [Start, Reshape]


def test_idle_gpus_are_dealt_out_until_nobody_gains_and_each_job_grows_once():
    world = cluster(*[running(f"r{i}", 1, 5000 + i, (1, 2)) for i in range(4)], idle=3)
    decisions = decide(world, 0.0)
    assert [(d.job, d.num_gpus) for d in decisions] == [("r3", 2), ("r2", 2), ("r1", 2)]


def test_a_victim_gives_to_one_newcomer_only():
    world = cluster(running("v", 4), waiting("a", optional=(2,)), waiting("b", optional=(1,)))
    start, hold = decide(world, 0.0)
    assert (start.job, start.victim) == ("a", "v")
    assert "v has an operation under way" in hold.explanation.sentence


def test_a_job_that_had_to_wait_is_asked_again_once_fewer_gpus_are_idle():
    # `first` needs 4 and only v could give exactly 4; that works once `second` has taken the idle one.
    world = cluster(
        running("v", 8, 9000, (4, 8)), waiting("first", optional=(4,), submit_s=0),
        waiting("second", optional=(1,), submit_s=1), idle=1,
    )  # fmt: skip
    decisions = decide(world, 0.0, Settings(over_release="never"))
    assert [(d.job, d.victim) for d in decisions] == [("second", None), ("first", "v")]


def test_the_default_policy_never_reshapes_but_obeys_an_operator():
    world = cluster(running("r", 1, 9000), running("w", 4, wanted=2), waiting(optional=(1, 2)), idle=4)
    decisions = decide(world, 0.0, Settings(systems=()))
    assert [(type(d), d.job, d.num_gpus) for d in decisions] == [(Reshape, "w", 2), (Start, "new", 2)]


# ---- an operator's wish


def wish(n, wanted, idle=0, **more):
    return decide(cluster(running("w", n, wanted=wanted, **more), idle=idle), 0.0)


def test_a_wish_for_more_is_fulfilled_from_idle_gpus_even_while_the_job_cools_down():
    (decision,) = wish(1, 4, idle=3, cooling_until=99.0)
    assert (type(decision), decision.num_gpus, decision.explanation.algorithm) == (Reshape, 4, "operator")
    assert decision.explanation.sentence == "w goes from 1 to 4 GPUs on a, as an operator requested."
    assert decision.explanation.candidates[0].num_gpus == 4


def test_a_wish_for_less_needs_no_idle_gpu():
    (decision,) = wish(4, 1)
    assert decision.num_gpus == 1


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (3, "although 3 were requested: it may only run on 1, 2, 4; request one of these."),
        (4, "although 4 were requested: it needs 3 more, and 2 are idle on a; it gets them when they are free."),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_says_why(wanted, words):
    (decision,) = wish(1, wanted, idle=2)
    assert isinstance(decision, Hold)
    assert decision.explanation.sentence == f"w keeps 1 GPU, {words}"


def test_a_wish_beyond_the_node_or_on_a_lost_node_says_so():
    (decision,) = decide(cluster(running("w", 1, wanted=4), idle=1, used=1), 0.0)
    assert "node a has only 2 working; request fewer" in decision.explanation.sentence
    (decision,) = decide(cluster(running("w", 1, wanted=4, node="gone")), 0.0)
    assert "its node gone is not known" in decision.explanation.sentence


@pytest.mark.parametrize("more", [{"busy": True}, {"state": "adjusting"}, {"wanted": 1}], ids=str)
def test_a_wish_that_is_fulfilled_or_under_way_needs_no_answer(more):
    assert decide(cluster(running("w", 1, **({"wanted": 4} | more)), idle=4), 0.0) == ()


def test_a_wish_that_would_lose_work_is_granted_only_to_who_agreed_to_that():
    (held,) = wish(1, 4, idle=3, rigid=True)
    assert isinstance(held, Hold)
    assert held.explanation.sentence == (
        "w keeps 1 GPU, although 4 were requested: it has not shown that it can save and resume, so it would begin "
        "again; repeat the request with --force to agree to that."
    )
    (decision,) = wish(1, 4, idle=3, rigid=True, forced=True)
    assert (type(decision), decision.num_gpus) == (Reshape, 4)


WHY = Explanation("test", "because")
STOPS = {
    "reshape": Reshape("r", "a", 1, WHY), "move": Move("r", "b", 2, WHY), "requeue": Requeue("r", WHY),
    "victim": Start("new", "a", 1, WHY, victim="r", victim_num_gpus=1),
}  # fmt: skip


@pytest.mark.parametrize("decision", STOPS.values(), ids=STOPS)
def test_no_decision_stops_a_rigid_job_whoever_made_it(decision):
    def world(**more):
        return cluster(running("r", 2, **more), waiting(), nodes=(node("a", idle=0, used=2), node("b", idle=4)))

    check(world(), [decision])
    for forced in ({}, {"forced": True}, {"forced": True, "wanted": 4}):
        with pytest.raises(
            BrokenDecision, match="job r has not shown that it can save and resume: it must not be stopped"
        ):
            check(world(rigid=True, **forced), [decision])


def test_no_decisions_give_more_gpus_together_than_are_idle():
    world = cluster(waiting("one", optional=(2,)), waiting("two", optional=(2,)), idle=3, used=0)
    starts = [Start(job, "a", 2, WHY) for job in ("one", "two")]
    check(world, starts[:1])
    with pytest.raises(BrokenDecision, match="node a has not that many idle GPUs"):
        check(world, starts)


def test_what_does_not_stop_a_rigid_job_is_allowed_and_so_is_the_one_wish_that_was_agreed_to():
    rigid = running("r", 2, rigid=True, forced=True, wanted=1)
    check(cluster(rigid), [Finish("r", WHY)])
    check(cluster(rigid), [Limit("r", "a", 1.0, 60.0, WHY)])
    check(cluster(rigid), [STOPS["reshape"]])


def test_a_fulfilled_wish_stands_against_both_algorithms():
    world = cluster(running("w", 4, 9000, wanted=4, optional=(1, 2, 4, 8)), waiting(optional=(2,)), idle=1)
    assert [type(d) for d in decide(world, 0.0)] == [Hold]
    world = cluster(running("w", 4, 9000, wanted=4, optional=(1, 2, 4, 8)), idle=4)
    assert decide(world, 0.0) == ()


def test_two_wishes_never_get_the_same_gpu_and_what_shrinks_is_not_handed_on_at_once():
    jobs = [
        running("a", 1, wanted=2, submit_s=1), running("b", 1, wanted=2, submit_s=0),
        running("c", 4, wanted=1, submit_s=-1),
    ]  # fmt: skip
    decisions = decide(cluster(*jobs, idle=1), 0.0)
    assert [(type(d), d.job) for d in decisions] == [(Reshape, "c"), (Reshape, "b"), (Hold, "a")]


# ---- any snapshot


def spreads(nodes, node, num_gpus):
    """Nothing, or the GPUs of a placed job over its own node and another of the same type."""
    kinds = {n.name: n.gpu_type for n in nodes}
    others = [n for n in kinds if n != node and kinds[n] == kinds.get(node)]
    if num_gpus < 2 or not others:
        return st.just(())
    some = st.builds(
        lambda other, there: (Worker(node, num_gpus - there), Worker(other, there)),
        st.sampled_from(others), st.integers(1, num_gpus - 1),
    )  # fmt: skip
    return st.one_of(st.just(()), some)


@st.composite
def snapshots(draw):
    types = ["known", "partly", "unknown"]
    nodes, jobs = [], []
    for i in range(draw(st.integers(0, 3))):
        states = draw(st.lists(st.sampled_from(["idle", "idle", "reserved", "in use", "faulty"]), max_size=8))
        gpus = tuple(Gpu(f"n{i}g{j}", state) for j, state in enumerate(states))
        open_, heard = draw(st.integers(0, 9)) > 0, draw(st.integers(0, 9)) > 0
        nodes.append(Node(f"n{i}", draw(st.sampled_from(["V100", "P100"])), gpus, open_, heard=heard))
    for i in range(draw(st.integers(0, 8))):
        state = draw(st.sampled_from(["submitted"] * 3 + ["running"] * 4 + ["adjusting", "initializing", "restarting"]))
        optional = tuple(sorted(draw(st.sets(st.sampled_from(COUNTS), max_size=4))))
        placed = state != "submitted" and optional
        num_gpus = draw(st.sampled_from(optional)) if placed else 0
        node = draw(st.sampled_from([n.name for n in nodes] + ["gone"])) if placed else None
        workers = draw(spreads(nodes, node, num_gpus))
        jobs.append(
            Job(
                id=f"j{i}",
                type=draw(st.sampled_from(types)),
                state=state,
                optional=optional,
                submit_s=draw(st.sampled_from([0.0, 1.0])),
                num_gpus=num_gpus,
                node=node,
                workers=workers,
                max_workers=max(len(workers), draw(st.sampled_from([1, 1, 2, 3]))),
                pinned=draw(st.sampled_from([None, None, None, "n0"])),
                sla_s=draw(st.sampled_from([None, None, 100.0, 500.0, 5000.0])),
                growth=Growth(draw(st.sampled_from(["PC", "CC"]))),
                iterations_left=draw(st.sampled_from([None, 0, 10, 1000, 10**6, 1e308])),
                running_s=draw(st.sampled_from([0.0, 5000.0])),
                busy=draw(st.integers(0, 4)) == 0,
                cooling_until=draw(st.sampled_from([0.0, 0.0, 100.0])),
                wanted=draw(st.sampled_from([None, None, None, 1, 2, 5])),
                reshape_cost_s=draw(st.sampled_from([None, 0.0, 2.0])),
                state_bytes=draw(st.sampled_from([0.0, 0.0, 1e8, 15.7e9])),
                state_path=draw(st.sampled_from(["disk", "host memory", "GPU"])),
                relaunches=draw(st.integers(0, 3)) == 0,
                gpu_type=draw(st.sampled_from([None, None, "V100", "H100"])),
            )
        )
    return ClusterSnapshot(tuple(nodes), tuple(jobs), PROFILES)


choices = st.builds(
    Settings,
    systems=st.sampled_from([("elastic",), ("elastic", "deadline"), ("elastic", "specon", "flowcon", "deadline"), ()]),
    min_gain_factor=st.sampled_from([0, 1]),
    makespan_scope=st.sampled_from(["cluster", "pair"]),
    removal_range=st.sampled_from(["resolved", "printed"]),
    over_release=st.sampled_from(["never", "needed", "always"]),
    tiebreak=st.sampled_from(["full", "first"]),
    refined=st.booleans(),
    allow_noop=st.booleans(),
    reshape_up_with_pending=st.booleans(),
    moves=st.booleans(),
    placement=st.sampled_from(["host", "host", "count_only"]),
    batch_scaling=st.sampled_from(["fixed", "fixed", "weak"]),
    compare_with_waiting=st.booleans(),
    reserve_after_s=st.sampled_from([0, 10, 3600]),
    queue_order=st.sampled_from(get_args(QueueOrder)),
)


@given(snapshots(), choices)
def test_any_snapshot_gets_decisions_that_can_be_carried_out_and_are_the_same_again(snapshot, chosen):
    decisions = decide(snapshot, 50.0, chosen)
    check(snapshot, decisions, anywhere=chosen.placement == "count_only")
    assert decide(snapshot, 50.0, chosen) == decisions
    for decision in moves(decisions):
        touched = {decision.job, getattr(decision, "victim", None)} - {None}
        assert not any(snapshot.job[j].busy for j in touched)
        if isinstance(decision, Start | Move):
            job, nodes = snapshot.job[decision.job], [snapshot.node[w.node] for w in workers_of(decision)]
            assert all(n.schedulable for n in nodes)
            assert all(job.gpu_type in (None, n.gpu_type) and job.pinned in (None, n.name) for n in nodes)
            assert len({n.gpu_type for n in nodes}) == 1 or chosen.placement == "count_only"
        if isinstance(decision, Move):
            here, there = snapshot.node[job.node], nodes[0]
            assert here.heard and there.heard
            assert decision.num_gpus > job.num_gpus or there.gpu_type != here.gpu_type or job.workers


@given(snapshots(), choices)
def test_once_the_decisions_are_accepted_deciding_again_changes_nothing(snapshot, chosen):
    decisions = decide(snapshot, 50.0, chosen)
    accepted = after(snapshot, *decisions)
    assert moves(decide(accepted, 50.0, chosen)) == []


@given(snapshots(), choices)
def test_every_queued_job_is_started_or_told_why_not(snapshot, chosen):
    decisions = decide(snapshot, 50.0, chosen)
    answered = [d.job for d in decisions]
    assert sorted(j.id for j in snapshot.queue) == sorted(j for j in answered if snapshot.job[j].state == "submitted")
    assert len(answered) == len(set(answered))
    for decision in decisions:
        assert decision.explanation.sentence.endswith(".")
        for way in decision.explanation.candidates:
            assert 0 <= way.makespan_s <= way.sum_s * 1.001 < 1e12


@given(snapshots())
def test_without_arrivals_running_jobs_only_grow_and_soon_stay_as_they_are(snapshot):
    world = replace(snapshot, jobs=tuple(replace(j, wanted=None) for j in snapshot.jobs if j.state != "submitted"))
    for _ in range(1 + sum(len(j.optional) for j in world.jobs) * max(1, len(world.nodes))):
        decisions = [d for d in decide(world, 50.0, Settings(systems=("elastic",))) if not isinstance(d, Hold)]
        if not decisions:
            return
        assert all(sooner(world, d) or d.num_gpus > world.job[d.job].num_gpus for d in decisions)
        done = after(world, *decisions)
        world = replace(done, jobs=tuple(replace(j, busy=world.job[j.id].busy) for j in done.jobs))
    raise AssertionError("the same jobs are reshaped again and again")


def sooner(world, decision):
    chosen = decision.explanation.candidates[0]
    return chosen.sum_s < decision.explanation.unchanged_sum_s


def test_a_newcomer_that_took_gpus_does_not_make_anybody_grow_back_at_once():
    world = cluster(running("J1", 4), waiting(), used=4)
    (start,) = decide(world, 0.0)
    assert start.victim == "J1"
    settled = after(world, start)
    both = replace(settled, jobs=tuple(replace(j, busy=False, state="running") for j in settled.jobs))
    assert decide(both, 300.0) == ()


def test_what_a_victim_still_holds_is_not_idle_to_anybody_else():
    world = cluster(running("v", 4), waiting(optional=(1,)), waiting("other", optional=(1,), submit_s=1), used=4)
    chosen = Settings(over_release="always")
    start, hold = decide(world, 0.0, chosen)
    assert (start.victim_num_gpus, type(hold)) == (2, Hold)
    assert after(world, start).node["a"].idle == 0


# ---- the safety net, and the same answer everywhere


def test_an_answer_that_cannot_be_carried_out_never_leaves_the_engine(monkeypatch):
    class Wrong:
        def schedule_incoming(self, snapshot, job, now, settings, table=None):
            return Start(job.id, "a", 3, Explanation("wrong", "."))

        def schedule_running(self, snapshot, now, settings, table=None):
            return None

    monkeypatch.setitem(engine.POLICIES, True, Wrong())
    with pytest.raises(BrokenDecision, match="may not run on 3 GPUs"):
        decide(cluster(waiting(), idle=4), 0.0, Settings(planner="paper"))


SCRIPT = """
from adaptive_scheduler.engine import decide
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, waiting
jobs = [running(f"r{i}", 2, 1000, node="ab"[i % 2]) for i in range(12)]
jobs += [waiting(f"q{i}", optional=(1, 2)) for i in range(6)]
print(decide(cluster(*jobs, nodes=(node("a", idle=2, used=12), node("b", idle=1, used=12))), 0.0))
"""


def test_the_decisions_are_the_same_under_any_hash_seed():
    def told(seed):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=env, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout

    first = told("0")
    assert "Start(" in first
    assert {told(seed) for seed in ("1", "2", "12345")} == {first}


def test_the_nodes_and_jobs_may_come_in_any_order():
    nodes = node("a", idle=2, used=8), node("b", idle=1, used=8)
    jobs = [running(f"r{i}", 2, 1000, node="ab"[i % 2]) for i in range(8)] + [waiting(f"q{i}") for i in range(4)]
    first = cluster(*jobs, nodes=nodes)
    second = cluster(*jobs[::-1], nodes=nodes[::-1])
    assert moves(decide(first, 0.0)) == moves(decide(second, 0.0))


def test_a_job_whose_time_is_up_ends_in_whatever_state_it_is_and_nothing_else_is_decided_of_it():
    up = {"time_limit_s": 7200.0, "time_is_up": True}
    jobs = (
        running("trains", 4, rigid=True, wanted=2, **up), running("changes", 2, state="adjusting", busy=True, **up),
        waiting("waits", suspended=True, **up),
    )  # fmt: skip
    decisions = decide(cluster(*jobs, idle=2), 0.0)
    ends = [decision for decision in decisions if isinstance(decision, End)]
    assert [end.job for end in ends] == ["trains", "changes", "waits"]
    assert ends[0].explanation.sentence == "trains comes to its time limit of 2 h: it saves and ends."
    assert list(decisions) == ends
    assert decide(cluster(running("r", 4, time_limit_s=7200.0)), 0.0) == (), "only whoever says that it is up"


@pytest.mark.parametrize(("seconds", "words"), [(7200, "2 h"), (5400, "90 min"), (90, "90 s"), (0.5, "0.5 s")])
def test_a_limit_is_said_as_its_user_may_have_written_it(seconds, words):
    assert in_words(seconds) == words
