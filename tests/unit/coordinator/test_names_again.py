"""The name of an ended job can be used again; nothing that is known of the ended one is taken for the new one's."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from launcher.names import job_name
from tests.fakes.shims import Behaviour
from tests.fakes.world import JOB_TYPE, World

JOB: dict[str, Any] = {
    "job_id": "one",
    "command": ["python", "train.py"],
    "optional_num_gpus": [1],
    "job_type": JOB_TYPE,
}


@pytest.fixture
def ended() -> World:
    world = World()
    world.machines.behaviour["one"] = Behaviour(iterations=5)
    world.api.submissions.submit(JOB)
    world.run(World.at_rest)
    return world


def records(world: World) -> dict[str, JobRecord]:
    return {str(doc["_id"]): JobRecord(doc) for doc in world.users.list("jobs")}


def test_a_new_job_of_an_old_name_is_another_job_with_folders_of_its_own(ended: World) -> None:
    assert ended.api.submissions.submit(JOB)["state"] == s.SUBMITTED
    assert ended.api.jobs.job("one")["state"] == s.SUBMITTED, "the name means the new job at once, before it is let in"
    ended.tick()
    old, new = records(ended)["one"], records(ended)["one~2"]
    assert (old.state, new.state) == (s.COMPLETED, s.INITIALIZING)
    assert job_name(old.id, old.uid) != job_name(new.id, new.uid)
    assert (new.iterations_done, new.doc["checkpoint"]) == (0, None)


def test_a_name_can_be_used_any_number_of_times(ended: World) -> None:
    for _ in range(3):
        ended.api.submissions.submit(JOB)
        ended.tick()
        ended.api.operator.cancel("one")
        ended.run(World.at_rest)
    assert set(records(ended)) == {"one", "one~2", "one~3", "one~4"}
    states = [view["state"] for view in ended.api.jobs.list_jobs(include_ended=True)]
    assert states == [s.COMPLETED, *[s.CANCELLED] * 3]
    assert ended.api.jobs.job("one")["state"] == s.CANCELLED, "the last that had the name"


def test_while_a_job_is_being_ended_its_name_is_refused_with_what_to_do(ended: World) -> None:
    ended.api.submissions.submit(JOB)
    ended.tick()
    ended.api.operator.cancel("one")
    with pytest.raises(Rejected, match="just being ended; its name is free in some seconds, then submit again") as no:
        ended.api.submissions.submit(JOB)
    assert no.value.status == 409


def test_what_was_decided_about_the_ended_job_is_not_told_of_the_new_one(ended: World) -> None:
    assert ended.api.history.decisions("one", 10)
    ended.api.submissions.submit({**JOB, "optional_num_gpus": [99]})
    assert ended.api.history.decisions("one", 10) == []
    ended.tick()
    assert {d["kind"] for d in ended.api.history.decisions("one", 10)} <= {"hold"}


def test_what_was_heard_of_the_ended_job_is_not_shown_for_the_new_one(ended: World) -> None:
    row = {"job_id": "one", "uid": records(ended)["one"].uid, "iters_done": 5, "gpus": []}
    ended.c.telemetry.batches.stored = {"one": row}
    ended.api.submissions.submit(JOB)
    ended.tick()
    assert ended.api.jobs.job("one")["iters_done"] == 0
    assert [view["iters_done"] for view in ended.api.jobs.list_jobs(include_ended=True)] == [5, 0]


def test_a_new_job_begins_with_no_cool_down_of_the_ended_one(ended: World) -> None:
    ended.c.telemetry.reshaped_at["one"] = ended.clock.now()
    ended.api.submissions.submit(JOB)
    ended.tick()
    assert ended.c.telemetry.reshaped_at == {}


def test_jobs_that_ended_lately_are_listed_for_a_while(ended: World) -> None:
    assert [view["state"] for view in ended.api.jobs.list_jobs(include_ended=False)] == []
    assert [view["state"] for view in ended.api.jobs.list_jobs(include_ended=False, within_s=60)] == [s.COMPLETED]
    ended.tick(120.0)
    assert ended.api.jobs.list_jobs(include_ended=False, within_s=60) == []
    assert len(ended.api.jobs.list_jobs(include_ended=True)) == 1
