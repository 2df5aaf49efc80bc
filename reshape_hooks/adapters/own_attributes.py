"""Finds what the script's own classes keep beyond what a library saves of their objects.

A library saves a module's tensors and its own callbacks' state. What the script's classes add would be lost at a stop:
a callback's list of losses, the outputs that a module's `on_train_epoch_end` averages, a counter by which `forward`
changes a temperature. Promises: such attributes are found, those of the library are not among them. Their values are
kept by `variables`. Called by `elastic` and the adapters, from Python 3.8 on; imports nothing from a library.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any

from reshape_hooks.adapters.script_frames import Buffers, Object, is_own

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Kept

OF_METRICS = ("_update_count", "_computed")  # of a torchmetrics metric, beside the sums that it declares


def of_script(place: str, found: Iterable[Any]) -> list[Object]:
    """Return those of these objects whose class is the script's own, such as callbacks and data sets."""
    return [Object(f"{place} {number}", one) for number, one in enumerate(found) if _is_object(one)]


def named_in_code(place: str, one: Any, others: Iterable[Any] = ()) -> list[Object]:
    """Return this object if its class is the script's, derived from a large library class.

    Its attributes are those named in the code of the script's classes, including `others`, which use it.
    """
    return [Object(place, one, _names([one, *others]))] if _is_object(one) else []


def of_modules(place: str, root: Any, others: Iterable[Any] = ()) -> list[Kept]:
    """Return what modules within this PyTorch module hold beyond their `state_dict`.

    That is attributes of the script's own modules and of metrics, and non-persistent buffers. `others`: objects whose
    code may name attributes of these modules, such as callbacks.
    """
    if not hasattr(root, "named_modules"):
        return []
    torch: Any = sys.modules["torch"]
    modules = list(root.named_modules())
    own = _names([*(one for _, one in modules), *others]) - set(vars(torch.nn.Module()))
    found: list[Kept] = []
    for name, one in modules:
        if one._non_persistent_buffers_set:
            found.append(Buffers(f"{place} {name}", one))
        if type(one).__module__.startswith("torchmetrics") and hasattr(one, "_defaults"):
            found.append(Object(f"{place} {name}", one, {*one._defaults, *OF_METRICS}))
        elif _is_object(one):
            found.append(Object(f"{place} {name}", one, own))
    return found


def _is_object(one: Any) -> bool:
    return hasattr(one, "__dict__") and not isinstance(one, type) and is_own(type(one))


def _names(objects: Iterable[Any]) -> set[str]:
    """Return all names used in the code of the script's classes among these objects' types."""
    kinds = {kind for one in objects for kind in type(one).__mro__ if is_own(kind)}
    found: set[str] = set()
    for kind in kinds:
        for value in vars(kind).values():
            for code in _codes(value):
                found.update(code.co_names)
    return found


def _codes(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function or property, of what a decorator wrapped around it, and of functions within it."""
    for name in ("fget", "fset", "__func__", "__wrapped__"):
        inner = getattr(value, name, None)
        if inner is not None and inner is not value:
            yield from _codes(inner)
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType):
        yield from _all(code)


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _all(one)
