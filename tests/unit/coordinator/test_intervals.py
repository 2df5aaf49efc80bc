"""Intervals of predicted times: nine of ten outcomes lie in them, whatever the errors are like."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest

from coordinator.forecasts.forecast import JobForecast
from coordinator.forecasts.intervals import NEWEST, PRIOR, Calibration, Interval, WhenExpected
from coordinator.forecasts.prediction_log import MOST, PredictionLog

UNIT_S = 10.0
ERRORS: dict[str, Callable[[random.Random], float]] = {
    "too early by a fifth, and scattered": lambda rng: rng.gauss(0.2, 0.1),
    "mostly right, one in ten far too late": lambda rng: rng.gauss(0.0, 0.05) - 1.5 * (rng.random() < 0.1),
    "anything from half to double": lambda rng: rng.uniform(-math.log(2), math.log(2)),
}


def found(start_s: float | None, end_s: float | None) -> JobForecast:
    return JobForecast("a", start_s, end_s, 0.0, None, False, UNIT_S)


def width(interval: Interval | None) -> float:
    assert interval is not None
    return interval.latest - interval.earliest


@pytest.mark.parametrize("kind", ERRORS)
def test_nine_of_ten_outcomes_lie_in_the_interval_once_jobs_have_ended(kind: str) -> None:
    rng, calibration, held = random.Random(kind), Calibration(), 0
    for job in range(NEWEST + 2_000):
        predicted_s = math.exp(rng.uniform(2, 9))
        made = calibration.predict("end", 5.0, predicted_s, UNIT_S)
        came_s = max(0.0, (predicted_s + UNIT_S) * math.exp(ERRORS[kind](rng)) - UNIT_S)
        held += job >= NEWEST and made.interval.holds(5.0 + came_s)
        calibration.learn("end", [made.error(came_s)])
    assert 0.86 <= held / 2_000 <= 0.94


def test_without_a_past_the_prior_says_how_wide_an_interval_is() -> None:
    low, high = PRIOR["end"]
    made = Calibration().predict("end", 0.0, 1_000.0, 1e-6).interval
    assert made.earliest == pytest.approx(1_000 * low, rel=0.1) and made.latest == pytest.approx(1_000 * high, rel=0.1)


def test_the_past_replaces_the_prior_and_one_job_counts_once_however_often_it_was_predicted() -> None:
    often, once = Calibration(), Calibration()
    for error in (0.0, 0.01) * 100:
        often.learn("end", [error] * 50)
        once.learn("end", [error])
    widths = {width(one.predict("end", 0.0, 100.0, UNIT_S).interval) for one in (often, once)}
    assert len(widths) == 1 and widths.pop() < width(Calibration().predict("end", 0.0, 100.0, UNIT_S).interval) / 10
    once.learn("end", [3.0] * 1_000)
    assert width(once.predict("end", 0.0, 100.0, UNIT_S).interval) < 10


def test_no_interval_begins_before_the_prediction_was_made() -> None:
    calibration = Calibration()
    for _ in range(NEWEST):
        calibration.learn("end", [-5.0, 5.0])
    assert calibration.predict("end", 100.0, 3.0, UNIT_S).interval.earliest == 100.0


def test_of_one_job_few_predictions_are_kept_and_of_many_jobs_none_beyond_a_bound() -> None:
    log = PredictionLog()
    for second in range(1_000):
        log.add_forecast("a", found(None, 1_000.0 - second), float(second), started=True)
    assert 8 <= len(log.completed("a", 0.0, 1_000.0)) <= 11, "each time that half of the rest is over"
    for job in range(MOST + 10):
        shown = log.add_forecast(f"job-{job}", found(None, 10.0), 0.0, started=True)
        assert shown.end is not None, "shown is an interval all the same"
    assert len(list(log.jobs)) == MOST


def test_stored_outcomes_lead_to_the_same_intervals_as_those_seen() -> None:
    log, successor, rng = PredictionLog(), PredictionLog(), random.Random(1)
    for job in range(50):
        name, end_s = str(job), rng.uniform(100, 200)
        log.add_forecast(name, found(20.0, 100.0), 0.0, started=False)
        outcomes = log.completed(name, 30.0, end_s)
        successor.read(json.loads(json.dumps({"outcomes": [one.row() for one in outcomes]})))
    shown = [one.add_forecast("next", found(20.0, 100.0), 7.0, started=False) for one in (log, successor)]
    assert shown[0] == shown[1] and shown[0] != PredictionLog().add_forecast(
        "next", found(20.0, 100.0), 7.0, started=False
    )


@pytest.mark.parametrize("rows", [None, 3, [None], [{}], [{"kind": "end", "at": "x"}], [{"kind": ["end"]}]])
def test_a_row_that_makes_no_sense_teaches_nothing(rows: object) -> None:
    log = PredictionLog()
    log.read({"outcomes": rows})
    assert log.add_forecast("a", found(1.0, 2.0), 0.0, False) == PredictionLog().add_forecast(
        "a", found(1.0, 2.0), 0.0, False
    )


def test_a_start_is_predicted_of_a_job_that_has_not_started_and_an_end_where_there_is_one() -> None:
    log = PredictionLog()
    assert log.add_forecast("never", found(None, None), 0.0, started=False) == WhenExpected(None, None)
    assert log.add_forecast("again", found(5.0, 10.0), 0.0, started=True).start is None
    both = log.add_forecast("first", found(5.0, 10.0), 0.0, started=False)
    assert both.start is not None and both.end is not None
    verdicts = {one.prediction.kind: one.verdict for one in log.completed("first", 5.0, 1e6)}
    assert verdicts == {"start": "held", "end while waiting": "late"}
    assert log.completed("first", 5.0, 1e6) == [], "what is settled is over"
