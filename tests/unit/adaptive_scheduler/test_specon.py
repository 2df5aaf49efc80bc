"""Promise: converged jobs move where they disturb less, once, and only where that pays (2.4, 2.5, 5.5)."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from adaptive_scheduler.decision import Limit, Move, Reshape, Start, Stay, check
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.allocatable import obstacle
from adaptive_scheduler.policies.specon import schedule_move, schedule_rebalance, score
from adaptive_scheduler.profiles.growth import EvaluationReading, Growth
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Settings, SpeCon
from adaptive_scheduler.snapshot import ClusterSnapshot, Task
from adaptive_scheduler.tentative_snapshot import after
from tests.unit.adaptive_scheduler.worlds import PROFILES, cpu_node, node, on_cpu, running, waiting

NOW = 300.0
CHEAP = Profiles.from_rows(
    [], [{"job_type": "t", "k8s_init": 0, "proc_init": 3, "ckpt": 2, "proc_term": 0, "k8s_term": 0}]
)
PRINTED = SpeCon(accept_move="always", slowing="strict", request_beside="progressing")
PAPER = Settings(systems=("specon",), specon=PRINTED)
JUDGED = Settings(systems=("specon",))


def grown(category, slow_again=False, at_s=NOW, converged_s=None):
    return Growth(category, 0.005, slow_again, converged_s, last=EvaluationReading(at_s, 1.0, 1, 1.0, 0))


def job(job_id, node, category="PC", left=300.0, asks=False, at_s=NOW, **more):
    growth = grown(category, asks, at_s)
    return on_cpu(job_id, node, growth=growth, iterations_left=left, rate=1.0, share=1.0, **more)


def crowd(name, progressing=0, watched=0, converged=0, **more):
    """A node and its jobs by category."""
    kinds = ["PC"] * progressing + ["WC"] * watched + ["CC"] * converged
    return cpu_node(name, **more), [job(f"{name}-{i}", name, kind) for i, kind in enumerate(kinds)]


def world(*crowds, more=(), profiles=CHEAP):
    nodes = tuple(c[0] for c in crowds)
    return ClusterSnapshot(nodes, tuple(j for c in crowds for j in c[1]) + tuple(more), profiles)


def asking(snapshot, job_id, **more):
    changed = [replace(j, growth=grown("CC", True), **more) if j.id == job_id else j for j in snapshot.jobs]
    return replace(snapshot, jobs=tuple(changed))


W1 = crowd("w1", 1, 1, 2)
"""Of the vectors of 2.6: score 5.5; its job 3 is converged."""


def where(snapshot, settings=PAPER, now=NOW):
    """Who goes where, of a single answer."""
    (answer,) = schedule_move(snapshot, now, settings)
    return (answer.job, answer.node) if isinstance(answer, Move) else (answer.job, None)


# ---- Algorithm 2: the target


def test_the_first_vector_of_2_6_goes_to_the_lowest_score():
    snapshot = asking(world(W1, crowd("w2", 0, 1, 2), crowd("w3", 1, 0, 1)), "w1-3")
    assert [score(snapshot.on_cpu[w], SpeCon()) for w in ("w1", "w2", "w3")] == [5.5, 3.5, 3.0]
    assert where(snapshot) == ("w1-3", "w3")


def test_the_second_vector_of_2_6_breaks_a_tie_by_the_use_of_the_node():
    tie = [crowd("w2", 0, 2, 0, cpu_use=0.4), crowd("w3", 1, 0, 1, cpu_use=0.5)]
    assert where(asking(world(W1, *tie), "w1-3")) == ("w1-3", "w2")
    tie = [crowd("w2", 0, 2, 0, cpu_use=0.5), crowd("w3", 1, 0, 1, cpu_use=0.4)]
    assert where(asking(world(W1, *tie), "w1-3")) == ("w1-3", "w3")


def test_s18_memory_breaks_a_tie_of_the_use_then_the_name():
    def targets(*memory_use):
        crowds = [crowd(f"w{i}", memory_use=use) for i, use in enumerate(memory_use, 2)]
        return where(asking(world(W1, *crowds), "w1-3"))[1]

    assert targets(0.5, 0.4) == "w3"
    assert targets(0.4, 0.4) == "w2"


def test_a_job_stays_where_no_score_is_lower_and_that_was_its_one_chance():
    snapshot = asking(world(W1, crowd("w2", 2, 1, 0)), "w1-3")
    (stay,) = schedule_move(snapshot, NOW, PAPER)
    assert isinstance(stay, Stay) and stay.spends_move and stay.at_s == NOW
    assert schedule_move(after(snapshot, stay), NOW + 30, PAPER) == ()
    assert stay.explanation.sentence == "w1-3 stays on w1: no node with room scores lower than its 5.5."


def test_s8_its_own_weight_counts_unless_that_is_excluded():
    """The example of S8: {PC 1, CC 2} against {PC 1, CC 1} merely swaps the loads."""
    snapshot = asking(world(crowd("w1", 1, 1, 1), crowd("w2", 1, 1, 0)), "w1-2")
    assert where(snapshot) == ("w1-2", "w2")
    assert where(snapshot, Settings(specon=SpeCon(accept_move="always", exclude_self=True))) == ("w1-2", None)


def test_s10_a_node_without_room_or_closed_or_not_heard_of_takes_nobody():
    asks = (Task("train", cores=1.0, memory=8.0),)
    for lack in (
        {"cores": 0.5}, {"memory": 4.0}, {"schedulable": False}, {"heard": False}, {"kept_for": "x"},
    ):  # fmt: skip
        snapshot = asking(world(W1, crowd("w2", **lack), crowd("w3", 1)), "w1-3", tasks=asks)
        assert where(snapshot) == ("w1-3", "w3"), lack
        (move,) = schedule_move(snapshot, NOW, PAPER)
        assert [c.node for c in move.explanation.candidates] == ["w3", "w2"]
        assert move.explanation.candidates[1].rejected


def test_s10_a_job_pinned_by_the_user_stays():
    snapshot = asking(world(W1, crowd("w2")), "w1-3", pinned="w1")
    assert where(snapshot) == ("w1-3", None)


def test_the_weights_can_be_chosen():
    snapshot = asking(world(W1, crowd("w2", 1), crowd("w3", 0, 0, 3)), "w1-3")
    assert where(snapshot) == ("w1-3", "w2")
    light = Settings(specon=SpeCon(accept_move="always", weight_cc=0.1))
    assert where(snapshot, light) == ("w1-3", "w3")


# ---- who asks


def test_s7_a_job_asks_only_beside_more_than_one_that_is_not_converged():
    assert schedule_move(asking(world(crowd("w1", 1, 0, 3), crowd("w2")), "w1-3"), NOW, PAPER) == ()
    assert where(asking(world(crowd("w1", 1, 1, 2), crowd("w2")), "w1-3")) == ("w1-3", "w2")


def test_s7_converged_jobs_that_sit_together_ask_too_unless_the_printed_rule_is_wished():
    three = asking(world(crowd("w1", 0, 0, 3), crowd("w2")), "w1-2")
    assert schedule_move(three, NOW, PAPER) == ()
    assert where(three, JUDGED) == ("w1-2", "w2")
    alone = asking(world(crowd("w1", 0, 0, 1), crowd("w2")), "w1-0")
    assert schedule_move(alone, NOW, JUDGED) == ()


def test_s7_a_job_asks_one_slow_interval_after_it_converged_or_at_once():
    snapshot = world(W1, crowd("w2"))
    entered = replace(snapshot.job["w1-3"], growth=grown("CC", converged_s=NOW))
    snapshot = replace(snapshot, jobs=(*snapshot.jobs[:3], entered))
    assert schedule_move(snapshot, NOW, PAPER) == ()
    at_once = Settings(specon=SpeCon(accept_move="always", request_on_entry=True))
    assert where(snapshot, at_once) == ("w1-3", "w2")


def test_a_job_that_has_not_shown_that_it_resumes_neither_asks_nor_evens_out_a_node():
    snapshot = asking(world(W1, crowd("w2")), "w1-3", rigid=True)
    assert schedule_move(snapshot, NOW, PAPER) == ()
    moved = replace(snapshot, jobs=tuple(replace(j, rigid=True, migrated_s=10.0) for j in snapshot.jobs))
    assert schedule_rebalance(moved, NOW, PAPER) == ()
    free = replace(snapshot, jobs=tuple(replace(j, rigid=False, migrated_s=10.0) for j in snapshot.jobs))
    assert len(schedule_rebalance(free, NOW, PAPER)) == 1


def test_nobody_asks_twice():
    snapshot = asking(world(W1, crowd("w2")), "w1-3")
    assert schedule_move(asking(snapshot, "w1-3", migrated_s=10.0), NOW, PAPER) == ()


@pytest.mark.parametrize("state", ["adjusting", "initializing", "restarting"])
def test_x1_a_job_under_an_operation_asks_again_later(state):
    snapshot = asking(world(W1, crowd("w2")), "w1-3")
    assert schedule_move(asking(snapshot, "w1-3", state=state), NOW, PAPER) == ()
    assert schedule_move(asking(snapshot, "w1-3", busy=True), NOW, PAPER) == ()


def test_a_job_whose_better_node_is_not_heard_of_stays_for_now_and_keeps_its_move():
    (stay,) = schedule_move(asking(world(W1, crowd("w2", 0, 0, 1, heard=False)), "w1-3"), NOW, PAPER)
    assert isinstance(stay, Stay) and not stay.spends_move
    why = "w1-3 stays on w1 (score 5.5) for now: w2 (score 1) has not been heard of lately."
    assert stay.explanation.sentence == why
    (candidate,) = stay.explanation.candidates
    assert (candidate.node, candidate.rejected) == ("w2", "it has not been heard of lately")
    assert not candidate.possible, "its times would look as if it could take the job"


def test_a_silent_node_that_would_not_be_better_or_is_not_for_this_job_keeps_no_chance():
    crowded, pinned = crowd("w2", 3, heard=False), {"pinned": "w1"}
    for silent, more in ((crowded, {}), (crowd("w2", heard=False), pinned)):
        (stay,) = schedule_move(asking(world(W1, silent), "w1-3", **more), NOW, PAPER)
        assert isinstance(stay, Stay) and stay.spends_move


def test_the_jobs_of_a_node_that_is_not_heard_of_do_not_ask():
    silent = crowd("w1", 1, 1, 2, heard=False)
    assert schedule_move(asking(world(silent, crowd("w2")), "w1-3"), NOW, PAPER) == ()


def test_requests_are_answered_one_after_the_other_on_what_has_come_of_the_last():
    """The paper blames slowed jobs on requests that all went to the same minimum."""
    snapshot = world(crowd("w1", 2, 0, 0), crowd("w2", 0, 0, 0), crowd("w3", 0, 0, 1))
    more = [job(f"a{i}", "w1", "CC", asks=True, at_s=NOW - i) for i in range(3)]
    snapshot = replace(snapshot, jobs=(*snapshot.jobs, *more))
    moves = [d for d in decide(snapshot, NOW, PAPER) if isinstance(d, Move)]
    assert [(m.job, m.node) for m in moves] == [("a2", "w2"), ("a1", "w2"), ("a0", "w3")]


def test_x11_only_jobs_trained_on_cpu_count():
    """A GPU job that is launched early on the node is no load of it."""
    both = replace(node("w2", idle=2), cores=1.0)
    early = running("gpu", 1, node="w2", state="initialized", busy=True)
    snapshot = asking(world(W1, (both, [early]), crowd("w3", 0, 0, 1)), "w1-3")
    assert where(snapshot) == ("w1-3", "w2")


# ---- judged by the makespan (5.5)


def test_a_move_that_lowers_the_makespan_is_made_with_its_cost_counted():
    snapshot = asking(world(W1, crowd("w2")), "w1-3")
    (move,) = schedule_move(snapshot, NOW, JUDGED)
    # Four jobs of 300 core-seconds share one core until 1200 s; then three until 900 s, and the one takes 305 s.
    assert (move.explanation.unchanged_makespan_s, move.explanation.unchanged_sum_s) == (1200.0, 4800.0)
    (chosen,) = move.explanation.candidates
    assert (chosen.makespan_s, chosen.sum_s, chosen.job_s, chosen.rejected) == (900.0, 3005.0, 305.0, "")
    assert move.explanation.sentence == (
        "w1-3 has converged and moves from w1 (score 5.5) to w2 (score 0): "
        "the last job of both nodes ends 300.0 s earlier."
    )


def test_a_move_that_would_not_lower_the_makespan_is_refused_and_may_be_asked_for_again():
    long = cpu_node("w2"), [job("w2-0", "w2", "CC", left=5000.0)]
    snapshot = asking(world(W1, long), "w1-3")
    (stay,) = schedule_move(snapshot, NOW, JUDGED)
    assert isinstance(stay, Stay) and not stay.spends_move
    (refused,) = stay.explanation.candidates
    assert (refused.node, refused.makespan_s) == ("w2", 5300.0)
    assert refused.rejected == "the last job of both nodes ends 300.0 s later"
    assert stay.explanation.sentence == (
        "w1-3 stays on w1 (score 5.5) for now, though w2 (score 1) scores lower: "
        "the last job of both nodes ends 300.0 s later."
    )
    world_after = after(snapshot, stay)
    assert schedule_move(world_after, NOW, JUDGED) == ()  # until the next interval
    later = replace(world_after.job["w1-3"], growth=grown("CC", True, NOW + 30))
    again = replace(world_after, jobs=tuple(later if j.id == "w1-3" else j for j in world_after.jobs))
    assert [type(d) for d in schedule_move(again, NOW + 30, JUDGED)] == [Stay]
    assert where(again, PAPER) == ("w1-3", "w2")


def test_a_move_is_refused_where_it_costs_more_than_it_gains():
    dear = Profiles.from_rows(
        [], [{"job_type": "t", "k8s_init": 900, "proc_init": 3, "ckpt": 2, "proc_term": 0, "k8s_term": 0}]
    )
    for profiles, kind in ((CHEAP, Move), (dear, Stay)):
        snapshot = asking(world(W1, crowd("w2"), profiles=profiles), "w1-3")
        assert [type(d) for d in schedule_move(snapshot, NOW, JUDGED)] == [kind]


def test_every_other_host_is_kept_with_its_makespan():
    snapshot = asking(world(W1, crowd("w2", 1), crowd("w3"), crowd("w4", 2, 2, 2)), "w1-3")
    (move,) = schedule_move(snapshot, NOW, JUDGED)
    kept = {c.node: (c.makespan_s, c.rejected) for c in move.explanation.candidates}
    assert kept == {
        "w3": (900.0, ""),
        "w2": (900.0, "its score is 2, that of w3 0"),
        "w4": (2105.0, "its score is 9, that of w3 0"),
    }


def test_a_prediction_for_jobs_of_unknown_length_is_marked():
    snapshot = asking(world(W1, crowd("w2")), "w1-3", iterations_left=None)
    (answer,) = schedule_move(snapshot, NOW, JUDGED)
    assert all(c.low_confidence for c in answer.explanation.candidates)


# ---- Algorithm 3: nodes even out


def spread(counts, settings=PAPER, rebalance_when="always"):
    """What becomes of so many jobs per node, all of which have moved, later ones later."""
    crowds = []
    for i, count in enumerate(counts):
        jobs = [job(f"w{i}-{k}", f"w{i}", "CC", migrated_s=10.0 * i + k) for k in range(count)]
        crowds.append((cpu_node(f"w{i}"), jobs))
    snapshot = world(*crowds)
    moves = schedule_rebalance(snapshot, NOW, settings)
    check(snapshot, moves)
    assert all(m.rebalance for m in moves)
    later = after(snapshot, *moves)
    return tuple(len(later.on_cpu[node.name]) for node in later.nodes)


VECTORS = [
    ((0, 2), (1, 1)), ((3, 0, 0, 0), (1, 1, 1, 0)), ((1, 5), (2, 4)), ((2, 4), (2, 4)), ((8, 1, 3, 4), (7, 2, 3, 4)),
    ((1, 0), (1, 0)), ((1, 1, 0), (1, 1, 0)), ((4, 4, 0, 4), (4, 4, 1, 3)),
]  # fmt: skip


@pytest.mark.parametrize(("before", "then"), VECTORS)
def test_the_vectors_of_2_6_for_algorithm_3(before, then):
    assert spread(before) == then
    assert spread(before, JUDGED) == then  # these moves also pay


def test_who_converged_last_goes_first():
    snapshot = world(
        (cpu_node("w1"), [job(f"j{i}", "w1", "CC", migrated_s=m) for i, m in enumerate((5, 9, 7))]), crowd("w2")
    )
    assert [m.job for m in schedule_rebalance(snapshot, NOW, PAPER)] == ["j1"]


def test_s11_as_printed_nobody_goes_to_an_idle_node_where_fewer_jobs_than_nodes_are_left():
    printed = Settings(specon=SpeCon(accept_move="always", bf_floor="zero"))
    assert spread((3, 0, 0, 0), printed) == (3, 0, 0, 0)
    assert spread((0, 2), printed) == (1, 1)


def test_s12_each_receiver_gets_another_job():
    snapshot = world(
        (cpu_node("w1"), [job(f"j{i}", "w1", "CC", migrated_s=i) for i in range(4)]), crowd("w2"), crowd("w3")
    )
    assert [(m.job, m.node) for m in schedule_rebalance(snapshot, NOW, PAPER)] == [("j3", "w2"), ("j2", "w3")]


def test_s13_without_the_guard_a_node_gives_its_only_job():
    unguarded = Settings(specon=SpeCon(accept_move="always", donor_guard=False))
    assert spread((1, 0)) == (1, 0)
    assert spread((1, 0), unguarded) == (0, 1)


def test_s14_s15_only_jobs_that_had_their_speculative_move_and_not_yet_this_one_go():
    def moved(**more):
        snapshot = world((cpu_node("w1"), [job(f"j{i}", "w1", "CC", **more) for i in range(2)]), crowd("w2"))
        return [m.job for m in schedule_rebalance(snapshot, NOW, PAPER)]

    assert moved(migrated_s=1.0) == ["j0"]
    assert moved() == []
    assert moved(migrated_s=1.0, rebalanced=True) == []
    assert moved(migrated_s=1.0, busy=True) == []


def test_s16_the_strict_option_waits_until_all_have_moved():
    strict = Settings(specon=SpeCon(accept_move="always", rebalance_when="all_migrated"))
    jobs = [job("j0", "w1", "CC", migrated_s=1.0), job("j1", "w1", "PC")]
    snapshot = world((cpu_node("w1"), jobs), crowd("w2"))
    assert [m.job for m in schedule_rebalance(snapshot, NOW, PAPER)] == ["j0"]
    assert schedule_rebalance(snapshot, NOW, strict) == ()
    assert spread((0, 2), strict) == (1, 1)


def test_rebalancing_skips_nodes_that_are_not_heard_of_closed_or_full():
    jobs = [job(f"j{i}", "w1", "CC", migrated_s=i, tasks=(Task("t", cores=0.5),)) for i in range(2)]
    for lack in ({"heard": False}, {"schedulable": False}, {"cores": 0.2}):
        snapshot = world((cpu_node("w1"), jobs), (cpu_node("w2", **lack), []))
        assert schedule_rebalance(snapshot, NOW, PAPER) == (), lack


def test_a_rebalancing_move_that_does_not_pay_is_left_to_the_next_job():
    jobs = [job("long", "w1", "CC", left=300.0, migrated_s=2.0), job("short", "w1", "CC", left=10.0, migrated_s=1.0)]
    snapshot = world((cpu_node("w1"), jobs), crowd("slow", cores=0.2))
    assert [m.job for m in schedule_rebalance(snapshot, NOW, PAPER)] == ["long"]
    (move,) = schedule_rebalance(snapshot, NOW, JUDGED)
    assert [(c.job, c.makespan_s, c.rejected) for c in move.explanation.candidates] == [
        ("short", 300.0, ""),
        ("long", 1505.0, "the last job of both nodes ends 1195.0 s later"),
    ]


# ---- beside the other systems (5.3)


def test_x3_a_job_that_is_to_shrink_for_another_does_not_move_too():
    """Reshapes come first and lease their jobs; SpeCon sees that. Only jobs on CPU are SpeCon's anyway (X2)."""
    gpu = replace(running("v", 4, node="g"), growth=grown("CC", True))
    snapshot = world((node("g", used=4), [gpu]), crowd("w2"), more=[waiting(optional=(2,))], profiles=PROFILES)
    decisions = decide(snapshot, NOW, Settings(systems=("elastic", "specon")))
    assert [(type(d), d.job) for d in decisions] == [(Start, "new")]


