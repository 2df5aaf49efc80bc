"""Promise: a simulated cluster takes every second that a change costs, and never gives a GPU to two jobs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler import engine
from adaptive_scheduler.decision import BrokenDecision, Explanation, Hold, Move, Requeue, Reshape, Start, Victim
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Worker
from reshape_papers import sidecar_baselines
from simulator.cluster import SimulatedCluster
from simulator.event_queue import EventQueue
from simulator.scenario import Costs, PolicySetup, Submission, Workload
from simulator.state import SimulationStuck
from tests.unit.adaptive_scheduler.worlds import PROFILES, node, speed_rows

ROOT = Path(__file__).parents[3]
IN_PLACE, RELAUNCHED = Costs.in_place(DEFAULT_OVERHEADS), Costs.relaunched(DEFAULT_OVERHEADS)
WHY = Explanation("test", "because")


def job(job_id, arrival=0.0, iterations=1000.0, optional=(1, 2, 4), fixed=1, **more):
    return Submission(job_id, "t", arrival, optional, iterations, fixed, **more)


def world(*jobs, plan=decide, costs=IN_PLACE, nodes=None, profiles=PROFILES, cooldown_factor=0.0):
    policy_setup = PolicySetup("test", plan, costs, profiles, Settings(cooldown_factor=cooldown_factor))
    return SimulatedCluster(Workload("test", 0, jobs, tuple(nodes or [node(idle=4)]), (policy_setup,)), policy_setup)


def scripted(*steps):
    """A planner that answers once from each time on."""
    left = list(steps)

    def plan(snapshot, now):
        answers = []
        while left and now >= left[0][0]:
            answers.append(left.pop(0)[1])
        return tuple(answers)

    return plan


# ---- events


def test_events_come_by_time_and_those_of_one_time_as_they_were_put_down():
    event_queue, seen = EventQueue(), []
    for name, at in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        event_queue.at(at, partial(seen.append, name))
    assert list(event_queue.moments()) == [1.0, 2.0]
    assert seen == ["a", "b", "c"]


def test_what_an_event_sets_off_at_once_belongs_to_the_same_moment():
    event_queue, seen = EventQueue(), []
    event_queue.at(1.0, lambda: event_queue.after(0.0, partial(seen.append, "at once")))
    assert list(event_queue.moments()) == [1.0]
    assert seen == ["at once"]


def test_an_event_that_was_called_off_makes_no_moment():
    event_queue = EventQueue()
    event_queue.at(1.0, lambda: None).called_off = True
    assert list(event_queue.moments()) == []


def test_nothing_can_be_planned_for_a_time_that_has_passed():
    event_queue = EventQueue()
    event_queue.at(5.0, lambda: None)
    list(event_queue.moments())
    with pytest.raises(ValueError, match="had passed"):
        event_queue.at(4.0, lambda: None)


# ---- what changes take


def test_a_job_alone_is_launched_started_trained_and_then_holds_its_gpus_until_it_has_saved():
    outcome = world(job("a", 10.0, 480.0)).run()
    (a,) = outcome.jobs
    assert (a.trained_from_s, a.finished_s) == (10 + 83 + 25, 10 + 83 + 25 + 480 / 2.4)
    assert {(h.begin_s, h.end_s) for h in outcome.held} == {(10 + 83, a.finished_s + 5 + 7)}


def test_early_initialization_lets_the_victim_train_on_while_its_newcomer_is_launched():
    take = Start("b", "a", 2, WHY, victim="v", victim_num_gpus=2)
    plan = scripted((0.0, Start("v", "a", 4, WHY)), (200.0, take))
    outcome = world(job("v", iterations=2400.0), job("b", 200.0, 170.0), plan=plan).run()
    v, b = outcome.jobs
    assert b.trained_from_s == 200 + 83 + 12 + 25
    assert b.finished_s == pytest.approx(b.trained_from_s + 100)
    done = (200 + 83 - 108) * 2.4
    assert v.finished_s == pytest.approx(200 + 83 + 37 + (2400 - done) / 1.7)
    assert (outcome.adds, outcome.removes, v.stopped_s) == (0, 1, 37)


def test_several_victims_train_on_until_their_newcomer_is_launched_and_stop_at_once() -> None:
    take = Start("c", "a", 2, WHY, victim="v", victim_num_gpus=1, more_victims=(Victim("w", 1),))
    starts = scripted((0.0, Start("v", "a", 2, WHY)), (0.0, Start("w", "a", 2, WHY)), (300.0, take))
    jobs = [job("v", iterations=2000.0), job("w", iterations=2000.0), job("c", 300.0, 170.0, optional=(2,))]
    outcome = world(*jobs, plan=starts).run()
    v, w, c = outcome.jobs
    assert c.trained_from_s == 300 + 83 + 12 + 25
    assert (outcome.removes, v.stopped_s, w.stopped_s) == (2, 37, 37)
    assert v.finished_s == w.finished_s


def test_a_relaunched_victim_stops_at_once_and_both_launch_when_its_pod_is_gone():
    take = Start("b", "a", 2, WHY, victim="v", victim_num_gpus=2)
    plan = scripted((0.0, Start("v", "a", 4, WHY)), (200.0, take))
    outcome = world(job("v", iterations=2400.0), job("b", 200.0, 170.0), plan=plan, costs=RELAUNCHED).run()
    v, b = outcome.jobs
    assert b.trained_from_s == 200 + 66 + 108
    assert v.finished_s == pytest.approx(200 + 66 + 108 + (2400 - (200 - 108) * 2.4) / 1.7)


def test_a_victim_that_ends_while_its_newcomer_is_launched_is_not_stopped_and_hands_its_gpus_over():
    take = Start("b", "a", 2, WHY, victim="v", victim_num_gpus=2)
    plan = scripted((0.0, Start("v", "a", 4, WHY)), (200.0, take))
    outcome = world(job("v", iterations=240.0), job("b", 200.0, 170.0), plan=plan).run()
    v, b = outcome.jobs
    assert v.finished_s == 108 + 100 < 283
    assert (b.trained_from_s, outcome.removes) == (308, 0)


def test_a_newcomer_waits_until_the_process_on_its_gpus_has_ended():
    slow = Costs(launch=0.0, begin=1.0, stop=5.0, shrunk=1.0, grown=1.0, end=50.0)
    outcome = world(job("a", optional=(4,)), job("b", optional=(4,)), costs=slow).run()
    a, b = outcome.jobs
    assert b.began_s == a.finished_s
    assert b.trained_from_s == pytest.approx(a.finished_s + 50 + 1)


def test_growing_costs_what_it_costs_and_the_job_is_left_alone_for_its_cool_down():
    grow = Reshape("a", "a", 2, WHY)
    seen = []

    def plan(snapshot, now):
        seen.append((now, snapshot.job["a"].cooling_until if "a" in snapshot.job else None))
        return scripted_plan(snapshot, now)

    scripted_plan = scripted((0.0, Start("a", "a", 1, WHY)), (108.0, grow))
    outcome = world(job("a"), plan=plan, cooldown_factor=10.0).run()
    (a,) = outcome.jobs
    assert a.finished_s == pytest.approx(108 + 37 + 1000 / 1.7)
    assert (outcome.adds, a.reshape_cost_s, a.grew_from) == (1, 37, 1)
    assert seen == [(0.0, 0.0), (108.0, 0.0), (145.0, 515.0), (515.0, 515.0), (a.finished_s, None)]


def test_what_a_shrinking_job_gives_up_is_held_until_it_has_stopped():
    plan = scripted((0.0, Start("a", "a", 4, WHY)), (108.0, Reshape("a", "a", 1, WHY)))
    outcome = world(job("a"), plan=plan).run()
    ends = sorted(h.end_s for h in outcome.held)
    assert ends[:4] == [120.0] * 4
    assert outcome.removes == 1


def test_a_move_saves_leaves_its_node_and_is_launched_elsewhere_from_its_checkpoint():
    plan = scripted((0.0, Start("a", "a", 2, WHY)), (208.0, Move("a", "b", 4, WHY)))
    nodes = [node("a", idle=2), node("b", idle=4)]
    outcome = world(job("a"), job("tick", 208.0, 1.0), plan=_with_ticks(plan), nodes=[*nodes, node("c", idle=1)]).run()
    a = outcome.jobs[0]
    assert a.finished_s == pytest.approx(208 + 12 + 54 + 83 + 25 + (1000 - 170) / 2.4)
    spans = sorted((h.gpu, h.begin_s, h.end_s) for h in outcome.held if h.job == "a")
    assert spans[0] == ("a0", 83.0, 208 + 12 + 54)
    assert spans[2] == ("b0", 208 + 12 + 54 + 83, pytest.approx(a.finished_s + 12))
    assert (outcome.moves, outcome.adds, outcome.removes, a.stopped_s, a.generation) == (1, 1, 0, 174, 1)


def test_the_gpus_of_a_moving_job_stay_its_own_until_its_pod_is_gone():
    seen = {}

    def plan(snapshot, now):
        seen[now] = snapshot
        return scripted_plan(snapshot, now)

    scripted_plan = _with_ticks(scripted((0.0, Start("a", "a", 2, WHY)), (208.0, Move("a", "b", 4, WHY))))
    nodes = [node("a", idle=2), node("b", idle=4), node("c", idle=2)]
    world(job("a"), job("tick", 208.0, 1.0), job("tock", 260.0, 1.0), plan=plan, nodes=nodes).run()
    assert [n.idle for n in seen[260.0].nodes[:2]] == [0, 0]
    assert (seen[260.0].job["a"].node, seen[260.0].job["a"].num_gpus) == ("b", 4)
    assert [n.idle for n in seen[274.0].nodes[:2]] == [2, 0]


def _with_ticks(plan):
    """And start whoever only makes the planner look, on node c."""

    def answers(snapshot, now):
        ticks = [j for j in snapshot.queue if j.id in ("tick", "tock")]
        return (*plan(snapshot, now), *(Start(j.id, "c", 1, WHY) for j in ticks))

    return answers


def test_a_requeued_job_gives_all_its_gpus_back_and_starts_again_from_its_checkpoint():
    steps = [(0.0, Start("a", "a", 2, WHY)), (208.0, Requeue("a", WHY, ("tick",))), (300.0, Start("a", "a", 4, WHY))]
    nodes = [node("a", idle=4), node("c", idle=2)]
    jobs = [job("a"), job("tick", 208.0, 1.0), job("tock", 300.0, 1.0)]
    outcome = world(*jobs, plan=_with_ticks(scripted(*steps)), nodes=nodes).run()
    a = outcome.jobs[0]
    assert a.finished_s == pytest.approx(300 + 108 + (1000 - 170) / 2.4)
    assert (a.preempts, outcome.requeues, outcome.adds, a.stopped_s) == (1, 1, 0, 12 + 54)


def test_a_job_spread_over_two_nodes_is_as_fast_as_the_prediction_says():
    start = Start("a", "a", 4, WHY, workers=(Worker("a", 2), Worker("b", 2)))
    nodes = [node("a", idle=2), node("b", idle=2)]
    outcome = world(job("a", max_workers=2), plan=scripted((0.0, start)), nodes=nodes).run()
    assert outcome.jobs[0].finished_s == pytest.approx(108 + 1000 * PROFILES.speed("t", "V100", 4, hosts=2).seconds)
    assert sorted(h.gpu for h in outcome.held) == ["a0", "a1", "b0", "b1"]


def test_a_spread_job_can_grow_onto_another_node():
    grow = Reshape("a", "a", 4, WHY, workers=(Worker("a", 2), Worker("b", 2)))
    plan = scripted((0.0, Start("a", "a", 2, WHY)), (108.0, grow))
    nodes = [node("a", idle=2), node("b", idle=2)]
    outcome = world(job("a", max_workers=2), plan=plan, nodes=nodes).run()
    assert sorted({h.gpu for h in outcome.held if h.begin_s == 120}) == ["a0", "a1", "b0", "b1"]
    assert outcome.adds == 1


def test_a_crash_costs_what_was_done_since_the_last_checkpoint_and_keeps_the_gpus():
    outcome = world(job("a", iterations=1700.0, fails_at=(0.7,)), plan=scripted((0.0, Start("a", "a", 2, WHY)))).run()
    (a,) = outcome.jobs
    assert a.finished_s == pytest.approx(108 + 700 + 25 + 400)
    assert (a.crashes, a.lost_s, outcome.adds, outcome.removes) == (1, pytest.approx(100.0), 0, 0)
    assert [(h.begin_s, h.end_s) for h in outcome.held] == [(83.0, pytest.approx(a.finished_s + 12))] * 2


def test_a_victim_that_crashes_while_its_newcomer_is_launched_shrinks_once_it_trains_again():
    take = Start("b", "a", 2, WHY, victim="v", victim_num_gpus=2)
    plan = scripted((0.0, Start("v", "a", 4, WHY)), (200.0, take))
    v, b = world(job("v", iterations=2400.0, fails_at=(0.17,)), job("b", 200.0, 170.0), plan=plan).run().jobs
    assert v.crashes == 1
    # It crashes at 278 s, before b is launched at 283 s, trains again at 303 s and then saves and stops.
    assert b.trained_from_s == pytest.approx(303 + 12 + 25)


def test_the_scheduler_sees_the_length_it_believes_in_and_a_job_that_runs_on_is_not_over():
    given_ = job("a", iterations=1000.0, believed_iterations=500.0)
    assert [given_.left(done) for done in (0.0, 400.0, 499.5, 900.0)] == [500.0, 100.0, 1.0, 1.0]
    assert job("a").left(1200.0) == 0.0


def test_a_job_that_can_never_start_is_named():
    with pytest.raises(SimulationStuck, match="job big can never start"):
        world(job("a"), job("big", optional=(8,))).run()


def test_a_decision_that_cannot_be_carried_out_is_not():
    with pytest.raises(BrokenDecision):
        world(job("a"), plan=lambda snapshot, now: (Start("a", "a", 3, WHY),)).run()


def test_every_decision_is_kept_with_its_explanation_also_to_wait():
    outcome = world(job("a", optional=(4,)), job("b", optional=(4,))).run()
    assert [(type(d), d.job) for _, d in outcome.decisions] == [(Start, "a"), (Start, "b")]
    assert [(at, type(d)) for at, d in outcome.waits.values()] == [(108.0, Hold)]
    assert all(d.explanation.sentence for _, d in [*outcome.decisions, *outcome.waits.values()])


# ---- baselines


def test_g17_default_lets_a_later_job_that_fits_pass_one_that_does_not():
    jobs = [job("a", 0, fixed=2), job("big", 1, fixed=4), job("b", 2, fixed=2)]
    outcome = world(*jobs, plan=sidecar_baselines.default(jobs), costs=RELAUNCHED).run()
    assert [j.began_s for j in outcome.jobs if j.given.id != "big"] == [0, 2]
    assert outcome.pending_at_last_arrival == 1


@pytest.mark.parametrize(("smallest_first", "next_one"), [(False, "big"), (True, "small")])
def test_default_starts_jobs_as_they_came_or_small_requests_first(smallest_first, next_one):
    jobs = [job("first", 0, fixed=4), job("big", 1, fixed=4), job("small", 2, fixed=1)]
    plan = sidecar_baselines.default(jobs, smallest_first=smallest_first)
    began = {j.given.id: j.began_s for j in world(*jobs, plan=plan, costs=RELAUNCHED).run().jobs}
    assert min(("big", "small"), key=began.get) == next_one


def test_termination_that_does_not_count_restarts_grows_where_one_takes_more_than_it_gains():
    plan = partial(sidecar_baselines.termination, sees_restarts=False)
    outcome = world(job("a"), plan=plan, costs=RELAUNCHED).run()
    assert [d.num_gpus for _, d in outcome.decisions] == [1, 2, 4]
    assert outcome.jobs[0].finished_s > world(job("a"), plan=sidecar_baselines.termination, costs=RELAUNCHED).run(
    ).jobs[0].finished_s  # fmt: skip


def test_termination_starts_on_one_gpu_and_grows_step_by_step():
    outcome = world(job("a"), plan=sidecar_baselines.termination, costs=RELAUNCHED).run()
    assert [d.num_gpus for _, d in outcome.decisions] == [1, 2]
    (a,) = outcome.jobs
    assert a.finished_s == pytest.approx(108 + 174 + 1000 / 1.7)


def test_termination_holds_everybody_up_behind_the_first_that_does_not_fit():
    jobs = [job("big", 0, optional=(4,)), job("next", 1, optional=(4,)), job("small", 2, optional=(1,))]
    outcome = world(
        *jobs, plan=sidecar_baselines.termination, costs=RELAUNCHED, nodes=[node(idle=4), node("b", idle=1)]
    ).run()
    began = {j.given.id: j.began_s for j in outcome.jobs}
    assert began["small"] == began["next"] == outcome.jobs[0].finished_s


# ---- always

PLANS = {
    "sidecar": (decide, IN_PLACE),
    "surplus": (partial(decide, settings=Settings(over_release="always")), IN_PLACE),
    "printed": (partial(decide, settings=Settings(allow_noop=False, removal_range="printed")), IN_PLACE),
    "relaunch": (decide, RELAUNCHED),
    "slow end": (decide, Costs(launch=3.0, begin=2.0, stop=4.0, shrunk=1.0, grown=2.0, end=90.0)),
    "free": (decide, Costs(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    "termination": (sidecar_baselines.termination, RELAUNCHED),
    "default": (None, RELAUNCHED),
}
TWO_TYPES = Profiles.from_rows([*speed_rows(), *speed_rows(gpu_type="P100", speed_up={1: 0.5, 2: 0.8, 4: 1.1})])
submissions = st.lists(
    st.tuples(
        st.floats(0, 2000), st.floats(1, 3000), st.sampled_from([(1,), (2,), (1, 2, 4), (1, 2), (4,)]), st.booleans()
    ),
    min_size=1,
    max_size=9,
)


@given(submissions, st.sampled_from(sorted(PLANS)), st.sampled_from([0.0, 10.0]), st.booleans())
def test_every_job_ends_and_no_gpu_ever_has_two(drawn, name, cooldown_factor, two_nodes):
    jobs = [
        job(
            f"j{i}",
            at,
            iterations,
            optional,
            optional[0],
            believed_iterations=iterations * 0.7 if guessed else None,
            fails_at=(0.3, 0.8) if guessed else (),
        )
        for i, (at, iterations, optional, guessed) in enumerate(sorted(drawn))
    ]
    plan, costs = PLANS[name]
    nodes = [node(idle=4), node("b", idle=4, gpu_type="P100")][: 1 + two_nodes]
    outcome = world(
        *jobs, plan=plan or sidecar_baselines.default(jobs), costs=costs, nodes=nodes, profiles=TWO_TYPES,
        cooldown_factor=cooldown_factor,
    ).run()  # fmt: skip
    assert sorted(j.given.id for j in outcome.jobs) == sorted(j.id for j in jobs)
    for done in outcome.jobs:
        assert done.finished_s is not None
        least = done.given.iterations / max(s for n, s in {1: 1, 2: 1.7, 4: 2.4}.items() if n in done.given.optional)
        assert done.finished_s >= done.given.arrival_s + costs.launch + costs.begin + least - 1e-6
    spans = sorted((h.gpu, h.begin_s, h.end_s) for h in outcome.held)
    for (gpu, _, end), (next_gpu, begin, _) in pairwise(spans):
        assert gpu != next_gpu or begin >= end


def test_the_same_seed_gives_the_same_rows_whatever_the_hash_seed():
    code = (
        "import json; from reshape_papers.workloads import build\n"
        "from simulator.cluster import SimulatedCluster\n"
        "for name in ('case-study', 'workload-s'):\n"
        "    w = build(name, 3)\n"
        "    for c in w.policy_setups:\n"
        "        o = SimulatedCluster(w, c).run()\n"
        "        print(c.name, [j.finished_s for j in o.jobs], [repr(d) for d in o.decisions])\n"
    )
    outputs = set()
    for seed in ("0", "1", "4711"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_the_simulator_leaves_the_dice_of_others_alone():
    random.seed(1)
    before = random.getstate()
    world(job("a"), job("b", 5.0)).run()
    assert random.getstate() == before


def test_jobs_for_which_one_tick_has_no_time_do_not_wait_for_the_next_event(monkeypatch):
    jobs = [job(f"j{i}", optional=(1,)) for i in range(8)]
    monkeypatch.setattr(engine, "MOST_WORK", 2 * (len(jobs) + 1))
    outcome = world(*jobs, nodes=[node(idle=8)]).run()
    assert [one.began_s for one in outcome.jobs] == [0.0] * 8
