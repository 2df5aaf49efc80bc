"""Keeps the position in an epoch: sampler and random streams as of its start, and how much has been drawn.

Promises: see `order`, which attaches cursors to PyTorch's DataLoaders. Needs no PyTorch itself.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reshape_hooks import seeds
from reshape_hooks.adapters import script_frames, variables

MOST_AHEAD = 8  # batches that a library may prefetch
OF_RANKS = ("rank", "num_replicas", "num_samples", "total_size", "batch_size")  # depend on the number of GPUs
SHARE = (*OF_RANKS, "process_index", "num_processes")  # the last two are accelerate's
MOST_WITHIN = 4  # nesting of samplers, each of which draws from the next one
HELPERS = ("dataset", "collate_fn")  # of a loader
# What data sets and collators of libraries, and ours, wrap.
WITHIN_HELPERS = ("dataset", "collate", "data_collator", "transform")
GENERATORS = ("Generator", "Random", "RandomState")  # of PyTorch, NumPy and Python
COUNTS = (type(None), bool, int, float)
MOST_LETTERS = 100  # of a string: a data set may hold all that it was read from
MOST_HELPERS = 8
cursors: list[Cursor] = []


class Cursor:
    """The position in an epoch of the DataLoader that trains, which `trains(loader)` identifies.

    `saved`: what `state` returned; with `skip` if the library skips some of the batches itself.
    """

    def __init__(self, trains: Callable[[Any], bool], saved: Mapping[str, Any] | None = None) -> None:
        self.trains = trains
        self.saved = dict(saved) if saved else None  # what `state` returned, until the epoch is resumed
        self.fetched = 0
        self.drawn = 0  # batches whose indices the sampler has given; workers request some ahead
        self.indices: deque[Any] = deque()  # the last of these
        self.share: list[Any] = []  # what decides which samples of an epoch this process draws
        self.drained = False  # the sampler is exhausted, at which point PyTorch's draw once more
        self.generators: list[Any] = []
        self.samplers: list[Any] = []  # of the script's own classes
        self.helpers: list[Any] = []  # likewise, the data set and the collator
        self.opened: dict[str, Any] = {}
        self.order: dict[str, Any] = {}
        self.before: deque[dict[str, Any]] = deque(maxlen=MOST_AHEAD)
        self.again: deque[dict[str, Any]] = deque()
        self.seeded = False  # a worker seed was drawn, which happens once per process for persistent workers

    def __enter__(self) -> Cursor:
        cursors.append(self)
        return self

    def __exit__(self, *_error: object) -> None:
        cursors.remove(self)

    def state(self, consumed: int) -> dict[str, Any]:
        """Return the position after `consumed` batches of the epoch; batches prefetched beyond it are fetched again."""
        ahead = self.fetched - consumed
        before = list(self.before)[-ahead:] if ahead > 0 else []
        drawn_ahead = self.drawn - consumed
        return {
            "fetched": consumed,
            "drawn": self.drawn,
            "drawn_ahead": list(self.indices)[-drawn_ahead:] if drawn_ahead > 0 else [],
            "drained": self.drained,
            "share": self.share,
            "opened": self.opened,
            "order": self.order,
            "before": before,
            "now": self._streams(),
        }

    def open(self, loader: Any, make: Callable[[Any], Any]) -> Any:
        """Return the loader's iterator over the epoch, or over the rest of it."""
        sampler = "sampler" if loader.batch_sampler is None else "batch_sampler"
        indices = getattr(loader, sampler)
        samplers = [loader.sampler, *_with_inner(loader.batch_sampler)]
        found = [_attribute(one, "generator") for one in (loader, *samplers)]
        self.generators = [one for one in dict.fromkeys(found) if one is not None]
        own = [one for one in (indices, *samplers) if script_frames.is_own(type(one)) and hasattr(one, "__dict__")]
        self.samplers = list({id(one): one for one in own}.values())
        self.helpers = _helpers(loader)
        saved, self.saved = self.saved, None
        if saved:
            _forget_what_stays([saved["opened"], saved["order"], *saved["before"], saved["now"]])
            self._restore(saved["opened"])
        self.opened = self._streams()
        self.fetched, self.again = (saved["fetched"], deque(saved["before"])) if saved else (0, deque())
        self.before.clear()
        ours = Order(indices, self, saved)
        kept = getattr(loader, "_iterator", None)  # of persistent workers, which is reused in each epoch
        if kept is not None:
            kept._index_sampler = ours
        self.seeded = seeds_workers_that_stay(loader)
        # Bypass setattr, which DataLoader refuses after construction.
        loader.__dict__[sampler] = ours
        try:
            iterator = make(loader)
        finally:
            loader.__dict__[sampler] = indices
            if saved:
                self._restore(saved["now"])
        iterator._reshape_cursor = self
        return iterator

    def fetch(self, iterator: Any, fetch: Callable[[Any], Any]) -> Any:
        """Return the iterator's next batch, drawn as before the stop."""
        now, again = self._streams(), self.again.popleft() if self.again else None
        if again:
            self._restore(again)
        batch = fetch(iterator)
        self.before.append(again or now)
        self.fetched += 1
        while len(self.indices) > max(0, self.drawn - self.fetched) + MOST_AHEAD:
            self.indices.popleft()
        if again:
            self._restore(now)
        return batch

    def draw(self, indices: Any, take_saved: Callable[[], Mapping[str, Any] | None]) -> Iterator[Any]:
        """Yield the batches' indices, recorded, or those that remain.

        Nothing is taken before the first one is drawn: an iterator with workers creates two of these, and draws from
        one.
        """
        saved = take_saved()
        ahead: list[Any] = []
        if saved is None:
            if self.seeded:
                self._restore(self.opened)
                self.seeded = False
            self.order = {**self._streams(), "samplers": [_attributes(one) for one in self.samplers]}
            self.drawn = 0
            self.drained = False
            self.share = _share(indices)
            rest = iter(indices)
        else:
            rest, ahead = self._drawn_again(indices, saved)
        self.indices = deque(ahead)
        yield from ahead
        for one in rest:
            self.drawn += 1
            self.indices.append(one)
            yield one
        self.drained = True

    def _drawn_again(self, indices: Any, saved: Mapping[str, Any]) -> tuple[Iterator[Any], list[Any]]:
        """Redraw what was drawn before the stop. Return what remains to draw, and what was drawn ahead of the loop.

        The random streams are left unchanged: these draws already advanced them before the stop. What was drawn ahead
        is as saved, even if the sampler shares a stream with the training between two batches.
        """
        skip = saved.get("skip", saved["fetched"])
        if not skip and hasattr(indices, "skip_batches"):  # of accelerate
            indices, skip = indices.batch_sampler, indices.skip_batches
        self.share = _share(indices)
        now, self.order = self._streams(), saved["order"]
        self._restore(self.order)
        for one, kept in zip(self.samplers, self.order.get("samplers", ())):
            _restore_attributes(one, kept)
        rest = iter(indices)
        self.drawn = saved.get("drawn", skip + 1)  # not in checkpoints of older versions
        self.drained = saved.get("drained", False)
        again = list(itertools.islice(rest, skip, None if self.drained else self.drawn))
        self._restore(now)
        if not again or saved.get("share") != self.share:  # on another number of GPUs it draws other samples
            return rest, again
        return rest, saved["drawn_ahead"]

    def _streams(self) -> dict[str, Any]:
        return {
            **seeds.streams(),
            "generators": [one.get_state() for one in self.generators],
            "helpers": [_numbers_and_generators(one) for one in self.helpers],
        }

    def _restore(self, states: Mapping[str, Any]) -> None:
        seeds.restore(states)
        for k, state in enumerate(states["generators"][: len(self.generators)]):
            self.generators[k].set_state(state)
        for one, counts in zip(self.helpers, states.get("helpers", ())):  # not in checkpoints of older versions
            _restore_attributes(one, counts)


