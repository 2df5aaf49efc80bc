"""Tables that stay tables, whatever is in them."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.dashboard import rows, words
from reshape.output import job_table, progress_line, render, tables, top

TEXT = st.text(st.characters(), max_size=30)
ODD = st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.lists(st.integers(), max_size=3)


@given(st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=5), st.none() | st.integers(0, 200))
def test_a_table_has_a_line_per_row_and_prints_nothing_unprintable(
    rows: list[tuple[str, str, str]], width: int | None
) -> None:
    lines = tables.table(("A", "B", "C"), rows, width).split("\n")
    assert len(lines) == len(rows) + 1
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("usage", "said"),
    [
        ({"cpu_limit": 0.5, "limited_by": "stop and go"}, "0.50 cores (stop and go)"),
        ({"cpu_limit": 0.5, "limited_by": None}, "0.50 cores (its machine has no way to hold it)"),
    ],
)
def test_a_job_that_is_limited_is_shown_with_how_it_is_held(usage: dict[str, Any], said: str) -> None:
    assert f"cpu limit:   {said}" in render.job({"job_id": "one", "usage": usage}).splitlines()


def test_use_and_growth_per_resource_are_shown() -> None:
    usage = {"block_io": 2048.0, "network_io": 3 * 2**20}
    growth = {"per_unit": {"cpu": 0.125, "memory": 0.5 / 2**30}, "shares": {"cpu": 0.25}, "list": "CL"}
    lines = render.job({"job_id": "one", "usage": usage, "growth_efficiency": growth}).splitlines()
    assert {"disk:        2.0 KiB/s", "network:     3.0 MiB/s"} <= set(lines)
    assert "efficiency:  25% of its best; 0.125 per core, 0.5 per GiB" in lines


def test_a_job_that_cannot_be_limited_is_shown_with_the_reason() -> None:
    assert "not limited: because" in render.job({"job_id": "one", "unlimitable": "because"}).splitlines()


def test_a_job_without_a_limit_is_shown_without_one() -> None:
    assert "limit" not in render.job({"job_id": "one", "usage": {"cpu_cores": 1.0, "cpu_limit": None}})


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5))
def test_columns_begin_at_the_same_place(rows: list[tuple[str, str]]) -> None:
    lines = tables.table(("FIRST", "MARK"), [(first, "|") for first, _ in rows]).split("\n")
    starts = {tables.columns(line[: line.rindex("|")]) for line in lines[1:]}
    assert starts == {tables.columns(lines[0][: lines[0].index("MARK")])}


def test_only_the_last_column_is_cut_and_wide_characters_count_double() -> None:
    table = tables.table(("JOB", "MESSAGE"), [("a", "訓練" * 20), ("b", "ok")], 30)
    assert max(tables.columns(line) for line in table.split("\n")) <= 30
    assert "…" in table
    assert "…" not in tables.table(("JOB", "MESSAGE"), [("a", "訓練" * 20)])


@pytest.mark.parametrize("width", [None, 100])
def test_a_name_of_thousands_of_letters_widens_no_row(width: int | None) -> None:
    views = [
        {"job_id": name, "queue": queue, "state": "submitted", "num_gpus": 0, "reshapes": 0, "message": "waits"}
        for name, queue in (("one", "default"), ("l" * 5_000, "q" * 5_000))
    ]
    lines = job_table.table(views, 1000.0, width).splitlines()
    assert max(map(tables.columns, lines)) <= (width or 3 * tables.LONGEST)
    assert len(render.event({"_id": 1, "at": 0.0, "job_id": "l" * 5_000, "type": "refused"})) < 2 * tables.LONGEST


@pytest.mark.parametrize("text", ["\x1b[2J", "a\rb", "\u202egpj", "\x07", "\ud800", "\u200b"])
def test_nothing_that_a_user_wrote_moves_the_cursor_or_turns_the_line(text: str) -> None:
    shown = job_table.table([{"job_id": text, "state": text, "message": text}], 1000.0)
    assert text not in shown
    assert shown.encode()


@given(st.dictionaries(st.sampled_from(["job_id", "state", "num_gpus", "gpu_ids", "optional_num_gpus", "node"]), ODD))
def test_a_document_that_was_not_let_in_can_be_shown(doc: dict[str, Any]) -> None:
    view = {**doc, "problems": ["state must be `submitted`"]}
    assert "not accepted" in job_table.table([view], 1000.0)
    assert "problem: state must be" in render.job(view)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1 min 0 s"), (3599.9, "1 h 0 min"), (7322, "2 h 2 min")],
)
def test_durations_read_as_people_say_them(value: float, shown: str) -> None:
    assert words.seconds(value) == shown


def test_progress_says_what_is_known() -> None:
    assert words.progress({"iters_done": 120, "iterations": 400}) == "120/400 (30 %)"
    assert words.progress({"iters_done": 120}) == "120"
    assert words.progress({}) == "-"


def test_of_a_job_with_a_target_it_is_shown_how_far_that_is() -> None:
    aims = {"iters_done": 120, "iterations": 400, "target": {"value": 0.9}, "iterations_left": 64.0}
    assert words.progress(aims) == "120, about 64 iterations to its target"
    assert words.progress({**aims, "epochs_left": 3.2}) == "120, about 3.2 epochs to its target"
    assert "at most 64 iterations" in words.progress({**aims, "length_unsure": True})
    assert "PROGRESS" in job_table.table([aims], 1000.0) and "about 64 iterations to its target" in job_table.table(
        [aims], 1000.0
    )
    assert words.progress({**aims, "iterations_left": None}) == "120/400 (30 %)"


def test_a_long_name_of_a_value_is_kept_apart_from_it() -> None:
    assert "val_accuracy: 0.92" in render.job({"value_name": "val_accuracy", "value": 0.92})


def test_a_job_of_several_pods_is_shown_with_a_line_for_each() -> None:
    pods = [
        {"pod": 0, "node": "a", "gpu_ids": ["g0", "g1"], "trainer": "running"},
        {"pod": 1, "node": "b", "gpu_ids": ["g2", "g3"], "trainer": None},
    ]
    shown = render.job({"job_id": "j", "state": "running", "pods": pods}).splitlines()
    assert shown[-2:] == ["pod 0:       g0, g1 on a, running", "pod 1:       g2, g3 on b, not heard of"]


def test_what_a_job_asked_for_is_shown_as_it_was_written() -> None:
    asked = {"pinned": "c", "sla": "90s", "estimate": 40, "target": {"value": 0.1, "above": False, "name": "loss"}}
    lines = render.job({"job_id": "one", **asked}).splitlines()
    assert {"pinned to:   c", "sla:         90s", "estimate:    40 s", "target:      loss at most 0.1"} <= set(lines)
    assert "target:      Top-5 accuracy at least 0.9" in render.job({"target_top5": 0.9}).splitlines()


def test_a_job_trained_on_cpu_is_started_and_moved_to_cores_not_to_no_gpus() -> None:
    on_cpu = {"job_id": "one", "num_gpus": 0, "node": "c"}
    assert "start job one on the cores of c" in render.decision({**on_cpu, "kind": "start"})
    assert "move job one to the cores of c" in render.decision({**on_cpu, "kind": "move"})
    assert "move job one to 2 GPUs of c" in render.decision({**on_cpu, "kind": "move", "num_gpus": 2})


def test_a_node_without_gpus_is_listed_with_its_cores() -> None:
    rows = [{"node": "c", "gpu_type": None, "gpus": 0, "idle": 0, "cores": 2.0, "emulated": False}]
    assert render.nodes(rows).splitlines()[1].split()[:5] == ["c", "-", "0", "0", "2"]


def test_a_node_is_listed_with_its_jobs_and_whether_it_takes_more() -> None:
    crowd = {"jobs": 3, "categories": {"PC": 1, "WC": 0, "CC": 2}, "score": 4.0, "cpu_use": 0.5, "memory_use": 0.256}
    for state, more in (("open", {}), ("silent", {"heard": False}), ("closed", {"schedulable": False})):
        row = {"node": "c", "gpus": 0, "idle": 0, "cores": 2.0, **crowd, **more}
        cells = render.nodes([row]).splitlines()[1].split()
        assert cells == ["c", "-", "0", "0", "2", "50%", "26%", "3", "1/0/2", "4.0", state]


def test_use_that_was_measured_from_outside_says_by_what() -> None:
    running = {
        "job_id": "a",
        "state": "running",
        "usage": {"cpu_cores": 1.5, "memory": 2**30, "used_from": "prometheus"},
    }
    by = "Prometheus, over the last two minutes"
    assert f"measured by: {by}" in render.job(running)
    assert render.present(running) == f"Now: use: 1.50 cores and 1.0 GiB, by {by}."
    own = {**running, "usage": {**running["usage"], "used_from": "heartbeats"}}
    assert "Prometheus" not in render.job(own) + render.present(own)


def test_a_message_that_only_repeats_the_state_is_left_out() -> None:
    done = {"job_id": "a", "state": "completed", "message": "completed"}
    assert render.job(done).count("completed") == job_table.table([done], 1000.0).count("completed") == 1
    assert "waits" in render.job({**done, "message": "waits"})


def test_only_gpus_that_are_there_are_called_emulated() -> None:
    assert "gpus:        0\n" in render.job({"num_gpus": 0, "emulated": True, "node": "local"})
    assert "gpus:        2 (emulated)\n" in render.job({"num_gpus": 2, "emulated": True, "node": "local"})


def test_nothing_is_said_about_an_unchanged_world_without_a_running_job() -> None:
    assert "nothing changed" not in render.decision({"sentence": "a starts.", "unchanged_makespan_s": 0.0})


def test_numbers_of_profiles_are_rounded_for_people() -> None:
    row = render.profiles([{"job_type": "t", "num_gpus": 16, "seconds": 0.123456789, "iterations": 12_345_678}])
    assert row.split("\n")[1].split() == ["t", "16", "0.123457", "12345678"]


def test_an_empty_profile_table_says_so() -> None:
    assert render.profiles([]) == "No rows."


@pytest.mark.parametrize("strange", [1e20, float("inf"), float("nan"), -1e20])
def test_a_time_that_no_calendar_has_is_shown_as_it_is(strange: float) -> None:
    """A document that was not let in holds what its user wrote."""
    assert f"submitted:   {strange}" in render.job({"job_id": "a", "submit_ts": strange})


LONG = "waits for 2 GPUs: job train-1 has not shown that it resumes, so that it keeps what it has until it has ended"


@pytest.mark.parametrize("width", [48, 60, 80, 100])
def test_each_job_has_one_line_within_the_terminal_and_its_whole_reason_elsewhere(width: int) -> None:
    views = [
        {"job_id": "train-1", "state": "running", "num_gpus": 2, "emulated": True, "node": "a-node-of-some-name.local",
         "iters_done": 1200, "iterations": 40000, "eta_s": 3900.0, "reshapes": 0, "message": "trains"},
        {"job_id": "sweep-of-" + "x" * 60 + "-17", "state": "submitted", "num_gpus": 0, "reshapes": 0, "message": LONG},
    ]  # fmt: skip
    lines = job_table.table(views, 1000.0, width).splitlines()
    assert max(map(tables.columns, lines)) <= width
    assert lines[0].split()[:3] == ["JOB", "STATE", "GPUS"]
    assert [line.split()[0] for line in lines[:2]] == ["JOB", "train-1"] and len(lines) == 4
    name = lines[2].split()[0]
    assert name.startswith("sweep") and name.endswith("-17") and "…" in name
    assert "waits for 2" in lines[2] and LONG not in lines[2]
    assert LONG in job_table.table(views, 1000.0) and LONG in render.job(views[1])


def test_forty_jobs_take_forty_lines_of_80_columns() -> None:
    lines = job_table.table([{**view, "message": LONG} for view in views(40)], 1000.0, 80).splitlines()
    assert len(lines) == 41 and max(map(tables.columns, lines)) <= 80
    assert {"JOB", "STATE", "GPUS", "TIME", "REASON"} <= set(lines[0].split())


def test_owner_time_and_reason_of_forty_jobs_fit_into_80_columns() -> None:
    owned = [
        {**view, "job_id": f"sweep-of-rates-{n}-batch-{n % 7}", "owner": ("mia", "noor", "jan")[n % 3]}
        for n, view in enumerate(views(40))
    ]
    message = "it needs 4 GPUs; 0 are idle on node box3, and no running job there can give 4 or more"
    waiting = {"state": "submitted", "start_in_s": 5370.0, "start_guesses": ["b"]}
    shown = [
        {**view, "message": f"{view['job_id']} waits: {message}", **(waiting if n % 4 == 3 else {})}
        for n, view in enumerate(owned)
    ]
    lines = job_table.table(shown, 1000.0, 80).splitlines()
    assert len(lines) == 41 and max(map(tables.columns, lines)) <= 80
    assert lines[0].split() == ["JOB", "OWNER", "STATE", "GPUS", "END", "TIME", "REASON"]
    assert lines[4].split()[-4:] == ["-", "needs", "4", "GPUs"] and "starts 90m?" in lines[4]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (98.4, "98s"), (120, "2m"), (5399, "90m"), (5400, "2h"), (169_200, "47h"), (2e5, "2d")],
)
def test_a_guess_is_told_in_one_unit(seconds: float, shown: str) -> None:
    assert words.coarse(seconds) == shown


WAITS = "a waits: it needs 2 GPUs; 0 are idle on node vm, and no running job there can give 2 or more. It may"


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (WAITS, "needs 2 GPUs; 0 are idle on node vm"),
        ("a waits until b is completed.", "until b is completed."),
        ("a waits: no node has A100 GPUs; register one, or drop gpu_type.", "no node has A100 GPUs; register one"),
        ("the training process ended with exit code 1: OSError: no. It", "OSError: no. It"),
        ("the training process ended with exit code 3", "exit code 3"),
        (
            "the training process ended with exit code 1: " + "word " * 20 + "end",
            "word word word word word word word word…",
        ),
        ("x" * 60, "x" * 39 + "…"),
    ],
)
def test_a_terminal_shows_a_reason_of_40_columns_and_a_pipe_all(message: str, shown: str) -> None:
    view = {"job_id": "a", "state": "submitted", "message": message}
    assert job_table.table([view], 1000.0, 200).splitlines()[1].endswith(f"  {shown}")
    assert message in job_table.table([view], 1000.0)


@given(TEXT, st.integers(10, 40))
def test_a_shortened_sentence_fits(text: str, width: int) -> None:
    text = tables.plain(text)
    short = tables.shortened(text, width)
    assert tables.columns(short) <= width
    assert text.startswith(short.removesuffix("…"))


def test_names_that_differ_still_differ_once_they_are_cut() -> None:
    names = [f"sweep-lr-0.{n}-of-anna" for n in range(3, 31)]
    cut = tables.cut_apart(names, 20)
    assert len(set(cut)) == len(names)
    assert cut[0] == names[0] and max(map(tables.columns, cut)) == 20


def test_what_is_said_of_one_job_is_whole_and_breaks_between_words_on_a_terminal() -> None:
    view = {"job_id": "a", "state": "submitted", "message": LONG, "starts_if": "if it had ended"}
    for shown in (render.job(view, 0.0, 60), render.present(view, (), 0.0, 60)):
        assert max(map(len, shown.splitlines())) <= 60
        assert LONG in " ".join(shown.split())
    assert LONG in render.job(view) and LONG in render.present(view), "a pipe gets it in one line"


def test_the_line_of_a_wait_fits_and_says_how_far_the_job_is() -> None:
    shown = progress_line.line(views(1)[0], 1000.0, 79)
    assert shown == "j0  running  2/4 GPUs  [############------------]  50 %  in 90s"
    waits = {"job_id": "a", "state": "submitted", "message": WAITS, "start_in_s": 30.0}
    assert progress_line.line(waits, 1000.0, 79).startswith("a  submitted  starts 30s  needs 2 GPUs; 0 are idle")
    for width in range(10, 79):
        assert tables.columns(progress_line.line(waits, 1000.0, width)) <= width


def test_colours_stand_in_the_state_alone_and_move_no_column() -> None:
    plain = job_table.table(views(4), 1000.0, 80)
    painted = job_table.table(views(4), 1000.0, 80, coloured=True)
    assert re.sub(r"\x1b\[\d+m", "", painted) == plain != painted
    assert "\x1b[32mrunning\x1b[0m" in painted
    assert "\x1b" not in job_table.table([{"job_id": "\x1b[31m", "state": "\x1b[31m"}], 1000.0, 80, coloured=True)


@given(TEXT, st.integers(2, 40))
def test_a_name_is_cut_in_its_middle(text: str, width: int) -> None:
    text = tables.plain(text)
    cut = tables.middle_cut(text, width)
    assert tables.columns(cut) <= width
    assert cut == text or "…" in cut


@pytest.mark.parametrize("width", [64, 80, 100])
def test_a_decision_is_told_whole_within_the_terminal(width: int) -> None:
    refused = "would have to wait: 1 of 4 GPUs idle on vm, no running job there can give 3 or more"
    candidate = {"num_gpus": 4, "node": "vm", "makespan_s": 605.7, "sum_s": 1207.9, "job_s": 605.7}
    view = {"decision_id": "a-waits", "kind": "hold", "job_id": "a", "at": 0.0, "sentence": LONG,
            "unchanged_makespan_s": 602.2, "unchanged_guesses": ["b"],
            "candidates": [{**candidate, "rejected": refused}]}  # fmt: skip
    lines = render.decision(view, width).splitlines()
    assert max(map(tables.columns, lines)) <= width
    told = " ".join(line.strip() for line in lines)
    assert LONG in told
    assert refused in told


def test_explain_stays_within_the_terminal_where_names_of_jobs_are_long() -> None:
    name = "resnet50-imagenet-baseline-seed-4"
    chosen = {"num_gpus": 1, "node": "n1", "makespan_s": 50006.5, "sum_s": 213715.8, "job_s": 50006.5}
    chosen |= {"victim": name, "victim_num_gpus": 1}
    view = {"kind": "start", "job_id": "vit-sweep-lr-10", "num_gpus": 1, "victim": name, "victim_num_gpus": 1}
    view |= {"sentence": f"It takes one from {name}.", "candidates": [chosen], "at": 0.0, "decision_id": "d"}
    lines = render.decision(view, 80).splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert any("resnet50" in line and "keeps 1" in line and "50006.5 s" in line for line in lines)


def test_explain_stays_within_the_terminal_where_names_of_nodes_are_long_and_keeps_them_apart() -> None:
    times = {"makespan_s": 50006.5, "sum_s": 213715.8, "job_s": 50006.5}
    nodes = [f"ip-10-0-{number}-245.eu-central-1.compute.internal" for number in (112, 113)]
    candidates = [{"num_gpus": 1, "node": node, "victim": "a", "victim_num_gpus": 1, **times} for node in nodes]
    view = {"kind": "start", "job_id": "b", "num_gpus": 1, "candidates": candidates, "at": 0.0, "decision_id": "d"}
    lines = render.decision(view, 80).splitlines()
    assert max(map(len, lines)) <= 80, lines
    rows = [line.split() for line in lines if "ip-10" in line]
    assert len(rows) == 2 and len({row[2] for row in rows}) == 2


def test_a_job_that_is_over_its_last_expected_time_ends_or_starts_now() -> None:
    assert job_table.short_end({"ends_between": [10.0, 20.0]}, 30.0) == "now"
    assert job_table.short_end({"starts_between": [10.0, 20.0]}, 30.0) == "starts now"
    assert job_table.short_end({"ends_between": [10.0, 90.0]}, 30.0) == "in <60s"


def test_no_time_is_shown_of_a_candidate_that_would_have_to_wait() -> None:
    view = {
        "num_gpus": 4,
        "node": "vm",
        "makespan_s": 6.5,
        "sum_s": 7.5,
        "job_s": 5.5,
        "rejected": "would have to wait",
    }
    assert words.candidate({**view, "possible": False})[4:7] == ("-", "-", "-")
    assert words.candidate({**view, "possible": True})[4:7] == ("6.5 s", "7.5 s", "5.5 s")


def test_all_jobs_that_give_gpus_are_named() -> None:
    view = {"kind": "start", "job_id": "new", "num_gpus": 4, "node": "n", "victim": "a", "victim_num_gpus": 1}
    several = {**view, "more_victims": [{"job": "b", "num_gpus": 2}]}
    assert words.what(view) == "start job new on 4 GPUs, job a keeps 1"
    assert words.what(several) == "start job new on 4 GPUs, job a keeps 1, job b keeps 2"
    assert words.candidate(view)[3] == "a, which keeps 1"
    assert words.candidate(several)[3] == "a, which keeps 1; b, which keeps 2"
    doubtful = {**view, "low_confidence": True}
    assert "~" in render.decision({"candidates": [{**doubtful, "possible": True}]})
    assert "~" not in render.decision({"candidates": [{**doubtful, "possible": False}]}), "no time rests on it"


def test_the_memory_of_a_gpu_is_never_cut() -> None:
    row = {"gpu_id": "EMULATED-V100-0", "node": "vm", "gpu_type": "V100", "emulated": True, "state": "in use",
           "job_id": "digits-numpy", "held_by": "digits-numpy", "memory_total": 16 * 2**30}  # fmt: skip
    assert "16.0 GiB" in render.gpus([row], 80)
    assert "- of" not in render.gpus([row])
    assert "4.0 GiB of 16.0 GiB" in render.gpus([{**row, "memory_used": 4 * 2**30}], 60)


def test_the_memory_of_a_gpu_that_others_hold_is_said() -> None:
    gpu = {"memory_total": 80 * 2**30, "memory_used": 26 * 2**30, "memory_own": 3 * 2**30, "memory_others": 23 * 2**30}
    assert words.memory(gpu) == "26.0 GiB of 80.0 GiB, 23.0 GiB by others"
    assert words.memory({**gpu, "memory_others": 0}) == words.memory({**gpu, "memory_others": None})
    assert words.memory({"memory_total": 2**30}) == "1.0 GiB"
    assert words.memory({}) is None


def test_where_all_fits_there_is_a_line_per_job() -> None:
    lines = job_table.table([{"job_id": "a", "state": "running", "message": "moves"}], 1000.0, 120).splitlines()
    assert (len(lines), lines[1].endswith("moves")) == (2, True)


@given(TEXT, st.integers(10, 40))
def test_wrapped_text_is_whole_and_fits(text: str, width: int) -> None:
    text = tables.plain(text)
    lines = tables.wrapped(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(tables.columns, lines), default=0) <= width


@pytest.mark.parametrize(("epochs", "said"), [(63.578125, "63.58"), (3, "3"), (0.0, "0")])
def test_epochs_are_shown_with_two_digits(epochs: float, said: str) -> None:
    assert f"epochs:      {said}" in render.job({"job_id": "one", "epochs_done": epochs}).splitlines()


def views(count: int) -> list[dict[str, Any]]:
    """Jobs of all kinds, the oldest first."""
    kinds: list[dict[str, Any]] = [
        {
            "state": "running",
            "num_gpus": 2,
            "node": "a",
            "eta_s": 90.0,
            "deadline_ts": 1600.0,
            "iters_done": 50,
            "start_ts": 960.0,
        },
        {"state": "submitted", "num_gpus": 0, "suspended": True, "queue": "low", "iters_done": 10},
        {
            "state": "completed",
            "num_gpus": 0,
            "finish_ts": 940.0,
            "deadline_ts": 990.0,
            "iters_done": 100,
            "start_ts": 910.0,
        },
        {"state": "submitted", "num_gpus": 0, "start_in_s": 30.0, "start_guesses": ["j0"]},
    ]
    common = {"optional_num_gpus": [1, 2, 4], "iterations": 100, "reshapes": 0}
    return [{"job_id": f"j{n}", "submit_ts": 900.0 + n, **common, **kinds[n % 4]} for n in range(count)]


def test_each_job_is_listed_with_its_counts_its_end_its_deadline_and_its_age() -> None:
    head, *rows = (line.split("  ") for line in job_table.table(views(4), 1000.0).splitlines())
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [cell.strip() for cell in head if cell.strip()] == list(job_table.HEAD)
    assert cells[0][3:] == ["running", "2/4", "a", "0", "50/100 (50 %)", "in 90s", "in 10m", "40s", "100s", "-"]
    assert cells[1][2:5] == ["low", "suspended", "0/4"]
    assert cells[2][8:10] == ["60s ago", "met"]
    assert "starts in 30s?" in cells[3]


def test_a_late_job_says_by_how_much_and_one_on_cpu_has_no_counts() -> None:
    late = {"job_id": "a", "state": "running", "optional_num_gpus": [0], "late_s": 7200.0, "deadline_ts": 5.0}
    row = job_table.table([late], 1000.0).splitlines()[1]
    assert "missed by 2h" in row and " cpu " in row


def test_on_80_columns_what_no_job_has_goes_first_and_nothing_is_wider() -> None:
    lines = job_table.table(views(1), 1000.0, 80).splitlines()
    assert max(map(tables.columns, lines)) <= 80
    assert {"JOB", "STATE", "GPUS", "PROGRESS", "END", "DEADLINE"} <= set(lines[0].split())
    assert not {"QUEUE", "REASON"} & set(lines[0].split())


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ({"order": "age"}, "j0 j1 j2 j3"),
        ({"order": "gpus"}, "j0 j1 j2 j3"),
        ({"order": "end"}, "j0 j1 j2 j3"),
        ({"order": "progress"}, "j2 j0 j1 j3"),
        ({"order": "deadline"}, "j2 j0 j1 j3"),
        ({"order": "state"}, "j2 j0 j1 j3"),
        ({"order": "age", "states": ["submitted"]}, "j1 j3"),
        ({"order": "age", "states": ["suspended", "completed"]}, "j1 j2"),
        ({"order": "age", "queue": "low"}, "j1"),
        ({"order": "name", "node": "a"}, "j0"),
    ],
)
def test_jobs_are_chosen_and_ordered_as_asked(conditions: dict[str, Any], found: str) -> None:
    assert [view["job_id"] for view in job_table.chosen(views(4), **conditions)] == found.split()


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (119.4, "119s"), (130, "2m"), (3600, "1h"), (12000, "3h20m"), (187200, "2d4h")]
)
def test_durations_in_tables_are_short(seconds: float, shown: str) -> None:
    assert words.brief(seconds) == shown


def test_a_gpu_that_a_reservation_keeps_says_for_whom() -> None:
    rows = [
        {"gpu_id": f"g{n}", "node": "a", "gpu_type": "V100", "state": "idle", "kept_for": kept}
        for n, kept in enumerate([None, "mia"])
    ]
    for width in (None, 80):
        lines = render.gpus(rows, width).splitlines()
        assert "idle" in lines[1] and "kept for mia" in lines[2] and "idle" not in lines[2]
    node = {"node": "a", "gpu_type": "V100", "gpus": 2, "idle": 2, "kept": 1, "jobs": 0}
    assert "2, 1 kept" in render.nodes([node], 80)
    screen = top.frame([], rows, [{"node": "a", "gpu_type": "V100"}], [], 1000.0)
    assert "0 of 2 GPUs in use, 1 kept by reservations" in screen and "[.-]" in screen


FLEET = [
    {"gpu_id": f"g{n}", "node": "a", "state": state, "held_by": held, "emulated": True}
    for n, (state, held) in enumerate([("in use", "j0"), ("in use", "j0"), ("idle", None), ("faulty", None)])
]
NODES = [{"node": "a", "gpu_type": "V100"}, {"node": "c", "cores": 2.0, "schedulable": False, "drained": True}]
DECIDED = [{"at": 0.0, "sentence": "j0 starts on 2 GPUs of a."}]


def test_top_shows_the_fleet_its_jobs_and_the_last_decisions() -> None:
    lines = top.frame(views(2), FLEET, NODES, DECIDED, 1000.0, 120).splitlines()
    assert "2 of 4 GPUs (emulated) in use, 1 faulty   1 jobs run, 1 wait" in lines[0]
    assert lines[2:4] == ["a            V100     [aa.!]", "c            2 cores  []  drained"]
    assert [line.split()[:2] for line in lines if line.startswith(("a j0", "  j1"))] == [["a", "j0"], ["j1", "low"]]
    assert lines[-1].endswith("j0 starts on 2 GPUs of a.")


@given(st.integers(40, 200), st.integers(12, 60), st.integers(0, 300), st.integers(1, 60))
def test_top_never_exceeds_its_terminal(width: int, height: int, jobs: int, nodes: int) -> None:
    fleet = [{"node": f"n{n}", "gpu_type": "V100"} for n in range(nodes)]
    lines = top.frame(views(jobs), FLEET, fleet, DECIDED * 9, 1000.0, width, height).splitlines()
    assert len(lines) <= height and max(map(tables.columns, lines)) <= width


def test_top_without_a_terminal_cuts_nothing() -> None:
    told = [{"at": 0.0, "sentence": LONG * 3}]
    waits = {"job_id": "n" * 90, "state": "submitted", "message": LONG}
    shown = top.frame([waits], FLEET, NODES, told, 1000.0, None)
    assert waits["job_id"] in shown and LONG * 3 in shown and "…" not in shown


def test_top_begins_with_the_jobs_that_run() -> None:
    waiting = [{"job_id": f"w{n}", "state": "submitted", "submit_ts": 1.0} for n in range(40)]
    lines = top.frame([*waiting, *views(1)], FLEET, NODES, DECIDED, 1000.0, 80, 24).splitlines()
    assert lines[6].startswith("a j0")


def test_top_of_an_empty_cluster_says_what_to_do() -> None:
    assert "`reshape submit -- COMMAND` starts one" in top.frame([], [], [], [], 1000.0)


NOON = 1_700_000_000.0
DAY = 86_400.0


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([NOON + 1, NOON + 1201], "between 22:13 and 22:33 (90 %)"),
        ([NOON + 1, NOON + 20], "between 22:13:21 and 22:13:40 (90 %)"),
        ([NOON, NOON + 1200], "before 22:33 (90 %)"),
        ([NOON + 1, NOON + DAY], "between 22:13 and tomorrow 22:13 (90 %)"),
        ([NOON + DAY, NOON + DAY + 1200], "between tomorrow 22:13 and 22:33 (90 %)"),
        ([NOON + DAY, NOON + 2 * DAY], "between tomorrow 22:13 and 2023-11-16 22:13 (90 %)"),
        ([NOON + 2 * DAY, NOON + 2 * DAY + 1200], "between 2023-11-16 22:13 and 22:33 (90 %)"),
        (None, None),
    ],
)
def test_an_interval_has_dates_unless_it_is_of_today_and_seconds_where_it_is_short(times: Any, said: str) -> None:
    assert words.between(times, moment, NOON) == said


def test_when_a_job_starts_and_ends_is_said_in_the_same_words_everywhere() -> None:
    waits = {"starts_between": [NOON + 60, NOON + 700], "ends_between": [NOON + 3600, NOON + 4500], "start_in_s": 60.0}
    facts = words.facts(waits, moment, NOON)
    assert facts["starts"] == "between 22:14 and 22:25 (90 %)" and facts["ends"] == "between 23:13 and 23:28 (90 %)"
    assert rows.job(waits, moment, NOON, 8).when == f"starts {facts['starts']}, ends {facts['ends']}"
    assert "starts in 60s to 11m" in job_table.table([waits], NOON)
    runs = {"ends_between": waits["ends_between"], "eta_s": 4000.0}
    assert rows.job(runs, moment, NOON, 8).when == "ends between 23:13 and 23:28 (90 %)"
    assert "in 1h to 1h15m" in job_table.table([runs], NOON)
    soon = {"ends_between": [NOON, NOON + 50]}
    assert "within 50s" in job_table.table([soon], NOON), "it may end at any moment"
    assert words.facts({"eta_s": 90.0}, moment, NOON)["ends"] == "in 1 min 30 s", "where there is no forecast yet"


def test_explain_says_what_a_job_that_is_being_stopped_waits_for() -> None:
    view = {"message": "could not be told to stop for 7 s", "reshape": {"kind": "requeue"}, "stalled": None}
    assert render.present(view) == "Now: could not be told to stop for 7 s"
    hangs = {**view, "message": "does nothing for 9 s: it may hang", "stalled": "does nothing for 9 s"}
    assert render.present(hangs) == "Now: does nothing for 9 s: it may hang", "and says it once"


def test_each_gpu_has_one_line_on_80_columns_and_below_it_what_is_wrong() -> None:
    rows = [
        {
            "gpu_id": f"GPU-8f3c{n:02}a1-5b1f-4c0e-9d52-7d0f2f6a{n:04}",
            "node": "gpu-box",
            "gpu_type": "A100",
            "state": "in use",
            "job_id": f"sweep-of-learning-rates-{n}",
            "held_by": f"sweep-of-learning-rates-{n}",
            "utilisation": 0.5,
            "memory_used": 40 << 30,
            "memory_total": 80 << 30,
            "emulated": False,
        }
        for n in range(8)
    ]
    lines = render.gpus(rows, 80).splitlines()
    assert len(lines) == 9 and max(map(len, lines)) <= 80
    assert len({line.split()[0] for line in lines}) == 9, "cut names still differ"
    assert "HELD BY" not in lines[0]
    assert "50%" in lines[1] and "40.0 GiB of 80.0 GiB" in lines[1]
    rows[0] |= {
        "state": "faulty",
        "problem": "it is in use by process 4711 of jan, " + "which nobody here has started " * 3,
    }
    lines = render.gpus(rows, 80).splitlines()
    assert "faulty" in lines[1] and "".join(lines[2:4]).count("nobody here has started") == 3
    assert "started" in render.gpus(rows).splitlines()[1], "what goes into a pipe has one line for each"
    rows[1] |= {"held_by": "another"}
    assert "HELD BY" in render.gpus(rows, 120).splitlines()[0]


def test_each_node_has_one_line_on_80_columns() -> None:
    row = {
        "gpu_type": "A100",
        "emulated": True,
        "gpus": 8,
        "idle": 1,
        "cores": None,
        "cpu_use": 0.0,
        "memory_use": 0.0,
        "jobs": 5,
        "categories": {"PC": 0, "WC": 0, "CC": 0},
        "score": 0,
    }
    rows = [{**row, "node": f"node-{n}"} for n in range(6)]
    lines = render.nodes(rows, 80).splitlines()
    assert len(lines) == 7 and max(map(len, lines)) <= 80
    assert "SCORE" not in lines[0] and lines[1].endswith("open")
    rows[0] |= {"categories": {"PC": 2, "WC": 0, "CC": 0}, "score": 2}
    assert "PC/WC/CC" in render.nodes(rows, 120)


def test_whose_jobs_they_are_is_told_on_80_columns_where_several_users_have_some() -> None:
    rows = [
        {
            "job_id": f"sweep-of-learning-rates-{n}",
            "owner": ("mia", "jan")[n % 2],
            "state": "running",
            "num_gpus": 2,
            "optional_num_gpus": [2, 4],
            "node": "n",
            "iterations": 100,
            "iters_done": n,
            "start_ts": 1.0,
            "ends_between": [2_000.0, 9_000.0],
            "message": "trains; " + "it could be anything that is long " * 3,
        }
        for n in range(20)
    ]
    lines = job_table.table(rows, 1_000.0, 80).splitlines()
    assert len(lines) == 21 and max(map(len, lines)) <= 80
    assert "OWNER" in lines[0] and "mia" in lines[1]
