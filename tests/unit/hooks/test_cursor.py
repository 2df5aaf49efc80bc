"""The place in an epoch is found again by whoever draws from its order. With real DataLoaders: tests/frameworks."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reshape_hooks.adapters.cursor import Cursor

EPOCH = 12
TEXT = "all that it was read from" * 1000


class Shuffled:
    def __len__(self) -> int:
        return EPOCH

    def __iter__(self) -> Iterator[int]:
        yield from random.sample(range(EPOCH), EPOCH)


class Buckets(Shuffled):
    """As a sampler of the script that has a generator of its own, and counts its epochs."""

    def __init__(self) -> None:
        self.generator_of_its_own, self.epochs = random.Random(3), 0

    def __iter__(self) -> Iterator[int]:
        order = [*range(EPOCH)]
        self.generator_of_its_own.shuffle(order)
        self.epochs += 1
        yield from order


class Episodes(Shuffled):
    """Draws one at a time, from the stream that the training draws from in between, and once more at its end."""

    @property
    def rank(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        for _ in range(EPOCH):
            yield random.randrange(1000)
        random.random()


class Around(Shuffled):
    """As a library's sampler that stands around that of a loader, in a process that goes on within an epoch."""

    __module__ = "builtins"

    def __init__(self, batch_sampler: Shuffled) -> None:
        self.batch_sampler = batch_sampler

    def __iter__(self) -> Iterator[int]:
        yield from iter(self.batch_sampler)


class Collator:
    """Counts its calls and draws from a generator of its own. `gpus` is what each process is told."""

    def __init__(self, gpus: int) -> None:
        self.calls = 0
        self.draws = random.Random(1)
        self.gpus = gpus
        self.text = TEXT

    def __call__(self, sample: int) -> tuple[int, int, float]:
        self.calls += 1
        return sample, self.calls, self.draws.random()


class Drawn:
    """An iterator over a loader; it has an order for itself, of which it draws `ahead` at once and then one each."""

    def __init__(self, loader: Loader, ahead: int) -> None:
        self._index_sampler, self.ahead = loader.batch_sampler, ahead
        self.begin()

    def begin(self) -> None:
        self.order = iter(self._index_sampler)
        if self.ahead:  # as PyTorch's iterator with workers
            random.random()
            self.order = iter(self._index_sampler)
        self.fetched = list(itertools.islice(self.order, self.ahead))

    def __next__(self) -> int:
        self.fetched += [one for one in [next(self.order, None)] if one is not None]
        if not self.fetched:
            raise StopIteration
        return self.fetched.pop(0)


class Loader:
    def __init__(self, ahead: int, stays: bool, order: Callable[[], Shuffled]) -> None:
        self.batch_sampler, self.sampler = order(), None
        self.ahead, self.persistent_workers, self._iterator = ahead, stays, None

    def iterator(self) -> Drawn:
        if self._iterator is None:
            made = Drawn(self, self.ahead)
            self._iterator: Any = made if self.persistent_workers else None
            return made
        self._iterator.begin()
        return self._iterator


class Training:
    """Epochs over one loader, of which each batch draws a random number, as dropout does."""

    def __init__(self, ahead: int, stays: bool, order: Callable[[], Shuffled], place: Any = None) -> None:
        self.loader = Loader(ahead, stays, order)
        self.place = place
        self.seen: list[tuple[int, float]] = []

    def epoch(self, stop_at: int | None = None, done: int = 0) -> Any:
        cursor = Cursor(lambda _loader: True, self.place)
        self.place = None
        make: Callable[[Any], Any] = Loader.iterator
        iterator = cursor.open(self.loader, make)
        for consumed in range(done, EPOCH):
            if consumed == stop_at:
                return cursor.state(consumed)
            self.seen.append((cursor.fetch(iterator, next), random.random()))
        with pytest.raises(StopIteration):
            next(iterator)
        return cursor.state(EPOCH)


def trained(
    ahead: int, stays: bool, stops: list[tuple[int, int]], order: Callable[[], Shuffled] = Shuffled
) -> list[tuple[int, float]]:
    """Three epochs, each one stopped where `stops` names it and how many of its batches came by then."""
    random.seed(4)
    training = Training(ahead, stays, order)
    seen: list[tuple[int, float]] = []
    for epoch in range(3):
        done = 0
        for stop_at in [batch for number, batch in stops if number == epoch]:
            place = training.epoch(stop_at, done)
            seen += training.seen
            random.seed(99)  # the new process
            training, done = Training(ahead, stays, order, place), stop_at
        training.epoch(None, done)
        seen += training.seen
        training.seen = []
    return seen


