"""Makes Lightning's Trainer elastic, without changes to the script that calls it.

Promises: `fit` stops between two batches, even within a validation, and resumes with the next batch of that epoch,
whose validation, schedulers and callbacks run as without the stop. Left alone, with a sentence: several processes,
several or endless DataLoaders, and what the script resumes itself. Called by `on_import` when a script imports
lightning or pytorch_lightning (2.x).
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from reshape_hooks import claims, plain, seeds
from reshape_hooks.adapters import lightning_logged, own_attributes, session
from reshape_hooks.adapters.gradients import Gradients
from reshape_hooks.adapters.lightning_sources import Sources
from reshape_hooks.adapters.not_given import LibraryObjects
from reshape_hooks.adapters.session import LeftAlone
from reshape_hooks.adapters.trained_parts import TrainedParts, differing, settings
from reshape_hooks.adapters.variables import IN_A_FILE, Variables, refuse_lost
from reshape_hooks.files import note, replay
from reshape_hooks.periodic.saver import Saver

STATE, EXTRAS = "lightning.ckpt", "reshape.pkl"
FLOW = ("_first_loop_iter", "_current_fx")  # by which an epoch's logs know that it has begun
SEARCHES = "searches again at each start, by other weights; search in a run of its own"
BY_ITSELF = "it resumes by itself, by OnExceptionCheckpoint; --elastic says that it also saves on SIGTERM"
REFUSED = {  # callbacks, and why
    "OnExceptionCheckpoint": BY_ITSELF,
    "LearningRateFinder": f"LearningRateFinder {SEARCHES}",
    "BatchSizeFinder": f"BatchSizeFinder {SEARCHES}",
    "ModelPruning": "checkpoints of ModelPruning do not say which weights it has pruned",
}
OF_LOOP = ("max_epochs",)  # settings of the epoch loop
METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")  # the values last logged


def adapt(module: ModuleType) -> None:
    """Replace `Trainer.fit`."""
    trainer_class: Any = module.Trainer
    theirs, callback_class = trainer_class.fit, module.Callback
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        try:
            hook = resumable(self, given.arguments.get("model"), given.arguments.get("ckpt_path"), callback_class)
        except LeftAlone as why:
            session.tell_left_alone(why)
            return theirs(self, *args, **kwargs)
        if hook.saved:
            given.arguments["ckpt_path"] = str(hook.saved.path / STATE)
            if "weights_only" in signature.parameters:
                given.arguments["weights_only"] = False
        return hook.fit(lambda: theirs(*given.args, **given.kwargs))

    trainer_class.fit = fit
    lightning_logged.adapt(module.__name__.rpartition(".trainer.")[0])


def resumable(trainer: Any, model: Any, checkpoint: Any, callback_class: Any) -> ElasticFit:
    """Return the hook for this call of `fit`. Raises LeftAlone; CheckpointError if everything saved is damaged."""
    session.refuse_several()
    session.refuse_other_masters()
    if trainer.world_size > 1 or trainer.strategy.launcher is not None:
        raise LeftAlone("it trains in several processes")
    if trainer.fast_dev_run:
        raise LeftAlone("fast_dev_run trains on some batches only")
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in REFUSED:
                raise LeftAlone(REFUSED[kind.__name__])
    checkpoints, saved = session.claim(lambda: description(trainer, model))
    if checkpoint and saved is None:
        raise LeftAlone("it resumes by itself, by ckpt_path; --elastic says that it also saves on SIGTERM")
    return ElasticFit(trainer, checkpoints, saved, callback_class)


def description(trainer: Any, model: Any) -> dict[str, Any]:
    """Return what identifies this call of `fit`. The optimizers are created later, from the model's hyperparameters."""
    trained = [type(model).__name__, session.of_torch(model)]
    named = dict(getattr(model, "hparams", {}))
    numbers = {name: value for name, value in named.items() if isinstance(value, (int, float))}
    settings = {"model": repr(model), **{f"hparams.{name}": value for name, value in numbers.items()}}
    arguments = {"max_epochs": trainer.max_epochs, "max_steps": trainer.max_steps, "hparams": named}
    weights = session.first_weights(model.parameters())
    return claims.description("fit", trained, settings, arguments, claims.checksum(weights))


