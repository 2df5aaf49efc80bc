"""Promise: no schedule ends below the bounds, and they are as high as we say.

Against every schedule of tiny cases (searched exhaustively), against random schedules of random cases, and
against figures worked out by hand.
"""

from __future__ import annotations

import itertools
import math
import random
from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reshape_papers.bounds import BoundJob, BoundNode, fluid_makespan, jct_bound, lp_makespan

ALL = (fluid_makespan, lp_makespan, jct_bound)
MAKESPANS = (fluid_makespan, lp_makespan)


def job(arrival=0.0, **by_type):
    """`job(5, V={1: 600, 2: 400})`"""
    return BoundJob(arrival, {(kind, n): float(s) for kind, row in by_type.items() for n, s in row.items()})


def nodes(**by_type):
    return [BoundNode(kind, gpus) for kind, gpus in by_type.items()]


def at_most(bound, reached):
    """A bound may exceed a schedule by the solver's accuracy only."""
    return bound <= reached * (1 + 1e-6) + 1e-6


# --- by hand


@pytest.mark.parametrize("bound", ALL)
def test_a_job_alone_needs_its_fastest_run(bound):
    alone = [job(700, V={1: 1000, 2: 600, 4: 650}, P={2: 900})]
    assert bound(alone, nodes(V=4, P=4)) == pytest.approx(600)


@pytest.mark.parametrize("bound", ALL)
def test_a_shape_that_the_cluster_has_no_gpus_for_does_not_count(bound):
    assert bound([job(V={1: 1000, 2: 600}, P={1: 10})], nodes(V=1)) == pytest.approx(1000)


@pytest.mark.parametrize("bound", MAKESPANS)
def test_jobs_of_linear_speed_up_fill_all_gpus(bound):
    jobs = [job(V={1: 800, 2: 400, 4: 200})] * 6
    assert bound(jobs, nodes(V=4)) == pytest.approx(6 * 200)


@pytest.mark.parametrize("bound", MAKESPANS)
def test_what_arrives_last_cannot_use_the_time_before(bound):
    # 1000 s of one GPU's work arrive at 900 s, so that the empty time before is lost.
    jobs = [job(0, V={1: 100}), job(900, V={1: 500}), job(900, V={1: 500})]
    assert bound(jobs, nodes(V=1)) == pytest.approx(1900)


def test_jobs_that_use_gpus_best_alone_share_them():
    # 1800 GPU-seconds on 2 GPUs: 900 s, if each job runs 600 of the 900 s on one GPU.
    jobs = [job(V={1: 600, 2: 400})] * 3
    assert fluid_makespan(jobs, nodes(V=2)) == pytest.approx(900)
    assert lp_makespan(jobs, nodes(V=2)) == pytest.approx(900)


def test_the_lp_sees_that_speed_costs_gpu_seconds():
    # Until the second arrives the first does 3/4 on both GPUs. Its last quarter takes 150 s on one GPU, while the
    # second does a quarter on the other; the rest of the second takes 300 s on both.
    jobs = [job(0, V={1: 600, 2: 400}), job(300, V={1: 600, 2: 400})]
    assert lp_makespan(jobs, nodes(V=2)) == pytest.approx(300 + 150 + 300)
    assert fluid_makespan(jobs, nodes(V=2)) == pytest.approx(300 + 400)


def test_the_lp_gives_each_job_to_the_gpu_type_that_suits_it():
    # The first 100 s of V are taken, so the other job runs on P and does 1/5, then 4/5 on V in 320 s.
    jobs = [job(V={1: 100}), job(V={1: 400}, P={1: 500})]
    assert lp_makespan(jobs, nodes(V=1, P=1)) == pytest.approx(420)


def test_a_job_is_never_in_two_shapes_at_once():
    # Two types with a GPU each: together they would halve the time, but the job is in one shape.
    assert lp_makespan([job(V={1: 500}, P={1: 500})], nodes(V=1, P=1)) == pytest.approx(500)


def test_jct_of_jobs_that_share_one_gpu_is_shortest_first():
    # Ends at 300, 900 and 1900 s: the mean is 3100/3; one machine, so SRPT gives it exactly.
    jobs = [job(V={1: 1000}), job(V={1: 300}), job(V={1: 600})]
    assert jct_bound(jobs, nodes(V=1)) == pytest.approx(3100 / 3)


