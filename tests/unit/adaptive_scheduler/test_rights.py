"""Rights: what several owners may have of each other's GPUs, on drawn worlds and in single cases."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from adaptive_scheduler.decision import Hold, Move, Requeue, Reshape, Start
from adaptive_scheduler.engine import decide
from adaptive_scheduler.policies.elastic import algorithms
from adaptive_scheduler.policies.elastic.shrink import incoming_candidates
from adaptive_scheduler.rights.rights import Rights
from adaptive_scheduler.rights.standing import entitle, read_owners
from adaptive_scheduler.settings import DEFAULTS
from adaptive_scheduler.shares import DEFAULT_QUEUE, JobOwner, QueueShare, Shares
from tests.depth import drawn
from tests.unit.adaptive_scheduler import any_world
from tests.unit.adaptive_scheduler.shared_world import NOW, queues, runs, shares, told, waits, world
from tests.unit.adaptive_scheduler.test_any_cluster import draw as any_cluster

WORLDS = drawn(500, 5000)
COUNTS = ((1,), (2,), (4,), (1, 2), (1, 2), (1, 2, 4), (2, 4), (1, 2, 4, 8))


def draw(rng):
    """One to three queues with guarantees and limits, two users each, some jobs that cannot resume."""
    nodes = {f"n{i}": rng.choice((2, 4, 8, 8)) for i in range(rng.randint(1, 3))}
    names = "abc"[: rng.randint(1, 3)]
    total = sum(nodes.values())
    terms, left = {}, total
    for name in names:
        guaranteed = rng.randint(0, min(4, left))
        left -= guaranteed
        limit = rng.choice((None, None, None, guaranteed + rng.randint(0, 3)))
        terms[name] = QueueShare(
            rng.choice((1.0, 1.0, 2.0)), guaranteed, limit, borrow=rng.random() < 0.9,
            user_limit=rng.choice((None, None, None, 3)),
        )  # fmt: skip
    jobs = []
    for name, idle in nodes.items():
        while idle and rng.random() < 0.85:
            count = rng.choice([n for n in (1, 2, 2, 4) if n <= idle])
            idle -= count
            counts = tuple(sorted({count, *rng.choice(COUNTS)}))
            jobs.append(draw_job(rng, runs, f"r{len(jobs)}", names, count, counts, node=name, rigid=rng.random() < 0.2))
    for i in range(rng.randint(0, 5)):
        jobs.append(draw_job(rng, waits, f"w{i}", names, rng.choice(COUNTS), submit_s=rng.choice((9000.0, 9900.0))))
    use = {JobOwner(q, u): rng.choice((0.0, 1e4, 3e5)) for q in names for u in "xy"}
    given = Shares(terms, patience_s=rng.choice((0.0, 600.0)), min_run_s=rng.choice((0.0, 600.0)))
    slow = [name for name in nodes if rng.random() < 0.15]
    return world(nodes, *jobs, shares=given, used=use, slow=slow)


def draw_crowd(rng):
    """Jobs of one user that could each give a little, and others that want more than one of them can give."""
    jobs = [runs(f"r{i}", "a/x", 2, (1, 2)) for i in range(4)]
    jobs += [draw_job(rng, waits, f"w{i}", "ab", rng.choice(((2,), (3, 4), (4,)))) for i in range(rng.randint(1, 3))]
    use = {JobOwner(q, u): rng.choice((0.0, 1e4)) for q in "ab" for u in "xy"}
    return world({"n": 8}, *jobs, shares=shares(a=(rng.randint(0, 3), 1), b=(rng.randint(0, 3), 1)), used=use)


def draw_job(rng, make, name, names, *given, **more):
    preemption = rng.choice(("any", "any", "any", "shrink", "never"))
    fields = {"priority": rng.choice((0, 0, 5)), "preemption": preemption, **more}
    if make is runs:
        fields |= {"started_s": rng.choice((None, 0.0, NOW - 60)), "cooling_until": rng.choice((0.0, 0.0, NOW + 60))}
    return make(name, f"{rng.choice(names)}/{rng.choice('xy')}", *given, **fields)


@pytest.fixture(scope="module", params=["paper", "rollout"])
def decided(request):
    """Drawn worlds with what was decided on each, by the paper's rules and by the planner."""
    found, settings = [], replace(DEFAULTS, planner=request.param)
    for seed in range(WORLDS):
        rng = random.Random(seed)
        snapshot = draw_crowd(rng) if rng.random() < 0.1 else draw(rng)
        found.append((snapshot, decide(snapshot, NOW, settings)))
    return found


