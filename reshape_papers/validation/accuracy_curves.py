"""Validates the convergence fit (`adaptive_scheduler/profiles/convergence.py`) on measured accuracy curves.

A run's target is a share of its best accuracy. From the first points before it, the fit predicts when it will be
reached; capped at the run's own length, as a job's maximum caps it. Each row is the median over all runs in a folder.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptive_scheduler.profiles.convergence import FEWEST, Point, iterations_to
from reshape_papers.published_tables import table
from reshape_papers.validation.rows import ComparedFigure

TARGET = 0.95
"""Share of the best accuracy; fixed before the first fit."""

SEEN = (0.2, 0.4, 0.6)
"""Shares of the points before the target that the fit is given."""


@dataclass(frozen=True)
class CurveFolder:
    """The file of a folder's curves and the columns with run, position and accuracy."""

    file: str
    run: tuple[str, ...]
    k: str
    value: str
    only: Mapping[str, str]


FOLDERS = (
    CurveFolder("curves_mxnet_resnet/epochs.csv", ("log",), "epoch", "val_top5", {"dataset": "imagenet"}),
    CurveFolder("curves_mlperf_resnet50/eval_accuracy.csv", ("round", "system", "run"), "epoch", "val_top1", {}),
    CurveFolder("curves_caffe_resnet_cifar10/curves.csv.gz", ("run",), "iteration", "top1", {"phase": "test"}),
    CurveFolder("curves_voc_classification/curves.csv", ("log", "model"), "epoch", "top1", {"phase": "test"}),
)


def rows(data: Path) -> Iterator[ComparedFigure]:
    """Yield one row for each of four folders and three shares."""
    for folder in FOLDERS:
        runs = _runs(folder, table(data, folder.file))
        for seen in SEEN:
            yield _row(folder, runs, seen)


def predict(run: Sequence[Point], seen: float) -> tuple[float, float, bool]:
    """Return measured position of the target, predicted position, and True if the fit saw any progress."""
    place = _place(run)
    shown = run[: max(FEWEST, round(seen * place))]
    said = iterations_to(shown, TARGET * max(value for _, value in run))
    last = run[-1][0]
    ours = last if said is None else min(max(float(said), shown[-1][0]), last)
    return run[place][0], ours, said is not None


def _place(run: Sequence[Point]) -> int:
    """Return the index of the first point that reaches the target."""
    target = TARGET * max(value for _, value in run)
    return next(place for place, (_, value) in enumerate(run) if value >= target)


def _row(folder: CurveFolder, runs: Sequence[Sequence[Point]], seen: float) -> ComparedFigure:
    results = [predict(run, seen) for run in runs]
    errors = [ours / measured - 1.0 for measured, ours, _ in results]
    blind = sum(not saw for _, _, saw in results)
    reason = (
        f"over {len(results)} runs: median error {statistics.median(errors):+.0%}, median of its size "
        f"{statistics.median(map(abs, errors)):.0%}, worst {max(errors, key=abs):+.0%}; no progress visible in {blind}"
    )
    return ComparedFigure(
        f"curves.{Path(folder.file).parent.name.removeprefix('curves_')}.from_{seen:.0%}.{folder.k}",
        f"{folder.file}: {folder.value}",
        statistics.median(measured for measured, _, _ in results),
        statistics.median(ours for _, ours, _ in results),
        reason=reason,
    )


def _runs(folder: CurveFolder, rows: Sequence[Mapping[str, str]]) -> list[list[Point]]:
    """Return the runs by ascending position, epochs counted from 1, without those at their target from the start."""
    runs: dict[tuple[str, ...], list[Point]] = {}
    for row in rows:
        if row[folder.value] and all(row[column] == value for column, value in folder.only.items()):
            runs.setdefault(tuple(row[column] for column in folder.run), []).append(
                (float(row[folder.k]), float(row[folder.value]))
            )
    ordered = [sorted(runs[name]) for name in sorted(runs)]
    counted = [[(k + (run[0][0] == 0 and folder.k == "epoch"), value) for k, value in run] for run in ordered]
    return [run for run in counted if _place(run) > FEWEST]
