"""Finds what a loop trains or counts with but did not pass to `Elastic`: an optimizer, a second model, a metric.

    state = Elastic(model=model)  # and no optimizer
    for batch in state.batches(loader):
        ...
        optimizer.step()  # its moments would begin anew after a stop

Promises: a training that would lose such an object's state is not saved, with a sentence that names it. Exempt are
objects whose state stays the same, such as a frozen teacher, and those that the script creates before it uses them, in
each epoch or each step. Objects of libraries that have no `state_dict` count, too (`library_values`). Called by
`elastic` and the adapters; standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import collections
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from reshape_hooks import plain
from reshape_hooks.adapters import library_values, pytrees
from reshape_hooks.adapters.present_values import ArrayNow, TensorNow, digest_of_array, reference
from reshape_hooks.adapters.rebound import holds
from reshape_hooks.adapters.script_frames import Frame, is_gone, is_own, scopes
from reshape_hooks.adapters.variables import MAPPINGS, PLAIN, attributes_of, is_read, kept_by_definition

MOST_LOOKED_AT = 100  # items of a list or dictionary
DEPTH = 4  # nesting of the script's objects
SUMS = "_defaults"  # in which torchmetrics declares what a metric accumulates

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Key, Scope

    State = dict[str, Any]  # by name: numbers, and tensors' addresses and versions


class Found(NamedTuple):
    """An object, by a weak reference where possible, and its state."""

    there: Callable[[], Any]
    state: State


class Place(NamedTuple):
    """Where the script holds an object: a variable. `name`: with attributes and items."""

    scope: Key
    variable: str
    name: str


class Seen(NamedTuple):
    """What a new start recreates: which object is at which place, and each one's state by identity."""

    held: dict[Place, Callable[[], Any]]
    known: dict[int, Found]

    def holds(self, place: Place, thing: Any) -> bool:
        """Return whether this object was there."""
        return place in self.held and self.held[place]() is thing

    def knows(self, thing: Any, state: State) -> bool:
        """Return whether this was the state of this object."""
        found = self.known.get(id(thing))
        return found is not None and found.there() is thing and found.state == state


class NotGiven:
    """Knows the script's stateful objects other than the `parts` passed to Elastic."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = list(parts)
        self._dictionaries = {id(part) for part in self._parts if isinstance(part, dict)}
        self._modules = {id(one) for part in self._parts if _is_module(part) for one in part.modules()}
        self._looped = False  # whether a loop has begun
        self._prepared = Seen({}, {})  # what the script has created, or set, for this epoch
        self._before: dict[int, Callable[[], Any]] = {}  # by identity: what was there when it began
        self._stays: dict[Place, Callable[[], Any]] = {}  # and where the script reads it before setting it
        self._first = self._seen_now(self._places())  # when Elastic was made, then when the first loop began

    def new_modules(self) -> list[tuple[str, Any]]:
        """Return PyTorch modules other than the parts, such as a loss that counts, with their names; each once."""
        found = []
        for place, _, thing in _things_within(self._dictionaries):
            if _is_module(thing) and id(thing) not in self._modules:
                found.append((place.name, thing))
                self._modules.update(map(id, thing.modules()))
        return found

    def loop_begins(self) -> None:
        """Note what the script has created, or set, for the first loop, or for an epoch's batches."""
        there = self._places()
        if not self._looped:
            self._looped = True
            self._first = self._seen_now(there)
            return
        changed = {place: thing for place, thing in there.items() if self._stays.get(place, _nothing)() is not thing}
        self._prepared = self._seen_now(changed)

    def epoch_begins(self) -> None:
        """Note that an epoch begins: what the script creates before its batches it recreates after a stop in it."""
        things = list(_things_within(self._dictionaries))
        self._prepared = Seen({}, {})
        self._before = {id(thing): reference(thing) for _, _, thing in things}
        self._stays = {place: reference(thing) for place, scope, thing in things if _is_read(scope, place)}

    def refuse_changed(self) -> None:
        """Raise CheckpointError for an object whose state would be lost at a stop, or that has been replaced."""
        kept = _addresses(self._parts)
        given = {id(part) for part in self._parts} | _identities_within(self._parts)
        for place, scope, thing in _things_within(self._dictionaries):
            if not (id(thing) in given or self._is_kept(thing, kept)):
                why = "changes during training, and a restart would reset it: " + _advice_about(thing)
            elif not library_values.is_library_value(thing) and self._is_another(place, thing):
                why = (
                    "is not what it was when training began, and a restart would bring that back: set it in each epoch"
                )
            else:
                continue
            if _is_read(scope, place):
                raise plain.CheckpointError(f"{place.name} ({type(thing).__name__}) {why}")

    def _is_kept(self, thing: Any, kept: set[int]) -> bool:
        """Return whether it has no state of its own, or one that a new start recreates."""
        now = _state_of(thing, kept)
        known = self._first.knows(thing, now) or self._prepared.knows(thing, now)
        return known or not now or any(_stands_for(part, thing, now) for part in self._parts)

    def _is_another(self, place: Place, thing: Any) -> bool:
        """Return whether the script has replaced the object, which a new start would not do by this step."""
        return place in self._first.held and not (self._first.holds(place, thing) or self._prepared.holds(place, thing))

    def _seen_now(self, there: Mapping[Place, Any]) -> Seen:
        """Return what is there, with the states of everything that this epoch has created."""
        kept = _addresses(self._parts)
        known = {id(thing): thing for thing in there.values() if self._before.get(id(thing), _nothing)() is not thing}
        return Seen(
            {place: reference(thing) for place, thing in there.items()},
            {key: Found(reference(thing), _state_of(thing, kept)) for key, thing in known.items()},
        )

    def _places(self) -> dict[Place, Any]:
        return {place: thing for place, _, thing in _things_within(self._dictionaries)}


