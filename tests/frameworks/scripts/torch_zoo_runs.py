"""Runs the zoo's script for each model, stopped half way and run again; run by `test_zoo.py`.

Called as a process: folder, then models. Each run is a process of its own, forked, as each import of PyTorch takes
seconds. Prints a line for each model: the first and the last loss, steps of the first and of the second run.
"""

import os
import re
import signal
import sys
from pathlib import Path

import torch
import torch_zoo
import zoo_data

SAMPLES, BATCH, EPOCHS = 40, 8, 2
HALF = SAMPLES // BATCH * EPOCHS // 2
torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()  # imports what else each forked process would import


def run(folder, name):
    """Run the script as a new process of the job would be; return its exit code and what it printed."""
    # No argument: by its arguments a training is told from others.
    generation = "2" if (folder / f"{name}-1").exists() else "1"
    printed = folder / f"{name}-{generation}"
    process = os.fork()
    if not process:
        os.environ.update(RESHAPE_JOB_ID=name, RESHAPE_CHECKPOINTS=str(folder / name), RESHAPE_GENERATION=generation)
        step, done = torch.optim.Adam.step, []

        def counted(self):
            step(self)
            done.append(1)
            if len(done) == HALF and generation == "1":
                os.kill(os.getpid(), signal.SIGTERM)

        torch.optim.Adam.step = counted
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT), 1)
        torch_zoo.main(zoo_data.Options(name, EPOCHS, SAMPLES, BATCH, 7))
        sys.stdout.flush()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code, printed.read_text()


for name in sys.argv[2:]:
    (first, half), (second, rest) = map(run, [Path(sys.argv[1])] * 2, [name] * 2)
    assert (first, second) == (143, 0), (name, first, second)
    losses = re.findall(r"loss=(\S+)", half + rest)
    steps = [len(set(re.findall(r"^step=(\d+) total", text, re.MULTILINE))) for text in (half, rest)]
    print("zoo", name, losses[0], losses[-1], *steps, flush=True)
