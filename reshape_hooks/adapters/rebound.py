"""Finds the dictionary that has replaced one passed to `Elastic`, where the loop creates a new one in each step.

    params = step(params)  # or self.params = step(self.params)

Promises: what is saved is what the script continues with; where that is unclear, nothing is saved, with a sentence;
likewise where the script continues with another optimizer, scheduler or model than the one passed to `Elastic`. Called
by `elastic` and `not_given`; standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from reshape_hooks import plain
from reshape_hooks.adapters.identities import MISSING
from reshape_hooks.adapters.script_frames import places, scopes
from reshape_hooks.adapters.variables import AS_IT_IS, copies

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Place, Scope


class Rebound:
    """Knows which variables and attributes of the script hold, or held, these parts; mostly about dictionaries."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = {name: part for name, part in parts.items() if isinstance(part, dict)}
        self._objects = {name: part for name, part in parts.items() if not isinstance(part, dict)}
        self._held: dict[tuple[Any, str], list[Place]] = {}  # function, part -> where it was held
        self._given = dict(self._parts)  # when the script last got control from us, until it reaches its loop
        self._made_again: set[str] = set()  # large ones that the script itself recreates after a stop

    def leaves(self) -> None:
        """Note that the script prepares an epoch: what it recreates there, it also recreates after a stop."""
        self._given = self.now_or_given()

    def look(self) -> None:
        """Find what holds the dictionaries, when they are passed and when a loop begins.

        One that the script recreates in between would hide what was saved; a small one is restored again.
        """
        present, given = self.now_or_given(), self._given
        self._given = {}
        for name in given:
            if present[name] is not given[name] and AS_IT_IS in copies(present[name]).values():
                self._made_again.add(name)
        for scope in scopes():
            values = list(places(scope))
            for name, part in {**self._parts, **self._objects}.items():
                held = self._held.setdefault((scope.key, name), [])
                held += [place for place, value in values if value is part and place not in held]

    def now(self) -> dict[str, dict[Any, Any]]:
        """Return the dictionaries that the script continues with. Raises CheckpointError where that is unclear."""
        for name in self._made_again:
            raise plain.CheckpointError(
                f"{name} is made anew between Elastic, or the beginning of an epoch, and the first batch, where it "
                "would be made anew after a stop, too: make it before Elastic"
            )
        there = scopes()[::-1]
        for name, part in self._objects.items():
            self._refuse_another(name, part, there)
        return {name: self._present(name, there) for name in self._parts}

    def now_or_given(self) -> dict[str, dict[Any, Any]]:
        """Return the dictionaries that the script continues with; where that is unclear, those that were passed."""
        try:
            return self.now()
        except plain.CheckpointError:
            return self._parts

    def _values_now(self, name: str, there: list[Scope]) -> dict[Place, Any]:
        """Return the present values where the innermost of these functions, else a module, held this part."""
        scope = next((one for one in there if self._held.get((one.key, name))), None)
        if scope is None:
            return {}
        values = {place: _value(scope, place) for place in self._held[scope.key, name]}
        return {place: value for place, value in values.items() if value is not MISSING}

    def _refuse_another(self, name: str, part: Any, there: list[Scope]) -> None:
        values = self._values_now(name, there)
        if any(value is part for value in values.values()):
            return
        for place, value in values.items():
            if _replaces(value, part):
                raise plain.CheckpointError(
                    f"{'.'.join(place)} is now another {type(value).__name__} than the {name} that Elastic was given, "
                    "which a new start would not make again: give Elastic all that is trained or used, or change it "
                    "in place"
                )

    def _present(self, name: str, there: list[Scope]) -> dict[Any, Any]:
        """Return what has replaced this part in the innermost of these functions that held it."""
        part = self._parts[name]
        values = self._values_now(name, there)
        called_so = [value for place, value in values.items() if place[-1] == name]
        if all(value is part for value in called_so) and any(value is part for value in values.values()):
            return part
        others = list(values.values())
        if not others:
            return part
        first = others[0]
        if not isinstance(first, dict) or any(value is not first for value in others):
            where = ", ".join(".".join(place) for place in values)
            raise plain.CheckpointError(
                f"it is not clear which dictionary is now the {name} that Elastic was given, as {where} held it and "
                f"are not the same any more: put what a step makes into the dictionary itself, as by {name}.update(...)"
            )
        return first


def _value(scope: Scope, place: Place) -> Any:
    value = scope.variables.get(place[0], MISSING)
    return value if len(place) == 1 else getattr(value, "__dict__", {}).get(place[1], MISSING)


def _replaces(value: Any, part: Any) -> bool:
    """Return whether it is another optimizer or scheduler, or a model that shares no parameter with this part."""
    torch: Any = sys.modules.get("torch")
    if torch is None or holds(value, part):
        return False
    schedulers = torch.optim.lr_scheduler
    for kind in (torch.optim.Optimizer, getattr(schedulers, "LRScheduler", None) or schedulers._LRScheduler):
        if isinstance(part, kind):
            return isinstance(value, kind)
    if not (isinstance(part, torch.nn.Module) and isinstance(value, torch.nn.Module)):
        return False
    known = {id(one) for one in part.parameters()}
    return bool(known) and not any(id(one) in known for one in value.parameters())


def holds(value: Any, part: Any) -> bool:
    """Return whether it wraps a part, as `Accelerator.prepare` wraps an optimizer."""
    held = getattr(value, "__dict__", {}).values()
    return any(one is part or (isinstance(one, (list, tuple)) and any(each is part for each in one)) for one in held)
