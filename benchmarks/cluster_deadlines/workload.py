"""The stream of jobs of the six runs: three tasks each, one after another, drawn from a seed. Pure.

The paper says neither how many jobs there were nor how they arrived: sizes, times and targets are ours. The sizes are
told apart by the cores that their tasks ask for, as the paper's history is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

Doc = dict[str, Any]

JOB = "mnist"
TASKS, REPLICAS = ("data", "feature", "model"), (1, 2, 2)  # the paper's job has 1, 3 and 3
# Millicores of one replica of each task, and the seconds that it trains.
SIZES = {
    "small": ((40, 50, 60), (3, 5, 8)),
    "medium": ((70, 80, 90), (5, 9, 14)),
    "large": ((100, 110, 120), (8, 15, 24)),
}
EVERY_S = 4.0  # between two arrivals, in the mean
SLACK = (1.5, 4.0)  # a target is so many times what all tasks take alone
MEMORY = 16 * 2**20


@dataclass(frozen=True)
class MnistTask:
    name: str
    replicas: int
    millicores: int
    seconds: int


@dataclass(frozen=True)
class MnistJob:
    """`arrives_s` after the run begins; all of it shall be done `target_s` after that."""

    name: str
    size: str
    arrives_s: float
    target_s: int
    stretch: int = 1  # how many times as long everything takes

    @property
    def tasks(self) -> tuple[MnistTask, ...]:
        millicores, seconds = SIZES[self.size]
        return tuple(map(MnistTask, TASKS, REPLICAS, millicores, (s * self.stretch for s in seconds)))


def drawn(seed: int, count: int, stretch: int = 1) -> list[MnistJob]:
    """The same for every run of one seed."""
    chance, at, jobs = random.Random(seed), 0.0, list[MnistJob]()
    for number in range(count):
        size = chance.choice(list(SIZES))
        target = round(stretch * sum(SIZES[size][1]) * chance.uniform(*SLACK))
        jobs.append(MnistJob(f"{JOB}-{number}", size, round(at, 1), target, stretch))
        at += stretch * chance.expovariate(1 / EVERY_S)
    return jobs


def history(stretch: int = 1) -> list[Doc]:
    """Return the known durations of earlier tasks, as rows of `observations`."""
    rows = [(m, s * stretch) for each in SIZES.values() for m, s in zip(*each, strict=True)]
    return [{"cores": m / 1000, "memory": MEMORY, "gpus": 0, "execution_s": s} for m, s in rows]
