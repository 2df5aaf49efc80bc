"""Counts the work that a generation repeated, as its output shows.

Promise: only reports of one kind are compared. The first report of a kind in this generation is compared with the last
one of that kind before it; if it is no further, what lies between was repeated. A count that goes back within one
generation is no count of the whole training and tells nothing. Pure. Fed by `progress.py`.

Work after a generation's last report is not known, so the true loss may be higher by less than the distance between
two reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from sidecar.output.formats import HF_EVALUATION, KERAS_BAR, ProgressLine
from sidecar.protocol import Lost

MOST_KINDS = 64  # more are no reports of a training


@dataclass
class _Series:
    """Reports of one kind."""

    iterations: bool  # whether iterations are counted, else epochs
    last: float = 0.0  # the newest
    epoch: float = 0.0  # reached by then
    distance: float | None = None  # between two, at least
    repeats: bool = False  # whether one count was reported more than once
    comes: bool = False  # whether it was reported in this generation
    before: bool = False  # whether it was in an earlier one
    falls: bool = False


class LostWorkCounter:
    """`lost`: of the present generation; None while nothing can be compared, or the generation is not known."""

    def __init__(self) -> None:
        self.lost: Lost | None = None
        self._series: dict[str, _Series] = {}
        self._generation: int | None = None

    def new_generation(self, generation: int | None) -> None:
        """Begin the reports of another trainer. None: where its output begins is not known."""
        self.lost, self._generation = None, generation
        for series in self._series.values():
            series.before, series.comes = series.before or series.comes, False

    def begin_anew(self) -> None:
        """Forget what was counted: the lines that told it were no count of the training."""
        self.lost = None
        self._series.clear()

    def report(self, report: ProgressLine) -> None:
        """Take one line, in the order of the output."""
        given = report.epoch if report.step is None else report.step
        if given is None or report.kind == HF_EVALUATION:  # one that a stop broke off is done again, and trains nothing
            return
        series = self._series.get(report.kind)
        if series is None:
            if len(self._series) >= MOST_KINDS:
                return
            series = self._series[report.kind] = _Series(report.step is not None)
        elif series.iterations != (report.step is not None):
            return  # the same kind of line, but another count
        if series.comes:
            self._goes_on(series, given)
        elif series.before and not series.falls:
            self._compare(series, given, report)
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
        """Return the work that this report covers itself; none if it is printed before the work."""
        # Keras prints the bar of an epoch once more at its end, in the next generation if it was stopped before that.
        closes_epoch = report.kind == KERAS_BAR and (report.epoch or 0.5).is_integer() and given == series.last
        if report.begins or closes_epoch or (series.repeats and not series.iterations):
            return 0.0
        return min(given, 1.0 if series.distance is None else series.distance)
