"""Reports, before the first stop, state that a script keeps outside its training and a restart would find changed.

A tracker begins another run at each start of the script, and an Optuna study in a database counts trials of earlier
starts. Promises: each sentence is printed once, before the first step, and only where this process may be stopped; a
training within such a study keeps its GPUs, since its trials cannot be resumed. Called by `on_import`; standard library
and `announced`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from reshape_hooks import announced
from reshape_hooks.files import watch as watching

WANDB = (
    "W&B begins another run each time this script is started, so that after a restart two runs hold a part each: "
    'give wandb.init an id that stays, such as the environment variable RESHAPE_JOB_ID, and resume="allow"'
)
MLFLOW = (
    "MLflow begins another run each time this script is started, so that after a restart two runs hold a part each: "
    "keep the id of the first one in a file and give it to start_run(run_id=...)"
)
OPTUNA = (
    "its study of Optuna is in a data base, where a restart would leave a trial unfinished and begin others; "
    "a study in memory, or one job for each trial, can be stopped"
)


def adapt(module: ModuleType) -> None:
    """Watch what this module begins: `wandb.init`, `mlflow.start_run`, or Optuna's `Study.optimize`."""
    if module.__name__ == "wandb.sdk.wandb_init":
        _tell_before(module, "init", WANDB, ("WANDB_RUN_ID",), ("id", "resume"), 6)
    elif module.__name__ == "mlflow.tracking.fluent":
        _tell_before(module, "start_run", MLFLOW, ("MLFLOW_RUN_ID",), ("run_id",), 0)
    else:
        module.Study.optimize = _within_a_study(module.Study.optimize)


def _tell_before(
    module: Any, name: str, sentence: str, variables: tuple[str, ...], known_by: tuple[str, ...], place: int
) -> None:
    """Print the sentence when this function is called without naming the run. `place`: that argument's position."""
    theirs = getattr(module, name)

    @functools.wraps(theirs)
    def begin(*args: Any, **kwargs: Any) -> Any:
        named = any(map(os.environ.get, variables)) or any(kwargs.get(one) for one in known_by)
        off = "disabled" in (kwargs.get("mode"), os.environ.get("WANDB_MODE"))
        if not named and not off and len(args) <= place:
            _say(sentence)
        return theirs(*args, **kwargs)

    setattr(module, name, begin)


def _within_a_study(theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def optimize(self: Any, *args: Any, **kwargs: Any) -> Any:
        if type(self._storage).__name__ == "InMemoryStorage" or watching.this() is None:
            return theirs(self, *args, **kwargs)
        announced.reasons.append(OPTUNA)
        try:
            return theirs(self, *args, **kwargs)
        finally:
            announced.reasons.remove(OPTUNA)

    return optimize


def _say(sentence: str) -> None:
    watch = watching.this()
    if watch is not None:
        watching.say(watch, sentence)
