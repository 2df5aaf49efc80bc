"""Promise: where two systems want different things, the rule of `algorithms.md` 5.3 decides; each has a test.

`RULES` names them; here are those that need several systems at once, through the one door.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from adaptive_scheduler.decision import Hold, Limit, Move, Requeue, Reshape, Start, Stay
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.flowcon import FlowConInterval
from adaptive_scheduler.profiles.growth import Efficiency, EvaluationReading, Growth
from adaptive_scheduler.profiles.profiles import Profiles
from adaptive_scheduler.settings import Deadlines, FlowCon, Settings, SpeCon
from adaptive_scheduler.snapshot import ClusterSnapshot, Task
from adaptive_scheduler.tentative_snapshot import after
from tests.unit.adaptive_scheduler.worlds import cluster, cpu_node, node, on_cpu, running, waiting

HERE = Path(__file__).parent
NOW = 300.0
ALL = Settings(specon=SpeCon(accept_move="always"))
"""Every system acts, and SpeCon makes every move it may: so nothing but the rule holds it back."""

RULES = {
    "X1": ("specon.test_x1_a_job_under_an_operation_asks_again_later",
           "conflicts.test_x1_a_job_that_asks_while_it_is_adjusting_keeps_its_one_move"),
    "X2": ("elastic_moves.test_x2_a_job_moves_to_faster_gpus_though_it_gets_no_more_of_them",
           "elastic_moves.test_x2_a_move_that_would_not_lower_the_makespan_is_never_made_even_as_printed"),
    "X3": ("specon.test_x3_a_job_that_is_to_shrink_for_another_does_not_move_too",
           "conflicts.test_x3_a_job_that_gives_its_place_away_does_not_move_too"),
    "X4": ("flowcon.test_x4_jobs_on_gpus_are_neither_limited_nor_counted",),
    "X5": ("specon_categories.test_x5_a_new_limit_makes_nobody_look_converged",
           "conflicts.test_x5_a_limit_says_nothing_of_how_fast_a_job_will_be_elsewhere"),
    "X6": ("flowcon.test_x6_a_job_near_its_deadline_gets_its_fair_share_and_one_that_would_miss_it_no_limit",
           "conflicts.test_x6_who_loses_idle_cores_to_a_late_job_is_not_made_late_by_that"),
    "X7": ("elastic_moves.test_x7_a_victim_that_would_miss_its_deadline_gives_nothing",),
    "X8": ("specon_categories.test_x8_an_interval_with_a_restart_or_a_move_in_it_is_forgotten",
           "growth_efficiency.test_x8_the_interval_of_a_restart_is_forgotten_and_the_record_kept"),
    "X9": ("deadline.test_x9_an_overdue_gpu_job_gives_gpus_instead_of_being_stopped",
           "conflicts.test_x9_a_second_overdue_job_does_not_give_way_to_whom_another_makes_room_for",
           "conflicts.test_x9_without_seed_004_nobody_shrinks_and_nobody_is_stopped_for_less_than_a_fixed_count"),
    "X10": ("elastic_moves.test_x10_of_two_jobs_that_gain_the_same_the_converged_one_does_not_grow",),
    "X11": ("conflicts.test_x11_jobs_that_do_not_train_on_cpu_count_for_no_score_and_no_limit",),
    "X12": ("cpu_jobs.test_volcanos_own_choice_stands",
            "conflicts.test_x12_a_job_starts_where_volcano_put_it_whatever_else_would_be_better"),
    "X13": ("deadline.test_x13_the_queue_is_sorted_by_latest_start_and_jobs_without_a_deadline_age",),
    "X14": ("conflicts.test_x14_a_gpu_change_or_a_move_ends_the_back_off",),
    "X15": ("specon.test_x15_idle_gpus_are_dealt_out_before_nodes_even_out",),
    "X16": ("elastic_moves.test_x16_what_a_job_took_just_before_an_arrival_it_gives_back_once_it_has_cooled_down",),
}  # fmt: skip
"""By conflict: the tests that hold its rule, as `file.name` without the beginning of the file's name."""


