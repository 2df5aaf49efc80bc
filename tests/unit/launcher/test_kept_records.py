"""The record of a launch outlives the store with its Volcano Job, and no user can make one up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.recovery.lost_trainings import lost_trainings
from coordinator.stores.sqlite import SqliteStore
from launcher.cluster.controllers.kept_records import LARGEST, KeptRecords, is_recorded
from launcher.cluster.pods.pod_state import ObservedCluster, Pod
from launcher.names import LAUNCH, RECORD, launch_name
from tests.fakes.kube import Kube
from tests.unit.launcher.test_pods import RUNNING, pod
from tests.unit.launcher.test_volcano_job_controller import KEY, OWNER, Ground
from tests.unit.launcher.test_volcano_jobs import vcjob

Doc = dict[str, Any]

DOC: Doc = {
    "_id": KEY,
    "job_id": "team.train",
    "uid": "u",
    "launch": 2,
    "origin": "volcano",
    "command": ["x"],
    "closed": False,
    "state": "initializing",
    "notify": "https://hooks.example/secret",
    "volcano": {"namespace": "team", "name": "train", "uid": OWNER["uid"]},
}
NAME = launch_name("team.train", "u", 2)
ROW: Doc = {"_id": NAME, "job_id": "team.train", "doc": DOC, "applied": True}
WAITS = {"waiting": {"reason": "ContainerCreating"}}


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.kube = Kube()
        self.store = SqliteStore(str(folder / "store.db"))
        self.kept = self.another()
        self.put(**vcjob())

    def another(self, key: bytes = b"master") -> KeptRecords:
        return KeptRecords(self.store, self.kube, key)  # type: ignore[arg-type]

    def put(self, **job: Any) -> None:
        meta = job.pop("metadata")
        self.kube.put(
            "Job", meta["name"], meta["namespace"], meta=meta, **{k: v for k, v in job.items() if k != "kind"}
        )

    @property
    def job(self) -> Doc:
        return self.kube.of("Job")[0]

    def observed(self, state: Doc = RUNNING) -> ObservedCluster:
        meta = {
            "uid": "p",
            "namespace": "team",
            "ownerReferences": [OWNER],
            "annotations": {LAUNCH: "train-0-0a1b2c3d"},
        }
        return ObservedCluster({"p": Pod(pod(state, meta=meta))}, {OWNER["uid"]: self.job})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.store.close()


def test_a_record_is_kept_once_with_its_volcano_job_and_without_the_address_of_a_webhook(cluster: Cluster) -> None:
    assert not is_recorded(cluster.job)
    for kept in (cluster.kept, cluster.kept, cluster.another()):
        kept.keep(ROW, cluster.job)
    assert is_recorded(cluster.job)
    assert [verb for verb, *_ in cluster.kube.calls] == ["patch_json"]
    assert "hooks.example" not in str(cluster.job)
    cluster.kept.keep({**ROW, "_id": NAME[:-1] + "3"}, cluster.job)  # after a move
    assert len(cluster.kube.calls) == 2


def test_a_launch_that_did_not_come_up_leaves_no_record(cluster: Cluster) -> None:
    cluster.kept.keep({**ROW, "applied": False}, cluster.job)
    cluster.kept.keep(ROW, None)
    assert cluster.kube.calls == []


def test_what_the_store_has_lost_is_written_back_as_it_was_launched(cluster: Cluster) -> None:
    cluster.kept.keep(ROW, cluster.job)
    cluster.another().write_back(cluster.observed())
    without = {key: value for key, value in DOC.items() if key != "notify"}
    assert cluster.store.list("jobs") == [without]
    (row,) = cluster.store.list("launches")
    assert (row["_id"], row["wanted"], row["uid"], row["origin"]) == (NAME, "launch", "u", "volcano")
    assert lost_trainings(cluster.store) == ["team.train"]
    cluster.another().write_back(cluster.observed())
    assert lost_trainings(cluster.store) == ["team.train"]


@pytest.mark.parametrize("known", [("jobs", {"_id": KEY, "state": "running"}), ("launches", {"_id": NAME})])
def test_what_the_store_has_is_never_changed(cluster: Cluster, known: tuple[str, Doc]) -> None:
    cluster.kept.keep(ROW, cluster.job)
    cluster.store.put(*known)
    cluster.kept.write_back(cluster.observed())
    assert cluster.store.list("jobs") + cluster.store.list("launches") == [known[1]]
    assert lost_trainings(cluster.store) == []


def test_one_whose_pod_never_had_its_secret_comes_in_anew(cluster: Cluster) -> None:
    cluster.kept.keep(ROW, cluster.job)
    cluster.kept.write_back(cluster.observed(WAITS))
    assert cluster.store.list("jobs") == []


@pytest.mark.parametrize("change", ["key", "text", "uid", "shape"])
def test_a_record_that_a_user_made_up_or_copied_is_not_believed(cluster: Cluster, change: str) -> None:
    """It could name the record of somebody else's job."""
    (cluster.another(b"guessed") if change == "key" else cluster.kept).keep(ROW, cluster.job)
    notes = dict(cluster.job["metadata"]["annotations"])
    if change == "text":
        notes[RECORD] = notes[RECORD].replace('"x"', '"y"')
    elif change == "shape":
        notes[RECORD] = "nonsense"
    cluster.put(**vcjob(meta={"annotations": notes, **({"uid": "other"} if change == "uid" else {})}))
    observed = cluster.observed()
    if change == "uid":
        owner = {**OWNER, "uid": "other"}
        copied = Pod(pod(RUNNING, meta={"uid": "p", "ownerReferences": [owner], "annotations": {LAUNCH: "x"}}))
        observed = ObservedCluster({"p": copied}, {"other": cluster.job})
    cluster.kept.write_back(observed)
    assert cluster.store.list("jobs") == []


def test_a_record_that_is_too_large_for_an_annotation_is_not_kept(cluster: Cluster) -> None:
    cluster.kept.keep({**ROW, "doc": {**DOC, "env": {"X": "x" * LARGEST}}}, cluster.job)
    assert not is_recorded(cluster.job)


def test_a_training_whose_record_is_lost_for_good_gets_no_second_one(tmp_path: Path) -> None:
    """It would be told to shrink for its own ghost."""
    ground = Ground(tmp_path)
    meta = {"uid": "p", "ownerReferences": [OWNER], "annotations": {LAUNCH: "train-0-0a1b2c3d"}}
    notes = {"volcano-reshape.io/gpus": "1,2", RECORD: "of another master key"}
    ground.turn(vcjob(meta={"annotations": notes}), pods=(Pod(pod(RUNNING, meta=meta)),))
    assert ground.store.list("jobs") == []
    ((reason, sentence),) = ground.kube.events()
    assert reason == "RecordLost"
    assert "delete the Volcano Job and apply it again" in sentence
    ground.store.close()