def taken(snapshot, decisions):
    """Yield (victim, what it keeps, for whom) of all GPUs that one job gives to another one."""
    for one in decisions:
        if isinstance(one, Start):
            for victim in one.victims:
                yield snapshot.job[victim.job], victim.num_gpus, snapshot.job[one.job]
        elif isinstance(one, Requeue):
            for name in one.yields_to:
                yield snapshot.job[one.job], 0, snapshot.job[name]


def owner_of(snapshot, job):
    return snapshot.shares.owner_of(job.queue, job.owner)


def held(snapshot, decisions=()):
    """GPUs by owner and by queue, once these decisions are carried out."""
    counts = {job.id: job.num_gpus for job in snapshot.jobs}
    for one in decisions:
        if isinstance(one, Start | Reshape | Move):
            counts[one.job] = one.num_gpus
        if isinstance(one, Requeue):
            counts[one.job] = 0
        for victim in one.victims if isinstance(one, Start) else ():
            counts[victim.job] = victim.num_gpus
    found = Counter()
    for job in snapshot.jobs:
        owner = owner_of(snapshot, job)
        found[owner] += counts[job.id]
        found[owner.queue] += counts[job.id]
    return found


def test_the_worlds_come_to_all_that_is_promised_about(decided):
    kinds = Counter(
        "several shrink" if isinstance(d, Start) and d.more_victims else
        "one shrinks" if isinstance(d, Start) and d.victims else d.explanation.algorithm
        for _, decisions in decided for d in decisions
    )  # fmt: skip
    expected = (
        "several shrink", "one shrinks", "elastic.running", "rights.suspend", "rights.limit", "rights.borrow",
        "rights.user_limit", "rights.share",
    )  # fmt: skip
    assert not [kind for kind in expected if kinds[kind] < 5], kinds


def test_entitlements_sum_to_all_that_is_wanted_and_there(decided):
    for snapshot, _ in decided:
        who = entitle(snapshot, read_owners(snapshot, NOW))
        wanted = min(who.capacity, sum(one.demand for one in who.of_queue.values()))
        assert abs(sum(one.entitled for one in who.of_queue.values()) - wanted) < 1e-6
        assert who.values or sum(one.whole for one in who.of_queue.values()) == wanted
        for queue, its in who.of_queue.items():
            users = [one for owner, one in who.of_owner.items() if owner.queue == queue]
            assert abs(sum(one.entitled for one in users) - its.entitled) < 1e-6
            assert who.values or sum(one.whole for one in users) == its.whole


def test_limits_hold_growth_included(decided):
    for snapshot, decisions in decided:
        before, after = held(snapshot), held(snapshot, decisions)
        for owner in {owner_of(snapshot, job) for job in snapshot.jobs}:
            queue = snapshot.shares.queue(owner.queue)
            assert after[owner.queue] <= max(queue.most, before[owner.queue])
            assert after[owner] <= max(queue.user_limit or 99, before[owner])


def test_nobody_is_stopped_for_another_who_cannot_resume_or_is_never_to_give(decided):
    for snapshot, decisions in decided:
        for victim, keeps, job in taken(snapshot, decisions):
            assert not victim.rigid
            if owner_of(snapshot, victim) != owner_of(snapshot, job):
                assert victim.preemption != "never"
                assert keeps or victim.preemption == "any"


