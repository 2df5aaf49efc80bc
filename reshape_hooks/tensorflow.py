"""Makes a TensorFlow training of several processes elastic: all start from one state and stop at one step.

Promises: each call returns the same answer in all ranks, so that all of them stop, save and begin together. Called by
training scripts with their own loop, since Keras 3 has no `fit` on several machines; imports TensorFlow, NumPy and
`plain`, nothing else of ours. Ranks are those of TF_CONFIG, which the shim sets in a pod of a gang; without it one
process is a gang of one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from reshape_hooks import plain


class Gang:
    """All processes of this training, and the strategy under which they train. Waits until all have joined.

    Create it before anything else of TensorFlow.
    """

    def __init__(self) -> None:
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        resolver = self.strategy.cluster_resolver
        self.rank, self.size = resolver.task_id or 0, max(1, len(resolver.cluster_spec().as_dict().get("worker", ())))
        self.replicas = self.strategy.num_replicas_in_sync  # one per GPU of each process

    def total(self, *values: float) -> list[float]:
        """Return the sum of each value over all ranks."""
        return [float(number) for number in self._sum(np.array(values))]

    def any(self, flag: bool) -> bool:
        """Return whether any rank sets the flag.

        `if gang.any(stop.stopping)`, once a step, stops all ranks at one step.
        """
        return self.total(float(flag))[0] > 0

    def share(self, arrays: list[Any]) -> list[Any]:
        """Return rank 0's value in all ranks: only it looks for a checkpoint, so that all begin at the same one.

        The other ranks' arrays must have the same shapes and dtypes.
        """
        return [self._sum(array if self.rank == 0 else np.zeros_like(array)) for array in arrays]

    def split(self, make: Callable[[int, int], Any]) -> Any:
        """Return `make(replica, replicas)` for each of our replicas, as an argument for `strategy.run`."""
        give = self.strategy.experimental_distribute_values_from_function
        return give(lambda context: make(context.replica_id_in_sync_group, self.replicas))

    def leave(self, code: int) -> NoReturn:
        """End this process once rank 0 has saved what it had to save; TensorFlow would take a second more."""
        if self.size > 1 and code in (0, plain.STOPPED):
            with contextlib.suppress(tf.errors.OpError):  # a missing rank has exited cleanly, or its shim reports how
                self.any(False)
        plain.leave(code)

    def _sum(self, array: Any) -> Any:
        ours, none = np.asarray(array), np.zeros_like(array)
        local = self.replicas // self.size  # the first replica of each process speaks for it
        spoken = self.split(lambda replica, _: tf.constant(none if replica % local else ours))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, spoken, axis=None).numpy()
