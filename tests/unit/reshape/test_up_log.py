"""The log of a `reshape up` in the background is two short files, in which nothing but the oldest is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reshape.services import up_log
from tests.patience import patient

MOST = 20_000
WRITER = f"""
import os, sys, threading, time
from pathlib import Path
from reshape.services import up_log

state, end = Path(sys.argv[1]), threading.Event()
watch = threading.Thread(target=up_log.keep_short, args=(state, end, {MOST}, 0.001))
watch.start()
seen, number = set(), 0
while len(seen) < 3 or number % 1000:  # until it was begun anew three times, and some lines more
    number += 1
    print(number, file=sys.stdout if number % 2 else sys.stderr, flush=True)
    if (state / "up.log.1").exists():
        seen.add((state / "up.log.1").stat().st_ino)
    time.sleep(0.0005)
end.set()
watch.join()
print("last", flush=True)
"""


def test_only_the_oldest_lines_go_and_all_others_are_there_in_their_order(tmp_path: Path) -> None:
    with (tmp_path / up_log.LOG).open("ab") as log:
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        assert subprocess.run(command, stdout=log, stderr=log, timeout=patient(120), check=False).returncode == 0
    *lines, last = [*(tmp_path / up_log.OLD).read_text().split(), *(tmp_path / up_log.LOG).read_text().split()]
    numbers = [int(line) for line in lines]
    assert last == "last" and numbers[0] > 1
    assert numbers == list(range(numbers[0], numbers[-1] + 1)) and numbers[-1] % 1000 == 0
    assert {file.name for file in tmp_path.iterdir()} == {up_log.LOG, up_log.OLD}


def test_the_output_of_a_terminal_or_another_file_is_left_alone(tmp_path: Path) -> None:
    log = tmp_path / up_log.LOG
    log.write_bytes(b"x" * (MOST + 1))
    up_log._shorten_if_long(tmp_path, MOST)
    assert [file.name for file in tmp_path.iterdir()] == [up_log.LOG]


def test_a_long_log_of_an_earlier_run_is_set_aside_and_a_short_one_goes_on(tmp_path: Path) -> None:
    log, old = tmp_path / up_log.LOG, tmp_path / up_log.OLD
    up_log.set_aside(tmp_path)
    log.write_text("short")
    up_log.set_aside(tmp_path)
    assert log.read_text() == "short" and not old.exists()
    old.write_text("older")
    with log.open("ab") as file:
        file.truncate(up_log.MOST + 1)
    up_log.set_aside(tmp_path)
    assert not log.exists() and old.stat().st_size == up_log.MOST + 1


def test_where_no_new_file_can_be_made_the_log_goes_on_in_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / up_log.LOG
    with log.open("ab") as file:
        file.write(b"x" * (MOST + 1))
        file.flush()
        monkeypatch.setattr(up_log, "OUTPUTS", (file.fileno(),))
        (tmp_path / up_log.NEW).mkdir()
        with pytest.raises(IsADirectoryError):
            up_log._shorten_if_long(tmp_path, MOST)
        file.write(b"newest")
    assert log.read_bytes().endswith(b"newest") and not (tmp_path / up_log.OLD).exists()
    assert log.stat().st_size == MOST + 1 + 6
