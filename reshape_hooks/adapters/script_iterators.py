"""Finds iterators and files that a script reads by itself: their position is lost at a stop.

    source = iter(data)
    for step in state.steps(100):
        train(next(source))  # would begin anew

Called by `elastic` and `side_by_side`; from Python 3.8 on, standard library.
"""

from __future__ import annotations

import collections
import functools
import gc
import io
import itertools
import operator
import os
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from reshape_hooks import plain
from reshape_hooks.adapters.present_values import reference
from reshape_hooks.adapters.script_frames import Frame, frames, is_gone, is_own, scopes
from reshape_hooks.adapters.script_modules import PLACE
from reshape_hooks.adapters.variables import OF_PYTHON, PLAIN, attributes_of, is_read, kept_by_definition

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Key

DEPTH = 4  # nesting of the script's objects
MOST_LOOKED_AT = 100  # items of a list or dictionary
ITERATORS: tuple[type, ...] = (
    type(iter([])),
    type(iter(())),
    type(iter({})),
    type(iter({}.values())),
    type(iter({}.items())),
    type(iter("")),
    type(iter(range(0))),
    type(iter(set())),
    type(iter(collections.deque())),
    enumerate,
    zip,
    map,
    filter,
    reversed,
    itertools.cycle,
    itertools.islice,
    itertools.chain,
    itertools.count,
    GeneratorType,
)


class At(NamedTuple):
    """Where an iterator or a file is: in a function or a module, and its name with attributes and items."""

    scope: Key
    name: str


class Stands(NamedTuple):
    """An iterator, by a weak reference where possible, and its position."""

    there: Callable[[], Any]
    place: Any


def iterators() -> list[str]:
    """Return names of variables with iterators or files that functions of the script created and still read.

    Their position is lost at a stop.
    """
    found: list[str] = []
    for frame in frames():
        values = list(frame.variables.items())
        found += [name for name, value in values if _has_place(value) and is_read(frame.frame, name)]
    return found


class HeldIterators:
    """Knows the positions of the iterators and files that the script held when its loops began.

    It looks in variables of functions and modules, in lists, in objects of the script's classes, and in what its
    functions keep.
    """

    def __init__(self) -> None:
        self._first: dict[At, Stands] | None = None
        self._before: dict[At, Stands] = {}  # as of when this epoch began
        self._prepared: dict[At, Stands] = {}  # what the script has created for this epoch, before its batches

    def loop_begins(self) -> None:
        """Note their positions when the first loop begins, or an epoch's batches."""
        now = {at: stands for at, _, stands in self._now()}
        if self._first is None:
            self._first = now
            return
        self._prepared = {at: one for at, one in now.items() if not _is_same(one, self._before.get(at))}

    def epoch_begins(self) -> None:
        """Note that an epoch begins: what the script creates before its batches it recreates after a stop in it."""
        self._before = {at: stands for at, _, stands in self._now()}

    def read_by_functions(self) -> list[str]:
        """Return the names of those held by functions of the script that have been read, or created, since."""
        return [name for (scope, _), name in self._read() if not scope.startswith(PLACE)]

    def _read(self) -> list[At]:
        """Return the places of those that have been read, or created, since and are not exhausted."""
        first = self._first or {}
        found = []
        for at, iterator, now in self._now():
            seen = [one for one in (first.get(at), self._prepared.get(at)) if _is_same(now, one)]
            unread = any(one.place == now.place for one in seen if one)
            never_there = not seen and at not in first
            if not (unread or (never_there and _is_at_end(iterator, now.place))):
                found.append(at)
        return found

    def refuse_read(self) -> None:
        """Raise CheckpointError for one that has been read, or created, since its loop began."""
        for (scope, _), name in self._read():
            where = f" in the {scope}" if scope.startswith(PLACE) else ""
            raise plain.CheckpointError(
                f"the place of {name}{where} is not found again after a stop: let state.batches(...) draw from its "
                "source"
            )

    def _now(self) -> Iterator[tuple[At, Any, Stands]]:
        """Yield them with their places; those in variables of functions only if the function may still read these."""
        for scope in scopes():
            for name, value in list(scope.variables.items()):
                found = list(_held_within(name, value, DEPTH))
                if found and isinstance(scope, Frame) and not is_read(scope.frame, name):
                    continue
                for inner, one in found:
                    yield At(scope.key, inner), one, Stands(reference(one), _place_of(one))


