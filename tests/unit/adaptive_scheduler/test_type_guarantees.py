"""Guarantees of single GPU types: who gets GPUs of the type back, from whom, and what nobody else gets."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from adaptive_scheduler.decision import Hold
from adaptive_scheduler.engine import decide
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.rights.standing import entitle, read_owners
from adaptive_scheduler.settings import DEFAULTS
from adaptive_scheduler.shares import JobOwner
from tests.depth import drawn
from tests.unit.adaptive_scheduler.shared_world import NOW, runs, shares, told, waits, world
from tests.unit.adaptive_scheduler.test_rights import draw, owner_of, taken

VALUES = {"V100": 1.0, "K80": 0.25}
TWO_V100 = {"guaranteed_types": {"V100": 2}}


def mixed(*jobs, fast=2, slow=16, **terms):
    """Fast GPUs on node n, a quarter as fast ones on node k; queue a is guaranteed two of the fast ones."""
    given = shares(**{"a": TWO_V100, "b": {}, **terms})
    return world({"n": fast, "k": slow}, *jobs, shares=given, slow=["k"])


def said(snapshot):
    return told(snapshot, decide(snapshot, NOW))


ALL_SLOW = [runs("a1", "a", 8, (8,), node="k"), runs("a2", "a", 8, (8,), node="k")]


def test_slow_gpus_that_a_queue_has_do_not_count_against_its_guarantee_of_fast_ones():
    """With 16 slow GPUs, four standard ones, queue a has all that its share is."""
    job = waits("p", "a", gpu_type="V100")
    lender = runs("b1", "b", 2, (1, 2))
    assert said(mixed(*ALL_SLOW, lender, job)) == ["p starts 1 (b1 2->1)"]
    assert said(mixed(*ALL_SLOW, lender, job, a={"guaranteed": 2})) == []


def test_a_whole_job_is_suspended_for_it_if_none_can_shrink():
    job = waits("p", "a", gpu_type="V100")
    assert said(mixed(*ALL_SLOW, runs("b1", "b", 2), job)) == ["b1 suspended for p"]
    assert said(mixed(*ALL_SLOW, runs("b1", "b", 2, rigid=True), job)) == []
    assert said(mixed(*ALL_SLOW, runs("b1", "b", 2, preemption="never"), job)) == []


def test_several_jobs_shrink_for_it():
    lenders = [runs("b1", "b", 2, (1, 2)), runs("b2", "b", 2, (1, 2))]
    job = waits("p", "a", (2,), gpu_type="V100")
    assert said(mixed(*ALL_SLOW, *lenders, job, fast=4)) == ["p starts 2 (b1 2->1, b2 2->1)"]


def test_what_a_queue_has_within_its_guarantee_nobody_gets():
    """Queue a has more than its share, but of slow GPUs: those it gives up."""
    holds = [runs("a0", "a", 2, (1, 2)), runs("a1", "a", 8, (1, 2, 4, 8), node="k"), ALL_SLOW[1]]
    assert said(mixed(*holds, waits("p", "b", gpu_type="V100"))) == []
    assert said(mixed(*holds, waits("p", "b", (4,), gpu_type="K80"))) == ["p starts 4 (a1 8->4)"]
    without = mixed(*holds, waits("p", "b", gpu_type="V100"), a={})
    assert said(without) == ["p starts 1 (a0 2->1)"]


def test_of_two_guarantees_of_a_type_neither_gives_to_the_other():
    holds = [*ALL_SLOW, runs("b1", "b", 2, (1, 2))]
    job = waits("p", "a", gpu_type="V100")
    assert said(mixed(*holds, job, b=TWO_V100)) == []
    assert said(mixed(*holds, job, b={"guaranteed_types": {"V100": 1}})) == ["p starts 1 (b1 2->1)"]


def test_a_guarantee_of_a_type_takes_nothing_of_a_guarantee_of_any_type():
    """Queue b is guaranteed so many GPUs of whatever type, and has fast ones."""
    job = waits("p", "a", gpu_type="V100")
    holds = [*ALL_SLOW, runs("b1", "b", 2, (1, 2))]
    assert said(mixed(*holds, job, b={"guaranteed": 2})) == []
    assert said(mixed(*holds, job, b={"guaranteed": 1})) == ["p starts 1 (b1 2->1)"]


def test_nor_by_several_shrinks_or_a_suspension():
    job = waits("p", "a", (2,), gpu_type="V100")
    small = [runs(name, "b", 2, (1, 2), preemption="shrink") for name in ("b1", "b2")]
    assert said(mixed(*ALL_SLOW, *small, job, fast=4, b={"guaranteed": 3})) == []
    assert said(mixed(*ALL_SLOW, *small, job, fast=4, b={"guaranteed": 2})) == ["p starts 2 (b1 2->1, b2 2->1)"]
    whole = [runs("b1", "b", 2), runs("b2", "b", 2)]
    assert said(mixed(*ALL_SLOW, *whole, job, fast=4, b={"guaranteed": 4})) == []
    assert said(mixed(*ALL_SLOW, *whole, job, fast=4, b={"guaranteed": 2})) == ["b1 suspended for p"]


def test_it_is_no_guarantee_of_more_or_for_jobs_that_ask_for_another_type():
    lender = runs("b1", "b", 2, (1, 2))
    assert said(mixed(*ALL_SLOW, lender, waits("p", "a", (3,), gpu_type="V100"))) == []
    snapshot = mixed(*ALL_SLOW, lender, waits("p", "a", gpu_type="K80"))
    assert Rights(snapshot, NOW, DEFAULTS).claim(snapshot.job["p"]).types == ()
    assert said(snapshot) == []
    either = mixed(*ALL_SLOW, lender, waits("p", "a"))
    assert said(either) == ["p starts 1 (b1 2->1)"]


def test_who_waits_for_a_guarantee_comes_before_all_others():
    """The next one by levels alone would be b: it has nothing, and a has more than its share."""
    first = [*ALL_SLOW, waits("q", "b", gpu_type="V100", submit_s=1.0), waits("p", "a", gpu_type="V100")]
    assert said(mixed(*first, fast=1)) == ["p starts 1"]
    assert said(mixed(*first, fast=1, a={"guaranteed": 1})) == ["q starts 1"]


def test_what_is_being_freed_for_a_guarantee_is_claimed_once():
    jobs = [*ALL_SLOW, runs("b1", "b", 1), runs("b2", "b", 1)]
    both = [waits("p", "a", gpu_type="V100", priority=1), waits("p2", "a", (2,), gpu_type="V100", submit_s=9001.0)]
    assert said(mixed(*jobs, *both)) == ["b1 suspended for p"]
    gives = replace(jobs[2], num_gpus=0, node=None, busy=True, yields_to=("p",))
    assert said(mixed(*ALL_SLOW, gives, jobs[3], *both)) == ["p starts 1"], "one is idle; two are not missing"


def test_fast_gpus_that_a_user_has_reserved_are_beside_the_guarantee():
    kept = Reservation("r", "n", 2, 0.0, NOW + 9999, "x")
    holds = [*ALL_SLOW, runs("a0", "a/x", 2), runs("b1", "b", 2, (1, 2))]
    snapshot = replace(mixed(*holds, waits("p", "a/y", gpu_type="V100"), fast=4), reservations=(kept,))
    assert said(snapshot) == ["p starts 1 (b1 2->1)"]
    assert said(replace(snapshot, reservations=())) == []


def test_a_queue_is_entitled_to_no_more_than_its_jobs_can_use_of_the_type():
    def entitled(job):
        snapshot = mixed(job, waits("q", "b", (16,), gpu_type="K80"), waits("q2", "b", (2,), gpu_type="V100"))
        return entitle(snapshot, read_owners(snapshot, NOW)).of_queue["a"].entitled

    assert entitled(waits("p", "a", (2,), gpu_type="V100")) == 2.0
    assert entitled(waits("p", "a", (1,), gpu_type="V100")) == 1.0
    assert entitled(waits("p", "a", (2,), gpu_type="K80")) == 0.5


def test_who_waits_reads_what_is_guaranteed_of_which_type():
    snapshot = mixed(*ALL_SLOW, runs("b1", "b", 2, rigid=True), waits("p", "a", gpu_type="V100"))
    (hold,) = [one for one in decide(snapshot, NOW) if isinstance(one, Hold)]
    assert "queue a (guaranteed 2 V100, weight 1) holds 4 of 4" in hold.explanation.sentence


def typed(rng):
    """A drawn world of the rights, of which guarantees are of single types."""
    snapshot = draw(rng)
    left = Counter({name: sum(len(n.gpus) for n in snapshot.nodes if n.gpu_type == name) for name in ("V100", "K80")})
    terms = {}
    for name, queue in snapshot.shares.queues.items():
        gpu_type = rng.choice(("V100", "V100", "K80"))
        count = min(left[gpu_type], queue.guaranteed)
        left[gpu_type] -= count
        if rng.random() < 0.3:
            terms[name] = replace(queue, guaranteed=queue.guaranteed)  # of any type, as it was drawn
        else:
            terms[name] = replace(queue, guaranteed=0, guaranteed_types={gpu_type: count} if count else {})
    jobs = tuple(replace(job, gpu_type=rng.choice((None, None, "V100"))) for job in snapshot.jobs if job.node is None)
    placed = tuple(job for job in snapshot.jobs if job.node is not None)
    return replace(snapshot, jobs=(*placed, *jobs), shares=replace(snapshot.shares, queues=terms))


def held_by_type(snapshot):
    found = Counter()
    for job in snapshot.placed:
        found[owner_of(snapshot, job).queue, snapshot.gpu_types[job.node]] += job.num_gpus
    return found


def test_on_any_world_a_queue_keeps_its_guarantee_and_no_job_is_stopped_that_must_not_be():
    claimed = 0
    for seed in range(drawn(200, 4000)):
        snapshot = typed(random.Random(seed))
        before = held_by_type(snapshot)
        decisions = decide(snapshot, NOW)
        lost = Counter()
        gone = Counter()
        for victim, keeps, job in taken(snapshot, decisions):
            owner = owner_of(snapshot, victim)
            claimant = owner_of(snapshot, job)
            assert not victim.rigid, seed
            if owner == claimant:
                continue
            assert victim.preemption != "never", seed
            assert keeps or victim.preemption == "any", seed
            gpu_type = snapshot.gpu_types[victim.node]
            if owner.queue != claimant.queue and keeps:
                lost[owner.queue, gpu_type] += victim.num_gpus - keeps
                gone[owner.queue] += (victim.num_gpus - keeps) * VALUES[gpu_type]
            claimed += gpu_type in Rights(snapshot, NOW, DEFAULTS).claim(job).types
        for (queue, gpu_type), count in lost.items():
            wanted = sum(max(j.optional) for j in snapshot.jobs if owner_of(snapshot, j).queue == queue)
            most = snapshot.shares.queue(queue).guaranteed_types.get(gpu_type, 0)
            assert before[queue, gpu_type] - count >= min(before[queue, gpu_type], most, wanted), seed
        who = entitle(snapshot, read_owners(snapshot, NOW))
        for queue, units in gone.items():
            had = sum(count * VALUES[gpu_type] for (name, gpu_type), count in before.items() if name == queue)
            # Less than it is guaranteed where there are too few GPUs for all guarantees.
            due = min(snapshot.shares.queue(queue).guaranteed, who.of_queue[queue].whole)
            assert had - units >= min(had, due) - 1e-9 or not who.values, seed
        assert decide(replace(snapshot), NOW) == decisions, seed
    assert claimed > 5


def test_without_guarantees_of_types_nothing_is_counted_by_type():
    snapshot = mixed(*ALL_SLOW, a={"guaranteed": 2})
    assert not read_owners(snapshot, NOW).guarantees
    assert read_owners(mixed(*ALL_SLOW), NOW).guarantees.units_of(JobOwner("a", ""), "K80") == 0.0
