"""How a stopped run differs from undisturbed ones: each difference once, with its kind; chance is none."""

from __future__ import annotations

from reshape.run_differences import RunResult, differences

ROWS = "".join(f"{step},{step * step}\n" for step in range(10))


def run(files: dict[str, str] | None = None, output: str = "", exit_code: int = 0) -> RunResult:
    return RunResult({name: text.encode() for name, text in (files or {}).items()}, output, exit_code)


def found(stopped: RunResult, whole: RunResult, again: RunResult | None = None) -> list[tuple[str, str]]:
    return [(one.kind, one.sentence) for one in differences(whole, again or whole, stopped)]


def test_rows_that_are_missing_twice_and_other_are_told_apart() -> None:
    lines = ROWS.splitlines(keepends=True)
    stopped = run({"log.csv": "".join([*lines[3:9], lines[4], "9,80\n"])})
    assert found(stopped, run({"log.csv": ROWS})) == [
        ("rows", "log.csv: 4 of 10 rows missing, such as '0,0'"),
        ("rows", "log.csv: 1 of 10 rows twice, such as '4,16'"),
        ("rows", "log.csv: 1 of 10 rows other, such as '9,80'"),
    ]


def test_files_printed_lines_order_and_exit_code() -> None:
    whole = run({"a.txt": "1\n2\n", "b.txt": ""}, "epoch 1\nepoch 2\n")
    stopped = run({"a.txt": "2\n1\n", "c.txt": ""}, "epoch 1\n", 1)
    assert found(stopped, whole) == [
        ("file", "b.txt is missing"),
        ("file", "c.txt is new"),
        ("rows", "a.txt: the same rows in another order"),
        ("printed lines", "what it prints: 1 of 2 printed lines missing, such as 'epoch 2'"),
        ("exit code", "it ends with 1, undisturbed with 0"),
    ]


def test_times_speeds_and_our_own_lines_are_no_difference() -> None:
    whole = run({"runs/2026-11-26_17-30-01/log.txt": "12:30:01 epoch 1 took 3.2 s\n"}, "5/5 - 1s 20ms/step\n")
    stopped = run(
        {"runs/2026-11-26_17-45-59/log.txt": "12:46:11 epoch 1 took 2.9 s\n"},
        "step=3 total=5 time=12.5\ncheckpoint=g1-s3 step=3 time=1.0\n5/5 - 2s 31ms/step\n",
    )
    assert found(stopped, whole) == []


def test_what_varies_by_itself_is_compared_by_its_number_only() -> None:
    whole, again = run({"log.csv": "0.12\n0.34\n"}), run({"log.csv": "0.13\n0.35\n"})
    assert found(run({"log.csv": "0.9\n0.8\n"}), whole, again) == []
    assert found(run({"log.csv": "0.9\n"}), whole, again) == [
        ("rows", "log.csv: 1 fewer rows than the 2 of an undisturbed run")
    ]


def test_a_folder_of_each_start_is_a_difference() -> None:
    whole = run({"runs/2026-11-26_17-30-01/log.txt": "1\n"})
    stopped = run({"runs/2026-11-26_17-30-01/log.txt": "1\n", "runs/2026-11-26_17-45-59/log.txt": "1\n"})
    assert found(stopped, whole)[0] == ("file", "runs/DATE/log.txt is there 2 times, undisturbed 1")