def test_a_short_job_that_arrives_interrupts_the_long_one():
    # The long one is at 400 of 1000 s; the short one takes 100 s: JCTs 1100 and 100.
    jobs = [job(50, V={1: 1000}), job(450, V={1: 100})]
    assert jct_bound(jobs, nodes(V=1)) == pytest.approx(600)


def test_shorter_slots_come_closer_to_the_limit_of_the_bound():
    # One GPU each: mean busy time 450 s, and half of the fastest run is 400 s.
    jobs = [job(V={1: 900, 2: 800})] * 2
    coarse, fine = (jct_bound(jobs, nodes(V=2), slot_s=s) for s in (50, 10))
    assert 800 < coarse < fine <= 850
    assert fine > 840


def test_gpus_that_no_job_can_use_do_not_weaken_the_jct_bound():
    # One after the other on V: 1000, 2000, ... 5000 s; all but half a slot of the mean is seen.
    jobs = [job(V={1: 1000})] * 5
    assert 3000 - 100 <= jct_bound(jobs, nodes(V=1, P=15)) + 1e-3 < 3001


def test_the_best_mean_jct_may_end_later_than_the_best_makespan():
    # Ten short jobs on both GPUs in turn, then the long one: 100, 200, ... 1000 and 2000 s. Sooner ends the
    # long one beside the short ones, but they wait longer.
    jobs = [job(V={1: 195, 2: 100})] * 10 + [job(V={1: 1000})]
    best = (5500 + 2000) / 11
    assert lp_makespan(jobs, nodes(V=2)) < 0.75 * 2000
    assert 0.95 * best < jct_bound(jobs, nodes(V=2), slot_s=20) <= best


@pytest.mark.parametrize("bound", ALL)
def test_the_clock_may_start_anywhere(bound):
    jobs = [job(0, V={1: 900, 2: 500}), job(130, V={1: 700, 2: 500}), job(250, V={2: 300})]
    later = [BoundJob(j.arrival_s + 1.7e9, j.seconds) for j in jobs]
    assert bound(later, nodes(V=2)) == pytest.approx(bound(jobs, nodes(V=2)), rel=1e-6)


@pytest.mark.parametrize("bound", ALL)
def test_the_order_of_jobs_and_how_gpus_lie_on_nodes_does_not_matter(bound):
    jobs = [job(250, V={2: 300}), job(0, V={1: 900, 2: 500}, P={1: 1000}), job(130, V={1: 700, 2: 500})]
    spread = nodes(V=2) + nodes(P=1) + nodes(V=1)
    assert bound(jobs[::-1], nodes(P=1, V=3)) == pytest.approx(bound(jobs, spread))


# --- against every schedule of tiny cases

STEP_S = 200.0


def best_of_all(arrivals, works, speeds, gpus):
    """(makespan, mean JCT) of the best schedules that change shapes at whole steps; all of them are tried.

    `works` and `speeds` count whole units: a job on n GPUs does `speeds[n]` of them in a step.
    """
    choices = [c for c in itertools.product([0, *speeds], repeat=len(works)) if 0 < sum(c) <= gpus]

    @cache
    def from_here(step, left):
        """The fewest further steps to the last end, and the least sum of JCTs from here on."""
        if not any(left):
            return 0, 0
        present = [i for i, a in enumerate(arrivals) if a <= step and left[i]]
        if not present:
            last, total = from_here(step + 1, left)
            return 1 + last, total
        ways = [from_here(step + 1, next_) for next_ in set(after(left, present))]
        return 1 + min(w[0] for w in ways), len(present) + min(w[1] for w in ways)

    def after(left, present):
        for c in choices:
            if all(i in present for i, n in enumerate(c) if n):
                yield tuple(max(0, w - speeds.get(n, 0)) for w, n in zip(left, c, strict=True))

    last, total = from_here(0, tuple(works))
    return last * STEP_S, total * STEP_S / len(works)