def test_nobody_is_suspended_within_its_least_run_or_its_cool_down(decided):
    for snapshot, decisions in decided:
        for victim, keeps, _ in taken(snapshot, decisions):
            if not keeps:
                assert victim.started_s is None or NOW - victim.started_s >= snapshot.shares.min_run_s
                assert victim.cooling_until <= NOW


def test_no_shrink_takes_an_owner_below_what_it_is_entitled_to(decided):
    for snapshot, decisions in decided:
        who = entitle(snapshot, read_owners(snapshot, NOW))
        lost = Counter()
        for victim, keeps, job in taken(snapshot, decisions):
            owner = owner_of(snapshot, victim)
            if keeps and owner != owner_of(snapshot, job):
                lost[owner] += victim.num_gpus - keeps
        before = held(snapshot)
        # A job of the owner may start or grow on what was there before: what others took is what counts.
        gained = Counter(
            {owner_of(snapshot, snapshot.job[d.job]): d.num_gpus for d in decisions if isinstance(d, Start)}
        )
        for owner, count in lost.items():
            least = min(before[owner], who.of_owner[owner].whole)
            assert who.values or before[owner] + gained[owner] - count >= least


def test_a_suspension_takes_a_queue_below_its_share_only_for_a_guarantee_or_a_turn(decided):
    for snapshot, decisions in decided:
        who = entitle(snapshot, read_owners(snapshot, NOW))
        before = held(snapshot)
        for one in decisions:
            if not isinstance(one, Requeue) or one.explanation.algorithm != "rights.suspend":
                continue
            victim, job = snapshot.job[one.job], snapshot.job[one.yields_to[0]]
            owner, claimant = owner_of(snapshot, victim), owner_of(snapshot, job)
            its, queue = who.of_owner[owner], who.of_queue[owner.queue]
            group = owner if owner.queue == claimant.queue else owner.queue
            within = before[group] - victim.num_gpus >= (its if group == owner else queue).whole
            guaranteed = snapshot.shares.queue(claimant.queue).guaranteed
            for_guarantee = (
                before[claimant.queue] + min(job.optional) <= guaranteed
                and before[owner.queue] > snapshot.shares.queue(owner.queue).guaranteed
            )
            turn = before[claimant] == 0
            assert within or for_guarantee or turn or who.values  # which count GPUs by their speed


def test_decisions_are_the_same_in_every_process(decided):
    for snapshot, _ in decided[:80]:
        assert decide(replace(snapshot), NOW) == decide(snapshot, NOW)


def bare(decisions):
    """Decisions without their reasons."""
    return [(type(one), one.job) if isinstance(one, Hold) else replace(one, explanation=None) for one in decisions]


@pytest.mark.parametrize("seeds", [range(drawn(150, 1000))])
def test_with_one_owner_rights_change_no_decision(seeds):
    """As the limit is out of reach, rights bind without a reason to."""
    unreachable = Shares({DEFAULT_QUEUE: QueueShare(limit=10_000)})
    for seed in seeds:
        settings = replace(DEFAULTS, reserve_after_s=(86_400.0, 500.0)[seed % 2])  # some have aged
        for snapshot in (any_world.snapshot(random.Random(seed)), any_cluster(random.Random(seed))):
            bound = replace(snapshot, shares=unreachable)
            if read_owners(snapshot, NOW).owners:
                assert Rights(bound, NOW, DEFAULTS).binds
            ours, plain = decide(bound, any_world.NOW, settings), decide(snapshot, any_world.NOW, settings)
            assert bare(ours) == bare(plain), seed


def test_without_a_shares_file_one_user_alone_is_bound_by_nothing():
    for seed in range(drawn(200, 1000)):
        snapshot = any_cluster(random.Random(seed))
        named = replace(snapshot, jobs=tuple(replace(job, owner="ada") for job in snapshot.jobs))
        assert decide(named, any_world.NOW) == decide(snapshot, any_world.NOW)
        assert not Rights(named, NOW, DEFAULTS).binds


