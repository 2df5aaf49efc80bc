"""Saves and restores all variables that a model's training changes, without knowing its layers.

Promises: what the compiled train step changes is among them, or `UnknownState` says what is not; another model's state
is refused before any variable is changed. Called by the other modules of this package.
"""

from __future__ import annotations

import inspect
import io
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from reshape_hooks.plain import CheckpointError

RANDOM = {
    "RandomUniform",
    "RandomUniformInt",
    "RandomStandardNormal",
    "TruncatedNormal",
    "RandomShuffle",
    "Multinomial",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "ParameterizedTruncatedNormal",
}
COUNTED = re.compile(r"_\d+(?![A-Za-z0-9])")  # a process's third `dense` is `dense_2`
PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


class UnknownState(Exception):
    """Raised when training has unknown state; the argument says which."""


def nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a function's graph and of all functions in it."""
    whole = graph.as_graph_def()
    yield from whole.node
    for function in whole.library.function:
        yield from function.node_def


def draws(node: Any) -> bool:
    """Return whether the operation keeps its own random stream."""
    return node.op in RANDOM


def seeded(node: Any) -> bool:
    return any(node.attr[name].i for name in ("seed", "seed2"))


def small(model: Any) -> list[Any]:
    """Return the variables that a validation changes: those of metrics, and random layers' seeds."""
    return [
        v for v in of_model(model) if "seed_generator_state" in v.path or any(v is m for m in model.metrics_variables)
    ]


def every(model: Any) -> list[Any]:
    """Return each variable once, always in the same order. Raises UnknownState if the train step changes others."""
    ours = of_model(model)
    known = {id(part) for v in ours for part in _parts(v.value)}
    others: dict[int, Any] = {}
    graphs = _train_graphs(model)
    if type(model.distribute_strategy).__name__ == "_DefaultDistributionStrategy" and (several := _spread(graphs)):
        raise UnknownState(f"its layers are split among {several}, and may not run on another number of them")
    for graph in graphs:
        for node in nodes(graph):
            if node.op in PYTHON or (draws(node) and seeded(node)):
                raise UnknownState(f"its training step has a state that cannot be saved ({node.op})")
        others.update({id(v): v for v in graph.variables if id(v) not in known})
    if others and model.distribute_strategy.num_replicas_in_sync > 1:
        raise UnknownState("its training step changes variables that are no part of the model, in several replicas")
    return [*ours, *others.values()]


def read(found: list[Any], instead: Mapping[int, Any]) -> list[Any]:
    """Return their values; `instead`: values by id of a variable that are saved in its place."""
    return [instead[id(v)] if id(v) in instead else value_of(v) for v in found]


def value_of(v: Any) -> Any:
    """Return its value; if each replica adds to its own part, as for a metric: the whole, then the parts."""
    return np.stack([v.numpy(), *(part.numpy() for part in found)]) if (found := _own_parts(v)) else v.numpy()


def write_file(path: str, values: list[Any]) -> None:
    """Save the values as bytes, so that every Keras dtype can be saved."""
    with Path(path).open("wb") as file:
        _write(file, values)


def in_memory(values: list[Any]) -> bytes:
    """Return what `write_file` would write."""
    file = io.BytesIO()
    _write(file, values)
    return file.getvalue()


def describe(found: list[Any]) -> list[tuple[str, tuple[int, ...], str]]:
    """Return path, shape and dtype of each."""
    return [(getattr(v, "path", v.name), tuple(v.shape), str(np.dtype(_dtype(v)))) for v in found]


def restore(path: str, found: list[Any], described: list[Any], strategy: Any) -> None:
    """Assign the file's values to the variables. Raises CheckpointError if the variables are not those saved."""
    here = describe(found)
    if not _alike(described, here):
        pairs = zip(described, here)
        was, now = next((p for p in pairs if p[0] != p[1]), (f"{len(described)} variables", f"{len(here)}"))
        raise CheckpointError(
            f"the checkpoint is of another model: it has {was}, this one has {now}; run the same script"
        )
    with np.load(path) as file, strategy.scope():
        for k, v in enumerate(found):
            values, size = file[str(k)].view(_dtype(v)), math.prod(v.shape)
            whole, *parts = values.reshape((values.size // size if size else 1, *v.shape))
            if len(parts) == len(_own_parts(v)):
                for part, value in zip(_own_parts(v) or [v], parts or [whole]):
                    part.assign(value)
            else:  # saved with another number of replicas
                v.assign(whole)


def _alike(described: list[Any], here: list[Any]) -> bool:
    """Return whether they are of one model. Names count the layers of their process, which may have skipped some."""
    found = [[(COUNTED.sub("", path), *rest) for path, *rest in one] for one in (described, here)]
    return found[0] == found[1]


def _dtype(v: Any) -> Any:
    return (
        np.dtype(keras.backend.standardize_dtype(v.dtype)) if isinstance(v, keras.Variable) else v.dtype.as_numpy_dtype
    )


def _write(file: Any, values: list[Any]) -> None:
    arrays: dict[str, Any] = {str(k): np.ascontiguousarray(v).reshape(-1).view("u1") for k, v in enumerate(values)}
    np.savez(file, **arrays)


def of_model(model: Any) -> list[Any]:
    found = [*model.variables, *_of_optimizers(model), *model.metrics_variables]
    everywhere = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    if everywhere is not None:
        found.append(everywhere.state)
    return list({id(v): v for v in found}.values())


def _of_optimizers(model: Any) -> list[Any]:
    held = [one for one in vars(model).values() if isinstance(one, keras.optimizers.Optimizer)]
    return [v for one in {id(one): one for one in held}.values() for v in one.variables]


def _parts(value: Any) -> list[Any]:
    return [value, *getattr(value, "values", ())] if not callable(getattr(value, "values", ())) else [value]


def _own_parts(v: Any) -> Any:
    value = v.value
    return value.values if type(value).__name__ == "SyncOnReadVariable" else ()


def _spread(graphs: list[Any]) -> str:
    """Return the devices of one kind, such as GPUs, over which the script has split the model; empty if it has not."""
    asked = {node.device for graph in graphs for node in nodes(graph)}
    placed = {v.device for graph in graphs for v in graph.variables}
    found = {one[0] for name in asked | placed if (one := re.search(r"[A-Z]+:[0-9]+$", name))}
    kinds = [one.partition(":")[0] for one in found]
    return ", ".join(sorted(one for one in found if kinds.count(one.partition(":")[0]) > 1))


def _train_graphs(model: Any) -> list[Any]:
    """Return the graphs of the compiled train step. Raises UnknownState if it is not compiled as by Keras."""
    if model.run_eagerly:
        raise UnknownState("it runs eagerly")
    step: Any = inspect.getclosurevars(inspect.unwrap(model.train_function)).nonlocals.get("multi_step_on_iterator")
    if not hasattr(step, "_list_all_concrete_functions"):
        raise UnknownState("its train function is not Keras' own")
    return [concrete.graph for concrete in step._list_all_concrete_functions()]
