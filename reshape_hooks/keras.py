"""Makes a Keras training elastic: saves at a batch boundary, resumes at that batch.

Promises that a training interrupted at any batch and resumed sees the same batches in the same order as an
uninterrupted one. Keras' own BackupAndRestore (3.15) restores weights and the epoch, but not the batch in it. Each
training of a job has its own checkpoints (`claims`). Called by training scripts.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import keras
import numpy as np
from keras.src import backend

from reshape_hooks import claims, plain
from reshape_hooks.locks import GpuLocks

MODEL = "model.keras"
POSITION = "position.json"


@dataclass
class Position:
    """The position of a training: `step` of `total` batches done, with `steps_per_epoch` in an epoch."""

    total: int
    steps_per_epoch: int
    step: int = 0

    @property
    def epoch(self) -> int:
        return self.step // self.steps_per_epoch

    @property
    def batch(self) -> int:
        """Return the first batch of this epoch that is still to do."""
        return self.step % self.steps_per_epoch


def restore(checkpoints: plain.Checkpoints, position: Position, prefer: str | None = None) -> Any:
    """Return the model with its optimizer state, and `position` moved to where it was saved; None to start anew.

    Raises CheckpointError, also if the steps per epoch differ from the checkpoint's: the same batch could not be found
    again.
    """
    _claim(checkpoints, position)
    if checkpoints.claimed is not None:
        prefer = checkpoints.claimed.prefer
    saved = checkpoints.newest(prefer)
    if saved is None:
        return None
    was = json.loads((saved.path / POSITION).read_text())
    if was["steps_per_epoch"] != position.steps_per_epoch:
        raise plain.CheckpointError(
            f"checkpoint {saved.name} was saved with {was['steps_per_epoch']} steps per epoch, this run has "
            f"{position.steps_per_epoch}: use the same data and batch size"
        )
    position.step = was["step"]
    return keras.models.load_model(saved.path / MODEL)


def _claim(checkpoints: plain.Checkpoints, position: Position) -> None:
    """Let each training of a job have checkpoints of its own."""
    asked = {"total": position.total, "steps per epoch": position.steps_per_epoch}
    claims.move(checkpoints, lambda: claims.description("restore", "SaveAndExit", arguments=asked))


class Batches(keras.utils.PyDataset):  # type: ignore[misc]  # Keras is untyped where it is not installed
    """Whole batches, from `position` to the end of an epoch, in an order that depends on seed and epoch only.

    The epoch is read from `position`, never counted: Keras calls the methods for the beginning and the end of an epoch
    once more when it still has to build the model or its metrics.
    """

    def __init__(self, x: Any, y: Any, batch_size: int, seed: int, position: Position) -> None:
        super().__init__()
        self.x, self.y, self.batch_size, self.seed = x, y, batch_size, seed
        self.position = position
        self.first_batch = position.batch
        self.on_epoch_begin()

    def __len__(self) -> int:
        return self.position.steps_per_epoch - self.first_batch

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        begin = (self.first_batch + index) * self.batch_size
        rows = self.order[begin : begin + self.batch_size]
        return self.x[rows], self.y[rows]

    def on_epoch_begin(self) -> None:
        self.order = np.random.default_rng((self.seed, self.position.epoch)).permutation(len(self.x))


class SaveAndExit(keras.callbacks.Callback):  # type: ignore[misc]
    """After each batch: paces, reports, saves when asked or every `save_every` steps, exits after SIGTERM.

    Ends the process with 143, or with CheckpointError if saving failed, which `fit` lets through.
    """

    def __init__(
        self,
        checkpoints: plain.Checkpoints,
        stop: plain.StopFlag,
        position: Position,
        here: plain.Environment,
        save_every: int = 0,
    ) -> None:
        super().__init__()
        _claim(checkpoints, position)
        self.checkpoints, self.stop, self.position = checkpoints, stop, position
        self.save_every = save_every
        self.pace = plain.Pace(here.step_seconds)
        self.locks = GpuLocks(here)
        self.labels = {"emulated": "yes"} if here.emulated else {}

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        if self.stop.stopping:
            self._save_and_exit()
        self.pace.start()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        at = self.position
        epoch = at.epoch
        at.step += 1
        self.pace.wait()
        self.locks.used(at.step)
        values = {name: float(value) for name, value in (logs or {}).items()}
        plain.say(step=at.step, total=at.total, epoch=epoch, **values, **self.labels)
        if at.step >= at.total:
            self.model.stop_training = True
            self._finish()
        elif self.stop.stopping:
            self._save_and_exit()
        elif self.stop.take_save() or (self.save_every and at.step % self.save_every == 0):
            self.save()

    def save(self) -> None:
        """Save a checkpoint; call it between batches only. Raises CheckpointError."""
        at = self.position
        where = {"step": at.step, "epoch": at.epoch, "batch": at.batch, "steps_per_epoch": at.steps_per_epoch}
        self.checkpoints.save(at.step, {MODEL: self.model.save, POSITION: json.dumps(where).encode()})
        self.checkpoints.prune()

    def _finish(self) -> None:
        """Save the result: a restart for a later training of this job then finds that this one has finished."""
        if self.checkpoints.claimed is not None:
            self.save()
            self.checkpoints.claimed.finish(self.position.step)

    def _save_and_exit(self) -> NoReturn:
        self.save()
        leave(plain.STOPPED)


def build_state(model: Any, batch: Any) -> None:
    """Create variables of metrics and optimizer before the train function is traced, so that it is traced only once.

    Keras creates them while tracing, and TensorFlow discards a trace that has created variables. Only if step and
    optimizer are Keras' own, as others may create other variables. `batch`: one, or its dtypes and shapes.
    """
    optimizer, known = model.optimizer, (keras.optimizers.Optimizer.apply, keras.optimizers.LossScaleOptimizer.apply)
    if type(model).train_step is not keras.Model.train_step or type(optimizer).apply not in known:
        return
    if getattr(model, "_distribute_strategy", None) is not None or not all(
        one.built for one in model._flatten_layers()
    ):
        return
    with contextlib.suppress(Exception):  # what cannot be created now is created while tracing
        if not optimizer.built:
            with backend.name_scope(optimizer.name, caller=optimizer):  # as Keras does; the names are saved
                optimizer.build(model.trainable_weights)
        model._symbolic_build(data_batch=batch)


def fit(model: Any, x: Any, y: Any, *, batch_size: int, seed: int, callback: SaveAndExit) -> None:
    """Run `model.fit` from the callback's position to its total: the rest of an interrupted epoch, then the others."""
    at = callback.position
    epochs = -(-at.total // at.steps_per_epoch)
    build_state(model, (x[:batch_size], y[:batch_size]))
    # shuffle=False: Keras would shuffle a PyDataset's batches once more, with its own generator.
    same: dict[str, Any] = {"shuffle": False, "verbose": 0, "callbacks": [callback]}
    if at.batch and at.step < at.total:
        rest = Batches(x, y, batch_size, seed, at)
        model.fit(rest, initial_epoch=at.epoch, epochs=at.epoch + 1, **same)
    if at.step < at.total:
        whole = Batches(x, y, batch_size, seed, at)
        model.fit(whole, initial_epoch=at.epoch, epochs=epochs, **same)
    # Keras leaves the iterators in a reference cycle. They must not first be freed at interpreter shutdown: threads of
    # `tf.data` that wait for a batch from Python would then wait forever.
    gc.collect()


def leave(code: int) -> NoReturn:
    """End this process at once.

    Tearing down TensorFlow in order costs a second and saves nothing. It can also hang forever: a thread of `tf.data`
    that waits for a batch from Python never gets one from an interpreter that is shutting down.
    """
    plain.leave(code)
