"""Reservations: nobody else gets a reserved GPU, nothing is killed for one, and the earliest time told holds."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from adaptive_scheduler import reserved_gpus
from adaptive_scheduler.decision import End, Hold, Move, Requeue, Reshape, Start, gpus_on
from adaptive_scheduler.engine import decide
from adaptive_scheduler.reservation import Reservation
from adaptive_scheduler.reserved_gpus import LEAD_S, NoRoom, find_room
from adaptive_scheduler.settings import DEFAULTS
from adaptive_scheduler.shares import Shares
from adaptive_scheduler.tentative_snapshot import after
from tests.depth import drawn
from tests.unit.adaptive_scheduler.shared_world import NOW, queues, runs, told, waits, world
from tests.unit.adaptive_scheduler.test_rights import draw as shared_draw

WORLDS = drawn(300, 5000)
HOUR_S = 3600.0


def reserve(num_gpus, user="ada", from_s=NOW, lasts_s=HOUR_S, node="n", name="r"):
    return Reservation(name, node, num_gpus, from_s, from_s + lasts_s, user)


def planned(snapshot, *reservations, settings=DEFAULTS):
    snapshot = replace(snapshot, reservations=reservations)
    return snapshot, decide(snapshot, NOW, settings)


def decided(snapshot, *reservations, settings=DEFAULTS):
    return told(*planned(snapshot, *reservations, settings=settings))


def reason(snapshot, job, *reservations):
    _, decisions = planned(snapshot, *reservations)
    return next(one.explanation.sentence for one in decisions if one.job == job)


# freeing


def test_a_running_job_shrinks_for_a_reservation_that_begins():
    snapshot = world(4, runs("his", "q/bob", 4, (1, 2, 4)))
    assert decided(snapshot, reserve(2)) == ["his 4->2"]
    assert reason(snapshot, "his", reserve(2)) == "his goes from 4 to 2 GPUs on n: the others are reserved for ada."


def test_it_shrinks_in_its_cool_down_too_and_no_more_once_it_has():
    assert decided(world(4, runs("his", "q/bob", 4, (1, 2, 4), cooling_until=NOW + 900)), reserve(2)) == ["his 4->2"]
    assert decided(world(4, runs("his", "q/bob", 2, (1, 2, 4))), reserve(2)) == []


def test_nothing_is_freed_long_before():
    snapshot = world(4, runs("his", "q/bob", 4, (1, 2, 4)))
    assert decided(snapshot, reserve(2, from_s=NOW + HOUR_S)) == []
    assert decided(snapshot, reserve(2, from_s=NOW + LEAD_S - 1)) == ["his 4->2"]


def test_what_cannot_shrink_saves_and_waits_if_no_other_node_has_room():
    snapshot = world(4, runs("his", "q/bob", 4))
    assert decided(snapshot, reserve(2)) == ["his suspended for "]
    assert reason(snapshot, "his", reserve(2)) == (
        "his saves and waits for other GPUs: its GPUs of n are reserved for ada."
    )
    elsewhere = world({"m": 4, "n": 4}, runs("his", "q/bob", 4))
    assert decided(elsewhere, reserve(2)) == ["his moves to 4 of m"]


def test_of_several_jobs_one_that_suffices_gives_way():
    jobs = [runs("a", "q/bob", 1), runs("b", "q/bob", 1), runs("c", "q/bob", 2)]
    assert decided(world(4, *jobs), reserve(2)) == ["c suspended for "]
    assert decided(world(4, *jobs[:2], runs("c", "q/bob", 2, (1, 2))), reserve(1)) == ["c 2->1"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"rigid": True}, "it has not shown that it saves and resumes"),
        ({"preemption": "never"}, "its preemption is never"),
        ({"preemption": "shrink"}, "its preemption is shrink"),
    ],
)
def test_a_job_that_cannot_give_way_keeps_its_gpus_and_says_why(more, why):
    snapshot = world(4, runs("his", "q/bob", 4, **more))
    assert decided(snapshot, reserve(2)) == []
    assert reason(snapshot, "his", reserve(2)) == f"his keeps its 4 GPUs of n, which are reserved for ada: {why}."


def test_a_requested_count_does_not_keep_reserved_gpus_and_is_not_grown_into_them():
    assert decided(world(4, runs("his", "q/bob", 4, (1, 2, 4), wanted=4)), reserve(2)) == ["his suspended for "]
    snapshot = world(4, runs("his", "q/bob", 2, (1, 2, 4), wanted=4))
    assert decided(snapshot, reserve(2)) == []
    assert decided(snapshot) == ["his 2->4"]


def test_for_maintenance_all_jobs_that_can_leave_do():
    jobs = [runs("a", "q/ada", 1), runs("b", "q/bob", 2, (1, 2)), runs("c", "q/bob", 1, rigid=True)]
    assert decided(world(4, *jobs), reserve(4, None)) == ["a suspended for ", "b suspended for "]


def test_a_job_that_saves_for_maintenance_is_not_told_to_stay_on_the_drained_node_as_well():
    """Each job has one answer: a reason that is written first would keep its operation from being carried out."""
    drained = world(4, runs("a", "q/ada", 2), runs("b", "q/bob", 2, rigid=True))
    nodes = tuple(replace(node, drained=True, schedulable=False) for node in drained.nodes)
    _, decisions = planned(replace(drained, nodes=nodes), reserve(4, None))
    assert [(type(one), one.job) for one in decisions] == [(Hold, "b"), (Requeue, "a")]


def test_of_a_users_jobs_those_that_keep_their_gpus_count_as_on_reserved_ones():
    """Ada has one GPU reserved and two jobs: the one that can be stopped gives way to Bob's reservation."""
    jobs = [runs("a", "q/ada", 1), runs("b", "q/ada", 1, preemption="never")]
    assert decided(world(2, *jobs), reserve(1), reserve(1, "bob", name="s")) == ["a suspended for "]


