"""How processes and GPUs share the parts into which the first start of a job cut its batches."""

from __future__ import annotations

from collections import defaultdict

import pytest

from reshape_hooks.adapters.parts import (
    REST,
    BatchesOfParts,
    Collated,
    Share,
    adds_up,
    all_parts,
    sizes,
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


@pytest.mark.parametrize(
    ("whole", "kind"), [(2.0, "mean"), (1.0 + 4.0, "sum"), (3.0, "")], ids=["mean", "sum", "neither"]
)
def test_how_losses_add_up_is_told_by_their_values(whole: float, kind: str) -> None:
    assert adds_up(whole, [1.0, 4.0], [2, 1]) == kind
