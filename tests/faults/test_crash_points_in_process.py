"""The coordinator dies at the failpoints of every journey, is made anew from the store, and goes on
(P5 of `reliability.md` 4).

In process and on a fake clock, so that many positions can be tried: first a journey runs undisturbed and notes the
failpoints that it passes, then it runs once more for each of them: in `make test` for the first passing of each, in
`make test-deep` for each passing after which another state is left (see `crashes`). What is demanded is what a
user sees: the same ends, no GPU with two users, nothing lost that was saved, each command carried out once and no
launch too many. Twin with real SIGKILLs: `test_crash_points.py`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from adaptive_scheduler.decision import Decision, Explanation, Finish, Move, Requeue, Start, Victim
from adaptive_scheduler.settings import Settings
from coordinator.config import Config
from coordinator.model import states as s
from coordinator.reconcile.actions import NAMES
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from tests.depth import DEEP
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

W = TypeVar("W", bound=World)
RELAUNCH = replace(SHORT, reshape_by="relaunch")
LATE = replace(SHORT, early_initialization=False)


@dataclass(frozen=True)
class Act:
    """Something that a user or a machine does once `when` holds."""

    when: Callable[[World], bool]
    do: Callable[[World], object]


@dataclass(frozen=True)
class Journey:
    first: Behaviour
    ends: dict[str, str]
    acts: tuple[Act, ...] = ()
    config: Config = SHORT
    generations: dict[str, int] | None = None  # at the end of an undisturbed run
    counts: tuple[int, ...] = (1, 2, 4)  # that job one can run on
    nodes: tuple[FoundNode, ...] = ()  # beside the one with four GPUs
    settings: Settings | None = None
    more: Mapping[str, object] = field(default_factory=dict)  # fields of job one


def trains(job: str, gpus: int, steps: int = 6) -> Callable[[World], bool]:
    """The job has made some steps on so many GPUs, and nothing is being changed about it."""

    def holds(world: World) -> bool:
        record, launch = world.job(job), world.machines.present(job)
        known = world.c.cache.job(job) is not None  # also to one that has just begun anew
        ready = known and record.state == s.RUNNING and len(record.gpu_ids) == gpus
        return ready and launch is not None and launch.trains and launch.steps >= steps

    return holds


def is_in(job: str, state: str) -> Callable[[World], bool]:
    return lambda world: world.states().get(job) == state


def waits(job: str) -> Callable[[World], bool]:
    """The coordinator knows that it is in the queue."""

    def holds(world: World) -> bool:
        record = world.c.cache.job(job)
        return record is not None and record.state == s.SUBMITTED

    return holds


def rests(job: str) -> Callable[[World], bool]:
    """It waits in the queue, and nothing of it is left."""

    def holds(world: World) -> bool:
        record = world.c.cache.job(job)
        return record is not None and record.state == s.SUBMITTED and record.doc.get("down") == record.launch

    return holds


def rests_frozen(world: World) -> bool:
    """Job one waits in the queue, frozen in memory, and its GPU is free."""
    record = world.c.cache.job("one")
    waits = record is not None and record.state == s.SUBMITTED and record.frozen is not None
    return waits and all(gpu.job is None for gpu in world.c.cache.gpus().values())


def is_of_volcano(world: World) -> bool:
    """The coordinator has read it."""
    job = world.c.cache.job("one")
    return job is not None and job.doc.get("origin") == "volcano"


def stayed(world: World) -> bool:
    """The newcomer of a move was given up."""
    job = world.c.cache.job("one")
    return job is not None and job.state == s.RUNNING and job.launch == 1 and job.newest_launch == 2


def is_up(job: str, launch: int) -> Callable[[World], bool]:
    def holds(world: World) -> bool:
        newest = world.machines.present(job)
        return newest is not None and newest.number == launch and newest.up

    return holds


def submits(job: str, counts: list[int], behaviour: Behaviour) -> Callable[[World], object]:
    return lambda world: world.submit(job, counts, replace(behaviour, exits=list(behaviour.exits)))


def ordered(decision: Decision) -> Callable[[World], object]:
    return lambda world: world.order(decision)


WHY = Explanation("test", "so it was decided.")
TO_B = Move("one", "b", 2, WHY)
B = FoundNode("b", tuple(FoundGpu(f"b-{i}", "V100", None, True) for i in range(2)))
CPUS = (FoundNode("c", cores=2.0), FoundNode("d", cores=2.0))
NOTHING_ELSE = Settings(systems=(), cooldown_factor=1.0)  # nobody decides but the test
TWO = submits("two", [2], Behaviour(iterations=20))


def fails_to_start(world: World) -> None:
    """Its next starts fail, as often as it is tried."""
    world.machines.of("one").exits = [1] * (1 + world.config.retries)


def is_held(job: str) -> Callable[[World], bool]:
    at_rest = rests(job)
    return lambda world: at_rest(world) and bool(world.job(job).held)


def has_tried(job: str) -> Callable[[World], bool]:
    """Return whether its launch has failed, and it waits again."""
    waiting = waits(job)
    return lambda world: waiting(world) and world.job(job).retries > 0


NEWCOMER = Act(trains("one", 4), TWO)
FROM_BOTH = Start("three", "n1", 2, WHY, victim="one", victim_num_gpus=1, more_victims=(Victim("two", 1),))
FILL_BOTH = (Act(trains("one", 2, 0), submits("two", [1, 2], Behaviour(iterations=90))),)
TAKES_FROM_BOTH = (
    Act(trains("one", 2, 0), submits("two", [1, 2], Behaviour(iterations=60))),
    Act(trains("two", 2), submits("three", [2], Behaviour(iterations=20))),
    Act(waits("three"), ordered(FROM_BOTH)),
)
BOTH_END = {"one": s.COMPLETED, "two": s.COMPLETED}
ALL_END = {**BOTH_END, "three": s.COMPLETED}

JOURNEYS = {
    "start on idle GPUs": Journey(Behaviour(iterations=20), {"one": s.COMPLETED}, generations={"one": 1}),
    "start with a victim that grows back": Journey(
        Behaviour(iterations=200), BOTH_END, (NEWCOMER,), generations={"one": 3, "two": 1}
    ),
    "the victim's GPUs come before the launch": Journey(
        Behaviour(iterations=60), BOTH_END, (NEWCOMER,), LATE, {"one": 2, "two": 1}
    ),
    "relaunch instead of a reshape in place": Journey(
        Behaviour(iterations=48), BOTH_END, (NEWCOMER,), RELAUNCH, {"one": 2, "two": 1}
    ),
    "an operator shrinks a job": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (Act(trains("one", 4), lambda world: world.api.operator.request("one", 2, None)),),
        generations={"one": 2},
    ),
    "an operator shrinks a job whose interpreter is about to wait": Journey(
        Behaviour(iterations=80, warms_s=6.0),
        {"one": s.COMPLETED},
        (Act(trains("one", 4), lambda world: world.api.operator.request("one", 2, None)),),
        generations={"one": 2},
    ),
    "a newcomer comes and the imports of its victim's interpreter never end": Journey(
        Behaviour(iterations=200, warms_s=1e9), BOTH_END, (NEWCOMER,), generations={"one": 3, "two": 1}
    ),
    "cancel while running": Journey(
        Behaviour(iterations=200),
        {"one": s.CANCELLED},
        (Act(trains("one", 4), lambda world: world.api.operator.cancel("one")),),
        generations={"one": 1},
    ),
    "restart after a crash": Journey(
        Behaviour(iterations=40, exits=[1]), {"one": s.COMPLETED}, generations={"one": 2}
    ),
    "crashes until it has failed": Journey(
        Behaviour(iterations=40, exits=[1] * 4), {"one": s.FAILED}, generations={"one": 4}
    ),
    "the newcomer cannot be launched at first": Journey(
        Behaviour(iterations=200),
        BOTH_END,
        (Act(trains("one", 4), submits("two", [2], Behaviour(iterations=20, launch_failures=1))),),
        generations={"one": 3, "two": 1},
    ),
    "the newcomer is cancelled before its victim is stopped": Journey(
        Behaviour(iterations=200),
        {"one": s.COMPLETED, "two": s.CANCELLED},
        (NEWCOMER, Act(is_in("two", s.INITIALIZING), lambda world: world.api.operator.cancel("two"))),
        generations={"one": 1, "two": 0},
    ),
    "the victim ends while its newcomer initializes": Journey(
        Behaviour(iterations=200),
        BOTH_END,
        (NEWCOMER, Act(is_in("two", s.INITIALIZING), lambda world: world.machines.end_trainer("one", 0))),
        generations={"one": 1, "two": 1},
    ),
    "the shim dies": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (Act(trains("one", 4), lambda world: world.machines.kill_shim("one")),),
        generations={"one": 2},
    ),
    "a former coordinator stopped the victim": Journey(
        Behaviour(iterations=60),
        BOTH_END,
        (NEWCOMER, Act(is_in("one", s.ADJUSTING), lambda world: world.machines.zombie_stop("one", 5))),
        generations={"one": 6, "two": 1},  # the former one used 5; as two ends, too little is left to grow back for
    ),
    "a job moves to another node": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (Act(trains("one", 2), ordered(TO_B)),),
        generations={"one": 2}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a move whose new launch fails": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 2), lambda world: setattr(world.machines.of("one"), "launch_failures", 1)),
            Act(trains("one", 2), ordered(TO_B)),
        ),
        generations={"one": 1}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a move whose new launch does not come up": Journey(
        Behaviour(iterations=100),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 2), lambda world: setattr(world.machines.of("one"), "never_comes_up", True)),
            Act(trains("one", 2), ordered(TO_B)),
        ),
        generations={"one": 1}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a move whose new launch dies as the job has stopped for it": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 2), ordered(TO_B)),
            Act(is_up("one", 2), lambda world: world.machines.kill_shim("one")),
        ),
        generations={"one": 3}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a move of a job whose launch dies meanwhile": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 2), ordered(TO_B)),
            Act(is_in("one", s.ADJUSTING), lambda world: world.machines.kill_shim("one")),
        ),
        generations={"one": 2}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a move of a job that ends meanwhile": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 2), ordered(TO_B)),
            Act(is_in("one", s.ADJUSTING), lambda world: world.machines.end_trainer("one", 0)),
        ),
        generations={"one": 1}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a job moves there and back": Journey(
        Behaviour(iterations=120),
        {"one": s.COMPLETED},
        (Act(trains("one", 4), ordered(TO_B)), Act(trains("one", 2), ordered(Move("one", "n1", 4, WHY)))),
        generations={"one": 3}, counts=(2, 4), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "the pod of a user's Volcano Job moves": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 2), lambda world: world.users.update("jobs", "one", {}, {"origin": "volcano"})),
            Act(is_of_volcano, ordered(TO_B)),
        ),
        generations={"one": 2}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a move that is cancelled": Journey(
        Behaviour(iterations=60),
        {"one": s.CANCELLED},
        (
            Act(trains("one", 2), ordered(TO_B)),
            Act(is_in("one", s.ADJUSTING), lambda world: world.api.operator.cancel("one")),
        ),
        generations={"one": 1}, counts=(2,), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a job trained on CPU moves to another node": Journey(
        Behaviour(iterations=40),
        {"one": s.COMPLETED},
        (Act(trains("one", 0), ordered(Move("one", "d", 0, WHY))),),
        generations={"one": 2}, counts=(0,), nodes=CPUS, settings=NOTHING_ELSE,
    ),
    "a job yields to another one": Journey(
        Behaviour(iterations=60),
        BOTH_END,
        (Act(trains("one", 4), TWO), Act(is_in("two", s.SUBMITTED), ordered(Requeue("one", WHY, ("two",))))),
        generations={"one": 2, "two": 1}, counts=(4,), settings=NOTHING_ELSE,
    ),
    "a job on CPU yields": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (Act(trains("one", 0), ordered(Requeue("one", WHY))),),
        generations={"one": 2}, counts=(0,), nodes=CPUS, settings=NOTHING_ELSE,
    ),
    "a newcomer takes GPUs from two jobs": Journey(
        Behaviour(iterations=60),
        ALL_END,
        TAKES_FROM_BOTH,
        generations={"one": 2, "two": 2, "three": 1}, counts=(1, 2), settings=NOTHING_ELSE,
    ),
    "a newcomer takes GPUs from two jobs before it is launched": Journey(
        Behaviour(iterations=60),
        ALL_END,
        TAKES_FROM_BOTH,
        LATE,
        generations={"one": 2, "two": 2, "three": 1}, counts=(1, 2), settings=NOTHING_ELSE,
    ),
    "a newcomer that two jobs wait for is cancelled": Journey(
        Behaviour(iterations=60),
        {**ALL_END, "three": s.CANCELLED},
        (*TAKES_FROM_BOTH, Act(is_in("three", s.INITIALIZING), lambda world: world.api.operator.cancel("three"))),
        generations={"one": 1, "two": 1, "three": 0}, counts=(1, 2), settings=NOTHING_ELSE,
    ),
    "a newcomer that two jobs wait for does not come up": Journey(
        Behaviour(iterations=90),
        {**BOTH_END, "three": s.CANCELLED},
        (
            *FILL_BOTH,
            Act(trains("two", 2), submits("three", [2], Behaviour(iterations=20, never_comes_up=True))),
            Act(waits("three"), ordered(FROM_BOTH)),
            Act(has_tried("three"), lambda world: world.api.operator.cancel("three")),
        ),
        generations={"one": 1, "two": 1, "three": 0}, counts=(1, 2), settings=NOTHING_ELSE,
    ),
    "one of two victims ends while its newcomer initializes": Journey(
        Behaviour(iterations=60),
        ALL_END,
        (
            *TAKES_FROM_BOTH,
            Act(is_in("three", s.INITIALIZING), lambda world: world.machines.end_trainer("two", 0)),
        ),
        generations={"one": 2, "two": 1, "three": 1}, counts=(1, 2), settings=NOTHING_ELSE,
    ),
    "a job is suspended and resumed": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 4), lambda world: world.api.operator.suspend("one")),
            Act(rests("one"), lambda world: world.api.operator.resume("one")),
        ),
        generations={"one": 2}, counts=(4,), settings=NOTHING_ELSE,
    ),
    "a training that never saves is frozen and thawed": Journey(
        Behaviour(iterations=60, freezes=True, ignores_stop=True),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 1), lambda world: world.api.operator.suspend("one")),
            Act(rests_frozen, lambda world: world.api.operator.resume("one")),
        ),
        generations={"one": 2}, counts=(1,), settings=NOTHING_ELSE, more={"elastic": None, "freeze": True},
    ),
    "a training is not frozen and trains on": Journey(
        Behaviour(iterations=90, freezes=True, ignores_stop=True, unfrozen=["it has set up NCCL"]),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 1), lambda world: world.api.operator.suspend("one")),
            Act(lambda world: bool(world.job("one").unfrozen), lambda world: world.api.operator.resume("one")),
        ),
        generations={"one": 1}, counts=(1,), settings=NOTHING_ELSE, more={"elastic": None, "freeze": True},
    ),
    "a frozen training is thawed at the second try": Journey(
        Behaviour(iterations=60, freezes=True, ignores_stop=True, unfrozen=["", "its GPU has no room"]),
        {"one": s.COMPLETED},
        (
            Act(trains("one", 1), lambda world: world.api.operator.suspend("one")),
            Act(rests_frozen, lambda world: world.api.operator.resume("one")),
        ),
        generations={"one": 3}, counts=(1,), settings=NOTHING_ELSE, more={"elastic": None, "freeze": True},
    ),
    "a job that does not start again after a reshape is held and resumed": Journey(
        Behaviour(iterations=120),
        BOTH_END,
        (
            Act(trains("one", 4), submits("two", [2], Behaviour(iterations=80))),
            Act(lambda world: "one" in world.machines.disk, fails_to_start),
            Act(is_held("one"), lambda world: world.api.operator.resume("one")),
        ),
        generations={"one": 7, "two": 1},  # it grows back once two has ended
    ),
    "a job leaves a drained node": Journey(
        Behaviour(iterations=60),
        {"one": s.COMPLETED},
        (Act(trains("one", 4), lambda world: world.api.drains.drain("n1", True)),),
        generations={"one": 2}, counts=(2, 4), nodes=(B,), settings=NOTHING_ELSE,
    ),
    "a target is reached": Journey(
        Behaviour(iterations=400, value=0.9),
        {"one": s.COMPLETED},
        (Act(trains("one", 4), ordered(Finish("one", WHY))),),
        generations={"one": 1}, settings=NOTHING_ELSE,
    ),
}  # fmt: skip


class Watched(World):
    """Also keeps, for each failpoint passed, all that survives a crash there: time, store and machines."""

    def __init__(self, **given: Any) -> None:
        self.survives: list[bytes] = []
        super().__init__(**given)

    def _failpoint(self, name: str) -> None:
        machines = {key: value for key, value in vars(self.machines).items() if key != "_clock"}
        self.survives.append(pickle.dumps((self.clock.time, self.store._tables, machines)))
        super()._failpoint(name)


def travel(journey: Journey, crash_at: int | None = None, kind: type[W] = World) -> W:
    """Run the journey to its end; the coordinator dies as it passes failpoint number `crash_at`."""
    world = kind(config=journey.config, settings=journey.settings, nodes=journey.nodes)
    world.crash_at = crash_at
    acts = list(journey.acts)

    def done(world: World) -> bool:
        while acts and acts[0].when(world):
            world.acted_at = len(world.passed) if world.acted_at is None else world.acted_at
            acts.pop(0).do(world)
        return not acts and bool(world.states()) and world.at_rest()

    own = {"exits": list(journey.first.exits), "unfrozen": list(journey.first.unfrozen)}
    world.submit("one", list(journey.counts), replace(journey.first, **own), **journey.more)
    world.run(done)
    return world


def wrong(journey: Journey, world: World, undisturbed: World) -> list[str]:
    """What a user would complain about."""
    found = list(world.broken())
    if world.states() != journey.ends:
        found.append(f"ends {world.states()}, expected {journey.ends}")
    if any(gpu["state"] != s.IDLE for gpu in world.users.list("gpus")):
        found.append("a GPU is still booked")
    found += [f"{command} was carried out {n} times" for command, n in world.machines.executed.items() if n > 1]
    if extra := set(world.machines.launches) - set(undisturbed.machines.launches):
        found.append(f"launches too many: {sorted(extra)}")
    if any(launch.alive for launch in world.machines.launches.values()):
        found.append("a launch is left")
    return found


@pytest.mark.parametrize("name", JOURNEYS)
def test_undisturbed_each_journey_ends_as_it_should(name: str) -> None:
    journey = JOURNEYS[name]
    world = travel(journey)
    assert wrong(journey, world, world) == [], world.story()
    assert {job: world.job(job).generation for job in journey.ends} == journey.generations, world.story()


def crashes(name: str, undisturbed: World) -> list[int]:
    """Return the positions of the crashes to try.

    With `DEEP`, for which `undisturbed` is Watched, each failpoint at each passing, unless nothing was written or
    done since the one before: that crash leaves the same. Else each at its first passing; journeys that begin
    alike share those before the first act.
    """
    passed = undisturbed.passed
    if isinstance(undisturbed, Watched):
        survives = undisturbed.survives
        return [at for at in range(len(passed)) if at == 0 or survives[at] != survives[at - 1]]
    alike = next(other for other in JOURNEYS if opening(JOURNEYS[other]) == opening(JOURNEYS[name]))
    first = 0 if alike == name else min(undisturbed.acted_at or 0, travel(JOURNEYS[alike]).acted_at or 0)
    return [at for at in range(first, len(passed)) if passed[at] not in passed[:at]]


def opening(journey: Journey) -> tuple[object, ...]:
    """Return all that decides what happens before the first act."""
    first = replace(journey.first, iterations=0)
    return (bool(journey.acts), first, journey.config, journey.counts, journey.nodes, journey.settings, journey.more)


@pytest.mark.drawn
@pytest.mark.parametrize("name", JOURNEYS)
def test_a_coordinator_that_dies_at_any_failpoint_changes_nothing_for_users(name: str) -> None:
    """The journey ends as it does undisturbed, with each command carried out once and no launch too many."""
    journey = JOURNEYS[name]
    undisturbed = travel(journey, kind=Watched if DEEP else World)
    found = {}
    for position in crashes(name, undisturbed):
        point = undisturbed.passed[position]
        world = travel(journey, crash_at=position)
        assert world.crash_at is None, f"{point} (number {position}) was not reached"
        if complaints := wrong(journey, world, undisturbed):
            found[f"{position} {point}"] = complaints
    assert found == {}


def test_the_journeys_pass_every_step_that_there_is() -> None:
    passed = {point for journey in JOURNEYS.values() for point in travel(journey).passed}
    assert {point for point in passed if not point.startswith("within:")} == {
        f"{side}:{name}" for name in NAMES for side in ("before", "after")
    }
    several = ("claim", "free", "occupy", "take back")  # GPUs that are written together
    assert {point for point in passed if point.startswith("within:")} == {f"within:{name}" for name in several}


def test_after_a_move_that_failed_the_next_one_has_a_launch_of_its_own() -> None:
    fails = Act(trains("one", 2), lambda world: setattr(world.machines.of("one"), "launch_failures", 1))
    acts = (fails, Act(trains("one", 2), ordered(TO_B)), Act(stayed, ordered(TO_B)))
    world = travel(Journey(Behaviour(iterations=100), {}, acts, counts=(2,), nodes=(B,), settings=NOTHING_ELSE))
    assert sorted(number for _, number in world.machines.launches) == [1, 2, 3]
    assert (world.job("one").state, world.job("one").doc["moves"], world.broken()) == (s.COMPLETED, 1, [])
