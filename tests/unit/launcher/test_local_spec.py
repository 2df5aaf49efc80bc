"""What the processes of a local job see is decided in one pure function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.model.records import JobRecord
from launcher.launch_file import argv
from launcher.local_spec import Folders, LocalSettings, launch_spec

FOLDERS = Folders(launch=Path("/state/jobs/a-x-l1"), job=Path("/state/jobs/a-x"))
ENVIRON = {"PATH": "/bin", "HOME": "/home/me", "MONGODB_URI": "mongodb://me:secret@db", "RESHAPE_TOKEN": "secret"}


def spec_of(doc: dict[str, Any], settings: LocalSettings | None = None) -> dict[str, Any]:
    job = JobRecord({"_id": 1, "job_id": "a", "uid": "u", "launch": 1, "command": ["python", "t.py"], **doc})
    return launch_spec(job, FOLDERS, "http://127.0.0.1:1", ["sidecar"], settings or LocalSettings(), ENVIRON)


def test_a_text_is_run_by_the_shell_and_a_list_as_it_is() -> None:
    assert argv("python t.py && echo done") == ["sh", "-c", "python t.py && echo done"]
    assert argv(["python", "t.py", "a b"]) == ["python", "t.py", "a b"]


def test_the_coordinators_environment_stays_with_the_coordinator() -> None:
    assert "secret" not in json.dumps(spec_of({}))
    assert spec_of({})["env"]["PATH"] == "/bin"


def test_a_jobs_own_variables_win_over_inherited_ones_and_ours_over_its_own() -> None:
    env = spec_of({"env": {"PATH": "/opt/bin", "RESHAPE_CHECKPOINTS": "/elsewhere", "A": "{{ b }}"}})["env"]
    assert env["PATH"] == "/opt/bin"
    assert env["A"] == "{{ b }}"
    assert env["RESHAPE_CHECKPOINTS"] == "/state/jobs/a-x/checkpoints"


def test_checkpoints_and_output_belong_to_the_job_and_outlive_a_launch() -> None:
    spec = spec_of({})
    assert (spec["checkpoints"], spec["output"]) == ("/state/jobs/a-x/checkpoints", "/state/jobs/a-x/output.log")
    assert spec["workdir"] == "/state/jobs/a-x"


def test_what_the_document_says_reaches_trainer_and_sidecar() -> None:
    doc = {"code": "/code", "dataset": "/data", "progress_pattern": r"it (?P<iteration>\d+)", "progress_file": "p.json"}
    spec = spec_of(doc | {"emulated_speed": {"1": 0.5, "2": 0.3}}, LocalSettings(gpu_locks=Path("/locks")))
    assert spec["workdir"] == "/code"
    source = {"pattern": r"it (?P<iteration>\d+)", "file": "p.json", "measure": "", "never": ""}
    assert spec["progress"] == source
    assert spec["env"]["RESHAPE_DATASET"] == "/data"
    assert json.loads(spec["env"]["RESHAPE_EMULATED_SPEED"]) == {"1": 0.5, "2": 0.3}
    assert spec["env"]["RESHAPE_GPU_LOCKS"] == "/locks"


def test_a_data_set_with_an_address_is_a_file_of_this_machine() -> None:
    def found(address: str, digest: str | None = None) -> str:
        return str(spec_of({"dataset": address, "dataset_sha256": digest})["env"]["RESHAPE_DATASET"])

    one = found("https://host/sets/digits.npz?sig=1")
    assert one.startswith("/state/datasets/") and one.endswith("/digits.npz") and one.count("/") == 4
    assert one == found("https://host/sets/digits.npz?sig=1"), "the same for all jobs"
    others = [found("http://host/sets/digits.npz?sig=1"), found("https://host/sets/digits.npz?sig=1", "0" * 64)]
    assert len({one, *others}) == 3
    for odd in ("https://host", "https://host/a/", "https://host/%2e%2e%2f..%2f.x", "https://host/$(id) `x`;"):
        name = found(odd).removeprefix("/state/datasets/").partition("/")[2]
        assert name and "/" not in name and not name.startswith(".") and set(name).isdisjoint("$`; ()"), odd
    assert found("s3://bucket/x") == "s3://bucket/x", "what its script opens itself"


@pytest.mark.parametrize(
    ("doc", "measure", "never"),
    [
        ({"target": {"value": 0.9, "name": "f1"}}, "f1", ""),
        ({"target": {"value": 0.9}}, "", "loss"),
        ({"target": {"value": 0.1, "above": False}}, "", "acc"),
        ({"target_top5": 0.9}, "", "loss"),
    ],
)
def test_the_sidecar_is_told_which_value_the_target_means(doc: dict[str, Any], measure: str, never: str) -> None:
    source = spec_of(doc)["progress"]
    assert (source["measure"], source["never"]) == (measure, never)


def test_nothing_is_said_about_what_the_document_leaves_out() -> None:
    said = {name for name in spec_of({})["env"] if name.startswith("RESHAPE_")}
    assert said == {"RESHAPE_CHECKPOINTS"}


def test_the_operators_token_is_neither_printed_nor_told_to_the_job() -> None:
    settings = LocalSettings(operator_token="secret")
    assert "secret" not in repr(settings) + json.dumps(spec_of({}, settings))


def test_a_job_without_a_job_id_goes_by_the_id_of_its_document() -> None:
    assert spec_of({"job_id": None})["job_id"] == "1"
    assert spec_of({"job_id": 12})["job_id"] == "12"


def test_the_copy_of_a_document_whose_key_mongodb_made_is_written_as_text(tmp_path: Path) -> None:
    """A document that its user inserted without `_id` has such a key; the job must be launched all the same."""
    from bson import ObjectId

    from launcher.launch_records import LaunchRecords

    key = ObjectId()
    records = LaunchRecords(tmp_path, tmp_path / "jobs")
    records.keep({"_id": key, "job_id": "j", "uid": "u", "state": "running", "launch": 1})
    assert [doc["_id"] for doc in records.open()] == [str(key)]
