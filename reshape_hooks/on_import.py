"""Calls our adapters when a training imports a framework, before the script sees the framework.

Promises: nothing is imported that the script does not import; a fault in our code is reported in one sentence, and the
script continues as one that is left alone. Called by `startup/sitecustomize.py`. Standard library only, Python 3.8.
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # each process that a training starts loads this file: it imports only what it uses
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

# Module imported by a script, directly or indirectly -> our module, whose `adapt(module)` is called afterwards.
ADAPTERS: dict[str, str] = {
    "random": "reshape_hooks.seeds",
    "numpy.random": "reshape_hooks.seeds",
    "torch": "reshape_hooks.seeds",
    "torch.distributed.elastic.multiprocessing.api": "reshape_hooks.adapters.torchrun",
    "optuna.study.study": "reshape_hooks.adapters.outer_state",
    "wandb.sdk.wandb_init": "reshape_hooks.adapters.outer_state",
    "mlflow.tracking.fluent": "reshape_hooks.adapters.outer_state",
    "accelerate.accelerator": "reshape_hooks.adapters.accelerate_loop",
    "transformers.trainer": "reshape_hooks.adapters.transformers_trainer",
    "lightning.pytorch.trainer.trainer": "reshape_hooks.adapters.lightning_trainer",
    "pytorch_lightning.trainer.trainer": "reshape_hooks.adapters.lightning_trainer",
    "tensorflow.python.data.util.random_seed": "reshape_hooks.keras_fit.adapter",
    "keras.src.backend.tensorflow.trainer": "reshape_hooks.keras_fit.adapter",
    "keras.src.backend.jax.trainer": "reshape_hooks.keras_fit.adapter",
    "keras.src.backend.torch.trainer": "reshape_hooks.keras_fit.adapter",
}


class AdaptingLoader:
    """Loads a module as its own loader does, then calls `adapted` with it."""

    def __init__(self, loader: Any, adapted: Callable[[ModuleType], None]) -> None:
        self._loader, self._adapted = loader, adapted

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Readers of its resources and source ask the module for its loader.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._adapted(sys.modules.get(module.__name__, module))  # a module may replace itself


class AdaptingFinder:
    """Finds modules that have an adapter with the other finders, and wraps their loaders."""

    def __init__(self, adapters: Mapping[str, str]) -> None:
        self._waiting = dict(adapters)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has an adapter; None for all others."""
        if fullname not in self._waiting:
            return None
        adapter = self._waiting.pop(fullname)
        found = (one.find_spec(fullname, path, target) for one in sys.meta_path if one is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            loader: Any = AdaptingLoader(spec.loader, lambda module: adapt(adapter, module))
            spec.loader = loader
        return spec

    def adapts(self, names: Iterable[str]) -> None:
        """Call the adapters of modules that were imported without their finder."""
        for name in [name for name in names if name in self._waiting]:
            adapt(self._waiting.pop(name), sys.modules[name])


def adapt(adapter: str, module: ModuleType) -> None:
    """Call `adapt` of the module `adapter`; a fault is reported and goes no further."""
    try:
        importlib.import_module(adapter).adapt(module)
    except Exception as fault:
        sentence = (
            f"reshape: {module.__name__} was not prepared for saving ({fault!r}), so this training is left alone\n"
        )
        try:
            sys.stderr.write(sentence)
        except Exception:  # noqa: S110 (nobody may read it)
            pass


def install() -> None:
    """Call adapters from now on."""
    sys.meta_path.insert(0, AdaptingFinder(ADAPTERS))
