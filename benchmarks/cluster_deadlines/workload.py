"""The stream of jobs of the six runs: the Slaml paper's MNIST job of three tasks in PyTorch, drawn from a seed. Pure.

Tasks, replicas and parameters are those of the paper's Listing 1, run by `examples/slaml/mnist.py`. It says neither how
many jobs there were nor how they arrived, nor what its GPUs stood for: sizes, cores, arrivals and targets are ours. The
sizes are told apart by the cores that their tasks ask for, as the paper's history is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Doc = dict[str, Any]

JOB = "mnist"
TASKS = (("prepare", "data", 1), ("extract", "feature", 3), ("train", "model", 3))
"""Of each task what the script calls it, its type and its replicas."""
PARAMS = ((64, 14), (128, 56), (256, 14))
"""Batch size and epochs of each replica of the last task."""
RATE = 0.0001
SCALE = 4.0
"""With the paper's epochs a job on digits takes 13 s alone, and containers that start take 10 s of them: what would be
compared is how long they take, and a sidecar has two more."""
# A share of these epochs, and millicores of one replica of each task.
# With our sidecar's 10 as many fit as without: a size that divides the room would lose a quarter of it by rounding.
SIZES = {"small": (0.25, (20, 40, 70)), "medium": (0.5, (25, 50, 90)), "large": (1.0, (30, 60, 120))}
LIMIT = 200
"""Millicores that a replica may use: without a limit those that run share all that the dummies hold by name only, each
slows down the others, and how long one takes says nothing of when the next may begin."""
EVERY = 0.15  # of what a job takes alone: between two arrivals, in the mean
SLACK = (1.5, 4.0)  # a target is so many times what all tasks take alone
MEMORY = 64 * 2**20

Alone = Mapping[str, Sequence[float]]
"""Seconds that each task of each size takes when nothing else runs."""


@dataclass(frozen=True)
class MnistTask:
    """`params`: those of each replica, as a Slaml has them; none but of the training."""

    name: str
    type: str
    replicas: int
    millicores: int
    params: Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class MnistJob:
    """`arrives_s` after the run begins; all of it shall be done `target_s` after that."""

    name: str
    size: str
    arrives_s: float = 0.0
    target_s: int = 0
    scale: float = 1.0  # times the epochs

    @property
    def tasks(self) -> tuple[MnistTask, ...]:
        share, millicores = SIZES[self.size]
        trains = [
            {"batch-size": batch, "epochs": max(1, round(epochs * share * self.scale)), "lr": RATE}
            for batch, epochs in PARAMS
        ]
        of_each = ((), (), trains)
        return tuple(MnistTask(*task, m, p) for task, m, p in zip(TASKS, millicores, of_each, strict=True))


def drawn(seed: int, count: int, scale: float, alone: Alone) -> list[MnistJob]:
    """The same sizes for every run of one seed; the same jobs where tasks take as long."""
    chance, at, jobs = random.Random(seed), 0.0, list[MnistJob]()
    every_s = EVERY * sum(map(sum, alone.values())) / len(alone)
    for number in range(count):
        size = chance.choice(list(SIZES))
        target = round(sum(alone[size]) * chance.uniform(*SLACK))
        jobs.append(MnistJob(f"{JOB}-{number}", size, round(at, 1), target, scale))
        at += chance.expovariate(1 / every_s)
    return jobs


def history(alone: Alone) -> list[Doc]:
    """Return the known durations of earlier tasks, as rows of `observations`."""
    rows = [(m, s) for size, seconds in alone.items() for m, s in zip(SIZES[size][1], seconds, strict=True)]
    return [{"cores": m / 1000, "memory": MEMORY, "gpus": 0, "execution_s": s} for m, s in rows]
