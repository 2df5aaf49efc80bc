"""Promise: the predicted pause of a reshape counts the size of the state and its path, and decisions use it.

Where no size is known all is as without (`test_prediction.py`, `test_elastic.py`). That the arrays hold the same is
shown in `test_cost_table.py`, on drawn snapshots.
"""

import pytest

from adaptive_scheduler.decision import Move, Reshape, Start
from adaptive_scheduler.models import pause
from adaptive_scheduler.models.prediction import cross_host_s, pause_words, reshape_cost_s, t_run
from adaptive_scheduler.policies.elastic.algorithms import schedule_incoming, schedule_running
from adaptive_scheduler.profiles.profiles import DEFAULT_OVERHEADS, Profiles
from adaptive_scheduler.settings import Settings
from tests.unit.adaptive_scheduler.worlds import cluster, node, running, speed_rows, waiting

LARGE, SMALL = 15.7e9, 0.1e9  # bytes
FIXED = {"k8s_init": 3, "k8s_term": 2, "proc_init": 3, "proc_term": 0.5, "ckpt": 0.2, "proc_restart": 1.5}
# Of a type of which small states were measured.
MEASURED = {**FIXED, "ckpt_state": pause.save_s(SMALL, "disk"), "restart_state": pause.load_s(SMALL, "disk")}


def profiles(**overheads):
    return Profiles.from_rows(speed_rows(), [{"job_type": "t", "origin": "measured", **MEASURED, **overheads}])


def job(state_bytes=LARGE, path="disk", **more):
    return running("big", 1, state_bytes=state_bytes, state_path=path, **more)


def test_the_first_reshape_of_a_large_state_is_not_predicted_as_that_of_a_small_one_of_its_type():
    known = profiles()
    assert reshape_cost_s(known, job(SMALL)) == pytest.approx(2.2)
    assert reshape_cost_s(known, job()) == pytest.approx(2.2 + 30.7, abs=0.3)  # saved in 21 s, loaded in 9.7 s
    assert t_run(known, job(), "V100", 2) - t_run(known, job(SMALL), "V100", 2) == pytest.approx(30.5, abs=0.1)


def test_a_path_has_its_own_rate_and_a_state_that_stays_on_the_gpu_costs_the_same_whatever_its_size():
    known = profiles()
    disk, memory, gpu = (reshape_cost_s(known, job(path=path)) for path in ("disk", "host memory", "GPU"))
    assert disk > memory > 20 > gpu
    assert gpu == pytest.approx(reshape_cost_s(known, job(SMALL, "GPU")), abs=0.05)


def test_without_a_size_nothing_is_added_be_it_of_the_job_or_of_what_was_measured():
    assert reshape_cost_s(profiles(), job(0.0)) == 2.2
    measured_before = profiles(ckpt_state=None, restart_state=None)  # rows of an older version, or given by hand
    assert reshape_cost_s(measured_before, job()) == 2.2
    assert pause_words(profiles(), job(0.0)) == ""


def test_a_type_of_which_nothing_was_measured_is_assumed_to_have_small_states():
    unknown = Profiles.from_rows(speed_rows())
    assert reshape_cost_s(unknown, job()) == pytest.approx(DEFAULT_OVERHEADS.reshape + 30.7)
    shipped = Profiles.from_rows(speed_rows(), [{"job_type": "default", **FIXED}])
    assert reshape_cost_s(shipped, job()) == pytest.approx(2.2 + 30.7)


def test_a_job_of_the_size_that_was_measured_is_predicted_as_measured_however_fast_the_machine_is():
    sizes = {"ckpt_state": pause.save_s(LARGE, "disk"), "restart_state": pause.load_s(LARGE, "disk")}
    fast = profiles(ckpt=4.0, proc_restart=3.0, **sizes)
    assert reshape_cost_s(fast, job()) == pytest.approx(4 + 0.5 + 3)
    assert 0 <= reshape_cost_s(fast, job(SMALL)) < 1.0, "less, and never below nothing"


def test_a_measured_save_of_a_large_state_teaches_the_rate():
    slow = {"ckpt": 42.0, "ckpt_state": pause.save_s(LARGE, "disk")}  # twice as slow as the default
    of_twice = profiles(**slow, proc_restart=11.2, restart_state=pause.load_s(LARGE, "disk"))
    assert pause.more_to_save_s(of_twice.overheads("t"), 2 * LARGE, "disk") == pytest.approx(42.0)
    assert reshape_cost_s(of_twice, job(2 * LARGE)) == pytest.approx(84 + 0.5 + 11.2 + 9.7)
    short = profiles(ckpt=2.0)  # of 0.1 GB: what each save costs, not a rate
    assert pause.more_to_save_s(short.overheads("t"), LARGE, "disk") == pytest.approx(20.9, abs=0.1)


