"""Replaces Keras' `fit` with ours, once per process, before the script sees it.

Called by `on_import` while TensorFlow or Keras is being imported, so nothing of Keras is imported here: the first call
of `fit` loads `script`. Without the shim's variables nothing is changed.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from reshape_hooks import plain, seeds

NEEDED = ("RESHAPE_JOB_ID", "RESHAPE_CHECKPOINTS", "RESHAPE_ANNOUNCE")
DATASETS = "tensorflow.python.data.util.random_seed"
TRAINER = "keras.src.backend.tensorflow.trainer"


def adapt(module: ModuleType) -> None:
    """Prepare one of the modules above; for another backend's trainer, report that its job is left alone."""
    if not all(os.environ.get(name) for name in NEEDED):
        return
    seeds.begin()
    if module.__name__ == DATASETS:
        seed_datasets(module)
    elif module.__name__ == TRAINER:
        replace_fit(module)
    else:
        backend = module.__name__.split(".")[-2]
        plain.warn(f"reshape: `fit` is resumed with the TensorFlow backend only, not {backend}: it is left alone")


def replace_fit(trainer: Any) -> None:
    """Route `fit` through `script.fit`, which calls the original."""
    theirs = trainer.TensorFlowTrainer.fit

    @functools.wraps(theirs)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        from reshape_hooks.keras_fit import script  # not above: Keras is complete only now

        return script.fit(trainer, theirs, self, args, kwargs)

    trainer.TensorFlowTrainer.fit = fit


def seed_datasets(random_seed: Any) -> None:
    """Give each dataset that shuffles without a seed one of this job's seeds; a seed of the script stays.

    TensorFlow's global seed would do so too, but then a `map` would draw the same numbers in each epoch. Inside another
    dataset's function nothing is changed for the same reason; `pipelines` finds those by the mark.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    theirs = random_seed.get_seed
    given: list[None] = []

    def get_seed(seed: Any) -> Any:
        if seed is not None:
            return theirs(seed)
        if not context.executing_eagerly():
            graph = ops.get_default_graph()
            graph.reshape_unseeded = graph.seed is None
            return theirs(None)
        if context.global_seed() is not None:
            return theirs(None)
        given.append(None)
        convert = ops.convert_to_tensor
        return convert(seeds.number(), dtype="int64"), convert(len(given), dtype="int64")

    random_seed.get_seed = get_seed
