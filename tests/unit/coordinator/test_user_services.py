"""What each user of a shared machine may see and change. No server, no socket."""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.api.access import UserService
from coordinator.api.ended_jobs import LASTS_S
from coordinator.api.history import OF_OTHERS
from coordinator.api.services import UserServices
from coordinator.caller import UnixUser
from coordinator.errors import Rejected
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import JOB_TYPE, SHORT, World

ANN = UnixUser("ann", False, True, 1001)
BEN = UnixUser("ben", False, True, 1002)
ADMIN = UnixUser("ada", True, True, 1003)
SUCCESSOR = UnixUser("abe", False, True, 1001)  # to whom Ann's uid was given
HIDDEN = UnixUser("ben", False, False, 1002)
JOB: dict[str, Any] = {
    "command": ["python", "secret-plan.py"],
    "optional_num_gpus": [1, 2],
    "job_type": JOB_TYPE,
    "elastic": True,
    "code": "/home/ann/secret-plan",
    "iterations": 4_000,
}
NOT_HERS = 403
OF_OWNER = "only for those with a right to the job"
OF_ADMIN = "only for administrators"
OF_SELF = "for other users only by administrators"
OF_CALLER = "makes what is the caller's own"
OF_ALL = "shows nothing of hidden jobs"
NO_HANDLER = "called by another service, which has judged"
LATER = 4e9
RESERVED = {"gpus": 1, "until": LATER}
MAY: dict[str, Callable[[UserServices], Any]] = {
    "cancel": lambda api: api.operator.cancel("one"),
    "suspend": lambda api: api.operator.suspend("one"),
    "resume": lambda api: api.operator.resume("one"),
    "priority": lambda api: api.operator.set_priority("one", 5),
    "reshape": lambda api: api.operator.request("one", 1, None),
    "checkpoint": lambda api: api.operator.request("one", None, "checkpoint"),
    "stop": lambda api: api.operator.request("one", None, "stop"),
    "remove": lambda api: api.operator.remove("one"),
    "rerun": lambda api: api.submissions.rerun("one"),
    "logs": lambda api: api.output.logs("one", 0, 100),
    "log tail": lambda api: api.output.log_tail("one"),
}


@pytest.fixture
def world() -> World:
    """Ann's job trains."""
    found = World()
    found.machines.behaviour["one"] = Behaviour(iterations=4_000)
    found.api.of_caller(ANN).submissions.submit({"job_id": "one", **JOB})
    found.run(lambda w: w.states().get("one") == s.RUNNING)
    return found


def status_of(call: Callable[[UserServices], Any], api: UserServices) -> int:
    with pytest.raises(Rejected) as refused:
        call(api)
    return refused.value.status


