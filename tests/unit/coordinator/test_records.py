"""Reading a document never fails: a strange value reads as absent (P8 of `reliability.md` 4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.model.records import GpuRecord, JobRecord, Operation, PromisedGift, number

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
JOB_FIELDS = (
    "job_id", "state", "uid", "problems", "generation", "launch", "node", "job_type", "gpu_ids", "optional_num_gpus",
    "reshape", "cancel", "wanted", "retries", "retry_ts", "submit_ts", "iters_done", "iterations", "epochs",
    "dataset_size", "batch_size", "reshape_exit_codes",
)  # fmt: skip
OP_FIELDS = ("kind", "to", "from", "generation", "for", "victim", "victims", "how", "decision")
GPU_FIELDS = ("state", "node", "gpu_type", "job_id", "held_by")


def documents(fields: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(fields), JSON).map(lambda doc: {"_id": "x", **doc})


def read(record: object) -> dict[str, Any]:
    kind = type(record)
    return {name: getattr(record, name) for name in dir(kind) if not name.startswith("_")}


@given(documents(JOB_FIELDS), documents(OP_FIELDS), documents(GPU_FIELDS))
def test_any_document_can_be_read(job: dict[str, Any], op: dict[str, Any], gpu: dict[str, Any]) -> None:
    values = read(JobRecord(job))
    assert all(isinstance(n, int) and n >= 0 for n in values["optional"])
    assert isinstance(values["iterations_done"], int)
    read(Operation(op))
    read(GpuRecord(gpu))


def test_a_start_that_an_earlier_version_wrote_names_its_one_victim() -> None:
    earlier = {"kind": "start", "victim": 3, "victim_generation": 7, "victim_keeps": ["a"]}
    now = {"kind": "start", "victims": [{"job": 3, "generation": 7, "keeps": ["a"]}]}
    for written in (earlier, now):
        assert Operation(written).victims == {"3": PromisedGift("3", 7, ("a",))}
        assert Operation(written).peers == ("3",)
    assert Operation({"kind": "start", "victim": None}).peers == ()


def test_ids_are_compared_as_text_and_kept_as_they_were_written() -> None:
    job = JobRecord({"_id": "k", "job_id": 3})
    assert (job.id, job.raw_id, job.key) == ("3", 3, "k")
    assert JobRecord({"_id": "k"}).id == "k"
    assert GpuRecord({"_id": 0, "job_id": 3}).job == "3"


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), -1, [1]])
def test_what_is_no_number_is_none(value: object) -> None:
    assert number(value) is None


def test_the_length_of_a_job_is_given_or_counted_from_its_epochs() -> None:
    epochs = {"epochs": 3, "dataset_size": 100, "batch_size": 32}
    assert JobRecord({"_id": 1, **epochs}).iterations == 12
    assert JobRecord({"_id": 1, **epochs, "iterations": 7}).iterations == 7
    assert JobRecord({"_id": 1, **epochs, "batch_size": 0}).iterations is None
