"""Makes Hugging Face's Trainer (transformers) elastic, without changes to the script that calls it.

Promises: `train()` stops between two steps, even within an evaluation, and resumes with the next sample of that epoch;
logs, evaluations and checkpoints in the script's own `output_dir` come as without the stop; steps train on the samples
of the job's first start, on any number of GPUs, in one process or in several of one pod, which stop after the same
step. Left alone, with a sentence: what cannot be resumed exactly, or is resumed by the script. Called by `on_import`
when a script imports transformers (5.x).
"""

from __future__ import annotations

import functools
import inspect
import json
import pickle
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reshape_hooks import claims, plain, seeds
from reshape_hooks.adapters import own_attributes, session
from reshape_hooks.adapters.not_given import LibraryObjects
from reshape_hooks.adapters.ranks import Ranks
from reshape_hooks.adapters.script_frames import Object, is_own
from reshape_hooks.adapters.session import LeftAlone
from reshape_hooks.adapters.trained_parts import TrainedParts, differing, settings
from reshape_hooks.adapters.transformers_batch import First, KeptBatch, refuse
from reshape_hooks.adapters.variables import IN_A_FILE, Variables, refuse_lost
from reshape_hooks.files import note, replay
from reshape_hooks.periodic.saver import Saver

if TYPE_CHECKING:
    from reshape_hooks.adapters.script_frames import Kept

EXTRAS = "reshape.pkl"
PREFIX = "checkpoint"  # of the folder in which a Trainer saves a step
# The Trainer's own sums of the loss, since it was last logged and since the first step.
LOSSES = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
VALUES = ("loss", "eval_loss")  # reported with the next step
LOGGED = ("grad_norm", "learning_rate")
SPEEDS = ("train_samples_per_second", "train_steps_per_second")
SETTINGS = ("learning_rate", "weight_decay", "lr_scheduler_type", "seed", "data_seed", "label_smoothing_factor")
FLAGS = ("should_log", "should_evaluate", "should_save", "should_training_stop")
WHILE_SAVING = {"save_total_limit": None, "push_to_hub": False, "save_only_model": False}
OF_TRL = ("_metrics", "_stored_metrics", "_total_train_tokens")  # what TRL's trainers log as means, and tokens so far
EVERYTHING = 10**18  # batches


def adapt(module: ModuleType) -> None:
    """Replace `Trainer.train`."""
    trainer_class: Any = module.Trainer
    theirs = trainer_class.train

    @functools.wraps(theirs)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        try:
            hook = resumable(self, resume_from_checkpoint, args, kwargs)
        except LeftAlone as why:
            session.tell_left_alone(why)
            return theirs(self, resume_from_checkpoint, *args, **kwargs)
        return hook.train(lambda checkpoint: theirs(self, checkpoint, *args, **kwargs))

    trainer_class.train = train


