"""Tracks which objects several variables share, when these are saved and when they are restored.

    episodes.append(episode)
    episode["rewards"].append(1.0)  # is in `episodes`, too

Each variable is saved by itself, with everything in it, and numbers its objects; which numbers are one object is saved
beside the variables. Promises: an object that the new start has created stands for at most one saved object. Used by
`variables`; standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Key

    At = tuple[Key, str]  # a variable
    Ref = tuple[At, int]  # one of the objects in it, by its number

MISSING: Any = object()


class Places:
    """Knows where each object is; keeps them all alive, so that none reuses the `id` of another one."""

    def __init__(self) -> None:
        self._of: dict[int, list[Ref]] = {}
        self._alive: list[Any] = []

    def add(self, at: At, objects: Iterable[tuple[int, Any]]) -> None:
        """Add a variable's objects, by their numbers."""
        for number, one in objects:
            self._alive.append(one)
            self._of.setdefault(id(one), []).append((at, number))

    def knows(self, one: Any) -> bool:
        """Return whether this object was added."""
        return id(one) in self._of

    def shared(self) -> list[list[Ref]]:
        """Return the places of each object that is in several."""
        return [refs for refs in self._of.values() if len(refs) > 1]


def first_places(groups: Iterable[Sequence[Ref]]) -> dict[Ref, Ref]:
    """Map each place to the first place of its object."""
    return {ref: group[0] for group in groups for ref in group}


def shared_otherwise(before: Mapping[Ref, Ref], now: Mapping[Ref, Ref], among: Collection[At]) -> set[Ref]:
    """Return the places in these variables whose object is shared with other places than `before`."""
    found: set[Ref] = set()
    for one, other in ((before, now), (now, before)):
        together: dict[Ref, list[Ref]] = {}
        for ref, first in one.items():
            if ref[0] in among:
                together.setdefault(first, []).append(ref)
        for refs in together.values():
            if len({other.get(ref, ref) for ref in refs}) > 1:
                found.update(refs)
    return found


def digest_of_types(objects: Iterable[tuple[int, Any]]) -> bytes:
    """Return a digest that is equal for variables with objects of the same types in the same order."""
    names = "\n".join(f"{number} {type(one).__module__}.{type(one).__qualname__}" for number, one in objects)
    return hashlib.blake2b(names.encode(), digest_size=16).digest()


class Table:
    """Holds the objects that stand for the saved ones while variables are restored.

    `groups`: which places share an object. `rebound`: variables that held another object than at the beginning.
    `parts`: of the training, created by the new start.
    """

    def __init__(
        self, groups: Iterable[Sequence[Ref]] = (), rebound: Collection[At] = (), parts: Sequence[Any] = ()
    ) -> None:
        self.parts = parts
        self._first = first_places(groups)
        self._rebound = rebound
        self._at: At = (("", ""), "")
        self._made: dict[Ref, Any] = {}
        self._standing: dict[Ref, Any] = {}
        self._reserved: dict[int, Ref] = {}
        self._taken: dict[int, Any] = {}
        self._lately: list[Ref] = []
        self._classes: dict[tuple[str, str], Any] = {}  # already looked up
        self.unknown: list[str] = []  # those that this variable needs and that were not found

    def _ref(self, number: int) -> Ref:
        ref = self._at, number
        return self._first.get(ref, ref)

    def reserve_object(self, at: At, there: Any) -> None:
        """Let the new start's object stand for the one that this variable held from the beginning to the stop."""
        ref = self._first.get((at, 0), (at, 0))
        if ref not in self._standing and id(there) not in self._reserved:
            self._standing[ref] = there
            self._reserved[id(there)] = ref

    def take_unchanged(self, at: At, objects: Iterable[tuple[int, Any]]) -> None:
        """Take the objects of a variable that was not saved as they are, for the variables that share them."""
        for number, one in objects:
            ref = self._first.get((at, number))
            if ref is not None:
                self._taken[id(one)] = self._made.setdefault(ref, one)

    def begin_variable(self, at: At) -> None:
        """Restore this variable next."""
        self._at = at
        self._lately = []
        self.unknown = []

    def find_class(self, name: tuple[str, str], find: Callable[[str, str], Any]) -> Any:
        """Return the class with this module and name, looked up once."""
        if name not in self._classes:
            self._classes[name] = find(*name)
        found = self._classes[name]
        if found is None:
            self.unknown.append(name[1])
        return found

    def undo_variable(self) -> None:
        """Forget what this variable has created: it cannot be restored."""
        for ref in self._lately:
            self._forget(ref)

    def _forget(self, ref: Ref) -> None:
        made = self._made.pop(ref, MISSING)
        self._taken.pop(id(made), None)

    def forget_object(self, number: int | None) -> None:
        """Forget this object, which cannot be created."""
        if number is not None:
            self._forget(self._ref(number))

    def made_object(self, number: int) -> Any:
        """Return the object of this number; MISSING if it does not exist yet."""
        return self._made.get(self._ref(number), MISSING)

    def object_of_new_start(self, number: int, there: Any) -> Any:
        """Return the new start's object that stands for this one, perhaps in another place."""
        return self._standing.get(self._ref(number), there)

    def free_to_fill(self, number: int | None, there: Any) -> Any:
        """Return the present object if it may be filled with this one's content; else MISSING."""
        if number is None or there is MISSING:
            return there
        ref = self._ref(number)
        another = number == 0 and self._at in self._rebound and ref not in self._standing
        if another or id(there) in self._taken or self._reserved.get(id(there), ref) != ref:
            return MISSING
        return there

    def remember_object(self, number: int | None, one: Any) -> None:
        """Remember what stands for this object, before its content is known."""
        if number is not None and one is not MISSING:
            ref = self._ref(number)
            self._made[ref] = one
            self._taken[id(one)] = one
            self._lately.append(ref)

    def objects_for_later(self, groups: Iterable[Sequence[Ref]], at: At) -> list[tuple[int, Any]]:
        """Return the objects, held by others, of a variable that cannot be restored yet."""
        there = ((ref[1], self._made.get(group[0], MISSING)) for group in groups for ref in group if ref[0] == at)
        return [(number, one) for number, one in there if one is not MISSING]
