"""Reservations and planned drains in the coordinator: what is accepted, refused, listed, carried out and foreseen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adaptive_scheduler.shares import JobOwner, QueueShare, Shares, UserShare
from coordinator.api.reservations import fair_part
from coordinator.caller import RESERVE, Tenant, UnixUser
from coordinator.errors import Rejected
from coordinator.forecasts.forecast import forecast
from coordinator.forecasts.live_state import LiveState
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from tests.fakes.shims import Behaviour
from tests.fakes.world import NODE, SHORT, World
from tests.unit.adaptive_scheduler.shared_world import runs, waits, world

ADA = UnixUser("ada", False, True, 1001)
BOB = UnixUser("bob", False, False, 1002)
ROOT = UnixUser("root", True, True, 0)


def long_job(w: World, name: str, owner: str, counts: list[int], **more: Any) -> None:
    w.submit(name, counts, Behaviour(iterations=100_000), owner=owner, **more)


def asked(w: World, gpus: int, begins_s: float, lasts_s: float, user: str = "ada", **more: Any) -> dict[str, Any]:
    begins = w.clock.wall() + begins_s
    return {"gpus": gpus, "from": begins, "until": begins + lasts_s, "user": user, **more}


def refusal(call: Any, *arguments: Any) -> tuple[str, int]:
    with pytest.raises(Rejected) as refused:
        call(*arguments)
    return str(refused.value), refused.value.status


def test_gpus_are_free_when_a_reservation_begins_and_used_by_all_before_and_after() -> None:
    w = World()
    long_job(w, "his", "bob", [1, 2, 4])
    w.run(lambda w: len(w.job("his").gpu_ids) == 4)
    made = w.api.reservations.reserve(asked(w, 2, 300, 300))
    assert (made["node"], made["gpus"], made["missing"]) == (NODE, 2, None)
    w.pass_time(100)
    assert len(w.job("his").gpu_ids) == 4, "nothing is taken long before"
    w.pass_time(210)
    assert (len(w.job("his").gpu_ids), w.states()["his"]) == (2, s.RUNNING)
    assert w.api.reservations.listed()[0]["missing"] == 0
    long_job(w, "hers", "ada", [2])
    w.run(lambda w: w.states()["hers"] == s.RUNNING)
    w.api.operator.cancel("hers")
    w.run(lambda w: not w.job("hers").gpu_ids if w.c.cache.find("hers") else True)
    w.pass_time(300)
    assert w.api.reservations.listed() == []
    w.run(lambda w: len(w.job("his").gpu_ids) == 4)
    assert w.job("his").doc["preempts"] in (None, 0)


def test_reserved_gpus_count_as_use_even_while_they_are_idle_and_as_nothing_borrowed() -> None:
    w = World()
    long_job(w, "his", "bob", [1, 2])
    w.run(lambda w: len(w.job("his").gpu_ids) == 2)
    w.api.reservations.reserve(asked(w, 2, 0, 3600))
    w.pass_time(100)
    used = {row["user"]: row["gpu_hours"] for row in w.api.rights.usage(0)}
    assert used["ada"] == pytest.approx(2 * 100 / 3600, rel=0.1)
    long_job(w, "hers", "ada", [2])
    w.run(lambda w: w.states()["hers"] == s.RUNNING)
    w.pass_time(20)
    (ada,) = [row for row in w.api.rights.shares()["users"] if row["user"] == "ada"]
    assert (ada["held"], ada["borrowed"]) == (2, 0)
    again = {row["user"]: row for row in w.api.rights.usage(0)}["ada"]
    assert again["gpu_hours"] > used["ada"] and again["borrowed_gpu_hours"] == 0


def test_idle_gpus_that_a_reservation_keeps_are_called_kept_and_not_idle() -> None:
    w = World()
    w.tick()
    w.api.reservations.reserve(asked(w, 2, 0, 3600))
    w.tick()
    assert [gpu["kept_for"] for gpu in w.api.fleet.gpus()] == [None, None, "ada", "ada"]
    assert [(node["idle"], node["kept"]) for node in w.api.fleet.nodes()] == [(4, 2)]
    told = w.api.status.metrics().decode()
    assert 'reshape_gpus{state="kept"} 2.0' in told and 'reshape_gpus{state="idle"} 2.0' in told
    assert [gpu["kept_for"] for gpu in w.api.of_caller(ADA).fleet.gpus()] == [None, None, "ada", "ada"]
    assert [gpu["kept_for"] for gpu in w.api.of_caller(BOB).fleet.gpus()] == [
        None,
        None,
        "another user",
        "another user",
    ]
    long_job(w, "hers", "ada", [2])
    w.run(lambda w: w.states()["hers"] == s.RUNNING)
    w.tick()
    assert {gpu["kept_for"] for gpu in w.api.fleet.gpus()} == {None}, "her job has them"
    assert 'reshape_gpus{state="kept"}' not in w.api.status.metrics().decode()


def test_an_interactive_job_of_the_user_starts_on_them_at_once() -> None:
    """`reshape run` submits a job of one count that is never resized."""
    w = World()
    long_job(w, "his", "bob", [1, 2, 4])
    w.run(lambda w: len(w.job("his").gpu_ids) == 4)
    w.api.reservations.reserve(asked(w, 2, 0, 3600))
    w.run(lambda w: len(w.job("his").gpu_ids) == 2)
    long_job(w, "others", "cy", [1, 2])
    long_job(w, "run-1", "ada", [2], elastic=False, time_limit="1h")
    w.run(lambda w: w.states()["run-1"] == s.RUNNING)
    assert len(w.job("run-1").gpu_ids) == 2


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"from": -120}, "The time from which on it is asked for has passed; name a later one."),
        ({"until": 0.0}, "It would end before it begins, or has ended already: name a later `until`."),
        ({"until": 40 * 86400}, "A reservation lasts 31 days at most, and begins within a year."),
        (
            {"node": "gone"},
            "2 GPUs of gone cannot be had: there is no node 'gone'; `reshape nodes` lists all.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(more: dict[str, Any], sentence: str) -> None:
    w = World()
    w.tick()
    wall = w.clock.wall()
    times = {name: wall + value for name, value in more.items() if name != "node"}
    given = {"gpus": 2, "until": wall + 600, "user": "ada", **more, **times}
    assert refusal(w.api.reservations.reserve, given)[0] == sentence
    assert w.store.list("reservations") == []


def test_one_that_cannot_be_had_is_refused_with_the_earliest_time_and_that_is_accepted() -> None:
    w = World()
    w.tick()
    w.api.reservations.reserve(asked(w, 3, 0, 1000, "bob"))
    with pytest.raises(Rejected) as refused:
        w.api.reservations.reserve(asked(w, 2, 300, 600))
    assert str(refused.value).startswith(
        f"2 GPUs cannot be had: reserved then: 3 GPUs of {NODE} for bob. For as long a time they can be had"
    )
    earliest = float(refused.value.problems[0].removeprefix("from: at least "))
    assert 0 <= earliest - (w.clock.wall() + 1000) < 60
    assert (
        w.api.reservations.reserve({**asked(w, 2, 0, 0), "from": earliest, "until": earliest + 600})["from"] == earliest
    )


def test_a_job_that_must_not_be_stopped_is_named_where_it_is_in_the_way() -> None:
    w = World()
    long_job(w, "his", "bob", [4], elastic=False)
    w.run(lambda w: w.states() == {"his": s.RUNNING})
    why, status = refusal(w.api.reservations.reserve, asked(w, 1, 600, 600))
    assert (status, why) == (
        409,
        "1 GPU cannot be had: these jobs cannot be asked to give way: his (it has not shown that it saves and "
        "resumes).",
    )


def test_a_limit_of_the_users_queue_binds_reservations(tmp_path: Path) -> None:
    (tmp_path / "shares.yaml").write_text("queues: {vision: {user_limit: 1}}\nusers: {ada: {queue: vision}}")
    w = World(config=replace(SHORT, shares=str(tmp_path / "shares.yaml")))
    w.tick()
    assert refusal(w.api.reservations.reserve, asked(w, 2, 0, 600)) == (
        "2 GPUs cannot be reserved: queue vision may have at most 1.",
        409,
    )
    assert w.api.reservations.reserve(asked(w, 1, 0, 600))["gpus"] == 1


def test_users_of_a_shared_machine_reserve_their_part_for_themselves() -> None:
    w = World()
    long_job(w, "his", "bob", [1, 2, 4])
    w.run(lambda w: w.states() == {"his": s.RUNNING})
    ada, bob, root = (w.api.of_caller(one) for one in (ADA, BOB, ROOT))
    assert refusal(ada.reservations.reserve, asked(w, 1, 0, 600, "bob"))[1] == 403
    mine = {name: value for name, value in asked(w, 2, 600, 600).items() if name != "user"}
    made = ada.reservations.reserve(mine)
    assert (made["user"], made["by"]) == ("ada", "ada")
    assert refusal(ada.reservations.reserve, {**mine, "gpus": 1}) == (
        "1 GPU cannot be reserved besides the 2 that you have then: your part of the GPUs is 2. Ask for fewer, or an "
        "administrator.",
        409,
    )
    assert root.reservations.reserve(asked(w, 1, 600, 600, "cy"))["by"] == "root"
    assert [row["user"] for row in bob.reservations.listed()] == [None, None], "names of others are hidden from him"
    assert refusal(bob.reservations.cancel, made["reservation_id"])[1] == 403
    assert refusal(ada.reservations.plan_drain, NODE, w.clock.wall() + 60, None)[1] == 403
    assert ada.reservations.cancel(made["reservation_id"])["gpus"] == 2
    assert refusal(ada.reservations.cancel, made["reservation_id"])[1] == 404
    asked_for = [event for event in w.api.history.newest_events() if event.get("verb") == "reserve"]
    assert len(asked_for) == 2


def test_a_user_alone_reserves_no_more_gpu_hours_than_all_gpus_have_in_a_day(tmp_path: Path) -> None:
    """Nobody else has a job, so her part is the whole machine: all the others would wait until her month is over."""
    w = World(config=replace(SHORT, shares=str(tmp_path / "shares.yaml")))
    w.tick()
    ada = w.api.of_caller(ADA).reservations

    def mine(gpus: int, lasts_s: float, begins_s: float = 600) -> dict[str, Any]:
        return {name: value for name, value in asked(w, gpus, begins_s, lasts_s).items() if name != "user"}

    assert refusal(ada.reserve, mine(4, 31 * 86400)) == (
        "4 GPUs for 744.0 h would be 2976.0 GPU-hours; the reservations of a user may come to 96.0, all GPUs for 24.0 "
        "h (`most_reserved` in shares.yaml). Reserve 4 GPUs for at most 24.0 h, or ask an administrator.",
        409,
    )
    made = ada.reserve(mine(1, 3 * 86400))
    assert refusal(ada.reserve, mine(2, 13 * 3600, 4 * 86400))[0].endswith(
        "come to 96.0, all GPUs for 24.0 h (`most_reserved` in shares.yaml). Reserve 2 GPUs for at most 12.0 h, or ask "
        "an administrator."
    )
    ada.reserve(mine(2, 12 * 3600, 4 * 86400))
    assert "and you have 96.0 reserved" in refusal(ada.reserve, mine(1, 600, 5 * 86400))[0]
    assert "Cancel one, or ask an administrator." in refusal(ada.reserve, mine(1, 600, 5 * 86400))[0]
    ada.cancel(made["reservation_id"])
    ada.reserve(mine(1, 600, 5 * 86400))
    (tmp_path / "shares.yaml").write_text("most_reserved: 48h")
    w.tick()
    ada.reserve(mine(4, 24 * 3600, 6 * 86400))
    assert w.api.of_caller(ROOT).reservations.reserve(asked(w, 4, 8 * 86400, 20 * 86400))["gpus"] == 4


def test_a_part_counts_weights_and_all_who_have_used_gpus_lately() -> None:
    snapshot = world(8, runs("a", "default/ada", 4, (1, 2, 4)))
    assert fair_part(Shares(), snapshot, "ada", []) == 8
    assert fair_part(Shares(), snapshot, "bob", []) == 4
    assert fair_part(Shares(), snapshot, "bob", [JobOwner("default", "cy"), JobOwner("default", "dan")]) == 2
    assert fair_part(Shares(users={"bob": UserShare(weight=3.0)}), snapshot, "bob", []) == 6
    assert JobOwner("default", "bob") == Shares().owner_of("", "bob")


def test_a_reservation_outlives_the_coordinator_and_is_gone_once_cancelled() -> None:
    w = World()
    long_job(w, "his", "bob", [1, 2, 4])
    w.run(lambda w: len(w.job("his").gpu_ids) == 4)
    made = w.api.reservations.reserve(asked(w, 3, 0, 3600))
    w.boot()
    w.run(lambda w: len(w.job("his").gpu_ids) == 1)
    w.api.reservations.cancel(made["reservation_id"])
    w.run(lambda w: len(w.job("his").gpu_ids) == 4)


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_moves_a_reservation_and_stops_nothing(jump_s: float) -> None:
    """It begins and ends when the wall clock says so."""
    w = World()
    long_job(w, "his", "bob", [1, 2, 4])
    w.run(lambda w: len(w.job("his").gpu_ids) == 4)
    w.api.reservations.reserve(asked(w, 2, 1800, 7200))
    launched = w.job("his").launch
    w.clock.ahead_s += jump_s
    w.pass_time(60)
    assert len(w.job("his").gpu_ids) == (2 if jump_s > 0 else 4)
    w.clock.ahead_s -= jump_s
    w.pass_time(1)
    w.run(lambda w: len(w.job("his").gpu_ids) == 4)
    w.run(lambda w: w.states()["his"] == s.RUNNING)
    assert w.job("his").launch == launched


def test_a_clock_that_was_set_ahead_and_back_leaves_reservations_and_planned_drains_as_they_were() -> None:
    w = World(
        nodes=[
            FoundNode(NODE, (FoundGpu("a-0", "V100", None, True),)),
            FoundNode("b", (FoundGpu("b-0", "V100", None, True),)),
        ]
    )
    w.tick()
    reserved = w.api.reservations.reserve(asked(w, 1, 1000, 300, node=NODE))
    begins = w.clock.wall() + 2000
    planned = w.api.reservations.plan_drain("b", begins, begins + 300)
    before = w.api.reservations.listed()
    w.clock.ahead_s = 31 * 86_400.0
    assert w.api.reservations.listed() == []
    w.pass_time(10)
    w.clock.ahead_s = 0.0
    w.pass_time(10)
    assert w.api.reservations.listed() == before
    assert {one["reservation_id"] for one in before} == {
        reserved["reservation_id"],
        planned["window"]["reservation_id"],
    }
    w.clock.ahead_s = 31 * 86_400.0
    w.api.drains.drain("b", False)
    w.clock.ahead_s = 0.0
    assert [one["node"] for one in w.api.reservations.listed()] == [NODE], "what was cancelled meanwhile stays so"


def test_what_would_happen_is_foreseen_with_reservations() -> None:
    w = World()
    w.submit("his", [4], Behaviour(iterations=400), owner="bob", iterations=400)
    w.run(lambda w: w.states() == {"his": s.RUNNING})
    w.api.reservations.reserve(asked(w, 4, 3600, 3600))
    w.submit("two", [4], Behaviour(iterations=100_000), owner="bob", iterations=100_000)
    w.tick()
    snapshot, _ = w.c.loop.present()
    live = LiveState.read(msgspec.json.decode(msgspec.json.encode(w.api.simulations.snapshot())), snapshot.profiles)
    (kept,) = live.snapshot.reservations
    assert (kept.from_s, kept.num_gpus) == (pytest.approx(3600 - 1, abs=5), 4)
    ends = {one.job_id: one.end_s for one in forecast(live).jobs}
    free = {one.job_id: one.end_s for one in forecast(replace(live, snapshot=live.snapshot.then(reservations=()))).jobs}
    if (free["two"] or 0) > 3600:
        assert (ends["two"] or 0) > (free["two"] or 0) + 3000
    assert ends["his"] == pytest.approx(free["his"])


# nodes that are drained for a time


def test_a_node_is_empty_when_its_maintenance_begins_and_takes_jobs_again_afterwards() -> None:
    w = World()
    long_job(w, "one", "ada", [1, 2, 4])
    w.run(lambda w: len(w.job("one").gpu_ids) == 4)
    begins = w.clock.wall() + 300
    answer = w.api.reservations.plan_drain(NODE, begins, begins + 300)
    assert (answer["drained"], answer["jobs"]) == (False, [{"job_id": "one", "num_gpus": 4, "stays": None}])
    long_job(w, "rigid", "ada", [1], elastic=False)
    w.pass_time(150)
    assert w.states() == {"one": s.RUNNING, "rigid": s.SUBMITTED}, "it could not leave in time"
    assert "reserved for maintenance" in w.job("rigid").doc["message"]
    w.pass_time(160)
    assert not w.job("one").gpu_ids
    assert w.api.fleet.nodes()[0]["drained"] is True
    assert "4 GPUs of n1 are reserved for maintenance" in w.job("one").doc["message"]
    w.pass_time(300)
    assert w.api.fleet.nodes()[0]["drained"] is False
    w.run(lambda w: w.states()["one"] == s.RUNNING)


def test_undrain_cancels_what_is_planned_and_reserved_gpus_are_not_drained_away() -> None:
    w = World()
    w.tick()
    wall = w.clock.wall()
    made = w.api.reservations.reserve(asked(w, 2, 600, 600))
    why, status = refusal(w.api.reservations.plan_drain, NODE, wall + 900, None)
    assert status == 409 and f"{made['reservation_id']} of ada" in why
    assert w.api.reservations.plan_drain(NODE, wall + 1500, None)["window"]["until"] is None
    assert refusal(w.api.reservations.reserve, asked(w, 1, 1600, 60))[1] == 409
    w.api.drains.drain(NODE, False)
    assert [row["purpose"] for row in w.api.reservations.listed()] == ["user"]
    assert refusal(w.api.reservations.plan_drain, "gone", wall + 60, None)[1] == 404


def test_a_part_is_that_in_the_queue_of_the_users_jobs() -> None:
    terms = Shares({"nlp": QueueShare(weight=3.0), "default": QueueShare()})
    snapshot = world(8, runs("a", "default/ada", 1), waits("b", "nlp/bob"), waits("c", "default/bob"))
    assert fair_part(terms, snapshot, "bob", []) == 6
    assert fair_part(terms, snapshot, "cy", []) == 1
    assert fair_part(Shares({"nlp": QueueShare(guaranteed_types={"V100": 8})}), snapshot, "bob", []) == 8


def v100(number: int, node: str) -> FoundGpu:
    return FoundGpu(f"{node}-{number}", "V100", None, True)


def test_gpus_of_several_nodes_are_reserved_and_given_back_together() -> None:
    sizes = {"n1": 4, "n2": 4, "n3": 2}
    w = World(
        gpus=0, nodes=[FoundNode(name, tuple(map(v100, range(count), [name] * count))) for name, count in sizes.items()]
    )
    w.tick()
    made = w.api.reservations.reserve(asked(w, 6, 300, 600, nodes=2))
    assert (made["nodes"], made["gpus"], made["node"]) == (["n1", "n2"], 6, "n1")
    whole = made["reservation_id"]
    listed = w.api.reservations.listed()
    assert [(row["reservation_id"], row["nodes"], row["gpus"]) for row in listed] == [
        (f"{whole}.1", ["n1"], 3),
        (f"{whole}.2", ["n2"], 3),
    ]
    assert refusal(w.api.reservations.reserve, asked(w, 4, 300, 600, "bob", nodes=2))[1] == 409
    assert refusal(w.api.reservations.reserve, asked(w, 5, 0, 60, nodes=2))[0] == (
        "5 GPUs are not as many on each of 2 nodes."
    )
    w.pass_time(310)
    assert {row["missing"] for row in w.api.reservations.listed()} == {0}
    part = w.api.reservations.cancel(f"{whole}.2")
    assert (part["reservation_id"], part["nodes"], part["gpus"]) == (f"{whole}.2", ["n2"], 3)
    assert w.api.reservations.cancel(whole)["nodes"] == ["n1"]
    assert refusal(w.api.reservations.cancel, whole)[1] == 404
    again = w.api.reservations.reserve(asked(w, 4, 600, 600, nodes=2))["reservation_id"]
    assert w.api.reservations.cancel(again)["gpus"] == 4
    assert w.api.reservations.listed() == []


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_no_reservation_takes_the_name_of_another_one(num_nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [FoundNode(name, (v100(0, name), v100(1, name))) for name in ("n1", "n2")]
    w = World(gpus=0, nodes=nodes)
    w.tick()
    drawn = iter(["aaaaaa", "aaaaaa", "bbbbbb"])
    monkeypatch.setattr("coordinator.api.reservations.secrets.token_hex", lambda length: next(drawn))
    for user in ("ada", "bob"):
        w.api.reservations.reserve(asked(w, num_nodes, 600, 600, user, nodes=num_nodes))
    listed = {view["reservation_id"].partition(".")[0]: view["user"] for view in w.api.reservations.listed()}
    assert listed == {"r-aaaaaa": "ada", "r-bbbbbb": "bob"}


def test_on_a_cluster_tenants_reserve_their_part_for_themselves_if_they_have_the_right() -> None:
    w = World()
    long_job(w, "his", "bob", [1, 2, 4])
    w.run(lambda w: w.states() == {"his": s.RUNNING})
    account = "system:serviceaccount:team-a:trainer"
    rights: set[tuple[object, str]] = set()
    tenant = Tenant(account, False, False, "team-a", "default", lambda right, namespace: (right, namespace) in rights)
    mine = {name: value for name, value in asked(w, 2, 600, 600).items() if name != "user"}
    reservations = w.api.of_caller(tenant).reservations
    assert refusal(reservations.reserve, mine) == (
        f"{account} may not create reservations.volcano-reshape.io in all namespaces, which this needs: ask who "
        "administers the cluster for a ClusterRoleBinding to the ClusterRole reshape-reserver.",
        403,
    )
    rights.add((RESERVE, "team-a"))
    assert refusal(reservations.reserve, mine)[1] == 403, "in one namespace it is no right to take GPUs of others"
    rights.add((RESERVE, ""))
    made = reservations.reserve(mine)
    assert (made["user"], made["by"]) == (account, account)
    assert "your part of the GPUs is 2" in refusal(reservations.reserve, mine)[0]
    assert refusal(reservations.reserve, {**mine, "user": "bob"})[1] == 403
    other = w.api.of_caller(replace(tenant, name="system:serviceaccount:team-b:trainer", namespace="team-b"))
    assert refusal(other.reservations.cancel, made["reservation_id"])[1] == 403
    assert reservations.cancel(made["reservation_id"])["gpus"] == 2


def test_operators_of_a_cluster_reserve_for_everybody() -> None:
    w = World()
    w.tick()
    account = "system:serviceaccount:team-a:trainer"
    operator = Tenant("ops", True, False, "", "default", lambda right, namespace: False)
    assert w.api.of_caller(operator).reservations.reserve(asked(w, 1, 0, 600, account))["user"] == account
