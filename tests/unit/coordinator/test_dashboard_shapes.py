"""What the dashboard's pages are shaped of: tiles of GPUs, groups of events, a day of use, Gantt charts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.dashboard import rows, words
from coordinator.dashboard.day_of_use import DAY_S, DayOfUse, use_of_a_day
from coordinator.dashboard.gantt import gantt
from coordinator.dashboard.pictures import Window, timeline

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


def test_a_gpu_that_a_reservation_keeps_is_not_shown_as_idle() -> None:
    cells = [gpu(0), gpu(1, kept_for="mia"), gpu(2, kept_for="mia"), gpu(3, kept_for="jan")]
    found = runs(cells)
    assert [(run.first.kind, run.label, len(run.cells)) for run in found] == [
        ("idle", "idle", 1),
        ("kept", "2 for mia", 2),
        ("kept", "for jan", 1),
    ]
    assert found[1].title == "g1, kept for mia\ng2, kept for mia"
    assert rows.gpu_counts(cells) == {"idle": 1, "kept": 3}


@pytest.mark.parametrize(
    ("gpu_id", "about", "said"),
    [
        ("gpu-0", {"node": "n", "index": 3}, "gpu-0"),
        ("GPU-8f3c01a1-5b1f-4c0e-9d52-7d0f2f6a0001", {"node": "gpu-box", "index": 3}, "gpu-box 3"),
        ("GPU-8f3c01a1-5b1f-4c0e-9d52-7d0f2f6a0001", {"node": "a-node-of-a-long-name", "index": 11}, "a-node…-name 11"),
        ("GPU-8f3c01a1-5b1f-4c0e-9d52-7d0f2f6a0001", {"node": "gpu-box"}, "…2-7d0f2f6a0001"),
    ],
)
def test_rows_of_the_timeline_have_names_that_people_can_read(gpu_id: str, about: dict[str, Any], said: str) -> None:
    picture = timeline([], [{"gpu_id": gpu_id, **about}], Window(0.0, 60.0, 60.0), str)
    assert [name for _, name in picture.rows] == [said]
    assert len(said) <= 15


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"start_in_s": 60.0}, "starts in about 1 min 0 s"),
        ({"suspended": True}, "suspended until it is resumed"),
        ({"held": "no such file", "message": "a is held: no such file. Mend this."}, "held: no such file. Mend this."),
        ({"message": "a waits until b is completed."}, "until b is completed."),
        ({}, "no start is foreseen yet"),
    ],
)
def test_the_queue_says_of_each_job_when_it_starts_or_why_nobody_knows(more: dict[str, Any], said: str) -> None:
    view = {"job_id": "a", "state": "submitted", "optional_num_gpus": [1], **more}
    assert rows.job(view, str, 0.0, 8).waits == said


def test_the_alarm_of_a_late_job_is_its_deadline_and_not_its_whole_reason() -> None:
    view = {"job_id": "a", "state": "submitted", "optional_num_gpus": [1], "late_s": 5.0, "message": "a waits: for b"}
    row = rows.job(view, str, 0.0, 8)
    assert (row.alarm, row.remark) == ("deadline missed by 5.0 s", "deadline missed by 5.0 s; a waits: for b")
    assert rows.job({**view, "late_s": None}, str, 0.0, 8).alarm == ""


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


NOW = 10 * DAY_S


def use_of(
    *quarters: tuple[int, float, float, float, float], events: Sequence[dict[str, Any]] = (), gpus: int = 2
) -> DayOfUse:
    """`quarters`: (how many quarters ago, GPU-hours there, held, measured, busy)."""
    sums = {ago: dict(zip(SUMS, (3600 * hours for hours in known), strict=True)) for ago, *known in quarters}
    shown = [{"begin": NOW - 900 * ago, **dict.fromkeys(SUMS, 0.0), **sums.get(ago, {})} for ago in range(96, 0, -1)]
    use = {"until": NOW, "quarters": shown, "nodes": {"n10": (3600.0, 900.0), "n2": (7200.0, 7200.0)}}
    return use_of_a_day(use, events, [gpu(number) for number in range(gpus)])


SUMS = ("there_s", "held_s", "measured_s", "busy_s")


def test_a_day_of_use_sums_up_what_was_held_and_what_was_measured() -> None:
    use = use_of((2, 0.5, 0.4, 0.2, 0.1), (1, 0.5, 0.1, 0.0, 0.0))
    assert (use.held_hours, use.hours_there) == (pytest.approx(0.5), pytest.approx(1.0))
    assert (use.held_share, use.busy_share) == (pytest.approx(0.5), pytest.approx(0.5))
    before, last = use.quarters[-2:]
    assert (before.held, before.busy, before.busy_of_measured) == (
        pytest.approx(0.8),
        pytest.approx(0.2),
        pytest.approx(0.5),
    )
    assert (last.held, last.busy, last.busy_of_measured) == (pytest.approx(0.2), None, None)
    assert use.quarters[0].held is None, "no coordinator watched"
    assert [node.node for node in use.nodes] == ["n2", "n10"]
    assert (use.busy_of_node("n10"), use.busy_of_node("n3")) == ("25 % busy in 24 h", "")


@pytest.mark.parametrize(("hours", "said"), [(0.04, "0.0"), (7.26, "7.3"), (99.94, "99.9"), (22_759.4, "22,759")])
def test_hours_are_told_as_exactly_as_they_are_read(hours: float, said: str) -> None:
    assert words.hours(hours) == said


def test_nothing_is_said_of_how_busy_gpus_were_where_nothing_was_measured() -> None:
    assert use_of((1, 0.5, 0.5, 0.0, 0.0)).busy_share is None


def test_hours_by_job_are_those_that_events_tell_of() -> None:
    events = [held(NOW - 7200, "g0", "a"), held(NOW - 3600, "g0", None), held(NOW - 3600, "g1", "b")]
    use = use_of((8, 0.5, 0.5, 0.0, 0.0), events=events)
    assert use.jobs == [("a", pytest.approx(1.0)), ("b", pytest.approx(1.0))]
    assert use.jobs_known_from is None
    assert use_of((40, 0.5, 0.5, 0.0, 0.0), events=events).jobs_known_from == NOW - 7200, "it ran before that"


def test_a_day_without_events_has_no_hours() -> None:
    use = use_of()
    assert (use.held_hours, use.held_share, use.jobs) == (0.0, 0.0, [])


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