# single cases


def said(snapshot, now=NOW):
    """What is decided, in short."""
    return told(snapshot, decide(snapshot, now))


def test_users_share_without_any_file_and_the_reason_says_who_has_what():
    snapshot = world(4, runs("a1", "/ada", 4, (1, 2, 4)), waits("b1", "/bob", (1, 2, 4)))
    (start,) = [one for one in decide(snapshot, NOW) if isinstance(one, Start)]
    assert (start.num_gpus, start.victim, start.victim_num_gpus) == (2, "a1", 2)
    assert "all of them from a1, which goes from 4 to 2" in start.explanation.sentence
    assert start.explanation.sentence.endswith(
        "bob holds 0 GPUs and is entitled to 2 now. ada holds 4 GPUs and is entitled to 2 now."
    )


def test_a_stream_of_short_jobs_does_not_keep_another_user_waiting():
    short = [waits(f"a{i}", "/ada", iterations_left=100.0, submit_s=NOW) for i in range(8)]
    long = waits("b", "/bob", iterations_left=9e5, submit_s=NOW)
    snapshot = world(2, *short, long)
    assert said(snapshot) == ["a0 starts 1", "b starts 1"]


def test_who_used_less_lately_goes_first():
    jobs = [waits("a", "/ada", iterations_left=100.0), waits("b", "/bob", iterations_left=9e5)]
    use = {JobOwner(DEFAULT_QUEUE, "ada"): 1e5}
    assert said(world(1, *jobs)) == ["a starts 1"]
    assert said(world(1, *jobs, used=use)) == ["b starts 1"]


def test_priority_orders_the_jobs_of_one_owner_only():
    jobs = [waits("a0", "/ada"), waits("a1", "/ada", priority=1), waits("b", "/bob", iterations_left=9e6)]
    snapshot = world(2, *jobs)
    assert said(snapshot) == ["a1 starts 1", "b starts 1"]


def test_of_two_owners_who_have_as_much_none_goes_first_by_priority():
    jobs = [waits("a", "/ada", priority=1_000_000), waits("b", "/bob", submit_s=8000.0)]
    assert said(world(1, *jobs)) == ["b starts 1"]
    assert said(world(1, jobs[0], replace(jobs[1], owner="ada"))) == ["a starts 1"]


def test_several_jobs_shrink_for_one_claim():
    jobs = [runs(f"a{i}", "/ada", 2, (1, 2)) for i in range(4)]
    snapshot = world(8, *jobs, waits("b", "/bob", (4,)))
    (start,) = [one for one in decide(snapshot, NOW) if isinstance(one, Start)]
    assert [(v.job, v.num_gpus) for v in start.victims] == [(f"a{i}", 1) for i in range(4)]
    assert start.explanation.sentence.startswith("b starts on 4 GPUs of n: a0 goes from 2 to 1 and a1 goes from 2 to 1")


def test_a_job_is_suspended_only_once_one_has_waited_long_enough():
    jobs = [runs("a", "/ada", 2), runs("a2", "/ada", 2), waits("b", "/bob", (2,), submit_s=NOW - 599)]
    assert said(world(4, *jobs, shares=Shares())) == []
    assert said(world(4, *jobs, shares=Shares()), NOW + 1) == ["a suspended for b"]


def test_a_job_that_cannot_resume_is_not_suspended_for_another_owner():
    jobs = [runs("a", "/ada", 2, rigid=True), runs("a2", "/ada", 2, rigid=True), waits("b", "/bob", (2,))]
    assert said(world(4, *jobs, shares=shares())) == []


def test_one_that_came_back_to_the_queue_waits_since_then():
    jobs = [runs("a", "/ada", 2), runs("a2", "/ada", 2), waits("b", "/bob", (2,), submit_s=0.0, queued_s=NOW - 599)]
    snapshot = world(4, *jobs, shares=Shares())
    assert said(snapshot) == []


