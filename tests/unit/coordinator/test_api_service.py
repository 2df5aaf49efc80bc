"""What callers may ask of the coordinator, and the sentence and status of each refusal. No server, no socket."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from coordinator.api.submissions import ENDING
from coordinator.errors import Rejected, Transient
from coordinator.model import states as s
from tests.fakes.shims import Behaviour
from tests.fakes.store import MemoryStore
from tests.fakes.world import JOB_TYPE, World

JOB: dict[str, Any] = {"job_id": "one", "command": ["python", "train.py"], "optional_num_gpus": [1, 2]}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def training() -> World:
    """One job that trains on four GPUs and has a long way to go."""
    return World.training([1, 2, 4])


def refused(call: Any, *arguments: Any) -> tuple[str, int]:
    with pytest.raises(Rejected) as refusal:
        call(*arguments)
    return str(refusal.value), refusal.value.status


# submitting


def test_a_submitted_job_is_a_document_like_any_other_and_is_let_in_by_the_next_turn(world: World) -> None:
    world.c.stale.clear()
    view = world.api.submissions.submit({**JOB, "x_mine": {"a": 1}})
    assert (view["job_id"], view["state"]) == ("one", s.SUBMITTED)
    assert view["job_type"].startswith("derived-")
    assert world.store.get("jobs", "one") == {"_id": "one", "state": s.SUBMITTED, **JOB, "x_mine": {"a": 1}}
    assert world.c.stale.is_set(), "the loop must not wait for its next poll"
    world.tick()
    assert world.api.jobs.job("one")["state"] == s.INITIALIZING
    assert world.job("one").doc["x_mine"] == {"a": 1}


def test_a_bad_document_is_refused_with_everything_that_is_wrong_and_not_kept(world: World) -> None:
    with pytest.raises(Rejected) as refusal:
        world.api.submissions.submit({"job_id": "one", "command": 3, "optional_num_gpus": []})
    assert str(refusal.value).startswith("The job was not accepted: optional_num_gpus must be a list of GPU counts")
    assert (refusal.value.status, len(refusal.value.problems)) == (400, 2)
    assert world.store.list("jobs") == []


@pytest.mark.parametrize("taken", ["one", 1])
def test_a_name_that_is_taken_is_refused_while_its_job_lives(world: World, taken: str | int) -> None:
    sentence = f"The job was not accepted: job_id {taken!r} belongs to another job; choose another one."
    world.api.submissions.submit({**JOB, "job_id": taken})
    assert refused(world.api.submissions.submit, {**JOB, "job_id": taken}) == (sentence, 409)
    world.tick()
    assert refused(world.api.submissions.submit, {**JOB, "job_id": taken}) == (sentence, 409)
    world.api.operator.cancel(str(taken))
    assert refused(world.api.submissions.submit, {**JOB, "job_id": taken}) == (ENDING.format(taken), 409)
    world.run(World.at_rest)
    assert world.api.submissions.submit({**JOB, "job_id": taken})["state"] == s.SUBMITTED


def test_of_two_who_submit_one_name_at_once_one_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.api.submissions.submit(JOB)
    monkeypatch.setattr(world.c.cache, "named", lambda job_id: [])  # the other one was not there yet
    assert refused(world.api.submissions.submit, JOB)[1] == 409


@pytest.mark.parametrize("nameless", [{}, {"job_id": None}])
def test_a_job_without_a_name_is_given_one(world: World, nameless: dict[str, Any]) -> None:
    doc = {**{k: v for k, v in JOB.items() if k != "job_id"}, **nameless}
    names = {world.api.submissions.submit(doc)["job_id"] for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith("job-") for name in names)


def test_a_document_that_claims_to_have_been_let_in_goes_through_intake_all_the_same(world: World) -> None:
    world.api.submissions.submit({**JOB, "uid": "mine", "closed": False, "generation": 9, "launch": 9})
    world.tick()
    job = world.job("one")
    assert (job.uid != "mine", job.generation, job.launch, job.state) == (True, 0, 1, s.INITIALIZING)


# looking


def test_jobs_are_listed_oldest_first_and_ended_ones_only_if_asked_for(world: World) -> None:
    world.submit("b", [1], Behaviour(iterations=4_000))
    world.tick()
    world.submit("a", [1], Behaviour(iterations=2))
    world.run(lambda w: w.states()["a"] == s.COMPLETED)
    world.run(lambda w: bool(w.job("a").doc.get("closed")))
    assert [view["job_id"] for view in world.api.jobs.list_jobs(include_ended=False)] == ["b"]
    assert [view["job_id"] for view in world.api.jobs.list_jobs(include_ended=True)] == ["b", "a"]


def test_a_document_that_was_refused_is_listed_with_its_problems(world: World) -> None:
    world.users.insert("jobs", {"_id": "bad", "state": "submitted"})
    world.tick()
    (view,) = world.api.jobs.list_jobs(include_ended=False)
    assert (view["job_id"], view["state"], len(view["problems"])) == ("bad", s.SUBMITTED, 2)


@pytest.mark.parametrize("ask", ["jobs.job", "operator.cancel", "output.logs", "operator.request", "history.decisions"])
def test_a_job_that_does_not_exist_is_one_sentence_everywhere(world: World, ask: str) -> None:
    more = {"output.logs": (0, 10), "operator.request": (1, None), "history.decisions": (5,)}.get(ask, ())
    kept = "Of those that have ended, the newest 10,000, for 30 days are kept (RESHAPE_KEEP_JOBS, RESHAPE_KEEP_JOBS_S)"
    assert refused(attrgetter(ask)(world.api), "nobody", *more) == (
        f"There is no job 'nobody'; `reshape jobs -a` lists all. {kept}.",
        404,
    )


def test_a_job_whose_name_is_a_number_is_found_by_its_digits(world: World) -> None:
    world.submit(3, [1])
    world.tick()
    assert world.api.jobs.job("3")["job_id"] == 3
    assert [d["job_id"] for d in world.api.history.decisions("3", 5)] == [3]


def test_gpus_and_nodes_are_counted_and_marked_as_emulated(training: World) -> None:
    training.users.update("gpus", "gpu-3", {}, {"state": s.FAULTY})
    training.submit("two", [1])
    training.tick()
    views = training.api.fleet.gpus()
    assert [view["gpu_id"] for view in views] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    assert (views[0]["state"], views[0]["held_by"], views[0]["emulated"]) == (s.IN_USE, "one", True)
    (node,) = training.api.fleet.nodes()
    assert node == {
        "node": "n1", "gpu_type": "V100", "gpus": 4, "idle": 0, "kept": 0, "cores": 0.0, "emulated": True,
        "heard": True,
        "schedulable": True, "jobs": 1, "categories": {"PC": 0, "WC": 0, "CC": 0}, "score": 0.0, "cpu_use": 0.0,
        "memory_use": 0.0, "told": None, "others_cores": 0.0, "others_memory": 0.0, "others_from": "requests",
        "drained": False,
    }  # fmt: skip


# cancelling


def test_a_running_job_is_cancelled_once(training: World) -> None:
    assert training.api.operator.cancel("one")["cancel"] is True
    training.api.operator.cancel("one")
    training.run(World.at_rest)
    view = training.api.operator.cancel("one")
    assert (view["state"], view["message"]) == (s.CANCELLED, "cancelled by the user")
    version = training.job("one").doc["version"]
    training.api.operator.cancel("one")
    assert training.job("one").doc["version"] == version
    assert all(gpu["state"] == s.IDLE for gpu in training.api.fleet.gpus())


def test_a_document_that_was_refused_is_cancelled_at_once(world: World) -> None:
    world.users.insert("jobs", {"_id": "bad", "state": "submitted"})
    world.tick()
    assert world.api.operator.cancel("bad")["state"] == s.CANCELLED
    world.tick()
    assert world.at_rest()


def test_a_job_that_is_let_in_while_it_is_being_cancelled_is_cancelled_in_order(world: World) -> None:
    """Never closed on the spot: by then it may have been promised GPUs and launched."""
    world.api.submissions.submit(JOB)
    update, busy = world.store.update, False

    def slow(table: str, key: Any, expect: Any, changes: Any) -> Any:
        nonlocal busy
        if not busy and changes.get("state") == s.CANCELLED:
            busy = True
            world.turn()
        return update(table, key, expect, changes)

    world.store.update = slow  # type: ignore[method-assign]
    assert world.api.operator.cancel("one")["state"] == s.INITIALIZING
    world.run(World.at_rest)
    assert world.states() == {"one": s.CANCELLED}
    assert all(gpu["state"] == s.IDLE for gpu in world.api.fleet.gpus())
    assert not any(launch.alive for launch in world.machines.launches.values())


def test_a_refused_document_that_is_edited_while_it_is_cancelled_does_not_slip_in(world: World) -> None:
    world.users.insert("jobs", {"_id": "bad", "state": "submitted"})
    world.tick()
    seen = world.c.cache.find("bad")
    assert seen is not None
    world.users.update("jobs", "bad", {}, {"x_note": "edited"})
    with pytest.raises(Exception, match="has changed"):
        world.c.cache.write_job(seen, {"state": s.CANCELLED, "closed": True}, "cancel")
    assert world.c.cache.jobs() == {}, "intake has not let it in"
    assert world.api.operator.cancel("bad")["state"] == s.CANCELLED


def test_a_cancellation_that_never_gets_through_says_so(training: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy(MemoryStore):
        def update(self, table: str, key: Any, expect: Any, changes: Any) -> Any:
            super().update(table, key, {}, {"x_note": "edited"})
            return super().update(table, key, expect, changes)

    busy = Busy()
    busy._tables = training.store._tables
    monkeypatch.setattr(training.c.cache, "store", busy)
    with pytest.raises(Transient, match=r"^Job one keeps changing, so it could not be cancelled; try again\.$"):
        training.api.operator.cancel("one")
    with pytest.raises(Transient, match=r"^Job one keeps changing, so nothing was changed; try again\.$"):
        training.api.operator.suspend("one")
    assert not training.job("one").cancel
    assert not training.job("one").suspended


# wishes


def test_a_request_that_meets_another_change_of_the_job_is_carried_out_all_the_same(
    training: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, others = training.store.update, ["first", "second"]

    def meets(table: str, key: Any, expect: Any, changes: Any) -> Any:
        if "wish_id" in changes and others:
            training.users.update("jobs", "one", {}, {"x_note": others.pop()})
        return update(table, key, expect, changes)

    monkeypatch.setattr(training.store, "update", meets)
    decision_id = training.api.operator.suspend("one")["decision_id"]
    assert others == []
    assert training.job("one").suspended
    noted = [each["decision_id"] for each in training.api.history.decisions("one", 100) if each["kind"] == "wish"]
    assert noted == [decision_id], "what was not written has left no decision"


def test_of_two_requests_at_once_the_one_that_comes_late_leaves_the_others_decision(
    training: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    update, won = training.store.update, list[str]()

    def meets(table: str, key: Any, expect: Any, changes: Any) -> Any:
        if "wish_id" in changes and not won:
            won.append("")  # the other one's own write goes through
            won[0] = training.api.operator.request("one", 2, None)["decision_id"]
        return update(table, key, expect, changes)

    monkeypatch.setattr(training.store, "update", meets)
    late = training.api.operator.suspend("one")["decision_id"]
    assert training.api.history.decision(won[0])["sentence"] == "An operator asked for 2 GPUs."
    assert training.api.history.decision(late)["sentence"] == "An operator suspended it."
    assert len([each for each in training.api.history.decisions("one", 100) if each["kind"] == "wish"]) == 2


def test_a_wish_becomes_a_decision_that_can_be_looked_up_by_its_id(training: World) -> None:
    wish = training.api.operator.request("one", 2, None)["decision_id"]
    first = training.api.history.decision(wish)
    assert (first["kind"], first["sentence"]) == ("wish", "An operator asked for 2 GPUs.")
    training.run(lambda w: w.job("one").doc["num_gpus"] == 2 and w.states()["one"] == s.RUNNING)
    done = training.api.history.decision(wish)
    assert (done["kind"], done["algorithm"], done["num_gpus"]) == ("reshape", "operator", 2)
    training.api.operator.request("one", None, None)
    training.run(lambda w: w.job("one").doc["num_gpus"] == 4)


def test_a_wish_for_a_count_that_is_not_allowed_names_the_allowed_ones(training: World) -> None:
    answer = refused(training.api.operator.request, "one", 3, None)
    assert answer == ("Job one can run on 1 or 2 or 4 GPUs, not on 3.", 400)
    assert training.job("one").wanted is None


def test_nothing_can_be_wished_of_a_job_that_ended_or_was_refused(world: World) -> None:
    world.users.insert("jobs", {"_id": "bad", "state": "submitted"})
    world.submit("one", [1], Behaviour(iterations=2))
    world.run(lambda w: w.states()["one"] == s.COMPLETED)
    sentence = "Job {} is {}: there is nothing to change."
    assert refused(world.api.operator.request, "one", 1, None) == (sentence.format("one", s.COMPLETED), 409)
    assert refused(world.api.operator.request, "bad", 1, None) == (sentence.format("bad", s.SUBMITTED), 409)


def test_only_a_trainer_that_runs_can_be_asked_for_a_checkpoint_and_only_for_that(world: World) -> None:
    world.submit("one", [1], Behaviour(iterations=4_000))
    world.tick()
    sentence = "Job one is not training now; try again once it runs."
    assert refused(world.api.operator.request, "one", None, "checkpoint") == (sentence, 409)
    world.run(lambda w: w.states()["one"] == s.RUNNING)
    sentence = "The signal must be `checkpoint` (save and go on) or `stop` (save and end), not 'kill'."
    assert refused(world.api.operator.request, "one", None, "kill") == (sentence, 400)
    before = len(world.api.history.decisions("one", 99))
    answer = refused(world.api.operator.request, "one", None, "checkpoint")
    assert answer == ("Job one was not asked for a checkpoint: this trainer cannot save without exiting.", 409)
    assert len(world.api.history.decisions("one", 99)) == before, "what was refused was not decided"


def test_a_training_that_is_told_to_stop_ends_as_cancelled_and_its_decision_is_kept(training: World) -> None:
    decided = training.api.operator.request("one", None, "stop")["decision_id"]
    training.run(lambda w: w.states()["one"] == s.CANCELLED)
    sentence = training.api.history.decision(decided)["sentence"]
    assert sentence == "An operator asked its training to save and end."
    assert training.job("one").doc["gpu_ids"] is None


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"elastic": None}, "it has not shown that it saves when it is stopped, so what it has trained would be lost"),
        ({"elastic": False}, 'its record says "elastic": false'),
    ],
)
def test_a_rigid_job_is_told_to_stop_only_by_force(world: World, record: dict[str, Any], why: str) -> None:
    world.submit("one", [1], Behaviour(iterations=4_000), **record)
    world.run(lambda w: w.states()["one"] == s.RUNNING)
    sentence = f'Job one was not told to end: {why}; "force": true in the call ends it all the same.'
    assert refused(world.api.operator.request, "one", None, "stop") == (sentence, 409)
    assert not world.job("one").cancel
    world.api.operator.request("one", None, "stop", True)
    world.run(lambda w: w.states()["one"] == s.CANCELLED)


# explaining


def test_decisions_are_told_newest_first_with_their_rejected_alternatives(training: World) -> None:
    training.api.operator.request("one", 2, None)
    training.run(lambda w: w.job("one").doc["num_gpus"] == 2 and w.states()["one"] == s.RUNNING)
    newest, *_, oldest = training.api.history.decisions("one", 99)
    assert (newest["kind"], oldest["kind"]) == ("reshape", "start")
    rejected = [c["rejected"] for c in oldest["candidates"]]
    assert "" in rejected
    assert any(rejected)
    assert not {"_id", "version", "last_op"} & set(oldest)
    assert training.api.history.decisions("one", 1) == [newest]
    assert training.api.history.decision(oldest["decision_id"]) == oldest


def test_a_decision_that_does_not_exist_is_a_sentence(world: World) -> None:
    assert refused(world.api.history.decision, "none") == ("There is no decision 'none'.", 404)


# profiles

ROW: dict[str, Any] = {"job_type": "t", "gpu_type": "V100", "num_gpus": 2, "seconds_per_iteration": 0.5}


def test_imported_rows_are_used_by_the_next_decision_and_replaced_by_the_next_import(world: World) -> None:
    before = len(world.api.profiles.profiles("speed_profiles"))
    assert world.api.profiles.import_profiles("speed_profiles", [ROW]) == 1
    assert world.api.profiles.import_profiles("speed_profiles", [{**ROW, "seconds_per_iteration": 0.25}]) == 1
    assert len(world.api.profiles.profiles("speed_profiles")) == before + 1
    world.tick()
    speed = world.c.loop.profiles.speed("t", "V100", 2)
    assert speed is not None
    assert (speed.seconds, speed.origin) == (0.25, "imported")


def test_rows_tell_what_was_learned_until_now(world: World) -> None:
    world.c.telemetry.estimator.overheads("new", world.c.loop.profiles, proc_restart=3.0)
    (row,) = (row for row in world.api.profiles.profiles("overheads") if row["job_type"] == "new")
    assert row["proc_restart"] == 3.0


@pytest.mark.parametrize("table", ["speed_profiles", "overheads"])
def test_what_was_exported_can_be_imported_again(world: World, table: str) -> None:
    rows = world.api.profiles.profiles(table)
    without_keys = [{k: v for k, v in row.items() if k != "_id"} for row in rows]
    assert world.api.profiles.import_profiles(table, without_keys) == len(rows)
    assert world.api.profiles.profiles(table) == rows, "no row is there twice"
    world.tick()
    speed = world.c.loop.profiles.speed(JOB_TYPE, "V100", 4)
    assert speed is not None
    assert speed.seconds == 0.25


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {**ROW, "num_gpus": 0},
            "No row was imported: speed profile row 2 is left out: num_gpus must be a whole number",
        ),
        ({**ROW, "seconds_per_iteration": -1}, "No row was imported: speed profile row 2 is left out: seconds_per_it"),
        ({}, "No row was imported: speed profile row 2 is left out: job_type must be a name, not None"),
        (["t", "V100"], "No row was imported: row 2 is not an object."),
        ({**ROW, "a.b": 1}, "No row was imported: row 2 has a field 'a.b': use no dot"),
        ({**ROW, "$set": 1}, "No row was imported: row 2 has a field '$set': use no dot"),
        ({**ROW, "note": "\ud800"}, "No row was imported: row 2: note must be valid text"),
        ({**ROW, "note": 2**63}, "No row was imported: row 2: note must be valid text, a number below 2**63"),
        ({**ROW, "note": float("nan")}, "No row was imported: row 2: note must be valid text, a number below"),
        ({**ROW, "note": {"$ne": 1}}, "No row was imported: row 2: note must be valid text"),
    ],
)
def test_one_bad_row_keeps_all_rows_out(world: World, row: Any, sentence: str) -> None:
    before = world.store.writes
    answer, status = refused(world.api.profiles.import_profiles, "speed_profiles", [ROW, row])
    assert answer.startswith(sentence)
    assert (status, world.store.writes) == (400, before)


def test_an_imported_row_replaces_one_that_a_user_inserted_under_a_key_of_his_own(world: World) -> None:
    world.users.insert("speed_profiles", {"_id": 0, **ROW, "origin": "mine"})
    world.api.profiles.import_profiles(
        "speed_profiles", [{**ROW, "num_gpus": 2.0, "origin": "mine", "seconds_per_iteration": 3}]
    )
    assert [row["_id"] for row in world.api.profiles.profiles("speed_profiles") if row["origin"] == "mine"] == [0]


def test_rows_of_another_table_are_refused_with_one_sentence(world: World) -> None:
    rows = [{"job_type": str(n), "k8s_init": 1, "k8s_term": 1} for n in range(12)]
    with pytest.raises(Rejected) as refusal:
        world.api.profiles.import_profiles("speed_profiles", rows)
    assert str(refusal.value) == (
        "No row was imported: speed profile row 1 is left out, and so are 11 more: gpu_type must be a name, not None."
    )
    assert len(refusal.value.problems) == 1


def test_a_table_that_does_not_exist_is_refused_even_without_a_row(world: World) -> None:
    sentence = "There is no profile table 'jobs'; there are speed_profiles, accuracy_profiles, overheads, observations."
    assert refused(world.api.profiles.import_profiles, "jobs", []) == (sentence, 404)
    assert refused(world.api.profiles.import_profiles, "jobs", [ROW]) == (sentence, 404)
    assert refused(world.api.profiles.profiles, "jobs") == (sentence, 404)


# the coordinator itself


def test_health_says_in_a_sentence_what_is_wrong(training: World) -> None:
    training.c.trouble = ""
    assert training.api.status.health() == {"ok": True, "sentence": "All is well."}
    training.c.elector.resign()
    assert training.api.status.health() == {"ok": False, "sentence": "This coordinator does not act now."}
    training.c.trouble = "the store does not answer"
    assert training.api.status.health() == {"ok": False, "sentence": "the store does not answer"}


def test_events_are_heard_of_and_read_by_number(training: World) -> None:
    heard: list[int] = []
    stop = training.api.history.on_event(lambda: heard.append(training.api.history.last_event()))
    before = training.api.history.last_event()
    training.api.operator.cancel("one")
    training.run(World.at_rest)
    stop()
    told = training.api.history.events_after(before, 1_000)
    assert heard == [event["_id"] for event in told]
    assert [event["type"] for event in told if event["type"] in ("cancelled", "closed")] == ["cancelled", "closed"]
    assert training.api.history.events_after(before, 1) == told[:1]


def test_metrics_count_jobs_and_gpus_by_state(training: World) -> None:
    text = training.api.status.metrics().decode()
    assert 'reshape_jobs{state="running"} 1.0' in text
    assert 'reshape_gpus{state="in use"} 4.0' in text


def test_a_dry_run_checks_and_stores_nothing(world: World) -> None:
    assert world.api.submissions.submit(JOB, dry_run=True)["state"] == s.SUBMITTED
    assert world.store.list("jobs") == []
    assert refused(world.api.submissions.submit, {**JOB, "num_gpuss": 1}, True)[1] == 400
    world.api.submissions.submit(JOB)
    assert refused(world.api.submissions.submit, JOB, True)[1] == 409


def test_an_ended_job_is_submitted_again_as_its_user_had_written_it(world: World) -> None:
    given = {**JOB, "env": {"A": "b"}, "node": "n1", "sla": "2h", "iterations": 20, "x_mine": 1}
    world.api.submissions.submit(given)
    sentence, status = refused(world.api.submissions.rerun, "one")
    assert (status, "has not ended" in sentence) == (409, True)
    world.run(lambda w: w.states()["one"] == s.COMPLETED and w.at_rest(), 200)
    world.api.submissions.rerun("one")
    doc = world.users.get("jobs", "one~2")
    assert doc is not None
    for name in ("command", "optional_num_gpus", "env", "node", "sla", "iterations"):
        assert doc[name] == given[name], name
    world.run(lambda w: w.api.jobs.job("one")["generation"] == 1 and w.api.jobs.job("one")["state"] == s.COMPLETED, 200)


def test_the_policy_names_systems_and_settings(world: World) -> None:
    view = world.api.fleet.policy()
    assert view["systems"] == list(world.settings.systems) and view["settings"]["min_gain_factor"] > 0


def test_only_a_job_that_has_ended_and_that_nobody_waits_for_is_removed(world: World) -> None:
    world.submit("one", [1], Behaviour(iterations=10))
    world.submit("after", [1], Behaviour(iterations=4_000), depends_on=["one", "never"])
    world.tick()
    assert "has not ended" in refused(world.api.operator.remove, "one")[0]
    world.run(lambda w: bool(w.job("one").doc.get("closed")), 200)
    assert refused(world.api.operator.remove, "one") == (
        "Job one stays: another job that has not ended depends on it.",
        409,
    )
    world.api.operator.cancel("after")
    world.run(lambda w: bool(w.job("after").doc.get("closed")), 200)
    assert world.api.operator.remove("one") == {"job_id": "one"}
    world.tick()
    assert [view["job_id"] for view in world.api.jobs.list_jobs(include_ended=True)] == ["after"]
    assert refused(world.api.jobs.job, "one")[1] == 404
    world.submit("one", [1], Behaviour(iterations=10))
    world.run(lambda w: w.states()["one"] == s.COMPLETED, 200)
