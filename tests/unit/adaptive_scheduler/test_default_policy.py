"""Promise: the default policy is what a cluster without elastic jobs does (`algorithms.md` 1.10, G17)."""

import pytest

from adaptive_scheduler.decision import Hold
from adaptive_scheduler.engine import decide
from adaptive_scheduler.settings import Settings
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, waiting

DEFAULT = Settings(systems=())


def test_a_job_gets_its_largest_count_on_the_node_with_most_idle_gpus():
    (start,) = decide(cluster(waiting(), nodes=(node("a", idle=5), node("b", idle=6))), 0.0, DEFAULT)
    assert (start.node, start.num_gpus, start.victim) == ("b", 4, None)
    assert start.explanation.sentence == "new starts on 4 GPUs of b, its fixed count."


def test_its_count_stays_fixed_although_a_smaller_one_would_fit():
    (held,) = decide(cluster(waiting(), running("r", 2), idle=2), 0.0, DEFAULT)
    assert isinstance(held, Hold)
    assert "its fixed count is 4 GPUs and 2 are idle on node a" in held.explanation.sentence


def test_g17_a_job_that_fits_passes_one_that_does_not():
    jobs = waiting("big", optional=(4,), submit_s=0), waiting("small", optional=(1,), submit_s=1)
    start, held = decide(cluster(*jobs, idle=2), 0.0, DEFAULT)
    assert (start.job, held.job) == ("small", "big")


def test_idle_gpus_are_left_idle():
    assert decide(cluster(running("r", 1, 9000), idle=3), 0.0, DEFAULT) == ()


def test_a_count_that_no_node_could_ever_hold_is_not_waited_for():
    (start,) = decide(cluster(waiting(optional=(1, 2, 16)), idle=4, used=0), 0.0, DEFAULT)
    assert start.num_gpus == 2


@pytest.mark.parametrize("job", [waiting(optional=(16,)), waiting(gpu_type="H100"), waiting(optional=())], ids=str)
def test_a_job_that_cannot_start_at_all_is_told_so(job):
    (held,) = decide(cluster(job, idle=4), 0.0, DEFAULT)
    assert isinstance(held, Hold)
    assert held.explanation.sentence.startswith("new waits: ")
