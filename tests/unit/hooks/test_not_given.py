"""What a loop changes and Elastic was not given is named before the first stop; what a new start makes again is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.hooks.test_elastic import STARTUP

BEGIN = """
import copy, reshape_hooks
class Part:
    def __init__(self, numbers): self.numbers = numbers
    def state_dict(self): return {"numbers": self.numbers}
    def load_state_dict(self, state): self.numbers = state["numbers"]
    def step(self): self.numbers = [one + 1 for one in self.numbers]
class Wraps(Part):
    def __init__(self, part): self.part = part
    numbers = property(lambda self: self.part.numbers)
class Copies(Part):
    def state_dict(self): return {"numbers": list(self.numbers), "more": object()}
class Holds(Part):
    def __init__(self, numbers): self.numbers, self.inner = numbers, Part([1])
    def state_dict(self): return {"inner": self.inner.state_dict(), **super().state_dict()}
class Agent:
    def __init__(self): self.inner = {"all": [Part([5])]}
given, other, best, copies, holds = Part([0]), Part([7]), None, Copies([1]), Holds([2])
within = holds.inner
wraps = Wraps(given)
state = reshape_hooks.Elastic(given=given, holds=holds)
agent = Agent()
"""
LOOP = """
for epoch in state.epochs(3):
    meter_of_epoch = Part([0])
    for number in state.batches([1, 2, 3]):
        given.step()
        {}
print(given.numbers, other.numbers, best and best.numbers)
"""
SWITCHES = """
slow, fast = Part([0]), Part([0])
state, now = reshape_hooks.Elastic(slow=slow, fast=fast), slow
for epoch in state.epochs(3):
    {}
    for number in state.batches([1, 2, 3]):
        now.step()
print(slow.numbers, fast.numbers)
"""
LOST = {
    "a variable": ("other.step()", "other (Part)"),
    "within an object": ("agent.inner['all'][0].step()", "agent.inner['all'][0] (Part)"),
    "a copy": ("best = copy.deepcopy(given)", "best (Part)"),
    "another one": ("other = Part(given.numbers)", "other (Part)"),
}
KEPT = {
    "what does not change": "other.state_dict()",
    "what is made before it is used": "made = Part([0]); made.step()",
    "what is put around a part": "wraps.state_dict()",
    "what gives a copy of its state": "copies.state_dict()",
    "what a part holds and keeps": "within.step()",
}


def ended(folder: Path, change: str, loop: str = LOOP) -> tuple[str, str]:
    """Return what a loop with this change prints, and what it is told."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_JOB_ID": "loop", "RESHAPE_GENERATION": "1"}
    env |= {"RESHAPE_CHECKPOINTS": str(folder), "RESHAPE_ANNOUNCE": str(folder / "announce")}
    script = BEGIN + loop.format(change)
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize(("change", "name"), LOST.values(), ids=LOST)
def test_what_changes_and_was_not_given_is_named_once_and_never_announced(
    change: str, name: str, tmp_path: Path
) -> None:
    printed, told = ended(tmp_path, change)
    assert told.splitlines() == [
        f"reshape: this training could not be saved and goes on: {name} changes during training, and a restart would "
        "reset it: give it to Elastic, too"
    ]
    assert "[9]" in printed.splitlines()[-1], "it trains to its end"
    assert not [line for line in (tmp_path / "announce").read_text().splitlines() if line.startswith("SIGUSR1")]


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_what_a_new_start_makes_again_is_no_reason_to_keep_gpus(change: str, tmp_path: Path) -> None:
    _, told = ended(tmp_path, change)
    assert not told
    assert (tmp_path / "announce").read_text().startswith("SIGUSR1")


def test_a_loop_whose_epochs_have_a_meter_of_their_own_can_be_stopped_between_them(tmp_path: Path) -> None:
    printed, told = ended(tmp_path, "meter_of_epoch.step(); assert meter_of_epoch.numbers")
    assert "meter_of_epoch (Part) changes during training" in told
    lines = [line.split()[0] for line in (tmp_path / "announce").read_text().splitlines()]
    assert "SIGUSR1" in lines
    assert printed


def test_a_part_that_takes_the_place_of_another_for_good_is_said(tmp_path: Path) -> None:
    printed, told = ended(tmp_path / "once", "if epoch == 1: now = fast", SWITCHES)
    assert "could not be saved and goes on: now (Part) is not what it was when training began" in told
    assert printed.splitlines()[-1] == "[3] [6]"
    _, told = ended(tmp_path / "in each epoch", "now = fast if epoch else slow", SWITCHES)
    assert not told
