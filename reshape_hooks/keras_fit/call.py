"""Handles one call of `fit`: its position, when it saves, and how it is resumed.

Created by `script`, notified by its callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.utils.python_utils import pythonify_logs

from reshape_hooks import claims, plain, sure_end
from reshape_hooks.adapters.not_given import LibraryObjects
from reshape_hooks.adapters.variables import IN_A_FILE, Variables, refuse_lost
from reshape_hooks.announced import Announced
from reshape_hooks.files import note
from reshape_hooks.keras import leave
from reshape_hooks.keras_fit import known_by, replicas, streams, variables
from reshape_hooks.keras_fit.batches import ResumableBatches
from reshape_hooks.keras_fit.callback_list import FitCallbacks

SECOND = 1.0  # between two lines of a fit that prints no bar
METRICS = "_get_metrics_result_or_logs"  # Keras gets an epoch's values from it


def file_of(number: int) -> str:
    """Return the name of the file with this fit's variables."""
    return f"fit-{number}.npz"


class Call:
    """One call of `fit`.

    `position`: what an earlier process saved of this very call, None if nothing; `ended`: it had finished then.
    """

    def __init__(self, script: Any, trainer: Any, theirs: Callable[..., Any], given: dict[str, Any]) -> None:
        self.script, self.trainer, self.theirs, self.given = script, trainer, theirs, given
        self.model = given["self"]
        self.known_by = known_by.description(given)
        self.index = script.number(self.known_by)
        self.position: Any = script.fits.get(self.index)
        self.ended = self.position is not None and self.position["ended"]
        self.announced: Announced | None = None  # until all that training changes is known
        self.pace = plain.Pace(script.here.step_seconds)
        self.asked = (given["initial_epoch"], given["epochs"])
        self.replicas = self.model.distribute_strategy.num_replicas_in_sync
        self.steps = self.epoch = self.executions = self.done = 0
        self.first_epoch: int | None = None
        self.of: int | None = None  # batches per epoch, if known
        self.emulated = script.here.emulated or bool(script.here.locks)
        script.reports = script.reports or given["verbose"] == 0
        self.before_validation: dict[int, Any] = {}
        self.beside_validation: dict[str, Any] = {}  # state outside the model when that began
        self.noted: bytes | None = None  # how far the script's files were before the current validation
        self.logs: Any = {}
        self.batches: Any = None
        self._begun = False
        self._said_at = 0.0

    def run(self) -> Any:
        """Call Keras' `fit`. The process exits with 143 once it has saved after SIGTERM. Raises CheckpointError."""
        if self.position is not None:
            self._leave_if_asked()  # nothing was done since the last fit ended and was saved
        given, at, model = dict(self.given), self.position, self.model
        # A script that has skipped other fits has drawn less before this one.
        if at is not None and "drew_before" in at:
            streams.write(at["drew_before"])
        self.drew_before = streams.read()
        if at is not None:
            if at["asked"][0] != self.asked[0]:  # the script itself resumes by epochs, from an older place
                given["epochs"] = at["asked"][1]
            given["initial_epoch"] = given["epochs"] if self.ended else at["epoch"]
            if self.replicas != at["first_replicas"]:
                replicas.keep(given, at["sizes"], self.replicas)
        self.sizes = replicas.sizes(given)
        shown = {"verbose": given["verbose"], "epochs": given["epochs"], "steps": None}
        self.callbacks = given["callbacks"] = FitCallbacks(self, given["callbacks"], model=model, **shown)
        self.epochs = given["epochs"]
        # Not in checkpoints of older versions.
        saved = at.get("script", ()) if at is not None else ()
        self.of_script = Variables((), saved, whole=self.callbacks.attributes)
        self.of_script.leave(variables.of_model(model))
        self.library_objects = LibraryObjects([model, *self.callbacks.kept])
        self.of_script.look()  # before callbacks begin: their changes are then as they were at the stop, too
        iterator = self.trainer.TFEpochIterator
        self.trainer.TFEpochIterator = self._make_batches
        self.script.inside = True
        try:
            with replicas.untuned():
                history = self.theirs(given.pop("self"), **given)
            self._end()
        finally:
            self.script.inside, self.trainer.TFEpochIterator = False, iterator
            vars(model).pop(METRICS, None)
        self._leave_if_asked()
        return history

    def take_position(self) -> Any:
        """Return the position to resume from when the first epoch begins, then None."""
        if not self._begun or self.ended:
            return None
        self._begun = False
        return self.position

    def begin(self) -> None:
        """Check, once all callbacks have begun, that what was saved fits. Raises CheckpointError."""
        self._begun = True
        self.script.locks()
        self.script.saver.begin()
        if self.position is not None:
            self._check(self.position)
        else:
            self.of_script.begin()
            self.of_script.prepared()

    def replay(self) -> None:
        """Give this finished fit its iterators and variables."""
        self._check(self.position)
        self.batches.replay_whole(self.position)

    def replay_validation(self, epoch: int) -> None:
        """Create the iterators of the validation after an epoch, if it can matter: data sets may share one shuffle."""
        data, model = self.given["validation_data"], self.model
        if not isinstance(data, tf.data.Dataset) or not model._should_eval(epoch, self.given["validation_freq"]):
            return
        if getattr(model, "_eval_epoch_iterator", None) is None:
            model._eval_epoch_iterator = self.trainer.TFEpochIterator(
                x=data,
                y=None,
                sample_weight=None,
                shuffle=False,
                steps_per_epoch=self.given["validation_steps"],
                batch_size=self.given["validation_batch_size"] or self.given["batch_size"],
                distribute_strategy=model.distribute_strategy,
                steps_per_execution=model.steps_per_execution,
            )
        iterator = model._eval_epoch_iterator
        model._maybe_symbolic_build(iterator=iterator)
        iterator.reset()
        if iterator.num_batches is None:
            iter(iterator._get_iterator())
        else:
            for _ in iterator:
                pass

    def restore(self) -> None:
        """Restore variables, callbacks and random streams."""
        at, model = self.position, self.model
        path = str(self.script.kept[file_of(self.index)])
        variables.restore(path, self._variables(), at["variables"], model.distribute_strategy)
        self.callbacks.restore(at["callbacks"])
        self.of_script.begin()
        self.of_script.done()
        self.of_script.prepared()
        if self.ended or self.batches.python is None:
            streams.write(at["streams"])
        model.stop_training = at["stop_training"]
        self.script.restored(self)
        if not self.ended:
            theirs, saved = getattr(model, METRICS), at["logs"]

            def metrics(logs: Any) -> Any:  # Keras knows of no batch if none of this epoch was left
                vars(model).pop(METRICS, None)
                return theirs(logs or saved)

            vars(model)[METRICS] = metrics
            self.script.kept.pop(file_of(self.index), None)
            self.script.fits.pop(self.index, None)
        self.announced = self.script.take_signals(resumed=True)

    def epoch_begins(self, epoch: int) -> None:
        """Count from the beginning of this epoch, or from the position in it."""
        at = self.position if self._begun else None
        self.epoch, self.executions, self.done = epoch, 0, 0
        if at is not None:
            self.steps, self.executions, self.done = at["steps"], at["executions"], at["done"]
            self.first_epoch = at["first_epoch"]
        elif self.first_epoch is None:
            self.first_epoch = epoch
        self.of = self.batches.num_batches
        self.pace.start()

    def batch_done(self, batch: int, logs: Any) -> None:
        """Pace and report after each call of the train function; save when asked, or in order to announce it."""
        of = self.of
        done = min(batch + 1, of) if of else batch + 1
        new, self.done = done - self.done, done
        self.steps += new
        self.executions += 1
        self.logs = logs
        if self.announced is None and not self._take_signals():
            return
        announced = self.announced
        assert announced is not None
        announced.stepped()
        if self.emulated:
            self._emulate(new)
        if self.script.reports:
            self._say(of)
        if announced.stopping():
            self._save_and_exit()
        elif announced.stop.take_save() or announced.untried():
            self._save_or_say(self.script.save)
        elif self.script.saver.due() and announced.may_try():
            self._save_or_say(self.script.save_beside)

    def validation_begins(self) -> None:
        if self.announced is not None:
            self.before_validation = {id(v): variables.value_of(v) for v in variables.small(self.model)}
            self.noted = note.take_note(str(self.script.checkpoints.folder), durable=False)
            if self.callbacks.hear_of_validation():
                self.beside_validation = self._beside_model(variables.of_model(self.model))

    def validation_ended(self) -> None:
        self.before_validation, self.noted = {}, None
        self.beside_validation = {}

    def stop_in_validation(self) -> None:
        """Save the state as of this epoch's last batch; the validation is repeated."""
        if self.announced is not None and self.announced.stopping():
            self._save_and_exit()

    def _make_batches(self, **given: Any) -> Any:
        self.trainer.TFEpochIterator = ResumableBatches.__base__
        self.batches = ResumableBatches(self, **given)
        if self.batches.why_not:
            self.script.leave(self.batches.why_not)
        return self.batches

    def _take_signals(self) -> bool:
        """Take over the signals; return False if this fit cannot be resumed exactly."""
        if self.script.left_alone:
            return False
        try:
            variables.every(self.model)
        except variables.UnknownState as why:
            return bool(self.script.leave(str(why)))
        self.announced = self.script.take_signals(resumed=False)
        return True

    def _variables(self) -> list[Any]:
        try:
            return variables.every(self.model)
        except variables.UnknownState as why:
            raise plain.CheckpointError(f"this fit was saved before and cannot be resumed now, because {why}") from why

    def _check(self, at: dict[str, Any]) -> None:
        if self.batches.why_not:
            raise plain.CheckpointError(f"this fit was saved and cannot be resumed now, because {self.batches.why_not}")
        self.callbacks.check(at["callbacks"])
        if at["data"] != self.batches.data:
            raise plain.CheckpointError(
                "the data of this fit are not those that it was saved with, so its next batch cannot be found: "
                "give them to it in the same order each time, by a seed for all that draws or shuffles"
            )
        here, was = self.batches.num_batches, at["num_batches"]
        if here is None or was is None or here == was:
            return
        if at["replicas"] == self.replicas:
            raise plain.CheckpointError(
                f"this fit was saved with {was} steps per epoch and has {here} now: use the same data and batch size"
            )
        at["executions"] = max(1, at["executions"] * here // was)
        at["done"] = min(here, at["executions"] * self.model.steps_per_execution)
        plain.warn(
            f"reshape: {here} steps per epoch instead of {was}, as the script makes its batches of the number of GPUs: "
            "some samples of this epoch come twice or not at all; arrays and tf.data ending with `batch` keep theirs"
        )

    def _end(self) -> None:
        if self.ended:
            self.restore()
        elif self.announced is not None:
            self._save_or_say(self.script.save_ended, ended=True)
            self.announced.end(self.script.safe)

    def _save_or_say(self, save: Callable[..., None], ended: bool = False) -> None:
        assert self.announced is not None
        self.script.safe = self.announced.saved(lambda: self._save(save, ended))

    def _save_and_exit(self) -> None:
        self._save_or_say(self.script.save)
        self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        announced = self.script.announced
        if announced is not None and announced.stop.stopping and self.script.safe:
            announced.stop.leaving()
            sure_end.flush_files()
            leave(plain.STOPPED)

    def _save(self, save: Callable[..., None], ended: bool = False) -> None:
        self.library_objects.refuse_changed()
        found = self._variables()
        state = claims.FINISHED if ended else claims.RUNS
        record = {
            "ended": ended,
            "known_by": {**self.known_by, "state": state},
            "index": self.index,
            "asked": self.asked,
            "first_epoch": self.first_epoch,
            "epoch": self.epoch,
            "executions": self.executions,
            "done": self.done,
            "whole": self.batches.whole,
            "steps": self.steps,
            "num_batches": self.batches.num_batches,
            "sizes": self.sizes,
            "replicas": self.replicas,
            "first_replicas": self.position["first_replicas"] if self.position else self.replicas,
            "data": self.batches.data,
            "made": self.batches.made_before,
            "pass": self.batches.begun_with,
            "drew_before": self.drew_before,
            "logs": pythonify_logs(self.logs),
            "shown": self.callbacks.shown,
            "stop_training": self.model.stop_training,
            "variables": variables.describe(found),
            **(self.beside_validation or self._beside_model(found)),
        }
        refuse_lost(record["script"], IN_A_FILE)
        save(self, record, found)

    def _beside_model(self, found: list[Any]) -> dict[str, Any]:
        """Return the state outside these model variables: the script's own, callbacks, random numbers."""
        self.callbacks.flush()
        self.of_script.leave(found)
        of_script = self.of_script.state()
        callbacks = self.callbacks.state(frozenset(map(id, found)), dict(of_script))
        return {"script": of_script, "callbacks": callbacks, "streams": streams.read()}

    def _emulate(self, new: int) -> None:
        """Wait until emulated GPUs would have done these batches, and leave evidence of their use."""
        for _ in range(new):
            self.pace.wait()
        self.script.locks().used(self.script.steps + self.steps)

    def _say(self, of: int | None) -> None:
        """Report about once a second: this fit, or an earlier one, prints nothing that the sidecar can read."""
        now = plain.boottime()
        if now - self._said_at < SECOND and self.steps > 1:
            return
        self._said_at = now
        before = self.script.steps
        total = {"total": before + of * (self.epochs - (self.first_epoch or 0))} if of else {}
        plain.say(step=before + self.steps, **total)
