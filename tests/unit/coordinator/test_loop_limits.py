"""CPU limits of running jobs (FlowCon), from the decision to the answer that a heartbeat gets. No process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptive_scheduler.decision import Decision, Explanation, Finish, Limit, Move, Requeue
from adaptive_scheduler.settings import FlowCon, Settings
from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.errors import Conflict
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.scheduling.decision_records import DecisionBasis
from coordinator.scheduling.loop import LIMITS_KEPT
from coordinator.stores.bootstrap import FoundNode
from sidecar.protocol import Heartbeat, HeartbeatReply, launch_key, sign
from tests.fakes.shims import Behaviour
from tests.fakes.world import MASTER, World

WHY = Explanation("flowcon", "so it was decided.")
CPUS = (FoundNode("c", cores=2.0), FoundNode("d", cores=2.0))
FAST = FlowCon(interval_s=10.0, min_dt_s=1.0, limit_lasts_s=60.0)


def running(*systems: Any, **doc: Any) -> World:
    """One job that trains on the cores of node c."""
    world = World(settings=Settings(systems=systems or ("elastic",), flowcon=FAST), nodes=CPUS)
    world.submit("one", [0], Behaviour(iterations=10_000, value=1.0, cores=1.0), **{"node": "c", **doc})
    world.run(lambda w: w.states()["one"] == s.RUNNING, 30)
    return world


def limit(cores: float | None, lasts_s: float = 60.0) -> Limit:
    return Limit("one", "c", cores, lasts_s, WHY)


def answer(world: World) -> tuple[float | None, float]:
    """What the job's sidecar is told of its limit: cores and seconds."""
    job, launch = world.job("one"), world.machines.present("one")
    assert launch is not None
    raw = msgspec.json.encode(launch.heartbeat(world.machines.of("one")))
    signature = sign(launch_key(MASTER, job.uid, launch.number), "POST", "/v1/heartbeats", raw)
    reply = msgspec.json.decode(
        world.api.messages.heartbeat("one", launch.number, raw, signature)[0], type=HeartbeatReply
    )
    return reply.limit, reply.limit_s