@pytest.mark.parametrize("rule", [f"X{i}" for i in range(1, 17)])
def test_every_conflict_has_a_test(rule):
    for test in RULES[rule]:
        subject, name = test.split(".")
        source = (HERE / f"test_{subject}.py").read_text(encoding="utf-8")
        assert name in {n.name for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)}


def asks(job_id, home="w1", at_s=NOW, left=3000.0, **more):
    growth = Growth("CC", 0.005, True, last=EvaluationReading(at_s, 1.0, 5, 5.0, 0))
    return on_cpu(job_id, home, growth=growth, iterations_left=left, rate=1.0, share=1.0, **more)


def progresses(job_id, home="w1", left=3000.0, **more):
    return on_cpu(job_id, home, iterations_left=left, rate=1.0, share=1.0, **more)


def kinds(decisions):
    return [(type(d), d.job) for d in decisions if not isinstance(d, Limit)]


CROWD = tuple(progresses(f"p{i}") for i in range(3))
NODES = cpu_node("w1"), cpu_node("w2")


# ---- one job, two systems


def test_x1_a_job_that_asks_while_it_is_adjusting_keeps_its_one_move():
    busy = cluster(asks("a", state="adjusting", busy=True), *CROWD, nodes=NODES)
    assert kinds(decide(busy, NOW, ALL)) == []
    then = replace(busy, jobs=(asks("a", at_s=NOW + 30), *CROWD))
    assert kinds(decide(then, NOW + 30, ALL)) == [(Move, "a")]


def test_x3_a_job_that_gives_its_place_away_does_not_move_too():
    """Seed 003 comes first: who is sent back to the queue has no other operation, and no limit."""
    heavy = asks("heavy", tasks=(Task("t", cores=0.9),), expected_s=10.0, task_s=900.0)
    light = waiting("light", optional=(0,), tasks=(Task("t", cores=0.8),), estimate_s=20.0, pinned="w1")
    world = cluster(heavy, *CROWD, light, nodes=NODES)
    printed = replace(ALL, deadlines=Deadlines(yield_by="stop"))
    assert kinds(decide(world, NOW, printed))[0] == (Requeue, "heavy")
    assert [d.job for d in decide(world, NOW, printed)].count("heavy") == 1
    assert (Move, "heavy") in kinds(decide(world, NOW, replace(printed, systems=("specon", "flowcon"))))


def test_x5_a_limit_says_nothing_of_how_fast_a_job_will_be_elsewhere():
    """The limit stays behind, so the move is judged as if there were none."""
    free = Profiles.from_rows([], [{"job_type": "t", **dict.fromkeys(("k8s_init", "k8s_term", "proc_init"), 1),
                                    "ckpt": 1, "proc_term": 1}])  # fmt: skip
    judged = Settings(systems=("specon",))
    for limit in (None, 0.05):
        world = ClusterSnapshot(NODES, (asks("a", cpu_limit=limit), *CROWD), free)
        (move,) = decide(world, NOW, judged)
        assert isinstance(move, Move) and move.explanation.candidates[0].job_s == pytest.approx(3005)


def test_x6_who_loses_idle_cores_to_a_late_job_is_not_made_late_by_that():
    """What the one that is freed had left idle goes back at once, and whoever that makes late is freed too."""

    def efficiency(in_list, share):
        return Efficiency(in_list, True, {"cpu": share}, {"cpu": 1.0}, {"cpu": share})

    together = Settings(systems=("flowcon", "deadline"))
    slow = {"rate": 1.0, "share": 1.0, "iterations_left": 100.0}
    late = on_cpu("late", efficiency=efficiency("WL", 0.1), cpu_limit=0.1, sla_s=150.0, **slow)
    other = on_cpu("other", efficiency=efficiency("NL", 0.1), **slow)
    other_late = on_cpu("other", efficiency=efficiency("NL", 0.1), sla_s=190.0, **slow)
    for job, cores in ((other, 0.5), (other_late, None)):
        world = cluster(late, job, nodes=(cpu_node(),))
        decided = {d.job: d.cores for d in decide(world, 0.0, together)}
        assert decided.pop("late") is None
        assert decided.pop("other", None) == cores
        assert decide(after(world, *decide(world, 0.0, together)), 0.0, together) == ()