def test_x15_idle_gpus_are_dealt_out_before_nodes_even_out():
    jobs = [job(f"j{i}", "w1", "CC", migrated_s=i) for i in range(2)]
    snapshot = world((node("a", idle=1, used=1), [running("r", 1, 5000, (1, 2))]), (cpu_node("w1"), jobs), crowd("w2"))
    snapshot = replace(snapshot, profiles=PROFILES)
    decisions = decide(snapshot, NOW, Settings(systems=("elastic", "specon"), specon=SpeCon(accept_move="always")))
    assert [type(d) for d in decisions] == [Reshape, Move]


def test_limits_come_after_moves_and_spare_whoever_moves():
    snapshot = asking(world(W1, crowd("w2")), "w1-3")
    decisions = decide(snapshot, NOW, Settings(systems=("specon", "flowcon"), specon=SpeCon(accept_move="always")))
    assert isinstance(decisions[0], Move)
    assert all(isinstance(d, Limit) and d.job != "w1-3" for d in decisions[1:])


# ---- whatever the cluster


def draw(rng):
    nodes = [
        cpu_node(f"w{i}", rng.choice((0.5, 1.0, 4.0)), cpu_use=rng.choice((0.2, 0.8)), heard=rng.random() < 0.9,
                 schedulable=rng.random() < 0.9, memory=rng.choice((0.0, 8.0)))
        for i in range(rng.randint(1, 5))
    ]  # fmt: skip
    jobs = []
    for i in range(rng.randint(0, 14)):
        kind, asks = rng.choice(("PC", "WC", "CC", "CC")), rng.random() < 0.6
        more = {
            "left": rng.choice((None, 0.0, 10.0, 300.0, 5000.0)), "at_s": rng.choice((NOW, NOW - 30)),
            "state": rng.choice(("running",) * 4 + ("adjusting",)), "busy": rng.random() < 0.1,
            "migrated_s": rng.choice((None, None, 1.0, 2.0)), "rebalanced": rng.random() < 0.3,
            "move_refused_s": rng.choice((None, None, NOW)), "demand": rng.choice((0.2, 1.0, float("inf"))),
            "tasks": rng.choice(((), (Task("t", cores=0.5, memory=2.0),))),
        }  # fmt: skip
        jobs.append(job(f"j{i:02d}", rng.choice(nodes).name, kind, asks=kind == "CC" and asks, **more))
    jobs += [waiting(f"new{i}", optional=(0,), node=None) for i in range(rng.randint(0, 2))]
    return ClusterSnapshot(tuple(nodes), tuple(jobs), CHEAP)


def test_every_answer_can_be_carried_out_and_the_order_of_jobs_and_nodes_does_not_matter():
    kinds, rng = Counter(), random.Random(0)
    for _ in range(150):
        snapshot = draw(rng)
        mixed = replace(
            snapshot, nodes=tuple(rng.sample(snapshot.nodes, len(snapshot.nodes))),
            jobs=tuple(rng.sample(snapshot.jobs, len(snapshot.jobs))),
        )  # fmt: skip
        for settings in (PAPER, JUDGED):
            decisions = decide(snapshot, NOW, settings)
            check(snapshot, decisions)
            kinds.update(type(d).__name__ for d in decisions)
            assert [short(d) for d in decide(mixed, NOW, settings)] == [short(d) for d in decisions]
            for d in decisions:
                if isinstance(d, Move):
                    assert not obstacle(snapshot, d.node, snapshot.job[d.job])
                    assert snapshot.node[snapshot.job[d.job].node].heard
    assert min(kinds[k] for k in ("Move", "Stay", "Start", "Hold")) > 10


def short(decision):
    return type(decision), decision.job, getattr(decision, "node", None), decision.explanation.sentence
