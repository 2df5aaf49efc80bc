"""Which end of a trainer completes its job, and what is left of a job that is cancelled while it comes up."""

from __future__ import annotations

from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World


def test_a_job_cancelled_while_it_comes_up_leaves_no_launch_however_long_the_coordinator_is_up() -> None:
    world = World()
    world.pass_time(3 * SHORT.wait_out_s)
    world.submit("one", [4], Behaviour(launch_s=10))
    world.run(lambda w: ("one", 1) in w.machines.launches, 10)
    world.users.update("jobs", "one", {}, {"cancel": True})
    world.run(lambda w: w.at_rest(), 60)
    launch = world.machines.launches["one", 1]
    assert (launch.removal_asked, launch.alive) == (True, False)
    assert world.states() == {"one": s.CANCELLED}
    world.pass_time(30)
    assert list(world.machines.launches) == [("one", 1)]
    assert {world.gpu(f"gpu-{i}").state for i in range(4)} == {s.IDLE}


def test_a_job_that_the_cluster_ended_says_why_and_not_that_its_user_did() -> None:
    world = World.training([2], Behaviour(iterations=10**6))
    why = "its pod was evicted from node node-a: Eviction API; its Volcano Job was terminated for that"
    world.users.update("jobs", "one", {}, {"cancel": True, "cancel_reason": why})
    world.run(lambda w: w.at_rest(), 60)
    assert (world.job("one").state, world.api.jobs.job("one")["message"]) == (s.CANCELLED, why)


def test_a_job_of_unknown_length_that_saves_and_ends_with_0_when_asked_goes_on_with_its_new_shape() -> None:
    behaviour = Behaviour(iterations=4_000, says_total=False, stop_code=0)
    world = World.training([1, 2, 4], behaviour, iterations=None)
    before = len(world.job("one").gpu_ids)
    wanted = {4: 2, 2: 1, 1: 2}[before]
    world.api.operator.request("one", wanted, None)
    world.run(lambda w: len(w.job("one").gpu_ids) == wanted and w.states()["one"] == s.RUNNING, 60)
    (launch,) = world.machines.launches.values()
    assert (len(launch.status.gpu_ids), launch.status.trainer) == (wanted, "running")
    assert launch.base > 0, "from its checkpoint"


def test_unasked_the_same_end_completes_it() -> None:
    world = World.training([1, 2, 4], Behaviour(iterations=4_000, says_total=False, stop_code=0), iterations=None)
    world.machines.end_trainer("one", 0)
    world.run(lambda w: w.at_rest(), 60)
    assert world.states() == {"one": s.COMPLETED}
