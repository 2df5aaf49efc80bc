"""Intake, the JSON Schema, the page and the description of the API say the same of a job document's fields."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.http.app import OPENAPI
from coordinator.model import fields
from coordinator.model.schema import job_fields, job_schema
from coordinator.scheduling import intake

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs/reference/job.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "docs/reference/job.schema.json").read_text(encoding="utf-8"))
VALID = jsonschema_rs.validator_for(SCHEMA)
GOOD: dict[str, Any] = {"job_id": "j", "state": "submitted", "optional_num_gpus": [1, 2], "command": ["python", "x.py"]}
TOGETHER = {
    "base": {"image": "a:1"},
    "dataset_sha256": {"dataset": "https://data.example/x"},
}  # only intake judges that
BLOCKS = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
# A value of every type. What only a text's content decides is left to intake: JSON in `pod`, the names in a pattern.
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 70_000, 0.5, 1.5, -0.5, "", "text", "Not a name!", [], [1], [-1], [0.5], ["text"],
    [None], [{}], {}, {"a": 1}, {"a": "b"}, {"value": 0.9}, {"value": "x"}, {"cores": 1, "memory": 5}, {"cores": "x"},
    [{"cores": 1, "gpus": 1}], [{"gpus": 0.5}], [[1]],
]  # fmt: skip


def refusals(doc: dict[str, Any]) -> tuple[bool, bool]:
    """Whether intake and the schema refuse it."""
    return bool(intake.problems(doc)), not VALID.is_valid(doc)


@pytest.mark.parametrize("field", sorted(job_fields.FIELDS))
def test_intake_and_schema_refuse_the_same_types_of_each_field(field: str) -> None:
    docs = [
        {**GOOD, **TOGETHER.get(field, {}), field: value}
        for value in VALUES
        if not (field == "pod" and isinstance(value, str))
    ]
    if field == "num_gpus":
        docs = [{k: v for k, v in doc.items() if k != "optional_num_gpus"} for doc in docs]
    differ = [(doc[field], *found) for doc in docs if (found := refusals(doc))[0] is not found[1]]
    assert differ == []


NUMBERS = st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9).filter(lambda x: x % 1)
KEYS = st.sampled_from(["name", "cores", "gpus", "value", "a"])
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from([*sorted(job_fields.FIELDS), "x_mine", "_mine", "num_gpuss", "closed", "uid"])


@given(st.dictionaries(NAMES, JSON | st.sampled_from(VALUES), max_size=4))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_schema_takes_every_document_that_intake_takes(more: dict[str, Any]) -> None:
    by_intake, by_schema = refusals({**GOOD, **more})
    assert by_intake or not by_schema


def test_the_examples_of_the_page_are_taken_by_both() -> None:
    docs = [block for block in BLOCKS if isinstance(block, dict)]
    assert len(docs) >= 4
    assert [refusals(doc) for doc in docs] == [(False, False)] * len(docs)


@pytest.mark.parametrize("field", job_fields.FIELDS.values(), ids=lambda field: field.name)
def test_the_example_of_each_field_is_taken_by_both(field: job_fields.Field) -> None:
    without = {"resources": "tasks", "num_gpus": "optional_num_gpus"}.get(field.name)
    doc = {key: value for key, value in GOOD.items() if key != without}
    assert refusals({**doc, **TOGETHER.get(field.name, {}), field.name: field.example}) == (False, False)


@pytest.mark.parametrize("missing", ["state", "command", "optional_num_gpus"])
def test_what_is_needed_is_needed_by_both(missing: str) -> None:
    assert refusals({key: value for key, value in GOOD.items() if key != missing}) == (True, True)


@pytest.mark.parametrize("field", ["num_gpuss", "$where", "a.b", "x_a.b"])
def test_a_field_that_is_not_listed_is_refused_by_both(field: str) -> None:
    assert refusals({**GOOD, field: 1}) == (True, True)


def test_intake_schema_page_and_api_know_the_same_fields() -> None:
    submission = yaml.safe_load(OPENAPI)["components"]["schemas"]["Submission"]
    on_page = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert set(SCHEMA["properties"]) == set(submission["properties"]) == on_page == fields.PUBLIC
    assert submission == job_schema.submission()
    accepted = {field for field in job_fields.FIELDS if not intake.problems({**GOOD, field: GOOD.get(field)})}
    assert accepted == fields.PUBLIC - {"schema"}  # which cannot be null


def test_the_page_shows_the_tables_of_the_paper_as_they_are_stored() -> None:
    from tests.contract.test_tables_of_the_paper import GPUS, JOBS

    assert [rows for rows in BLOCKS if isinstance(rows, list)][:2] == [GPUS, JOBS]
