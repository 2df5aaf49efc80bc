"""What the script's own classes add to objects that a library saves in part."""

from __future__ import annotations

import collections
import functools
import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reshape_hooks.adapters import own_attributes, variables
from reshape_hooks.adapters.script_frames import Object
from reshape_hooks.adapters.variables import Variables
from reshape_hooks.files import replay, watch
from reshape_hooks.plain import CheckpointError


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return function(*given)

    return call


class History:
    def __init__(self) -> None:
        self.losses: list[float] = []
        self.steps, self.log, self.figure = 0, io.StringIO(), None

    def add(self, loss: float) -> None:
        self.losses.append(loss)
        self.steps += 1

    @wrapped
    def draw(self) -> Any:
        self.figure = (one for one in self.losses)  # type: ignore[assignment]

    @property
    def mean(self) -> float:
        return self.total / self.steps  # type: ignore[attr-defined,no-any-return]


FUNCTION = "test_named_tuples_in_a_memory_are_kept_and_what_is_not_is_named_where_the_loop_changes_it"


class Played(NamedTuple):
    state: list[float]
    reward: float


class Memory:
    """As scripts of reinforcement learning have it."""

    def __init__(self) -> None:
        self.played: collections.deque[Any] = collections.deque(maxlen=3)


def kept(one: Any, saved: Any = (), parts: Sequence[Any] = ()) -> Variables:
    return Variables(parts, saved, own_attributes.of_script("callback", [one]))


def saved_of(found: Variables) -> Any:
    return [(key, values) for key, values in found.state() if not key[1]]


def test_what_training_has_changed_goes_on_in_the_lists_that_others_hold_and_all_else_stays() -> None:
    first, second = History(), History()
    before = kept(first)
    before.begin()
    first.add(0.5)
    first.add(0.25)
    held, log = second.losses, second.log
    after = kept(second, saved_of(before))
    after.look()
    after.begin()
    assert second.losses is held and held == [0.5, 0.25]
    assert (second.steps, second.log is log) == (2, True)


def test_what_cannot_be_kept_is_named_once_and_only_if_training_has_set_it(capfd: pytest.CaptureFixture[str]) -> None:
    one = History()
    found = kept(one)
    found.begin()
    found.state()
    assert not capfd.readouterr().err
    one.draw()
    found.state()
    found.state()
    named = "reshape: after a stop figure of History begins anew, because a generator like it cannot be kept\n"
    assert capfd.readouterr().err == named


def test_named_tuples_in_a_memory_are_kept_and_what_is_not_is_named_where_the_loop_changes_it() -> None:
    memory, locks, lists = Memory(), [threading.Lock()], [[threading.Lock()]]
    memory.played.append(Played([0.0], 0.0))
    found = Variables(())
    found.begin()
    memory.played.extend(Played([float(k)], k / 2) for k in range(5))
    locks.append(threading.Lock())
    batch = [threading.Lock()]
    saved = found.state()
    batch = [threading.Lock()]
    del locks[1:]
    variables.refuse_lost(found.state(), variables.IN_A_FILE)
    batch = [threading.Lock()]  # which is read only behind this
    with pytest.raises(CheckpointError, match=f"^locks of {FUNCTION} changes during training"):
        variables.refuse_lost(saved, variables.IN_A_FILE)
    assert (len(batch), len(locks), len(lists)) == (1, 1, 1)
    want, before = list(memory.played), memory.played
    memory.played.clear()
    again = Variables((), saved)
    again.begin()
    assert memory.played is before and list(memory.played) == want == [Played([float(k)], k / 2) for k in (2, 3, 4)]


def test_names_are_those_of_all_code_of_the_class_also_within_decorators_and_properties() -> None:
    (found,) = own_attributes.named_in_code("trainer", History())
    vars(found._owner).update(total=1.0, _of_the_library=2)
    assert set(found.variables) == {"losses", "steps", "log", "figure", "total"}
    assert own_attributes.named_in_code("trainer", Path()) == own_attributes.of_script("data", [Path(), None]) == []


def test_what_a_variable_holds_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy = pytest.importorskip("numpy")
    monkeypatch.setattr(variables, "MOST_ALL_BYTES", 1000)
    small, large = History(), History()
    small.losses, large.losses = [numpy.ones(60)], [numpy.ones(60) for _ in range(3)]
    for one, is_kept in ((small, True), (large, False)):
        found = Variables((), (), [Object("callback", one)])
        found.begin()
        one.losses.append(1.0)
        assert ("losses" in dict(saved_of(found))[("callback History", "")]) == is_kept


def test_a_folder_of_the_first_start_is_not_there_until_the_script_has_made_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "version_0"
    made.mkdir()
    assert replay.not_yet_made() == frozenset()
    monkeypatch.setenv("RESHAPE_CHECKPOINTS", str(tmp_path / "saved"))
    here = watch.Watch(str(tmp_path / "saved"), 2)
    newest = {"files": {}, "folders": [str(made)], "order": (1, 1)}
    here.replay = replay.Replay(here, str(tmp_path), newest, set())
    monkeypatch.setattr(watch, "_watches", [here])
    assert replay.not_yet_made() == {str(made)}
    assert here.replay._is_made_again(str(made))
    assert replay.not_yet_made() == frozenset()
