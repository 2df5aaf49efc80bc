"""How often a training is saved without being asked, and that it goes on while that is written."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reshape_hooks import plain
from reshape_hooks.periodic import memory
from reshape_hooks.periodic import saver as of_saver
from reshape_hooks.periodic.interval import interval_s
from reshape_hooks.periodic.saver import Saver

DAY_S = 86_400.0


# The interval


@pytest.mark.parametrize(
    ("save_s", "between_failures_s", "wanted_s"),
    [
        (300.0, DAY_S, 7200 * (1 + 1 / 72 + 1 / 5184) - 300),  # Young's is 7200 s, as part is 1/24 squared
        (1.0, 5000.0, 100 * (1 + 0.01 / 3 + 0.0001 / 9) - 1),
        (8.0, 16.0, 16 * (1 + 0.5 / 3 + 0.25 / 9) - 8),
        (32.0, 16.0, 16.0),
        (1e6, 16.0, 16.0),
        (0.0, DAY_S, 0.0),
    ],
)
def test_the_interval_is_dalys(save_s: float, between_failures_s: float, wanted_s: float) -> None:
    assert interval_s(save_s, between_failures_s) == pytest.approx(wanted_s)


@given(st.floats(1e-6, 1e3), st.floats(1e4, 1e8))
def test_where_a_save_is_short_it_is_youngs_less_the_save_itself(save_s: float, between_failures_s: float) -> None:
    if save_s * 2e4 < between_failures_s:
        youngs = math.sqrt(2 * save_s * between_failures_s)
        assert interval_s(save_s, between_failures_s) == pytest.approx(youngs, rel=0.01)


@given(st.floats(0.001, 0.5), st.floats(1.0, 1e6))
def test_no_other_interval_loses_noticeably_less(share: float, between_failures_s: float) -> None:
    """By Daly's expected time of a training whose failures come at random, also where saves take long."""

    def takes(every_s: float) -> float:
        return math.expm1((every_s + share * between_failures_s) / between_failures_s) / every_s

    ours = interval_s(share * between_failures_s, between_failures_s)
    assert all(takes(ours) <= 1.002 * takes(ours * factor / 100) for factor in range(10, 400, 5))


# The saver


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def saver(tmp_path: Path, clock: Clock) -> Saver:
    return Saver(plain.Checkpoints(tmp_path, "job", 1), {}, clock)


def give(files: Mapping[str, Any]) -> Callable[[bool], Mapping[str, Any]]:
    return lambda _in_memory: files


def names(saver: Saver) -> list[str]:
    return sorted(path.name for path in saver.checkpoints.folder.iterdir())


def test_it_is_due_after_the_interval_counted_from_the_begin_and_from_each_save(saver: Saver, clock: Clock) -> None:
    clock.now += 500
    saver.begin()
    first_s = interval_s(of_saver.USUAL_SAVE_S, DAY_S)
    assert 58 < first_s < 59
    clock.now += first_s - 0.01
    assert not saver.due()
    clock.now += 0.02
    assert saver.due() and saver.due()

    def slow(_path: str) -> None:
        Path(_path).write_bytes(b"x")
        clock.now += 3.0

    saver.beside(7, give({"a": slow}))
    assert not saver.due()
    assert saver.every_s == pytest.approx(interval_s(3.0, DAY_S))
    clock.now += saver.every_s - 3.1
    assert not saver.due()
    clock.now += 0.2
    assert saver.due()
    saver.now(8, {"a": b"x"})
    assert not saver.due(), "one that was asked for counts, too"


def test_what_a_save_takes_beside_the_training_counts_for_a_twentieth(saver: Saver, clock: Clock) -> None:
    saver.now(1, {"a": b"x"})

    def slow(path: str) -> None:
        Path(path).write_bytes(b"x")
        clock.now += 20.0

    def taken(_in_memory: bool) -> Mapping[str, Any]:
        clock.now += 0.5
        return {"a": slow}

    saver.beside(2, taken)
    saver.finish()
    assert saver.every_s == pytest.approx(interval_s(0.5 + 1.0, DAY_S))


@pytest.mark.parametrize(("text", "wanted_s"), [("", DAY_S), ("3600", 3600.0), ("0", 0.0), ("1e9", 1e9)])
def test_the_time_between_failures_is_a_setting(tmp_path: Path, text: str, wanted_s: float) -> None:
    saver = Saver(plain.Checkpoints(tmp_path, "job", 1), {"RESHAPE_MTBF_S": text})
    assert saver.between_failures_s == wanted_s
    assert (saver.every_s == math.inf) == (wanted_s == 0)


@pytest.mark.parametrize("text", ["a day", "-1", "nan", "inf", "-inf"])
def test_one_that_makes_no_sense_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(SystemExit, match="RESHAPE_MTBF_S must be the seconds between two failures"):
        Saver(plain.Checkpoints(tmp_path, "job", 1), {"RESHAPE_MTBF_S": text})


