"""`python -m benchmarks gap --gpu`: its arguments, what it reads from a training's output, and its tables.

That it trains and restarts for real is shown by `tests/e2e/test_benchmarks.py`, on the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import __main__ as command
from benchmarks import gap_on_gpus
from benchmarks.gap_on_gpus.sides import (
    COLD,
    HELD,
    KILL,
    WAITING,
    Gap,
    InPlace,
    TimeUp,
    Watched,
    gap_between,
    processes,
)
from benchmarks.result import WrongAnswer
from coordinator.errors import ReshapeError
from tests.fakes.sidecar_launch import Launch

OUTPUT = """\
a warning of some library
trains=124m device=cuda made_on=gpu
step=0 loss=11.1250 time=100.000000
before=5 after=7 bytes=1493000000
step=1 total=10000000 time=100.010000
step=1 loss=10.9000 time=100.100000
before=7 after=9 bytes=1493000000
checkpoint=g1-s1 step=1 time=50.000000 took=0.018
checkpoint=g1-s2 step=2 time=101.500000 took=1.300
trains=124m device=cuda made_on=gpu
step=2 loss=10.8000 time=104.100000
before=9 after=12 bytes=1493000000
"""
GAP = Gap(8.0, 2.0, 1.0, 4.5, next_step=True, same_state=True, size=1_493_000_000, path="disk", load=0.4)


def test_a_gap_is_read_from_what_two_processes_printed() -> None:
    old, new = processes(OUTPUT)
    gap = gap_between(old, new, stop_at=100.15, exit_at=102.0, start_at=102.1, path="disk", load=1.5)
    assert (gap.seconds, gap.checkpoint_s) == pytest.approx((4.0, 1.35))
    assert (gap.exit_s, gap.start_s) == pytest.approx((0.5, 2.0))
    assert (gap.next_step, gap.same_state, gap.size) == (True, True, 1_493_000_000)
    assert (gap.path, gap.load) == ("disk", 1.5)


def test_a_step_done_twice_and_another_state_are_seen() -> None:
    old, new = processes(OUTPUT.replace("step=2 loss", "step=1 loss").replace("before=9 after=12", "before=7 after=9"))
    gap = gap_between(old, new, 100.15, 102.0, 102.1)
    assert (gap.next_step, gap.same_state) == (False, False)
    assert list(gap_on_gpus.wrong("124m", COLD, gap)) == [
        "124m, cold start: the step after the stop is not the next one",
        "124m, cold start: weights or optimizer state after the start are not those before the stop",
    ]


def test_a_stop_that_saved_nothing_has_no_such_stage() -> None:
    old, new = processes(OUTPUT)
    gap = gap_between(old, new, stop_at=101.7, exit_at=102.0, start_at=102.1)
    assert gap.checkpoint_s is None
    assert gap.exit_s == pytest.approx(0.3)


def test_a_wait_ends_with_the_time_and_with_the_training(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("Traceback: out of memory\n")
    with pytest.raises(TimeUp):
        Watched(tmp_path / "output.log", until=0.0).wait(lambda: False, lambda: False)
    with pytest.raises(WrongAnswer, match="out of memory"):
        Watched(tmp_path / "output.log", until=float("inf")).wait(lambda: False, lambda: True)


@pytest.mark.parametrize("held", [True, False])
def test_only_a_stop_for_a_state_that_stays_names_the_gpus_of_the_next_start(tmp_path: Path, held: bool) -> None:
    side = InPlace(cast("Launch", SimpleNamespace(folder=tmp_path)), ["GPU-1"], True, held, 0.0)
    asked = side._stop()
    assert asked["in_place"] is True
    assert asked.get("gpu_ids") == (["GPU-1"] if held else None)


def found() -> gap_on_gpus.Measured:
    measured = gap_on_gpus.Measured(left_out=["350m: nobody asked for it"])
    measured.gaps = {
        ("124m", KILL): [GAP, replace(GAP, seconds=9.0), replace(GAP, seconds=10.0)],
        ("124m", HELD): [replace(GAP, seconds=1.2, path="the GPU", interpreter="ready (600 MiB)")],
        ("124m", WAITING): [
            replace(GAP, seconds=6.0, interpreter="ready (600 MiB)"),
            replace(GAP, seconds=7.0, interpreter="begins to wait", same_state=False),
        ],
        ("124m", COLD): [],
    }
    return measured


def place() -> gap_on_gpus.Place:
    return gap_on_gpus.Place("python3", "2.11", False, ("GPU-1",), "NVIDIA H100 80GB HBM3", "nvml")


def test_the_rows_set_each_way_beside_kill_and_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_on_gpus, "WAYS", (KILL, COLD, WAITING, HELD))
    rows = {row.what: row for row in gap_on_gpus.report(found(), place(), 3).rows}
    held = rows["124m, held on the GPU"]
    assert (held.ours, held.theirs, held.floor) == (1.2, 9.0, 0.2)
    assert held.ratio == pytest.approx(1.2 / 9)
    assert rows["124m, held on the GPU, against 1.5 s"].ratio == pytest.approx(0.8)
    assert rows["124m, waiting interpreter"].ours == 6.5
    assert set(rows) == {"124m, held on the GPU", "124m, held on the GPU, against 1.5 s", "124m, waiting interpreter"}


def test_the_tables_say_stages_checks_load_and_what_the_shim_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_on_gpus, "WAYS", (KILL, COLD, WAITING, HELD))
    result = gap_on_gpus.report(found(), place(), 3)
    stages, rounds, shim = result.tables
    assert [row[:4] for row in stages.rows] == [
        ["124m", "1.49 GB", "kill and run again", "9.000"],
        ["124m", "1.49 GB", "waiting interpreter", "6.500"],
        ["124m", "1.49 GB", "held on the GPU", "1.200"],
    ]
    assert stages.rows[1][4:] == ["2.000", "1.000", "4.500", "2 of 2", "1 of 2"]
    assert rounds.rows[0] == ["124m", "kill and run again", "8.000, 9.000, 10.000", "0.4, 0.4, 0.4"]
    assert shim.rows == [
        ["124m", "waiting interpreter", "disk", "ready (600 MiB) (1); begins to wait (1)"],
        ["124m", "held on the GPU", "the GPU", "ready (600 MiB)"],
    ]
    assert "Left out: 350m: nobody asked for it." in result.as_text()
    assert "GPU NVIDIA H100 80GB HBM3, PyTorch 2.11, rounds 3 at most" in result.as_text()


def test_the_time_that_is_left_is_shared_and_what_one_does_not_need_goes_to_the_others() -> None:
    budget = gap_on_gpus.Budget(until=400.0, left=4)
    assert budget.share(0.0) == 100.0
    assert budget.share(40.0) == 40.0 + 120.0
    assert budget.share(500.0) == 500.0  # the one round that each begins is ended by the time, not by its share
    assert budget.share(0.0) == 400.0


def options(*arguments: str) -> Any:
    return command._parser().parse_args(["gap", "--gpu", *arguments])


def test_models_are_chosen_by_their_names() -> None:
    assert gap_on_gpus.chosen(options().models) == ["resnet50", "124m", "350m", "1.3b", "1.3b-cpu"]
    assert gap_on_gpus.chosen(options("--models", "1.3b, 124m-cpu,1.3b").models) == ["1.3b", "124m-cpu"]
    with pytest.raises(ReshapeError, match="there is no model '7b'; there are tiny, resnet50, 124m, "):
        gap_on_gpus.chosen("124m,7b")
    with pytest.raises(ReshapeError, match="there is no model ''"):
        gap_on_gpus.chosen("124m,")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["decide", "--gpu"], "--gpu is of gap alone"),
        (["--gpu"], "--gpu is of gap alone"),
        (["gap", "--models", "tiny"], "--models, --rounds and --most-s are of gap --gpu"),
        (["gap", "--gpu", "--rounds", "0"], "'0' is not a whole number above 0"),
        (["gap", "--gpu", "--most-s", "soon"], "'soon' is not a whole number above 0"),
    ],
)
def test_arguments_that_would_do_nothing_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert sentence in capsys.readouterr().err


def test_without_a_gpu_it_says_so_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gap_on_gpus, "list_gpus", list)
    assert command.main(["gap", "--gpu", "--models", "124m,tiny"]) == 1
    assert capsys.readouterr().err == (
        "gap: no NVIDIA GPU was found here: run this on a machine that has one, with its driver and pynvml "
        "(pip install nvidia-ml-py); --models tiny shows on the CPU that it works\n"
    )


def test_a_wrong_state_fails_the_run_after_its_numbers_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = found()
    measured.wrong = ["124m, waiting interpreter: weights are not those before the stop"]
    monkeypatch.setattr(gap_on_gpus, "run", lambda _: gap_on_gpus.report(measured, place(), 3))
    assert command.main(["gap", "--gpu"]) == 1
    printed = capsys.readouterr().out
    assert "emulated" not in printed
    assert printed.index("9.000") < printed.index("Wrong: 124m, waiting interpreter: weights are not those")
