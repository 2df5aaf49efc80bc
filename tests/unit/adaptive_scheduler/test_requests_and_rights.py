"""A count that a user requests for a job is no right: beyond the owner's share others get their GPUs back."""

from __future__ import annotations

import random
from dataclasses import replace

from adaptive_scheduler import engine
from adaptive_scheduler.decision import Hold, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.rights.standing import entitle, read_owners
from adaptive_scheduler.shares import Shares
from adaptive_scheduler.snapshot import ClusterSnapshot
from tests.depth import drawn
from tests.unit.adaptive_scheduler.shared_world import NOW, runs, shares, told, waits, world
from tests.unit.adaptive_scheduler.test_rights import draw, owner_of, taken

HOLDS_ALL = {"num_gpus": 4, "optional": (1, 2, 4), "wanted": 4}
WAITS = waits("b", "/bob", (1, 2, 4))


def said(snapshot):
    return told(snapshot, decide(snapshot, NOW))


def test_who_asked_for_all_gpus_gives_those_back_that_others_are_entitled_to():
    assert said(world(4, runs("a", "/ada", **HOLDS_ALL), WAITS, shares=Shares())) == ["b starts 2 (a 4->2)"]


def test_of_several_such_jobs_each_gives_what_is_too_much():
    both = [runs(name, "/ada", 2, (1, 2), wanted=2) for name in ("a1", "a2")]
    snapshot = world(4, *both, waits("b", "/bob", (2,)), shares=Shares())
    assert said(snapshot) == ["b starts 2 (a1 2->1, a2 2->1)"]


def test_it_is_suspended_if_it_cannot_shrink():
    jobs = [runs("a1", "/ada", 2, wanted=2), runs("a2", "/ada", 2, wanted=2)]
    assert said(world(4, *jobs, waits("b", "/bob", (2,)), shares=shares())) == ["a1 suspended for b"]


def test_within_the_share_the_requested_count_stays():
    jobs = [runs("a", "/ada", 2, (1, 2, 4), wanted=2), runs("b0", "/bob", 2, (1, 2), rigid=True)]
    assert said(world(4, *jobs, WAITS, shares=shares())) == []


def test_jobs_of_the_same_owner_do_not_overrule_it():
    """ada has asked for three on a; her own next job waits for what bob leaves."""
    own = waits("a2", "/ada", (1,), submit_s=1.0, priority=9)
    decisions = decide(
        snapshot := world(4, runs("a", "/ada", 4, (1, 2, 3, 4), wanted=4), own, WAITS, shares=Shares()), NOW
    )
    victims = [one.job for one in decisions if isinstance(one, Start) and one.victims]
    assert victims == ["b"], told(snapshot, decisions)
    assert said(world(4, runs("a", "/ada", **HOLDS_ALL), own, shares=Shares())) == []


def test_nobody_gets_more_by_a_request_while_others_wait():
    """Two are idle, of which bob is to have some: ada's request would take both first."""
    jobs = [runs("a", "/ada", 2, (1, 2, 4), wanted=4), WAITS]
    decisions = decide(snapshot := world(4, *jobs, shares=Shares()), NOW)
    assert told(snapshot, decisions) == ["b starts 2"]
    (hold,) = [one for one in decisions if isinstance(one, Hold)]
    assert hold.explanation.sentence == (
        "a keeps 2 GPUs, although 4 were requested: jobs of others wait for GPUs. "
        "ada holds 2 GPUs and is entitled to 2 now."
    )
    assert said(world(4, jobs[0], shares=Shares())) == ["a 2->4"]


def test_of_a_job_that_gives_gpus_it_is_not_said_that_it_keeps_them():
    jobs = [runs("a", "/ada", 3, (1, 2, 3, 4), wanted=4), waits("b", "/bob", (2,))]
    decisions = decide(snapshot := world(4, *jobs, shares=Shares()), NOW)
    assert told(snapshot, decisions) == ["b starts 2 (a 3->2)"]
    assert [one.job for one in decisions] == ["b"]


def test_a_job_that_cannot_resume_keeps_what_was_requested():
    assert said(world(4, runs("a", "/ada", 4, (1, 2, 4), wanted=4, rigid=True), WAITS, shares=shares())) == []


def test_many_requests_that_are_not_met_do_not_read_all_jobs_again_each(monkeypatch):
    read = list[ClusterSnapshot]()

    class CountedRights(Rights):
        def __init__(self, snapshot, now, settings):
            read.append(snapshot)
            super().__init__(snapshot, now, settings)

    monkeypatch.setattr(engine, "Rights", CountedRights)
    asked = [runs(f"a{i}", "/ada", 1, (1, 2), wanted=2) for i in range(8)]
    decisions = decide(world(10, *asked, runs("b0", "/bob", 2, rigid=True), waits("b", "/bob", (2,))), NOW)
    assert sum("were requested" in one.explanation.sentence for one in decisions if isinstance(one, Hold)) >= 6
    assert len(read) == 2  # for the requests, and for the queue


def test_in_any_world_a_request_takes_nothing_of_a_share_and_none_is_taken_below_one():
    overruled = 0
    for seed in range(drawn(200, 4000)):
        rng = random.Random(seed)
        drawn_world = draw(rng)
        jobs = (
            replace(job, wanted=job.num_gpus) if job.num_gpus and rng.random() < 0.7 else job
            for job in drawn_world.jobs
        )
        snapshot = replace(drawn_world, jobs=tuple(jobs))
        who = entitle(snapshot, read_owners(snapshot, NOW))
        lost: dict[object, float] = {}
        for victim, keeps, job in taken(snapshot, decide(snapshot, NOW)):
            owner = owner_of(snapshot, victim)
            assert not victim.rigid, seed
            if victim.wanted is not None:
                assert owner != owner_of(snapshot, job), seed
                overruled += 1
            if keeps and owner != owner_of(snapshot, job):
                lost[owner] = lost.get(owner, 0) + victim.num_gpus - keeps
        for owner, count in lost.items():
            assert who.values or who.held[owner] - count >= min(who.held[owner], who.of_owner[owner].whole), seed
    assert overruled > 5
