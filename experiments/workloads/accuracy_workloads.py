"""Builds the accuracy targets of Job Set Two (W4) from measured Top-5 curves.

SideCar scheduling's paper prints no accuracy curve. Those of ResNets on ImageNet are in
`curves_mxnet_resnet/batches.csv.gz` of the folder that RESHAPE_DATA names: Top-5 in training, about fifty times an
epoch. Called by `sidecar_workloads.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from adaptive_scheduler.profiles.convergence import Point
from experiments.published_tables import table
from simulator.accuracy_targets import AccuracyTarget

CURVES = "curves_mxnet_resnet/batches.csv.gz"
IMAGENET = 1_281_167  # training samples

LOGS: Mapping[str, tuple[str, int]] = {
    "0": ("resnet-18", 256),
    "1": ("resnet-34", 128),
    "2": ("resnet-50", 128),
    "3": ("resnet-34", 64),
    "4": ("resnet-18-512batch", 512),
    "5": ("resnet-18", 256),
}
"""By type of Job Set Two (1.10): the log whose curve it has, and its own batch. The logs' batches are 256 or 512."""

PROFILED = 0.1
"""Share of the epoch that other jobs of the type have shown the scheduler before; invented."""

MOST_EPOCHS = 3
"""Epochs after which a job ends in any case; invented. It also holds down a prediction that went too far."""

SOURCES = (
    "Top-5 over the first epoch of types 0 and 1: logs of ResNet-18 and ResNet-34 (curves_mxnet_resnet), the latter "
    "with a batch of 512 for 128",
)
INVENTED = (
    "Top-5 of InceptionV3, VGG16, GoogLeNet and AlexNet: logs of ResNet-50, -34, -18 and -18 stand in",
    f"the scheduler knows the first {PROFILED:.0%} of each type's curve before; every job of a type has the same curve",
    f"a job may train for {MOST_EPOCHS} epochs at most",
)


@cache
def targets(data: Path | None) -> Mapping[str, AccuracyTarget]:
    """Return the target by job type: the Top-5 at the end of the first epoch. `NoWorkload` if curves are missing."""
    logs = _first_epochs(data)
    return {job_type: _aim(logs[log], math.ceil(IMAGENET / batch)) for job_type, (log, batch) in LOGS.items()}


def _aim(shares: tuple[Point, ...], epoch: int) -> AccuracyTarget:
    """Return the target at the end of an epoch of `epoch` iterations. `shares`: Top-5 by share of the epoch."""
    curve = tuple((share * epoch, top5) for share, top5 in shares)
    known = tuple(point for point in curve if point[0] <= PROFILED * epoch)
    return AccuracyTarget(curve[-1][1], curve, known, float(epoch), float(MOST_EPOCHS * epoch))


def _first_epochs(data: Path | None) -> dict[str, tuple[Point, ...]]:
    """Return the curves of the first epoch; its last value, logged some batches earlier, counts as the epoch's end."""
    logs: dict[str, list[Point]] = {}
    for row in (
        row for row in table(data, CURVES, "W4 needs measured curves") if row["epoch"] == "0" and row["train_top5"]
    ):
        logs.setdefault(row["log"], []).append((float(row["batch"]), float(row["train_top5"])))
    return {log: tuple((k / points[-1][0], top5) for k, top5 in points) for log, points in logs.items()}
