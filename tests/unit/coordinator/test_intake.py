"""Anybody may insert anything: what is wrong with it, word by word, and what is added to what is
right (`reliability.md` 7, row 16)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from bson import Code
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from coordinator.model.schema.field_types import alternatives, without_meta
from coordinator.model.schema.job_fields import FIELDS as DECLARED
from coordinator.scheduling.intake import acceptance_fields, job_type, problems
from tests.fakes.shims import Behaviour
from tests.fakes.world import NODE, World

GOOD: dict[str, Any] = {"_id": "j", "state": "submitted", "optional_num_gpus": [1, 2], "command": ["python", "t.py"]}

BAD: list[tuple[dict[str, Any], str]] = [
    ({"job_id": "../x"}, "job_id must be a whole number, or up to 128 letters"),
    ({"job_id": "a\0"}, "job_id must be a whole number"),
    ({"job_id": "\U0001f600"}, "job_id must be a whole number"),
    ({"job_id": "\u202egnp"}, "job_id must be a whole number"),
    ({"job_id": -1}, "job_id must be a whole number"),
    ({"job_id": True}, "job_id must be a whole number"),
    ({"job_id": ["a"]}, "job_id must be a whole number"),
    ({"job_id": "{{ lookup('pipe', 'touch canary') }}"}, "job_id must be a whole number"),
    ({"state": "runing"}, "state must be `submitted` for a new job, not 'runing'"),
    ({"state": "running"}, "state is `running`, but this job was never submitted here"),
    ({"state": None}, "state must be `submitted`"),
    ({"schema": 2}, "schema 2 is newer than this coordinator's (1): update the coordinator"),
    ({"schema": "x"}, "schema must be a whole number, not 'x'"),
    ({"version": "1"}, "version is kept by the coordinator: leave it out"),
    ({"optional_num_gpus": None}, "optional_num_gpus is missing: list the GPU counts"),
    ({"optional_num_gpus": None, "num_gpus": -1}, "num_gpus must be a whole number from 0 to 65536, not -1"),
    ({"node": ""}, "node is empty: name the only node that it may run on, or leave it out"),
    ({"optional_num_gpus": []}, "optional_num_gpus must be a list of GPU counts"),
    ({"optional_num_gpus": "4"}, "optional_num_gpus must be a list of GPU counts such as [1, 2, 4], not '4'"),
    ({"optional_num_gpus": [2, 1]}, "optional_num_gpus must go up without repeating"),
    ({"optional_num_gpus": [1, 1]}, "optional_num_gpus must go up without repeating"),
    ({"optional_num_gpus": [-1]}, "optional_num_gpus: -1 is not a whole number from 1 to 65536"),
    ({"optional_num_gpus": [10**9]}, "optional_num_gpus: 1000000000 is not a whole number from 1 to 65536"),
    ({"optional_num_gpus": [math.nan]}, "optional_num_gpus: nan is not a whole number"),
    ({"optional_num_gpus": [1, "2"]}, "optional_num_gpus: '2' is not a whole number"),
    ({"optional_num_gpus": [True]}, "optional_num_gpus: True is not a whole number"),
    ({"optional_num_gpus": None, "num_gpus": 10**9}, "num_gpus must be a whole number from 0 to 65536, not 1000000000"),
    ({"command": None}, 'command is missing: what starts the training, such as ["python", "train.py"]'),
    ({"command": []}, "command must be a text or a list of texts, not []"),
    ({"command": ["python", 3]}, "command must be a text or a list of texts"),
    ({"command": [""]}, "command must be a text or a list of texts"),
    ({"command": "python {{ lookup('pipe', 'touch canary') }}"}, "command holds a template mark"),
    ({"command": ["python", "{% x %}"]}, "command holds a template mark"),
    ({"command": "a\0b"}, "command holds a control character"),
    ({"command": "x" * 40_000}, "command is longer than 32768 characters"),
    ({"command": ["x"] * 5_000}, "command has more than 4096 parts"),
    ({"code": "../../etc"}, "code must not go up with `..`"),
    ({"weight": 0}, "weight must be a number from 0.001 to 1000, not 0"),
    ({"weight": 10**400}, "weight must be a number from 0.001 to 1000, not 1000"),
    ({"weight": "5"}, "weight must be a number from 0.001 to 1000, not '5'"),
    ({"dataset": 7}, "dataset must be a text, not 7"),
    ({"dataset": "https://me:pw@host/x"}, "dataset must not hold a user or password"),
    ({"dataset": "https:///x"}, "dataset must be an address such as https://host/data.npz, or a path"),
    ({"dataset": "http://host:99999/x"}, "dataset must be an address such as"),
    ({"dataset": "http://[::1/x"}, "dataset must be an address such as"),
    ({"dataset": "https://host/a b"}, "dataset is an address with a blank or a letter that is not ASCII"),
    ({"dataset": "https://host/\u00e9"}, "dataset is an address with a blank or a letter that is not ASCII"),
    ({"dataset": "https://host/../x"}, "dataset must not go up with `..`"),
    ({"dataset": "https://host/x", "dataset_sha256": "12"}, "dataset_sha256 must be the 64 hexadecimal digits"),
    ({"dataset": "https://host/x", "dataset_sha256": 12}, "dataset_sha256 must be the 64 hexadecimal digits"),
    ({"dataset": "/x", "dataset_sha256": "0" * 64}, "dataset_sha256 is for a dataset that is fetched"),
    ({"base": 1, "image": "a"}, "base must be a text, not 1"),
    ({"base": "python:3.11"}, "it has a base, but no image was built on that: `reshape containerize --submit"),
    ({"requirements": {"numpy": 1}}, "requirements must be the path of a file or a list of packages"),
    ({"requirements": ["numpy", 1]}, "requirements must be the path of a file or a list of packages"),
    ({"requirements": ["{{ x }}"]}, "requirements holds a template mark"),
    ({"model": "\ud800"}, "model holds a control character"),
    ({"progress_pattern": "("}, "progress_pattern is no regular expression"),
    ({"progress_pattern": "x"}, "progress_pattern needs a named group `iteration` or `epoch`"),
    ({"env": ["A=1"]}, 'env must be an object of texts, such as {"LEARNING_RATE": "0.1"}'),
    ({"env": {"A": 1}}, "env must be an object of texts"),
    ({"env": {"A B": "1"}}, "env: a variable's name is letters, digits and underscores"),
    ({"env": {"A": "{{ x }}"}}, "env.A holds a template mark"),
    ({"iterations": 0}, "iterations must be a whole number of at least 1, not 0"),
    ({"epochs": math.inf}, "epochs must be a whole number of at least 1, not inf"),
    ({"batch_size": 10**16}, "batch_size must be a whole number"),
    ({"reshape_exit_codes": [300]}, "reshape_exit_codes must be a list of exit codes"),
    ({"target_top5": 1.5}, "target_top5 must be a number between 0 and 1, not 1.5"),
    ({"$set": 1}, "field names must not begin with $ or hold a dot"),
    ({"a.b": 1}, "field names must not begin with $ or hold a dot"),
]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([bad for change, _ in BAD for bad in change.values()]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(sorted({field for change, _ in BAD for field in change} | {"uid", "closed", "_id", "reshape"}))


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[sentence[:50] for _, sentence in BAD])
def test_each_thing_that_is_wrong_has_its_sentence(change: dict[str, Any], sentence: str) -> None:
    doc = {k: v for k, v in {**GOOD, **change}.items() if v is not None}
    found = problems(doc)
    assert len(found) == 1, found
    assert found[0].startswith(sentence)


@pytest.mark.parametrize("key", ["{{ lookup('pipe', 'touch canary') }}", "../x", "\U0001f600", "", "a b"])
def test_a_document_without_job_id_whose_own_id_cannot_name_a_job_is_refused(key: str) -> None:
    assert problems({**GOOD, "_id": key}) != []
    assert problems({**GOOD, "_id": key, "job_id": "fine"}) == []


def test_a_good_document_has_no_problems() -> None:
    assert problems(GOOD) == []
    seeds = {"_id": 3, "job_id": 3, "state": "submitted", "num_gpus": 0, "gpu_ids": None, "job_type": 3}
    assert problems({**seeds, "optional_num_gpus": [1, 2, 4, 8], "command": "python train.py"}) == []


def test_all_problems_are_listed_at_once_but_no_more_than_twenty() -> None:
    assert len(problems({"state": "x", "optional_num_gpus": "", "command": 1})) == 3
    assert len(problems({**GOOD, "env": {f"A{i}": "{{" for i in range(50)}})) == 20


@given(st.dictionaries(FIELDS | st.text(max_size=8), JSON, max_size=8))
@example({})
def test_whatever_is_inserted_gets_sentences_or_is_let_in_with_its_own_fields_kept(doc: dict[str, Any]) -> None:
    doc = {**GOOD, **doc}
    found = problems(doc)
    assert all(isinstance(sentence, str) and len(sentence) < 500 for sentence in found)
    if not found:
        added = acceptance_fields(doc, "uid", 5.0)
        record = JobRecord({**doc, **added})
        assert record.accepted
        assert record.optional
        assert (added["closed"], added["generation"], added["launch"], added["submit_ts"]) == (False, 0, 0, 5.0)
        assert not {"command", "code", "env", "dataset", "model", "iterations", "epochs", "state"} & set(added)


def test_one_allowed_count_may_be_given_as_num_gpus() -> None:
    doc = {k: v for k, v in GOOD.items() if k != "optional_num_gpus"} | {"num_gpus": 2}
    assert problems(doc) == []
    assert acceptance_fields(doc, "u", 0.0)["optional_num_gpus"] == [2]


def test_the_job_id_stays_as_it_was_written_or_is_the_documents_own() -> None:
    assert acceptance_fields({**GOOD, "job_id": 3}, "u", 0.0)["job_id"] == 3
    assert acceptance_fields(GOOD, "u", 0.0)["job_id"] == "j"


def test_the_job_type_is_as_given() -> None:
    assert job_type({**GOOD, "job_type": "resnet"}) == "resnet"
    assert job_type({**GOOD, "job_type": 0}) == "0"


def test_jobs_of_one_model_data_and_hyper_parameters_are_of_one_type_whatever_starts_them() -> None:
    doc = {"model": "resnet50", "dataset": "/data/imagenet", "batch_size": 64, "hyper_parameters": {"a": 1, "b": 2}}
    same = {**doc, "command": "other", "hyper_parameters": {"b": 2, "a": 1}}
    assert job_type(doc) == job_type(same)
    assert job_type(doc).startswith("derived-")
    for change in ({"model": "vgg"}, {"dataset": "/x"}, {"batch_size": 32}, {"hyper_parameters": {}}):
        assert job_type({**doc, **change}) != job_type(doc)


def test_without_a_model_the_type_comes_from_command_and_image() -> None:
    assert job_type(GOOD) == job_type({**GOOD, "_id": "k", "epochs": 4})
    assert job_type({**GOOD, "image": "x"}) != job_type(GOOD)
    assert job_type({**GOOD, "command": "x"}) != job_type(GOOD)


# documents that could stop the coordinator for everybody: a hole in a list, texts of megabytes

GOOD: dict[str, Any] = {"_id": "j", "state": "submitted", "optional_num_gpus": [1, 2], "command": ["python", "t.py"]}
LONGEST = 500  # characters of one sentence
MEGABYTES = 2_000_000  # a document may have 16 MB
ODD = st.none() | st.booleans() | st.integers(-2, 4) | st.floats() | st.text(max_size=2) | st.just([]) | st.just({})


@pytest.mark.parametrize("counts", [[None], [None, 1], [1, None], [None, None]])
def test_a_hole_in_the_list_of_counts_is_named(counts: list[Any]) -> None:
    assert problems({**GOOD, "optional_num_gpus": counts}) == [
        "optional_num_gpus: None is not a whole number from 1 to 65536"
    ]


@given(st.lists(ODD, max_size=5))
def test_counts_are_let_in_only_if_they_go_up_from_one_or_are_the_one_0_of_a_job_on_cpu(counts: list[Any]) -> None:
    on_gpus = bool(counts) and all(type(n) is int and n >= 1 for n in counts) and sorted(set(counts)) == counts
    good = on_gpus or (counts == [0] and type(counts[0]) is int)
    assert (problems({**GOOD, "optional_num_gpus": counts}) == []) == good


@given(
    st.lists(ODD, max_size=3), st.sampled_from(["command", "env", "reshape_exit_codes", "job_id", "state", "schema"])
)
def test_lists_of_anything_get_sentences(value: list[Any], field: str) -> None:
    assert all(0 < len(sentence) <= LONGEST for sentence in problems({**GOOD, field: value}))


TEXTS = sorted(name for name, field in DECLARED.items() if str in map(without_meta, alternatives(field.kind)))


@pytest.mark.parametrize("field", [*TEXTS, "optional_num_gpus", "state", "env", "iterations"])
def test_a_text_of_megabytes_is_refused_in_one_short_sentence(field: str) -> None:
    found = problems({**GOOD, "image": "a:1", field: "x" * MEGABYTES})
    assert len(found) == 1
    assert len(found[0]) <= LONGEST


def test_a_pattern_of_a_kind_that_only_mongodb_has_is_refused() -> None:
    (sentence,) = problems({**GOOD, "progress_pattern": Code(r"(?P<iteration>\d+)")})
    assert sentence.startswith("progress_pattern is no regular expression")


def test_a_pattern_with_a_name_of_many_letters_is_refused_in_a_short_sentence() -> None:
    (sentence,) = problems({**GOOD, "progress_pattern": "(?P<" + "!" * 20_000 + ">x)"})
    assert sentence.startswith("progress_pattern is no regular expression")
    assert len(sentence) <= LONGEST


@pytest.mark.parametrize("counts", [[None], [None, 1]])
def test_the_next_job_is_started_whatever_lies_in_the_table(counts: list[Any]) -> None:
    world = World()
    world.users.insert("jobs", {**GOOD, "optional_num_gpus": counts})
    world.submit("good", [1], Behaviour(iterations=2))
    world.run(lambda w: w.states()["good"] == s.COMPLETED)
    assert world.job("j").doc["problems"] != []


# documents that bring fields that only the coordinator writes

FORGED: dict[str, Any] = {
    "retry_ts": 1e18, "checkpoint": {"name": "../../theirs", "step": 9, "generation": 9}, "iters_done": 10**9,
    "pinned": "another", "migrated_ts": 1.0, "up": 1, "down": 1,
    "start_ts": 1.0, "finish_ts": 1.0, "reshape_cost_s": 1e9, "retries": 99,
}  # fmt: skip


def test_a_document_that_brings_fields_of_ours_starts_as_if_it_had_not_and_changes_no_other_decision() -> None:
    world = World.training([1, 2])
    theirs = {d["_id"]: d for d in world.users.list("decisions")}
    (decision,) = theirs
    world.submit("two", [1, 2], Behaviour(iterations=20), wanted=1, wish_id=decision, **FORGED)
    world.tick()
    two = world.job("two")
    assert (two.wanted, two.doc["retry_ts"], two.retries, two.doc["wish_id"], two.doc["checkpoint"]) == (
        None,
        None,
        0,
        None,
        None,
    )
    world.run(lambda w: w.states()["two"] == s.RUNNING, 30)
    assert (world.job("two").node, len(world.job("two").gpu_ids)) == (NODE, 2)
    assert world.users.get("decisions", decision) == theirs[decision]
    world.run(lambda w: w.states()["two"] == s.COMPLETED, 60)
    assert world.job("two").iterations_done == 20
    assert world.job("two").doc["finish_ts"] > 1.0
