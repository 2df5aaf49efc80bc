"""Keeps what a step trains on when the number of GPUs changes: the parts of the job's first start.

A library gives each of its processes (DDP) or GPUs (DataParallel) a part of what a step trains on. Promises: on another
number each step trains on the same parts, several in turn where there are fewer processes, or pieces of one where there
are more. Called by the adapters; imports PyTorch where needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

TELLS = 0.02  # of the squared difference of two halves: a sixth of how far a root is then off a mean
ENOUGH = 3  # batches that agree
REST = "reshape_rest"  # batch key: the other batches on which this process trains in the same step


class Share(NamedTuple):
    """The share of one of `now` processes in the work of the `first` ones."""

    first: int
    now: int
    rank: int

    @property
    def parts(self) -> list[int]:
        """Return the ranks of the first start whose parts this process takes, at least one."""
        if self.now > self.first:
            return [self.rank * self.first // self.now]
        return [part for part in range(self.first) if part * self.now // self.first == self.rank]

    @property
    def piece(self) -> tuple[int, int]:
        """Return which piece of its parts this process takes, and of how many."""
        takers = [rank for rank in range(self.now) if Share(self.first, self.now, rank).parts[0] == self.parts[0]]
        return (takers.index(self.rank), len(takers)) if self.now > self.first else (0, 1)


class BatchesOfParts:
    """Replaces a DataLoader's batch sampler: yields the samples of this process's parts of each step.

    `batches`: that of a single process. `shard(batches, part)`: those of one part. `share`: broadcasts what rank 0 has
    drawn.
    """

    def __init__(
        self,
        batches: Any,
        share: Share,
        shard: Callable[[Any, int], Any],
        from_rank_0: Callable[[Any], Any],
    ) -> None:
        self.batch_sampler = batches  # under the names that libraries look for
        self.sampler, self.batch_size = batches.sampler, batches.batch_size
        self.drop_last = batches.drop_last
        # These tell a cursor which samples of a step this process has.
        self.process_index = share.rank
        self.num_processes = share.now
        self._share, self._shard, self._from_rank_0 = share, shard, from_rank_0

    def __len__(self) -> int:
        return len(self._shard(self.batch_sampler, 0))

    def __iter__(self) -> Iterator[list[int]]:
        drawn = self._from_rank_0([list(batch) for batch in self.batch_sampler])
        # Each part has its own batches: accelerate fills an epoch's last one in place.
        copies = [[list(batch) for batch in drawn] for _ in self._share.parts]
        shards = [
            self._shard(Drawn(batches, self.batch_size, self.drop_last), part)
            for batches, part in zip(copies, self._share.parts)
        ]
        for batches in zip(*shards):
            yield [index for batch in batches for index in batch]


class Drawn(list):  # type: ignore[type-arg]
    """Batches already drawn, with the interface of a batch sampler."""

    def __init__(self, batches: Iterable[list[int]], batch_size: int, drop_last: bool) -> None:
        super().__init__(batches)
        self.batch_size, self.drop_last = batch_size, drop_last


class Collated:
    """Replaces a DataLoader's `collate_fn`: makes a batch of each of `parts` parts of equal length."""

    def __init__(self, collate: Callable[[Any], Any], parts: int) -> None:
        self.collate, self.parts = collate, parts

    def __call__(self, samples: Any) -> Any:
        size = len(samples) // self.parts
        first, *rest = [self.collate(samples[k * size : (k + 1) * size]) for k in range(self.parts)]
        first[REST] = rest
        return first


def all_parts(batch: Any) -> list[Any]:
    """Return the batches of a step's parts."""
    first = type(batch)({name: value for name, value in batch.items() if name != REST})
    return [first, *batch[REST]]


def sizes(samples: int, parts: int) -> list[int]:
    """Return the samples per part, split as by `torch.chunk` and DataParallel: there may be fewer parts."""
    size = -(-samples // parts)
    return [min(size, samples - begin) for begin in range(0, samples, size)]


def cut(batch: Any, begin: int, end: int) -> Any:
    """Slice a batch, as DataParallel does for a GPU: each tensor's rows; everything else is unchanged."""
    if hasattr(batch, "shape") and batch.shape:
        return batch[begin:end]
    if isinstance(batch, Mapping):
        return type(batch)({name: cut(value, begin, end) for name, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(cut(value, begin, end) for value in batch)
    return batch


def length(batch: Any) -> int:
    """Return the number of samples in a batch, by its first tensor; 0 if it has none."""
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if batch.shape else 0
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for found in map(length, values) if found), 0)


def take_samples(batch: Any, samples: list[int]) -> Any:
    """Return copies of a batch's samples at these indices; anything but tensors is unchanged."""
    if hasattr(batch, "shape") and batch.shape:
        return batch[samples]
    if isinstance(batch, Mapping):
        return type(batch)({name: take_samples(value, samples) for name, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(take_samples(value, samples) for value in batch)
    return batch


def halves(losses: list[float]) -> tuple[list[int], list[int]]:
    """Return the samples with the smaller and those with the larger losses: they tell most about how losses add up."""
    order = sorted(range(len(losses)), key=lambda sample: losses[sample])
    return sorted(order[: len(order) // 2]), sorted(order[len(order) // 2 :])


def adds_up(whole: float, pieces: tuple[float, float], counts: tuple[int, int], rounding: float) -> str | None:
    """Tell how the loss of a batch follows from those of its two halves: "mean", "sum", "" if neither.

    None: these losses do not tell. `rounding`: the relative error of a batch's loss. The root of a mean of squares is
    off their mean by an eighth of the squared difference of the halves: where that is not well above the rounding
    error, a mean and a root are indistinguishable.
    """
    smaller, larger = pieces
    scale = max(abs(whole), abs(smaller), abs(larger))
    if not math.isfinite(whole + smaller + larger):
        return ""
    if scale == 0:
        return None
    mean = (smaller * counts[0] + larger * counts[1]) / sum(counts)
    is_mean = abs(mean - whole) <= rounding * scale
    is_sum = abs(smaller + larger - whole) <= rounding * scale
    if is_mean == is_sum:
        return None if is_mean else ""
    if is_mean:
        return "mean" if TELLS * ((larger - smaller) / scale) ** 2 > rounding else None
    return "sum" if min(abs(smaller), abs(larger)) > 10 * rounding * scale else None


class KindOfLoss:
    """What is known of how batch losses add up: "mean", "sum", "" if they do not, None while unknown.

    Batches 1, 2, 4, 8, ... are compared, to the end: the first ones may resemble something else by chance, and one that
    disagrees settles it. Pure.
    """

    def __init__(self) -> None:
        self.kind: str | None = None
        self.batches = 0
        self._agreed: list[str] = []

    def next_is_due(self) -> bool:
        """Count a batch; return whether to compare it."""
        self.batches += 1
        return self.kind != "" and self.batches & (self.batches - 1) == 0

    def heard(self, verdicts: list[str | None]) -> None:
        """Learn from the verdicts of `adds_up` on this batch in all processes."""
        told = {verdict for verdict in verdicts if verdict is not None}
        if not told:
            return
        if "" in told or len(told | set(self._agreed)) > 1:
            self.kind = ""
            return
        self._agreed += told
        if len(self._agreed) >= ENOUGH:
            self.kind = self._agreed[0]