JUDGED: dict[str, tuple[str, Callable[[UserServices], Any]]] = {
    "submissions.submit": (
        OF_CALLER,
        lambda api: api.submissions.submit({"command": ["true"], "optional_num_gpus": [1]}),
    ),
    "submissions.rerun": (OF_OWNER, MAY["rerun"]),
    "operator.cancel": (OF_OWNER, MAY["cancel"]),
    "operator.request": (OF_OWNER, MAY["reshape"]),
    "operator.remove": (OF_OWNER, MAY["remove"]),
    "operator.suspend": (OF_OWNER, MAY["suspend"]),
    "operator.resume": (OF_OWNER, MAY["resume"]),
    "operator.set_priority": (OF_OWNER, MAY["priority"]),
    "drains.drain": (OF_ADMIN, lambda api: api.drains.drain("n1", True)),
    "reservations.plan_drain": (OF_ADMIN, lambda api: api.reservations.plan_drain("n1", LATER, None)),
    "reservations.reserve": (OF_SELF, lambda api: api.reservations.reserve({**RESERVED, "user": "ann"})),
    "reservations.listed": (OF_ALL, lambda api: api.reservations.listed()),
    "reservations.cancel": (OF_SELF, lambda api: api.reservations.cancel(first_reservation(api))),
    "reservations.users_of_idle_gpus": (NO_HANDLER, lambda api: None),
    "reservations.end_drains": (NO_HANDLER, lambda api: None),
    "slamls.apply": (OF_ADMIN, lambda api: api.slamls.apply({})),
    "slamls.all": (OF_ALL, lambda api: api.slamls.all()),
    "slamls.delete": (OF_ADMIN, lambda api: api.slamls.delete("slaml.a.b")),
    "jobs.list_jobs": (OF_ALL, lambda api: api.jobs.list_jobs(True)),
    "jobs.job": (OF_OWNER, lambda api: api.jobs.job("one")),
    "jobs.jobs_page": (OF_ALL, lambda api: api.jobs.jobs_page("running", "", 0, 10)["jobs"]),
    "jobs.open_jobs": (OF_ALL, lambda api: api.jobs.open_jobs(["one"])),
    "jobs.curve": (OF_OWNER, lambda api: api.jobs.curve("one")),
    "output.logs": (OF_OWNER, MAY["logs"]),
    "output.log_tail": (OF_OWNER, MAY["log tail"]),
    "fleet.gpus": (OF_ALL, lambda api: api.fleet.gpus()),
    "fleet.nodes": (OF_ALL, lambda api: api.fleet.nodes()),
    "fleet.gpu_use": (OF_ALL, lambda api: api.fleet.gpu_use()),
    "fleet.coming": (OF_ALL, lambda api: api.fleet.coming()),
    "fleet.policy": (OF_ALL, lambda api: api.fleet.policy()["systems"]),
    "history.decisions": (OF_ALL, lambda api: api.history.decisions(None, 100)),
    "history.decision": (OF_OWNER, lambda api: api.history.decision("one-v1")),
    "history.decided": (OF_ALL, lambda api: api.history.decided(0, 100)),
    "history.events_after": (OF_ALL, lambda api: api.history.events_after(0, 1_000)),
    "history.newest_events": (OF_ALL, lambda api: api.history.newest_events()),
    "history.last_event": (OF_ALL, lambda api: api.history.last_event()),
    "history.on_event": (OF_ALL, lambda api: api.history.on_event(lambda: None)()),
    "rights.shares": (OF_ALL, lambda api: api.rights.shares()),
    "rights.set_shares": (OF_ADMIN, lambda api: api.rights.set_shares("queues: {}")),
    "rights.usage": (OF_ALL, lambda api: api.rights.usage(0)),
    "profiles.profiles": (OF_ADMIN, lambda api: api.profiles.profiles("overheads")),
    "profiles.import_profiles": (OF_ADMIN, lambda api: api.profiles.import_profiles("overheads", [])),
    "simulations.snapshot": (OF_ADMIN, lambda api: api.simulations.snapshot()),
    "simulations.journal": (OF_ADMIN, lambda api: api.simulations.journal()),
    "simulations.what_if": (OF_ADMIN, lambda api: api.simulations.what_if({})),
    "status.acts": (OF_ALL, lambda api: api.status.acts()),
    "status.health": (OF_ALL, lambda api: api.status.health()),
    "status.metrics": (OF_ALL, lambda api: api.status.metrics().decode()),
    "status.wall": (OF_ALL, lambda api: api.status.wall()),
}
"""Each operation of `UserServices`: how it is judged, and a call that is not about the caller's own."""


def first_reservation(api: UserServices) -> str:
    return str(api.reservations.listed()[0]["reservation_id"])


def operations() -> set[str]:
    """Return all public methods of the services of users, as `service.method`."""
    kinds = typing.get_type_hints(UserServices)
    return {
        f"{service}.{name}"
        for service, kind in kinds.items()
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name != "of_access"
    }


def test_each_operation_of_users_is_judged() -> None:
    assert operations() == JUDGED.keys(), "say in JUDGED how the new operation is judged"


