"""Jobs of a pool use GPUs of its placeholders only; what to ask for and what to give back. In milliseconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_scheduler.decision import Hold, Move, Requeue, Reshape, Start, placed_on, workers_of
from adaptive_scheduler.engine import decide
from adaptive_scheduler.placeholders import (
    PATIENCE_S,
    AskForGpus,
    ForeignWait,
    GiveBack,
    Placeholder,
    PoolState,
    plan_placeholders,
)
from adaptive_scheduler.pools import split_by_pool
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.reserved_gpus import NoRoom, find_room
from adaptive_scheduler.settings import DEFAULTS, Settings
from adaptive_scheduler.shares import GpuBudget, QueueShare, Shares
from adaptive_scheduler.snapshot import ClusterSnapshot, Gpu, Node
from tests.unit.adaptive_scheduler.worlds import PROFILES, cluster, running, waiting

POOL = "ns/queue"


def node(*gpus, name="a"):
    return Node(name, "V100", tuple(gpus))


def reserved(index, pool=POOL, job=None, **more):
    state = "idle" if job is None else "in use"
    return Gpu(f"g{index}", state, job, job, pool=pool, **more)


def unreserved(index):
    return Gpu(f"g{index}", "faulty", used_by_others=True, pool="")


def held(index, **more):
    fields = {"pool": POOL, "node": "a", "gpu": f"g{index}", "job": "one", "held": True} | more
    return Placeholder(f"r{index}", **fields)


def world(*gpus, jobs):
    return cluster(*jobs, nodes=(node(*gpus),))


def planned(snapshot, *placeholders, free=0, **more):
    return plan_placeholders(snapshot, PoolState(placeholders, {"a": free}, **more), 0.0, DEFAULTS)


def test_a_snapshot_without_pools_is_decided_on_as_it_is():
    snapshot = cluster(waiting(), idle=2)
    assert split_by_pool(snapshot) == (snapshot,)


def test_a_job_starts_on_gpus_of_its_own_pool_only():
    job = waiting("one", pool=POOL)
    others = world(reserved(0, "other/queue"), reserved(1, "other/queue"), unreserved(2), jobs=[job])
    assert [type(decision) for decision in decide(others, 0.0)] == [Hold]
    (start,) = decide(world(reserved(0), reserved(1), unreserved(2), jobs=[job]), 0.0)
    assert isinstance(start, Start) and start.num_gpus == 2


def test_a_job_in_no_pool_uses_no_reserved_gpu():
    snapshot = world(reserved(0), reserved(1), jobs=[waiting("one")])
    assert [type(decision) for decision in decide(snapshot, 0.0)] == [Hold]


def test_a_budget_that_is_used_up_binds_in_a_pool():
    terms = Shares({"queue": QueueShare(budget=GpuBudget(10.0))})
    job = waiting("one", pool=POOL, queue="queue")
    snapshot = replace(world(reserved(0), jobs=[job]), shares=terms, spent={"queue queue": 10.0})
    (hold,) = decide(snapshot, 0.0)
    assert isinstance(hold, Hold) and hold.explanation.algorithm == "rights.budget"
    assert (
        planned(replace(world(unreserved(0), jobs=[job]), shares=terms, spent={"queue queue": 10.0}), free=1)[1] == []
    )


def test_limits_of_a_queue_count_what_its_jobs_have_in_all_pools():
    limited = Shares({"queue": QueueShare(limit=3)})
    others = [reserved(n, "a/queue") for n in (1, 2)]
    ours = [reserved(n) for n in (3, 4)]
    jobs = [
        running("one", 1, pool="a/queue", queue="queue", optional=(1, 2, 3)),
        waiting("two", pool=POOL, queue="queue", optional=(1, 2)),
    ]
    snapshot = replace(world(reserved(0, "a/queue", job="one"), *others, *ours, jobs=jobs), shares=limited)
    counts = {one.job: one.num_gpus for one in decide(snapshot, 0.0) if isinstance(one, Start | Reshape)}
    assert sum(counts.values()) <= 3 and counts, "one of them grows or starts, and no more than three are in use"
    full = replace(snapshot, shares=Shares({"queue": QueueShare(limit=1)}))
    assert [one.explanation.algorithm for one in decide(full, 0.0)] == ["rights.limit"]
    asked = replace(world(reserved(0, "a/queue", job="one"), unreserved(1), jobs=jobs), shares=full.shares)
    assert planned(asked, free=1)[1] == []


def test_reserved_gpus_are_kept_once_and_not_in_each_pool():
    plain = Node("b", "V100", (Gpu("h0", "idle"), Gpu("h1", "idle")))
    jobs = [waiting("one", pool=POOL), waiting("two", pool="other/queue"), waiting("his", owner="bob", optional=(1, 2))]
    pools = node(reserved(0), reserved(1, "other/queue"))
    kept = (Reservation("r", "b", 1, 0.0, 600.0, "ada"),)
    snapshot = replace(cluster(*jobs, nodes=(pools, plain)), reservations=kept)
    assert [len(part.reservations) for part in split_by_pool(snapshot)] == [1, 0, 0]
    starts = {one.job: (one.node, one.num_gpus) for one in decide(snapshot, 0.0) if isinstance(one, Start)}
    assert starts == {"one": ("a", 1), "two": ("a", 1), "his": ("b", 1)}


def test_gpus_of_a_pool_cannot_be_reserved():
    snapshot = world(reserved(0), reserved(1), jobs=[])
    found = find_room(snapshot, 0.0, Reservation("", "a", 1, 0.0, 600.0, "ada"))
    assert isinstance(found, NoRoom) and found.earliest_s is None and "mode pool" in found.why
    anywhere = find_room(snapshot, 0.0, Reservation("", "", 1, 0.0, 600.0, "ada"))
    assert isinstance(anywhere, NoRoom) and "at most 0 can be reserved together" in anywhere.why


def test_jobs_of_every_pool_make_room_for_maintenance():
    jobs = [running("one", 1, pool=POOL), running("two", 1, pool="other/queue")]
    snapshot = world(reserved(0, job="one"), reserved(1, "other/queue", job="two"), jobs=jobs)
    coming = replace(snapshot, reservations=(Reservation("m", "a", 2, 0.0, 600.0, None),))
    assert sorted(one.job for one in decide(coming, 0.0) if isinstance(one, Requeue)) == ["one", "two"]


def test_a_waiting_job_asks_for_its_least_firmly_and_for_the_rest_opportunistically():
    job = waiting("one", pool=POOL)
    snapshot = world(*map(unreserved, range(4)), jobs=[job])
    assert planned(snapshot, free=4) == ([], [AskForGpus(POOL, "one", "a", 4, 1)])


def test_a_job_that_does_not_save_asks_for_all_of_it_firmly():
    snapshot = world(*map(unreserved, range(4)), jobs=[waiting("one", pool=POOL, rigid=True)])
    assert planned(snapshot, free=4)[1] == [AskForGpus(POOL, "one", "a", 4, 4)]


def test_a_running_job_asks_for_more_opportunistically_unless_somebody_waits():
    job = running("one", 1, pool=POOL)
    snapshot = world(reserved(0, job="one"), *map(unreserved, range(1, 4)), jobs=[job])
    assert planned(snapshot, held(0), free=3)[1] == [AskForGpus(POOL, "one", "a", 3, 0)]
    assert planned(snapshot, held(0), free=3, waits=(ForeignWait("pod b/p", 1),))[1] == []
    assert planned(snapshot, held(0), free=3, resting=frozenset("a"))[1] == []


def test_growth_that_is_still_coming_is_withdrawn_where_somebody_waits():
    snapshot = world(reserved(0, job="one"), unreserved(1), jobs=[running("one", 1, pool=POOL)])
    coming = Placeholder("r1", POOL, "a", job="one", opportunistic=True)
    assert planned(snapshot, held(0), coming)[0] == []
    back, _ = planned(snapshot, held(0), coming, waits=(ForeignWait("pod b/p", 1),))
    assert back == [GiveBack("r1", "pod b/p waits for it")]
    assert planned(snapshot, held(0), coming, waits=(ForeignWait("pod b/p", 1, "elsewhere"),))[0] == []


def test_nothing_is_asked_for_twice():
    job = waiting("one", pool=POOL)
    snapshot = world(*map(unreserved, range(4)), jobs=[job])
    coming = [Placeholder(f"r{n}", POOL, "a", job="one", group="g") for n in range(4)]
    assert planned(snapshot, *coming, free=4) == ([], [])


def test_without_room_the_least_that_a_job_needs_is_asked_for_anywhere_once():
    job = waiting("one", pool=POOL, optional=(2, 4))
    snapshot = world(unreserved(0), jobs=[job])
    assert planned(snapshot, free=0)[1] == [AskForGpus(POOL, "one", None, 2, 2)]
    asked = [Placeholder(f"r{n}", POOL, None, job="one", age_s=10 * PATIENCE_S) for n in range(2)]
    assert planned(snapshot, *asked, free=0) == ([], [])


def test_after_a_refusal_no_more_is_asked_for_than_was_let_be():
    snapshot = world(*map(unreserved, range(4)), jobs=[waiting("one", pool=POOL)])
    assert planned(snapshot, free=4, most={POOL: 2})[1] == [AskForGpus(POOL, "one", "a", 2, 1)]


def test_what_a_job_needs_at_least_stays_asked_for_once_its_pool_can_have_no_more():
    snapshot = world(unreserved(0), jobs=[waiting("one", pool=POOL)])
    asked = Placeholder("r0", POOL, "a", job="one", refused="exceeded quota")
    assert [one.refused for one in planned(snapshot, asked)[0]] == [True]
    assert planned(snapshot, asked, most={POOL: 0}) == ([], [])


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"evicted": True}, "the cluster takes it back"),
        ({"idle_s": 61.0}, "no training has used it for 61 s"),
        ({"held": False, "job": "gone"}, "its job no longer needs it"),
        ({"held": False, "job": "new", "refused": "exceeded quota"}, "exceeded quota"),
        ({"held": False, "job": "new", "age_s": PATIENCE_S + 1}, "the cluster did not place it"),
    ],
)
def test_what_is_given_back_and_why(more, why):
    snapshot = world(reserved(0), jobs=[waiting("new", pool="else/where")])
    assert [(one.name, one.why) for one in planned(snapshot, held(0, **more))[0]] == [("r0", why)]


@pytest.mark.parametrize(
    "more", [{"idle_s": 59.0}, {"idle_s": None}, {"held": False, "job": "new"}, {"evicted": True, "going": True}]
)
def test_what_is_kept(more):
    snapshot = world(reserved(0), jobs=[waiting("new", pool="else/where", optional=(8,))])
    assert planned(snapshot, held(0, **more))[0] == []


def test_who_waits_gets_as_many_opportunistic_gpus_as_are_missing_and_nothing_that_would_not_help():
    job = running("one", 4, pool=POOL)
    snapshot = world(*(reserved(n, job="one") for n in range(4)), jobs=[job])
    mine = [held(0), *(held(n, opportunistic=True) for n in (1, 2, 3))]
    back, _ = planned(snapshot, *mine, waits=(ForeignWait("pod b/p", 2),))
    assert back == [GiveBack(name, "pod b/p waits for it", rests="a") for name in ("r1", "r2")]
    assert planned(snapshot, *mine, waits=(ForeignWait("pod b/p", 4),))[0] == []
    assert planned(snapshot, *mine, waits=(ForeignWait("pod b/p", 2, "elsewhere"),))[0] == []
    assert planned(snapshot, *mine, free=2, waits=(ForeignWait("pod b/p", 2),))[0] == []


def test_idle_ones_go_first():
    job = running("one", 2, pool=POOL)
    snapshot = world(reserved(0, job="one"), reserved(1, job="one"), reserved(2), jobs=[job])
    mine = [held(0), held(1, opportunistic=True), held(2, opportunistic=True, idle_s=1.0)]
    assert [one.name for one in planned(snapshot, *mine, waits=(ForeignWait("pod b/p", 1),))[0]] == ["r2"]


def test_a_waiting_job_of_another_pool_counts_as_somebody_else():
    jobs = [running("one", 2, pool=POOL), waiting("two", pool="b/queue", optional=(1,))]
    snapshot = world(reserved(0, job="one"), reserved(1, job="one"), jobs=jobs)
    mine = [held(0), held(1, opportunistic=True)]
    theirs = Placeholder("t0", "b/queue", None, job="two", group="t")
    assert [one.name for one in planned(snapshot, *mine, theirs)[0]] == ["r1"]


def asked_back(index, job, overdue=False):
    return Gpu(f"g{index}", "faulty", job, job, used_by_others=True, pool=POOL, asked_back=True, overdue=overdue)


def test_a_job_goes_on_with_fewer_gpus_where_one_is_asked_back():
    job = running("one", 4, pool=POOL)
    snapshot = world(*(reserved(n, job="one") for n in range(3)), asked_back(3, "one"), jobs=[job])
    (reshape,) = decide(snapshot, 0.0, Settings())
    assert isinstance(reshape, Reshape) and reshape.num_gpus == 2
    assert "the cluster takes 1 GPU of node a back" in reshape.explanation.sentence


def test_it_saves_and_waits_where_it_can_do_with_no_less():
    snapshot = world(asked_back(0, "one"), jobs=[running("one", 1, pool=POOL)])
    (requeue,) = decide(snapshot, 0.0)
    assert isinstance(requeue, Requeue) and not requeue.forced


@pytest.mark.parametrize(("overdue", "kind"), [(False, Hold), (True, Requeue)])
@pytest.mark.parametrize("cannot", [{"rigid": True}, {"stays": True, "optional": (1,)}])
def test_what_cannot_save_is_stopped_only_once_there_is_no_time_left(overdue, kind, cannot):
    snapshot = world(asked_back(0, "one", overdue), jobs=[running("one", 1, pool=POOL, **cannot)])
    (answer,) = decide(snapshot, 0.0)
    assert type(answer) is kind and (kind is Hold or answer.forced)


POOLS = (POOL, "b/queue", "")


@st.composite
def worlds(draw):
    """Some nodes with reserved and unreserved GPUs, jobs that train on some of them, and jobs that wait."""
    jobs = []
    nodes = []
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        gpus = []
        count = draw(st.integers(1, 6))
        while len(gpus) < count:
            kind = draw(st.sampled_from(["idle", "unreserved", "job"]))
            pool = draw(st.sampled_from(POOLS[:2]))
            number = f"{name}{len(gpus)}"
            if kind == "unreserved":
                gpus.append(Gpu(number, "faulty", used_by_others=True, pool=""))
            elif kind == "idle":
                gpus.append(Gpu(number, "idle", pool=pool))
            else:
                job = f"job-{number}"
                back = draw(st.booleans())
                state = "faulty" if back else "in use"
                gpus.append(Gpu(number, state, job, job, used_by_others=back, pool=pool, asked_back=back))
                jobs.append(running(job, 1, node=name, pool=pool, rigid=draw(st.booleans())))
        nodes.append(Node(name, "V100", tuple(gpus)))
    for index in range(draw(st.integers(0, 4))):
        optional = draw(st.sampled_from([(1,), (1, 2), (2, 4), (1, 2, 4)]))
        jobs.append(waiting(f"new-{index}", pool=draw(st.sampled_from(POOLS)), optional=optional, submit_s=index))
    return ClusterSnapshot(tuple(nodes), tuple(jobs), PROFILES)


@given(worlds())
@settings(max_examples=150, deadline=None)
def test_no_decision_uses_a_gpu_without_a_placeholder_of_the_jobs_pool(snapshot):
    usable = Counter((n.name, gpu.pool) for n in snapshot.nodes for gpu in n.gpus if gpu.state != "faulty")
    used = Counter()
    after = {job.id: (job.pool, placed_on(job)) for job in snapshot.jobs}
    for decision in decide(snapshot, 0.0):
        pool = snapshot.job[decision.job].pool
        if isinstance(decision, Start | Reshape | Move):
            after[decision.job] = pool, workers_of(decision)
        if isinstance(decision, Requeue):
            after[decision.job] = pool, ()
    stuck = {g.job for n in snapshot.nodes for g in n.gpus if g.asked_back}
    for job, (pool, workers) in after.items():
        if workers and not (job in stuck and workers == placed_on(snapshot.job[job])):
            used.update({(worker.node, pool): worker.num_gpus for worker in workers})
    assert all(used[key] <= usable[key] for key in used), (used, usable)


@given(worlds(), st.integers(0, 4), st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_no_more_is_asked_for_than_is_free_and_firm_ones_are_not_given_to_others(snapshot, free, waits):
    holders = [(n.name, gpu) for n in snapshot.nodes for gpu in n.gpus if gpu.pool and not gpu.asked_back]
    known = tuple(
        Placeholder(gpu.id, gpu.pool, name, gpu.id, gpu.job or "", held=True, opportunistic=index % 2 == 0)
        for index, (name, gpu) in enumerate(holders)
    )
    room = {n.name: min(free, sum(gpu.pool == "" for gpu in n.gpus)) for n in snapshot.nodes}
    state = PoolState(known, room, tuple(ForeignWait(f"pod {n}", 1) for n in range(waits)))
    back, asks = plan_placeholders(snapshot, state, 0.0, DEFAULTS)
    asked = Counter[str]()
    for ask in asks:
        assert 0 <= ask.firm <= ask.count and ask.pool == snapshot.job[ask.job].pool
        if ask.node is not None:
            asked[ask.node] += ask.count
    assert all(asked[name] <= room[name] for name in asked)
    low = {one.name for one in known if one.opportunistic}
    assert {one.name for one in back} <= low and len(back) <= waits
