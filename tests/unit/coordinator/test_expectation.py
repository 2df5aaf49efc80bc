"""When waiting jobs start and placed ones end, told to people who ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adaptive_scheduler.models.prediction import of_unknown_end, t_keep, t_new
from adaptive_scheduler.settings import Settings
from coordinator.expected_times import ExpectedTimes, expected_times
from tests.unit.adaptive_scheduler.worlds import PROFILES, cluster, node, on_cpu, running, waiting


def test_a_waiting_job_starts_once_enough_gpus_are_left_to_it():
    soon, late = running("soon", 2, left=100), running("late", 2, left=1000)
    snapshot = cluster(soon, late, waiting("new", optional=(2,)), used=4)
    found = expected_times(snapshot, 0.0)
    assert found["new"] == ExpectedTimes(start_s=t_keep(PROFILES, soon, "V100"))
    four = expected_times(cluster(soon, late, waiting("new", optional=(4,)), used=4), 0.0)
    assert four["new"] == ExpectedTimes(start_s=t_keep(PROFILES, late, "V100"))


def test_a_placed_job_of_known_length_ends_when_that_is_done():
    job = running("a", 2, left=100)
    assert expected_times(cluster(job), 0.0)["a"] == ExpectedTimes(end_s=t_keep(PROFILES, job, "V100"))


def test_one_that_is_being_launched_ends_later_by_its_launch():
    job = running("a", 2, left=100, state="initializing")
    overheads = PROFILES.overheads("t")
    launch_s = overheads.k8s_init + overheads.proc_init
    assert expected_times(cluster(job), 0.0)["a"].end_s == pytest.approx(launch_s + t_keep(PROFILES, job, "V100"))


def test_what_rests_on_a_length_that_nobody_knows_is_a_guess_and_names_it():
    unknown, new = running("unknown", 1, left=None), waiting("new", optional=(1,))
    found = expected_times(cluster(unknown, new, used=1), 0.0)
    assert (found["new"].guess, found["new"].guesses) == (True, ("unknown",))
    assert found["unknown"].end_s is None, "an end that nobody knows is not told as if it were known"
    assert of_unknown_end(cluster(unknown)) == (unknown,)
    assert of_unknown_end(cluster(running("known", 1))) == ()


def test_a_waiting_job_starts_when_a_new_type_ends_by_the_speed_that_it_shows():
    """The list of jobs shows that end, too: before, the start behind it was ten minutes off, whatever it showed."""
    new, shows = waiting("new", optional=(1,)), running("shows", 1, left=40, type="never-seen", rate=2.0)
    found = expected_times(cluster(shows, new, used=1), 0.0)
    finish_s = PROFILES.overheads("never-seen").finish
    assert found["shows"] == ExpectedTimes(end_s=20.0 + finish_s)
    assert found["new"] == ExpectedTimes(start_s=20.0 + finish_s)
    unsure = expected_times(cluster(replace(shows, length_unsure=True), new, used=1), 0.0)
    assert unsure["new"].guesses == ("shows",)


def test_the_longer_it_trained_the_later_a_guess_is_and_it_is_worked_out_anew():
    new = waiting("new", optional=(1,))
    early = expected_times(cluster(running("u", 1, left=None, running_s=10.0), new, used=1), 0.0)["new"]
    later = expected_times(cluster(running("u", 1, left=None, running_s=5000.0), new, used=1), 0.0)["new"]
    assert (early.start_s or 0.0) < (later.start_s or 0.0)


def test_a_job_of_unknown_length_elsewhere_makes_no_guess():
    nodes = (node("a", used=1), node("b", used=1))
    here, there = running("here", 1, left=100), running("there", 1, left=None, node="b")
    found = expected_times(cluster(here, there, waiting("new", optional=(1,), pinned="a"), nodes=nodes), 0.0)
    assert found["new"] == ExpectedTimes(start_s=t_keep(PROFILES, here, "V100"))


def test_who_comes_later_waits_for_those_before_and_a_small_one_may_pass():
    first, second = waiting("first", optional=(2,), submit_s=0.0), waiting("second", optional=(2,), submit_s=1.0)
    small = waiting("small", optional=(1,), submit_s=2.0)
    job = running("a", 2, left=100)
    found = expected_times(cluster(job, first, second, small, idle=1, used=2), 5.0)
    ends = t_keep(PROFILES, job, "V100")
    assert found["small"] == ExpectedTimes(start_s=0.0), "a GPU is idle, which is too few for the others"
    assert found["first"].start_s == pytest.approx(ends)
    assert found["second"].start_s == pytest.approx(ends + t_new(PROFILES, first, "V100", 2))


def test_of_a_job_that_no_node_can_ever_hold_nothing_is_said():
    found = expected_times(cluster(running("a", 2), waiting("new", optional=(16,)), used=2), 0.0)
    assert "new" not in found


def test_of_jobs_trained_on_cpu_and_in_an_empty_cluster_nothing_is_said():
    assert expected_times(cluster(on_cpu("c", state="submitted", node=None)), 0.0) == {}
    assert expected_times(replace(cluster(waiting()), nodes=()), 0.0, Settings()) == {}


def test_a_gang_takes_whole_pods_of_several_nodes():
    nodes = (node("a", idle=3), node("b", used=2))
    gang = waiting("gang", optional=(4,), gpus_per_pod=2, max_workers=2)
    job = running("x", 2, left=100, node="b")
    assert expected_times(cluster(job, gang, nodes=nodes), 0.0)["gang"].start_s == t_keep(PROFILES, job, "V100")
