"""A field or a GPU type that nobody knows is a mistake, and is said to be one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from adaptive_scheduler.decision import Explanation, Requeue
from coordinator.errors import Rejected
from coordinator.http.app import OPENAPI
from coordinator.model import fields
from coordinator.model import states as s
from coordinator.scheduling import intake
from coordinator.stores.bootstrap import FoundGpu, FoundNode, register_node
from launcher.cluster.controllers import volcano_job, volcano_job_document
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

ROOT = Path(__file__).parents[3]
GOOD: dict[str, Any] = {"job_id": "j", "state": "submitted", "num_gpus": 1, "command": ["python", "train.py"]}


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("num_gpuss", ", did you mean num_gpus?"),
        ("Command", ", did you mean command?"),
        ("optional_gpus", ", did you mean optional_num_gpus?"),
        ("itterations", ", did you mean iterations?"),
        ("zzzzzz", ""),
    ],
)
def test_an_unknown_field_is_a_problem_that_names_the_nearest_one(field: str, meant: str) -> None:
    said = f"there is no field '{field}'{meant}; begin the name of one of your own with x_"
    assert intake.problems({**GOOD, field: 3}) == [said]


@pytest.mark.parametrize("field", ["x_team", "_mine", "x_"])
def test_fields_of_users_own_tools_are_theirs(field: str) -> None:
    assert intake.problems({**GOOD, field: {"a": [1]}}) == []


def test_over_mongodb_and_over_http_it_is_the_same_problem() -> None:
    world = World()
    world.users.insert("jobs", {"_id": "j", **GOOD, "num_gpuss": 3})
    world.tick()
    inserted = world.job("j").doc["problems"]
    with pytest.raises(Rejected) as refused:
        world.api.submissions.submit({**GOOD, "job_id": "k", "num_gpuss": 3})
    assert list(refused.value.problems) == inserted == [*fields.unknown_fields({"num_gpuss": 3})]


def test_a_copy_of_a_job_that_has_ended_is_let_in() -> None:
    """With all that the coordinator had written into it."""
    world = World()
    behaviour = Behaviour(iterations=400, value=0.5, cores=1.0, launch_failures=1)
    world.submit("one", [2, 4], behaviour, sla="10s", target={"value": 0.9})
    world.run(lambda w: w.states() == {"one": s.RUNNING})
    world.api.operator.request("one", 2, None)
    world.run(lambda w: w.job("one").doc["num_gpus"] == 2 and w.states() == {"one": s.RUNNING})
    world.order(Requeue("one", Explanation("test", "It goes."), ()))
    world.run(World.at_rest)
    ended = world.job("one").doc
    copy = {**ended, "_id": "two", "job_id": "two", "state": "submitted"}
    assert intake.problems(copy) == []


def test_what_is_cleared_when_a_job_is_let_in_is_what_only_the_coordinator_writes() -> None:
    job = intake.acceptance_fields({**GOOD, **dict.fromkeys(fields.COORDINATOR_FIELDS, 1)}, "uid", 0.0)
    assert {job[field] for field in set(fields.COORDINATOR_FIELDS) - {"pinned"}} == {None}
    assert fields.PUBLIC & set(fields.COORDINATOR_FIELDS) == {"node"}, (
        "where it may run becomes `pinned`, where it runs is ours"
    )


def test_the_description_of_the_api_lists_the_same_fields() -> None:
    schema = yaml.safe_load(OPENAPI)["components"]["schemas"]["Submission"]
    assert set(schema["properties"]) == fields.PUBLIC


def test_a_word_that_intake_asks_for_is_one_of_the_list() -> None:
    """Each field that intake names itself, beside those that it takes from their declaration."""
    assert {*intake.PATHS, *intake.DURATIONS, *intake.JUDGED_APART, *intake.NOT_READ} <= fields.PUBLIC


def test_every_example_and_document_of_ours_has_known_fields_only() -> None:
    found = 0
    for path in sorted((ROOT / "examples").rglob("*.json")):
        assert [*fields.unknown_fields(json.loads(path.read_text()))] == [], path
        found += 1
    for path in [*(ROOT / "examples").rglob("*.yaml"), *(ROOT / "docs").glob("*.md")]:
        for text in re.findall(r"volcano-reshape\.io/job: '(\{.*\})'", path.read_text()):
            assert [*fields.unknown_fields(json.loads(text))] == [], path
            found += 1
    assert found >= 6


def test_what_the_launcher_writes_into_a_job_document_is_known() -> None:
    """Each word that it writes is in its text, in quotes."""
    for module in (volcano_job, volcano_job_document):
        text = Path(str(module.__file__)).read_text()
        written = set(re.findall(r'_change\(doc, \{"(\w+)"', text)) | set(re.findall(r'doc\["(\w+)"\] = ', text))
        assert written <= fields.KNOWN, module
    assert {"origin", "volcano", "cancel", "held_back", "pinned"} <= fields.KNOWN


# GPU types


@pytest.mark.parametrize(("kind", "meant"), [("v100", "V100"), ("V1000", "V100"), ("H10", "H100")])
def test_a_mistyped_gpu_type_is_a_problem_that_names_the_nearest_one(kind: str, meant: str) -> None:
    assert fields.unknown_gpu_type(kind, ["V100"]).endswith(f"has the GPU type '{kind}', did you mean {meant}?")


def test_one_that_is_like_nothing_is_told_some_that_there_are() -> None:
    assert fields.unknown_gpu_type("FOOBAR", ["V100", "K80"]).endswith("'FOOBAR'; known are K80, V100 and others")


@pytest.mark.parametrize("kind", [None, "", "V100", "H100", "Mine"])
def test_those_of_nvidia_of_nodes_and_of_profiles_are_known(kind: str | None) -> None:
    assert fields.unknown_gpu_type(kind or None, ["Mine"]) == ""


def test_a_job_that_asks_for_an_unknown_gpu_type_is_not_let_in_until_a_node_has_it() -> None:
    world = World()
    world.tick()
    asks = {**GOOD, "gpu_type": "Own9"}
    with pytest.raises(Rejected, match="no node and no speed profile has the GPU type 'Own9'"):
        world.api.submissions.submit(asks)
    world.users.insert("jobs", {"_id": "j", **asks})
    world.tick()
    assert "GPU type 'Own9'" in world.job("j").doc["problems"][0]
    register_node(world.store, FoundNode("n9", (FoundGpu("g9", "Own9", None, True),)))
    world.run(lambda w: w.states()["j"] == s.RUNNING, 60)