class LibraryObjects:
    """Knows the objects of libraries in the script's variables, beside a training that a library runs.

    `kept`: objects whose attributes are kept, such as callbacks. Create it before the training begins.
    """

    def __init__(self, kept: Iterable[Any]) -> None:
        self._kept = {id(one) for one in kept}
        self._first = {place: library_values.state_of(thing) for place, _, thing in self._objects_within()}

    def refuse_changed(self) -> None:
        """Raise CheckpointError for an object that has changed since, and that the script may still use."""
        for place, scope, thing in self._objects_within():
            state = library_values.state_of(thing)
            if state and self._first.get(place) != state and _is_read(scope, place):
                raise plain.CheckpointError(
                    f"{place.name} ({type(thing).__name__}) changes during training, and a restart would reset it: "
                    "make it an attribute of a callback"
                )

    def _objects_within(self) -> Iterator[tuple[Place, Scope, Any]]:
        for place, scope, thing in _things_within(self._kept):
            if library_values.is_library_value(thing):
                yield place, scope, thing


def _things_within(kept: Collection[int]) -> Iterator[tuple[Place, Scope, Any]]:
    """Yield the script's stateful objects and their places. `kept`: see `_stateful_within`."""
    for scope in scopes():
        for name, value in list(scope.variables.items()):
            for inner, thing in _stateful_within(name, value, DEPTH, kept):
                yield Place(scope.key, name, inner), scope, thing


def _nothing() -> None:
    return None


def _advice_about(thing: Any) -> str:
    if library_values.is_library_value(thing):
        return library_values.advice_about(thing)
    return "give it to Elastic, too"


def _is_read(scope: Scope, place: Place) -> bool:
    """Return whether the script may read the variable at this place before setting it."""
    return not isinstance(scope, Frame) or is_read(scope.frame, place.variable)


def _addresses(parts: Iterable[Any]) -> set[int]:
    """Return the addresses of the parts' tensors: in these, other objects have no state of their own."""
    leaves = itertools.chain.from_iterable(_leaves_of(part) for part in parts)
    return {leaf.data_ptr() for _, leaf in leaves if hasattr(leaf, "data_ptr")}


def _stands_for(part: Any, thing: Any, now: State) -> bool:
    """Return whether it wraps a part, or is wrapped by one, such as an optimizer by accelerate."""
    return (holds(thing, part) or holds(part, thing)) and now == _state_of(part)


def _identities_within(parts: Iterable[Any]) -> set[int]:
    """Return the objects within parts of the script's own classes, whose `state_dict` saves all that matters.

    A module's `state_dict` covers modules only.
    """
    trusted = [part for part in parts if is_own(type(part)) and hasattr(part, "__dict__") and not _is_module(part)]
    attributes = itertools.chain.from_iterable(vars(part).items() for part in trusted)
    return {id(thing) for name, value in attributes for _, thing in _stateful_within(name, value, DEPTH)}


