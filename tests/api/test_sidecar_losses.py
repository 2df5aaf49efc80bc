"""What a real sidecar beside a real shim says of work that was done again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.protocol import Heartbeat, Lost
from tests.fakes.sidecar_launch import Launch, eventually
from tests.fakes.tiny_coordinator import TinyCoordinator, serving

# Begins at the epoch that a file names, prints up to the one behind it, then goes on without a word.
EPOCHS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "deaf" else signal.SIG_DFL)
first, last = map(int, open(sys.argv[2]).read().split())
for epoch in range(first, last + 1):
    print(f"Epoch [{epoch}/30], Loss: {1 / epoch:.4f}", flush=True)
print("prints no more", end="", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def coordinator() -> Iterator[TinyCoordinator]:
    with serving(TinyCoordinator()) as tiny:
        yield tiny


Begin = Callable[[str], Launch]


@pytest.fixture
def begin(tmp_path: Path, coordinator: TinyCoordinator) -> Iterator[Begin]:
    begun: list[Launch] = []

    def one(kind: str) -> Launch:
        (tmp_path / "epochs.py").write_text(EPOCHS)
        command = [sys.executable, str(tmp_path / "epochs.py"), kind, str(tmp_path / "epochs")]
        begun.append(Launch(tmp_path / "launch", coordinator.url(), command=command))
        return begun[-1].ready()

    yield one
    for launch in begun:
        launch.end()


def heard(coordinator: TinyCoordinator, true: Callable[[Heartbeat], Any], what: str) -> Heartbeat:
    return eventually(lambda: next((beat for beat in reversed(coordinator.beats) if true(beat)), None), what)


def trains(launch: Launch, coordinator: TinyCoordinator, generation: int, first: int, last: int) -> Heartbeat:
    """Stop what runs, let the next generation print these epochs; what is heard then."""
    launch.call("stop", {"generation": generation, "command_id": f"job-1:{generation}:stop", "grace_s": 0.5})
    ended = ("none", "exited")
    heard(coordinator, lambda b: b.shim.generation == generation and b.shim.trainer in ended, "its end")
    (launch.folder.parent / "epochs").write_text(f"{first} {last}")
    launch.start(generation)

    def told(beat: Heartbeat) -> bool:
        here = beat.shim.generation == generation and beat.shim.trainer == "running"
        return (
            here
            and (beat.lost is not None or generation == 1)
            and beat.progress.value == pytest.approx(1 / last, abs=1e-4)
        )

    return heard(coordinator, told, f"epoch {last} of generation {generation}")


def test_epochs_that_a_script_deaf_to_sigterm_did_again_are_told_as_lost(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin("deaf")
    assert trains(launch, coordinator, 1, 1, 12).lost is None
    assert trains(launch, coordinator, 2, 1, 5).lost == Lost(epochs=12.0, generation=2)
    killed = heard(coordinator, lambda b: b.shim.exit_code == -signal.SIGKILL, "that it was killed")
    assert killed.lost is None and killed.progress.epochs == 12.0


def test_a_script_that_goes_on_where_it_was_has_lost_nothing(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin("plain")
    trains(launch, coordinator, 1, 1, 12)
    assert trains(launch, coordinator, 2, 13, 14).lost == Lost(generation=2)


def test_the_next_sidecar_tells_the_same_loss_of_the_same_generation(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin("plain")
    trains(launch, coordinator, 1, 1, 12)
    told = trains(launch, coordinator, 2, 9, 10)
    assert told.lost == Lost(epochs=4.0, generation=2)
    os.kill(told.sidecar_pid, signal.SIGKILL)
    again = heard(coordinator, lambda b: b.sidecar_pid != told.sidecar_pid and b.progress.epochs, "the next sidecar")
    assert again.lost == told.lost
