"""Gives the workloads of SpeCon and FlowCon the losses and the work of real trainings of the zoo.

`reshape record` measured them, each training alone; the JSON file beside this one says on which machine and when.
Promise: jobs, models, arrivals and nodes of a workload stay as drawn; only work and losses are replaced. Called by both
systems' workloads.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simulator.scenario import CpuWork, Curve, Submission, Workload

FILE = Path(__file__).with_name("recorded_trainings.json")
PLATFORMS = {"P": "torch", "T": "keras"}
MODELS = {
    "VAE": "vae", "GRU": "gru", "RNN": "rnn", "Bi-RNN": "birnn", "Dynamic RNN": "dynamic-rnn", "MNIST": "lenet",
    "LSTM-CFC": "lstm", "LSTM-CRF": "lstm",
}  # fmt: skip
STEP = 0.25  # core-seconds between two values of a loss
LOSSES = "the loss and the relative work of each model: recorded trainings of examples/zoo"
STRETCHED = "the factor that stretches all works alike, so that their mean is that of the works fitted to the paper"
CHOSEN = "how many epochs each model trains, of which its work follows"


@cache
def trainings() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return what was recorded, by model and framework of the zoo."""
    return {(row["model"], row["framework"]): row for row in json.loads(FILE.read_text())}


def recording_of(kind: str) -> Mapping[str, Any]:
    """Return the recording of a model as the papers name it, such as VAE(P)."""
    name, _, platform = kind.rstrip(")").partition("(")
    return trainings()[MODELS[name], PLATFORMS[platform]]


def trained(workload: Workload, fitted_core_s: Mapping[str, float]) -> Workload:
    """Return the workload with recorded work and losses.

    `fitted_core_s`: the work by model, in core-seconds; the recorded works of these models are scaled to its mean.
    """
    factor = math.fsum(fitted_core_s.values()) / math.fsum(recording_of(kind)["cpu_s"] for kind in fitted_core_s)
    jobs = tuple(_recorded(job, factor) for job in workload.jobs)
    invented = (CHOSEN, f"one value of the loss every {STEP} core-seconds")
    return replace(workload, jobs=jobs, fitted=(LOSSES, STRETCHED), invented=invented)


def _recorded(job: Submission, factor: float) -> Submission:
    assert job.cpu is not None
    kind = job.cpu.kind
    work = CpuWork(recording_of(kind)["cpu_s"] * factor, 1.0, loss(kind), kind)
    return replace(job, iterations=work.core_s / STEP, cpu=work)


def loss(kind: str) -> Curve:
    """Return the loss of a model by the share of its work done."""
    return between(recording_of(kind)["loss"])


def between(losses: Sequence[float]) -> Curve:
    """Return the loss by share of work: each of `losses` in the middle of its equal part, interpolated linearly."""
    middles = [(number + 0.5) / len(losses) for number in range(len(losses))]

    def curve(x: float) -> float:
        after = bisect_right(middles, x)
        if after in (0, len(losses)):
            return losses[min(after, len(losses) - 1)]
        share = (x - middles[after - 1]) * len(losses)
        return losses[after - 1] + share * (losses[after] - losses[after - 1])

    return curve
