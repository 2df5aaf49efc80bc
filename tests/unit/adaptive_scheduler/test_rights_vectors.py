"""The vectors of the rights: who gets GPUs, and from whom. Several are those of KAI-Scheduler and Kueue."""

from __future__ import annotations

import pytest

from adaptive_scheduler.engine import decide
from tests.unit.adaptive_scheduler.shared_world import NOW, runs, shares, told, used, waits, world


def singles(name, count):
    return [runs(f"{name}{i}", name, 1) for i in range(1, count + 1)]


THREE = shares(a=(3, 1), b=(3, 1), c=(3, 1))
BOTH_BORROW = [
    runs("a1", "a", 1), runs("a2", "a", 1), runs("a3", "a", 6), runs("b1", "b", 1), runs("b2", "b", 1),
    runs("b3", "b", 6),
]  # fmt: skip
ALIKE = shares(q0=(1, 1), q1=(1, 1))

VECTORS = {
    "1: a rigid borrower is suspended for a guarantee": (
        world(2, runs("r0", "q0", 2), waits("p", "q1"), shares=ALIKE),
        ["r0 suspended for p"],
    ),
    "2: one that can shrink shrinks instead": (
        world(2, runs("r0", "q0", 2, (1, 2)), waits("p", "q1"), shares=ALIKE),
        ["p starts 1 (r0 2->1)"],
    ),
    "3: the one that suffices is suspended": (
        world(
            {"n0": 2, "n1": 2}, runs("r0", "q0", 1, node="n0"), runs("r1", "q1", 2, node="n1"),
            runs("r2", "q1", 1, node="n0"), waits("p", "q0"), shares=shares(q0=(2, 2), q1=(2, 2)),
        ),
        ["r2 suspended for p"],
    ),
    "4: nothing moves for a part of a GPU": (
        world(
            {"n0": 2, "n1": 2}, runs("r0", "q0", 1, node="n1"), runs("r1", "q0", 2, node="n0"),
            runs("r2", "q1", 1, node="n1"), waits("p", "q1"), shares=shares(q0=(2, 2), q1=(1, 1)),
        ),
        [],
    ),
    "5: of two claims of one queue the first is served": (
        world(
            8, runs("r0", "q0", 1), runs("r1", "q0", 3), runs("r2", "q0", 4), waits("p0", "q1", (4,)),
            waits("p1", "q1", (4,), submit_s=9001.0), shares=ALIKE,
        ),
        ["r2 suspended for p0"],
    ),
    "6: nobody is emptied who is within its share": (
        world(7, runs("r0", "q0", 4), runs("r1", "q1", 3), waits("p", "q0"), shares=shares(q0=(2, 2), q1=(1, 1))),
        [],
    ),
    "7: no claim that would make the claimant the one above": (
        world(4, runs("r0", "d1", 3), runs("r1", "d2", 1), waits("p", "d2", (2,)), shares=shares(d1=(2, 1), d2=(2, 1))),
        [],
    ),
    "8: the fewest GPUs that help are taken": (
        world(8, runs("r0", "q0", 4), runs("r1", "q0", 1), waits("p", "q1", (4,)), shares=ALIKE),
        ["r1 suspended for p"],
    ),
    "8: nothing is taken where a smaller count fits": (
        world(8, runs("r0", "q0", 4), runs("r1", "q0", 1), waits("p", "q1", (2, 4)), shares=ALIKE),
        ["p starts 2"],
    ),
    "9: in balance nothing moves": (
        world(
            {"n0": 3, "n1": 3}, runs("r0", "q0", 2, node="n0"), runs("r1", "q0", 1, node="n1"),
            runs("r2", "q1", 2, node="n1"), runs("r3", "q1", 1, node="n0"), waits("p", "q1"), shares=ALIKE,
        ),
        [],
    ),
    "10: an elastic job gives only what it has above its share": (
        world(3, runs("r", "q0", 2, (1, 2)), waits("p", "q1", (2, 3)), shares=shares(q0=(0, 1), q1=(1, 2))),
        ["p starts 2 (r 2->1)"],
    ),
    "11: a guarantee is taken back from who borrows": (
        world(9, *singles("a", 3), *singles("b", 5), *singles("c", 1), waits("p", "c"), shares=THREE),
        ["b1 suspended for p"],
    ),
    "11: so is a part of what its owner does not want of it": (
        world(9, *singles("a", 3), *singles("b", 5), *singles("c", 1), waits("p", "a"), shares=THREE),
        ["b1 suspended for p"],
    ),
    "13: no claim that would switch the imbalance": (
        world(9, *singles("a", 3), *singles("b", 5), waits("p", "a", (2,)), shares=THREE),
        [],
    ),
    "12: small jobs of both borrowers, not the large one of either": (
        world(18, *BOTH_BORROW, waits("p", "c", (4,)), shares=shares(a=(6, 1), b=(6, 1), c=(6, 1))),
        ["a1 suspended for p", "b1 suspended for p"],
    ),
    "14: a turn of the whole machine": (
        world(
            16, runs("a1", "a", 16), waits("p", "b", (16,)), shares=shares(a=(0, 1), b=(0, 1)),
            used=used(a=480_000.0),
        ),
        ["a1 suspended for p"],
    ),
    "14: no turn between those who used alike": (
        world(
            16, runs("a1", "a", 16), waits("p", "b", (16,)), shares=shares(a=(0, 1), b=(0, 1)),
            used=used(a=480_000.0, b=480_000.0),
        ),
        [],
    ),
    "15: two users share a machine without a shares file": (
        world(4, runs("a1", "/A", 4, (1, 2, 4)), waits("b1", "/B", (1, 2, 4))),
        ["b1 starts 2 (a1 4->2)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name):
    snapshot, expected = VECTORS[name]
    assert told(snapshot, decide(snapshot, NOW)) == expected