def _share(sampler: Any) -> list[Any]:
    """Return what decides which samples of an epoch this process draws, for a sampler and those nested in it."""
    found: list[Any] = []
    for one in _with_inner(sampler):
        values = [_attribute(one, name) for name in SHARE]
        found += [value if isinstance(value, int) else None for value in values]
    return found


def _with_inner(sampler: Any) -> list[Any]:
    """Return a sampler, the one that it draws from, and so on: libraries wrap that of a loader."""
    found: list[Any] = []
    while sampler is not None and len(found) < MOST_WITHIN:
        found.append(sampler)
        within = _attribute(sampler, "batch_sampler")
        sampler = _attribute(sampler, "sampler") if within is None else within
    return found


def _attribute(sampler: Any, name: str) -> Any:
    try:
        return getattr(sampler, name, None)
    except Exception:  # whatever a property of the script raises
        return None


def _attributes(sampler: Any) -> dict[str, variables.Packed]:
    """Return copies of what determines the order of a script's sampler: its generators, numbers and lists."""
    found = {}
    for name, value in vars(sampler).items():
        with contextlib.suppress(Exception):  # too large, or an object of the script raised
            packed = variables.pack(value, variables.Packing({id(sampler)}))
            if name not in OF_RANKS and packed.kind not in ("object", variables.AS_IT_IS.kind):
                found[name] = packed
    return found


