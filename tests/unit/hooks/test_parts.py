"""How processes and GPUs share the parts into which the first start of a job cut its batches."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from reshape_hooks.adapters.parts import (
    REST,
    BatchesOfParts,
    Collated,
    Drawn,
    KindOfLoss,
    Share,
    adds_up,
    all_parts,
    halves,
    sizes,
    take_samples,
)

COUNTS = range(1, 9)


class Batches(list[list[int]]):
    sampler, batch_size, drop_last = None, 2, False


@pytest.mark.parametrize("first", COUNTS)
@pytest.mark.parametrize("now", COUNTS)
def test_all_parts_are_taken_once_and_each_process_has_some(first: int, now: int) -> None:
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for rank in range(now):
        share = Share(first, now, rank)
        assert share.parts
        for part in share.parts:
            taken[part].append(share.piece)
    assert sorted(taken) == list(range(first))
    for pieces in taken.values():
        assert sorted(pieces) == [(k, len(pieces)) for k in range(len(pieces))]


def test_a_process_draws_the_batches_of_its_parts_step_by_step() -> None:
    drawn = Batches([[n, n + 1] for n in range(0, 16, 2)])
    batches = BatchesOfParts(drawn, Share(4, 2, 1), lambda all_of_them, part: all_of_them[part::4], lambda value: value)
    assert list(batches) == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert len(batches) == 2


def test_each_part_is_collated_by_itself() -> None:
    batch = Collated(lambda samples: {"largest": max(samples)}, 2)([1, 5, 2, 3])
    assert batch[REST]
    assert all_parts(batch) == [{"largest": 5}, {"largest": 3}]


def test_parts_are_as_large_as_pytorch_cuts_them() -> None:
    assert [sizes(8, 4), sizes(7, 4), sizes(5, 4), sizes(2, 4)] == [[2, 2, 2, 2], [2, 2, 2, 1], [2, 2, 1], [1, 1]]


class FillsInPlace:
    """Every other batch; accelerate's BatchSamplerShard fills the last one in place, too, here by each part's own."""

    def __init__(self, batches: Drawn, part: int) -> None:
        self.batches, self.part = batches, part

    def __len__(self) -> int:
        return len(self.batches) // 2

    def __iter__(self) -> Iterator[list[int]]:
        if len(self.batches[-1]) < 2:
            self.batches[-1].append(self.batches[0][self.part])
        for number, batch in enumerate(self.batches):
            if number % 2 == self.part:
                yield batch


def test_no_part_sees_how_another_one_fills_the_last_batch() -> None:
    drawn = Batches([[0, 1], [2, 3], [4, 5], [6]])
    in_one = BatchesOfParts(drawn, Share(2, 1, 0), FillsInPlace, lambda value: value)
    assert list(in_one) == [[0, 1, 2, 3], [4, 5, 6, 1]]
    assert list(in_one) == [[0, 1, 2, 3], [4, 5, 6, 1]], "nor the next epoch"
    assert drawn[-1] == [6]


def mean(losses: list[float]) -> float:
    return sum(losses) / len(losses)


def root(losses: list[float]) -> float:
    return math.sqrt(mean([loss**2 for loss in losses]))


def scaled_by_the_batch(losses: list[float]) -> float:
    return sum(losses) / math.sqrt(len(losses))


def judged(of_batch: Callable[[list[float]], float], losses: list[float], rounding: float = 1e-5) -> str | None:
    smaller, larger = ([losses[sample] for sample in half] for half in halves(losses))
    counts = len(smaller), len(larger)
    return adds_up(of_batch(losses), (of_batch(smaller), of_batch(larger)), counts, rounding)


@pytest.mark.parametrize(
    ("of_batch", "kind"),
    [(mean, "mean"), (sum, "sum"), (root, ""), (scaled_by_the_batch, ""), (max, ""), (math.prod, "")],
)
def test_how_losses_add_up_is_told_by_halves_that_differ(of_batch: Callable[[list[float]], float], kind: str) -> None:
    for seed in range(200):
        drawn = random.Random(seed)
        losses = [drawn.uniform(0.5, 2.0) for _ in range(drawn.randrange(4, 9))]
        assert judged(of_batch, losses) == kind, losses


@pytest.mark.parametrize("differ", [1e-1, 1e-2, 1e-3, 1e-4, 0.0])
def test_a_root_is_never_taken_for_a_mean_however_alike_the_losses_are(differ: float) -> None:
    for seed in range(200):
        drawn = random.Random(seed)
        losses = [2 + drawn.uniform(-differ, differ) for _ in range(8)]
        assert judged(root, losses) in ("", None)
        assert judged(mean, losses) in ("mean", None)


def test_losses_that_are_no_numbers_are_not_cut_and_those_that_are_all_0_do_not_tell() -> None:
    assert judged(mean, [1.0, math.inf]) == judged(mean, [1.0, math.nan]) == ""
    assert judged(mean, [0.0, 0.0]) is None
    assert judged(sum, [0.0, 1.0]) is None, "the root of a sum of squares would be the same"


def test_batches_are_cut_once_three_have_told_the_same_and_no_more_when_one_tells_another() -> None:
    loss = KindOfLoss()
    compared, kinds = [], []
    for batch in range(1, 70):
        if loss.next_is_due():
            compared.append(batch)
            loss.heard([None, "sum" if batch == 64 else None if batch == 2 else "mean"])
        kinds.append(loss.kind)
    assert compared == [1, 2, 4, 8, 16, 32, 64]
    assert kinds == [None] * 7 + ["mean"] * 56 + [""] * 6
    assert not any(loss.next_is_due() for _ in range(200))


@pytest.mark.parametrize("told", [["mean", ""], ["mean", "sum"]])
def test_processes_that_do_not_agree_do_not_cut(told: list[str | None]) -> None:
    loss = KindOfLoss()
    loss.heard(told)
    assert loss.kind == ""


def test_taken_samples_are_copies() -> None:
    numpy = pytest.importorskip("numpy")
    batch = {"x": numpy.arange(4), "name": "all"}
    taken = take_samples(batch, [1, 3])
    taken["x"] += 10
    assert (list(taken["x"]), taken["name"], list(batch["x"])) == ([11, 13], "all", [0, 1, 2, 3])
