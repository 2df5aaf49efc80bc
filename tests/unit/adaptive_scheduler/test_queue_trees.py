"""Queues below queues: the limit of each binds all below it together, however deep they stand."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from adaptive_scheduler.decision import Hold
from adaptive_scheduler.engine import decide
from adaptive_scheduler.rights.standing import entitle, read_owners
from adaptive_scheduler.settings import DEFAULTS
from adaptive_scheduler.shares import QueueShare, Shares
from tests.depth import drawn
from tests.unit.adaptive_scheduler.shared_world import NOW, queues, runs, told, waits, world
from tests.unit.adaptive_scheduler.test_rights import draw, held

DEEP = queues(
    org={"limit": 6},
    lab={"parent": "org", "limit": 4},
    team={"parent": "lab"},
    gold={"parent": "team", "guaranteed": 1},
    silver={"parent": "team"},
    tin={"parent": "org"},
    other={},
)


def test_the_limit_of_every_queue_above_binds_all_below_it_together():
    """`team` has no limit of its own, and stands between."""
    jobs = [runs("g", "gold", 2), runs("t", "tin", 3), waits("w", "silver", (2,))]
    snapshot = world(12, *jobs, shares=Shares(DEEP))
    (hold,) = [one for one in decide(snapshot, NOW) if isinstance(one, Hold)]
    assert hold.explanation.sentence == (
        "w waits: queue silver is part of org, which has 5 of at most 6 GPUs, and it needs 2."
    )
    assert told(snapshot, decide(replace(snapshot, shares=Shares({**DEEP, "org": QueueShare(limit=7)})), NOW)) == [
        "w starts 2"
    ]


def test_the_nearest_limit_is_named_first():
    snapshot = world(12, runs("g", "gold", 4), runs("t", "tin", 2), waits("w", "silver"), shares=Shares(DEEP))
    (hold,) = [one for one in decide(snapshot, NOW) if isinstance(one, Hold)]
    assert "silver is part of lab, which has 4 of at most 4 GPUs" in hold.explanation.sentence


def test_no_queue_grows_beyond_a_limit_above_it():
    snapshot = world(12, runs("g", "gold", 1, (1, 2, 3, 4, 8)), runs("t", "tin", 3), shares=Shares(DEEP))
    assert told(snapshot, decide(snapshot, NOW)) == ["g 1->3"]


def test_queues_are_entitled_to_no_more_than_each_limit_above_them():
    jobs = [waits(f"w{name}", name, (8,)) for name in ("gold", "silver", "tin", "other")]
    who = entitle(snapshot := world(12, *jobs, shares=Shares(DEEP)), read_owners(snapshot, NOW))
    entitled = {name: one.entitled for name, one in who.of_queue.items()}
    assert entitled["gold"] + entitled["silver"] == pytest.approx(4.0)
    assert entitled["gold"] + entitled["silver"] + entitled["tin"] == pytest.approx(6.0)
    assert entitled["other"] == pytest.approx(6.0)


def test_a_queue_that_may_not_borrow_limits_those_below_it_only_by_its_limit():
    """It took all four: growth and entitlements counted what `org` is guaranteed itself, and nothing fitted in that."""
    terms = queues(org={"limit": 3, "borrow": False}, lab={"parent": "org"})
    snapshot = world(8, waits("w", "lab", (1, 2, 4)), waits("v", "lab", (1, 2)), shares=Shares(terms))
    assert held_below(snapshot, decide(snapshot, NOW))["org"] == 3
    who = entitle(snapshot, read_owners(snapshot, NOW))
    assert who.of_queue["lab"].entitled == pytest.approx(3.0)


def test_queues_that_are_parents_of_each_other_bind_each_other_once():
    circle = Shares(queues(a={"parent": "b", "limit": 4}, b={"parent": "a", "limit": 2}, c={"parent": "c", "limit": 1}))
    assert circle.limiting_parents("a") == ("b",)
    assert circle.limiting_parents("c") == ()
    snapshot = world(8, runs("r", "a", 2), waits("w", "a"), shares=circle)
    assert told(snapshot, decide(snapshot, NOW)) == []


def as_tree(rng, snapshot):
    """Hang the queues of a drawn world below others, some of which have limits."""
    terms = dict(snapshot.shares.queues)
    above = [f"p{i}" for i in range(rng.randint(1, 4))]
    for place, name in enumerate(above):
        parent = rng.choice(["", *above[:place]])
        limit = rng.choice((None, rng.randint(1, 10)))
        terms[name] = QueueShare(limit=limit, parent=parent, borrow=rng.random() < 0.7)
    for name in snapshot.shares.queues:
        terms[name] = replace(terms[name], parent=rng.choice(["", *above]))
    return replace(snapshot, shares=replace(snapshot.shares, queues=terms))


def held_below(snapshot, decisions=()):
    """GPUs of each queue with those of all queues below it."""
    found = Counter()
    for name, count in held(snapshot, decisions).items():
        at = name if isinstance(name, str) else ""
        while at:
            found[at] += count
            at = snapshot.shares.queue(at).parent
    return found


def test_in_any_tree_every_limit_holds_and_entitlements_keep_it():
    bound = 0
    for seed in range(drawn(150, 5000)):
        rng = random.Random(seed)
        snapshot = as_tree(rng, draw(rng))
        decisions = decide(snapshot, NOW, replace(DEFAULTS, planner=("paper", "rollout")[seed % 2]))
        before = held_below(snapshot)
        after = held_below(snapshot, decisions)
        who = entitle(snapshot, read_owners(snapshot, NOW))
        entitled = Counter()
        for name, one in who.of_queue.items():
            at = name
            while at:
                entitled[at] += one.entitled
                at = snapshot.shares.queue(at).parent
        for name, queue in snapshot.shares.queues.items():
            if queue.limit is not None:
                assert after[name] <= max(queue.limit, before[name]), seed
                assert who.values or entitled[name] <= queue.limit + 1e-6, seed
        bound += any("is part of" in one.explanation.sentence for one in decisions if isinstance(one, Hold))
    assert bound > 5