def tiny(rng):
    """Up to three jobs on up to three GPUs, one speed-up curve, work that fills whole steps."""
    count, gpus = rng.randint(1, 3), rng.randint(1, 3)
    speeds = {1: rng.choice((2, 3))}
    for n in range(2, gpus + 1):
        speeds[n] = speeds[n - 1] + rng.choice((0, 1, 2, 3))
    arrivals = [0, *(rng.randint(0, 4) for _ in range(count - 1))]
    return arrivals, [rng.randint(1, 12) for _ in range(count)], speeds, gpus


def test_no_schedule_of_a_tiny_case_is_below_the_bounds_and_some_reach_them():
    rng = random.Random(5)
    exact = dict.fromkeys(ALL, 0)
    for _ in range(100):
        arrivals, works, speeds, gpus = tiny(rng)
        jobs = [
            job(a * STEP_S, V={n: w / s * STEP_S for n, s in speeds.items()})
            for a, w in zip(arrivals, works, strict=True)
        ]
        makespan, mean_jct = best_of_all(arrivals, works, speeds, gpus)
        for bound, best in zip(ALL, (makespan, makespan, mean_jct), strict=True):
            reached = bound(jobs, nodes(V=gpus))
            assert at_most(reached, best), (bound.__name__, arrivals, works, speeds, gpus)
            exact[bound] += math.isclose(reached, best, rel_tol=1e-6)
    # Whole steps waste time that the bounds need not, so that not all can be equal.
    assert all(count >= 8 for count in exact.values()), exact


# --- against random schedules

seconds = st.floats(1, 2000).map(lambda s: round(s, 3))
shapes = st.dictionaries(st.tuples(st.sampled_from("VP"), st.sampled_from((1, 2, 3, 4))), seconds, max_size=5)


@st.composite
def worlds(draw):
    """A cluster of two types and jobs that each have at least one shape for it."""
    cluster = [BoundNode("V", draw(st.integers(1, 4))), BoundNode("P", draw(st.integers(0, 4)))]
    arrivals = draw(st.lists(st.sampled_from((0.0, 100.0, 777.7)) | st.floats(0, 4000), min_size=1, max_size=5))
    return [BoundJob(a, {**draw(shapes), ("V", 1): draw(seconds)}) for a in arrivals], cluster


def random_schedule(jobs, cluster, rng):
    """(makespan, mean JCT) of a schedule that draws anew who runs in which shape, at random moments.

    Every few moments nothing is drawn but each waiting job gets its fastest shape that is free, so that it is
    not always a bad schedule.
    """
    now = min(j.arrival_s for j in jobs)
    left, ends = [1.0] * len(jobs), [math.inf] * len(jobs)
    while any(left):
        due = [j.arrival_s for j, todo in zip(jobs, left, strict=True) if todo and j.arrival_s > now]
        chosen = placed(jobs, left, now, cluster, rng)
        if not chosen:
            now = min(due)
            continue
        finishing = min(left[i] * s for i, s in chosen.items())
        span = min(finishing, rng.choice((math.inf, rng.uniform(50, 2000))), *(d - now for d in due))
        now += span
        for i, s in chosen.items():
            left[i] -= span / s
            if left[i] < 1e-12:
                left[i], ends[i] = 0.0, now
    jcts = [end - j.arrival_s for j, end in zip(jobs, ends, strict=True)]
    return max(ends) - min(j.arrival_s for j in jobs), sum(jcts) / len(jobs)


def placed(jobs, left, now, cluster, rng):
    """Seconds of the whole job in its chosen shape, of those that run now; at least one if any has arrived."""
    free = {node.gpu_type: node.gpus for node in cluster}
    here = [i for i, j in enumerate(jobs) if left[i] and j.arrival_s <= now]
    rng.shuffle(here)
    chosen, fastest = {}, rng.random() < 0.5
    for i in here:
        fitting = [(s, shape) for shape, s in jobs[i].seconds.items() if shape[1] <= free[shape[0]]]
        if not fitting or (chosen and rng.random() < 0.15):
            continue
        chosen[i], (kind, gpus) = min(fitting) if fastest else rng.choice(fitting)
        free[kind] -= gpus
    return chosen


