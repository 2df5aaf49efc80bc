"""Keeps the variables of a script's training loop beside its state: sums, histories, best values, generator objects.

Promises: what the loop has changed since it began (numbers, text, small tensors and arrays, lists, dictionaries, random
generators, objects of the script's own classes made of these) is after a stop as it was before it, also after the loop
and in modules that the script imports; an object shared by several of these is one object again, and one that other
parts of the script hold remains that object. Measured time continues. What the loop has not changed is as the script
sets it when restarted: a number of GPUs, a path. Called by `elastic` from within its iterators, which the loop's frames
ask for the next batch, and by the adapters; from Python 3.8 on, NumPy and PyTorch only where the script imports them.
"""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import datetime
import decimal
import dis
import enum
import fractions
import hashlib
import importlib
import io
import itertools
import pathlib
import pickle
import random
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from reshape_hooks import plain
from reshape_hooks.adapters import keras_values, pytrees
from reshape_hooks.adapters.clock_readings import ClockReadings
from reshape_hooks.adapters.identities import MISSING, Places, Table, digest_of_types, first_places, shared_otherwise
from reshape_hooks.adapters.present_values import MOST_BYTES, ArrayNow, TensorNow, digest_of_array
from reshape_hooks.adapters.script_frames import Frame, Items, Object, is_own, places, scopes
from reshape_hooks.adapters.script_modules import Module, is_of_module, later_imports
from reshape_hooks.library_code import is_library

MOST_ALL_BYTES = 256 << 20  # of all arrays in one variable
MOST_ITEMS = 100_000  # of one variable with everything in it
MOST_LOOKED_AT = 1000  # items of a list that is not kept
MOST_COMPARED = 10_000  # with those within them
DEPTH = 3  # of what is compared within them
ARRAYS = ("Tensor", "Parameter", "ndarray")
FLAT = 10  # numbers and strings in one list that count as one item
FRAMEWORKS = ("torch", "transformers", "lightning", "pytorch_lightning", "accelerate", "trl", "peft", "datasets")
PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    range,
    datetime.datetime,
    datetime.date,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
)
OF_PYTHON = (  # which scripts use as their own
    "argparse.Namespace",
    "types.SimpleNamespace",
    "collections.UserDict",
    "collections.UserList",
)
MAPPINGS = (dict, collections.OrderedDict, collections.Counter, collections.defaultdict)
ITEMS = (list, tuple, set, frozenset, collections.deque)
VALUES = (int, float, complex, str, bytes)
BASES = (collections.OrderedDict, collections.Counter, collections.defaultdict, dict, *ITEMS, *VALUES)
UNCHANGED = (tuple, frozenset, *VALUES)  # their content is set at creation
BUFFERS = (array.array, bytearray)
INSTRUMENTS = (  # modules of what only shows or writes what a training does
    "_csv.",
    "logging.",
    "tqdm.",
    "rich.",
    "tensorboard.",
    "tensorboardX.",
    "wandb.",
    "mlflow.",
    "torch.utils.tensorboard.",
    "torch.utils.hooks.",
)
READS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "STORE_FAST_LOAD_FAST")
WRITES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "DELETE_")
ENDS = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "RETURN_", "RAISE_", "RERAISE")


class Packed(NamedTuple):
    """A value in picklable form.

    `kind` names how it is recreated. `number`: of the object within a variable, if it has an identity.
    """

    kind: str
    value: Any
    more: Any = None
    number: int | None = None  # not in checkpoints of older versions


AS_IT_IS = Packed("as it is", None)  # as the restarted script has it
LOCALS = "<locals>."  # in names of classes defined in a function
AGAIN = "again"  # an object that occurred before, by its number
NAMED = "named"  # a function or class, by its name
PART = "part"  # of the training, by its number
# Nothing is changed in them, or they stay as they are.
OF_NO_IDENTITY = ("plain", "of JAX", "of TensorFlow", "definition", NAMED, "method", PART, "attributes")
OWNERS = ("object", "own", AGAIN, "definition", NAMED, PART)  # whose methods can be found again
CLOCKS = "", "clocks"  # in place of a function's key
SHARED = "", "shared"
LOST = "", "lost"  # a sentence about what is not kept; never in a checkpoint
IN_A_DICTIONARY = "give it to Elastic in a dictionary, and use it from there only"
IN_A_FILE = "keep less in it, or write it to a file"
ADVICE = "ADVICE"  # stands for one of these
TOO_LARGE = f"it holds more than is kept of a variable: {ADVICE}"
NOT_KEPT = "it holds what cannot be kept: put what changes in a variable without that, or create it in each epoch"
OF_NO_NAME = "a new start does not find a lambda or a nested function: define it by `def` outside of functions"


if TYPE_CHECKING:
    from reshape_hooks.adapters.identities import At, Ref
    from reshape_hooks.adapters.script_frames import Holder, Kept, Key

    Objects = Sequence[tuple[int, Any]]
    Saved = Sequence[tuple[Key, Mapping[str, bytes]]]
    Fingerprint = tuple[Any, ...]


