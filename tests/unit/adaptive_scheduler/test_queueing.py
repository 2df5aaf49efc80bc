"""Promise: the queue has the order of its setting, the same in every process, and nobody waits for ever in it."""

import random
from dataclasses import replace

import pytest

from adaptive_scheduler.decision import Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.profiles.observations import Observation, Observations
from adaptive_scheduler.queueing.order import Queue
from adaptive_scheduler.settings import Settings
from adaptive_scheduler.snapshot import Task
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, waiting

DAY = 86_400.0
SHORTEST, ARRIVAL, DEADLINE = (Settings(queue_order=order) for order in ("shortest", "arrival", "deadline"))


def order(*jobs, now=100.0, settings=SHORTEST, **more):
    world = replace(cluster(*jobs), **more)
    return [job.id for job in Queue(now, settings).in_order(world)]


LONG, SHORT, LATEST = waiting("long", 5000, submit_s=1), waiting("short", 50, submit_s=2), waiting("z", 500, submit_s=3)


def test_by_default_the_job_that_would_end_soonest_comes_first():
    assert order(LONG, SHORT, LATEST, settings=Settings()) == ["short", "z", "long"]
    (start, *_) = decide(cluster(LONG, SHORT, LATEST, idle=1, used=7), 100.0, Settings(planner="paper"))
    assert (type(start), start.job) == (Start, "short")


def test_by_arrival_they_come_as_they_came_also_with_deadlines():
    assert order(LATEST, SHORT, LONG, settings=ARRIVAL) == ["long", "short", "z"]
    assert order(replace(LATEST, sla_s=600), SHORT, LONG, settings=ARRIVAL) == ["long", "short", "z"]


def test_by_deadline_they_come_by_latest_start_and_those_without_one_as_they_came():
    assert order(LONG, replace(SHORT, sla_s=2 * DAY), replace(LATEST, sla_s=2000), settings=DEADLINE) == [
        "z", "long", "short",
    ]  # fmt: skip


def test_among_the_shortest_a_job_with_a_deadline_keeps_its_place():
    urgent = replace(LONG, id="urgent", submit_s=90, sla_s=3000)
    assert order(LONG, SHORT, LATEST, urgent) == ["urgent", "short", "z", "long"]
    assert order(LONG, SHORT, LATEST, urgent, settings=replace(SHORTEST, systems=("elastic",))) == [
        "short", "z", "long", "urgent",
    ]  # fmt: skip


def test_what_counts_is_the_time_on_the_best_count_that_it_may_have_not_the_work():
    """1,000 s on one GPU take 417 s on four of them."""
    wide, narrow = waiting("wide", 1000), waiting("narrow", 500, optional=(1,))
    assert order(narrow, wide) == ["wide", "narrow"]


def test_jobs_of_unknown_length_come_behind_in_order_of_arrival():
    first, second = waiting("first", None, submit_s=0), waiting("second", None, submit_s=1)
    assert order(second, first, LONG) == ["long", "first", "second"]


def test_a_length_is_known_from_its_user_and_from_past_tasks_that_asked_for_as_much():
    guessed = waiting("guessed", None, estimate_s=60)
    assert order(LONG, LATEST, guessed) == ["guessed", "z", "long"]
    past = Observations.from_rows([Observation(1, 0, 2, execution_s=100.0)])
    learned = waiting("learned", None, tasks=(Task("t", 1, 0, 2),))
    assert order(LONG, LATEST, learned, observations=past) == ["learned", "z", "long"]
    assert order(LONG, LATEST, learned) == ["z", "long", "learned"]


def test_equals_go_by_submission_then_by_id_however_they_are_listed():
    jobs = [replace(SHORT, id=name, submit_s=at) for name, at in (("b", 1), ("a", 1), ("c", 0))]
    for seed in range(5):
        random.Random(seed).shuffle(jobs)
        assert order(*jobs) == ["c", "a", "b"]


@pytest.mark.parametrize("settings", [SHORTEST, ARRIVAL, DEADLINE])
def test_who_has_waited_a_day_and_twice_its_length_comes_first_the_longest_waiting_before_the_others(settings):
    old = replace(LONG, id="old", submit_s=2), replace(LONG, id="oldest", submit_s=1)
    fresh = replace(SHORT, submit_s=DAY), replace(LATEST, sla_s=600, submit_s=DAY)
    assert order(*fresh, *old, now=DAY + 2, settings=settings)[:2] == ["oldest", "old"]
    assert order(*fresh, *old, now=DAY)[0] == "short", "nobody has waited a day yet"


def test_a_job_of_weeks_does_not_go_first_after_a_day():
    weeks = replace(LONG, iterations_left=10 * DAY, submit_s=0)  # 4.2 days on four GPUs
    fresh = replace(SHORT, submit_s=8 * DAY)
    assert order(weeks, fresh, now=8.3 * DAY) == ["short", "long"]
    assert order(weeks, fresh, now=8.4 * DAY) == ["long", "short"]


def test_nobody_goes_first_where_aging_is_off_or_without_the_elastic_system():
    fresh = replace(SHORT, submit_s=DAY)
    assert order(LONG, fresh, now=2 * DAY) == ["long", "short"]
    assert order(LONG, fresh, now=2 * DAY, settings=Settings(reserve_after_s=0)) == ["short", "long"]
    assert order(LONG, fresh, now=2 * DAY, settings=Settings(systems=())) == ["short", "long"]


def test_jobs_of_unknown_length_age_too():
    fresh = replace(SHORT, submit_s=DAY)
    assert order(fresh, waiting("unknown", None, submit_s=0), now=DAY) == ["unknown", "short"]


def test_a_stream_of_short_jobs_does_not_keep_a_long_one_waiting_longer_than_its_age():
    """One GPU; a short job comes whenever it falls idle."""
    long, now = replace(LONG, submit_s=0.0, optional=(1,)), 0.0
    while now < 2 * DAY:
        newcomer = waiting(f"short-{now:g}", 50, optional=(1,), submit_s=now)
        world = cluster(long, newcomer, running("else", 1, optional=(1,)), nodes=(node(idle=1, used=1),))
        started = next(d.job for d in decide(world, now) if isinstance(d, Start))
        if started == "long":
            break
        now += 600.0
    assert DAY <= now < DAY + 600.0
