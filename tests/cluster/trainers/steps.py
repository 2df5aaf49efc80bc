"""A training in which a step is only waited for: what pods of the cluster tests run, beside copies of the hooks.

`python3 steps.py TOTAL`. Paced by RESHAPE_EMULATED_SPEED, else by STEP_S, else by its GPUs: a training that is no
faster on more of them would not be given more. Saves on SIGTERM and goes on from there; on SIGUSR1 it saves and trains
on. The hooks are `reshape_hooks`, as any training script may copy them.
"""

from __future__ import annotations

import json
import os
import sys

from reshape_hooks.locks import GpuLocks
from reshape_hooks.plain import STOPPED, CheckpointError, Checkpoints, Pace, StopFlag, environment, say, tell

STEP_S = 0.1  # without GPUs
ON_ONE_GPU_S = 0.4  # twice as fast on two


def train(total: int) -> int:
    """The exit code."""
    here = environment()
    flag = StopFlag(here.announce)
    kept = Checkpoints(here.checkpoints, here.job_id, here.generation)
    saved = kept.newest(here.prefer)
    step = saved.step if saved else 0
    tell(f"begins after step {step} as generation {here.generation} on {len(here.gpus)} GPUs")
    usual_s = ON_ONE_GPU_S / len(here.gpus) if here.gpus else STEP_S
    locks = GpuLocks(here)
    pace = Pace(here.step_seconds or float(os.environ.get("STEP_S", usual_s)))
    while step < total and not flag.stopping:
        step += 1
        pace.wait()
        locks.used(step)
        say(step=step, total=total)
        if flag.take_save():
            save(kept, step)
    locks.close()
    save(kept, step)
    return STOPPED if flag.stopping and step < total else 0


def save(kept: Checkpoints, step: int) -> None:
    kept.save(step, {"weights.json": json.dumps({"step": step}).encode()})
    kept.prune()


if __name__ == "__main__":
    os.umask(0)  # others, who are not root, lock the same GPUs
    try:
        sys.exit(train(int(sys.argv[1])))
    except CheckpointError as error:
        sys.exit(str(error))
