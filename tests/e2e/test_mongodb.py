"""Jobs submitted by nothing but inserting documents with plain pymongo, into a server that speaks MongoDB's wire.

One server (nx-27017) and one `reshape up --store mongodb://…` for all tests; each uses jobs of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymongo
import pytest
from pymongo.database import Database

from reshape.cli.main import run
from reshape.demo.lengths import StartTimes, plan
from reshape.demo.run import documents
from tests import documents as pages
from tests.e2e.up import ENDED, TRAINERS, Up, digits, running, wait_for
from tests.fakes.nx import start_nx, stop_nx

Doc = dict[str, Any]

GPU_FIELDS = {"gpu_id", "state", "job_id", "worker_id"}  # SideCar scheduling, Table III
# Long enough on a busy machine.
SLOW = StartTimes(launch_s=6.0, first_step_s=1.5, restart_s=1.5, speeds={2: 0.0705882, 4: 0.05})
MALFORMED = {
    "_id": "junk", "job_id": "junk", "state": "submitted", "optional_num_gpus": [4, 2, "many"],
    "command": 7, "model": ["wrong"], "x_mine": {"nested": [1, 2.5, None, True, "ü"]},
}  # fmt: skip


class Ground:
    def __init__(self, up: Up, url: str, database: Database[Doc]) -> None:
        self.up, self.url, self.jobs, self.gpus = up, url, database["jobs"], database["gpus"]

    def doc(self, job_id: str) -> Doc:
        found = self.jobs.find_one({"job_id": job_id})
        assert found is not None
        return found

    def until(self, job_id: str, state: str) -> Doc:
        """As a user would wait: by reading the document."""

        def there() -> Doc | None:
            doc = self.doc(job_id)
            assert doc["state"] == state or doc["state"] not in ENDED, doc
            return doc if doc["state"] == state else None

        return wait_for(there, 60, f"{job_id} is {state}")

    def trains_by_hand(self, job_id: str) -> Doc:
        """Insert a job that trains until it is stopped, and wait until it does."""
        never = str(self.up.state / "never")
        command = [sys.executable, str(TRAINERS / "until_told.py"), never]
        doc = {"job_id": job_id, "state": "submitted", "job_type": "digits-numpy", "command": command}
        self.jobs.insert_one({**doc, "optional_num_gpus": [1]})
        return self.until(job_id, "running")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("mongodb")
    server, address = start_nx(folder / "nx")
    url = f"{address}/reshape"
    try:
        with running(folder / "state", "4xV100", url) as up, pymongo.MongoClient[Doc](url) as client:
            yield Ground(up, url, client.get_default_database())
            assert up.violations() == []
    finally:
        stop_nx(server)


def test_the_store_is_checked_where_up_has_it(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    ground.trains_by_hand("checked")
    assert run(["--state", str(ground.up.state), "store", "check"]) == 0
    assert capsys.readouterr().out == "Nothing contradicts.\n"
    ground.jobs.update_one({"job_id": "checked"}, {"$set": {"cancel": True}})
    ground.until("checked", "cancelled")


def test_two_jobs_share_gpus_and_a_malformed_document_beside_them_is_left_alone(ground: Ground) -> None:
    one, two = documents(plan("numpy", SLOW))
    ground.jobs.insert_one(dict(one))
    ground.until("one", "running")
    running_gpus = [gpu for gpu in ground.gpus.find() if gpu["job_id"] == "one"]
    assert len(running_gpus) == ground.doc("one")["num_gpus"] == 4
    assert sorted(gpu["gpu_id"] for gpu in running_gpus) == sorted(ground.doc("one")["gpu_ids"])
    assert {gpu["state"] for gpu in running_gpus} == {"in use"}
    ground.jobs.insert_one(dict(MALFORMED))
    ground.jobs.insert_one(dict(two))
    assert len(ground.until("two", "running")["gpu_ids"]) == 2
    assert len(ground.doc("one")["gpu_ids"]) == 2
    for name in ("two", "one"):
        ground.until(name, "completed")
    assert ground.up.shapes("one")[:2] == [4, 2], "it grows back only where enough is left of it on a busy machine"
    assert ground.up.shapes("two") == [2]
    for inserted in (one, two):
        _kept(ground.doc(inserted["job_id"]), inserted)
        steps = ground.up.steps(inserted["job_id"])
        assert steps[-1] == inserted["iterations"] and all(b == a + 1 for a, b in pairwise(steps))
    _refused(ground.jobs.find_one({"_id": "junk"}))
    _idle(ground)


def _kept(found: Doc, inserted: Doc) -> None:
    """A job that ended, in the seed's words; what the user wrote is still there."""
    untouched = {field: value for field, value in inserted.items() if field != "state"}
    assert {field: found[field] for field in untouched} == untouched
    assert (found["state"], found["num_gpus"], found["gpu_ids"]) == ("completed", 0, None)


def _refused(found: Doc | None) -> None:
    assert found is not None
    problems = found.pop("problems")
    assert len(problems) == 3 and all(isinstance(sentence, str) for sentence in problems)
    found.pop("version")
    assert found.pop("submit_ts") > 0  # from when its age counts
    assert found == MALFORMED


def _idle(ground: Ground) -> None:
    def all_idle() -> bool:
        return all(
            (gpu["state"], gpu["job_id"], gpu["worker_id"]) == ("idle", None, None) for gpu in ground.gpus.find()
        )

    wait_for(all_idle, what="all GPUs are idle")
    assert ground.gpus.count_documents({}) == 4
    assert all(set(gpu) >= GPU_FIELDS for gpu in ground.gpus.find())


def test_setting_cancel_in_the_document_ends_the_job(ground: Ground) -> None:
    ground.trains_by_hand("unwanted")
    ground.jobs.update_one({"job_id": "unwanted"}, {"$set": {"cancel": True}})
    assert ground.until("unwanted", "cancelled")["message"] == "cancelled by the user"
    _idle(ground)


def test_deleting_the_document_of_a_running_job_cancels_it(ground: Ground) -> None:
    ground.trains_by_hand("deleted")
    trainer = wait_for(lambda: ground.up.job("deleted").get("trainer_pid"))
    ground.jobs.delete_one({"job_id": "deleted"})
    wait_for(lambda: not _alive(trainer), what="the training is ended")
    _idle(ground)
    assert ground.jobs.find_one({"job_id": "deleted"}) is None


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_five_lines_of_the_page_submit_a_job_that_completes(ground: Ground) -> None:
    (block,) = [one.text for one in pages.blocks("docs/how-to/mongodb.md") if one.language == "python"]
    assert len(block.strip().splitlines()) == 5
    assert block.count("mongodb://host/reshape") == 1
    exec(compile(block.replace("mongodb://host/reshape", ground.url), "mongodb.md", "exec"), {})
    assert ground.until("hello", "completed")["message"] == "completed"
    _idle(ground)


def test_a_job_may_be_named_by_a_number_as_in_table_ii(ground: Ground) -> None:
    job = {k: v for k, v in digits("x", 12, [1, 2]).items() if k != "job_id"}
    ground.jobs.insert_one({**job, "job_id": 4711})
    wait_for(lambda: ground.jobs.count_documents({"job_id": 4711, "state": "completed"}), what="job 4711 completes")
    _idle(ground)