@given(worlds(), st.integers(0, 1000))
def test_no_random_schedule_ends_below_the_bounds(world, seed):
    jobs, cluster = world
    bounds = {bound: bound(jobs, cluster) for bound in ALL}
    rng = random.Random(seed)
    for _ in range(10):
        makespan, mean_jct = random_schedule(jobs, cluster, rng)
        assert at_most(bounds[fluid_makespan], makespan)
        assert at_most(bounds[lp_makespan], makespan)
        assert at_most(bounds[jct_bound], mean_jct)


@given(worlds(), st.sampled_from("VPX"), st.integers(1, 4))
def test_more_gpus_never_raise_a_bound(world, gpu_type, gpus):
    jobs, cluster = world
    for bound in ALL:
        assert at_most(bound(jobs, [*cluster, BoundNode(gpu_type, gpus)]), bound(jobs, cluster))


@given(worlds())
@example(([job(0.0, V={1: 2000})] * 5, [BoundNode("V", 4)]))
def test_the_lp_is_never_below_the_fluid_bound(world):
    assert at_most(fluid_makespan(*world), lp_makespan(*world))


# --- what cannot be bounded


@pytest.mark.parametrize("bound", ALL)
def test_no_jobs_is_refused_in_one_sentence(bound):
    with pytest.raises(ValueError, match=r"give at least one job\.$"):
        bound([], nodes(V=4))


@pytest.mark.parametrize("bound", ALL)
def test_a_job_that_fits_nowhere_is_named(bound):
    jobs = [job(V={1: 10}), job(V={4: 10}, P={1: 10})]
    with pytest.raises(ValueError, match=r"^Job 2 can never run here: give it a shape that fits into 1 A, 2 V\.$"):
        bound(jobs, nodes(V=2, A=1))


@pytest.mark.parametrize("bound", ALL)
@pytest.mark.parametrize("cluster", [[], nodes(V=0)])
def test_a_cluster_without_gpus_runs_nothing(bound, cluster):
    with pytest.raises(ValueError, match=r"^Job 1 can never run here: .* fits into no GPUs\.$"):
        bound([job(V={1: 10})], cluster)


@pytest.mark.parametrize("bound", ALL)
def test_a_job_without_any_shape_fits_nowhere(bound):
    with pytest.raises(ValueError, match=r"^Job 1 can never run here"):
        bound([job()], nodes(V=4))


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_a_time_that_is_none_is_refused(seconds):
    with pytest.raises(ValueError, match="finite time above 0 s, not 2 V in"):
        job(V={2: seconds})


def test_other_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="some GPUs or cores"):
        job(V={0: 10})
    with pytest.raises(ValueError, match="arrival must be a finite number"):
        job(math.nan, V={1: 10})
    with pytest.raises(ValueError, match="0 or more GPUs, not -1"):
        BoundNode("V", -1)
    with pytest.raises(ValueError, match="Slots must last longer than 0 s"):
        jct_bound([job(V={1: 10})], nodes(V=1), slot_s=0)


def test_the_fluid_bound_knows_that_one_gpu_type_is_slower():
    slower = [job(V={1: 10.0}, P={1: 20.0}) for _ in range(4)]
    # V100 and P100 end together when 8/3 of the jobs are done on the V100.
    assert fluid_makespan(slower, nodes(V=1, P=1)) == pytest.approx(80 / 3)


def test_the_fluid_bound_counts_what_a_job_cannot_have_done_before_the_others_arrive():
    early, late = job(V={1: 100.0, 2: 50.0}), [job(40.0, V={1: 100.0}) for _ in range(4)]
    # At 40 s a fifth of the first is left, however it ran: 20 + 400 GPU-seconds on 4 GPUs.
    assert fluid_makespan([early, *late], nodes(V=4)) == pytest.approx(145.0)
    assert lp_makespan([early, *late], nodes(V=4)) >= 145.0 - 1e-6


def test_cores_can_be_bounded_like_gpus_also_parts_of_them():
    jobs = [BoundJob(0.0, {("", 0.19): 100.0}), BoundJob(0.0, {("", 1.0): 81.0})]
    assert fluid_makespan(jobs, [BoundNode("", 1.0)]) == pytest.approx(100.0)
    assert lp_makespan(jobs, [BoundNode("", 1.0)]) == pytest.approx(100.0)