@pytest.mark.parametrize("operation", JUDGED)
def test_a_user_learns_and_changes_nothing_of_a_hidden_job_by_any_operation(world: World, operation: str) -> None:
    world.api.of_caller(ANN).reservations.reserve({"gpus": 1, "until": world.clock.wall() + 600})
    judgement, call = JUDGED[operation]
    hidden = world.api.of_caller(HIDDEN)
    before = world.store.get("jobs", "one")
    if judgement in (OF_OWNER, OF_ADMIN, OF_SELF):
        assert status_of(call, hidden) == (404 if judgement == OF_OWNER else NOT_HERS)
    else:
        shown = json.dumps(call(hidden), default=str)
        assert not re.search(r"\b(one|ann)\b|secret", shown), shown
    assert world.store.get("jobs", "one") == before


def test_each_service_of_a_user_judges_that_user(world: World) -> None:
    services = world.api.of_caller(BEN)
    callers = [one.access.caller for one in vars(services).values() if isinstance(one, UserService)]
    assert callers == [BEN] * (len(vars(services)) - 1), "all but the coordinator's own status"
    assert world.api.jobs.access.caller is None, "and the services of the operator are as they were"


def test_the_server_sets_the_owner_whatever_the_document_says(world: World) -> None:
    ben = world.api.of_caller(BEN)
    view = ben.submissions.submit({"job_id": "two", **JOB, "owner_uid": ANN.uid, "wished_by": "ann"})
    assert view["owner"] == "ben"
    stored = world.store.get("jobs", "two")
    assert stored is not None and (stored["owner"], stored["owner_uid"]) == ("ben", BEN.uid)
    for wrong in ("ann", "root"):
        assert status_of(lambda api, owner=wrong: api.submissions.submit({**JOB, "owner": owner}), ben) == NOT_HERS
    assert (
        ben.submissions.submit({"job_id": "three", **JOB, "owner": "ben", "_id": "one~2", "origin": "volcano"})["owner"]
        == "ben"
    )
    assert world.store.get("jobs", "one~2") is None
    world.tick()
    assert world.job("two").doc["owner_uid"] == BEN.uid, "intake must not clear it"


@pytest.mark.parametrize("verb", MAY)
def test_a_job_is_changed_and_read_by_its_owner_and_administrators_only(world: World, verb: str) -> None:
    before = world.store.get("jobs", "one")
    assert status_of(MAY[verb], world.api.of_caller(BEN)) == NOT_HERS
    assert status_of(MAY[verb], world.api.of_caller(SUCCESSOR)) == NOT_HERS
    assert status_of(MAY[verb], world.api.of_caller(HIDDEN)) == 404, "nor learns that there is one"
    assert world.store.get("jobs", "one") == before
    for caller in (ANN, ADMIN):
        try:
            MAY[verb](world.api.of_caller(caller))
        except Rejected as refused:
            assert refused.status == 409, refused


def test_who_changed_a_job_is_on_record_also_once_it_is_done(world: World) -> None:
    wish = world.api.of_caller(ADMIN).operator.request("one", 1, None)["decision_id"]
    assert (world.api.history.decision(wish)["by"], world.api.history.decision(wish)["sentence"]) == (
        "ada",
        "User ada asked for 1 GPU.",
    )
    world.run(lambda w: w.job("one").doc["num_gpus"] == 1)
    done = world.api.history.decision(wish)
    assert (done["kind"], done["by"]) == ("reshape", "ada")
    world.api.of_caller(ANN).operator.cancel("one")
    (cancelled,) = [one for one in world.api.history.decisions("one", 100) if one["kind"] == "cancel"]
    assert (cancelled["by"], cancelled["sentence"]) == ("ann", "User ann cancelled it.")
    asked = [
        (e["user"], e["verb"], e["about"]) for e in world.api.history.events_after(0, 1_000) if e["type"] == "asked"
    ]
    assert asked == [("ann", "submit", "one"), ("ada", "reshape", "one"), ("ann", "cancel", "one")]


