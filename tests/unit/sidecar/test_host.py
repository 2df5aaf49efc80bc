"""How busy a machine is, by what its kernel says of all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.resources.host import PROC, HostUsage


def says(proc: Path, busy: int, idle: int, waits: int = 0, available: int = 250) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} {waits} 0 0 0 {busy} 0\ncpu0 1 2 3 4\n")
    (proc / "meminfo").write_text(f"MemTotal:     1000 kB\nMemFree:  10 kB\nMemAvailable: {available} kB\n")


def test_the_share_of_the_cores_that_was_busy_since_the_last_look(tmp_path: Path) -> None:
    says(tmp_path, 100, 100)
    use = HostUsage(tmp_path)
    assert use.cpu() is None, "no time has passed"
    says(tmp_path, 130, 150, waits=20)
    assert (use.cpu(), use.memory()) == (pytest.approx(0.3), 0.75)
    says(tmp_path, 130, 250, waits=20)
    assert use.cpu() == 0.0


@pytest.mark.parametrize("stat", ["", "cpu", "cpu a b c d e f g h", "cpu 1 2", "intr 1 2 3 4 5 6 7 8"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, stat: str) -> None:
    (tmp_path / "stat").write_text(stat)
    (tmp_path / "meminfo").write_text("MemTotal: 0 kB\nMemAvailable: 0 kB")
    use = HostUsage(tmp_path)
    assert (use.cpu(), use.memory(), HostUsage(tmp_path / "none").memory()) == (None, None, None)


def test_a_clock_that_runs_backwards_gives_no_nonsense(tmp_path: Path) -> None:
    says(tmp_path, 100, 100)
    use = HostUsage(tmp_path)
    says(tmp_path, 300, 50)
    assert use.cpu() == 1.0
    says(tmp_path, 10, 10)
    assert use.cpu() is None


def test_this_machine_says_it() -> None:
    memory = HostUsage(PROC).memory()
    assert memory is not None and 0 < memory < 1