class ElasticFit:
    """One call of `fit`. Its methods `on_...` are those of a Callback, which is called before all others."""

    def __init__(
        self, trainer: Any, checkpoints: claims.OfTraining, saved: plain.Saved | None, callback_class: Any
    ) -> None:
        from reshape_hooks.adapters.order import Cursor

        self.trainer, self.checkpoints, self.saved = trainer, checkpoints, saved
        self.saver = Saver(checkpoints, outcome=lambda fault: session.of_process().announced.outcome(fault))
        self.loop = trainer.fit_loop.epoch_loop
        self.extras: dict[str, Any] = pickle.loads((saved.path / EXTRAS).read_bytes()) if saved else {}
        self.cursor = Cursor(self._trains, self.extras.get("cursor"))
        self.sources = Sources(trainer, self.extras.get("loaders", {}))  # not in checkpoints of older versions
        self.due: dict[str, Any] | None = None  # what a checkpoint needs while a validation runs
        self.loops: dict[str, Any] | None = None  # that go into a checkpoint in place of the present ones
        events = {name: staticmethod(getattr(self, name)) for name in dir(self) if name.startswith("on_")}
        self.callback = type("ElasticCallback", (callback_class,), events)()
        self.run: session.Session | None = None
        self.variables: Variables | None = None  # once training begins
        self.library_objects = LibraryObjects(())
        self.trained = TrainedParts({})
        self.settings: dict[str, Any] = {}  # of the Trainer, as training begins
        self.advances = False  # whether the first batch has begun, after all callbacks
        self.gradients: Gradients | None = None  # where the script decides when an optimizer steps

    def fit(self, theirs: Any) -> Any:
        """Call the library's `fit`, from the beginning or from the checkpoint."""
        trainer = self.trainer
        trainer.callbacks.insert(0, self.callback)
        if self._catches_up() and self.loop.max_steps != -1:
            self.loop.max_steps += 1  # else the validation after its last step would be skipped
        self.sources.watch_requests()
        try:
            with self.cursor:
                theirs()
        finally:
            self.sources.stop_watching()
            self.loop.__dict__.pop("advance", None)
            trainer.callbacks.remove(self.callback)
        if "finished" in self.extras:
            replay.resumed(self.saved)
            seeds.restore(self.extras["streams"])
            assert self.variables is not None
            self.variables.begin()
            self._restore_metrics(self.extras.get("metrics", {}))
            session.of_process().end(self._batches(), lambda: None, self.checkpoints)
        elif self.run:
            assert self.variables is not None
            extras: dict[str, Any] = {"finished": True, "cursor": None, "streams": seeds.streams(devices=True)}
            extras.update(variables=self.variables.state(), metrics=self._metrics())
            self.run.end(self._batches(), lambda: self._save(extras), self.checkpoints)

    def _of_script(self) -> Variables:
        """Return the present variables of the script and of its own objects that the Trainer holds."""
        trainer = self.trainer
        module = trainer.lightning_module
        data = getattr(trainer, "datamodule", None)
        callbacks = [one for one in trainer.callbacks if one is not self.callback]
        objects = [
            *own_attributes.of_script("callback", callbacks),
            *own_attributes.of_script("logger", trainer.loggers),
            *own_attributes.of_script("data", [data]),
            *own_attributes.of_modules("model", module, [*callbacks, data]),
        ]
        parts = [trainer, *callbacks, *trainer.loggers, data, *module.modules()]
        self.library_objects = LibraryObjects(parts)
        variables = Variables(parts, self.extras.get("variables", ()), objects)
        variables.look()
        return variables

    def _catches_up(self) -> bool:
        return bool(self.extras) and "finished" not in self.extras

    def _trains(self, loader: Any) -> bool:
        combined = self.trainer.fit_loop._combined_loader
        return combined is not None and any(loader is one for one in combined.flattened)

    def _batches(self) -> int:
        return int(self.loop.batch_progress.total.ready)

    def _total(self) -> int | None:
        trainer, counts = self.trainer, []
        if trainer.max_epochs not in (None, -1) and trainer.num_training_batches != float("inf"):
            counts.append(trainer.max_epochs * trainer.num_training_batches)
        if trainer.max_steps != -1:
            counts.append(trainer.max_steps * trainer.accumulate_grad_batches)
        return int(min(counts)) if counts else None

    # What happens at each event

    def on_load_checkpoint(self, trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the script's checkpoints in their original folder."""
        for callback in trainer.checkpoint_callbacks:
            state = checkpoint.get("callbacks", {}).get(callback.state_key, {})
            if state.get("dirpath"):
                callback.dirpath = state["dirpath"]

    def on_fit_start(self, _trainer: Any, _module: Any) -> None:
        """Look at the script's objects before they create a loader."""
        self.variables = self._of_script()
        self.sources.keep_by(self.variables)

    def on_train_start(self, trainer: Any, module: Any) -> None:
        from reshape_hooks.adapters import order

        try:
            session.refuse_split(module)
            loaders = trainer.fit_loop._combined_loader.flattened
            if len(loaders) != 1:
                raise LeftAlone("it trains on several DataLoaders at once")
            order.refuse(loaders[0])
            self.run = session.of_process()
        except LeftAlone as why:
            return session.tell_left_alone(why)
        assert self.variables is not None
        self.variables.add_objects(own_attributes.of_script("data", [None, loaders[0].dataset]))
        self.variables.leave(trainer.optimizers)
        self.trained = TrainedParts(_trained(trainer, module))
        self.settings = _settings(trainer)
        self.gradients = None if module.automatic_optimization else Gradients({"model": module})
        if not self.extras:
            self.variables.begin()
        if trainer.received_sigterm:  # before any training; Lightning would train on one batch and exit with 0
            self.run.leave()
        if "finished" in self.extras:
            trainer.should_stop = True
        self.loop.advance = self._advance
        self.run.begin(resumed=self.saved is not None)
        self.saver.begin()
        return None

    def _advance(self, data_fetcher: Any) -> None:
        """Train on one batch; the first time after a stop, only finish what followed the last one."""
        if self._catches_up():
            return self._resume()
        if not self.advances:
            self._prepared()
        type(self.loop).advance(self.loop, data_fetcher)
        assert self.run is not None
        self.run.step(self._batches(), self._total())
        if self.loop._should_accumulate():  # gradients are not saved
            return None
        self.due = None
        stopping, asked = self.run.asked()
        periodic_due = self.saver.due()
        if stopping or asked or periodic_due or self.loop._should_check_val_fx(data_fetcher):
            self.due = self._position()
        due = self.due or {}
        if stopping:
            self.run.leave_saved(lambda: self._save(due))
        elif asked:
            self.run.announced.saved(lambda: self._save(due))
        elif periodic_due:
            self.run.announced.saved(lambda: self.saver.beside(self._batches(), lambda _in_memory: self._files(due)))
        return None

    def _metrics(self) -> dict[str, dict[str, Any]]:
        connector = self.trainer._logger_connector
        return {name: dict(getattr(connector, name)) for name in METRICS if hasattr(connector, name)}

    def _restore_metrics(self, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        for name, values in metrics.items():
            getattr(self.trainer._logger_connector, name).update(values)

    def _position(self) -> dict[str, Any]:
        connector = self.trainer._logger_connector
        assert self.variables is not None
        return {
            "cursor": self.cursor.state(self.loop.batch_progress.current.ready),
            "streams": seeds.streams(devices=True),
            "variables": self.variables.state(),
            "trained": self.trained.changed(),
            "gradients": self.gradients.state() if self.gradients else {},
            "settings": differing(_settings(self.trainer), self.settings),
            "means": lightning_logged.means(self.loop._results),
            "rows": lightning_logged.rows(self.trainer.loggers),
            "flow": {name: getattr(connector, name) for name in FLOW if hasattr(connector, name)},
            "metrics": self._metrics(),
            "loaders": self.sources.made,
            "note": note.take_note(str(self.checkpoints.folder)),
            "loops": copy.deepcopy(self.trainer._checkpoint_connector._get_loops_state_dict()),
        }

    def _prepared(self) -> None:
        """Note that all callbacks have begun: each start makes again what they have made."""
        assert self.variables is not None
        self.variables.prepared()
        self.advances = True

    def _resume(self) -> None:
        extras, self.extras = self.extras, {}
        self._restore_metrics(extras["metrics"])
        assert self.variables is not None
        self.variables.begin()
        self.variables.done()
        self._prepared()
        self.sources.epoch_goes_on()
        self.trained.restore(extras.get("trained", {}))  # not in checkpoints of older versions
        _restore_settings(self.trainer, extras.get("settings", {}))
        _average_again(self.trainer)
        if self.gradients:
            self.gradients.restore(extras.get("gradients", {}))  # not in checkpoints of older versions
        vars(self.trainer._logger_connector).update(extras.get("flow", {}))
        lightning_logged.restore_means(self.loop._results, extras.get("means", ()), self.trainer)
        lightning_logged.restore_rows(self.trainer.loggers, extras.get("rows", ()))
        # The library does what was due after this return; its own guess of what that is must not apply.
        self.trainer.fit_loop._restarting = self.loop._restarting = False
        self.loop.val_loop.restarting = False
        if self.loop.max_steps != -1:
            self.loop.max_steps -= 1
        self.due = extras
        replay.resumed(self.saved)
        seeds.restore(extras["streams"])

    def on_validation_batch_start(self, trainer: Any, *_: Any) -> None:
        due, run = self.due, self.run
        if not due or run is None or trainer.sanity_checking:
            return
        stopping, asked = run.asked()
        if stopping:
            run.leave_saved(lambda: self._save(due))
        elif asked:
            run.announced.saved(lambda: self._save(due))

    def on_save_checkpoint(self, _trainer: Any, _module: Any, checkpoint: dict[str, Any]) -> None:
        if self.loops is not None:
            checkpoint["loops"] = self.loops

    def _save(self, extras: Mapping[str, Any]) -> None:
        self.saver.finish()
        self.saver.now(self._batches(), self._files(extras))

    def _files(self, extras: Mapping[str, Any]) -> dict[str, Any]:
        """Let the Trainer write its state to a folder, and return that file and the extras."""
        self.trained.refuse_changed()
        self.library_objects.refuse_changed()
        refuse_lost(extras.get("variables", ()), IN_A_FILE)
        self.loops = extras.get("loops")
        try:
            folder = session.written(
                self.checkpoints, self._batches(), lambda folder: self.trainer.save_checkpoint(folder / STATE)
            )
        finally:
            self.loops = None
        kept = {name: value for name, value in extras.items() if name not in ("loops", "note")}
        noted = {note.FILES: extras["note"]} if extras.get("note") else {}
        return {STATE: session.copier(folder / STATE), EXTRAS: pickle.dumps(kept), **noted}


def _trained(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the parts with trained parameters: the module, and optimizers whose groups nothing else restores."""
    restores_groups = any(hasattr(one, "unfreeze_and_add_param_group") for one in trainer.callbacks)
    optimizers = [] if restores_groups else trainer.optimizers
    return {"model": module, **{f"optimizer {k}": one for k, one in enumerate(optimizers)}}


def _settings(trainer: Any) -> dict[str, Any]:
    """Return the numbers that callbacks set, such as `accumulate_grad_batches` at the beginning of an epoch."""
    of_loop = {name: getattr(trainer.fit_loop, name) for name in OF_LOOP}
    found = settings({**vars(trainer), **of_loop})
    found.pop("should_stop", None)  # which ends the training
    return found


def _restore_settings(trainer: Any, saved: Mapping[str, Any]) -> None:
    for name, value in saved.items():
        setattr(trainer.fit_loop if name in OF_LOOP else trainer, name, value)


def _average_again(trainer: Any) -> None:
    """Let weight averaging find its scheduler again, which it does when an epoch begins, not within one."""
    for callback in trainer.callbacks:
        if getattr(callback, "_scheduler_state", None) is None or not hasattr(callback, "_swa_scheduler"):
            continue
        groups = trainer.optimizers[0].param_groups
        rates = [group["lr"] for group in groups]
        callback.on_train_epoch_start(trainer, trainer.lightning_module)
        for group, rate in zip(groups, rates):
            group["lr"] = rate  # a new scheduler sets the rate of its first step
