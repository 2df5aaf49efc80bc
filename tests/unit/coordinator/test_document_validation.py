"""The one door of the tables: what does not fit is mended, passed over or set aside, and said."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.model import states as s
from coordinator.model.document_validation import UNKNOWN_NODE, validate
from coordinator.model.schema.field_types import words_of
from coordinator.model.schema.job_fields import FIELDS
from coordinator.model.schema.row_fields import JOB_TYPES
from coordinator.scheduling import intake
from tests.unit.coordinator.model.test_job_schema import TOGETHER, VALUES

GOOD = {"_id": "a", "job_id": "a", "state": s.SUBMITTED, "optional_num_gpus": [1, 2], "command": ["x"]}
JOB = {**GOOD, **intake.acceptance_fields(GOOD, "u", 1.7e9)}
WRONG = object()  # of no type that a store keeps
GPU = {"_id": "g", "gpu_id": "g", "node": "n", "index": 0, "gpu_type": "V100", "state": s.IDLE, "job_id": None}


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_what_intake_lets_in_is_read_as_it_is(field: str) -> None:
    """Else a job would lose a field that its user was told to be right."""
    docs = [GOOD, *({**GOOD, **TOGETHER.get(field, {}), field: value} for value in VALUES)]
    rows = [{**doc, **intake.acceptance_fields(doc, "u", 1.7e9)} for doc in docs if not intake.problems(doc)]
    assert [validate("jobs", row) for row in rows] == [(row, (), True) for row in rows]


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_what_is_nested_without_end_hurts_only_its_field(field: str) -> None:
    deep: Any = []
    for _ in range(20_000):
        deep = [deep]
    found = validate("jobs", {**JOB, field: deep})
    refused = intake.problems({**GOOD, field: deep})
    if field == "hyper_parameters":  # which may be anything
        assert (found.invalid_fields, refused) == ((), [])
        return
    (said,) = found.invalid_fields
    assert said.startswith(f"{field} must be ") and len(said) < 500
    assert refused or field == "num_gpus"  # which does not count beside optional_num_gpus


def test_what_the_coordinator_writes_fits() -> None:
    assert validate("jobs", JOB).invalid_fields == () and validate("gpus", GPU).invalid_fields == ()


@pytest.mark.parametrize("field", sorted(name for name, kind in JOB_TYPES.items() if words_of(kind) != "anything"))
def test_a_field_of_the_wrong_kind_reads_as_its_former_value(field: str) -> None:
    former = {**JOB, field: JOB.get(field)}
    found = validate("jobs", {**JOB, field: WRONG}, former)
    assert found.usable is (field != "version") and found.doc.get(field) == former[field]
    (said,) = found.invalid_fields
    assert said.startswith(f"{field} must be ") and "former value" in said


@pytest.mark.parametrize(
    ("field", "value", "usable"),
    [
        ("launch", "a.b", False),
        ("launch", 2**64, False),
        ("generation", -1, False),
        ("gpu_ids", [{}], False),
        ("reshape", {"kind": "dance", "generation": 1}, False),
        ("reshape", {"kind": "start", "generation": 1, "to": {}}, False),
        ("state", "thinking", False),
        ("gpu_type", {}, True),
        ("gpu_type", [1, 2], True),
        ("submit_ts", float("nan"), True),
        ("iters_done", 10**30, True),
        ("sla", [], True),
        ("closed", "x", False),
    ],
)
def test_without_a_former_value_a_job_is_set_aside_only_where_it_makes_no_sense(
    field: str, value: Any, usable: bool
) -> None:
    found = validate("jobs", {**JOB, field: value})
    assert found.usable is usable and field not in found.doc and len(found.invalid_fields) == 1


@pytest.mark.parametrize("field", ["node", "state"])
def test_a_gpu_that_is_nobody_knows_where_or_whose_is_given_to_nobody(field: str) -> None:
    found = validate("gpus", {**GPU, field: {}})
    assert found.usable and found.doc["state"] == s.FAULTY
    assert found.doc["node"] == (UNKNOWN_NODE if field == "node" else "n")


def test_a_flag_that_a_store_keeps_as_a_number_is_a_flag() -> None:
    found = validate("jobs", {"job_id": "a", "closed": 0, "elastic": 1})
    assert found.usable and found.invalid_fields == ()
    assert found.doc["closed"] is False and found.doc["elastic"] is True