def test_an_operator_of_a_queue_holds_cancels_and_reprioritises_its_jobs_and_no_more(tmp_path: Path) -> None:
    """Also where others' jobs are hidden; neither their output nor their counts are an operator's."""
    (tmp_path / "shares.yaml").write_text("queues: {vision: {operators: [ben]}, nlp: {}}")
    world = World(config=replace(SHORT, shares=str(tmp_path / "shares.yaml")))
    world.tick()
    ann = world.api.of_caller(ANN)
    ben = world.api.of_caller(HIDDEN)
    for name, queue in (("one", "vision"), ("two", "nlp")):
        world.machines.behaviour[name] = Behaviour(iterations=4_000)
        ann.submissions.submit({"job_id": name, "queue": queue, **JOB})
    world.run(lambda w: set(w.states().values()) == {s.RUNNING})
    assert [view["job_id"] for view in ben.jobs.list_jobs(False)] == ["one"]
    assert "secret" not in json.dumps(ben.jobs.job("one"))
    ben.operator.set_priority("one", 7)
    world.tick()
    assert world.job("one").doc["priority"] == 7
    ben.operator.suspend("one")
    world.run(lambda w: w.states()["one"] == s.SUBMITTED)
    ben.operator.resume("one")
    world.run(lambda w: w.states()["one"] == s.RUNNING)
    for call in (MAY["reshape"], MAY["checkpoint"], MAY["stop"], MAY["logs"], MAY["log tail"], MAY["remove"]):
        assert status_of(call, ben) in (403, 404)
    for call in (
        lambda api: api.operator.suspend("two"),
        lambda api: api.operator.cancel("two"),
        lambda api: api.operator.set_priority("two", 1),
    ):
        assert status_of(call, ben) == 404
        assert status_of(call, world.api.of_caller(BEN)) == NOT_HERS
    ben.operator.cancel("one")
    world.run(lambda w: w.states()["one"] == s.CANCELLED)
    asked = [
        (e["user"], e["verb"])
        for e in world.api.history.events_after(0, 1_000)
        if e["type"] == "asked" and e["about"] == "one"
    ]
    assert asked == [("ann", "submit"), ("ben", "priority"), ("ben", "suspend"), ("ben", "resume"), ("ben", "cancel")]


def test_of_others_jobs_the_name_the_state_and_counts_are_seen(world: World) -> None:
    ben = world.api.of_caller(BEN)
    for view in (ben.jobs.job("one"), *ben.jobs.list_jobs(False), *ben.jobs.jobs_page("running", "", 0, 10)["jobs"]):
        assert (view["job_id"], view["owner"], view["state"], view["num_gpus"]) == ("one", "ann", s.RUNNING, 2)
        assert view.keys() == world.api.of_caller(ANN).jobs.job("one").keys(), "programs find each field"
        assert "secret" not in json.dumps(view) and not view["iters_done"] and view["trainer_pid"] is None
    world.run(lambda w: bool(w.api.of_caller(ANN).jobs.curve("one")["gpus"]), limit_s=200)  # else nothing is hidden
    assert ben.jobs.curve("one") == {"job_id": "one", "value_name": None, "values": [], "speeds": [], "gpus": []}
    assert ben.jobs.open_jobs(["one"])["one"]["state"] == s.RUNNING


def test_events_and_decisions_of_others_say_no_more_than_that_they_were(world: World) -> None:
    ann = world.api.of_caller(ANN)
    ben = world.api.of_caller(BEN)
    for api, told in ((ann, True), (ben, False)):
        said = json.dumps(
            [
                api.history.events_after(0, 1_000),
                api.history.newest_events(),
                api.history.decisions("one", 10),
                api.history.decided(0, 10)[0],
            ]
        )
        assert ("trainer_pid" in said) is told
        assert (OF_OTHERS in said) is not told
        assert '"job_id": "one"' in said
    assert [e["_id"] for e in ben.history.events_after(0, 1_000)] == [
        e["_id"] for e in ann.history.events_after(0, 1_000)
    ]


