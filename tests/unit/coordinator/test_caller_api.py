"""What each user of a shared machine may see and change. No server, no socket."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.api.caller_api import OF_OTHERS, CallerApi
from coordinator.caller import Caller
from coordinator.errors import Rejected
from coordinator.http.coordinator_api import UserOperations
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.world import JOB_TYPE, World

ANN = Caller(1001, "ann", False, True)
BEN = Caller(1002, "ben", False, True)
ADMIN = Caller(1003, "ada", True, True)
SUCCESSOR = Caller(1001, "abe", False, True)  # to whom Ann's uid was given
HIDDEN = Caller(1002, "ben", False, False)
JOB: dict[str, Any] = {
    "command": ["python", "secret-plan.py"], "optional_num_gpus": [1, 2], "job_type": JOB_TYPE, "elastic": True,
    "code": "/home/ann/secret-plan", "iterations": 4_000,
}  # fmt: skip
NOT_HERS = 403
MAY: dict[str, Callable[[CallerApi], Any]] = {
    "cancel": lambda api: api.cancel("one"),
    "suspend": lambda api: api.suspend("one"),
    "resume": lambda api: api.resume("one"),
    "reshape": lambda api: api.request("one", 1, None),
    "checkpoint": lambda api: api.request("one", None, "checkpoint"),
    "stop": lambda api: api.request("one", None, "stop"),
    "remove": lambda api: api.remove("one"),
    "rerun": lambda api: api.rerun("one"),
    "logs": lambda api: api.logs("one", 0, 100),
    "log tail": lambda api: api.log_tail("one"),
}


@pytest.fixture
def world() -> World:
    """Ann's job trains."""
    found = World()
    found.machines.behaviour["one"] = Behaviour(iterations=4_000)
    CallerApi(found.api, ANN).submit({"job_id": "one", **JOB})
    found.run(lambda w: w.states().get("one") == s.RUNNING)
    return found


def status_of(call: Callable[[CallerApi], Any], api: CallerApi) -> int:
    with pytest.raises(Rejected) as refused:
        call(api)
    return refused.value.status


def test_every_operation_of_users_is_there_and_nothing_else() -> None:
    def named(kind: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}

    assert named(CallerApi) == named(UserOperations), "judge who may do it, then write it into CallerApi"


def test_the_server_sets_the_owner_whatever_the_document_says(world: World) -> None:
    ben = CallerApi(world.api, BEN)
    view = ben.submit({"job_id": "two", **JOB, "owner_uid": ANN.uid, "wished_by": "ann"})
    assert view["owner"] == "ben"
    stored = world.store.get("jobs", "two")
    assert stored is not None and (stored["owner"], stored["owner_uid"]) == ("ben", BEN.uid)
    for wrong in ("ann", "root"):
        assert status_of(lambda api, owner=wrong: api.submit({**JOB, "owner": owner}), ben) == NOT_HERS
    assert ben.submit({"job_id": "three", **JOB, "owner": "ben", "_id": "one~2", "origin": "volcano"})["owner"] == "ben"
    assert world.store.get("jobs", "one~2") is None
    world.tick()
    assert world.job("two").doc["owner_uid"] == BEN.uid, "intake must not clear it"


@pytest.mark.parametrize("verb", MAY)
def test_a_job_is_changed_and_read_by_its_owner_and_administrators_only(world: World, verb: str) -> None:
    before = world.store.get("jobs", "one")
    assert status_of(MAY[verb], CallerApi(world.api, BEN)) == NOT_HERS
    assert status_of(MAY[verb], CallerApi(world.api, SUCCESSOR)) == NOT_HERS
    assert status_of(MAY[verb], CallerApi(world.api, HIDDEN)) == 404, "nor learns that there is one"
    assert world.store.get("jobs", "one") == before
    for caller in (ANN, ADMIN):
        try:
            MAY[verb](CallerApi(world.api, caller))
        except Rejected as refused:
            assert refused.status == 409, refused


def test_who_changed_a_job_is_on_record_also_once_it_is_done(world: World) -> None:
    wish = CallerApi(world.api, ADMIN).request("one", 1, None)["decision_id"]
    assert (world.api.decision(wish)["by"], world.api.decision(wish)["sentence"]) == (
        "ada",
        "User ada asked for 1 GPU.",
    )
    world.run(lambda w: w.job("one").doc["num_gpus"] == 1)
    done = world.api.decision(wish)
    assert (done["kind"], done["by"]) == ("reshape", "ada")
    CallerApi(world.api, ANN).cancel("one")
    (cancelled,) = [one for one in world.api.decisions("one", 100) if one["kind"] == "cancel"]
    assert (cancelled["by"], cancelled["sentence"]) == ("ann", "User ann cancelled it.")
    asked = [(e["user"], e["verb"], e["about"]) for e in world.api.events_after(0, 1_000) if e["type"] == "asked"]
    assert asked == [("ann", "submit", "one"), ("ada", "reshape", "one"), ("ann", "cancel", "one")]


