"""Finds the next batch of an interrupted epoch again, in the order of a PyTorch DataLoader.

Promises: a resumed epoch goes on with the batch at which it was stopped, each sample of it comes exactly once, and
what datasets and collators draw at random in the main process is drawn as without the stop. What they draw in the
workers of a DataLoader is drawn anew. Needs a data set with a length. Called by the adapters and `elastic`, which know
which DataLoader trains; imports PyTorch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from reshape_hooks import seeds
from reshape_hooks.adapters.session import LeftAlone

MOST_AHEAD = 8  # batches that a library fetches before it needs them
_cursors: list[Cursor] = []


def refuse(loader: Any) -> None:
    """Raise LeftAlone if the order of its batches cannot be found again."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        raise LeftAlone(f"its data come from {type(loader).__name__}, not from a DataLoader of PyTorch")
    refuse_data(loader.dataset)


def refuse_data(dataset: Any) -> None:
    """Raise LeftAlone if a data set has no samples that can be asked for by their number."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise LeftAlone("its data are a stream, in which the place where it stopped is not found again")


class Cursor:
    """The place in an epoch of the DataLoader that trains. `trains(loader)` tells which one that is.

    `saved`: what `state` returned; with `skip`, if the library skips some of the batches by itself.
    """

    def __init__(self, trains: Callable[[Any], bool], saved: Mapping[str, Any] | None = None) -> None:
        self.trains = trains
        self.saved = dict(saved) if saved else None  # what `state` returned, until the epoch is resumed
        self.fetched = 0
        self.generators: list[Any] = []
        self.opened: dict[str, Any] = {}
        self.order: dict[str, Any] = {}
        self.before: deque[dict[str, Any]] = deque(maxlen=MOST_AHEAD)
        self.again: deque[dict[str, Any]] = deque()

    def __enter__(self) -> Cursor:
        _cursors.append(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _cursors.remove(self)

    def state(self, consumed: int) -> dict[str, Any]:
        """The place after `consumed` batches of the epoch; those fetched beyond it are fetched again."""
        ahead = self.fetched - consumed
        before = list(self.before)[-ahead:] if ahead > 0 else []
        now = self._streams()
        return {"fetched": consumed, "opened": self.opened, "order": self.order, "before": before, "now": now}

    def open(self, loader: Any, make: Callable[[Any], Any]) -> Any:
        """Return the loader's iterator over the epoch, or over what is left of it."""
        sampler = "sampler" if loader.batch_sampler is None else "batch_sampler"
        indices = getattr(loader, sampler)
        samplers = (loader, loader.sampler, getattr(loader.batch_sampler, "sampler", None))
        found = [getattr(one, "generator", None) for one in samplers]
        self.generators = [one for one in dict.fromkeys(found) if one is not None]
        saved, self.saved = self.saved, None
        if saved:
            self._restore(saved["opened"])
        self.opened = self._streams()
        self.fetched, self.again = (saved["fetched"], deque(saved["before"])) if saved else (0, deque())
        self.before.clear()
        # Not by setattr, which DataLoader refuses once it is made.
        loader.__dict__[sampler] = Order(indices, self, saved)
        try:
            iterator = make(loader)
        finally:
            loader.__dict__[sampler] = indices
            if saved:
                self._restore(saved["now"])
        iterator._reshape_cursor = self
        return iterator

    def fetch(self, iterator: Any, fetch: Callable[[Any], Any]) -> Any:
        """Return the iterator's next batch, drawn as it was before the stop."""
        now, again = self._streams(), self.again.popleft() if self.again else None
        if again:
            self._restore(again)
        batch = fetch(iterator)
        self.before.append(again or now)
        self.fetched += 1
        if again:
            self._restore(now)
        return batch

    def draw(self, indices: Any, saved: Mapping[str, Any] | None) -> Iterator[Any]:
        """The batches' indices, recorded, or those that are left."""
        if saved is None:
            self.order = self._streams()
            yield from indices
            return
        now, self.order = self._streams(), saved["order"]
        self._restore(self.order)
        rest = iter(indices)
        skip = saved.get("skip", saved["fetched"])
        first = list(itertools.islice(rest, skip, skip + 1))
        self._restore(now)
        yield from first
        yield from rest

    def _streams(self) -> dict[str, Any]:
        return {**seeds.streams(), "generators": [one.get_state() for one in self.generators]}

    def _restore(self, states: Mapping[str, Any]) -> None:
        seeds.restore(states)
        for k, state in enumerate(states["generators"][: len(self.generators)]):
            self.generators[k].set_state(state)


class Order:
    """Stands for a sampler while an iterator over it is made."""

    def __init__(self, indices: Any, cursor: Cursor, saved: Mapping[str, Any] | None) -> None:
        self.indices, self.cursor, self.saved = indices, cursor, saved

    def __iter__(self) -> Iterator[Any]:
        saved, self.saved = self.saved, None  # persistent workers ask again in each epoch
        return self.cursor.draw(self.indices, saved)

    def __len__(self) -> int:
        return len(self.indices)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.indices, name)


def _install() -> None:
    """Ask the cursors about each DataLoader that is iterated over; all others are as they were."""
    make, fetch = DataLoader.__iter__, _BaseDataLoaderIter.__next__

    def __iter__(self: Any) -> Any:
        cursor = next((one for one in _cursors if one.trains(self)), None)
        return cursor.open(self, make) if cursor else make(self)

    def __next__(self: Any) -> Any:
        cursor = self.__dict__.get("_reshape_cursor")
        return cursor.fetch(self, fetch) if cursor else fetch(self)

    DataLoader.__iter__, _BaseDataLoaderIter.__next__ = __iter__, __next__


_install()
