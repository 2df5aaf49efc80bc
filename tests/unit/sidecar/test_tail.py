"""Following a file that others write, move and cut."""

from __future__ import annotations

from pathlib import Path

from sidecar.output.tail import BEHIND, FAR_BEHIND, PIECE, LogTail


def everything(tail: LogTail) -> bytes:
    return b"".join(iter(tail.read, b""))


def test_what_is_there_and_what_is_added_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "out"
    tail = LogTail(file)
    assert tail.read() == b""
    file.write_bytes(b"one\n")
    assert everything(tail) == b"one\n"
    with file.open("ab") as more:
        more.write(b"two\n")
    assert everything(tail) == b"two\n" and tail.read() == b""


def test_a_long_file_comes_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"x" * (2 * PIECE + 1))
    tail = LogTail(tmp_path / "out")
    assert [len(tail.read()) for _ in range(4)] == [PIECE, PIECE, 1, 0]


def test_a_moved_file_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"one\n")
    tail = LogTail(file)
    assert tail.read() == b"one\n"
    with file.open("ab") as more:
        more.write(b"two\n")
    file.replace(tmp_path / "out.1")
    assert everything(tail) == b"two\n"
    file.write_bytes(b"three\n")
    assert everything(tail) == b"three\n"


def test_a_cut_file_is_read_from_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"a long line\n")
    tail = LogTail(file)
    assert everything(tail) == b"a long line\n"
    file.write_bytes(b"short\n")
    assert everything(tail) == b"short\n"


def test_a_removed_file_is_an_empty_one(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"one\n")
    tail = LogTail(file)
    everything(tail)
    file.unlink()
    assert tail.read() == b""
    tail.close()
    assert tail.read() == b""


def test_of_a_file_that_is_long_already_only_beginning_and_end_are_read_and_what_comes_then(tmp_path: Path) -> None:
    file = tmp_path / "output.log"
    lines = [b"line %09d\n" % number for number in range(300_000)]
    file.write_bytes(b"".join(lines))
    tail = LogTail(file)
    read = b"".join(iter(tail.read, b""))
    assert len(read) == PIECE + 1 + BEHIND
    found = read.split(b"\n")
    assert found[0] == b"line 000000000" and found[-2] == b"line 000299999"
    with file.open("ab") as log:
        log.write(b"more\n")
    assert tail.read() == b"more\n"


def test_a_file_that_grows_long_while_it_is_read_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "output.log"
    file.write_bytes(b"first\n")
    tail = LogTail(file)
    assert tail.read() == b"first\n"
    with file.open("ab") as log:
        log.write(b"x" * (PIECE + 2 * BEHIND))
    assert len(b"".join(iter(tail.read, b""))) == PIECE + 2 * BEHIND


def test_of_what_is_printed_faster_than_it_can_be_read_only_the_end_is_read(tmp_path: Path) -> None:
    file = tmp_path / "output.log"
    file.write_bytes(b"first\n")
    tail = LogTail(file)
    assert tail.read() == b"first\n"
    with file.open("ab") as log:
        log.write(b"x\n" * FAR_BEHIND + b"the end\n")
    read = everything(tail)
    assert len(read) <= PIECE + 1 + BEHIND and read.endswith(b"\nthe end\n")


def test_it_is_known_whether_some_was_passed_over_and_all_is_read_backwards_in_whole_lines(tmp_path: Path) -> None:
    file = tmp_path / "output.log"
    lines = [b"line %09d" % number for number in range(200_000)]
    old, new = lines[:120_000], lines[120_000:]
    (tmp_path / "output.log.1").write_bytes(b"\n".join(old) + b"\n")
    file.write_bytes(b"\n".join(new) + b"\n")
    tail = LogTail(file)
    assert not tail.passed_over
    everything(tail)
    assert not tail.passed_over
    with file.open("ab") as log:
        log.write(b"x\n" * FAR_BEHIND)
    everything(tail)
    assert tail.passed_over
    found = [piece for piece in tail.backwards() if b"line" in piece]
    assert max(map(len, found)) <= BEHIND
    seen = [line for piece in found for line in piece.split(b"\n") if line not in (b"", b"x")]
    assert set(seen) == set(lines), "whole lines only, and all of them"
    assert found[0].index(lines[-1]) and found[-1].startswith(lines[0])


def test_nothing_is_read_backwards_where_there_is_no_file(tmp_path: Path) -> None:
    assert list(LogTail(tmp_path / "output.log").backwards()) == []