def test_a_machine_can_hide_others_jobs(world: World) -> None:
    hidden = world.api.of_caller(HIDDEN)
    assert hidden.jobs.list_jobs(True) == [] and hidden.jobs.jobs_page("running", "", 0, 10)["jobs"] == []
    rows = [
        *hidden.fleet.gpus(),
        *hidden.history.events_after(0, 1_000),
        *hidden.history.newest_events(),
        *hidden.history.decisions(None, 10),
    ]
    assert "one" not in {value for row in rows for value in row.values() if isinstance(value, str)}
    assert hidden.jobs.open_jobs(["one"]) == {}
    assert status_of(lambda api: api.jobs.curve("one"), hidden) == 404
    assert {gpu["state"] for gpu in hidden.fleet.gpus()} == {s.IN_USE, s.IDLE}, "but which GPUs are taken"


def test_words_about_an_own_job_name_no_hidden_one(world: World) -> None:
    hidden = world.api.of_caller(HIDDEN)
    for name in ("wide", "after-one"):
        hidden.submissions.submit({**JOB, "job_id": name, "optional_num_gpus": [4], "elastic": False})
    world.tick()
    world.tick()
    seen = [
        hidden.jobs.job("wide"),
        *hidden.jobs.list_jobs(False),
        *hidden.history.decisions("wide", 10),
        *hidden.history.events_after(0, 1_000),
    ]
    said = json.dumps([{field: row.get(field) for field in ("message", "sentence", "jobs", "binds")} for row in seen])
    whole = json.dumps([world.api.jobs.job("wide"), world.api.history.decisions("wide", 10)])
    assert re.search(r"\bone\b", whole), "else nothing is hidden"
    assert not re.search(r"(?<!-)\bone\b", said) and "another user's job" in said


def test_a_job_that_gets_gpus_of_a_hidden_one_never_learns_its_name(world: World) -> None:
    hidden = world.api.of_caller(HIDDEN)
    world.api.of_caller(ANN).submissions.submit({**JOB, "job_id": "more", "optional_num_gpus": [2], "elastic": False})
    world.run(lambda w: w.states().get("more") == s.RUNNING)
    hidden.submissions.submit({**JOB, "job_id": "mine", "optional_num_gpus": [1], "iterations": 400})
    seen: list[Any] = []

    def looked(w: World) -> bool:
        seen.extend(
            [
                hidden.jobs.job("mine"),
                *hidden.jobs.list_jobs(True),
                *hidden.fleet.gpus(),
                *hidden.history.decisions(None, 100),
            ]
        )
        return w.states().get("mine") == s.RUNNING

    world.run(looked, limit_s=400)
    seen += [
        *hidden.history.events_after(0, 1_000),
        *hidden.history.newest_events(),
        hidden.fleet.coming(),
        hidden.rights.shares(),
        hidden.status.health(),
    ]
    assert any("mine" in gpu.values() and "one" in gpu.values() for gpu in world.api.history.events_after(0, 1_000))
    named = [row for row in seen if re.search(r"\b(one|more)\b", json.dumps(row, default=str))]
    assert not named


def test_names_stay_hidden_once_their_jobs_have_ended_and_are_removed(world: World) -> None:
    hidden = world.api.of_caller(HIDDEN)
    hidden.submissions.submit({**JOB, "job_id": "wide", "optional_num_gpus": [4], "elastic": False})
    world.tick()
    world.tick()
    world.api.of_caller(ANN).operator.cancel("one")
    world.run(lambda w: bool(w.users.get("jobs", "one")["closed"]))
    for removed in (False, True):
        if removed:
            world.api.of_caller(ANN).operator.remove("one")
            world.pass_time(LASTS_S + 1)
            hidden.jobs.jobs_page("ended", "", 0, 10)
        whole = json.dumps(world.api.history.decisions("wide", 10))
        assert re.search(r"\b(one|ann)\b", whole), "else nothing is hidden"
        assert not re.search(r"\b(one|ann)\b", json.dumps(hidden.history.decisions("wide", 10))), removed