# who may use them


def test_idle_reserved_gpus_go_to_nobody_else_and_the_reason_says_so():
    assert decided(world(4, runs("his", "q/bob", 1, (1, 2, 4))), reserve(2)) == ["his 1->2"]
    assert decided(world(4, waits("p", "q/cy", (1, 2, 4))), reserve(2)) == ["p starts 2"]
    assert "2 GPUs of n are reserved for ada for 60 min." in reason(world(4, waits("p", "q/cy", (4,))), "p", reserve(2))


def test_a_job_of_the_user_starts_and_grows_on_them_though_others_wait_and_are_entitled_to_more():
    crowd = [waits(f"w{i}", "q/bob", (1, 2)) for i in range(4)]
    assert "hers starts 2" in decided(world(4, waits("hers", "q/ada", (2,)), *crowd), reserve(2))
    assert decided(world(4, runs("hers", "q/ada", 1, (1, 2, 4)), runs("his", "q/bob", 2)), reserve(2)) == ["hers 1->2"]


def test_what_is_reserved_is_beside_what_its_user_is_entitled_to():
    """Ada has her two reserved GPUs; of the two others one each is Bob's and hers."""
    jobs = [runs("hers", "q/ada", 2), runs("more", "q/ada", 2, (1, 2)), waits("his", "q/bob", (1,))]
    assert decided(world(4, *jobs), reserve(2)) == ["his starts 1 (more 2->1)"]


def test_no_right_of_others_takes_reserved_gpus():
    jobs = [runs("hers", "q/ada", 4, (1, 2, 4)), waits("his", "q/bob", (1, 2))]
    assert decided(world(4, *jobs), reserve(4)) == []
    assert decided(world(4, *jobs)) == ["his starts 2 (hers 4->2)"]


def test_no_job_of_a_queue_that_is_one_owner_takes_what_one_of_its_users_has_reserved():
    one_owner = Shares(queues(q={"owners": "shared"}))
    jobs = [runs("hers", "q/ada", 4, (1, 2, 4)), waits("his", "q/bob", (1, 2))]
    assert decided(world(4, *jobs, shares=one_owner), reserve(4)) == []
    assert decided(world(4, *jobs, shares=one_owner)) != []


def test_a_job_that_could_not_give_way_in_time_does_not_start_there():
    """One with a time limit that ends before does, and one that can be stopped."""
    coming = reserve(2, from_s=NOW + HOUR_S)
    assert decided(world(2, waits("p", "q/bob", (2,), rigid=True)), coming) == []
    assert reason(world(2, waits("p", "q/bob", (2,), rigid=True)), "p", coming) == (
        "p waits: 2 GPUs of n are reserved for ada in 60 min for 60 min, and it could not give them up in time, as it "
        "has not shown that it saves and resumes. With a time limit that ends before, it can start now."
    )
    assert decided(world(2, waits("p", "q/bob", (2,), rigid=True, time_limit_s=1800.0)), coming) == ["p starts 2"]
    assert decided(world(2, waits("p", "q/bob", (2,))), coming) == ["p starts 2"]
    assert decided(world(2, waits("p", "q/ada", (2,), rigid=True)), coming) == ["p starts 2"]
    assert decided(world(4, waits("p", "q/bob", (2, 4), rigid=True)), coming) == ["p starts 2"]
    assert decided(world(4, runs("r", "q/bob", 2, rigid=True), waits("p", "q/bob", (2,), rigid=True)), coming) == []