def _stateful_within(name: str, value: Any, depth: int, kept: Collection[int] | None = ()) -> Iterator[tuple[str, Any]]:
    """Yield the stateful objects in this value, with their names.

    `kept`: identities of dictionaries and objects whose library objects are kept; None: this value's are.
    """
    if depth == 0 or type(value) in PLAIN or is_gone(value) or issubclass(type(value), ModuleType):
        return
    held: Iterable[tuple[str, Any]] = ()
    if kept is not None and id(value) in kept:
        kept = None
    if issubclass(type(value), (type, FunctionType)):
        held = ((f"{name}.{key}", one) for (_, key), one in kept_by_definition(value).items())
    elif type(value) in MAPPINGS:
        held = ((f"{name}[{key!r}]", one) for key, one in value.items())
    elif type(value) in (list, tuple, collections.deque):
        held = ((f"{name}[{number}]", one) for number, one in enumerate(value))
    elif _has_state(value):
        yield name, value
        if _is_module(value) and is_own(type(value)):  # its state_dict omits what is not a module
            held = ((f"{name}.{key}", one) for key, one in vars(value).items() if key[0] != "_")
            kept = None  # as attributes of a module
    elif kept is not None and library_values.is_library_value(value):
        yield name, value
    elif is_own(type(value)):
        held = ((f"{name}.{key}", one) for key, one in attributes_of(value).items())
    for inner, one in list(itertools.islice(held, MOST_LOOKED_AT)):
        yield from _stateful_within(inner, one, depth - 1, kept)


def _is_module(value: Any) -> bool:
    """Return whether it is a PyTorch module, without querying Flax NNX keys, which have every attribute."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _has_state(value: Any) -> bool:
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and isinstance(value, (data.DataLoader, data.Sampler, data.Dataset)):
        return False  # the order of samples is kept separately
    if pytrees.is_of_nnx(value):
        return True
    kind = type(value)  # not the object's attribute: it may be a proxy
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def _state_of(thing: Any, kept: Iterable[int] = ()) -> State:
    """Return an object's state; for a module, without tensors at addresses that are `kept`."""
    if library_values.is_library_value(thing):
        return library_values.state_of(thing)
    state = {name: _present_value(leaf) for name, leaf in _leaves_of(thing)}
    if not _is_module(thing):
        return state
    return {name: one for name, one in state.items() if getattr(one, "address", 0) not in kept}


def _leaves_of(thing: Any) -> list[tuple[str, Any]]:
    """Return the numbers, strings, tensors and arrays of an object's state, with their names."""
    try:
        if isinstance(thing, dict):
            return list(_named_leaves("", thing))
        if pytrees.is_of_nnx(thing):
            return [(str(number), leaf) for number, leaf in enumerate(pytrees.leaves_of_nnx(thing))]
        if _is_module(thing):
            return list(_leaves_of_module(thing))
        return list(_named_leaves("", thing.state_dict()))
    except Exception:  # libraries raise anything
        return []


def _leaves_of_module(module: Any) -> Iterator[tuple[str, Any]]:
    yield from _named_leaves("", {**dict(module.named_parameters()), **dict(module.named_buffers())})
    for name, one in module.named_modules():
        sums = getattr(one, SUMS, None)
        if isinstance(sums, dict):
            yield from _named_leaves(name, {key: getattr(one, key) for key in sums})


def _named_leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _named_leaves(f"{name}.{key}", one)
    elif isinstance(value, (list, tuple)):
        for number, one in enumerate(value):
            yield from _named_leaves(f"{name}.{number}", one)
    elif not hasattr(value, "data_ptr") or value.data_ptr():  # else it is empty
        yield name, value


def _present_value(leaf: Any) -> Any:
    """Return a value that differs once this one has changed."""
    jax: Any = sys.modules.get("jax")
    if hasattr(leaf, "data_ptr"):
        return TensorNow(leaf)
    if jax is not None and isinstance(leaf, jax.Array):
        return ArrayNow(leaf)
    if type(leaf).__name__ == "ndarray":
        return digest_of_array(leaf)
    if type(leaf) in PLAIN:
        return leaf
    return leaf.item() if hasattr(leaf, "item") else type(leaf).__qualname__
