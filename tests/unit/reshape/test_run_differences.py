"""How a stopped run differs from undisturbed ones: each difference once, with its kind; chance is none."""

from __future__ import annotations

import gzip
import io
import zipfile

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


def test_numbers_with_many_digits_are_no_dates() -> None:
    for was, now in (("mean 0.19991130", "mean 0.20121031"), ("tokens 12345678", "tokens 87654321")):
        sentence = f"what it prints: 1 of 1 printed lines other, such as {now!r} instead of {was!r}"
        assert found(run(output=now), run(output=was)) == [("printed lines", sentence)]


def test_what_is_steady_beside_what_varies_by_itself_is_compared() -> None:
    """A seed of urandom in a header, a column of it in each row."""
    whole = run({"log.csv": "seed 7\n0,0.5,17\n1,0.4,93\n2,0.3,55\n"})
    again = run({"log.csv": "seed 8\n0,0.5,28\n1,0.4,11\n2,0.3,72\n"})
    assert found(run({"log.csv": "seed 3\n0,0.5,1\n1,0.4,2\n2,0.3,3\n"}), whole, again) == []
    assert found(run({"log.csv": "seed 3\n2,0.3,3\n"}), whole, again) == [
        ("rows", "log.csv: 2 of 4 rows missing, such as '0,0.5,…'")
    ]
    assert found(run({"log.csv": "seed 3\n0,0.5,1\n1,0.9,2\n2,0.3,3\n"}), whole, again) == [
        ("rows", "log.csv: 1 of 4 rows other, such as '1,0.9,…' instead of '1,0.4,…'")
    ]


def test_names_that_vary_by_themselves_are_counted_and_what_is_in_them_is_compared() -> None:
    whole, again = run({"runs/3fa9/log.txt": "1\n2\n"}), run({"runs/b04c/log.txt": "1\n2\n"})
    assert found(run({"runs/77e1/log.txt": "1\n2\n"}), whole, again) == []
    assert found(run({"runs/77e1/log.txt": "1\n"}), whole, again) == [
        ("rows", "runs/3fa9/log.txt: 1 of 2 rows missing, such as '2'")
    ]
    assert found(run({"runs/77e1/log.txt": "1\n", "runs/9d20/log.txt": "2\n"}), whole, again) == [
        ("file", "2 files with a name of their own, undisturbed 1, such as runs/77e1/log.txt")
    ]


def archive(**members: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return held.getvalue()


def test_archives_are_compared_by_what_is_in_them_and_other_bytes_as_a_whole() -> None:
    whole = RunResult(
        {"m.keras": archive(date=b"1", weights=b"\xff1"), "w.bin": b"\xff1", "log.gz": gzip.compress(b"1\n2\n")}, "", 0
    )
    again = RunResult({**whole.files, "m.keras": archive(date=b"2", weights=b"\xff1")}, "", 0)
    alike = RunResult({**whole.files, "m.keras": archive(date=b"3", weights=b"\xff1")}, "", 0)
    assert found(alike, whole, again) == []
    other = {"m.keras": archive(date=b"3", weights=b"\xff2"), "w.bin": b"\xff2", "log.gz": gzip.compress(b"2\n")}
    assert found(RunResult(other, "", 0), whole, again) == [
        ("rows", "log.gz: 1 of 2 rows missing, such as '1'"),
        ("file", "m.keras/weights holds other bytes than undisturbed"),
        ("file", "w.bin holds other bytes than undisturbed"),
    ]


def test_bars_of_progress_and_files_of_events_that_each_start_begins_are_no_difference() -> None:
    whole = run({"runs/events.out.tfevents.1764219297.host.77.0": "a"}, "100%|██████| 60/60 [00:01<00:00]\nend\n")
    more = {"runs/events.out.tfevents.1764219291.host.78.0": "b", "runs/events.out.tfevents.1764219302.host.79.0": "c"}
    stopped = run(more, " 45%|███   | 27/60 [00:01<00:01]\n100%|██████| 60/60 [00:01<00:00]\nend\n")
    assert found(stopped, whole) == []


def test_warnings_that_libraries_print_at_each_start_are_no_difference() -> None:
    warning = "site-packages/torch/loader.py:759: UserWarning: 'pin_memory' is set\n  super().__init__(loader)\n"
    logged = "W1127 04:56:36.263000 29805 torch/utils/flop_counter.py:113] triton not found\n"
    whole = run(output=f"{logged}{warning}epoch 1\n  indented\n")
    stopped = run(output=f"{logged}{warning}{logged}{warning}epoch 1\n")
    assert found(stopped, whole) == [
        ("printed lines", "what it prints: 1 of 2 printed lines missing, such as '  indented'")
    ]
