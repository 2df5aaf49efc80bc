"""Finds iterators and files that a script reads by itself: after a stop their place is not found again.

    source = iter(data)
    for step in state.steps(100):
        train(next(source))  # would begin anew

Called by `elastic` and `side_by_side`; from Python 3.8 on, the standard library.
"""

from __future__ import annotations

import functools
import gc
import io
import itertools
import operator
import os
import sys
from collections.abc import Iterator
from types import FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any

from reshape_hooks import plain
from reshape_hooks.adapters.script_frames import Frame, frames, is_gone, scopes
from reshape_hooks.adapters.variables import PLAIN, is_read, kept_by_definition

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Key, Scope

ITERATORS: tuple[type, ...] = (
    type(iter([])), type(iter(())), type(iter({})), type(iter("")), type(iter(range(0))), type(iter(set())),
    enumerate, zip, map, filter, reversed, itertools.cycle, itertools.islice, itertools.chain, itertools.count,
    GeneratorType,
)  # fmt: skip


def iterators() -> list[str]:
    """Return the names of iterators and files that functions of the script made and still read.

    Their place is not found again.
    """
    found: list[str] = []
    for frame in frames():
        for name, asked in _with_place(frame):
            if is_read(frame.frame, name):
                found += asked
    return found


class ModuleIterators:
    """Knows where the iterators and files stood that are in variables of the script's modules when its loop began."""

    def __init__(self) -> None:
        self._first: dict[tuple[Key, str], tuple[Any, Any]] | None = None

    def loop_begins(self) -> None:
        """See where they are, if this is the first loop."""
        if self._first is None:
            self._first = dict(self._now())

    def refuse_read(self) -> None:
        """Raise CheckpointError for one that was read since, or made."""
        first = self._first or {}
        for at, (iterator, place) in self._now():
            known = first.get(at, (None, None))
            if known[0] is not iterator or known[1] != place:
                (module, _), name = at
                raise plain.CheckpointError(
                    f"the place of {name} in the {module} is not found again after a stop: let state.batches(...) draw "
                    "from its source"
                )

    def _now(self) -> Iterator[tuple[tuple[Key, str], tuple[Any, Any]]]:
        """Yield them by where they are, each with its place."""
        for scope in scopes():
            if isinstance(scope, Frame):
                continue
            for _, found in _with_place(scope):
                for name, iterator in found.items():
                    yield (scope.key, name), (iterator, _place_of(iterator))


def _with_place(scope: Scope) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the variables that are or hold iterators and files, with these by their names."""
    for name, value in list(scope.variables.items()):
        held = {name: value}
        if type(value).__module__ == "__main__" and hasattr(value, "__dict__"):
            held.update({f"{name}.{inner}": one for inner, one in vars(value).items()})
        elif type(value) is FunctionType or issubclass(type(value), type):
            held.update({f"{name}.{inner}": one for (_, inner), one in kept_by_definition(value).items()})
        elif type(value) is functools.partial:
            held.update({f"{name}.args": one for one in value.args})
        found = {inner: one for inner, one in held.items() if _has_place(one)}
        if found:
            yield name, found


def _place_of(iterator: Any, depth: int = 3) -> Any:
    """Return what is another value once this has been read: how much is left of it, or where it is."""
    if isinstance(iterator, io.IOBase):
        try:
            return iterator.tell()
        except (OSError, ValueError):  # it is read line by line
            return os.lseek(iterator.fileno(), 0, os.SEEK_CUR)
    if type(iterator) is itertools.count:
        return repr(iterator)
    frame = getattr(iterator, "gi_frame", None)
    referents = [*gc.get_referents(iterator), *(gc.get_referents(frame) if frame is not None else ())]
    for read_in_step in [one for one in referents if type(one) is tuple]:  # by a zip or a map
        referents += read_in_step
    inner = [_place_of(one, depth - 1) for one in referents if depth and _has_place(one)]
    if type(iterator) is not GeneratorType:
        return operator.length_hint(iterator, 0), inner
    if frame is None:
        return None
    local = {name: one if type(one) in PLAIN else id(one) for name, one in frame.f_locals.items()}
    return frame.f_lasti, local, inner


def _has_place(value: Any) -> bool:
    """True of an iterator, or a file that is read, unless it goes through one of ours."""
    if is_gone(value) or issubclass(type(value), ModuleType):
        return False
    if isinstance(value, io.IOBase):
        return value is not sys.stdin and not value.closed and value.readable() and not value.writable()
    dataloader = sys.modules.get("torch.utils.data.dataloader")
    kinds = (*ITERATORS, *((dataloader._BaseDataLoaderIter,) if dataloader else ()))
    return isinstance(value, kinds) and not any(map(is_ours, [value, *gc.get_referents(value)]))


def is_ours(value: Any) -> bool:
    """True of a generator of ours, such as that of a loop."""
    frame = getattr(value, "gi_frame", None)
    return frame is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}.")
