"""What the dashboard's pages are shaped of: tiles of GPUs, groups of events, a day of use, Gantt charts. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.dashboard import rows, words
from coordinator.dashboard.day_of_use import DAY_S, use_of_a_day
from coordinator.dashboard.gantt import gantt

NODE = {"node": "n", "gpus": 8}


def gpu(number: int, job: str | None = None, **more: Any) -> dict[str, Any]:
    state = "in use" if job else "idle"
    return {"gpu_id": f"g{number}", "node": "n", "state": state, "job_id": job, "held_by": job, **more}


def runs(gpus: list[dict[str, Any]], **jobs: Any) -> list[rows.GpuRun]:
    known = {job: {"state": "running", "owner": None, "start_ts": None, **about} for job, about in jobs.items()}
    return list(rows.fleet(gpus, [NODE], known, str)[0].runs)


def test_gpus_beside_one_another_that_do_the_same_are_one_tile() -> None:
    found = runs([gpu(0, "a"), gpu(1, "a"), gpu(2), gpu(3), gpu(4, "b"), gpu(5, "a")], a={}, b={})
    assert [(len(run.cells), run.first.job) for run in found] == [(2, "a"), (2, None), (1, "b"), (1, "a")]


def test_a_tile_says_whose_its_job_is_and_since_when() -> None:
    (run,) = runs([gpu(0, "a"), gpu(1, "a")], a={"owner": "mia", "start_ts": 7.0})
    assert run.about == "mia · 7.0"
    assert run.title == "g0, a\ng1, a"


def test_a_long_name_is_cut_in_its_middle_so_that_sweeps_stay_apart() -> None:
    (run,) = runs([gpu(0, "sweep-of-learning-rates-10")], **{"sweep-of-learning-rates-10": {}})
    assert run.label == "swee…s-10"


def test_a_wide_machine_has_tiles_that_the_style_sheet_knows() -> None:
    found = runs([gpu(n, "a") for n in range(40)], a={})
    assert [len(run.cells) for run in found] == [16, 16, 8]


def test_readings_of_a_gpu_are_shares_and_unknown_where_they_make_no_sense() -> None:
    cell = rows.gpu_cell(gpu(0, "a", utilisation=0.5, memory_used=3, memory_total=4), {})
    assert (cell.busy, cell.full) == (0.5, 0.75)
    assert rows.gpu_cell(gpu(0, "a", utilisation=None, memory_used=3, memory_total=0), {}).full is None


@pytest.mark.parametrize("names", [["n2", "n10"], ["a-1-x", "a-1-y", "a-12-x"], ["9", "10"], ["", "1", "a"]])
def test_names_sort_by_their_numbers(names: list[str]) -> None:
    names_reversed = names[::-1]
    names_reversed.sort(key=rows.natural_order)
    assert names_reversed == names


def test_steps_are_grouped_below_what_came_of_them_newest_first() -> None:
    kinds = ["submitted", "decided", "launching", "started", "decided", "stop sent"]
    groups = rows.event_groups({"_id": n, "type": kind, "at": float(n)} for n, kind in enumerate(kinds))
    assert [(group.came[1], [kind for _, kind, _ in group.steps]) for group in groups] == [
        ("stop sent", ["decided"]),
        ("started", ["decided", "launching"]),
        ("submitted", []),
    ]


def held(at: float, gpu_id: str, job: str | None) -> dict[str, Any]:
    return {"type": "gpu", "at": at, "gpu_id": gpu_id, "held_by": job, "job_id": job}


def test_gpu_hours_of_a_day_are_those_in_which_gpus_were_held() -> None:
    now = 10 * DAY_S
    events = [held(now - 7200, "g0", "a"), held(now - 3600, "g0", None), held(now - 3600, "g1", "b")]
    use = use_of_a_day(events, [gpu(0), gpu(1, "b")], now)
    assert use.gpu_hours == pytest.approx(2.0)
    assert use.hours_there == pytest.approx(4.0)
    assert use.jobs == [("a", pytest.approx(1.0)), ("b", pytest.approx(1.0))]
    assert [share for share in use.shares if share is not None] == [pytest.approx(0.5)] * 8
    assert use.shares[0] is None, "nothing is known of the time before the first event"


def test_a_gpu_that_changed_hands_long_ago_counts_as_it_is() -> None:
    now = 10 * DAY_S
    use = use_of_a_day([{"type": "noise", "at": now - 2 * DAY_S}], [gpu(0, "a"), gpu(1)], now)
    assert (use.gpu_hours, use.hours_there) == (pytest.approx(24.0), pytest.approx(48.0))


def test_a_day_without_events_has_no_hours() -> None:
    use = use_of_a_day([], [], 10 * DAY_S)
    assert (use.gpu_hours, use.share) == (0.0, 0.0)


TIMES = [
    {"job_id": "a", "now": [0.0, 100.0], "then": [0.0, 50.0]},
    {"job_id": "b", "now": [100.0, 200.0], "then": [50.0, 300.0]},
    {"job_id": "c", "now": [0.0, 80.0], "then": [0.0, 80.2]},
    {"job_id": "d", "now": None, "then": [0.0, 60.0]},
    {"job_id": "e", "now": [0.0, None], "then": [0.0, None]},
]


def test_both_charts_have_one_scale_and_differences_are_told_apart() -> None:
    picture = gantt(TIMES)
    assert picture is not None
    assert [(bar.job, bar.kind) for bar in picture.then] == [
        ("a", "earlier"), ("b", "later"), ("c", "same"), ("d", "added"), ("e", "same"),
    ]  # fmt: skip
    now, then = ({bar.job: bar for bar in bars} for bars in (picture.now, picture.then))
    assert then["a"].width == pytest.approx(now["a"].width / 2)
    assert now["b"].y == then["b"].y
    assert now["e"].title == "e: runs, never ends"


def test_without_a_job_that_ends_there_is_no_chart() -> None:
    assert gantt([]) is None
    assert gantt([TIMES[-1]]) is None


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ({}, None),
        ({"deadline_ts": 100.0}, "deadline 100.0"),
        ({"deadline_ts": 100.0, "ends_between": [50.0, 60.0]}, "deadline 100.0, 40.0 s to spare"),
        ({"deadline_ts": 100.0, "ends_between": [90.0, 160.0]}, "deadline 100.0, likely missed by 1 min 0 s"),
        ({"deadline_ts": 100.0, "eta_s": 30.0}, "deadline 100.0, 1 min 0 s to spare"),
        ({"deadline_ts": 100.0, "late_s": 30.0}, "deadline missed by 30.0 s"),
        ({"deadline_ts": 100.0, "finish_ts": 90.0}, "deadline 100.0, kept"),
    ],
)
def test_the_margin_of_a_deadline_counts_by_the_latest_likely_end(view: dict[str, Any], said: str | None) -> None:
    assert words.deadline_margin(view, str, 10.0) == said
