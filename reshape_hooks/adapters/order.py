"""Finds the next batch of an interrupted epoch, in the order of a PyTorch DataLoader.

Promises: a resumed epoch continues with the batch at which it was stopped, each of its samples comes exactly once, and
what datasets and collators draw at random in the main process is drawn as without the stop. What they draw in a
DataLoader's workers is drawn anew. Needs a data set with a length. Called by the adapters and `elastic`, which know
which DataLoader trains; imports PyTorch.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from reshape_hooks import seeds
from reshape_hooks.adapters.cursor import Cursor as Cursor
from reshape_hooks.adapters.cursor import cursors, seeds_workers_that_stay
from reshape_hooks.adapters.session import LeftAlone


def inner(loader: Any) -> Any:
    """Return the PyTorch DataLoader from which a loader of `Accelerator.prepare` draws; any other one unchanged."""
    shard = type(loader).__name__ == "DataLoaderShard"  # the others are dispatched by one process, or skip batches
    return loader.base_dataloader if shard else loader


def samples_of_batch(loader: Any, processes: int) -> int | None:
    """Return how many samples a batch has in all processes that train together; None if that is not known."""
    total = getattr(loader, "total_batch_size", None)  # of `Accelerator.prepare`
    if isinstance(total, int):
        return total
    own = inner(loader)
    size = getattr(own, "batch_size", None)
    shares = getattr(getattr(own, "sampler", None), "num_replicas", 1 if processes == 1 else None)
    return size * shares if isinstance(size, int) and isinstance(shares, int) else None


def refuse(loader: Any) -> None:
    """Raise LeftAlone if the order of its batches cannot be reproduced."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        raise LeftAlone(f"its data come from {type(loader).__name__}, not from a DataLoader of PyTorch")
    refuse_data(loader.dataset)


def refuse_data(dataset: Any) -> None:
    """Raise LeftAlone if a data set's samples cannot be accessed by index."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise LeftAlone("its data are a stream, in which the place where it stopped is not found again")


def _install() -> None:
    """Consult the cursors about each DataLoader that is iterated over; all others are unaffected."""
    make, fetch = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    def __iter__(self: Any) -> Any:
        cursor = next((one for one in cursors if one.trains(self)), None)
        if cursor:
            return cursor.open(self, make)
        streams = seeds.streams() if seeds_workers_that_stay(self) else {}  # as for an evaluation
        iterator = make(self)
        seeds.restore(streams)
        iterator.__dict__.pop("_reshape_cursor", None)  # persistent workers that have trained, and now do not
        return iterator

    def __next__(self: Any) -> Any:
        cursor = self.__dict__.get("_reshape_cursor")
        return cursor.fetch(self, fetch) if cursor else fetch(self)

    DataLoader.__iter__, _BaseDataLoaderIter.__next__ = __iter__, __next__


_install()