def test_no_job_takes_by_shrinking_another_what_it_could_not_give_up_in_time():
    coming = reserve(2, from_s=NOW + HOUR_S)
    jobs = [runs("hers", "q/cy", 2, (1, 2)), waits("p", "q/bob", (1,), rigid=True)]
    assert decided(world(2, *jobs), coming) == []
    assert decided(world(2, *jobs)) == ["p starts 1 (hers 2->1)"]


def test_where_another_node_could_serve_it_later_it_waits_for_that():
    coming = reserve(2, from_s=NOW + HOUR_S)
    jobs = [runs("r", "q/bob", 2, node="m", rigid=True), waits("p", "q/bob", (1,), rigid=True)]
    assert decided(world({"m": 2, "n": 2}, *jobs), coming) == []
    assert decided(world({"m": 2, "n": 3}, *jobs), coming) == ["p starts 1"]


# where there is room


def room(snapshot, wanted, *reservations, **more):
    return find_room(replace(snapshot, reservations=reservations), NOW, wanted, **more)


def test_a_reservation_gets_the_node_where_least_is_to_be_freed():
    snapshot = world({"a": 2, "b": 4, "c": 4}, runs("his", "q/bob", 4, (1, 2, 4), node="b"))
    assert room(snapshot, reserve(2, node=""))[0].node == "a"
    assert room(snapshot, reserve(4, node=""))[0].node == "c"
    assert room(snapshot, reserve(4, node="b"))[0].node == "b"
    assert room(snapshot, reserve(5, node="")).why.startswith("no node that takes work has 5 working GPUs; at most 4")
    assert room(snapshot, reserve(1, node="z")).why == "there is no node 'z'; `reshape nodes` lists all"


def test_one_that_cannot_be_had_names_what_is_in_the_way_and_the_earliest_time():
    other = reserve(3, "bob", lasts_s=HOUR_S)
    refused = room(world(4), reserve(2, lasts_s=600.0), other)
    assert refused == NoRoom("reserved then: 3 GPUs of n for bob", pytest.approx(NOW + HOUR_S, abs=60))
    rigid = world(4, runs("his", "q/bob", 3, rigid=True))
    assert room(rigid, reserve(2)) == NoRoom(
        "these jobs cannot be asked to give way: his (it has not shown that it saves and resumes)", None
    )
    assert room(rigid, reserve(1))[0].node == "n"
    assert room(rigid, reserve(4, "bob"))[0].node == "n", "they are his own"
    (refused, _) = room(rigid, reserve(2, "bob", lasts_s=600.0), reserve(4, "cy", lasts_s=HOUR_S))
    assert refused == "reserved then: 4 GPUs of n for cy", "his own jobs are not in his way"


def test_gpus_of_several_nodes_are_of_one_type_and_all_there_at_once():
    snapshot = world({"a": 4, "b": 2, "c": 4, "k": 4}, runs("his", "q/bob", 4, rigid=True, node="a"), slow=["k"])

    def nodes(*given, **more):
        found = room(snapshot, *given, **more)
        return found if isinstance(found, NoRoom) else [one.node for one in found]

    assert nodes(reserve(2, node=""), num_nodes=2) == ["b", "c"], "those of k are slow, those of a not to be had"
    assert nodes(reserve(4, node=""), num_nodes=3).why == "there are no 3 nodes of one GPU type that have 4 GPUs each"
    assert "his (it has not shown" in nodes(reserve(3, node=""), num_nodes=2).why
    until_then = reserve(1, "cy", lasts_s=HOUR_S, node="c")
    refused = nodes(reserve(2, node="", lasts_s=600.0), replace(until_then, num_gpus=3), num_nodes=2)
    assert refused.earliest_s == pytest.approx(NOW + HOUR_S, abs=60)


