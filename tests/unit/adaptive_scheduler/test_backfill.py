"""Promise: a node kept for a job that has waited very long lends its idle GPUs to jobs that end before that job could
start there, and to nobody else."""

import math
from dataclasses import replace

from adaptive_scheduler.decision import Hold, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.models.prediction import t_keep, t_new
from adaptive_scheduler.queueing.aging import backfill_start, earliest_start_s
from tests.unit.adaptive_scheduler.worlds import PROFILES, cluster, node, running, waiting

BIG = waiting("big", optional=(8,), submit_s=-200_000)
BUSY = running("busy", 4, 2400, optional=(4,))  # 1,000 s on four GPUs, and its end
NODES = (node(idle=4, used=4),)


def lends(*jobs, nodes=NODES):
    (start,) = [d for d in decide(cluster(BIG, *jobs, nodes=nodes), 0.0) if isinstance(d, Start)] or [None]
    return start


def test_a_short_job_borrows_what_is_idle_until_the_kept_job_could_start():
    start = lends(BUSY, waiting("short", 300, optional=(1,)))
    assert (start.job, start.num_gpus, start.explanation.algorithm) == ("short", 1, "elastic.backfill")
    assert "which is kept for big" in start.explanation.sentence


def test_a_job_that_would_end_later_waits():
    assert lends(BUSY, waiting("long", 3000, optional=(1,))) is None


def test_nothing_is_lent_of_gpus_that_a_user_has_reserved():
    """A node with fewer idle GPUs than are reserved is closed to others, its idle ones included."""
    short = waiting("short", 300, optional=(1,))
    closed = replace(NODES[0], kept_for="the reservation of ada")
    starts = [
        backfill_start(cluster(BIG, BUSY, short, nodes=(one,)), ["a"], "big", 5000.0, short)
        for one in (NODES[0], closed)
    ]
    assert [None if one is None else one.job for one in starts] == ["short", None]


def test_it_takes_the_count_on_which_it_ends_soonest():
    short = waiting("short", 1500, optional=(1, 2, 4))  # 1,500 s on one GPU, too long; 625 s on four
    assert lends(BUSY, short).num_gpus == 4
    assert t_new(PROFILES, short, "V100", 1) > t_keep(PROFILES, BUSY, "V100") > t_new(PROFILES, short, "V100", 4)


def test_whose_length_or_speed_nobody_knows_borrows_nothing():
    assert lends(BUSY, waiting("unknown", None, optional=(1,), submit_s=-1)) is None
    assert lends(BUSY, waiting("strange", 10, optional=(1,), type="strange")) is None


def test_nothing_is_lent_where_a_running_job_may_end_at_any_moment():
    unknown = running("busy", 4, None, optional=(4,), running_s=9000)
    assert lends(unknown, waiting("short", 300, optional=(1,))) is None


def test_other_nodes_are_not_lent_by_it():
    """A node of another GPU type that the job must not use changes nothing."""
    start = lends(
        BUSY, waiting("k80", 300, optional=(1,), gpu_type="K80"), nodes=(*NODES, node("b", used=1, gpu_type="K80"))
    )
    assert start is None


def test_several_borrow_as_long_as_gpus_are_idle():
    short = [waiting(f"s{i}", 300, optional=(1,)) for i in range(6)]
    decisions = decide(cluster(BIG, BUSY, *short, nodes=NODES), 0.0)
    assert [d.job for d in decisions if isinstance(d, Start)] == ["s0", "s1", "s2", "s3"]
    assert [d.job for d in decisions if isinstance(d, Hold)] == ["big", "s4", "s5"]


def test_a_job_could_start_once_enough_of_those_that_run_there_have_ended():
    jobs = [running("one", 1, 100), running("two", 2, 1000), running("b", 4, 10, node="b")]
    world = cluster(BIG, *jobs, nodes=(node(idle=5, used=3), node("b", used=4)))
    ends = sorted(t_keep(PROFILES, job, "V100") for job in jobs[:2])
    assert earliest_start_s(world, ["a"], waiting("x", optional=(6,))) == ends[0]
    assert earliest_start_s(world, ["a"], BIG) == ends[1]
    assert earliest_start_s(world, ["a"], waiting("x", optional=(5,))) == 0.0
    assert earliest_start_s(world, ["a"], waiting("x", optional=(9,))) == math.inf
    assert backfill_start(world, ["a"], "x", math.inf, waiting("short", 1)) is None
