"""Finds a script's functions and objects among those of libraries, and reads and sets their variables.

Used by `variables`, which saves them, and by modules that look for something in them; from Python 3.8 on, standard
library.
"""

from __future__ import annotations

import collections
import ctypes
import sys
import weakref
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from reshape_hooks.adapters.script_modules import Module, modules
from reshape_hooks.library_code import is_library

if TYPE_CHECKING:
    Key = tuple[str, str]  # a function's name and file
    Place = tuple[str, ...]  # the name of a variable, or of an object and its attribute


class Frame(NamedTuple):
    """A function of the script that waits for the loop's next step."""

    name: str
    file: str
    variables: Mapping[str, Any]
    frame: FrameType
    outer: int  # number of enclosing frames with the same name and file, as where one `fit` calls another

    @property
    def key(self) -> Key:
        number = f" {self.outer + 1}" if self.outer else ""
        return self.name + number, Path(self.file).name

    def set(self, changed: Mapping[str, Any]) -> None:
        """Assign these variables."""
        inside = self.frame.f_locals  # a copy before Python 3.13, which the call below writes back
        inside.update(changed)
        if sys.version_info < (3, 13) and inside is not self.frame.f_globals:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self.frame), ctypes.c_int(0))


class Object:
    """An object of which a library keeps a part. `names`: the attributes that are kept here; None: all."""

    def __init__(self, place: str, owner: Any, names: Container[str] | None = None) -> None:
        self.name = type(owner).__qualname__
        self.key = f"{place} {self.name}", ""
        self._owner, self._names = owner, names

    @property
    def owner(self) -> Any:
        """Return the object."""
        return self._owner

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return the present attributes."""
        names = self._names
        return {name: value for name, value in vars(self._owner).items() if names is None or name in names}

    def set(self, changed: Mapping[str, Any]) -> None:
        """Assign these attributes."""
        vars(self._owner).update(changed)


class Buffers:
    """A PyTorch module's buffers that its `state_dict` omits (`persistent=False`)."""

    def __init__(self, place: str, module: Any) -> None:
        self.name = type(module).__qualname__
        self.key = f"{place} buffers of {self.name}", ""
        self._module = module

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return the present buffers."""
        left_out = self._module._non_persistent_buffers_set
        return {name: value for name, value in self._module._buffers.items() if name in left_out}

    def set(self, changed: Mapping[str, Any]) -> None:
        """Replace these buffers."""
        self._module._buffers.update(changed)


class Items:
    """A dictionary's items by name, of which something else keeps the values."""

    def __init__(self, place: str, found: dict[Any, Any]) -> None:
        self.name = place
        self.key = f"items of {place}", ""
        self._found = found

    @property
    def variables(self) -> Mapping[str, Any]:
        """Return the present items with string keys."""
        return {name: value for name, value in self._found.items() if isinstance(name, str)}

    def set(self, changed: Mapping[str, Any]) -> None:
        """Replace these items."""
        self._found.update(changed)


def frames() -> list[Frame]:
    """Return the script's own frames, outermost first, without those of libraries or ours."""
    waiting = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library(frame.f_code.co_filename, frame.f_globals.get("__name__", "")):
            waiting.append(frame)
        frame = frame.f_back
    found = []
    outer: collections.Counter[Key] = collections.Counter()
    for one in reversed(waiting):
        name = one.f_code.co_name
        file = one.f_code.co_filename
        same = name, Path(file).name
        found.append(Frame(name, file, one.f_locals, one, outer[same]))
        outer[same] += 1
    return found


def scopes() -> list[Module | Frame]:
    """Return where the script has variables: its modules, then its waiting functions, outermost first."""
    found = frames()
    return [*modules({id(frame.variables) for frame in found}), *found]


def is_own(kind: type) -> bool:
    """Return whether a class is the script's, not a library's."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", "" if kind.__module__ == "__main__" else None)
    return file is not None and not is_library(file, kind.__module__)


def is_gone(value: Any) -> bool:
    """Return whether it is a weak proxy whose object is gone, which raises at any access."""
    try:
        return type(value) in weakref.ProxyTypes and value.__class__ is None
    except ReferenceError:
        return True


if TYPE_CHECKING:
    Scope = Frame | Module
    Kept = Object | Buffers | Items  # besides variables of functions and modules
    Holder = Frame | Module | Kept


def places(holder: Holder) -> Iterator[tuple[Place, Any]]:
    """Yield the variables, and the attributes of those that are objects of the script's classes, with their place."""
    for name, value in list(holder.variables.items()):
        yield (name,), value
        if is_own(type(value)) and hasattr(value, "__dict__"):
            for attribute, one in list(vars(value).items()):
                yield (name, attribute), one
