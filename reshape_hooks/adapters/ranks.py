"""Lets the processes of one training decide together: when all stop, what rank 0 has found and saved.

Promises: each call returns the same answer in all ranks, which make the same calls in the same order. The processes are
already connected by `torch.distributed`; ours communicate over a separate gloo group, so that no GPU waits. A single
process needs no PyTorch. Called by `session` and the adapters, from Python 3.8 on.
"""

from __future__ import annotations

import os
import sys
from typing import Any

SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE")  # of torchrun, mpirun and horovodrun


class NotMet(Exception):
    """Raised when this process is one of several that are not connected."""


class Ranks:
    """All processes of this training. Raises NotMet if there are others and `torch.distributed` is not initialized."""

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self.local_rank, self.local_size = (
            int(os.environ.get(f"LOCAL_{name}") or default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))
        )
        if several():
            try:
                from torch import distributed
            except ImportError:  # a launcher of its own, or of MPI, started a script without PyTorch
                raise NotMet from None
            if not (distributed.is_available() and distributed.is_initialized()):
                raise NotMet
            self._distributed = distributed
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
            if "LOCAL_RANK" not in os.environ:  # the script started them itself, all on this machine
                self.local_rank, self.local_size = self.rank, self.size
            self._group: Any = distributed.new_group(backend="gloo")

    def any(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any rank has set it."""
        if self.size == 1:
            return list(flags)
        import torch

        numbers = torch.tensor(flags, dtype=torch.int32)
        self._distributed.all_reduce(numbers, self._distributed.ReduceOp.MAX, group=self._group)
        return [bool(number) for number in numbers]

    def share(self, value: Any) -> Any:
        """Return rank 0's value in all ranks."""
        box = [value]
        if self.size > 1:
            self._distributed.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._distributed.all_gather_object(values, value, group=self._group)
        return values


def _number_in_variable(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else 1


def several() -> bool:
    """Return whether this process is one of several that train together, by its environment or `torch.distributed`."""
    if any(_number_in_variable(name) > 1 for name in SIZES):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return False
    return int(distributed.get_world_size()) > 1
