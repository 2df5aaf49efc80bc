"""Saves JAX values that cannot be pickled, such as Flax's TrainState or an Equinox module, by their leaves.

Promises: what holds functions (an optimizer, an activation) is saved without them and continues with those that the
script has recreated; everything else is as it was saved, on the devices where the script has it now. Called by
`elastic`, `variables` and `not_given`; imports JAX only where the script does.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import Any, NamedTuple

from reshape_hooks.plain import CheckpointError


class Leaves(NamedTuple):
    """The leaves of a value, in order."""

    found: list[Any]


class Key(NamedTuple):
    """A `jax.random` key: its implementation's name and its data."""

    generator: str
    numbers: Any


class Made(NamedTuple):
    """A leaf that the script recreates, by its type."""

    kind: str


class OfNnx:
    """Wraps a Flax NNX module, optimizer, metric or Rngs: returns and loads its state."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def state_dict(self) -> list[Any]:
        """Return the leaves of its state."""
        return [_leaf(sys.modules["jax"], one) for one in leaves_of_nnx(self.thing)]

    def load_state_dict(self, saved: list[Any]) -> None:
        """Load a state. Raises CheckpointError if it does not fit."""
        nnx = sys.modules["flax.nnx"]
        nnx.update(self.thing, _fill(type(self.thing).__name__, Leaves(saved), nnx.state(self.thing)))


def is_of_nnx(value: Any) -> bool:
    """Return whether Flax NNX mutates it in place."""
    nnx: Any = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, (nnx.Module, nnx.Optimizer, nnx.Metric, nnx.Rngs))


def leaves_of_nnx(thing: Any) -> list[Any]:
    """Return the arrays and keys of such an object."""
    leaves: list[Any] = sys.modules["jax"].tree_util.tree_leaves(sys.modules["flax.nnx"].state(thing))
    return leaves


def keep(part: dict[Any, Any]) -> dict[Any, Any]:
    """Return a part of the state with `Leaves` in place of values that cannot be pickled."""
    jax = sys.modules.get("jax")
    return part if jax is None else {name: _keep(jax, value) for name, value in part.items()}


def restored(saved: dict[Any, Any], live: dict[Any, Any]) -> dict[Any, Any]:
    """Return what `keep` was given. `live`: what the script has created. Raises CheckpointError if they do not fit."""
    return {name: _fill(name, value, live.get(name)) for name, value in saved.items()}


def packed(value: Any) -> Any:
    """Return an array, a key, or a value that holds some, in picklable form."""
    jax = sys.modules["jax"]
    return _leaf(jax, value) if isinstance(value, jax.Array) else _keep(jax, value)


def unpacked(saved: Any, live: Any) -> Any:
    """Return what `packed` was given.

    `live`: what the script has created. Raises CheckpointError if they do not fit.
    """
    if isinstance(saved, Key):
        return _key_again(importlib.import_module("jax"), saved)
    return _fill("a variable", saved, live)


def _keep(jax: Any, value: Any) -> Any:
    if type(value) is dict:
        return {name: _keep(jax, one) for name, one in value.items()}
    leaves, structure = jax.tree_util.tree_flatten(value)
    kept = [_leaf(jax, one) for one in leaves]
    changed = any(one is not leaf for one, leaf in zip(kept, leaves))
    return Leaves(kept) if changed or not _picklable(structure.unflatten([0] * len(leaves))) else value


def _leaf(jax: Any, leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return Key(str(jax.random.key_impl(leaf)), jax.random.key_data(leaf))
    if hasattr(leaf, "shape") or _picklable(leaf):
        return leaf
    if callable(leaf):
        return Made(type(leaf).__qualname__)
    return leaf  # saving it reports what is wrong


def _fill(name: Any, saved: Any, live: Any) -> Any:
    if type(saved) is dict and type(live) is dict:
        return {key: _fill(key, value, live.get(key)) for key, value in saved.items()}
    if not isinstance(saved, Leaves):
        return _placed(saved, live)
    jax = importlib.import_module("jax")
    leaves, structure = jax.tree_util.tree_flatten(live)
    if len(leaves) != len(saved.found):
        raise CheckpointError(
            f"the checkpoint is of another training: {name} had {len(saved.found)} leaves when it was saved and has "
            f"{len(leaves)} now; make it before Elastic, as it was made then"
        )
    filled: Any = structure.unflatten([_leaf_again(jax, name, *pair) for pair in zip(saved.found, leaves)])
    return filled


def _placed(saved: Any, live: Any) -> Any:
    """Return the value with its arrays on the devices of the script's corresponding ones."""
    jax = sys.modules.get("jax")
    if jax is None:
        return saved
    tree = jax.tree_util
    if tree.tree_structure(saved) != tree.tree_structure(live):
        return saved

    def place(one: Any, there: Any) -> Any:
        alike = isinstance(one, jax.Array) and isinstance(there, jax.Array) and one.shape == there.shape
        return jax.device_put(one, there.sharding) if alike else one

    return tree.tree_map(place, saved, live)


def _leaf_again(jax: Any, name: Any, saved: Any, live: Any) -> Any:
    if isinstance(saved, Made):
        if type(live).__qualname__ != saved.kind:
            raise CheckpointError(f"the checkpoint is of another training: {name} has no {saved.kind} where it had one")
        return live
    if isinstance(saved, Key):
        saved = _key_again(jax, saved)
    if getattr(saved, "shape", ()) != getattr(live, "shape", ()):
        raise CheckpointError(
            f"the checkpoint is of another training: {name} has an array of shape {getattr(live, 'shape', ())}, which "
            f"was {saved.shape}"
        )
    return jax.device_put(saved, live.sharding) if isinstance(live, jax.Array) else saved


def _key_again(jax: Any, saved: Key) -> Any:
    return jax.random.wrap_key_data(saved.numbers, impl=saved.generator)


def _picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # libraries raise anything
        return False
    return True
