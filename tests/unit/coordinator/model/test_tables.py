"""A misspelt field of a table is refused: by mypy where it is written in code, by the test store where it is stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

from coordinator.model import fields
from coordinator.model.tables import FIELDS
from tests.fakes.store import MemoryStore

ROOT = Path(__file__).parents[4]
USES = """
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import JobChanges, LaunchRow, NodeRow, QueueRow, SlamlRow

def uses(job: JobRecord, gpu: GpuRecord, launch: LaunchRow, queue: QueueRow, slaml: SlamlRow, node: NodeRow) -> None:
    job.doc["{state}"]
    job.doc.get("{state}")
    job.doc.get("{state}", "")
    gpu.doc["{held_by}"]
    launch.get("{wanted}")
    queue["{devices}"]
    slaml.get("{plan}")
    node["{cores}"]
    changes: JobChanges = {{"{state}": "failed"}}
    changes["{state}"] = "running"
    JobRecord({{**job.doc, "{state}": "failed"}})
"""
NAMES = ("state", "held_by", "wanted", "devices", "plan", "cores")
FIRST, LAST = 6, 16  # lines of USES that name a field


def lines_refused(folder: Path, spelt: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    (folder / "uses.py").write_text(USES.format(**spelt))
    monkeypatch.setenv("MYPYPATH", str(ROOT))
    cache = ROOT / ".mypy_cache" / "tables"  # of its own: with other options the one of `make check` would be dropped
    said, trouble, _ = api.run(["--strict", "--cache-dir", str(cache), str(folder / "uses.py")])
    assert trouble == ""
    return [int(line) for line in re.findall(r"uses\.py:(\d+): error:", said)]


def test_mypy_refuses_a_misspelt_field_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_refused(tmp_path, {name: name for name in NAMES}, monkeypatch) == []
    misspelt = {name: f"{name}_" for name in NAMES}
    assert lines_refused(tmp_path, misspelt, monkeypatch) == list(range(FIRST, LAST + 1))


@pytest.mark.parametrize("table", sorted(FIELDS))
def test_the_store_of_the_tests_refuses_to_write_a_field_that_no_table_has(table: str) -> None:
    store = MemoryStore()
    store.insert(table, {"_id": "a", "x_mine": 1})
    writes = (
        lambda: store.insert(table, {"_id": "b", "statte": 1}),
        lambda: store.put(table, {"_id": "a", "statte": 1}),
        lambda: store.update(table, "a", {}, {"statte": 1}),
    )
    for write in writes:
        with pytest.raises(AssertionError, match=f"table {table} has no field statte"):
            write()
    store.healthy().put(table, {"_id": "a", "statte": 1})


def test_the_store_of_the_tests_refuses_to_write_what_would_not_be_read_as_it_is() -> None:
    store = MemoryStore()
    store.insert("jobs", {"_id": "a"})
    with pytest.raises(AssertionError, match="launch must be a whole number, not '2'"):
        store.update("jobs", "a", {}, {"launch": "2"})
    store.healthy().update("jobs", "a", {}, {"launch": "2"})


def test_the_fields_of_a_job_are_those_that_intake_knows() -> None:
    assert FIELDS["jobs"] == fields.KNOWN | {"emulated_speed"}