def passes(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.tick()


def told(world: World, *kinds: str) -> list[tuple[str, float | None]]:
    world.c.event_log.flush()
    return [(e["type"], e["cores"]) for e in world.users.events_after(0, 10_000) if e["type"] in kinds]


def test_a_limit_is_no_operation_and_is_told_with_the_answer_to_the_next_heartbeat() -> None:
    world = running()
    before = world.job("one")
    assert answer(world) == (None, 0.0)
    world.order(limit(0.5))
    assert answer(world) == (0.5, 60.0)
    after = world.job("one")
    assert (after.state, after.generation, after.operation) == (s.RUNNING, before.generation, None)
    assert told(world, "limited") == [("limited", 0.5)]
    kept = world.api.history.decision("one-limit-1")
    assert (kept["kind"], kept["cores"], kept["node"], kept["sentence"]) == ("limit", 0.5, "c", WHY.sentence)


def test_the_same_limit_again_only_lasts_longer() -> None:
    world = running()
    world.order(limit(0.5))
    kept = world.users.get("decisions", "one-limit-1")
    passes(world, 40)
    assert answer(world) == (0.5, 20.0)
    world.order(limit(0.5))
    assert answer(world) == (0.5, 60.0)
    assert world.users.get("decisions", "one-limit-1") == kept
    assert (told(world, "limited"), world.job("one").limits) == ([("limited", 0.5)], 1)


def test_changes_of_a_limit_are_counted_and_told_and_each_can_be_explained() -> None:
    world = running()
    for cores in (0.5, 0.75, None):
        world.order(limit(cores))
    assert told(world, "limited", "released") == [("limited", 0.5), ("limited", 0.75), ("released", None)]
    assert world.job("one").limits == 3
    assert answer(world) == (None, 0.0)
    assert kept(world) == [0.5, 0.75, None]


def kept(world: World) -> list[float | None]:
    """The limits that were decided, as far as they can be explained."""
    return [d["cores"] for d in world.users.list("decisions", {"kind": "limit"}) if d["job_id"] == "one"]


def test_only_the_last_limits_of_a_job_are_kept() -> None:
    world = running()
    for round in range(LIMITS_KEPT + 1):
        world.order(limit(0.1 * (round + 1) if round % 2 else None if round else 0.5))
    assert len(kept(world)) == LIMITS_KEPT


def test_a_limit_by_weight_says_so() -> None:
    world = running()
    world.order(replace(limit(0.5), by="weight"))
    assert world.job("one").limit_by == "weight"
    world.order(limit(None))
    assert (world.job("one").limit_by, world.job("one").doc["limit_by"]) == ("quota", None)


def test_a_job_that_cannot_be_limited_is_one_only_as_long_as_that_launch_lives() -> None:
    world = running()
    job = world.job("one")
    world.users.update("jobs", "one", {}, {"unlimitable": {"launch": job.launch, "why": "class BestEffort"}})
    world.decide()
    assert world.job("one").unlimitable == "class BestEffort"
    assert JobRecord({**world.job("one").doc, "launch": job.launch + 1}).unlimitable is None
    assert world.api.jobs.job("one")["unlimitable"] == "class BestEffort"


def test_noise_moves_a_limit_without_an_event_until_it_has_come_far_from_what_was_told() -> None:
    world = running()
    for cores in (0.5, 0.52, 0.49, 0.55, 0.61, 0.6):
        world.order(limit(cores))
        assert answer(world)[0] == cores
    assert told(world, "limited") == [("limited", 0.5), ("limited", 0.61)]


def test_a_limit_that_is_not_renewed_ends_and_the_next_one_is_a_new_one() -> None:
    world = running()
    world.order(limit(0.5))
    passes(world, 60)
    assert answer(world) == (None, 0.0)
    world.order(limit(0.5))
    assert told(world, "limited") == [("limited", 0.5), ("limited", 0.5)]


def test_a_coordinator_that_begins_sends_what_is_left_of_a_limit_and_none_that_is_over() -> None:
    world = running()
    world.order(limit(0.5))
    world.clock.time += 20.0
    world.boot()
    world.decide()
    assert answer(world) == (0.5, 40.0)
    world.clock.time += 40.0
    world.boot()
    world.decide()
    assert answer(world) == (None, 0.0)


@pytest.mark.parametrize("leaves", [Move("one", "d", 0, WHY), Requeue("one", WHY), Finish("one", WHY)])
def test_whoever_is_stopped_saves_without_a_limit_and_has_none_afterwards(leaves: Decision) -> None:
    world = running()
    world.order(limit(0.5))
    world.order(leaves)
    assert answer(world) == (None, 0.0), "from the moment on at which it was decided"
    world.run(lambda w: w.job("one").operation is None and (w.job("one").node, w.states()["one"]) != ("c", s.RUNNING))
    assert world.job("one").doc["cpu_limit"] is None


@pytest.mark.parametrize("ahead_s", [3_600.0, -3_600.0, 40 * 86_400.0])
def test_a_limit_lasts_as_long_as_it_was_decided_whatever_the_clock_is_set_to(ahead_s: float) -> None:
    world = running()
    world.order(limit(0.5, 100.0))
    world.clock.ahead_s = ahead_s
    world.pass_time(50.0)
    cores, left_s = answer(world)
    assert (cores, left_s) == (0.5, pytest.approx(50.0, abs=5.0))
    world.boot()
    world.pass_time(60.0)
    assert answer(world) == (None, 0.0)


def test_a_training_that_ends_or_is_started_again_loses_its_limit() -> None:
    world = running()
    world.order(limit(0.5, 10_000.0))
    world.machines.end_trainer("one", 1)
    world.run(lambda w: w.job("one").retries == 1, 60)
    assert world.job("one").doc["cpu_limit"] is None
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    world.order(limit(0.5, 10_000.0))
    world.machines.end_trainer("one", 0)
    world.run(lambda w: w.at_rest(), 60)
    assert (world.job("one").doc["cpu_limit"], world.job("one").doc["limit_ts"]) == (None, None)


def test_a_limit_that_a_user_wrote_into_a_document_is_not_believed() -> None:
    more = {"limits_told": 3, "limit_by": "weight", "unlimitable": {"launch": 1, "why": "because"}}
    world = running(cpu_limit=0.1, limit_ts=9e12, limits=7, **more)
    assert answer(world) == (None, 0.0)
    one = world.job("one")
    assert (one.limits, one.limits_told, one.limit_by, one.unlimitable) == (0, 0, "quota", None)


def test_a_limit_decided_on_a_job_that_has_changed_meanwhile_is_dropped() -> None:
    world = running("elastic", "flowcon")
    old = world.c.cache.jobs()
    world.order(limit(0.5))
    with pytest.raises(Conflict):
        world.c.loop._apply(limit(1.5), DecisionBasis(old, ClusterSnapshot((), ()), 0.0))
    assert answer(world)[0] == 0.5
    assert told(world, "limited") == [("limited", 0.5)]


def slowing(world: World, seconds: float) -> None:
    """Time passes; each step of job one gains a twentieth of what the last one gained, those of others gain alike."""
    for _ in range(int(seconds)):
        one = world.machines.of("one")
        one.value = (one.value or 0.0) * 0.8
        for name, behaviour in world.machines.behaviour.items():
            if name != "one" and behaviour.value is not None:
                behaviour.value -= 0.01
        world.tick()


def test_a_job_whose_growth_has_slowed_is_limited_while_another_trains_there_and_released_when_it_ends() -> None:
    world = running("elastic", "flowcon")
    slowing(world, 100.0)
    assert told(world, "limited") == [], "alone it disturbs nobody"
    world.submit("two", [0], Behaviour(iterations=60, value=1.0, cores=1.0), node="c")
    slowing(world, 30.0)
    assert told(world, "limited")[0] == ("limited", 0.5), "1 / (beta x jobs) of two cores"
    assert answer(world)[0] == 0.5
    for _ in range(100):
        slowing(world, 1.0)
        assert answer(world)[0] == 0.5 or world.states()["two"] != s.RUNNING, "renewed as long as it is to last"
    assert world.states()["two"] == s.COMPLETED
    assert told(world, "released") == [("released", None)]
    assert answer(world) == (None, 0.0)


def test_who_comes_and_goes_is_seen_at_once_however_long_the_interval() -> None:
    """Algorithm 2: a change of the pool interrupts the interval, on arrival and on exit."""
    world = running("elastic", "flowcon")
    slowing(world, 100.0)
    world.c.telemetry.progress._pace["c"] = replace(world.c.telemetry.progress._pace["c"], due_s=1e9)
    world.submit("two", [0], Behaviour(iterations=10_000, value=1.0, cores=1.0), node="c")
    came = seconds_until(world, lambda: world.states()["two"] == s.RUNNING)
    assert seconds_until(world, lambda: answer(world)[0] == 0.5) <= 1.0, came
    world.c.telemetry.progress._pace["c"] = replace(world.c.telemetry.progress._pace["c"], due_s=1e9)
    world.api.operator.cancel("two")
    seconds_until(world, lambda: world.states()["two"] == s.CANCELLED)
    assert seconds_until(world, lambda: answer(world)[0] is None) <= 1.0


def seconds_until(world: World, so: Callable[[], bool]) -> float:
    for seconds in range(60):
        if so():
            return float(seconds)
        slowing(world, 1.0)
    raise AssertionError("not within a minute")


@given(
    st.lists(
        st.tuples(st.floats(0.0, 90.0), st.one_of(st.none(), st.sampled_from([0.25, 0.5, 1.0])), st.booleans()),
        max_size=8,
    )
)
def test_whatever_is_decided_when_a_sidecar_hears_the_newest_limit_and_never_for_longer(steps: list[Any]) -> None:
    world, last, until = running(), None, 0.0
    generation = world.job("one").generation
    for seconds, cores, restarts in steps:
        world.clock.time += seconds
        if restarts:
            world.boot()
        world.decide()
        world.order(limit(cores))
        last, until = cores, world.clock.time + 60.0
        world.clock.time += seconds / 2
        world.c.elector.try_to_lead()
        told_cores, told_s = answer(world)
        holds = last is not None and world.clock.time < until
        assert told_cores == (last if holds else None)
        assert told_s == pytest.approx(until - world.clock.time if holds else 0.0)
        assert world.job("one").generation == generation


def test_what_a_job_is_held_to_is_shown_as_its_sidecar_says() -> None:
    world = running()
    launch = world.machines.present("one")
    assert launch is not None
    said = launch.heartbeat(world.machines.of("one"))
    said.usage.limit, said.usage.limited_by = 0.5, "stop and go"
    world.c.telemetry.reports.keep_heartbeat(world.job("one"), msgspec.convert(msgspec.to_builtins(said), Heartbeat))
    usage = world.api.jobs.job("one")["usage"]
    assert (usage["cpu_cores"], usage["cpu_limit"], usage["limited_by"]) == (1.0, 0.5, "stop and go")
