"""Output that is kept in two files is read once, in order, and what is gone is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar import kept_output


def write(path: Path, *files: bytes) -> None:
    """Print these bytes, each into the next file."""
    for number, text in enumerate(files):
        with kept_output.open_to_write(str(path), full=number > 0) as log:
            log.write(text)


def everything(path: Path, offset: int = 0, limit: int = 4) -> bytes:
    found = b""
    while True:
        piece, after = kept_output.read(str(path), offset, limit)
        found += piece
        if after == offset:
            return found
        offset = after


def test_where_there_is_no_file_reading_begins_anew_with_a_word_if_there_was_one(tmp_path: Path) -> None:
    assert kept_output.read(str(tmp_path / "output.log"), 0, 10) == (b"", 0)
    assert kept_output.read(str(tmp_path / "output.log"), 7, 10) == (kept_output.LOST.encode(), 0)


@pytest.mark.parametrize("count", [1, 7, 14, 100])
def test_the_end_is_read_without_what_comes_before_it(tmp_path: Path, count: int) -> None:
    path = tmp_path / "output.log"
    assert kept_output.read(str(path), -count, 1000) == (b"", 0)
    write(path, b"one\ntwo\n", b"three\nfour\n")
    whole = b"one\ntwo\nthree\nfour\n"
    assert kept_output.read(str(path), -count, 1000) == (whole[-count:], len(whole))


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_two_files_are_read_as_one_from_any_place(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "output.log"
    write(path, b"one\ntwo\n", b"three\nfour\n")
    for offset in range(20):
        assert everything(path, offset, limit) == b"one\ntwo\nthree\nfour\n"[offset:]


def test_a_reader_goes_on_where_it_was_though_the_next_file_has_grown_beyond_that(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    write(path, b"one\n")
    piece, offset = kept_output.read(str(path), 0, 100)
    with kept_output.open_to_write(str(path)) as log:
        log.write(b"two\n")
    with kept_output.open_to_write(str(path), full=True) as log:
        log.write(b"three\nfour\nfive\n")
    assert piece + everything(path, offset) == b"one\ntwo\nthree\nfour\nfive\n"


def test_what_two_newer_files_have_pushed_out_is_named_and_no_lines_are_joined(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    write(path, b"one\ntwo\n")
    piece, offset = kept_output.read(str(path), 0, 5)
    assert (piece, offset) == (b"one\nt", 5)
    for text in (b"x" * 2_500_000 + b"\n", b"three\n", b"four\n"):
        with kept_output.open_to_write(str(path), full=True) as log:
            log.write(text)
    assert everything(path, offset).decode() == "\n… 2.5 MB of output left out …\nthree\nfour\n"
    assert everything(path).decode() == "… 2.5 MB of output left out …\nthree\nfour\n"


@pytest.mark.parametrize(
    ("before", "size"), [(999_999, "999999 bytes"), (2_540_000, "2.5 MB"), (12_600_000, "13 MB"), (10**10, "10000 MB")]
)
def test_how_much_is_left_out_is_said_in_few_digits(tmp_path: Path, before: int, size: str) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(kept_output.FIRST_LINE.format(before).encode() + b"one\n")
    assert everything(path).decode() == f"… {size} of output left out …\none\n"


def test_another_log_at_the_same_place_is_read_from_its_beginning_with_a_word(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"new\n")
    assert everything(path, 1000).decode() == kept_output.LOST + "new\n"


def test_a_file_before_that_is_not_known_to_come_right_before_is_left_alone(tmp_path: Path) -> None:
    """As after a shim of an earlier version, which wrote no first line."""
    path = tmp_path / "output.log"
    path.write_bytes(b"new\n")
    path.with_name("output.log.1").write_bytes(b"old\n")
    assert everything(path) == b"new\n"


def test_a_shim_that_is_killed_while_it_begins_a_file_leaves_all_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    write(path, b"one\n", b"two\n")
    path.replace(tmp_path / "output.log.1")
    path.with_name("output.log.new").write_bytes(b"half")
    assert kept_output.read(str(path), 8, 100) == (b"", 8)
    assert kept_output.read(str(path), 4, 100) == (b"two\n", 8)
    with kept_output.open_to_write(str(path)) as log:
        log.write(b"three\n")
    assert everything(path, 4) == b"two\nthree\n"
    assert everything(path, 8) == b"three\n"


def test_a_file_that_is_moved_while_it_is_opened_is_not_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    write(path, b"one\n", b"two\n")

    def moves(name: str, flags: int) -> int:
        opened = os.open(name, flags)
        if name == str(path):
            kept_output.open_to_write(str(path), full=True).close()
        return opened

    assert kept_output.read(str(path), 4, 100, moves) == (b"two\n", 8)


@pytest.mark.parametrize(("text", "is_open"), [(b"", False), (b"one\n", False), (b"one\ntw", True), (b"10 %\r", True)])
def test_it_is_known_whether_a_line_was_left_open(tmp_path: Path, text: bytes, is_open: bool) -> None:
    (tmp_path / "output.log").write_bytes(text)
    assert kept_output.ends_open(str(tmp_path / "output.log")) is is_open
    assert not kept_output.ends_open(str(tmp_path / "not there"))