class Variables:
    """The loop's variables. `parts`: what is kept elsewhere. `saved`: what `state` returned.

    `objects`: the script's, of which a library keeps a part; their other attributes are variables, too. `whole`: more
    of these of which nobody else keeps anything, so that even what the loop has not changed is restored.
    """

    def __init__(
        self, parts: Iterable[Any], saved: Saved = (), objects: Sequence[Kept] = (), whole: Sequence[Kept] = ()
    ) -> None:
        self._parts = list(parts)
        # A dictionary may be another one later, where a step recreates it.
        self._numbers = {id(part): number for number, part in enumerate(self._parts) if not isinstance(part, dict)}
        self._given: list[Items] = []
        self._bases: set[int] = set()
        self._apart = {id(one) for part in self._parts for one in (part, *_parameters_of(part))}
        self._apart_now: set[int] = set()
        self._saved = saved
        self._objects = [*objects, *whole]
        self._whole = {one.key for one in whole}
        readings = dict(saved).get(CLOCKS)  # not in checkpoints of older versions
        self._clocks = ClockReadings(self._holders, pickle.loads(readings[""]) if readings else ())
        self._carried = {(key, name) for key, values in saved for name in values}
        self._first: dict[tuple[Key, str], bytes] = {}
        self._places: dict[tuple[Key, str], int] = {}  # which objects these were when the loop began
        self._defined: dict[tuple[Key, str], tuple[Any, ...] | None] = {}  # which functions and classes they were
        self._said: set[tuple[Key, str]] = set()
        # By identity: what is not kept, as of when the loop began, now, and as an epoch's preparation made it.
        self._collected: dict[At, dict[int, Fingerprint]] = {}
        self._left_now: dict[At, dict[int, Fingerprint]] = {}
        self._prepared: dict[At, dict[int, Fingerprint]] = {}
        self._before_epoch: set[int] = set()  # identities of what was not kept when the epoch began
        self._lost: dict[At, str] = {}  # where it has changed since, and why it is not kept
        self._unknown: dict[At, list[Any]] = {}  # objects in a variable whose class a new start may not find
        self._unknown_first: set[int] = set()  # identities of those that were there when the loop began
        self._begun = False
        self._not_imported: dict[Key, Mapping[str, bytes]] = {}  # saved values of modules that are not imported yet
        self._shared_first: dict[Ref, Ref] = {}  # which places shared an object when the loop began
        self._shared_late: dict[At, Objects] = {}  # what modules that are not imported yet share
        self._table = Table()
        later_imports.tell(self.imported)

    def begin(self, saved: Saved | None = None) -> None:
        """Begin a loop: take its variables' initial values; saved ones are restored, until `done` is called.

        `saved`: earlier values to restore instead of those.
        """
        self._begun = True
        self.look()
        self._clocks.look()
        self.set_to(self._saved if saved is None else saved)
        self._clocks.begin()

    def add_objects(self, objects: Iterable[Kept]) -> None:
        """Keep what these hold, too, starting from their present values."""
        self._objects = [*self._objects, *objects]
        self.look()

    def look(self) -> None:
        """Take the variables' values before a loop begins: what differs later was changed by it."""
        places = Places()
        holders = self._holders()
        self._bases = _arrays_held([*holders, *self._given])
        for holder in holders:
            self._look_at(holder, places)
        self._shared_first.update(first_places(places.shared()))

    def _look_at(self, holder: Holder, places: Places) -> None:
        variables = holder.variables
        new = [name for name in variables if (holder.key, name) not in self._first]
        self._first.update({(holder.key, name): b"" for name in new})  # of what cannot be packed
        self._places.update({(holder.key, name): id(variables[name]) for name in new})
        self._defined.update({(holder.key, name): _defined_by(variables[name]) for name in new})
        for name, pickled, objects in self._pickled(holder, new):
            self._first[holder.key, name] = _digest(pickled)
            places.add((holder.key, name), objects)
            self._unknown_first.update(id(one) for one in self._unknown.pop((holder.key, name), ()))

    def imported(self, module: Module) -> None:
        """Take the initial values of a module that the script has imported, and restore the saved ones."""
        self._look_at(module, Places())
        saved = self._not_imported.pop(module.key, {})
        self._set([(module, name, pickled) for name, pickled in saved.items()], self._table)
        self._shared_late = {at: objects for at, objects in self._shared_late.items() if at[0] != module.key}

    def done(self) -> None:
        """Note that what was saved has been restored: from now on variables are the loop's."""
        there = {holder.key for holder in self._holders()}
        left = {key: values for key, values in self._saved if is_of_module(key) and key not in there}
        self._not_imported.update(left)
        groups = _shared_of(self._saved)["groups"]
        self._shared_late = {
            (key, name): self._table.objects_for_later(groups, (key, name)) for key in left for name in left[key]
        }
        if not left:
            self._table = Table()
        self._saved = ()

    def epoch_begins(self) -> None:
        """Note that an epoch begins: what the script makes before its batches a new start makes again."""
        self._before_epoch = {one for left in self._left_now.values() for one in left}

    def prepared(self) -> None:
        """Note that batches begin: a new start comes here with all that has been made since the epoch began."""
        for holder in self._holders():
            names = [name for name, value in holder.variables.items() if type(value) not in PLAIN]
            collections.deque(self._pickled(holder, names), 0)
        self._prepared = {
            at: {key: one for key, one in left.items() if key not in self._before_epoch}
            for at, left in self._left_now.items()
        }

    def leave(self, apart: Iterable[Any]) -> None:
        """Exclude these objects from now on, which are kept elsewhere, like the parts."""
        self._apart_now = {id(one) for one in apart}

    def share_with(self, dictionaries: Mapping[str, dict[Any, Any]]) -> None:
        """Exclude these parts from now on, and keep which of their objects are shared with variables."""
        self.leave(dictionaries.values())
        self._given = [Items(name, one) for name, one in dictionaries.items()]

    def state(self) -> Saved:
        """Return the present values of variables that the loop has changed since it first began."""
        if not self._begun:
            return self._saved
        return [(CLOCKS, {"": pickle.dumps(self._clocks.state())}), *self.changed()]

    def changed(self) -> Saved:
        """Return the same without measured time, even before a loop has begun.

        With a sentence about what has changed and is not kept, which `refuse_lost` raises.
        """
        self._lost.clear()
        self._unknown.clear()
        self._left_now.clear()
        lost: list[str] = []
        found: list[tuple[Key, Mapping[str, bytes]]] = list(self._not_imported.items())
        shared = Shared(self._shared_first, self._places)
        for at, objects in self._shared_late.items():
            shared.add(at, objects, True)
        holders = self._holders()
        self._bases = _arrays_held([*holders, *self._given])
        there = [self._changed_of(holder, shared) for holder in holders]
        found += [(given.key, self._shared_of_given(given, shared)) for given in self._given]
        shared.close()
        for holder, values in zip(holders, there):
            left = {name: value for name, value in holder.variables.items() if name not in values}
            names = [name for name in values if (holder.key, name) in shared.changed]
            again = {name: pickled for name, pickled, _ in self._pickled(holder, [n for n in names if not values[n]])}
            changed = {name: values[name] or again[name] for name in names if values[name] or name in again}
            if isinstance(holder, Module) and changed and (made := self._made(holder, left, changed)):
                self._leave_alone(holder, changed, made)
                shared.leave_out((holder.key, name) for name in changed)
                continue
            self._carried.update((holder.key, name) for name in changed)
            found.append((holder.key, changed))
            if isinstance(holder, Object):
                self._name(holder, left)
            lost += self._lost_of(holder)
        told: Saved = [(LOST, {"": lost[0].encode()})] if lost else ()
        return [(SHARED, {"": pickle.dumps(shared.state())}), *told, *found]

    def _changed_of(self, holder: Holder, shared: Shared) -> dict[str, bytes]:
        """Return the variables that can be kept, pickled if changed, else empty, and add them to `shared`."""
        found = {}
        for name, pickled, objects in self._pickled(holder, holder.variables):
            at = holder.key, name
            found[name] = b""
            whole = holder.key in self._whole and not _is_definition(holder.variables[name])
            if whole or at in self._carried or self._first.get(at) != _digest(pickled):
                found[name] = pickled
            shared.add(at, objects, bool(found[name]))
        return found

    def _shared_of_given(self, given: Items, shared: Shared) -> dict[str, bytes]:
        """Return the pickled values in a dictionary that share objects with variables, and add them to `shared`."""
        names = [name for name, one in given.variables.items() if any(map(shared.knows, _within(one)))]
        found = {}
        for name, pickled, objects in self._pickled(given, names):
            found[name] = pickled
            shared.add((given.key, name), objects, True)
        return found

    def _made(self, module: Module, left: Iterable[str], changed: Mapping[str, bytes]) -> str:
        """Name a variable with something that the module has created since and a new start cannot restore.

        A pool, a connection, a writer: other variables may say that it is there, as `ready = True` does.
        """
        apart = self._apart | self._apart_now
        new = [
            name
            for name in (*left, *changed)
            if self._places.get((module.key, name)) != id(module.variables[name]) and not name.startswith("__")
        ]
        for name in new:
            value = module.variables[name]
            if name in changed:
                if not _is_whole(pickle.loads(changed[name])):
                    return name
            elif not (_collects(value) or _is_definition(value) or id(value) in apart):
                return name
        return ""

    def _leave_alone(self, module: Module, changed: Iterable[str], made: str) -> None:
        new = [name for name in changed if (module.key, name) not in self._said]
        if new:
            self._said.update((module.key, name) for name in new)
            plain.warn(
                f"reshape: after a stop {', '.join(new)} of the module {module.name} begin anew, because a new start "
                f"has no {made} there, which cannot be kept: give what changes to Elastic"
            )

    def _lost_of(self, holder: Holder) -> Iterator[str]:
        """Yield a sentence for each variable that the script may still use, has changed, and is not kept."""
        for at, why in self._lost.items():
            if at[0] == holder.key and _goes_on(holder, at[1]):
                told = f"{at[1]} of {holder.name} changes during training, and a restart would reset it, because {why}"
                if not _is_of_data_set(holder, at[1]):
                    yield told
                elif at not in self._said:
                    self._said.add(at)
                    plain.warn(f"reshape: {told}")
        for at, unknown in self._unknown.items():
            new = [type(one).__qualname__ for one in unknown if id(one) not in self._unknown_first]
            if at[0] == holder.key and new and _goes_on(holder, at[1]):
                yield (
                    f"{at[1]} of {holder.name} changes during training, and a restart would reset it, because a new "
                    f"start does not find the class {new[0]}: define it outside of that function"
                )

    def set_to(self, saved: Saved) -> None:
        """Restore the variables to what they were when `state` or `changed` returned this."""
        values = dict(saved)
        shared = _shared_of(saved)
        held = set(shared["held"])
        holders: list[Holder] = [*self._holders(), *self._given]
        self._bases = _arrays_held(holders)
        to_set = [(one, name, pickled) for one in holders for name, pickled in values.get(one.key, {}).items()]
        rebound = {(one.key, name) for one, name, _ in to_set if ((one.key, name), 0) in self._shared_first} - held
        table = Table(shared["groups"], rebound if SHARED in values else (), self._parts)
        for holder in holders:
            variables = holder.variables
            for name in list(variables):
                at = holder.key, name
                if at in held:
                    table.reserve_object(at, variables[name])
            kept = [name for name in variables if (holder.key, name) in shared["unchanged"]]
            for name, _, objects in self._pickled(holder, kept):
                if digest_of_types(objects) == shared["unchanged"][holder.key, name]:
                    table.take_unchanged((holder.key, name), objects)
        self._set(sorted(to_set, key=lambda one: (one[0].key, one[1]) not in held), table)
        if self._saved:
            self._table = table

    def _name(self, of: Object, left: Mapping[str, Any]) -> None:
        """Report once which attributes are lost at a stop: training has set them, and they cannot be kept."""
        for name, value in left.items():
            at = of.key, name
            if self._places.get(at) == id(value) or at in self._said or id(value) in self._apart:
                continue
            if lives(value) and not hasattr(value, "named_modules"):
                continue
            self._said.add(at)
            kind = type(value).__qualname__
            plain.warn(
                f"reshape: after a stop {name} of {of.name} begins anew, because a {kind} like it cannot be kept"
            )

    def _holders(self) -> list[Holder]:
        return [*scopes(), *self._objects]

    def _pickled(self, holder: Holder, names: Iterable[str]) -> Iterator[tuple[str, bytes, Objects]]:
        variables = holder.variables
        beside = isinstance(holder, Object)
        for name in list(names):
            if name.startswith("__"):
                continue
            at = holder.key, name
            if self._is_another_definition(at, variables[name]) and _goes_on(holder, name):
                try:
                    yield name, pickle.dumps(Packed("pickled", pickle.dumps(variables[name]))), []
                except Exception:  # a lambda, or a nested function
                    self._lost[at] = OF_NO_NAME
                continue
            packing = self._packing(beside)
            pickled, objects = _pickled_or_left(variables[name], packing)
            if packing.unknown:
                self._unknown[at] = packing.unknown
            found = {id(one): _fingerprint(one, packing.within) for one in packing.left}
            self._left_now[at] = found
            first = self._collected.setdefault(at, found)
            if [*first.values()] != [*found.values()] and _goes_on(holder, name):
                packing = self._packing(large=True)
                whole, in_whole = _pickled_or_left(variables[name], packing)
                if whole and not packing.left:
                    pickled = whole
                    objects = in_whole
                elif self._is_lost(at, found):
                    self._lost[at] = TOO_LARGE if _is_too_large(packing) else NOT_KEPT
            if pickled:
                yield name, pickled, objects

    def _packing(self, beside: bool = False, large: bool = False) -> Packing:
        return Packing(self._apart | self._apart_now, beside, large, self._numbers, self._bases)

    def _is_another_definition(self, at: tuple[Key, str], value: Any) -> bool:
        """Return whether a function or class, such as a loss, is not the one of when the loop began."""
        defined = _defined_by(value)
        return defined is not None and self._defined.get(at) != defined

    def _is_lost(self, at: At, found: Mapping[int, Fingerprint]) -> bool:
        """Return whether something has changed that a new start neither restores nor makes again."""
        first = self._collected[at]
        prepared = self._prepared.get(at, {})
        return any(one not in (first.get(key), prepared.get(key)) for key, one in found.items())

    def _set(self, saved: Iterable[tuple[Holder, str, bytes]], table: Table) -> None:
        changed: dict[int, tuple[Holder, dict[str, Any]]] = {}
        for holder, name, pickled in saved:
            is_there = holder.variables.get(name, MISSING)
            table.begin_variable((holder.key, name))
            try:
                value = unpack(pickle.loads(pickled), is_there, table)
            except Exception as fault:
                table.undo_variable()
                plain.warn(f"reshape: the variable {name} begins anew, because it cannot be set again: {fault}")
                continue
            if value is MISSING:
                table.undo_variable()
            if (value is MISSING or table.unknown) and _goes_on(holder, name):
                why = f"class {table.unknown[0]} that it held" if table.unknown else "object that it held"
                plain.warn(f"reshape: the variable {name} begins anew, because a new start does not find the {why}")
            if value is not MISSING and value is not is_there:
                changed.setdefault(id(holder), (holder, {}))[1][name] = value
        for holder, values in changed.values():
            holder.set(values)