def _is_same(now: Stands, before: Stands | None) -> bool:
    return before is not None and now.there() is before.there()


def _held_within(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the iterators and files that this value is or holds, with their names."""
    kind: Any = type(value)
    if depth == 0 or kind in PLAIN or is_gone(value) or issubclass(kind, ModuleType):
        return
    if _has_place(value):
        yield name, value
        return
    held: list[tuple[str, Any]] = []
    if issubclass(kind, (list, tuple, collections.deque)):
        held += [(f"{name}[{number}]", one) for number, one in enumerate(itertools.islice(value, MOST_LOOKED_AT))]
    elif issubclass(kind, dict):
        held += [(f"{name}[{key!r}]", one) for key, one in itertools.islice(value.items(), MOST_LOOKED_AT)]
    if kind is FunctionType or issubclass(kind, type):
        held += [(f"{name}.{inner}", one) for (_, inner), one in kept_by_definition(value).items()]
    elif kind is functools.partial:
        held += [(f"{name}.args", one) for one in (value.func, *value.args, *value.keywords.values())]
    elif kind is MethodType:
        held.append((name, value.__self__))
    elif is_own(kind) or f"{kind.__module__}.{kind.__qualname__}" in OF_PYTHON:
        held += [(f"{name}.{inner}", one) for inner, one in attributes_of(value).items()]
    for inner, one in held:
        yield from _held_within(inner, one, depth - 1)


def _place_of(iterator: Any, depth: int = 3) -> Any:
    """Return a value that differs once this has been read: how much of it is left, or its position."""
    if isinstance(iterator, io.IOBase):
        try:
            return iterator.tell()
        except (OSError, ValueError):  # it is read line by line
            return os.lseek(iterator.fileno(), 0, os.SEEK_CUR)
    if type(iterator) is itertools.count:
        return repr(iterator)
    if _is_of_loader(iterator):
        return iterator._num_yielded
    frame = getattr(iterator, "gi_frame", None)
    referents = [*gc.get_referents(iterator), *(gc.get_referents(frame) if frame is not None else ())]
    for read_in_step in [one for one in referents if type(one) is tuple]:  # of a zip or a map
        referents += read_in_step
    inner = [_place_of(one, depth - 1) for one in referents if depth and _has_place(one)]
    if type(iterator) is itertools.cycle:
        first_round = any(hasattr(one, "__next__") for one in referents)
        return [len(one) for one in referents if type(one) is list] if first_round else object()  # unknown
    if type(iterator) is not GeneratorType:
        return operator.length_hint(iterator, 0), inner
    if frame is None:
        return None
    local = {name: one if type(one) in PLAIN else id(one) for name, one in frame.f_locals.items()}
    return frame.f_lasti, local, inner


def _is_at_end(iterator: Any, place: Any) -> bool:
    """Return whether it is exhausted, as far as its position tells."""
    if _is_of_loader(iterator):
        return hasattr(iterator, "__len__") and operator.length_hint(iterator, 1) <= place
    if place is None:
        return True
    if not isinstance(place, tuple) or place[0] != 0 or len(place) != 2:
        return False
    reads_others = type(iterator) in (enumerate, zip, map, filter, itertools.islice, itertools.chain)
    return all(_is_at_end(None, one) for one in place[1]) and not (reads_others and not place[1])


def _is_of_loader(value: Any) -> bool:
    dataloader = sys.modules.get("torch.utils.data.dataloader")
    return dataloader is not None and issubclass(type(value), dataloader._BaseDataLoaderIter)


def _has_place(value: Any) -> bool:
    """Return whether it is an iterator, or a file being read, that does not wrap one of ours."""
    if is_gone(value) or issubclass(type(value), ModuleType):
        return False
    if issubclass(type(value), io.IOBase):
        return value is not sys.stdin and not value.closed and value.readable() and not value.writable()
    if not (issubclass(type(value), ITERATORS) or _is_of_loader(value)):
        return False
    return not any(map(is_ours, [value, *gc.get_referents(value)]))


def is_ours(value: Any) -> bool:
    """Return whether it is a generator of ours, such as a loop's."""
    frame = getattr(value, "gi_frame", None)
    return frame is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}.")
