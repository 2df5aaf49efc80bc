"""Remembers what was predicted of open jobs and compares it with what came, by which later intervals are made. Pure.

Of each job few predictions are remembered: the first one of a kind, and each one by which half of the time is over that
was left at the last remembered one. `MOST` jobs at once, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.forecasts.forecast import JobForecast
from coordinator.forecasts.intervals import PRIOR, Calibration, Interval, Kind, Prediction, WhenExpected
from coordinator.model.records import number

MOST = 2_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """A prediction, and after how many seconds it then came."""

    prediction: Prediction
    real_s: float

    @property
    def verdict(self) -> str:
        """Whether it came within the interval."""
        came, said = self.prediction.at + self.real_s, self.prediction.interval
        return "held" if said.holds(came) else "early" if came < said.earliest else "late"

    def row(self) -> dict[str, Any]:
        """As it is stored."""
        made = self.prediction
        return {
            "kind": made.kind,
            "at": made.at,
            "predicted_s": made.predicted_s,
            "real_s": self.real_s,
            "earliest": made.interval.earliest,
            "latest": made.interval.latest,
            "unit_s": made.unit_s,
        }


class PredictionLog:
    """Jobs are named by what is theirs alone, such as their `uid`. All times are on one clock."""

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._made: dict[str, list[Prediction]] = {}

    @property
    def jobs(self) -> Iterable[str]:
        """Those of which predictions are remembered."""
        return list(self._made)

    def add_forecast(
        self, name: str, found: JobForecast, now: float, started: bool, simulated: bool = True
    ) -> WhenExpected:
        """Make the intervals of a job's forecast, and remember them. `started`: it has trained before."""
        start = None
        if found.start_s is not None and not started:
            kind: Kind = "start" if simulated else "start, not simulated"
            start = self._predict(name, kind, now, found.start_s, found.launch_s)
        if found.end_s is None:
            return WhenExpected(start)
        kind = "end while waiting" if found.start_s is not None else "end" if simulated else "end, not simulated"
        return WhenExpected(start, self._predict(name, kind, now, found.end_s, found.launch_s))

    def _predict(self, name: str, kind: Kind, now: float, seconds: float, unit_s: float) -> Interval:
        made = self._calibration.predict(kind, now, seconds, unit_s)
        if name in self._made or len(self._made) < MOST:
            known = self._made.setdefault(name, [])
            last = next((one for one in reversed(known) if one.kind == kind), None)
            if last is None or seconds < last.predicted_s / 2:
                known.append(made)
        return made.interval

    def forget_job(self, name: str) -> None:
        """Something else than time has ended the job, or keeps it from going on."""
        self._made.pop(name, None)

    def forget_all(self) -> None:
        """The clock was set: it does not tell how long after a prediction something came."""
        self._made.clear()

    def completed(self, name: str, start: float, end: float) -> list[Outcome]:
        """Compare all that was predicted of a job with its start and its end, and learn from it."""
        outcomes = [
            Outcome(made, (start if made.kind.startswith("start") else end) - made.at)
            for made in self._made.pop(name, [])
        ]
        outcomes = [one for one in outcomes if one.real_s >= 0.0]
        self._learn(outcomes)
        return outcomes

    def read(self, row: Mapping[str, Any]) -> None:
        """Learn from the stored outcomes of a job."""
        self._learn(list(_outcomes(row.get("outcomes"))))

    def _learn(self, outcomes: list[Outcome]) -> None:
        for kind in PRIOR:
            errors = [one.prediction.error(one.real_s) for one in outcomes if one.prediction.kind == kind]
            self._calibration.learn(kind, errors)


def _outcomes(rows: Any) -> Iterator[Outcome]:
    """Those that make sense: anybody may have written to the store."""
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("kind") not in tuple(PRIOR):
            continue
        at, predicted_s, real_s, unit_s = (number(row.get(name)) for name in ("at", "predicted_s", "real_s", "unit_s"))
        if at is not None and predicted_s is not None and real_s is not None and unit_s:
            yield Outcome(Prediction(row["kind"], at, predicted_s, unit_s, Interval(at, at)), real_s)