def _restore_attributes(one: Any, kept: Mapping[str, variables.Packed]) -> None:
    held = vars(one)
    held.update({name: variables.unpack(value, held.get(name)) for name, value in kept.items()})


def _helpers(loader: Any) -> list[Any]:
    """Return a loader's data set and collator, and what they wrap, as far as these are the script's.

    Prefetching a batch advances what they count and draw from.
    """
    found: dict[int, Any] = {}
    waiting = [_attribute(loader, name) for name in HELPERS]
    while waiting and len(found) < MOST_HELPERS:
        one = waiting.pop()
        if one is None or id(one) in found or not hasattr(one, "__dict__"):
            continue
        found[id(one)] = one
        waiting += [_attribute(one, name) for name in WITHIN_HELPERS]
    return [one for one in found.values() if script_frames.is_own(type(one))]


def _numbers_and_generators(one: Any) -> dict[str, variables.Packed]:
    """Return copies of an object's numbers, short strings and generators; everything else, such as text, is skipped."""
    found = {}
    for name, value in vars(one).items():
        short = type(value) in COUNTS or (type(value) is str and len(value) <= MOST_LETTERS)
        if short or type(value).__name__ in GENERATORS:
            found[name] = variables.pack(value, variables.Packing({id(one)}))
    return found


def _forget_what_stays(states: list[Mapping[str, Any]]) -> None:
    """Drop what is equal in all of these states.

    A value that depends on the number of GPUs is then as the new start makes it.
    """
    of_helpers = [state["helpers"] for state in states if "helpers" in state]
    for of_one in zip(*of_helpers):
        for name in set().union(*of_one):
            values = [counts[name] for counts in of_one if name in counts]
            if all(one.kind == "plain" and one == values[0] for one in values):
                for counts in of_one:
                    counts.pop(name, None)


def seeds_workers_that_stay(loader: Any) -> bool:
    """Return whether the next iterator starts persistent workers and so draws their seed, as happens only once."""
    return getattr(loader, "_iterator", None) is None and bool(getattr(loader, "persistent_workers", False))


class Order:
    """Replaces a sampler while an iterator over it is created."""

    def __init__(self, indices: Any, cursor: Cursor, saved: Mapping[str, Any] | None) -> None:
        self.indices, self.cursor, self.saved = indices, cursor, saved

    def __iter__(self) -> Iterator[Any]:
        return self.cursor.draw(self.indices, self._take_saved)

    def _take_saved(self) -> Mapping[str, Any] | None:
        """Return the saved position, once: persistent workers draw again in each epoch."""
        saved, self.saved = self.saved, None
        return saved

    def __len__(self) -> int:
        return len(self.indices)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.indices, name)