# ---- overdue jobs

HEAVY = {"expected_s": 100.0, "task_s": 500.0, "left": 2000}


def test_x9_a_second_overdue_job_does_not_give_way_to_whom_another_makes_room_for():
    nodes = node("a", used=4), node("b", used=4)
    heavy = [running(f"h{i}", 4, node="ab"[i], optional=(4,), **HEAVY) for i in range(2)]
    light = waiting("light", left=100, optional=(2,), sla_s=NOW + 400)
    world = cluster(*heavy, light, nodes=nodes)
    first = decide(world, NOW)
    assert kinds(first)[0] == (Requeue, "h0") and first[0].yields_to == ("light",)
    # Until h0 has saved and gone, the other one is asked at every tick.
    assert [d for d in decide(after(world, *first), NOW + 5) if not isinstance(d, Hold)] == []
    other = waiting("other", left=100, optional=(2,), sla_s=NOW + 400)
    both = after(cluster(*heavy, light, other, nodes=nodes), *first)
    assert kinds(decide(both, NOW + 5))[0] == (Requeue, "h1"), "for somebody else it does"


def test_x9_without_seed_004_nobody_shrinks_and_nobody_is_stopped_for_less_than_a_fixed_count():
    """There a job starts on its largest count only: on two GPUs of four it would wait as before."""
    alone, both = Settings(systems=("deadline",)), Settings(systems=("elastic", "deadline"))
    urgent = {"left": 100, "sla_s": NOW + 400}
    nodes = node("a", used=2), node("b", used=4)
    heavy = running("h", 2, optional=(1, 2), **HEAVY)
    small, large = waiting("s", optional=(1,), **urgent), waiting("l", optional=(1, 4), **urgent)
    assert kinds(decide(cluster(heavy, large, nodes=nodes), NOW, alone)) == [(Hold, "l")]
    assert kinds(decide(cluster(heavy, small, nodes=nodes), NOW, alone))[0] == (Requeue, "h")
    start, *_ = decide(cluster(heavy, small, nodes=nodes), NOW, both)
    assert (type(start), start.victim) == (Start, "h")


# ---- what counts


def test_x11_jobs_that_do_not_train_on_cpu_count_for_no_score_and_no_limit():
    """Neither GPU jobs on a node with cores nor their launches that wait for GPUs; nor a job that is being started."""
    gpu = [running("g", 2, node="w2"), running("early", 2, node="w2", state="initialized", busy=True)]
    nodes = cpu_node("w1"), replace(node("w2", used=4), cores=1.0)
    specon = replace(ALL, systems=("specon",))
    (move,) = decide(cluster(asks("a"), *CROWD, *gpu, nodes=nodes), NOW, specon)
    assert (move.job, move.node) == ("a", "w2") and "(score 0)" in move.explanation.sentence
    slow = Efficiency("CL", True, {"cpu": 1.0}, {"cpu": 100.0}, {"cpu": 0.01})
    starting = on_cpu("s", "w2", state="initializing", busy=True)
    world = cluster(on_cpu("a", "w2", efficiency=slow), starting, *gpu, nodes=nodes)
    assert decide(world, NOW, Settings(systems=("flowcon",))) == (), "it trains alone, so it is not limited"


def test_x12_a_job_starts_where_volcano_put_it_whatever_else_would_be_better():
    on_gpus = waiting("g", optional=(1, 2), pinned="b")
    on_a_cpu = waiting("c", optional=(0,), pinned="w1")
    nodes = node("a", idle=4), node("b", idle=1), cpu_node("w1"), cpu_node("w2")
    decisions = decide(cluster(on_gpus, on_a_cpu, *CROWD, nodes=nodes), NOW)
    assert {(d.job, d.node) for d in decisions if isinstance(d, Start)} == {("g", "b"), ("c", "w1")}