@pytest.mark.parametrize("ahead", [0, 2, 4], ids="{}-ahead".format)
@pytest.mark.parametrize("stays", [False, True], ids=["anew", "stays"])
@pytest.mark.parametrize(
    "stops", [[(0, 1)], [(0, 5), (0, 9)], [(1, 3)], [(0, 2), (1, 11), (2, 1)], [(1, EPOCH)]], ids=str
)
def test_an_iterator_that_makes_two_orders_and_draws_from_one_finds_its_place(
    ahead: int, stays: bool, stops: list[tuple[int, int]]
) -> None:
    undisturbed = trained(ahead, stays and ahead > 0, [])
    assert sorted(sample for sample, _ in undisturbed) == sorted([*range(EPOCH)] * 3)
    assert trained(ahead, stays and ahead > 0, stops) == undisturbed


@pytest.mark.parametrize("ahead", [0, 2, 4], ids="{}-ahead".format)
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("done", range(1, EPOCH + 1))
def test_a_sampler_that_draws_as_the_loop_goes_is_asked_once_for_each_batch(ahead: int, epoch: int, done: int) -> None:
    undisturbed = trained(ahead, False, [], Episodes)
    assert trained(ahead, False, [(epoch, done)], Episodes) == undisturbed
    if done + 2 < EPOCH:
        assert trained(ahead, False, [(epoch, done), (epoch, done + 1)], Episodes) == undisturbed


@pytest.mark.parametrize("ahead", [0, 2], ids="{}-ahead".format)
@pytest.mark.parametrize("stops", [[(0, 1)], [(1, 3), (1, 7)], [(0, 2), (1, 11), (2, 1)]], ids=str)
def test_a_sampler_that_draws_from_a_generator_of_its_own_gives_the_same_order(
    ahead: int, stops: list[tuple[int, int]]
) -> None:
    undisturbed = trained(ahead, False, [], Buckets)
    assert trained(ahead, False, stops, Buckets) == undisturbed
    assert len({tuple(sample for sample, _ in undisturbed[k * EPOCH :][:EPOCH]) for k in range(3)}) == 3


@pytest.mark.parametrize("stops", [[(0, 1)], [(1, 3), (1, 7)], [(0, 2), (1, 11), (2, 1)]], ids=str)
def test_a_sampler_that_a_library_stands_around_is_found(stops: list[tuple[int, int]]) -> None:
    processes = itertools.count()
    undisturbed = trained(0, False, [], Buckets)
    assert trained(0, False, stops, lambda: Around(Buckets()) if next(processes) else Buckets()) == undisturbed


def collated(stops: list[int]) -> list[tuple[int, int, float]]:
    """An epoch whose library fetches each batch before it needs it."""
    random.seed(4)
    place: Any = None
    kept: dict[str, Any] = {}
    seen: list[tuple[int, int, float]] = []
    for gpus, (begin, end) in enumerate(itertools.pairwise([0, *stops, EPOCH]), start=1):
        collator = Collator(gpus)
        vars(collator).update(kept)
        loader: Any = Loader(0, False, Shuffled)
        loader.collate_fn = collator
        cursor = Cursor(lambda _loader: True, place)
        iterator = cursor.open(loader, Loader.iterator)
        fetched = [cursor.fetch(iterator, lambda order, make=collator: make(next(order)))]
        for consumed in range(begin, end):
            if consumed + 1 < EPOCH:
                fetched.append(cursor.fetch(iterator, lambda order, make=collator: make(next(order))))
            seen.append(fetched.pop(0))
        place = cursor.state(end)
        assert TEXT.encode() not in pickle.dumps(place)
        kept = {"calls": collator.calls, "draws": collator.draws}  # as variables are
        assert collator.gpus == gpus
        random.seed(99)  # the new process
    return seen


@pytest.mark.parametrize("stops", [[1], [5, 6], [3, 11]], ids=str)
def test_a_batch_fetched_before_a_stop_is_made_again_from_what_its_collator_was(stops: list[int]) -> None:
    assert collated(stops) == collated([])