class Shared:
    """Tracks which objects several variables share when they are saved. Add all variables, `close` it, then query.

    `first`: which places shared an object when the loop began. `places`: which object each variable held then.
    """

    def __init__(self, first: Mapping[Ref, Ref], places: Mapping[At, int]) -> None:
        self._first = first
        self._places = places
        self._now = Places()
        self._groups: list[list[Ref]] = []
        self._objects: dict[At, Objects] = {}
        self._held: set[At] = set()
        self._out: set[At] = set()
        self.changed: set[At] = set()

    def add(self, at: At, objects: Objects, changed: bool) -> None:
        """Add a variable with the objects in it, by their numbers."""
        self._now.add(at, objects)
        self._objects[at] = objects
        if changed:
            self.changed.add(at)
        if objects and objects[0][0] == 0 and self._places.get(at) == id(objects[0][1]):
            self._held.add(at)

    def knows(self, one: Any) -> bool:
        """Return whether this object is one of the variables, or in one."""
        return self._now.knows(one)

    def close(self) -> None:
        """Count what holds another object than at the beginning as changed, even if that looks the same."""
        self._groups = self._now.shared()
        unchanged = self._objects.keys() - self.changed
        others = shared_otherwise(self._first, first_places(self._groups), unchanged)
        self.changed.update(at for at, number in others if number or at not in self._held)

    def leave_out(self, variables: Iterable[At]) -> None:
        """Exclude variables that have changed and are not saved."""
        self._out.update(variables)

    def state(self) -> dict[str, Any]:
        """Return what is saved beside the variables."""
        kept = [[ref for ref in group if ref[0] not in self._out] for group in self._groups]
        groups = [group for group in kept if len(group) > 1 and any(at in self.changed for at, _ in group)]
        unchanged = {at for group in groups for at, _ in group} - self.changed
        return {
            "groups": groups,
            "held": self._held - self._out,
            "unchanged": {at: digest_of_types(self._objects[at]) for at in unchanged},
        }


def _shared_of(saved: Saved) -> dict[str, Any]:
    """Return what `Shared` returned; checkpoints of older versions have none of it."""
    pickled = dict(saved).get(SHARED)
    found: dict[str, Any] = pickle.loads(pickled[""]) if pickled else {"groups": [], "held": set(), "unchanged": {}}
    return found


def _within(value: Any) -> Iterator[Any]:
    """Yield a value and the lists, dictionaries, arrays and script objects in it."""
    todo = [value]
    seen: set[int] = set()
    while todo and len(seen) < MOST_ITEMS:
        one = todo.pop()
        if id(one) in seen or type(one) in PLAIN:
            continue
        seen.add(id(one))
        own = is_own(type(one)) and hasattr(one, "__dict__")
        if not (own or _collects(one)):
            continue
        yield one
        if own:
            todo += vars(one).values()
        elif not _is_array(one):
            todo += one.values() if isinstance(one, dict) else one


def _arrays_held(holders: Iterable[Holder]) -> set[int]:
    """Return the identities of arrays and tensors held by variables, attributes and given dictionaries."""
    return {id(value) for holder in holders for _, value in places(holder) if _is_array(value)}


def _goes_on(holder: Holder, name: str) -> bool:
    """Return whether the script may still use what this variable holds now."""
    return not isinstance(holder, Frame) or is_read(holder.frame, name)


def _defined_by(value: Any) -> tuple[Any, ...] | None:
    """Return what identifies the source lines of a function or class; None for anything else."""
    if not issubclass(type(value), (type, FunctionType, BuiltinFunctionType)):
        return None
    return value.__module__, value.__qualname__, id(getattr(value, "__code__", None))


def _is_whole(packed: Any) -> bool:
    """Return whether it can be recreated from nothing: no part of it is left to the script."""
    if isinstance(packed, Packed):
        return packed.kind != AS_IT_IS.kind and (packed.kind == "plain" or _is_whole(packed.value))
    if isinstance(packed, dict):
        return all(map(_is_whole, packed.values()))
    return all(map(_is_whole, packed)) if isinstance(packed, (list, tuple)) else True


def _collects(value: Any) -> bool:
    kind = type(value)
    return kind in ITEMS or kind in MAPPINGS or _is_array(value)