def test_what_is_being_freed_is_claimed_once():
    jobs = [runs("a", "/ada", 2), runs("a2", "/ada", 1), runs("a3", "/ada", 1), waits("b", "/bob", (2,))]
    jobs += [waits("b2", "/bob")]
    snapshot = world(4, *jobs, shares=shares())
    assert said(snapshot) == ["a suspended for b"]
    gives = replace(jobs[0], num_gpus=0, node=None, busy=True, yields_to=("b",))
    assert said(replace(snapshot, jobs=(gives, *jobs[1:]))) == []


def test_a_limit_holds_against_growth():
    jobs = [runs("a", "a", 2, (1, 2, 4))]
    snapshot = world(4, *jobs, shares=Shares(queues(a={"limit": 3})))
    assert said(snapshot) == []
    snapshot = world(4, *jobs, shares=Shares(queues(a={"limit": 4})))
    assert said(snapshot) == ["a 2->4"]


def test_at_its_limit_a_queue_waits_for_itself_and_says_so():
    snapshot = world(4, runs("a", "a", 2), waits("w", "a", (2,)), shares=Shares(queues(a={"limit": 3})))
    (hold,) = decide(snapshot, NOW)
    assert hold.explanation.algorithm == "rights.limit"
    assert hold.explanation.sentence == "w waits: queue a has 2 of at most 3 GPUs, and it needs 2."


def test_a_queue_that_may_not_borrow_says_so():
    terms = queues(a={"guaranteed": 2, "borrow": False})
    snapshot = world(4, runs("a", "a", 2), waits("w", "a"), shares=Shares(terms))
    (hold,) = decide(snapshot, NOW)
    assert hold.explanation.algorithm == "rights.borrow"
    assert "may not borrow, and has 2 GPUs of the 2 that it is guaranteed" in hold.explanation.sentence


def test_a_waiting_job_names_what_its_owner_holds_and_has_used():
    snapshot = world(
        2, runs("a", "/ada", 1, rigid=True), runs("b", "/bob", 1, rigid=True), waits("w", "/bob"),
        used={JobOwner(DEFAULT_QUEUE, "ada"): 36_000.0, JobOwner(DEFAULT_QUEUE, "bob"): 108_000.0},
    )  # fmt: skip
    (hold,) = decide(snapshot, NOW)
    assert hold.explanation.algorithm == "rights.share"
    assert hold.explanation.sentence.endswith(
        "bob holds 1 GPU, is entitled to 1 now, and has used 30.0 GPU-hours lately, 1.5 x the share."
    )


def test_gpus_go_idle_to_nobody_while_an_entitled_job_waits_for_them():
    """ada may not grow into the GPU that bob waits for two of; once bob is served she may."""
    jobs = [runs("a", "/ada", 2, (2, 3)), runs("c", "/bob", 1, (1,), rigid=True), waits("b", "/bob", (2,))]
    assert said(world(4, *jobs)) == []
    assert said(world(4, *jobs[:2])) == ["a 2->3"]


def test_idle_gpus_are_kept_for_a_claim_that_rigid_jobs_scatter_once_it_has_waited():
    """bob is entitled to two GPUs; ada's next job would take the idle one, and so on for ever."""
    rigid = [runs(f"a{i}", "/ada", 1, rigid=True) for i in range(3)]
    jobs = [*rigid, waits("b", "/bob", (2,), submit_s=NOW - 700), waits("a3", "/ada")]
    assert said(world(4, *jobs)) == []
    (kept,) = [one for one in decide(world(4, *jobs), NOW) if one.job == "a3"]
    assert "node n is kept for b" in kept.explanation.sentence
    assert said(world(4, *jobs[:3], replace(jobs[3], submit_s=NOW - 500), jobs[4])) == ["a3 starts 1"]


