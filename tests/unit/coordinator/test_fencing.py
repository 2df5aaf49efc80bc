"""A GPU cannot check a token, so we wait: who is out of reach is fenced before its GPUs serve anybody else.

P1, P6 and P15 of `reliability.md` 4 on a clock moved by hand; the same machines as in `tests/stateful`.
"""

from __future__ import annotations

from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World


def spawned_at(world: World) -> float | None:
    launch = world.machines.present("one")
    return launch.status.spawn_at if launch and launch.trains else None


def test_a_job_out_of_reach_is_launched_again_only_after_its_trainer_has_certainly_ended() -> None:
    world = World.training([4], Behaviour(iterations=400))
    old = world.machines.launches["one", 1]
    world.machines.of("one").partitioned = True
    cut_at = world.clock.time
    world.run(lambda w: ("one", 2) in w.machines.launches, 120)
    assert world.clock.time - cut_at > SHORT.wait_out_s
    assert (old.status.trainer, old.status.fenced) == ("exited", True)
    assert (old.status.exit_at or 0) - cut_at < SHORT.lease_s


def test_a_trainer_that_ignores_its_fence_is_killed_at_the_deadline() -> None:
    world = World.training([4], Behaviour(iterations=400))
    old = world.machines.launches["one", 1]
    world.machines.of("one").ignores_stop = world.machines.of("one").partitioned = True
    world.run(lambda w: ("one", 2) in w.machines.launches, 120)
    assert (old.status.exit_code, old.status.fenced) == (-9, True)


def test_once_it_is_reached_again_the_old_launch_is_told_to_end_and_the_job_completes() -> None:
    world = World.training([4], Behaviour(iterations=400))
    world.machines.of("one").partitioned = True
    world.run(lambda w: ("one", 2) in w.machines.launches, 120)
    world.machines.of("one").partitioned = False
    world.deliver_late()
    world.run(lambda w: w.at_rest(), 200)
    assert world.states() == {"one": s.COMPLETED}
    assert not any(launch.alive for launch in world.machines.launches.values())


def test_a_short_silence_stops_nothing() -> None:
    world = World.training([4], Behaviour(iterations=400))
    before = spawned_at(world)
    world.machines.of("one").partitioned = True
    world.pass_time(SHORT.lease_s - SHORT.grace_s - 2)
    world.machines.of("one").partitioned = False
    world.pass_time(5)
    assert spawned_at(world) == before
    assert world.states()["one"] == s.RUNNING


def test_a_store_that_is_away_for_less_than_the_lease_stops_no_training() -> None:
    world = World.training([4], Behaviour(iterations=400))
    before = spawned_at(world)
    world.store.down = True
    world.pass_time(SHORT.lease_s - SHORT.grace_s - 2)
    world.store.down = False
    world.pass_time(5)
    assert spawned_at(world) == before


def test_a_store_that_is_away_for_longer_makes_training_save_and_pause_and_it_goes_on_by_itself() -> None:
    world = World.training([4], Behaviour(iterations=400))
    world.store.down = True
    world.pass_time(SHORT.lease_s + SHORT.term_s + 5)
    paused = world.machines.launches["one", 1]
    assert (paused.status.trainer, paused.status.fenced) == ("exited", True)
    saved = world.machines.disk["one"].step
    world.store.down = False
    world.run(lambda w: spawned_at(w) is not None, 120)
    assert paused.base >= saved or world.machines.launches["one", 2].base >= saved
    world.run(lambda w: w.at_rest(), 300)
    assert world.states() == {"one": s.COMPLETED}


def test_a_coordinator_that_begins_treats_every_lease_as_renewed_then() -> None:
    world = World.training([4], Behaviour(iterations=400))
    world.machines.of("one").partitioned = True
    world.pass_time(20)
    world.boot()
    begun = world.clock.time
    world.run(lambda w: ("one", 2) in w.machines.launches, 120)
    assert world.clock.time - begun > SHORT.wait_out_s


def test_after_all_faults_everything_is_at_rest_within_two_leases_and_a_restart() -> None:
    world = World.training([4], Behaviour(iterations=60))
    world.machines.of("one").partitioned = True
    world.store.down = True
    world.pass_time(2 * SHORT.lease_s)
    world.store.down = False
    world.boot()
    world.machines.of("one").partitioned = False
    healed = world.clock.time
    world.run(lambda w: w.at_rest(), 2 * SHORT.lease_s + 30)
    assert world.clock.time - healed <= 2 * SHORT.lease_s + 30


def test_a_relaunch_that_hangs_is_removed_and_its_gpus_serve_others() -> None:
    world = World.training([4], Behaviour(iterations=400))
    world.machines.of("one").never_comes_up = True
    world.machines.kill_shim("one")
    world.run(lambda w: w.states()["one"] == s.SUBMITTED, 120)
    world.submit("two", [4], Behaviour(iterations=10))
    world.run(lambda w: bool(w.job("one").held) and w.states()["two"] == s.COMPLETED, 300)
    assert "did not report within" in world.job("one").held


def test_a_start_whose_answer_was_lost_is_fenced_before_a_cancelled_jobs_gpus_are_freed() -> None:
    world = World()
    world.submit("one", [4], Behaviour(iterations=400, answers_lost=1))
    world.run(lambda w: w.machines.executed["one:1:start"] == 1, 60)
    world.api.operator.cancel("one")
    world.run(lambda w: w.at_rest(), 60)
    assert world.states() == {"one": s.CANCELLED}
    assert world.machines.executed["one:1:start"] == 1


def test_a_launch_that_never_came_up_and_can_never_be_removed_does_not_hold_its_job_for_ever() -> None:
    world = World()
    world.submit("one", [4], Behaviour(iterations=10, never_comes_up=True, partitioned=True))
    world.run(lambda w: w.states()["one"] == s.SUBMITTED and w.job("one").launch == 1, 60)
    since = world.clock.time
    world.machines.of("one").never_comes_up = False  # a second one would
    world.run(lambda w: w.job("one").launch == 2, 200)
    assert world.clock.time - since > SHORT.wait_out_s
