"""Builds the accuracy targets of Job Set Two (W4) from Top-5 curves.

SideCar scheduling's paper prints four points of one curve in its Table V, which ship with the product: the curve here
is their power law. If RESHAPE_DATA names a folder with `curves_mxnet_resnet/batches.csv.gz`, Top-5 values that others
logged of ResNets on ImageNet, about fifty times per epoch, replace it. Called by `sidecar_workloads.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import linear_regression

from adaptive_scheduler.profiles.convergence import Point
from coordinator.stores.bootstrap import shipped
from reshape_papers.published_tables import table
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

POINTS = 50  # of a curve, per epoch
BATCH = 256  # for the curve of Table V; its job type is not one of Job Set Two (G20), so this is invented


def sources(data: Path | None) -> tuple[str, ...]:
    """Return the sources of the curves."""
    if data is None:
        return ("Top-5 by iteration: the power law through the four points of Table V, the same for every type",)
    return (
        "Top-5 over the first epoch of types 0 and 1: logs of ResNet-18 and ResNet-34 (curves_mxnet_resnet), the "
        "latter with a batch of 512 for 128",
    )


def invented(data: Path | None) -> tuple[str, ...]:
    """Return which facts about the curves nobody has published."""
    curves = (
        f"Table V's batch is {BATCH}; Top-5 goes on as its first 20 iterations"
        if data is None
        else "Top-5 of InceptionV3, VGG16, GoogLeNet and AlexNet: logs of ResNet-50, -34, -18 and -18 stand in"
    )
    return (
        curves,
        f"the scheduler knows the first {PROFILED:.0%} of each type's curve before; all jobs of a type have the same",
        f"a job may train for {MOST_EPOCHS} epochs at most; type 6 ends after its epochs",
    )


@cache
def targets(data: Path | None) -> Mapping[str, AccuracyTarget]:
    """Return the target by job type: the Top-5 at the end of the first epoch.

    `data`: folder with measured curves; None: those of Table V. Raises `NoWorkload` if it lacks them.
    """
    if data is None:
        return {job_type: _aim(_of_table_v(), math.ceil(IMAGENET / batch)) for job_type, (_, batch) in LOGS.items()}
    logs = _first_epochs(data)
    return {job_type: _aim(logs[log], math.ceil(IMAGENET / batch)) for job_type, (log, batch) in LOGS.items()}


def _aim(shares: tuple[Point, ...], epoch: int) -> AccuracyTarget:
    """Return the target at the end of an epoch of `epoch` iterations. `shares`: Top-5 by share of the epoch."""
    curve = tuple((share * epoch, top5) for share, top5 in shares)
    known = tuple(point for point in curve if point[0] <= PROFILED * epoch)
    return AccuracyTarget(curve[-1][1], curve, known, float(epoch), float(MOST_EPOCHS * epoch))


def _of_table_v() -> tuple[Point, ...]:
    """Return Top-5 by share of an epoch: a·k^b by least squares on the logarithms of Table V's points."""
    points = [(math.log(row["iterations"]), math.log(row["top5"])) for row in shipped("accuracy_profiles")]
    b, a = linear_regression(*zip(*points, strict=True))
    epoch = IMAGENET / BATCH
    return tuple((i / POINTS, math.exp(a) * (i / POINTS * epoch) ** b) for i in range(1, POINTS + 1))


def _first_epochs(data: Path | None) -> dict[str, tuple[Point, ...]]:
    """Return the curves of the first epoch; its last value, logged some batches earlier, counts as the epoch's end."""
    logs: dict[str, list[Point]] = {}
    for row in (
        row for row in table(data, CURVES, "W4 needs measured curves") if row["epoch"] == "0" and row["train_top5"]
    ):
        logs.setdefault(row["log"], []).append((float(row["batch"]), float(row["train_top5"])))
    return {log: tuple((k / points[-1][0], top5) for k, top5 in points) for log, points in logs.items()}
