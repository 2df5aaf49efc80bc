"""What happens in a soak, drawn before it begins: which jobs arrive, which processes are killed, what else goes wrong.

The same seed and length give the same plan. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ARRIVE_UNTIL, FAULTS_UNTIL = 0.75, 0.9  # shares of the length; afterwards what there is may end
ARRIVAL_S, KILL_S, OTHER_S = 14.0, 6.0, 5.0  # mean pauses
SAVE_EVERY = 10  # steps
SLOW_EVERY = 40  # steps between two slow saves or evaluations
SLOW_S = (20.0, 40.0)  # how long one of them takes
COUNTS = ([1], [1, 2], [1, 2, 4], [2, 4])
ALONE_S = 45.0  # for which those that arrive first are alone
# Once the first jobs train.
KILLS_FROM_S = 9.0
OTHERS_FROM_S = 15.0
NO_STEP_S = (8.0, 100.0)  # after which a training counts as hung: within slow saves and evaluations, or never

# Each kind comes once before one comes again, so that a short soak has all of them.
JOBS = ("quick", "on a GPU", "on a GPU", "slow save", "slow evaluation", "a pair")
KILLS = ("coordinator", "coordinator", "sidecar", "sidecar", "shim", "trainer", "launcher", "holder")
OTHERS = (
    "hung trainer", "hung trainer", "hung sidecar", "hung shim", "hung coordinator", "clock", "clock",
    "connections to coordinator", "connections to sidecar", "foreign process", "foreign process", "foreign lock",
    "foreign lock", "wish", "wish", "wish", "wish",
)  # fmt: skip
DAY_S = 86_400.0
JUMPS_S = (-40 * DAY_S, -DAY_S / 2, -3_600.0, 0.0, 0.0, 3_600.0, DAY_S / 2, 2 * DAY_S, 40 * DAY_S, 40 * DAY_S)


@dataclass(frozen=True)
class Arrival:
    at_s: float
    name: str
    counts: list[int]
    steps: int
    save_every: int = SAVE_EVERY
    save_s: float = 0.0  # how long a save takes
    evaluation_s: float = 0.0  # how long an evaluation takes, each `SLOW_EVERY` steps; 0: there is none
    on_gpu: bool = False  # whether its state is in the memory of its first GPU


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    choice: float  # which of the processes, GPUs or jumps of this kind, 0 to 1
    for_s: float  # how long a coordinator stays away, a process hangs, a GPU is used, connections are held


@dataclass(frozen=True)
class Plan:
    arrivals: list[Arrival]
    kills: list[Fault]
    others: list[Fault]
    no_step_s: float


def plan(seed: int, seconds: float) -> Plan:
    chance = random.Random(seed)
    arrivals = _needs_several_victims(chance)
    at_s = ALONE_S
    jobs = _dealt(chance, JOBS)
    while (at_s := at_s + chance.expovariate(1 / ARRIVAL_S)) < ARRIVE_UNTIL * seconds:
        arrivals.append(_arrival(chance, at_s, f"job{len(arrivals)}", next(jobs)))
    kills = list(_faults(chance, KILLS, KILL_S, (0.0, 4.0), (KILLS_FROM_S, seconds)))
    others = list(_faults(chance, OTHERS, OTHER_S, (2.0, 20.0), (OTHERS_FROM_S, seconds)))
    return Plan(arrivals, kills, others, chance.choice(NO_STEP_S))


def _needs_several_victims(chance: random.Random) -> list[Arrival]:
    """Return two jobs that fill the machine, and one that starts only if both give it a GPU.

    It is long enough that all are done sooner than if it waited, and short enough that both outlast it.
    """
    victims = [Arrival(0.0, f"job{number}", [1, 2], 600, on_gpu=number == 0) for number in range(2)]
    return [*victims, Arrival(chance.uniform(8.0, 12.0), "job2", [2], 160)]


def _arrival(chance: random.Random, at_s: float, name: str, kind: str) -> Arrival:
    if kind == "a pair":  # two jobs with two GPUs each have to give one, as soon as both run and can stop
        return Arrival(at_s, name, [2], chance.randint(40, 100))
    counts = chance.choice(COUNTS)
    if kind in ("quick", "on a GPU"):
        return Arrival(at_s, name, counts, chance.randint(40, 300), on_gpu=kind == "on a GPU")
    steps, slow_s = chance.randint(40, 120), chance.uniform(*SLOW_S)
    if kind == "slow save":
        return Arrival(at_s, name, counts, steps, save_every=SLOW_EVERY, save_s=slow_s)
    return Arrival(at_s, name, counts, steps, evaluation_s=slow_s)


def _faults(
    chance: random.Random,
    kinds: Sequence[str],
    pause_s: float,
    for_s: tuple[float, float],
    between_s: tuple[float, float],
) -> Iterator[Fault]:
    at_s, seconds = between_s
    dealt = _dealt(chance, kinds)
    while (at_s := at_s + chance.expovariate(1 / pause_s)) < FAULTS_UNTIL * seconds:
        yield Fault(at_s, next(dealt), chance.random(), chance.uniform(*for_s))


def _dealt(chance: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(kinds, len(kinds))
