"""The shim looks at the clock rarely while nothing changes, and in time for all that it has promised to do then."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sidecar import shim
from sidecar.shim import CALM_S, CALM_TICK_S, MUCH, MUCH_TICK_S, NEVER, TICK_S, Shim

GRACE_S, NOW = 20.0, 1000.0
CALM = {"trainer": "running", "spawn_at": NOW - CALM_S - 1.0, "lease_deadline": 0.0}


def pause(
    monkeypatch: pytest.MonkeyPatch, busy: bool = False, kill_at: float = NEVER, strict: bool = False,
    came: float = 0.0, held: dict[int, int] | None = None, **status: Any,
) -> float:  # fmt: skip
    monkeypatch.setattr(shim, "boottime", lambda: NOW)
    one = object.__new__(Shim)
    one.status, one.ending, one.kill_at = {**CALM, **status}, False, kill_at
    one.launch = SimpleNamespace(sidecar=["x"], grace_s=GRACE_S)  # type: ignore[assignment]
    one.sidecar, one.warm = object(), SimpleNamespace(busy=busy, strict=strict)  # type: ignore[assignment]
    one.copy, one.freezer, one.held = None, None, held or {}
    one.trainer = SimpleNamespace(came=came)  # type: ignore[assignment]
    return one._pace()


def test_beside_an_undisturbed_trainer_it_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause(monkeypatch) == CALM_TICK_S
    assert pause(monkeypatch, lease_deadline=NOW + GRACE_S + 60.0) == CALM_TICK_S


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": "exited"},
        {"spawn_at": NOW - 1.0},
        {"spawn_at": None},
        {"busy": True},
        {"kill_at": NOW + 5.0},
        {"held": {7: 1}},
    ],
    ids=str,
)
def test_where_something_changes_it_looks_often(monkeypatch: pytest.MonkeyPatch, changes: Any) -> None:
    assert pause(monkeypatch, **changes) == TICK_S


def test_it_wakes_when_the_lease_asks_for_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause(monkeypatch, lease_deadline=NOW + GRACE_S + 0.5) == pytest.approx(0.5)
    assert pause(monkeypatch, lease_deadline=NOW) == TICK_S


def test_memory_whose_shortage_ends_the_training_too_is_looked_at_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause(monkeypatch, strict=True) == shim.WARM.LOOK_S < CALM_TICK_S


def test_output_of_which_much_comes_is_read_before_it_fills_its_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pause(monkeypatch, came=MUCH) == CALM_TICK_S
    assert pause(monkeypatch, came=MUCH + 1) == MUCH_TICK_S


def test_a_client_gets_all_that_it_is_told_at_once_and_so_wakes_once() -> None:
    one, (client, ours) = object.__new__(Shim), socket.socketpair()
    with client, ours:
        client.setblocking(False)
        one.clients, one.letters, one.trainer, one.heard = {ours: b""}, {}, None, False
        one.status, one.shown, one.told_at, one.tick_s = {}, {}, 0.0, TICK_S
        one.calm, one.reports = False, SimpleNamespace(watched=True)  # type: ignore[assignment]
        for number in (1, 2):
            one._tell(ours, {"told": number})
        with pytest.raises(BlockingIOError):
            client.recv(100)
        one._publish()
        assert client.recv(100) == b'{"told": 1}\n{"told": 2}\n'
        assert one.letters == {}


def hangs_after(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    looks: int,
    cpu_s: float = 0.0,
    shows: bool = False,
    others: int = 0,
    **status: Any,
) -> list[bool]:
    """Return what each look says, a second apart, at what has saved and ends.

    `cpu_s`, `shows`: what that does then. `others`: for how many looks another training of the job still saves.
    """
    monkeypatch.chdir(folder)
    Path("announce").write_text("stopped 7@1\n")
    one = object.__new__(Shim)
    one.status = {"patient": True, **status}
    one.looked_at_end = one.lived_at = 0.0
    one.life_at_end = (0, 0.0)
    found = []
    for second in range(looks):
        saving = {b"stopped": {7}, b"": {7, 8} if second < others else {7}}
        monkeypatch.setattr(one, "_savers", saving.__getitem__)
        monkeypatch.setattr(shim, "wanted_s", lambda _pid, second=second: 5.0 + cpu_s * second)
        if shows:
            os.utime("announce", ns=(second, second))
        found.append(one._hangs_at_its_end(NOW + second))
    return found


def test_what_has_saved_and_does_nothing_any_more_hangs_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = int(shim.STUCK_S)
    assert hangs_after(tmp_path, monkeypatch, seconds + 2) == [False] * (seconds + 1) + [True]
    assert not any(hangs_after(tmp_path, monkeypatch, 3 * seconds, cpu_s=0.5))
    assert not any(hangs_after(tmp_path, monkeypatch, 3 * seconds, shows=True))
    assert not any(hangs_after(tmp_path, monkeypatch, 3 * seconds, patient=False))


def test_while_another_training_of_the_job_saves_none_that_hangs_at_its_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = int(shim.STUCK_S)
    found = hangs_after(tmp_path, monkeypatch, 3 * seconds + 1, others=2 * seconds)
    assert found == [False] * (3 * seconds) + [True]


def test_processes_are_looked_for_once_a_second_while_a_stop_waits_for_what_they_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To find them reads a file of each process of the machine: 20 ms for 700 of them."""
    looks = list[object]()

    def find(strangers: object) -> dict[int, str]:
        looks.append(strangers)
        return {os.getpid(): "python"}

    one = object.__new__(Shim)
    one.status = {"fenced": False, "stop_asked": True}
    one.ending = False
    one.spares = True
    one.held = {}
    one.asked = set()
    one.writes = shim.WRITES.DiskWrites()
    one.sidecar = None
    one.source = None
    one.copy = None
    one.warm = None
    one.freezer = None
    monkeypatch.setattr(shim, "family", find)
    for tick in range(31):
        one._still_writes(NOW + tick * TICK_S)
    assert len(looks) == 4
