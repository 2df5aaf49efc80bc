"""Counts the work that a generation repeated, as its output shows.

Promise: only reports of the same kind are compared: the first one in this generation with the last one before it; if it
is no further, the work between them was repeated. A count that goes back within one generation does not count the whole
training and says nothing. Pure. Fed by `progress.py`.

Work after a generation's last report is unknown, so the true loss may be higher by less than the distance between two
reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.output.formats import HF_EVALUATION, KERAS_BAR, ProgressLine
from sidecar.protocol import Lost

MOST_KINDS = 64  # more are not reports of a training


@dataclass
class _Series:
    """Reports of one kind."""

    iterations: bool  # whether iterations are counted, else epochs
    last: float = 0.0  # the newest
    epoch: float = 0.0  # reached by then
    distance: float | None = None  # between two, at least
    repeats: bool = False  # whether one count was reported more than once
    comes: bool = False  # whether it occurred in this generation
    before: bool = False  # whether it occurred in an earlier one
    falls: bool = False
    ended: bool = False  # whether a hook reported the last step of a training: what follows is another one


class LostWorkCounter:
    """Compares reports across generations.

    `lost`: the current generation's; None while nothing can be compared, or the generation is unknown.
    """

    def __init__(self) -> None:
        self.lost: Lost | None = None
        self._series: dict[str, _Series] = {}
        self._generation: int | None = None

    def new_generation(self, generation: int | None) -> None:
        """Begin another trainer's reports. None: where its output begins is unknown."""
        self.lost, self._generation = None, generation
        for series in self._series.values():
            series.before, series.comes = series.before or series.comes, False

    def begin_anew(self) -> None:
        """Forget all counts: the lines they came from did not count the training."""
        self.lost = None
        self._series.clear()

    def report(self, report: ProgressLine) -> None:
        """Take one line, in output order."""
        given = report.epoch if report.step is None else report.step
        if given is None or report.kind == HF_EVALUATION:  # an interrupted evaluation is repeated, and trains nothing
            return
        series = self._series.get(report.kind)
        if series is None:
            if len(self._series) >= MOST_KINDS:
                return
            series = self._series[report.kind] = _Series(report.step is not None)
        elif series.iterations != (report.step is not None):
            return  # the same kind of line, but another counter
        if series.comes:
            self._goes_on(series, given)
        elif series.before and not series.falls and not series.ended:
            self._compare(series, given, report)
        series.ended = report.by_hook and report.step is not None and report.step == report.total
        series.last, series.epoch, series.comes = given, report.epoch or 0.0, True

    def _goes_on(self, series: _Series, given: float) -> None:
        series.falls = series.falls or given < series.last
        series.repeats = series.repeats or given == series.last
        if given > series.last:
            distance = given - series.last
            series.distance = distance if series.distance is None else min(series.distance, distance)

    def _compare(self, series: _Series, given: float, report: ProgressLine) -> None:
        if self._generation is None:
            return
        known = self.lost or Lost(generation=self._generation)
        again = series.last - given + self._covered(series, given, report) if given <= series.last else 0.0
        epochs = max(0.0, series.epoch - (report.epoch or 0.0)) if again > 0 else 0.0
        if series.iterations:
            iterations, epochs = max(known.iterations, round(again)), max(known.epochs, epochs)
        else:
            iterations, epochs = known.iterations, max(known.epochs, again)
        self.lost = Lost(iterations=iterations, epochs=round(epochs, 3), generation=self._generation)

    @staticmethod
    def _covered(series: _Series, given: float, report: ProgressLine) -> float:
        """Return the work that this report itself covers; none if it is printed before the work."""
        # Keras prints an epoch's bar once more at its end, in the next generation if it was stopped before that.
        closes_epoch = report.kind == KERAS_BAR and (report.epoch or 0.5).is_integer() and given == series.last
        if report.begins or closes_epoch or (series.repeats and not series.iterations):
            return 0.0
        return min(given, 1.0 if series.distance is None else series.distance)