def test_a_relaunch_and_a_move_go_by_the_disk_wherever_the_state_was_the_last_time():
    known, kept = profiles(), job(path="GPU")
    relaunched = job(path="GPU", relaunches=True)
    assert reshape_cost_s(known, relaunched) == pytest.approx(reshape_cost_s(known, job()) + 5)
    assert cross_host_s(known, kept) == pytest.approx(5 + 30.7, abs=0.3)
    assert cross_host_s(known, job()) == 5
    assert cross_host_s(known, relaunched) == 0
    assert pause_words(known, kept, moves=True) == "pause 38 s: 15.7 GB to disk"


def grown(of):
    world = cluster(of, nodes=(node(idle=1, used=1),), profiles=profiles())
    return schedule_running(world, 0.0, Settings())


@pytest.mark.parametrize(
    ("of", "grows"),
    [
        (job(0.0, left=100), True),  # it gains 39 s: 100 s at one per second, then 59 s
        (job(SMALL, left=100), True),
        (job(left=100), False),
        (job(left=100, path="GPU"), True),
        (job(left=1000), True),  # it gains 412 s
    ],
)
def test_a_reshape_that_does_not_pay_for_its_pause_is_not_done(of, grows):
    assert isinstance(grown(of), Reshape) == grows


def test_the_sentence_names_the_pause_of_a_large_state_alone():
    assert " grows from 1 to 2 GPUs on a and is then" in grown(job(SMALL, left=1000)).explanation.sentence
    sentence = grown(job(left=1000)).explanation.sentence
    assert "big grows from 1 to 2 GPUs on a (pause 33 s: 15.7 GB to disk) and is then predicted to end" in sentence
    held = grown(job(left=1000, path="GPU")).explanation.sentence
    assert "(pause 2.0 s: 15.7 GB on the GPU)" in held


def test_a_growth_that_is_passed_over_says_the_pause_that_it_would_not_pay_for():
    other = running("small", 1, 4000)
    world = cluster(other, job(left=50), nodes=(node(idle=1, used=2),), profiles=profiles())
    best, *rest = schedule_running(world, 0.0, Settings()).explanation.candidates
    assert best.job == "small" and best.rejected == ""
    why = next(one.rejected for one in rest if one.job == "big" and one.num_gpus == 2)
    assert why == "ends 12.1 s later than if left as it is (pause 33 s: 15.7 GB to disk)"


def test_of_two_jobs_alike_the_one_that_pauses_shorter_gives_its_gpus():
    jobs = [running("big", 2, 3000, state_bytes=LARGE), running("small", 2, 3000, state_bytes=SMALL)]
    for order in (jobs, jobs[::-1]):
        world = cluster(*order, waiting(left=100, optional=(1,)), profiles=profiles(), used=4)
        start = schedule_incoming(world, world.queue[0], 0.0, Settings())
        assert isinstance(start, Start) and start.victim == "small"


def test_a_victim_with_a_large_state_is_named_with_its_pause_which_the_newcomer_waits_for():
    def start(of):
        world = cluster(of, waiting(left=100, optional=(1,)), profiles=profiles(), used=2)
        return schedule_incoming(world, world.queue[0], 0.0, Settings(refined=True))

    large, small = (start(running("v", 2, 3000, state_bytes=size)) for size in (LARGE, SMALL))
    assert "which goes from 2 to 1 (pause 33 s: 15.7 GB to disk); predicted to end" in large.explanation.sentence
    waited = large.explanation.candidates[0].job_s - small.explanation.candidates[0].job_s
    assert waited == pytest.approx(20.9, abs=0.1), "for the save, not for the load"


def test_a_job_whose_state_stays_on_the_gpu_moves_only_if_that_pays_for_the_disk():
    def moved(left):
        here, there = node("a", used=1), node("b", idle=2)
        world = cluster(job(path="GPU", left=left), nodes=(here, there), profiles=profiles())
        return schedule_running(world, 0.0, Settings())

    assert moved(60) is None
    assert isinstance(moved(1000), Move)