def test_training_goes_on_while_it_is_written_and_the_next_one_waits(
    saver: Saver, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """No step of it is decided by time: the disk waits for this test."""
    disk = threading.Event()
    state = bytearray(b"step 2")
    asked: list[bool] = []

    def make(in_memory: bool) -> Mapping[str, Any]:
        asked.append(in_memory)
        content = bytes(state) if in_memory else b""

        def write(path: str) -> None:
            assert not in_memory or disk.wait(60)
            Path(path).write_bytes(content)

        return {"state": write}

    saver.beside(1, make)
    assert asked == [False] and names(saver) == ["g1-s1"], "how large it is, was not known"
    saver.beside(2, make)
    state[:] = b"step 3"
    clock.now += 10 * DAY_S
    assert not saver.due(), "one is still being written"
    assert "g1-s2" not in names(saver)
    assert "step=2" not in capsys.readouterr().out
    disk.set()
    assert saver._thread is not None
    saver._thread.join()
    assert "step=2" not in capsys.readouterr().out, "else it could stand in a line that the script prints"
    saver.now(3, {"state": bytes(state)})
    printed = capsys.readouterr().out
    assert printed.index("checkpoint=g1-s2 step=2 time=") < printed.index("checkpoint=g1-s3 step=3 time=")
    assert [(saver.checkpoints.folder / name / "state").read_bytes() for name in ("g1-s2", "g1-s3")] == [
        b"step 2",
        b"step 3",
    ]
    assert names(saver) == ["g1-s2", "g1-s3"], "older ones are pruned"
    assert asked == [False, True]


def test_without_memory_to_spare_it_is_written_before_training_goes_on(
    saver: Saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver.now(1, {"a": b"x" * 1000})
    asked: list[bool] = []

    def make(in_memory: bool) -> Mapping[str, Any]:
        asked.append(in_memory)
        return {"a": b"x" * 1000}

    for step, more in ((2, -1000), (3, 0), (4, 1)):
        monkeypatch.setattr(of_saver, "free_memory", lambda more=more: saver._size * of_saver.MEMORY_SHARE + more)
        saver.beside(step, make)
    saver.finish()
    assert asked == [False, False, True]


def test_one_that_cannot_be_written_is_said_once_and_leaves_the_old_ones(
    saver: Saver, capsys: pytest.CaptureFixture[str]
) -> None:
    saver.now(1, {"a": b"x"})

    def fails(_path: str) -> None:
        raise OSError(28, "No space left on device")

    saver.beside(2, give({"a": fails}))
    saver.finish()
    told = capsys.readouterr().err
    assert told.startswith("reshape: this training goes on, but the checkpoint of step 2 could not be saved in")
    assert "No space left on device" in told
    assert not saver.due() and names(saver) == ["g1-s1"]
    saver.now(3, {"a": b"x"})
    assert capsys.readouterr().err == ""


def test_a_disk_that_stays_full_is_told_once_until_it_has_taken_a_save(
    saver: Saver, capsys: pytest.CaptureFixture[str]
) -> None:
    saver.now(1, {"a": b"x"})

    def full(_path: str) -> None:
        raise OSError(28, "No space left on device")

    def gone(_path: str) -> None:
        raise OSError(5, "Input/output error")

    for step, fails in ((2, full), (3, full), (4, gone)):
        saver.beside(step, give({"a": fails}))
        saver.finish()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "step 2 could not be saved" in told[0]
    assert "Input/output error" in told[1]
    saver.beside(5, give({"a": b"x"}))
    saver.finish()
    saver.beside(6, give({"a": gone}))
    saver.finish()
    assert "step 6 could not be saved" in capsys.readouterr().err


def test_where_no_thread_can_be_started_it_is_written_at_once(saver: Saver, monkeypatch: pytest.MonkeyPatch) -> None:
    saver.now(1, {"a": b"x"})

    def none(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    saver.beside(2, give({"a": b"y"}))
    assert names(saver) == ["g1-s1", "g1-s2"]


def test_whoever_keeps_files_of_a_checkpoint_hears_of_the_next_before_the_old_one_goes(tmp_path: Path) -> None:
    there: list[list[str]] = []
    saver = Saver(plain.Checkpoints(tmp_path, "job", 1), {}, written=lambda name: there.append([name, *names(saver)]))
    for step in (1, 2, 3):
        saver.now(step, {"a": b"x"})
    assert there[-1] == ["g1-s3", "g1-s1", "g1-s2", "g1-s3"]


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"meminfo": "MemTotal: 9 kB\nMemAvailable:    5 kB\n"}, 5 * 1024),
        ({"meminfo": "MemAvailable: 5 kB\n", "max": "max\n"}, 5 * 1024),
        (
            {"meminfo": "MemAvailable: 5 kB\n", "max": "4000\n", "used": "3500\n", "stat": "anon 1\ninactive_file 9\n"},
            509,
        ),
        ({"meminfo": "MemAvailable: 5 kB\n", "max": "4000\n"}, 4000),
        ({}, 0),
    ],
)
def test_free_memory_is_that_of_the_machine_or_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], wanted: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    at = {name: str(tmp_path / name) for name in ("meminfo", "max", "used", "stat")}
    monkeypatch.setattr(memory, "MEMINFO", at["meminfo"])
    monkeypatch.setattr(memory, "MEMORY", {at["max"]: (at["used"], at["stat"], "inactive_file")})
    assert memory.free_memory() == wanted