def test_x14_a_gpu_change_or_a_move_ends_the_back_off():
    """Such a job comes back with another generation, which is another pool."""
    flowcon, slow = FlowCon(), [Efficiency("CL", True)]
    pace = FlowConInterval()
    for look in range(3):
        pace = pace.stepped(100.0 * look, frozenset({("a", 0)}), slow, flowcon)
    assert pace.interval_s == 160.0
    again = frozenset({("a", 1)})
    assert pace.is_due(201.0, again) and not pace.is_due(201.0, pace.pool)
    assert pace.stepped(201.0, again, [Efficiency("NL")], flowcon).interval_s == flowcon.interval_s


# ---- precedence and aging (5.4, 1.11)


def test_an_operators_wish_comes_before_an_overdue_job_and_before_both_algorithms():
    wished = running("w", 4, wanted=2, expected_s=10.0, task_s=900.0)
    decisions = decide(cluster(wished, waiting(optional=(2,), sla_s=NOW + 400, left=100), used=4), NOW)
    assert kinds(decisions) == [(Reshape, "w"), (Hold, "new")]
    assert decisions[0].explanation.algorithm == "operator"


def test_a_job_that_waits_starts_before_anybody_grows_moves_or_is_limited():
    slow = Efficiency("CL", True, {"cpu": 1.0}, {"cpu": 100.0}, {"cpu": 0.01})
    jobs = [running("r", 1, 9000, (1, 2, 4)), waiting("g", optional=(1,)), asks("a", efficiency=slow), *CROWD]
    nodes = node("a", idle=3, used=1), *NODES
    order = [(type(d), d.job) for d in decide(cluster(*jobs, nodes=nodes), NOW, ALL)]
    assert [kind for kind, _ in order[:3]] == [Start, Reshape, Move]
    assert all(kind is Limit for kind, _ in order[3:])


def test_a_new_job_gets_the_room_that_a_move_would_have_taken():
    """The queue is line 3, SpeCon line 7: the node is full when SpeCon looks."""
    task = (Task("t", cores=1.0),)
    new = waiting("new", optional=(0,), tasks=task, pinned="w2")
    world = cluster(asks("a", tasks=task), *CROWD, new, nodes=(cpu_node("w1", 9.0), cpu_node("w2")))
    start, stay = (d for d in decide(world, NOW, ALL) if not isinstance(d, Limit))
    assert (type(start), start.job, type(stay), stay.job) == (Start, "new", Stay, "a")


@pytest.mark.parametrize("waited_s", [80_000.0, 90_000.0])
def test_a_large_job_on_cpu_keeps_a_node_from_small_ones_once_it_has_waited_long(waited_s):
    """Nor does SpeCon move anybody there, which would put it off for ever."""
    half = (Task("t", cores=2.0),)
    big = waiting("big", optional=(0,), tasks=(Task("t", cores=4.0),), submit_s=NOW - waited_s)
    small = waiting("small", optional=(0,), tasks=half)
    nodes = cpu_node("w1", 4.0), cpu_node("w2", 4.0)
    world = cluster(progresses("a", tasks=half), progresses("b", "w2", tasks=half), big, small, nodes=nodes)
    decisions = decide(world, NOW)
    by_job = {d.job: d for d in decisions if not isinstance(d, Limit)}
    assert isinstance(by_job["big"], Hold)
    assert by_job["small"].node == ("w2" if waited_s > 86_400 else "w1")
    mover = asks("a", "w2", tasks=(Task("t", cores=0.1),))
    full = [replace(p, node="w2", tasks=(Task("t", cores=1.0),)) for p in CROWD]  # so big comes nearest on w1
    crowded = cluster(mover, *full, big, progresses("b", tasks=half), nodes=nodes)
    assert (Move in [kind for kind, _ in kinds(decide(crowded, NOW, ALL))]) == (waited_s < 86_400)


def test_a_job_on_cpu_starts_on_a_node_whose_gpus_are_kept_for_another():
    big = waiting("big", optional=(8,), submit_s=NOW - 90_000)
    new = waiting("new", optional=(0,))
    nodes = (replace(node("a", idle=5, used=3), cores=4.0),)
    assert kinds(decide(cluster(big, new, nodes=nodes), NOW)) == [(Start, "new"), (Hold, "big")]
