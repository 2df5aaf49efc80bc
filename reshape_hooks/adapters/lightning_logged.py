"""Keeps what Lightning has logged but not written yet: epoch means, a CSVLogger's rows, a logger's version.

Promises: after a stop, a mean over an epoch still counts its batches from before the stop; a logger that numbers its
folders continues in its original one, with all its rows. Called by `lightning_trainer`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable
from typing import Any

from reshape_hooks.files import replay, watch

LOGGERS = {"csv_logs": "CSVLogger", "tensorboard": "TensorBoardLogger"}
OF_MEANS = ("value", "cumulated_batch_size", "has_reset", "_forward_cache", "_computed", "_update_count")
OF_ROWS = ("metrics", "metrics_keys")  # of a CSVLogger: rows not written yet, and the columns


def adapt(package: str) -> None:
    """Let this package's loggers (`lightning.pytorch`) get the same version numbers as at the first start."""
    for module, name in LOGGERS.items():
        logger_class: Any = getattr(sys.modules.get(f"{package}.loggers.{module}"), name, None)
        if hasattr(logger_class, "_get_next_version"):
            logger_class._get_next_version = _same_version(logger_class._get_next_version)


def _same_version(theirs: Any) -> Any:
    @functools.wraps(theirs)
    def next_version(self: Any) -> Any:
        hidden = replay.not_yet_made()
        if not hidden:
            return theirs(self)
        file_system = self._fs
        self._fs = _Without(file_system, hidden)
        try:
            return theirs(self)
        finally:
            self._fs = file_system

    return next_version


class _Without:
    """A file system that hides some folders."""

    def __init__(self, file_system: Any, hidden: frozenset[str]) -> None:
        self._file_system, self._hidden = file_system, hidden

    def listdir(self, path: Any, *args: Any, **kwargs: Any) -> list[Any]:
        found = self._file_system.listdir(path, *args, **kwargs)
        return [one for one in found if watch.absolute(one["name"]) not in self._hidden]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file_system, name)


def means(results: Any) -> list[tuple[Any, ...]]:
    """Return what has been logged in this epoch so far. `results`: of the training loop."""
    found = []
    for key, one in results.items():
        fields = dataclasses.fields(one.meta)
        meta = {field.name: getattr(one.meta, field.name) for field in fields if field.name != "_sync"}
        meta["reduce_fx"] = one.meta.reduce_fx.__name__
        values = {name: _on_cpu(vars(one)[name]) for name in OF_MEANS if name in vars(one)}
        if not one.is_tensor:
            values.pop("value")  # a metric of the model, which is saved with it
        found.append((key, one.is_tensor, meta, values, one.meta.sync.rank_zero_only))
    return found


def restore_means(results: Any, saved: Iterable[tuple[Any, ...]], trainer: Any) -> None:
    """Restore what `means` returned."""
    library: Any = sys.modules[type(results).__module__]
    module = trainer.lightning_module
    for key, is_tensor, given, values, rank_zero_only in saved:
        meta = library._Metadata(**given)
        meta.sync = library._Sync(_should=False, fn=trainer.strategy.reduce, rank_zero_only=rank_zero_only)
        one = library._ResultMetric(meta, is_tensor)
        vars(one).update(values)
        if not is_tensor:
            one.value = module.get_submodule(given["metric_attribute"])
        results[key] = one.to(module.device)


def rows(loggers: Iterable[Any]) -> list[dict[str, list[Any]]]:
    """Return each logger's unwritten rows and what it knows of written ones."""
    found = []
    for logger in loggers:
        writer = getattr(logger, "_experiment", None)
        kept = {name: list(getattr(writer, name)) for name in OF_ROWS if isinstance(getattr(writer, name, None), list)}
        found.append(kept if len(kept) == len(OF_ROWS) else {})
    return found


def restore_rows(loggers: Iterable[Any], saved: Iterable[dict[str, list[Any]]]) -> None:
    """Restore what `rows` returned."""
    for logger, kept in zip(loggers, saved):
        if kept:
            vars(logger.experiment).update(kept)


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if hasattr(value, "detach") else value