def test_no_node_is_kept_for_more_than_an_owner_is_entitled_to():
    rigid = [runs(f"a{i}", "/ada", 1, rigid=True) for i in range(2)] + [runs("b0", "/bob", 1, rigid=True)]
    jobs = [*rigid, waits("b", "/bob", (4,), submit_s=NOW - 90_000), waits("a3", "/ada")]
    assert said(world(4, *jobs)) == ["a3 starts 1"]


def test_an_overdue_job_gives_way_to_another_queue_only_what_its_queue_has_too_much():
    late = {"expected_s": 10.0, "task_s": 1000.0, "running_s": 1000.0}
    urgent = waits("b", "b", (2,), sla_s=2000.0, submit_s=NOW - 100, iterations_left=500.0)
    balanced = [runs("a", "a", 2, (1, 2), **late), runs("b0", "b", 2, rigid=True), urgent]
    queues_of_two = shares(a=(2, 1), b=(2, 1))
    assert (
        Rights(snapshot := world(4, *balanced, shares=queues_of_two), NOW, DEFAULTS).may_yield(*balanced[::2]) is False
    )
    assert said(snapshot) == []
    more = [runs("a", "a", 4, (1, 2, 4), **late), urgent]
    assert Rights(world(4, *more, shares=queues_of_two), NOW, DEFAULTS).may_yield(*more)


def test_slow_gpus_count_by_their_measured_speed():
    snapshot = world({"n": 4, "k": 4}, waits("a", "/ada"), waits("b", "/bob"), slow=["k"])
    who = read_owners(snapshot, NOW)
    assert (who.capacity, who.mean_value, dict(who.values)) == (5.0, 5 / 8, {"K80": 0.25, "V100": 1.0})


def test_who_has_the_slow_gpus_is_entitled_to_more_of_them():
    """ada has two fast GPUs, bob four slow ones: 2 standard GPUs against 1."""
    jobs = [runs("a", "/ada", 2, (1, 2)), runs("b", "/bob", 4, (1, 2, 4), node="k")]
    more = waits("b2", "/bob", gpu_type="V100", submit_s=NOW)
    snapshot = world({"n": 2, "k": 4}, *jobs, more, slow=["k"])
    who = entitle(snapshot, read_owners(snapshot, NOW))
    assert who.of_owner["default", "bob"].entitled == pytest.approx(1.5, abs=0.51)
    assert said(world({"n": 2, "k": 4}, *jobs, slow=["k"])) == []


def test_the_limit_of_a_queue_counts_gpus_whatever_their_speed():
    jobs = [runs("a", "a", 1, (1, 2, 4), node="k"), waits("w", "b", (8,), gpu_type="V100")]
    limited = Shares(queues(a={"limit": 2}, b={}))
    assert said(world({"n": 4, "k": 4}, *jobs, shares=limited, slow=["k"])) == ["a moves to 2 of n"]


def test_the_highest_priority_goes_first_also_where_one_user_is_alone():
    jobs = [waits("short", "/ada", iterations_left=10.0), waits("urgent", "/ada", priority=3)]
    assert said(world(1, *jobs)) == ["urgent starts 1"]


def test_equal_requests_of_many_owners_that_cannot_start_are_searched_for_once_each(monkeypatch):
    owners = 20
    each = 10
    full = [runs(f"r{i}", "/holder", 4, (4,), node=f"n{i}", rigid=True) for i in range(2)]
    queued = [waits(f"w{i}", f"/u{i % owners}", (1, 2)) for i in range(owners * each)]
    searched = list[str]()

    def counted(table, job):
        searched.append(job.owner)
        return incoming_candidates(table, job)

    monkeypatch.setattr(algorithms, "incoming_candidates", counted)
    held = decide(world({"n0": 4, "n1": 4}, *full, *queued), NOW, replace(DEFAULTS, planner="paper"))
    assert len(held) == owners * each
    assert set(searched) == {f"u{i}" for i in range(owners)}, "each owner sees other GPUs"
    assert len(searched) <= owners + algorithms.ALIKE
