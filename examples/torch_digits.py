"""Trains a small PyTorch network on digits, in one process or in many on several machines.

Run by hand, as a job, as a gang or under torchrun; see README.md beside it. SIGTERM: all ranks end after
the same step with code 143, rank 0 has saved; started again, also with more or fewer ranks, they resume there.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch: matrices this small lose by threads

import digits

try:
    import torch
except ImportError as error:
    sys.exit(f"PyTorch is not installed ({error}): pip install torch, or use numpy_digits.py")

from reshape_hooks import plain
from reshape_hooks import torch as elastic
from reshape_hooks.locks import GpuLocks

STATE = "state.pt"


class Training:
    """Model and optimizer of this rank; a step trains this rank's share of the common batch."""

    def __init__(self, gang: elastic.Gang, data: digits.Digits, options: digits.Options) -> None:
        self.gang, self.options = gang, options
        self.train_x, self.train_y, self.test_x, self.test_y = (torch.from_numpy(a).to(gang.device) for a in data)
        torch.manual_seed(options.seed)
        layers = torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        self.model = torch.nn.Sequential(*layers).to(gang.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.05, momentum=0.9)

    def begin(self, checkpoints: plain.Checkpoints, prefer: str | None) -> int:
        """Load the state of rank 0 into all ranks and return the steps done so far."""
        state = self.gang.share(self._saved(checkpoints, prefer) if self.gang.rank == 0 else None)
        if state:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.whole = self.gang.average(self.model)
        return int(state["step"]) if state else 0

    def _saved(self, checkpoints: plain.Checkpoints, prefer: str | None) -> dict[str, Any] | None:
        found = checkpoints.newest(prefer)
        return {**torch.load(found.path / STATE, map_location="cpu"), "step": found.step} if found else None

    def step(self, number: int) -> tuple[float, float]:
        """Train one step; return loss and accuracy of the whole batch before it, equal for any number of ranks."""
        rows = digits.batch(number, self.options)[self.gang.rank :: self.gang.size]
        x, y = self.train_x[rows], self.train_y[rows]
        scores = self.whole(x)
        loss = torch.nn.functional.cross_entropy(scores, y, reduction="sum") / self.options.batch_size
        self.optimizer.zero_grad()
        (loss * self.gang.size).backward()  # the ranks' gradients are averaged, and ours are parts of a sum
        self.optimizer.step()
        right = (scores.argmax(1) == y).sum() / self.options.batch_size
        total, accuracy = self.gang.total(float(loss), float(right))
        return total, accuracy

    def accuracy(self) -> float:
        """Return the accuracy on the validation digits."""
        with torch.no_grad():
            return float((self.model(self.test_x).argmax(1) == self.test_y).float().mean())

    def save(self, checkpoints: plain.Checkpoints, step: int) -> None:
        """Save the state; by rank 0 only, because all ranks have the same state."""
        if self.gang.rank == 0:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            checkpoints.save(step, {STATE: lambda path: torch.save(state, path)})
            checkpoints.prune()


def train(training: Training, here: plain.Environment) -> int:
    """Train from the newest checkpoint to the last step; return the process's exit code."""
    options, gang = training.options, training.gang
    checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
    stop, locks, pace = plain.StopFlag(here.announce), GpuLocks(here), plain.Pace(here.step_seconds)
    done = training.begin(checkpoints, here.prefer)
    plain.say(job=here.job_id, gpus=len(here.gpus), rank=gang.rank, ranks=gang.size, begins_at=done)
    pace.start()
    while done < options.total:
        if gang.any(stop.stopping):
            training.save(checkpoints, done)
            return plain.STOPPED
        loss, accuracy = training.step(done)
        pace.wait()
        done += 1
        locks.used(done)
        epoch = (done - 1) // options.steps_per_epoch
        plain.say(step=done, total=options.total, epoch=epoch, loss=loss, accuracy=accuracy, **labels(here))
        if stop.take_save() or (options.save_every and done % options.save_every == 0):
            training.save(checkpoints, done)
        if options.evaluate_every and done % options.evaluate_every == 0:
            plain.say(val_accuracy=training.accuracy())
    training.save(checkpoints, done)
    plain.say(finished="yes", val_accuracy=training.accuracy())
    return 0


def labels(here: plain.Environment) -> dict[str, str]:
    return {"emulated": "yes"} if here.emulated else {}


def main() -> int:
    options = digits.options("Train digits in PyTorch. SIGTERM: save and exit with code 143.")
    here = plain.environment()
    data = digits.load()
    gang = elastic.Gang()
    if gang.local_size > 1:  # under torchrun each process has one GPU of its pod
        here = here._replace(gpus=here.gpus[gang.local_rank :: gang.local_size])
    try:
        code = train(Training(gang, data, options), here)
    except plain.CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        code = 1
    gang.leave(code)


if __name__ == "__main__":
    main()