def test_a_job_over_several_nodes_starts_on_what_its_user_has_reserved_on_each():
    """Two of four idle GPUs on each node are kept: alone by its share it could not have all of them."""
    kept = [reserve(2, node="a"), replace(reserve(2, node="b"), id="r2")]
    others = [runs(f"o{i}", "q/bob", 2, rigid=True, node=name) for i, name in enumerate("ab")]
    gang = waits("p", "q/ada", (4,), max_workers=2, preemption="never")
    snapshot = replace(world({"a": 4, "b": 4}, *others, gang), reservations=tuple(kept))
    assert told(snapshot, decide(snapshot, NOW)) == ["p starts 4"]
    alone = replace(snapshot, jobs=(*snapshot.jobs[:2], replace(gang, max_workers=1)))
    assert told(alone, decide(alone, NOW)) == []


# drawn worlds


def draw(rng):
    """A drawn world of several owners with some reservations that were accepted in it."""
    snapshot = shared_draw(rng)
    found = []
    for number in range(rng.randint(1, 4)):
        node = rng.choice(snapshot.nodes)
        from_s = NOW + rng.choice((-600.0, 0.0, 30.0, HOUR_S, 5 * HOUR_S))
        asked = Reservation(
            f"r{number}",
            node.name,
            rng.randint(1, len(node.gpus)),
            from_s,
            max(from_s, NOW) + rng.choice((600.0, HOUR_S, 9 * HOUR_S)),
            rng.choice(("x", "y", "z", None)),
        )
        made = find_room(replace(snapshot, reservations=tuple(found)), NOW, asked)
        if not isinstance(made, NoRoom):
            found += made
    limits = [replace(job, time_limit_s=rng.choice((None, None, 900.0))) for job in snapshot.jobs]
    return replace(snapshot, jobs=tuple(limits), reservations=tuple(found))


@pytest.fixture(scope="module", params=["paper", "rollout"])
def worlds(request):
    settings = replace(DEFAULTS, planner=request.param)
    found = []
    for seed in range(WORLDS):
        snapshot = draw(random.Random(seed))
        found.append((snapshot, decide(snapshot, NOW, settings)))
    return found


def kept_for_others(snapshot, user, node):
    """GPUs of a node that are reserved now for users besides one, and that these do not use."""
    reserved = Counter()
    for one in snapshot.reservations:
        if one.node == node and one.from_s <= NOW < one.until_s and (one.user is None or one.user != user):
            reserved[one.user] += one.num_gpus
    held = Counter(dict.fromkeys(reserved, 0))
    for job in snapshot.placed:
        if job.owner in held:
            held[job.owner] += gpus_on(job, node)
    return sum(max(0, count - held[user]) for user, count in reserved.items())


def claimed(snapshot, user, node):
    """GPUs of a node that jobs have once all that was decided is done, and those that are reserved beside them."""
    return sum(gpus_on(job, node) for job in snapshot.placed) + kept_for_others(snapshot, user, node)


def test_no_reserved_gpu_is_given_to_another(worlds):
    """Check that whoever starts, grows or moves leaves enough for those who have reserved and do not use it all."""
    kinds = Counter()
    for snapshot, decisions in worlds:
        state = snapshot
        for one in decisions:
            before = state
            state = after(state, one)
            kinds[one.explanation.algorithm] += 1
            if isinstance(one, Start | Reshape | Move) and one.num_gpus > before.job[one.job].num_gpus:
                user = before.job[one.job].owner
                node = snapshot.node[one.node]
                kinds["beside"] += any(r.node == one.node and r.from_s <= NOW for r in snapshot.reservations)
                assert claimed(state, user, one.node) <= max(node.healthy, claimed(before, user, one.node)), one
                assert kept_for_others(state, user, one.node) <= kept_for_others(before, user, one.node), one
    assert kinds["reserved"] > WORLDS / 10 and kinds["beside"] > WORLDS / 20, kinds


def test_each_job_has_one_answer(worlds):
    for _, decisions in worlds:
        changed = {one.job for one in decisions if not isinstance(one, Hold)}
        assert not [one for one in decisions if isinstance(one, Hold) and one.job in changed]


def test_nobody_is_stopped_who_cannot_resume_or_is_never_to_give(worlds):
    for snapshot, decisions in worlds:
        for one in decisions:
            if one.explanation.algorithm != "reserved" or isinstance(one, Hold):
                continue
            job = snapshot.job[one.job]
            assert not job.rigid and job.preemption != "never" and not isinstance(one, End)
            assert job.preemption != "shrink" or isinstance(one, Reshape)