def resumable(trainer: Any, checkpoint: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ElasticTrain:
    """Return the hook for this call of `train`. Raises LeftAlone; CheckpointError if everything saved is damaged."""
    from reshape_hooks.adapters import order

    session.refuse_other_masters()
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or getattr(trainer.args, "parallelism_config", None):
        raise LeftAlone("each of its processes has a part of its state (FSDP, DeepSpeed)")
    session.refuse_split(trainer.model)
    if args or kwargs.get("trial") is not None or trainer.hp_search_backend is not None:
        raise LeftAlone("it searches for hyperparameters")
    if hasattr(trainer, "_buffered_inputs"):  # of TRL's GRPO and RLOO
        raise LeftAlone("its trainer keeps what it has generated for several steps, which is not saved")
    if trainer.args.ignore_data_skip or trainer.args.auto_find_batch_size:
        raise LeftAlone("ignore_data_skip and auto_find_batch_size change which samples come after a stop")
    if type(trainer).get_train_dataloader.__module__ == "transformers.trainer":
        order.refuse_data(trainer.train_dataset)
    else:
        order.refuse(order.inner(trainer.get_train_dataloader()))
    together = session.met()
    checkpoints, saved = session.claim(lambda: description(trainer), together)
    if checkpoint and saved is None:
        raise LeftAlone("it resumes by itself, by resume_from_checkpoint; --elastic says that it also saves on SIGTERM")
    extras = _of_rank(pickle.loads((saved.path / EXTRAS).read_bytes()), together) if saved else {}
    first = extras["first"] if saved else First.from_args(trainer.args)
    refuse(trainer, first, together)
    run = session.of_process(together)
    return ElasticTrain(trainer, run, first, checkpoints, saved, extras, kwargs.get("ignore_keys_for_eval"))


def description(trainer: Any) -> dict[str, Any]:
    """Return what identifies this call of `train`. The optimizer is created later, from the arguments."""
    args, model = trainer.args, trainer.model
    trained = [type(trainer).__name__, type(model).__name__, session.of_torch(model), str(args.optim)]
    settings = {name: getattr(args, name, None) for name in SETTINGS}
    arguments = {name: getattr(args, name, None) for name in ("output_dir", "num_train_epochs", "max_steps")}
    weights = session.first_weights(model.parameters())
    return claims.description("train", trained, {**settings, "model": repr(model)}, arguments, claims.checksum(weights))


class ElasticTrain:
    """One call of `train`. Its methods `on_...` are those of a TrainerCallback, which is called last."""

    def __init__(
        self,
        trainer: Any,
        run: session.Session,
        first: First,
        checkpoints: claims.OfTraining,
        saved: plain.Saved | None,
        extras: dict[str, Any],
        ignore_keys: Any,
    ) -> None:
        from reshape_hooks.adapters.order import Cursor

        self.trainer, self.run, self.first, self.ignore_keys = trainer, run, first, ignore_keys
        self.checkpoints, self.saved, self.extras = checkpoints, saved, extras
        self.saver = Saver(checkpoints, outcome=run.announced.outcome)
        self.cursor = Cursor(self._trains)
        kept, saved_variables, objects = _kept(trainer, extras.get("variables", ()))
        self.variables = Variables(kept, saved_variables, objects)
        self.library_objects = LibraryObjects(kept)
        self.trained = TrainedParts({})  # of the model and the optimizer, once that exists
        self.settings: dict[str, Any] = {}  # numbers among its arguments, as training begins: callbacks change some
        self.epoch_begins = False
        self.epoch_step = 0  # optimizer steps done in this epoch
        self.epoch_ends = False  # the work at the end of an epoch is still to do
        self.due: dict[str, Any] | None = None  # what a checkpoint needs while an evaluation runs
        self.values: dict[str, float] = {}
        self.began = time.monotonic()
        self.ran_s = extras.get("ran_s", 0.0)  # seconds before the last stop

    def train(self, theirs: Any) -> Any:
        """Return what the library's `train` returns, from the beginning or from the checkpoint."""
        if "result" in self.extras:
            return self._finished()
        self.variables.look()
        callback = _callback(self)
        self.trainer.add_callback(callback)
        if self.saved:
            self.trainer._load_rng_state = lambda _checkpoint: None  # ours come from EXTRAS
        handler = self.trainer.callback_handler
        handler.on_epoch_begin = self._epoch_begins_theirs
        self.trainer._maybe_log_save_evaluate = self._log_save_evaluate_theirs
        self.trainer.log = self._log_theirs
        self.run.begin(resumed=self.saved is not None)
        self.saver.begin()
        try:
            with self.cursor, KeptBatch(self.trainer, self.first, self.run.ranks):
                result = theirs(str(self._unpacked(self.saved.path)) if self.saved else None)
        finally:
            for name in ("_load_rng_state", "_maybe_log_save_evaluate", "log"):
                self.trainer.__dict__.pop(name, None)
            handler.__dict__.pop("on_epoch_begin", None)
            self.trainer.remove_callback(callback)
        variables = self.variables.state()
        extras = {"result": tuple(result), "streams": seeds.streams(devices=True), "variables": variables}
        self.run.end(self.trainer.state.global_step, lambda: self._save(extras), self.checkpoints)
        return result

    def _finished(self) -> Any:
        """Return what this call had returned, which had ended before the stop."""
        assert self.saved is not None
        from transformers.trainer_callback import TrainerState
        from transformers.trainer_utils import TrainOutput

        path = self._unpacked(self.saved.path)
        self.trainer._load_from_checkpoint(str(path))
        self.trainer.state = TrainerState.load_from_json(str(path / "trainer_state.json"))
        seeds.restore(self.extras["streams"])
        self.variables.begin()
        replay.resumed(self.saved)
        self.run.end(self.trainer.state.global_step, lambda: None, self.checkpoints)
        return TrainOutput(*self.extras["result"])

    def _trains(self, _loader: Any) -> bool:
        begins, self.epoch_begins = self.epoch_begins, False
        return begins

    # What happens at each event

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.variables.begin()
        self.variables.done()
        self.variables.prepared()
        self.trained = TrainedParts({"model": self.trainer.model, "optimizer": self.trainer.optimizer})
        self.settings = settings(vars(args))
        if not self.extras:
            return
        vars(args).update(self.extras.get("settings", {}))  # not in checkpoints of older versions
        self.trained.restore(self.extras.get("trained", {}))  # not in checkpoints of older versions
        self.epoch_step = self.extras["epoch_step"]
        for name, value in self.extras["losses"].items():
            setattr(self.trainer, name, value)
        seeds.restore(self.extras["streams"])
        replay.resumed(self.saved)
        self._catch_up(args, state, control)
        if self.extras["cursor"] is not None:
            skip = EVERYTHING if control.should_training_stop else 0  # transformers skips the others
            self.cursor.saved = {**self.extras["cursor"], "skip": skip}
            self.cursor.saved["now"].update(seeds.streams())
        self.extras = {}

    def _catch_up(self, args: Any, state: Any, control: Any) -> None:
        """Log, evaluate and save as was due when the training was stopped."""
        self.due, self.epoch_ends = dict(self.extras), self.extras["epoch_ends"]
        for name, flag in self.extras["flags"].items():
            setattr(control, name, flag)
        self._log_save_evaluate(control, **self.extras["logged"])
        if self.extras["epoch_ends"]:
            self.trainer.control = self.trainer.callback_handler.on_epoch_end(args, state, control)
            self.epoch_ends = False
            self._boundary(state, control, {"grad_norm": None, "learning_rate": None})
            self._log_save_evaluate(control, **self.extras["logged"])
        self.due = None

    def _log_save_evaluate(self, control: Any, **logged: Any) -> None:
        if control.should_log or control.should_evaluate or control.should_save:
            trainer = self.trainer
            type(trainer)._maybe_log_save_evaluate(
                trainer,
                tr_loss=getattr(trainer, "_tr_loss", 0),
                model=trainer.model_wrapped,
                trial=None,
                epoch=int(trainer.state.epoch),
                ignore_keys_for_eval=self.ignore_keys,
                start_time=time.time(),
                **logged,
            )

    def _epoch_begins_theirs(self, args: Any, state: Any, control: Any) -> Any:
        """Call it for the script's callbacks, but not again for the epoch in which the training was stopped."""
        if self.cursor.saved is None:
            handler = self.trainer.callback_handler
            return type(handler).on_epoch_begin(handler, args, state, control)
        control.should_epoch_stop = False
        self.on_epoch_begin(args, state, control)
        return control

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epoch_begins, self.due = True, None
        if self.cursor.saved is None:
            self.epoch_step = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epoch_step += 1
        self.run.step(state.global_step, state.max_steps, **self.values)
        self.values = {}
        self.epoch_ends = float(state.epoch).is_integer()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epoch_ends = False

    def _log_save_evaluate_theirs(self, *args: Any, **kwargs: Any) -> None:
        """Handle a boundary at which nothing is half done: the Trainer calls this after each step and each epoch."""
        theirs = type(self.trainer)._maybe_log_save_evaluate
        named = inspect.signature(theirs).bind(self.trainer, *args, **kwargs).arguments
        self._boundary(self.trainer.state, self.trainer.control, {name: _copy(named.get(name)) for name in LOGGED})
        theirs(self.trainer, *args, **kwargs)

    def _log_theirs(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        """Log; include the time before its stops in that of the whole training."""
        here_s = logs.get("train_runtime")
        if here_s and self.ran_s:
            logs["train_runtime"] = whole_s = round(here_s + self.ran_s, 4)
            for name in SPEEDS:
                if name in logs:
                    logs[name] = round(logs[name] * here_s / whole_s, 3)
        type(self.trainer).log(self.trainer, logs, *args, **kwargs)
        if self.due and not self.due["flags"]["should_log"]:  # TRL's trainers begin new sums afterwards
            self.due["variables"] = self.variables.state()

    def _boundary(self, state: Any, control: Any, logged: Mapping[str, Any]) -> None:
        """Save between two steps, if requested, or keep what is needed to stop within an evaluation."""
        self.due = None
        periodic_due = self.saver.due()
        stopping, asked = self.run.asked(periodic_due and self.run.ranks.size > 1)
        if not (stopping or asked or periodic_due or control.should_evaluate):
            return
        whole = float(state.epoch).is_integer()
        consumed = self.epoch_step * self.trainer.args.gradient_accumulation_steps
        self.due = {
            "flags": {name: getattr(control, name) for name in FLAGS},
            "epoch_ends": self.epoch_ends,
            "logged": dict(logged),
            "epoch_step": self.epoch_step,
            "ran_s": self.ran_s + time.monotonic() - self.began,
            "cursor": None if whole else self.cursor.state(consumed),
            "streams": seeds.streams(devices=True),
            "variables": self.variables.state(),
            "trained": self.trained.changed(),
            "settings": differing(settings(vars(self.trainer.args)), self.settings),
            "note": note.take_note(str(self.checkpoints.folder)),
            "losses": {name: _copy(getattr(self.trainer, name)) for name in LOSSES if hasattr(self.trainer, name)},
        }
        due = self.due
        if stopping:
            self.run.leave_saved(lambda: self._save(due))
        elif asked:
            self.run.announced.saved(lambda: self._save(due))
        elif periodic_due:
            self.run.announced.saved(lambda: self._save_beside(due))

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        self.values = {name: float(value) for name, value in (logs or {}).items() if name in VALUES}
        if self.due and self.due["flags"]["should_log"]:
            self.due["flags"]["should_log"] = False
            self.due["variables"] = self.variables.state()
            self.due["note"] = note.take_note(str(self.checkpoints.folder))
            self.due["losses"] = {name: _copy(getattr(self.trainer, name)) for name in self.due["losses"]}

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        due = self.due
        if due is None:
            return
        stopping, asked = self.run.asked()
        if stopping:
            self.run.leave_saved(lambda: self._save(due))
        elif asked:
            self.run.announced.saved(lambda: self._save(due))

    def _save(self, extras: Mapping[str, Any]) -> None:
        self.saver.finish()
        written, own = self._written(), self.run.ranks.gather(dict(extras))
        self.run.save_once(lambda: self.saver.now(self.trainer.state.global_step, self._files(written, own)))

    def _save_beside(self, due: dict[str, Any]) -> None:
        self.saver.beside(self.trainer.state.global_step, lambda _: self._files(self._written(), [due]))

    def _written(self) -> Path:
        """Return a folder with everything that the Trainer itself saves."""
        step = self.trainer.state.global_step
        if self.run.ranks.size == 1:
            return session.written(self.checkpoints, step, self._write)
        # On disk: if it failed in memory on one rank, the others would not learn of it.
        made: list[Path] = []
        self.run.save_once(lambda: made.append(session.scratch(self.checkpoints, step)))
        folder: Path = self.run.ranks.share(made[0] if made else None)
        self._write(folder)
        return folder

    def _write(self, folder: Path) -> None:
        trainer, args = self.trainer, self.trainer.args
        settings = {"output_dir": str(folder), **WHILE_SAVING}
        were = {name: getattr(args, name) for name in settings}
        best = trainer.state.best_model_checkpoint
        try:
            vars(args).update(settings)
            trainer._save_checkpoint(trainer.model, trial=None)
            for state in folder.glob(f"{PREFIX}-*/trainer_state.json"):
                # the library sorts the names of what was logged
                kept = {**json.loads(state.read_text()), "log_history": trainer.state.log_history}
                state.write_text(json.dumps(kept))
        finally:
            vars(args).update(were)
            trainer.state.best_model_checkpoint = best

    def _files(self, folder: Path, own: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the files of a checkpoint: those in the folder, and each rank's own state."""
        if "result" not in own[0]:
            self.trained.refuse_changed()
        self.library_objects.refuse_changed()
        for of_rank in own:
            refuse_lost(of_rank["variables"], IN_A_FILE)
        found = sorted(folder.glob(f"{PREFIX}-*"))  # trainers write other files beside it, such as a README
        if len(found) != 1:
            raise plain.CheckpointError(f"its trainer wrote {len(found)} folders {PREFIX}-* for one checkpoint")
        written = found[0]
        for inner in [one for one in written.iterdir() if one.is_dir()]:  # a checkpoint holds files only
            shutil.make_archive(str(inner), "tar", inner)
            shutil.rmtree(inner)
        files: dict[str, Any] = {one.name: session.copier(one) for one in written.iterdir()}
        noted = own[0].get("note")
        if noted:
            files[note.FILES] = noted
        own = [{name: value for name, value in one.items() if name != "note"} for one in own]
        files[EXTRAS] = pickle.dumps({"first": tuple(self.first), "own": own})
        return files

    def _unpacked(self, saved: Path) -> Path:
        """Return a folder of the checkpoint's files in which archives are folders again."""
        packed = list(saved.glob("*.tar"))
        if not packed:
            return saved
        folder = saved.parent / f"{plain.TEMPORARY}{saved.name}-unpacked"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for one in saved.iterdir():
            if one in packed:
                shutil.unpack_archive(one, folder / one.stem, "tar")
            else:
                session.copier(one.resolve())(str(folder / one.name))
        return folder


def _of_rank(saved: Mapping[str, Any], together: Ranks) -> dict[str, Any]:
    """Return what this rank saved; on another number of ranks, all take the mean of unlogged losses."""
    own, rank = saved["own"], together.rank
    found = {"first": First(*saved["first"]), **own[rank % len(own)]}
    if rank >= len(own):
        found["streams"] = {}  # it draws from its own
    losses = [one["losses"][LOSSES[0]] for one in own if LOSSES[0] in one.get("losses", ())]
    if losses and len(own) != together.size:
        found["losses"] = {**found["losses"], LOSSES[0]: sum(losses) / len(losses)}
    return found


def _kept(trainer: Any, saved: Any) -> tuple[Any, Any, list[Kept]]:
    """Return the arguments of `Variables`: what is kept elsewhere, what was saved, and the script's own objects."""
    callbacks = trainer.callback_handler.callbacks
    helpers = [
        trainer.data_collator,
        trainer.compute_metrics,
        trainer.compute_loss_func,
        trainer.preprocess_logits_for_metrics,
        trainer.train_dataset,
        trainer.eval_dataset,
    ]
    stateful = [one for one in callbacks if hasattr(one, "state") and not is_own(type(one))]  # EarlyStoppingCallback
    objects = [
        *own_attributes.of_script("callback", callbacks),
        *(Object(f"callback {callbacks.index(one)}", one) for one in stateful),
        *own_attributes.of_script("", helpers),
        *own_attributes.named_in_code("trainer", trainer, callbacks),
        Object("sums of the trainer", trainer, OF_TRL),
        *own_attributes.of_modules("model", trainer.model, [trainer, *callbacks]),
    ]
    parts = [trainer, trainer.model, trainer.optimizer, trainer.lr_scheduler, *callbacks, *helpers]
    return [*parts, *trainer.model.modules()], saved, objects


def _copy(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value


def _callback(hook: ElasticTrain) -> Any:
    from transformers import TrainerCallback

    events = [name for name in dir(hook) if name.startswith("on_")]
    return type("ElasticCallback", (TrainerCallback,), {name: staticmethod(getattr(hook, name)) for name in events})()
