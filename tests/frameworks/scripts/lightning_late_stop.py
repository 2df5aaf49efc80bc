"""Runs lightning_fit.py, and asks it to stop while the hook looks what is due after the batch that STOP_AT names."""

import os
import pathlib
import runpy
import signal

from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop

theirs, left = _TrainingEpochLoop._should_check_val_fx, [int(os.environ["STOP_AT"])]


def looks(loop, fetcher):
    if loop.batch_progress.total.ready in left:
        left.clear()
        os.kill(os.getpid(), signal.SIGTERM)
    return theirs(loop, fetcher)


_TrainingEpochLoop._should_check_val_fx = looks
runpy.run_path(str(pathlib.Path(__file__).with_name("lightning_fit.py")), run_name="__main__")
