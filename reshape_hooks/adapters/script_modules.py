"""Finds a script's own imported modules, and reports those that it imports later.

    import helper
    for step in state.steps(100):
        helper.seen += 1  # a variable of the script, too

Promises: a module of a library, or one that loads lazily, is never touched. Used by `script_frames` and `variables`;
from Python 3.8 on, standard library.
"""

from __future__ import annotations

import functools
import os
import sys
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from reshape_hooks.library_code import is_library, real_path
from reshape_hooks.on_import import AdaptingLoader

OURS = os.path.realpath(Path(__file__).parents[1]) + os.sep

PLACE = "module "  # prefix of a module's key


class Module:
    """A module of the script's own with its variables, by the name under which the script imports it."""

    def __init__(self, name: str, file: str, variables: dict[str, Any]) -> None:
        self.name = name
        self.key = PLACE + name, Path(file).name
        self.variables: Mapping[str, Any] = variables
        self._variables = variables

    def set(self, changed: Mapping[str, Any]) -> None:
        """Assign these variables."""
        self._variables.update(changed)


def is_of_module(key: tuple[str, str]) -> bool:
    """Return whether this is a module's key; those of objects name no file."""
    name, file = key
    return name.startswith(PLACE) and bool(file)


class LookedAt(NamedTuple):
    """Says whether an entry of `sys.modules` is the script's own module, without keeping it alive."""

    identity: int
    is_own: bool


# By name. A reference would keep a module alive beyond those that its files need to be closed.
_looked_at: dict[str, LookedAt] = {}


def modules(running: Container[int]) -> list[Module]:
    """Return the script's own modules in import order, without those whose variables are `running`.

    `running`: identities of the variables of modules whose code is still running, which are frames.
    """
    found: dict[int, Module] = {}
    for name in list(sys.modules):
        there = sys.modules.get(name)
        if name not in _looked_at or _looked_at[name].identity != id(there):
            _looked_at[name] = LookedAt(id(there), _is_own_module(name, there))
        if _looked_at[name].is_own:
            variables = _variables_of(there)
            if id(variables) not in running:  # and only once: a module may have two names
                found.setdefault(id(variables), Module(name, _file_of(variables), variables))
    return list(found.values())


def _variables_of(module: Any) -> dict[str, Any]:
    """Return a module's variables, without triggering a lazy one."""
    variables: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return variables


def _is_own_module(name: str, module: Any) -> bool:
    if not issubclass(type(module), ModuleType):
        return False
    file = _file_of(_variables_of(module))
    return bool(file) and not is_library(file, name) and not real_path(file).startswith(OURS)


def _file_of(variables: Mapping[str, Any]) -> str:
    """Return a module's file; empty if it has none, or has overwritten the attribute."""
    file = variables.get("__file__")
    return file if isinstance(file, str) else ""


class LaterImports:
    """Finds modules as Python's path finder does, and reports the script's own once their code has run."""

    def __init__(self) -> None:
        self._told: list[Callable[[], Callable[[Module], None] | None]] = []

    def tell(self, imported: Callable[[Module], None]) -> None:
        """Call this method with each module from now on, as long as its object is alive."""
        self._told.append(weakref.WeakMethod(imported))
        if self not in sys.meta_path and PathFinder in sys.meta_path:
            # Finders before it have their own rules; and one of ours counts how often it is asked.
            sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a script's module in source form; None for all others."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or is_library(spec.origin or "", fullname):
            return None
        loader: Any = AdaptingLoader(spec.loader, functools.partial(self._has_run, fullname))
        spec.loader = loader
        return spec

    def _has_run(self, name: str, module: Any) -> None:
        is_own = _is_own_module(name, module)
        for told in list(self._told):
            imported = told()
            if imported is None:
                self._told.remove(told)
            elif is_own:
                variables = _variables_of(module)
                imported(Module(name, _file_of(variables), variables))


later_imports = LaterImports()
