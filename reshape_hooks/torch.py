"""Makes a PyTorch training of several processes elastic: all start from one state and stop at one step.

Promises: each call returns the same answer in all ranks, so that all of them stop, save and begin together. Called by
training scripts; imports PyTorch and `plain`, nothing else of ours. Ranks are those of the environment: the shim's in a
pod of a gang, torchrun's, or none for a single process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import distributed

from reshape_hooks import plain


class Gang:
    """All processes of this training; a single one is a gang of one. Waits until all have joined."""

    def __init__(self, variables: Mapping[str, str] = os.environ) -> None:
        self.rank, self.size = int(variables.get("RANK") or 0), int(variables.get("WORLD_SIZE") or 1)
        self.local_rank = int(variables.get("LOCAL_RANK") or 0)  # of the processes that torchrun started in this pod
        self.local_size = int(variables.get("LOCAL_WORLD_SIZE") or 1)
        self.device = torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.size > 1:
            distributed.init_process_group("nccl" if self.device.type == "cuda" else "gloo")

    def total(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks."""
        numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.size > 1:
            distributed.all_reduce(numbers)
        return [float(number) for number in numbers]

    def any(self, flag: bool) -> bool:
        """Return whether any rank sets the flag.

        `if gang.any(stop.stopping)`, once a step, stops all ranks at one step.
        """
        return self.total(float(flag))[0] > 0

    def share(self, value: Any) -> Any:
        """Return rank 0's value in all ranks: only it looks for a checkpoint, so that all begin at the same one."""
        box = [value]
        if self.size > 1:
            distributed.broadcast_object_list(box, src=0)
        return box[0]

    def average(self, model: Any) -> Any:
        """Wrap the model to average gradients over all ranks; it also begins with the weights of rank 0."""
        return torch.nn.parallel.DistributedDataParallel(model) if self.size > 1 else model

    def leave(self, code: int) -> NoReturn:
        """End this process once rank 0 has saved what it had to save."""
        if self.size > 1 and code in (0, plain.STOPPED):
            with contextlib.suppress(RuntimeError):  # a rank that is gone has exited cleanly, or its shim reports how
                distributed.barrier()
        plain.leave(code)
