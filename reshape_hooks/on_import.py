"""Calls our code when a training imports a framework, before the script sees it.

Promises: nothing is imported that the script does not import; a fault in our code is said in one sentence and the
script goes on, as one that is left alone. `reshape_hooks` is found from the folder that holds this file, before any
other of that name, without being on the script's path. Called by `startup/sitecustomize.py`. Standard library only.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Module that a script imports -> our module, whose `adapt(module)` is called once it is imported.
ADAPTERS: dict[str, str] = {}
PACKAGE = "reshape_hooks"


class AdaptingLoader(Loader):
    """Loads a module as its own loader does, then calls `adapted` with it."""

    def __init__(self, loader: Any, adapted: Callable[[ModuleType], None]) -> None:
        self._loader, self._adapted = loader, adapted

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module's own loader from here on: readers of resources and sources ask the module for it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._adapted(module)


class HookFinder(MetaPathFinder):
    """Finds `reshape_hooks` in its own folder, and wraps the loaders of the modules that have an adapter."""

    def __init__(self, package: str, adapters: Mapping[str, str]) -> None:
        self._parent, self._adapters = os.path.dirname(package), dict(adapters)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of our package or of a module that is waited for; None for all others."""
        if fullname == PACKAGE:
            return importlib.machinery.PathFinder.find_spec(fullname, [self._parent])
        if fullname not in self._adapters:
            return None
        adapter = self._adapters.pop(fullname)
        spec = importlib.util.find_spec(fullname) if path is None else self._below(fullname, path)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = AdaptingLoader(spec.loader, lambda module: adapt(adapter, module))
        return spec

    @staticmethod
    def _below(fullname: str, path: Sequence[str]) -> ModuleSpec | None:
        return importlib.machinery.PathFinder.find_spec(fullname, path)


def adapt(adapter: str, module: ModuleType) -> None:
    """Call the adapter's `adapt(module)`; a fault is said and goes no further."""
    try:
        importlib.import_module(adapter).adapt(module)
    except Exception as fault:
        sentence = f"reshape: {module.__name__} was not prepared for saving ({fault!r}); this training is left alone\n"
        sys.stderr.write(sentence)


def install(package: str) -> None:
    """Find `reshape_hooks` in the folder `package`, and call adapters from now on."""
    sys.meta_path.insert(0, HookFinder(package, ADAPTERS))
