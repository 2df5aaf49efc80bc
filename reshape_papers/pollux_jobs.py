"""Models the six applications that Pollux measured: step time, statistical efficiency and total progress.

Built from `traces/` of `pollux/` in the data folder, which Pollux's authors published, by their own model of a job
(OSDI 2021, sections 3 and 5.3): progress per second = steps per second x statistical efficiency. Pure except for
reading the folder. Called by `validation/pollux_figures.py`, `validation/rounds.py` and `traces/pollux_trace.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator

from reshape_papers.published_tables import table

Floats = NDArray[np.float64]
Placement = tuple[int, ...]
"""GPUs on each node."""

PER_NODE = 4  # GPUs
MOST_NODES = 16  # measurements end there


@dataclass(frozen=True)
class EpochMeasurements:
    """One training run at one global batch size; arrays by epoch."""

    progress: Floats
    iteration: Floats
    grad_sqr: Floats
    grad_var: Floats


@dataclass(frozen=True)
class BatchShape:
    """Shape of a batch: `local` samples per GPU and step, and `accumulated` steps without gradient exchange."""

    local: int
    accumulated: int


@dataclass(frozen=True)
class PolluxApplication:
    """One application; batches are global unless called local."""

    name: str
    max_epochs: int
    runs: Mapping[int, EpochMeasurements]  # by batch, ascending
    measured: Mapping[Placement, tuple[Floats, Floats, Floats]]  # local batch, step and sync seconds
    points: Floats  # nodes, GPUs, local batch
    times: Floats  # step and sync seconds at each point
    min_local: int
    max_local: int
    _known: dict[tuple[Placement, int], tuple[float, float]] = field(default_factory=dict, repr=False)
    _best: dict[tuple[Placement, int], tuple[float, BatchShape]] = field(default_factory=dict, repr=False)
    _packed: dict[tuple[int, int], float] = field(default_factory=dict, repr=False)
    _values: dict[tuple[int, int, str], float] = field(default_factory=dict, repr=False)

    @cached_property
    def init_batch(self) -> int:
        return min(self.runs)

    @cached_property
    def max_batch(self) -> int:
        return max(self.runs)

    @cached_property
    def boundaries(self) -> tuple[float, ...]:
        """Return the progress at the end of each epoch, the smallest over all batches."""
        return tuple(min(float(run.progress[e]) for run in self.runs.values()) for e in range(self.max_epochs))

    @cached_property
    def _between(self) -> LinearNDInterpolator:
        return LinearNDInterpolator(self.points, self.times)

    def step_s(self, placement: Placement, local: int) -> tuple[float, float]:
        """Return the seconds of a step, and those of its gradient exchange. ValueError outside the measured range."""
        key = placement, local
        if key not in self._known:
            # Measured once for all rotations of the nodes.
            self._known[key] = self._look_up(min(placement[i:] + placement[:i] for i in range(len(placement))), local)
        return self._known[key]

    def _look_up(self, placement: Placement, local: int) -> tuple[float, float]:
        if placement in self.measured:
            sizes, step, sync = self.measured[placement]
            return float(np.interp(local, sizes, step)), float(np.interp(local, sizes, sync))
        step_s, sync_s = self._between([min(len(placement), MOST_NODES), sum(placement), local])[0]
        if math.isnan(step_s):
            raise ValueError(f"{self.name} was not measured near {placement} with {local} samples per GPU.")
        return float(step_s), float(sync_s)

    def shape(self, batch: float, gpus: int) -> BatchShape:
        """Return the batch shape on `gpus`; a single GPU accumulates, to measure gradient noise."""
        local = _up(batch / gpus)
        accumulated = _up(local / self.max_local) - 1
        if gpus == 1 and batch > self.init_batch:
            accumulated = max(1, accumulated)
        each = _up(local / (accumulated + 1))
        return BatchShape(min(each, self.max_batch // (gpus * (accumulated + 1))), accumulated)

    def seconds(self, placement: Placement, shape: BatchShape) -> float:
        """Return the seconds of one model update."""
        step, sync = self.step_s(placement, shape.local)
        return step + (step - sync) * shape.accumulated

    def packed_s(self, batch: int, gpus: int) -> float:
        """Return the seconds of one update with the GPUs packed onto few nodes."""
        key = batch, gpus
        if key not in self._packed:
            self._packed[key] = self.seconds(packed(gpus), self.shape(batch, gpus))
        return self._packed[key]

    def gain(self, batch: int, epoch: int) -> float:
        """Return the progress of one update at this batch, in updates at the smallest one."""
        sqr, var = self._at(batch, epoch, "grad_sqr"), self._at(batch, epoch, "grad_var")
        return (var + sqr) / (var / (batch / self.init_batch) + sqr)

    def goodput(self, placement: Placement, shape: BatchShape, epoch: int) -> float:
        """Return the progress per second."""
        batch = sum(placement) * shape.local * (shape.accumulated + 1)
        return self.gain(batch, epoch) / self.seconds(placement, shape)

    def best(self, placement: Placement, epoch: int) -> tuple[float, BatchShape]:
        """Return the largest progress per second and its batch, of 50 batches as Pollux samples them (section 4.1)."""
        key = placement, epoch
        if key not in self._best:
            gpus = sum(placement)
            sizes = np.geomspace(max(self.init_batch, self.min_local * gpus), self.max_batch, 50)
            shapes = dict.fromkeys(self.shape(float(size), gpus) for size in sizes)
            usable = [shape for shape in shapes if self.min_local <= shape.local <= self.max_local]
            self._best[key] = max(((self.goodput(placement, s, epoch), s) for s in usable), key=lambda way: way[0])
        return self._best[key]

    def updates(self, batch: int) -> float:
        """Return the updates of the whole training."""
        return self._at(batch, self.max_epochs - 1, "iteration")

    def updates_left(self, batch: int, epoch: int) -> float:
        """Return the updates until the last epoch, which Optimus+Oracle knows; 1 in that epoch."""
        last = self.max_epochs - 1
        return 1.0 if last <= epoch else self._at(batch, last, "iteration") - self._at(batch, epoch, "iteration")

    def _at(self, batch: int, epoch: int, what: str) -> float:
        """Interpolate between the nearest measured batches."""
        key = batch, epoch, what
        if key not in self._values:
            values = [float(getattr(run, what)[epoch]) for run in self.runs.values()]
            self._values[key] = float(np.interp(batch, list(self.runs), values))
        return self._values[key]


def packed(gpus: int) -> Placement:
    """Return GPUs per node on as few nodes as possible, the remainder last."""
    full, rest = divmod(gpus, PER_NODE)
    return (PER_NODE,) * full + ((rest,) if rest else ())


def read(data: Path) -> dict[str, PolluxApplication]:
    """Read all applications of `pollux/`, by name. Raises `NoWorkload` if a file is missing."""
    return {row["application"]: _application(data, row) for row in table(data, "pollux/applications.csv")}


def _application(data: Path, row: Mapping[str, str]) -> PolluxApplication:
    home = f"pollux/traces/{row['application']}"
    placed = table(data, f"{home}/placements.csv")
    spread = table(data, f"{home}/scalability.csv")
    by_placement: dict[Placement, list[tuple[float, float, float]]] = defaultdict(list)
    for line in placed:
        times = float(line["local_bsz"]), float(line["step_time"]), float(line["sync_time"])
        by_placement[tuple(map(int, line["placement"]))].append(times)
    points, times_at = _points(by_placement, spread)
    batches = sorted(int(path.stem.split("-")[1]) for path in (data / home).glob("validation-*.csv"))
    local = [size for rows in by_placement.values() for size, _, _ in rows]
    return PolluxApplication(
        name=row["application"],
        max_epochs=int(row["max_epochs"]),
        runs={batch: _epochs(table(data, f"{home}/validation-{batch}.csv")) for batch in batches},
        measured={at: _columns(rows) for at, rows in by_placement.items()},
        points=points,
        times=times_at,
        min_local=int(min(local)),
        max_local=int(row["max_local_bsz_override"] or max(local)),
    )


def _points(
    by_placement: Mapping[Placement, list[tuple[float, float, float]]], spread: Sequence[dict[str, str]]
) -> tuple[Floats, Floats]:
    """Average measurements with the same nodes, GPUs and batch."""
    same: dict[tuple[float, float, float], list[tuple[float, float]]] = defaultdict(list)
    for placement, rows in by_placement.items():
        for local, step, sync in rows:
            same[len(placement), sum(placement), local].append((step, sync))
    keys = sorted(same)
    means = [tuple(math.fsum(column) / len(column) for column in zip(*same[key], strict=True)) for key in keys]
    more = [tuple(float(line[name]) for name in ("num_nodes", "num_replicas", "local_bsz")) for line in spread]
    more_times = [(float(line["step_time"]), float(line["sync_time"])) for line in spread]
    return np.array([*keys, *more]), np.array([*means, *more_times])


def _columns(rows: list[tuple[float, float, float]]) -> tuple[Floats, Floats, Floats]:
    sizes, step, sync = np.array(sorted(rows)).T
    return sizes, step, sync


def _epochs(lines: Sequence[dict[str, str]]) -> EpochMeasurements:
    return EpochMeasurements(
        *(np.array([float(line[n]) for line in lines]) for n in EpochMeasurements.__dataclass_fields__)
    )


def _up(number: float) -> int:
    """Round up, ignoring rounding errors."""
    return math.ceil(number - 1e-8)
