"""What a document may ask for beside GPU counts: each field read, and each fault with its own sentence."""

from __future__ import annotations

from typing import Any

import pytest

from adaptive_scheduler.snapshot import Task
from coordinator.model.requirements import Target, problems, seconds, target, tasks
from coordinator.scheduling.intake import acceptance_fields
from coordinator.scheduling.intake import problems as all_problems

GOOD: dict[str, Any] = {"_id": "j", "state": "submitted", "num_gpus": 0, "command": "x"}

BAD: list[tuple[dict[str, Any], str]] = [
    ({"resources": 2}, 'resources must be an object such as {"cores": 2, "memory": 4000000000}, not 2'),
    ({"resources": {"cpus": 2}}, "resources has a field 'cpus'; there are cores, memory"),
    ({"resources": {"cores": -1}}, "resources: cores must be a number of cores from 0 to 1e+06, not -1"),
    ({"resources": {"memory": "4G"}}, "resources: memory must be a number of bytes from 0"),
    ({"tasks": []}, "tasks must be a list of 1 to 1000 objects"),
    ({"tasks": [{"cores": 1}, 3]}, "task 2 must be an object"),
    ({"tasks": [{"replicas": 0}]}, "task 1: replicas must be a whole number from 1 to 65536, not 0"),
    ({"tasks": [{"name": 1}]}, "task 1: name must be a text, not 1"),
    ({"tasks": [{"gpus": 1}], "resources": {"cores": 1}}, "resources and tasks exclude each other"),
    ({"sla": "soon"}, "sla must be seconds above 0, or a text such as"),
    ({"sla": 0}, "sla must be seconds above 0"),
    ({"estimate": True}, "estimate must be seconds above 0"),
    ({"target": 0.9}, "target must be an object such as"),
    ({"target": {"value": "0.9"}}, "target: value must be a number, not '0.9'"),
    ({"target": {"value": 0.9, "over": True}}, "target has a field 'over'; there are value, above, name"),
    ({"target": {"value": 0.9, "above": 1}}, "target: above must be true or false"),
    ({"target": {"value": 0.9}, "target_top5": 0.9}, "target and target_top5 exclude each other"),
    ({"max_workers": 0}, "max_workers must be a whole number from 1 to 65536, not 0"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence[:50] for _, sentence in BAD])
def test_each_thing_that_is_wrong_has_its_sentence(change: dict[str, Any], sentence: str) -> None:
    (found,) = all_problems({**GOOD, **change})
    assert found.startswith(sentence)


@pytest.mark.parametrize(
    ("written", "read"),
    [(90, 90.0), (1.5, 1.5), ("90", 90.0), ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("1.5h", 5400.0)],
)
def test_times_are_seconds_or_texts_with_a_unit(written: object, read: float) -> None:
    assert seconds(written) == read
    assert all_problems({**GOOD, "sla": written, "estimate": written}) == []


@pytest.mark.parametrize("written", ["", "h", "1d", "-1s", "1e9s", "9" * 20, 0, -1, float("nan"), None, [1]])
def test_anything_else_is_no_time(written: object) -> None:
    assert seconds(written) is None


def test_a_job_has_the_tasks_that_it_lists_or_one_of_its_resources_or_none() -> None:
    assert tasks({"resources": {"cores": 2}}) == (Task("job", cores=2.0),)
    listed = [{"name": "get", "cores": 1}, {"cores": 0.5, "memory": 7, "gpus": 1, "replicas": 3}]
    assert tasks({"tasks": listed}) == (Task("get", 1.0), Task("task 2", 0.5, 7.0, 1, 3))
    assert tasks({}) == ()


def test_a_target_is_reached_from_its_own_side() -> None:
    assert Target(0.9).reached(0.9, "val_accuracy") and not Target(0.9).reached(0.89, "val_accuracy")
    assert Target(0.1, above=False).reached(0.1, "loss") and not Target(0.1, above=False).reached(0.2, "loss")
    assert not Target(0.9).reached(None, "")


def test_a_measure_that_cannot_be_meant_reaches_no_target() -> None:
    assert not Target(0.9).reached(2.3, "val_loss"), "a loss does not rise to its target"
    assert not Target(0.1, above=False).reached(0.05, "accuracy"), "an accuracy does not fall to it"
    assert not Target(0.9, name="val_f1").reached(0.95, "val_accuracy")


def test_the_papers_top_5_target_is_reached_by_a_top_5_accuracy_only() -> None:
    aim = target({"target_top5": 0.9})
    assert aim is not None
    assert aim.reached(0.91, "val_top5") and aim.reached(0.91, "val_sparse_top_k_categorical_accuracy")
    assert not aim.reached(0.91, "val_accuracy")


def test_the_node_that_a_user_names_becomes_its_pin_and_where_it_is_stays_ours() -> None:
    added = acceptance_fields({**GOOD, "node": "b"}, "u", 0.0)
    assert (added["pinned"], added["node"], added["optional_num_gpus"]) == ("b", None, [0])
    assert all_problems({**GOOD, "node": 3}) == ["node must be a text, not 3"]


def test_0_stands_alone_among_the_allowed_counts() -> None:
    assert all_problems({**GOOD, "optional_num_gpus": [0]}) == []
    (found,) = all_problems({**GOOD, "optional_num_gpus": [0, 1]})
    assert found.startswith("optional_num_gpus: 0 stands alone")


def test_a_document_that_asks_for_nothing_has_no_problems() -> None:
    assert list(problems(GOOD)) == []