def _is_array(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ in ARRAYS and kind.__module__.partition(".")[0] in ("torch", "numpy")


def _is_definition(value: Any) -> bool:
    return _defined_by(value) is not None or issubclass(type(value), ModuleType)


def _parameters_of(part: Any) -> Iterator[Any]:
    """Yield the parameters of a PyTorch module: a list of them, or a single one, is not a variable of its own."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.nn.Module):
        yield from part.parameters()


def _pickled_or_left(value: Any, packing: Packing) -> tuple[bytes, Objects]:
    """Return a variable in restorable form, b"" if it is not kept, and the objects in it by their numbers.

    What is left out is in the packing's `left`.
    """
    try:
        packed, objects = _pack_whole(value, packing)
        return (b"", ()) if packed.kind in (AS_IT_IS.kind, NAMED) else (pickle.dumps(packed), objects)
    except Exception:  # it holds too much, or the script's own objects raise when inspected
        return b"", ()


def refuse_lost(saved: Saved, advice: str) -> None:
    """Raise CheckpointError for what has changed and is not in these values of `Variables.state`.

    `advice`: how to keep a variable that holds too much.
    """
    if told := dict(saved).get(LOST):
        raise plain.CheckpointError(told[""].decode().replace(ADVICE, advice))


def _is_of_data_set(holder: Holder, name: str) -> bool:
    """Return whether this belongs to a data set, which caches there what it reads again."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is None:
        return False
    owner = holder.owner if isinstance(holder, Object) else holder.variables.get(name)
    return issubclass(type(owner), data.Dataset)


def _is_too_large(packing: Packing) -> bool:
    """Return whether a variable was left out because of its size."""
    return packing.room < 0 or packing.bytes < 0 or any(_is_array(one) or is_of_jax(one) for one in packing.left)


def _fingerprint(value: Any, apart: Collection[int]) -> Fingerprint:
    """Return a value that differs once a list has other items, or a tensor or an array other numbers.

    `apart`: identities of what is kept elsewhere.
    """
    if _is_array(value):
        try:
            return id(value), digest_of_array(value) if type(value).__name__ == "ndarray" else TensorNow(value)
        except Exception:  # a sparse one, or one without numbers
            return (id(value),)
    if keras_values.is_of_keras(type(value)):
        return id(value), *keras_values.digests_of(value)
    if type(value) is MethodType:
        return id(value.__self__), value.__func__
    if (defined := _defined_by(value)) is not None:
        return defined
    if is_of_jax(value):  # each step recreates it, perhaps where an earlier one was in memory
        jax = sys.modules["jax"]
        return tuple(ArrayNow(one) for one in jax.tree_util.tree_leaves(value) if isinstance(one, jax.Array))
    if not _collects(value):
        return (id(value),)
    return _Compared(apart).items_of(value, DEPTH)


class _Compared:
    """Compares what lists and dictionaries hold that are not kept, up to a number of items."""

    def __init__(self, apart: Collection[int]) -> None:
        self._apart = apart
        self._room = MOST_COMPARED

    def items_of(self, value: Any, depth: int) -> Fingerprint:
        """Return a hashable value for each item, except for what only shows or writes what a training does."""
        items = iter(value.items() if isinstance(value, dict) else enumerate(value))
        found = []
        for key, one in itertools.islice(items, MOST_LOOKED_AT):
            self._room -= 1
            if not is_instrument(one):
                found.append((hash(key) if isinstance(value, dict) else None, self._item(one, depth - 1)))
        return (*found, hash(tuple(id(one) for _, one in items)))

    def _item(self, one: Any, depth: int) -> Any:
        kind = type(one)
        numpy: Any = sys.modules.get("numpy")
        if kind in PLAIN or issubclass(kind, (enum.Enum, pathlib.PurePath)):
            return hash(one)
        if numpy is not None and issubclass(kind, numpy.generic):
            return hash(one.tobytes())
        if depth and self._room > 0 and id(one) not in self._apart:
            if _is_array(one):
                return repr(digest_of_array(one)) if kind.__name__ == "ndarray" else _now(one)
            if _collects(one):
                return self.items_of(one, depth)
            if is_own(kind) and not hasattr(kind, "state_dict"):
                return id(one), self.items_of(attributes_of(one), depth)
        return id(one)


def _now(tensor: Any) -> Any:
    try:
        now = TensorNow(tensor)
    except Exception:  # a sparse one, or one without numbers
        return id(tensor)
    return now.version, now.numbers


def is_instrument(value: Any, depth: int = DEPTH) -> bool:
    """Return whether it only shows or writes what a training does: a file, a logger, a progress bar; also several."""
    kind = type(value)
    if issubclass(kind, io.IOBase) or f"{kind.__module__}.".startswith(INSTRUMENTS):
        return True
    if depth == 0 or not (kind in ITEMS or kind in MAPPINGS):
        return False
    items = list(itertools.islice(value.values() if kind in MAPPINGS else value, MOST_LOOKED_AT))
    others = [one for one in items if type(one) is not str]
    return bool(others) and all(is_instrument(one, depth - 1) for one in others)


def _digest(pickled: bytes) -> bytes:
    return hashlib.blake2b(pickled, digest_size=16).digest()


class Packing:
    """State while a variable is packed: what is kept elsewhere, and how much more may come.

    `beside`: an object of which a library keeps a part. Nobody else keeps what it holds: modules, library objects,
    `large` tensors and arrays. `parts`: the numbers of the training's parts, by identity, which are among those that
    are `apart`. `bases`: identities of arrays that others may be views of.
    """

    def __init__(
        self,
        apart: set[int],
        beside: bool = False,
        large: bool = False,
        parts: Mapping[int, int] | None = None,
        bases: Collection[int] = (),
    ) -> None:
        self.within = set(apart)
        self.parts = parts or {}
        self.bases = bases
        self.beside = beside
        self.large = beside or large
        self.room, self.bytes = MOST_ITEMS, MOST_ALL_BYTES
        self.left: list[Any] = []  # what is not kept, of types in which scripts collect values
        self.unknown: list[Any] = []  # objects whose class is not found by its name
        self._known: dict[type, bool] = {}
        self._numbers: dict[int, int] = {}
        self._looked_at: list[Any] = []  # by number; keeps them alive, so that no `id` is reused
        self._asked_again: set[int] = set()
        self.dropped: set[int] = set()  # objects that are not kept

    def knows(self, kind: type) -> bool:
        """Return whether a class is found by its name; a function creates another one of that name at each call."""
        if kind not in self._known:
            found = _class(kind.__module__, kind.__qualname__)
            self._known[kind] = found is kind or (found is not None and LOCALS in kind.__qualname__)
        return self._known[kind]

    def begin(self, value: Any) -> int:
        """Number an object that has not occurred before, and count it as inspected."""
        number = len(self._looked_at)
        self._looked_at.append(value)
        self._numbers[id(value)] = number
        return number

    def again(self, value: Any) -> Packed | None:
        """Return the reference to an object that has occurred before; None if it has not."""
        number = self._numbers.get(id(value))
        if number is None:
            return None
        self._asked_again.add(id(value))
        return Packed(AGAIN, None, None, number)

    def drop(self, value: Any, kept: bool) -> None:
        """Withdraw the number of what has no identity, or is not `kept`."""
        self._numbers.pop(id(value), None)
        if not kept:
            self.dropped.add(id(value))

    def objects(self) -> Objects:
        """Return the objects with their numbers."""
        return [(number, self._looked_at[number]) for number in self._numbers.values()]

    def another(self) -> Packing:
        """Return a packing for another try, which knows what is not kept."""
        found = Packing(self.within | self.dropped, self.beside, self.large, self.parts, self.bases)
        found.left = self.left
        found.unknown = self.unknown
        return found

    def needs_another_try(self) -> bool:
        """Return whether something kept refers to what turned out later not to be."""
        return bool(self._asked_again & self.dropped)

    def count_items(self, items: int) -> None:
        """Count what is packed. Raises ValueError if that is too much."""
        self.room -= items
        if self.room < 0:
            raise ValueError("too large")

    def take_bytes(self, count: int) -> None:
        """Count the bytes of a tensor or an array. Raises ValueError if they are too many."""
        self.bytes -= count
        if self.bytes < 0:
            raise ValueError("too large")


def copies(values: Mapping[Any, Any]) -> dict[Any, Packed]:
    """Return copies of what is small in a dictionary, AS_IT_IS for everything else.

    A view of another array in it is copied with its base, so that it stays one, or not at all.
    """
    found = {}
    bases = {id(value) for value in values.values() if _is_array(value)}
    for key, value in values.items():
        try:
            base = _base_of(value)
            of_large = base is not None and id(base) in bases and _bytes_of(base) > MOST_BYTES
            is_large = of_large or _jax_bytes(value) > MOST_BYTES
            found[key] = AS_IT_IS if is_large else pack(value, Packing(set(), bases=bases))
        except Exception:  # too large, or an object of the script's own cannot be inspected
            found[key] = AS_IT_IS
    return found


def refill(values: dict[Any, Any], kept: Mapping[Any, Packed]) -> None:
    """Restore a dictionary to what it held when these `copies` were made; lists in it stay the same objects."""
    again = {key: unpack(one, values.get(key, MISSING)) for key, one in kept.items()}
    values.clear()
    values.update({key: one for key, one in again.items() if one is not MISSING})


def refill_in_place(values: dict[Any, Any], new: Mapping[Any, Any]) -> None:
    """Make a dictionary hold these.

    Lists, arrays and the like in it stay the same objects, since variables may hold them, too.
    """
    stay = {key: one for key, one in new.items() if _fits_into(one, values.get(key))}
    linked = _tensors_of_shared_memory(stay, values)
    stay = {key: one for key, one in stay.items() if key not in linked}
    flat = {key: Packed("array", one) for key, one in stay.items() if type(one).__name__ == "ndarray"}
    flat.update({key: Packed("tensor", one, "cpu") for key, one in stay.items() if _is_array(one) and key not in flat})
    packed = {**copies({key: one for key, one in stay.items() if key not in flat}), **flat}
    again = {key: unpack(one, values[key]) for key, one in packed.items() if _is_whole(one)}
    again.update({key: values[key] for key, is_filled in linked.items() if is_filled})
    values.clear()
    values.update(new)
    values.update({key: one for key, one in again.items() if one is not MISSING})


def _tensors_of_shared_memory(new: Mapping[Any, Any], there: Mapping[Any, Any]) -> dict[Any, bool]:
    """Fill PyTorch tensors that are views of one storage, where the present ones are the same views of one.

    Return the keys of all that share a storage, and whether each was filled: the others must be taken as they are,
    since what is there would be changed through another one.
    """
    tensors = [key for key, one in new.items() if type(one).__name__ == "Tensor" and _is_array(one)]
    saved_groups = _groups_of_memory({key: new[key] for key in tensors})
    present_groups = _groups_of_memory({key: there[key] for key in tensors})
    found = {}
    for key in tensors:
        group = saved_groups[key]
        if len(group) == 1 and len(present_groups[key]) == 1:
            continue
        found[key] = group == present_groups[key] and all(_place_of(new[one]) == _place_of(there[one]) for one in group)
    for key in (key for key, is_alike in found.items() if is_alike):
        there[key].detach().copy_(new[key].detach())
    return found


def _groups_of_memory(tensors: Mapping[Any, Any]) -> dict[Any, list[Any]]:
    """Map each key to the keys of all tensors in the same storage."""
    groups: dict[Any, list[Any]] = {}
    group_of = {}
    for key, one in tensors.items():
        group_of[key] = groups.setdefault(_memory_of(one), [])
        group_of[key].append(key)
    return group_of


def _memory_of(tensor: Any) -> Any:
    """Return a key that is equal for tensors in one storage; a unique one if there is none, as for a sparse tensor."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        return storage.data_ptr() or id(tensor)
    except Exception:
        return id(tensor)


def _place_of(tensor: Any) -> tuple[Any, ...]:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _fits_into(value: Any, there: Any) -> bool:
    """Return whether it can be written into the present object: of the same mutable type, and not JAX's."""
    if type(value) is not type(there) or _jax_bytes(value):
        return False
    if type(value).__name__ == "Tensor" and _is_array(value):
        return bool(value.requires_grad == there.requires_grad)
    return _collects(value) or (is_own(type(value)) and hasattr(value, "__dict__"))


def _pack_whole(value: Any, packing: Packing) -> tuple[Packed, Objects]:
    """Return what `pack` returns, with nothing that refers to what is not kept, and the objects by their numbers."""
    packed = pack(value, packing)
    while packing.needs_another_try():
        packing = packing.another()
        packed = pack(value, packing)
    return packed, packing.objects()


def pack(value: Any, packing: Packing) -> Packed:
    """Return a picklable copy; AS_IT_IS for what the script itself recreates, such as a model or a file."""
    kind = type(value)
    if issubclass(kind, ModuleType):  # a lazy one would load if any attribute were read
        return AS_IT_IS
    if kind in PLAIN or isinstance(value, (enum.Enum, pathlib.PurePath)):
        return Packed("plain", value)
    if id(value) in packing.within:  # even within itself, where it has no number
        number_of_part = packing.parts.get(id(value))
        return (
            AS_IT_IS if number_of_part is None else Packed(PART, number_of_part, (kind.__module__, kind.__qualname__))
        )
    if (again := packing.again(value)) is not None:
        return again
    if issubclass(kind, (*UNCHANGED, type, FunctionType)):
        return _pack_within(value, packing)
    number = packing.begin(value)
    packed = AS_IT_IS
    try:
        packed = _pack_left(value, packing)
    finally:
        if packed.kind in (AS_IT_IS.kind, *OF_NO_IDENTITY):
            packing.drop(value, packed is not AS_IT_IS)
    return packed if packed.kind in (AS_IT_IS.kind, *OF_NO_IDENTITY) else Packed(*packed[:3], number)


def _pack_within(value: Any, packing: Packing) -> Packed:
    """Pack what is created with all its content, so that it cannot contain itself."""
    packing.within.add(id(value))
    try:
        return _pack_left(value, packing)
    finally:
        packing.within.discard(id(value))


def _pack_left(value: Any, packing: Packing) -> Packed:
    packed = AS_IT_IS
    try:
        packed = _pack(value, packing)
    finally:
        if packed is AS_IT_IS and _collects(value) and not is_instrument(value):
            packing.left.append(value)
    return packed


def _pack(value: Any, packing: Packing) -> Packed:
    kind = type(value)
    if kind in ITEMS:
        return _pack_items(value, packing)
    if kind in MAPPINGS:
        return _pack_mapping(value, packing)
    if (of_jax := _pack_jax(value, packing)) is not None:
        return of_jax
    if keras_values.is_of_keras(kind):
        return _pack_of_keras(value, packing)
    if is_named_tuple(value):
        return _pack_named_tuple(value, packing)
    if kind is FunctionType or isinstance(value, type):
        return _pack_definition(value, packing)
    if kind is BuiltinFunctionType and issubclass(type(value.__self__), (ModuleType, type)):
        return _pack_named(value, packing)
    if kind is MethodType:
        return _pack_method(value, packing)
    if (view := _pack_view(value, packing)) is not None:
        return view
    flat = _pack_buffer(value) or _pack_array(value, packing)
    return flat or _pack_generator(value) or _pack_object(value, packing)


def _pack_items(value: Any, packing: Packing) -> Packed:
    more = (type(value), value.maxlen if type(value) is collections.deque else None)
    if all(type(one) in PLAIN for one in value):
        packing.count_items(1 + len(value) // FLAT)
        return Packed("plain items", list(value), more)
    packing.count_items(1 + len(value))
    items = [pack(one, packing) for one in value]
    return AS_IT_IS if any(one is AS_IT_IS for one in items) else Packed("items", items, more)


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def _pack_named_tuple(value: Any, packing: Packing) -> Packed:
    kind = type(value)
    packing.count_items(1 + len(value))
    items = [pack(one, packing) for one in value]
    kept = packing.knows(kind) and not any(one is AS_IT_IS for one in items)
    return Packed("named tuple", items, (kind.__module__, kind.__qualname__)) if kept else AS_IT_IS


def _class(module: str, name: str) -> Any:
    """Return the class of this name, even if the script knows it by another; None if there is none."""
    found: Any = sys.modules.get(module)
    path = name
    if LOCALS in name:
        function, _, path = name.rpartition(LOCALS)
        first, _, path = path.partition(".")
        found = _local_class(module, function + LOCALS + first)
    for part in filter(None, path.split(".")):
        found = getattr(found, part, None)
    if isinstance(found, type):
        return found
    known = vars(sys.modules[module]).values() if module in sys.modules else ()
    return next((one for one in known if isinstance(one, type) and one.__qualname__ == name), None)


def _local_class(module: str, name: str) -> Any:
    """Return a class defined in a function of the script that still runs; None if there is none."""
    for scope in scopes()[::-1]:
        for value in list(scope.variables.values()):
            kind: Any = type(value)  # that of a value, or a value itself
            if issubclass(kind, type):
                kind = value
            if (kind.__module__, kind.__qualname__) == (module, name):
                return kind
    return None


def _pack_mapping(value: Any, packing: Packing) -> Packed:
    packing.count_items(1 + len(value))
    items = [(pack(key, packing), pack(one, packing)) for key, one in value.items()]
    if any(key.kind != "plain" and key.kind != "plain items" for key, _ in items):
        return AS_IT_IS
    factory = value.default_factory if type(value) is collections.defaultdict else None
    known = factory in (None, int, float, list, dict, set, str)
    return Packed("mapping", items, (type(value), factory if known else None, known))


def _pack_buffer(value: Any) -> Packed | None:
    if not isinstance(value, BUFFERS):
        return None
    small = len(memoryview(value).cast("B")) <= MOST_BYTES
    return Packed("buffer", copy.copy(value)) if small and type(value) in BUFFERS else AS_IT_IS


def _pack_array(value: Any, packing: Packing) -> Packed | None:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    most = MOST_ALL_BYTES if packing.large else MOST_BYTES
    if numpy is not None and isinstance(value, numpy.generic):
        return Packed("plain", value)
    if numpy is not None and type(value) is numpy.ndarray:
        if value.nbytes > most or value.dtype == object:
            return AS_IT_IS
        packing.take_bytes(value.nbytes)
        return Packed("array", value.copy())
    if torch is not None and isinstance(value, (torch.dtype, torch.device, torch.Size)):
        return Packed("plain", value)
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        size = value.numel() * value.element_size()
        if size > most or value.layout != torch.strided:
            return AS_IT_IS
        packing.take_bytes(size)
        copied = value.detach().cpu().clone()
        if type(value) is torch.nn.Parameter:
            return Packed("parameter", copied, (value.device.type, value.requires_grad))
        return Packed("tensor", copied, value.device.type)
    return None


def _pack_view(value: Any, packing: Packing) -> Packed | None:
    """Pack an array or tensor that is a view of a parameter, or of another one that a variable holds."""
    base = _base_of(value)
    if base is None or not (id(base) in packing.bases or id(base) in packing.within):
        return None
    copied = _pack_array(value, packing)
    if copied is None or copied is AS_IT_IS:
        return copied
    if id(base) not in packing.within and _bytes_of(base) > MOST_BYTES and not packing.large:
        packing.left.append(base)  # once that has changed, it is kept with this one
        return copied
    packed_base = AS_IT_IS if id(base) in packing.within else pack(base, packing)
    return Packed("view", (packed_base, copied), _place_in(base, value))


def _bytes_of(array: Any) -> int:
    """Return the size in bytes of an array, or of a tensor in any version of PyTorch."""
    return int(array.nbytes if type(array).__name__ == "ndarray" else array.numel() * array.element_size())


def _base_of(value: Any) -> Any:
    """Return the contiguous array, or the tensor, that this one is a view of; None if it is not a view."""
    if not _is_array(value):
        return None
    base = value.base if type(value).__name__ == "ndarray" else value._base
    if not _is_array(base):
        return None
    return base if type(base).__name__ != "ndarray" or base.flags.c_contiguous else None


def _place_in(base: Any, view: Any) -> tuple[Any, ...]:
    """Return offset, shape, strides and dtype of a view in its base."""
    if type(view).__name__ == "ndarray":
        at = view.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return at, view.shape, view.strides, view.dtype
    return view.storage_offset() - base.storage_offset(), tuple(view.shape), view.stride(), view.dtype


def _pack_jax(value: Any, packing: Packing) -> Packed | None:
    """Pack a JAX array or key, or an immutable value that holds some: each step recreates it."""
    if not is_of_jax(value):
        return None
    if _jax_bytes(value) > (MOST_ALL_BYTES if packing.large else MOST_BYTES):
        packing.left.append(value)
        return AS_IT_IS
    return Packed("of JAX", pytrees.packed(value))


def is_of_jax(value: Any) -> bool:
    """Return whether it is a JAX array or key, or an immutable value that holds some."""
    jax = sys.modules.get("jax")
    if jax is None or not (isinstance(value, jax.Array) or _is_frozen(value)):
        return False
    return any(isinstance(one, jax.Array) for one in jax.tree_util.tree_leaves(value))


def _pack_of_keras(value: Any, packing: Packing) -> Packed:
    """Pack a TensorFlow tensor, or the Keras variables of a model, metric or optimizer; AS_IT_IS for others.

    Those that are kept elsewhere are left out.
    """
    if keras_values.is_tensor(value):
        if value.shape.num_elements() * value.dtype.size > (MOST_ALL_BYTES if packing.large else MOST_BYTES):
            packing.left.append(value)
            return AS_IT_IS
        return Packed("of TensorFlow", value.numpy())
    all_held = keras_values.variables_of(value)
    places = [place for place, one in enumerate(all_held) if id(one) not in packing.within]
    if not places:
        return AS_IT_IS
    held = [all_held[place] for place in places]
    if keras_values.size_of(held) > (MOST_ALL_BYTES if packing.large else MOST_BYTES):
        packing.left.append(value)
        return AS_IT_IS
    return Packed("variables of Keras", keras_values.values_of(held), places)


def _jax_bytes(value: Any) -> int:
    """Return the size in bytes of all arrays in a JAX value."""
    jax = sys.modules.get("jax")
    return sum(getattr(one, "nbytes", 0) for one in jax.tree_util.tree_leaves(value)) if jax else 0


def _is_frozen(value: Any) -> bool:
    """Return whether it is an optax state, a Flax TrainState or an Equinox module."""
    kind, equinox = type(value), sys.modules.get("equinox")
    if equinox is not None and isinstance(value, equinox.Module):
        return True
    frozen = getattr(getattr(kind, "__dataclass_params__", None), "frozen", False)
    return is_named_tuple(value) or frozen or kind.__name__ == "FrozenDict"


def _pack_generator(value: Any) -> Packed | None:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy.random")
    if type(value) is random.Random:
        return Packed("random.Random", value.getstate())
    if numpy is not None and isinstance(value, numpy.Generator):
        # Includes the seed sequence from which it spawns others.
        return Packed("numpy.Generator", value.bit_generator.__getstate__(), type(value.bit_generator).__name__)
    if numpy is not None and type(value) is numpy.SeedSequence:
        return Packed("plain", copy.deepcopy(value))
    if numpy is not None and isinstance(value, numpy.RandomState):
        return Packed("numpy.RandomState", value.get_state())
    if torch is not None and isinstance(value, torch.Generator):
        return Packed("torch.Generator", value.get_state())
    return None


def _pack_object(value: Any, packing: Packing) -> Packed:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "accelerate.accelerator.Accelerator":  # it counts the batches of an accumulation window
        return Packed("attributes", {"step": Packed("plain", value.step)})
    of_library = not (is_own(kind) or name in OF_PYTHON or is_plain(value))
    base = None if of_library else _base(kind)
    # The class is asked: a configuration whose `__getattr__` has every name is none of those.
    if of_library or hasattr(kind, "state_dict") or not (hasattr(value, "__dict__") or _slots(kind) or base):
        return _pack_of_library(value) if packing.beside else AS_IT_IS
    values = attributes_of(value)
    packing.count_items(1 + len(values))
    if not packing.knows(kind):
        packing.unknown.append(value)
    attributes = {name: pack(one, packing) for name, one in values.items()}
    if base is None:
        return Packed("object", attributes, (kind.__module__, kind.__qualname__))
    held = pack(_held(base, value), packing)
    if held is AS_IT_IS:
        return AS_IT_IS
    return Packed("own", (attributes, held), (kind.__module__, kind.__qualname__))


def _pack_definition(value: Any, packing: Packing) -> Packed:
    """Return what a script's function or class keeps between calls; its name if that is nothing."""
    values = kept_by_definition(value)
    packed = {name: pack(one, packing) for name, one in values.items()}
    if all(one is AS_IT_IS for one in packed.values()):
        return _pack_named(value, packing)
    packing.count_items(1 + len(values))
    return Packed("definition", packed, (value.__module__, value.__qualname__))


def _pack_named(value: Any, packing: Packing) -> Packed:
    """Return a function or class by its name, since a variable may hold another one later; AS_IT_IS if it has none."""
    try:
        return Packed(NAMED, pickle.dumps(value))
    except Exception:  # a lambda, or a nested function
        packing.left.append(value)
        return AS_IT_IS


def _pack_method(value: MethodType, packing: Packing) -> Packed:
    """Return a method with its object; AS_IT_IS if that is not kept here, and so may not be found again."""
    owner = pack(value.__self__, packing)
    if owner.kind not in OWNERS or getattr(value.__self__, value.__name__, None) != value:
        packing.left.append(value)
        return AS_IT_IS
    return Packed("method", owner, value.__name__)


def kept_by_definition(value: Any) -> dict[tuple[str, str], Any]:
    """Return a function's closure variables, attributes and argument defaults; for a class, its attributes."""
    if isinstance(value, type):
        if not is_own(value) or isinstance(value, enum.EnumMeta):
            return {}
        own = {name: one for name, one in vars(value).items() if not name.startswith("__") and not _is_method(one)}
        return {("attribute", name): one for name, one in own.items()}
    if is_library(value.__code__.co_filename, value.__module__ or ""):
        return {}
    found = {("attribute", name): one for name, one in vars(value).items() if not name.startswith("__")}
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
        with contextlib.suppress(ValueError):  # it has no value yet
            found["cell", name] = cell.cell_contents
    found.update({("default", str(number)): one for number, one in enumerate(value.__defaults__ or ())})
    return found


def _is_method(value: Any) -> bool:
    return callable(value) or hasattr(value, "__get__")


def is_plain(value: Any) -> bool:
    """Return whether it is a library object with numbers and strings only, such as timm's meters."""
    values = vars(value).values() if hasattr(value, "__dict__") and not lives(value) else ()
    return bool(values) and all(type(one) in PLAIN for one in values)


def _base(kind: type) -> Any:
    """Return the built-in type from which a script's class is derived; None if it has attributes only."""
    return next((one for one in BASES if issubclass(kind, one)), None)


def _held(base: Any, value: Any) -> Any:
    """Return the content of an object of a script's class, in the built-in type from which that is derived."""
    if base is collections.deque:
        return base(value, value.maxlen)
    if base is collections.defaultdict:
        return base(value.default_factory, base.items(value))
    if base in MAPPINGS:
        return base(dict(base.items(value)))
    if base in (str, bytes):
        return base.__getitem__(value, slice(None))
    return base.__getnewargs__(value)[0] if base in VALUES else base(base.__iter__(value))


def _slots(kind: type) -> dict[str, Any]:
    """Return the slot descriptors of the script's classes, by name."""
    return {
        name: one
        for each in reversed(kind.__mro__)
        if is_own(each)
        for name, one in vars(each).items()
        if isinstance(one, MemberDescriptorType)
    }


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a script's object, including those in slots."""
    slots = {name: one.__get__(value) for name, one in _slots(type(value)).items() if _is_filled(one, value)}
    return {**slots, **getattr(value, "__dict__", {})}


def _is_filled(slot: Any, value: Any) -> bool:
    try:
        slot.__get__(value)
    except AttributeError:
        return False
    return True


def _set_attributes(value: Any, attributes: Mapping[str, Any]) -> None:
    slots = _slots(type(value))
    for name, one in attributes.items():
        if name in slots:
            slots[name].__set__(value, one)
        else:
            vars(value)[name] = one


def _pack_of_library(value: Any) -> Packed:
    """Return a library object, such as a table or a weight-averaging module, pickled; AS_IT_IS if it `lives`."""
    torch: Any = sys.modules.get("torch")
    living: tuple[type, ...] = ()
    if torch is not None:
        living = (torch.optim.Optimizer, torch.utils.data.DataLoader)
        if isinstance(value, torch.nn.Module):
            return Packed("module", _pickled_whole(value, living))
        living = (torch.nn.Module, *living)
    return AS_IT_IS if lives(value) else Packed("pickled", _pickled_whole(value, living))


def lives(value: Any) -> bool:
    """Return whether it is part of the training or of the process, and so kept, or recreated, elsewhere."""
    return is_of_framework(value) or (callable(value) and not hasattr(value, "state_dict"))


def is_of_framework(value: Any) -> bool:
    """Return whether it is a class, a module, a file, or an object of a framework that keeps its own."""
    if issubclass(type(value), (type, ModuleType, io.IOBase)):
        return True
    return type(value).__module__.partition(".")[0] in FRAMEWORKS or keras_values.is_of_keras(type(value))


def _pickled_whole(value: Any, living: tuple[type, ...]) -> bytes:
    """Return a value's pickle. Raises PicklingError if it holds one of `living`, ValueError if it is large."""

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> None:
            if isinstance(thing, living):
                raise pickle.PicklingError("a part of the training")

    file = _Limited()
    Pickler(file, protocol=4).dump(value)
    return file.getvalue()


class _Limited(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > MOST_ALL_BYTES:
            raise ValueError("too large")
        return super().write(data)


def unpack(packed: Packed, is_there: Any = MISSING, table: Table | None = None) -> Any:
    """Return the value, filled into the object that `is_there` if of the same type, so that all its holders see it.

    MISSING if it cannot be created and is not there. `table`: what stands for objects that other values share.
    """
    if packed.kind == AS_IT_IS.kind:
        return is_there
    table = table or Table()
    if packed.number is None:
        return UNPACK[packed.kind](packed, is_there, table)
    made = table.made_object(packed.number)
    if made is not MISSING:
        return made
    if packed.kind == AGAIN:
        return MISSING
    value = UNPACK[packed.kind](packed, table.object_of_new_start(packed.number, is_there), table)
    if value is MISSING:
        table.forget_object(packed.number)
    elif table.made_object(packed.number) is MISSING:
        table.remember_object(packed.number, value)
    return value


def _unpack_plain(packed: Packed, _is_there: Any, _table: Table) -> Any:
    return packed.value


def _unpack_plain_items(packed: Packed, is_there: Any, table: Table) -> Any:
    return _refilled(packed.value, packed.more, _container(packed.more, table.free_to_fill(packed.number, is_there)))


def _unpack_items(packed: Packed, is_there: Any, table: Table) -> Any:
    old = list(is_there) if type(is_there) in (list, tuple, collections.deque) else []
    made = _container(packed.more, table.free_to_fill(packed.number, is_there))
    table.remember_object(packed.number, made)
    items = [unpack(one, old[k] if k < len(old) else MISSING, table) for k, one in enumerate(packed.value)]
    return MISSING if any(one is MISSING for one in items) else _refilled(items, packed.more, made)


def _unpack_named_tuple(packed: Packed, _is_there: Any, table: Table) -> Any:
    items = [unpack(one, MISSING, table) for one in packed.value]
    kind = table.find_class(packed.more, _class)
    return MISSING if kind is None or any(one is MISSING for one in items) else kind(*items)


def _container(more: tuple[Any, Any], is_there: Any) -> Any:
    """Return the list, set or deque to fill; MISSING for types whose content is set at creation."""
    kind, most = more
    if kind in (tuple, frozenset):
        return MISSING
    if kind is collections.deque:
        same = type(is_there) is kind and is_there.maxlen == most
        return is_there if same else collections.deque(maxlen=most)
    return is_there if type(is_there) is kind else kind()


def _refilled(items: list[Any], more: tuple[Any, Any], made: Any) -> Any:
    kind = more[0]
    if made is MISSING:
        return kind(items)
    made.clear()
    (made.update if kind is set else made.extend)(items)
    return made


def _unpack_mapping(packed: Packed, is_there: Any, table: Table) -> Any:
    kind, factory, known = packed.more
    same = type(is_there) is kind
    old = dict(is_there) if same else {}
    made = table.free_to_fill(packed.number, is_there) if same else MISSING
    if made is MISSING:
        if not (known or same):
            return MISSING
        factory = factory if known else is_there.default_factory
        made = kind(factory) if kind is collections.defaultdict else kind()
    table.remember_object(packed.number, made)
    items = {}
    for packed_key, one in packed.value:
        key = unpack(packed_key)
        value = unpack(one, old.get(key, MISSING), table)
        if value is not MISSING:
            items[key] = value
    made.clear()
    made.update(items)
    return made


def _unpack_buffer(packed: Packed, is_there: Any, table: Table) -> Any:
    saved = packed.value
    is_there = table.free_to_fill(packed.number, is_there)
    if type(is_there) is not type(saved) or getattr(is_there, "typecode", "") != getattr(saved, "typecode", ""):
        return saved
    is_there[:] = saved
    return is_there


def _unpack_array(packed: Packed, is_there: Any, table: Table) -> Any:
    saved = packed.value
    is_there = table.free_to_fill(packed.number, is_there)
    alike = type(is_there) is type(saved) and (is_there.shape, is_there.dtype) == (saved.shape, saved.dtype)
    if not alike or is_there.base is not None or not is_there.flags.writeable:
        return saved
    is_there[...] = saved
    return is_there


def _unpack_view(packed: Packed, is_there: Any, table: Table) -> Any:
    """Return the view into its present base, the same object if it already is one; else a copy."""
    packed_base, copied = packed.value
    base_there = _base_of(is_there) if is_there is not MISSING else None
    base = unpack(packed_base, MISSING if base_there is None else base_there, table)
    if base is not MISSING and base is base_there and _place_in(base, is_there) == packed.more:
        return is_there
    if base is MISSING or packed_base.kind == AS_IT_IS.kind:
        return unpack(copied, MISSING, table)
    at, shape, strides, kind = packed.more
    if type(base).__name__ != "ndarray":
        return base.detach().as_strided(shape, strides, base.storage_offset() + at)
    return sys.modules["numpy"].ndarray(shape, kind, base, at, strides)


def _unpack_parameter(packed: Packed, is_there: Any, table: Table) -> Any:
    """Return the parameter, filled into the present one, which its optimizer holds."""
    import torch

    device, requires_grad = packed.more
    tensor = _unpack_tensor(Packed("tensor", packed.value, device, packed.number), is_there, table)
    return tensor if tensor is is_there else torch.nn.Parameter(tensor, requires_grad)


def _unpack_tensor(packed: Packed, is_there: Any, table: Table) -> Any:
    import torch

    saved = packed.value
    if type(is_there) not in (torch.Tensor, torch.nn.Parameter):
        return saved.to(packed.more) if packed.more != "cuda" or torch.cuda.is_available() else saved
    alike = (is_there.shape, is_there.dtype) == (saved.shape, saved.dtype) and is_there._base is None
    if not alike or table.free_to_fill(packed.number, is_there) is MISSING:
        return saved.to(is_there.device)
    with torch.no_grad():
        is_there.copy_(saved)
    return is_there


def _unpack_jax(packed: Packed, is_there: Any, table: Table) -> Any:
    return pytrees.unpacked(packed.value, None if is_there is MISSING else is_there)


def _unpack_of_tensorflow(packed: Packed, _is_there: Any, _table: Table) -> Any:
    return keras_values.tensor_of(packed.value)


def _unpack_variables_of_keras(packed: Packed, is_there: Any, _table: Table) -> Any:
    """Return the present object with its variables restored; MISSING if it has others."""
    return is_there if is_there is not MISSING and keras_values.assign(is_there, packed.more, packed.value) else MISSING


def _unpack_random(packed: Packed, is_there: Any, table: Table) -> Any:
    is_there = table.free_to_fill(packed.number, is_there)
    made = is_there if type(is_there) is random.Random else random.Random()
    made.setstate(packed.value)
    return made


def _unpack_numpy_generator(packed: Packed, is_there: Any, table: Table) -> Any:
    is_there = table.free_to_fill(packed.number, is_there)
    numpy = importlib.import_module("numpy.random")
    alike = isinstance(is_there, numpy.Generator) and type(is_there.bit_generator).__name__ == packed.more
    made = is_there if alike else numpy.Generator(getattr(numpy, packed.more)())
    made.bit_generator.__setstate__(packed.value)
    return made


def _unpack_numpy_random_state(packed: Packed, is_there: Any, table: Table) -> Any:
    is_there = table.free_to_fill(packed.number, is_there)
    numpy = importlib.import_module("numpy.random")
    made = is_there if isinstance(is_there, numpy.RandomState) else numpy.RandomState()
    made.set_state(packed.value)
    return made


def _unpack_torch_generator(packed: Packed, is_there: Any, table: Table) -> Any:
    is_there = table.free_to_fill(packed.number, is_there)
    import torch

    made = is_there if isinstance(is_there, torch.Generator) else torch.Generator()
    made.set_state(packed.value)
    return made


def _is_of(more: tuple[str, str], is_there: Any) -> bool:
    """Return whether the object's class has this module and name."""
    return (type(is_there).__module__, type(is_there).__qualname__) == more


def _unpack_object(packed: Packed, is_there: Any, table: Table) -> Any:
    same = _is_of(packed.more, is_there)
    made = table.free_to_fill(packed.number, is_there) if same else MISSING
    is_new = made is MISSING
    if is_new:
        kind: Any = type(is_there) if same else table.find_class(packed.more, _class)
        if kind is None:
            return MISSING
        made = kind.__new__(kind)
    table.remember_object(packed.number, made)
    old = attributes_of(is_there) if same else {}
    attributes = {key: unpack(one, old.get(key, MISSING), table) for key, one in packed.value.items()}
    if is_new and any(one is MISSING for one in attributes.values()):
        return MISSING
    _set_attributes(made, {key: one for key, one in attributes.items() if one is not MISSING})
    return made


def _unpack_own(packed: Packed, is_there: Any, table: Table) -> Any:
    """Return a list, a number or the like of a script's class, with its content and attributes."""
    attributes, packed_held = packed.value
    same = _is_of(packed.more, is_there)
    kind: Any = type(is_there) if same else table.find_class(packed.more, _class)
    if kind is None:
        return MISSING
    base = _base(kind)
    old = _held(base, is_there) if same else MISSING
    made = table.free_to_fill(packed.number, is_there) if same else MISSING
    if base not in UNCHANGED:
        made = base.__new__(kind) if made is MISSING else made
        table.remember_object(packed.number, made)
    held = unpack(packed_held, old, table)
    if held is MISSING:
        return MISSING
    if base in UNCHANGED:
        made = base.__new__(kind, held)
    else:
        if base is collections.deque:
            base.__init__(made, (), held.maxlen)
        if base is collections.defaultdict:
            made.default_factory = held.default_factory
        base.clear(made)
        if base in MAPPINGS:
            for key, one in held.items():
                base.__setitem__(made, key, one)
        else:
            (base.update if base is set else base.extend)(made, held)
    return _unpack_object(Packed("object", attributes, packed.more), made, table)


def _unpack_definition(packed: Packed, is_there: Any, table: Table) -> Any:
    if (getattr(is_there, "__module__", ""), getattr(is_there, "__qualname__", "")) != packed.more:
        return is_there
    old = kept_by_definition(is_there)
    for (place, name), one in packed.value.items():
        value = unpack(one, old.get((place, name), MISSING), table)  # a default is changed in place
        if value is MISSING or value is old.get((place, name)):
            continue
        if place == "attribute":
            setattr(is_there, name, value)
        elif place == "cell":
            cells = dict(zip(is_there.__code__.co_freevars, is_there.__closure__ or ()))
            cells[name].cell_contents = value
    return is_there


def _unpack_method(packed: Packed, is_there: Any, table: Table) -> Any:
    owner = unpack(packed.value, getattr(is_there, "__self__", MISSING), table)
    return getattr(owner, packed.more, MISSING) if owner is not MISSING else MISSING


def _unpack_part(packed: Packed, is_there: Any, table: Table) -> Any:
    part = table.parts[packed.value] if packed.value < len(table.parts) else MISSING
    return part if _is_of(packed.more, part) else is_there


def _unpack_attributes(packed: Packed, is_there: Any, table: Table) -> Any:
    if is_there is not MISSING:
        for name, one in packed.value.items():
            setattr(is_there, name, unpack(one, MISSING, table))
    return is_there


def _unpack_module(packed: Packed, is_there: Any, table: Table) -> Any:
    saved = pickle.loads(packed.value)
    if type(is_there) is not type(saved) or table.free_to_fill(packed.number, is_there) is MISSING:
        return saved
    is_there.load_state_dict(saved.state_dict())
    return is_there


def _unpack_pickled(packed: Packed, _is_there: Any, _table: Table) -> Any:
    return pickle.loads(packed.value)


UNPACK: dict[str, Callable[[Packed, Any, Table], Any]] = {
    "plain": _unpack_plain,
    "plain items": _unpack_plain_items,
    "items": _unpack_items,
    "mapping": _unpack_mapping,
    "named tuple": _unpack_named_tuple,
    "buffer": _unpack_buffer,
    "array": _unpack_array,
    "view": _unpack_view,
    "parameter": _unpack_parameter,
    "tensor": _unpack_tensor,
    "of JAX": _unpack_jax,
    "of TensorFlow": _unpack_of_tensorflow,
    "variables of Keras": _unpack_variables_of_keras,
    "random.Random": _unpack_random,
    "numpy.Generator": _unpack_numpy_generator,
    "numpy.RandomState": _unpack_numpy_random_state,
    "torch.Generator": _unpack_torch_generator,
    "object": _unpack_object,
    "own": _unpack_own,
    "definition": _unpack_definition,
    NAMED: _unpack_pickled,
    "method": _unpack_method,
    PART: _unpack_part,
    "attributes": _unpack_attributes,
    "module": _unpack_module,
    "pickled": _unpack_pickled,
}


def is_read(frame: FrameType, name: str) -> bool:
    """Return whether the frame may still read the variable before setting it; a nested function may, too."""
    code, module = frame.f_code, frame.f_locals is frame.f_globals
    if any(_reads(inner, name, module) for inner in code.co_consts if isinstance(inner, CodeType)):
        return True
    found = list(dis.get_instructions(code))
    at = {one.offset: number for number, one in enumerate(found)}
    now = max(offset for offset in at if offset <= frame.f_lasti)  # which may be after a call, in its inline cache
    follow, seen = _next(found, at, at[now]), set()
    while follow:
        number = follow.pop()
        if number in seen:
            continue
        seen.add(number)
        one = found[number]
        if name in (one.argval if isinstance(one.argval, tuple) else (one.argval,)):
            if one.opname.startswith(READS):
                return True
            if one.opname.startswith(WRITES):
                continue
        follow += _next(found, at, number)
    return False


def _next(found: list[dis.Instruction], at: Mapping[int, int], number: int) -> list[int]:
    """Return the instructions that may follow this one."""
    one = found[number]
    jumps = one.opcode in dis.hasjrel or one.opcode in dis.hasjabs
    follow = [at[one.argval]] if jumps else []
    if number + 1 < len(found) and not one.opname.startswith(ENDS):
        follow.append(number + 1)
    return follow


def _reads(code: CodeType, name: str, module: bool) -> bool:
    """Return whether this function, or a nested one, uses this variable of the module or enclosing function."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    if not module:
        used = name in code.co_freevars
    else:  # an attribute of this name is something else
        used = name in code.co_names and any(
            one.argval == name and one.opname in ("LOAD_GLOBAL", "LOAD_NAME") for one in dis.get_instructions(code)
        )
    return used or any(_reads(one, name, module) for one in inner)