def test_once_begun_all_that_can_be_freed_is(worlds):
    for snapshot, decisions in worlds:
        state = after(snapshot, *decisions)
        for node in snapshot.nodes:
            begun = [one for one in snapshot.reservations if one.node == node.name and one.from_s <= NOW]
            held = sum(gpus_on(job, node.name) for job in state.placed)
            if begun and held + kept_for_others(state, "nobody", node.name) > node.healthy:
                # Also who has reserved some for soon: of a job that has reserved GPUs and others, all may have to stay.
                users = {one.user for one in snapshot.reservations if one.node == node.name}
                can = [
                    job
                    for job in state.placed
                    if gpus_on(job, node.name)
                    and not job.busy
                    and not job.rigid
                    and job.preemption == "any"
                    and job.owner not in users
                ]
                assert not can, (node.name, can)


def test_the_earliest_time_that_is_told_is_accepted_then():
    told_times = 0
    for seed in range(WORLDS):
        rng = random.Random(seed)
        snapshot = draw(rng)
        node = rng.choice(snapshot.nodes)
        lasts_s = rng.choice((600.0, 2 * HOUR_S))
        asked = Reservation("new", rng.choice(("", node.name)), rng.randint(1, len(node.gpus)), NOW, NOW + lasts_s, "z")
        refused = find_room(snapshot, NOW, asked)
        if isinstance(refused, NoRoom) and refused.earliest_s is not None:
            told_times += 1
            then = replace(asked, from_s=refused.earliest_s, until_s=refused.earliest_s + lasts_s)
            for later_s in (0.0, 100.0):
                assert not isinstance(find_room(snapshot, NOW + later_s, then), NoRoom)
    assert told_times > WORLDS / 50


def random_reservation(rng, node):
    return reserve(rng.randint(1, 4), "bob", rng.randint(0, 30), rng.randint(1, 9), node)


def has_room_at(start_s, nodes, reserved, fixed, wanted, count):
    """Look at all nodes."""
    later = replace(wanted, from_s=start_s, until_s=start_s + wanted.until_s - wanted.from_s)
    found = [one for one in nodes if reserved_gpus._has_room(one, reserved[one.name], fixed[one.name], later)]
    return reserved_gpus._of_one_type(found, count)


def test_the_earliest_time_is_that_of_a_look_at_all_nodes_at_each_time():
    found_times = 0
    for seed in range(WORLDS):
        rng = random.Random(seed)
        names = [f"n{number}" for number in range(rng.randint(1, 6))]
        nodes = [replace(node, gpu_type=rng.choice(("V100", "K80"))) for node in world(dict.fromkeys(names, 4)).nodes]
        reserved = {name: [random_reservation(rng, name) for _ in range(rng.randint(0, 4))] for name in names}
        fixed = {name: [reserved_gpus._FixedGpus("bob", rng.randint(1, 4), rng.randint(0, 30))] for name in names}
        wanted = reserve(rng.randint(1, 4), "ada", 0, rng.randint(1, 9))
        starts = sorted(rng.sample(range(40), 20))
        count = rng.randint(1, 3)
        expected = next((at for at in starts if has_room_at(at, nodes, reserved, fixed, wanted, count)), None)
        assert reserved_gpus._earliest_room(nodes, reserved, fixed, wanted, starts, count) == expected
        found_times += expected is not None and expected > starts[0]
    assert found_times > WORLDS / 10


def test_on_a_large_cluster_each_node_is_looked_at_where_something_on_it_changes(monkeypatch):
    names = [f"n{number}" for number in range(200)]
    jobs = [
        runs(f"j{place}", "q/bob", 4, rigid=True, node=name, time_limit_s=5000.0 + 300.0 * (place + 1))
        for place, name in enumerate(names)
    ]
    looks = Counter()
    has_room = reserved_gpus._has_room
    monkeypatch.setattr(reserved_gpus, "_has_room", lambda node, *of: looks.update([node.name]) or has_room(node, *of))
    told = find_room(world(dict.fromkeys(names, 4), *jobs), NOW, reserve(4, node=""), num_nodes=150)
    assert told.earliest_s > NOW + 149 * 300.0
    assert looks.total() < 5 * len(names)


def test_reservations_that_are_over_or_far_away_change_nothing():
    for seed in range(WORLDS // 3):
        snapshot = shared_draw(random.Random(seed))
        plain = decide(snapshot, NOW)
        over = reserve(1, from_s=NOW - 2 * HOUR_S, node=snapshot.nodes[0].name)
        elsewhere = reserve(1, node="gone")
        assert decide(replace(snapshot, reservations=(over, elsewhere)), NOW) == plain