def test_ended_jobs_of_others_are_not_found_by_parts_of_their_names(world: World) -> None:
    world.api.of_caller(ANN).operator.cancel("one")
    world.run(lambda w: bool(w.users.get("jobs", "one")["closed"]))
    assert world.api.of_caller(BEN).jobs.jobs_page("ended", "on", 0, 10)["total"] == 1
    found = world.api.of_caller(HIDDEN).jobs.jobs_page("ended", "on", 0, 10)
    assert (found["jobs"], found["total"]) == ([], 0)


def test_a_gpu_that_a_hidden_job_still_holds_tells_no_name(world: World) -> None:
    world.c.event_log.append({"type": "gpu", "gpu_id": "n1/0", "job_id": None, "held_by": "one"})
    assert "one" in json.dumps(world.api.of_caller(BEN).history.events_after(0, 1_000))
    assert '"one"' not in json.dumps(world.api.of_caller(HIDDEN).history.events_after(0, 1_000))


def test_a_refused_reservation_names_no_hidden_job(world: World) -> None:
    ann = world.api.of_caller(ANN).submissions
    ann.submit({**JOB, "job_id": "rigid", "optional_num_gpus": [2], "elastic": False})
    world.run(lambda w: w.states().get("rigid") == s.RUNNING)
    asked = {"gpus": 4, "until": world.clock.wall() + 600}
    said = {}
    for who in (ADMIN, HIDDEN):
        with pytest.raises(Rejected) as refused:
            world.api.of_caller(who).reservations.reserve(asked)
        said[who.admin] = str(refused.value)
    assert "rigid" in said[True], said
    assert not re.search(r"\b(one|rigid|ann)\b", said[False]), said


def test_what_concerns_all_users_is_for_administrators_alone(world: World) -> None:
    everybodys = [call for judgement, call in JUDGED.values() if judgement == OF_ADMIN]
    for call in everybodys:
        assert status_of(call, world.api.of_caller(ANN)) == NOT_HERS
    world.api.of_caller(ADMIN).drains.drain("n1", True)
    assert status_of(lambda api: api.slamls.apply({}), world.api.of_caller(ADMIN)) == NOT_HERS


def test_shares_and_use_of_others_are_seen_unless_they_are_hidden(world: World) -> None:
    seen = world.api.of_caller(BEN)
    assert [row["user"] for row in seen.rights.shares()["users"]] == ["ann"]
    assert {row["user"] for row in seen.rights.usage(0)} == {"ann"}
    hidden = world.api.of_caller(HIDDEN)
    assert (hidden.rights.shares()["users"], hidden.rights.usage(0)) == ([], [])
    said = {"message": "ann holds 2 GPUs and is entitled to 2 now, ben holds 1."}
    assert (
        hidden.jobs.access.without_names(said)["message"]
        == "another user holds 2 GPUs and is entitled to 2 now, ben holds 1."
    )
    assert world.api.of_caller(ADMIN).jobs.access.without_names(said) == said


def test_a_data_set_that_root_would_fetch_is_refused(world: World) -> None:
    ann = world.api.of_caller(ANN)
    assert status_of(lambda api: api.submissions.submit({**JOB, "dataset": "http://127.0.0.1/x"}), ann) == 400
    assert ann.submissions.submit({**JOB, "dataset": "/data/x"})["dataset"] == "/data/x"


@pytest.mark.parametrize(("who", "count"), [(BEN, 1), (HIDDEN, 0), (ADMIN, 1)])
def test_jobs_are_found_by_an_owner_whom_the_caller_may_know(world: World, who: UnixUser, count: int) -> None:
    api = world.api.of_caller(who)
    assert api.jobs.jobs_page("running", "ann", 0, 10)["total"] == count
    world.api.operator.cancel("one")
    world.run(lambda w: bool(w.users.get("jobs", "one")["closed"]))
    assert api.jobs.jobs_page("ended", "ann", 0, 10)["total"] == count