def test_of_others_jobs_the_name_the_state_and_counts_are_seen(world: World) -> None:
    ben = CallerApi(world.api, BEN)
    for view in (ben.job("one"), *ben.jobs(False), *ben.jobs_page("running", "", 0, 10)["jobs"]):
        assert (view["job_id"], view["owner"], view["state"], view["num_gpus"]) == ("one", "ann", s.RUNNING, 2)
        assert view.keys() == CallerApi(world.api, ANN).job("one").keys(), "programs find each field"
        assert "secret" not in json.dumps(view) and not view["iters_done"] and view["trainer_pid"] is None
    world.run(lambda w: bool(CallerApi(w.api, ANN).curve("one")["gpus"]), limit_s=200)  # else nothing is hidden
    assert ben.curve("one") == {"job_id": "one", "value_name": None, "values": [], "speeds": [], "gpus": []}
    assert ben.open_jobs(["one"])["one"]["state"] == s.RUNNING


def test_events_and_decisions_of_others_say_no_more_than_that_they_were(world: World) -> None:
    ann, ben = CallerApi(world.api, ANN), CallerApi(world.api, BEN)
    for api, told in ((ann, True), (ben, False)):
        said = json.dumps([api.events_after(0, 1_000), api.history(), api.decisions("one", 10), api.decided(0, 10)[0]])
        assert ("trainer_pid" in said) is told
        assert (OF_OTHERS in said) is not told
        assert '"job_id": "one"' in said
    assert [e["_id"] for e in ben.events_after(0, 1_000)] == [e["_id"] for e in ann.events_after(0, 1_000)]


def test_a_machine_can_hide_others_jobs(world: World) -> None:
    hidden = CallerApi(world.api, HIDDEN)
    assert hidden.jobs(True) == [] and hidden.jobs_page("running", "", 0, 10)["jobs"] == []
    rows = [*hidden.gpus(), *hidden.events_after(0, 1_000), *hidden.history(), *hidden.decisions(None, 10)]
    assert "one" not in {value for row in rows for value in row.values() if isinstance(value, str)}
    assert hidden.open_jobs(["one"]) == {}
    assert status_of(lambda api: api.curve("one"), hidden) == 404
    assert {gpu["state"] for gpu in hidden.gpus()} == {s.IN_USE, s.IDLE}, "but which GPUs are taken"


def test_words_about_an_own_job_name_no_hidden_one(world: World) -> None:
    hidden = CallerApi(world.api, HIDDEN)
    for name in ("wide", "after-one"):
        hidden.submit({**JOB, "job_id": name, "optional_num_gpus": [4], "elastic": False})
    world.tick()
    world.tick()
    seen = [hidden.job("wide"), *hidden.jobs(False), *hidden.decisions("wide", 10), *hidden.events_after(0, 1_000)]
    said = json.dumps([{field: row.get(field) for field in ("message", "sentence", "jobs", "binds")} for row in seen])
    whole = json.dumps([world.api.job("wide"), world.api.decisions("wide", 10)])
    assert re.search(r"\bone\b", whole), "else nothing is hidden"
    assert not re.search(r"(?<!-)\bone\b", said) and "another user's job" in said


def test_what_concerns_all_users_is_for_administrators_alone(world: World) -> None:
    everybodys: list[Callable[[CallerApi], Any]] = [
        lambda api: api.drain("n1", True), lambda api: api.snapshot(), lambda api: api.journal(),
        lambda api: api.profiles("overheads"), lambda api: api.import_profiles("overheads", []),
        lambda api: api.what_if({}), lambda api: api.set_shares("queues: {}"),
    ]  # fmt: skip
    for call in everybodys:
        assert status_of(call, CallerApi(world.api, ANN)) == NOT_HERS
    CallerApi(world.api, ADMIN).drain("n1", True)
    assert status_of(lambda api: api.apply_slaml({}), CallerApi(world.api, ADMIN)) == NOT_HERS


def test_shares_and_use_of_others_are_seen_unless_they_are_hidden(world: World) -> None:
    seen = CallerApi(world.api, BEN)
    assert [row["user"] for row in seen.shares()["users"]] == ["ann"]
    assert {row["user"] for row in seen.usage(0)} == {"ann"}
    hidden = CallerApi(world.api, HIDDEN)
    assert (hidden.shares()["users"], hidden.usage(0)) == ([], [])
    said = {"message": "ann holds 2 GPUs and is entitled to 2 now, ben holds 1."}
    assert hidden._nameless(said)["message"] == "another user holds 2 GPUs and is entitled to 2 now, ben holds 1."
    assert CallerApi(world.api, ADMIN)._nameless(said) == said


def test_a_data_set_that_root_would_fetch_is_refused(world: World) -> None:
    ann = CallerApi(world.api, ANN)
    assert status_of(lambda api: api.submit({**JOB, "dataset": "http://127.0.0.1/x"}), ann) == 400
    assert ann.submit({**JOB, "dataset": "/data/x"})["dataset"] == "/data/x"
