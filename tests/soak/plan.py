"""What happens in a soak, drawn before it begins: which jobs arrive and which kind of process is killed, and when.

The same seed and length give the same plan. Pure.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ARRIVE_UNTIL, KILL_UNTIL = 0.75, 0.9  # shares of the length; afterwards what there is may end
ARRIVAL_S, KILL_S = 14.0, 6.0  # mean pauses
SAVE_EVERY = 10  # steps
KINDS = ("coordinator", "coordinator", "sidecar", "sidecar", "shim", "trainer", "launcher")
COUNTS = ([1], [1, 2], [1, 2, 4], [2, 4])


@dataclass(frozen=True)
class Arrival:
    at_s: float
    name: str
    counts: list[int]
    steps: int


@dataclass(frozen=True)
class Kill:
    at_s: float
    kind: str
    choice: float  # which of the processes of this kind, 0 to 1
    away_s: float  # how long a coordinator stays away


@dataclass(frozen=True)
class Plan:
    arrivals: list[Arrival]
    kills: list[Kill]


def plan(seed: int, seconds: float) -> Plan:
    chance = random.Random(seed)
    arrivals, at_s = [Arrival(0.0, "job0", [1, 2, 4], 300)], 0.0
    while (at_s := at_s + chance.expovariate(1 / ARRIVAL_S)) < ARRIVE_UNTIL * seconds:
        arrivals.append(Arrival(at_s, f"job{len(arrivals)}", chance.choice(COUNTS), chance.randint(40, 300)))
    kills, at_s = [], 5.0
    while (at_s := at_s + chance.expovariate(1 / KILL_S)) < KILL_UNTIL * seconds:
        kills.append(Kill(at_s, chance.choice(KINDS), chance.random(), chance.uniform(0.0, 4.0)))
    return Plan(arrivals, kills)
