"""Which line of a program's output a sentence quotes, and how one that is too long is cut."""

from __future__ import annotations

import pytest

from coordinator.model.gang import describe_exit
from coordinator.model.last_words import QUOTED, last_words, quoted
from sidecar.protocol import ShimStatus


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Traceback\n\nValueError: bad batch\n", "ValueError: bad batch"),
        ("no space left\n" + "." * 2000, "no space left"),
        ("no space left\n=======\n  ^^^^\n 100\n", "no space left"),
        ("fetching\r50% |####|\r100% |####|\nno space left\n\x1b[0m\n", "no space left"),
        ("\x1b[31mno space left\x1b[0m", "no space left"),
        ("кончилось место\n...\n", "кончилось место"),
        ("....\n", "...."),
        ("", ""),
    ],
)
def test_the_last_line_that_says_something_is_quoted(output: str, line: str) -> None:
    assert last_words(output) == line


TABLE = """Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_20:33:17
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 2648)
  error_file: <N/A>
  traceback : {}
============================================================
"""


def test_of_a_table_of_torchrun_the_process_that_failed_first_is_told() -> None:
    told = last_words(TABLE.format("To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"))
    assert told == "of torchrun's processes, rank 3 ended first, with -9: see what it printed"
    assert last_words(TABLE.format("Signal 9 (SIGKILL) received by PID 2648")).endswith("SIGKILL) received by PID 2648")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no space left", "no space left"),
        ("copies" + "." * 400 + " no space left", "copies... no space left"),
        ("a  b\n c", "a b c"),
        ("==== no space left ====", "=== no space left ==="),
        ("step 1000000 of 2000000", "step 1000000 of 2000000"),
    ],
)
def test_rows_of_one_sign_and_of_spaces_are_short(text: str, said: str) -> None:
    assert quoted(text) == said


def test_of_a_long_line_the_beginning_and_the_end_are_quoted_in_whole_words() -> None:
    line = f"command {' '.join(f'--option-{n}' for n in range(200))} failed: no space left"
    said = quoted(line)
    assert len(said) <= QUOTED
    assert said.startswith("command --option-0 --option-1 ") and said.endswith(" --option-199 failed: no space left")
    begin, _, end = said.partition(" … ")
    assert {*begin.split(), *end.split()} <= {*line.split()}


def test_a_long_word_is_cut() -> None:
    said = quoted("x" * 1000)
    assert len(said) == QUOTED and " … " in said


def test_the_end_of_a_training_is_told_with_its_last_words() -> None:
    shim = ShimStatus(trainer="exited", exit_code=2, output_tail="fatal: host is unreachable\n" + "." * 1500 + "\n")
    assert describe_exit(shim) == "the training process ended with exit code 2: fatal: host is unreachable"
