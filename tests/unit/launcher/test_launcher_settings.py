"""What the launcher reads at its start: variables, mounted folders, its webhook's certificate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Rejected, Transient
from coordinator.stores.sqlite import SqliteStore
from launcher.admission import certificates
from launcher.cluster import config
from launcher.cluster.controllers.admission import PodDecisionLookup
from launcher.cluster.controllers.volcano_job_document import job_key
from launcher.cluster.process import ReloadedCertificate

GOOD = {"RESHAPE_STORE": "mongodb://db/reshape", "RESHAPE_IMAGE": "ours:1", "RESHAPE_COORDINATOR": "http://c:8080"}


@pytest.fixture
def good(tmp_path: Path) -> dict[str, str]:
    return {**GOOD, "RESHAPE_KEYS": str(tmp_path)}


def test_all_of_it_comes_from_variables_and_the_mounted_keys(good: dict[str, str]) -> None:
    more = {"RESHAPE_NAMESPACES": "a, b", "RESHAPE_LEASE_S": "60", "RESHAPE_NAMESPACE": "team"}
    settings, pods = config.read({**good, **more})
    assert (settings.namespaces, settings.term_s, settings.tls) == (("a", "b"), 15.0, "")
    assert (pods.image, pods.lease_s, pods.namespace, pods.pull_policy) == ("ours:1", 60.0, "team", "IfNotPresent")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("RESHAPE_IMAGE", "", "RESHAPE_IMAGE is missing"),
        ("RESHAPE_COORDINATOR", "", "RESHAPE_COORDINATOR is missing"),
        ("RESHAPE_STORE", "sqlite:///x", r"RESHAPE_STORE must be the mongodb:// URL"),
        ("RESHAPE_TERM_S", "0", "RESHAPE_TERM_S must be a number of seconds above 0"),
        ("RESHAPE_TERM_S", "soon", "RESHAPE_TERM_S must be a number"),
        ("RESHAPE_KEYS", "", "RESHAPE_KEYS is missing"),
    ],
)
def test_what_is_wrong_stops_the_start_with_its_name(
    good: dict[str, str], variable: str, value: str, said: str
) -> None:
    with pytest.raises(Rejected, match=said):
        config.read({**good, variable: value})


def test_a_missing_or_empty_secret_is_said(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="has `reshape setup` run"):
        config.secret(tmp_path / "none")
    (tmp_path / "master.key").write_text(" \n")
    with pytest.raises(Rejected, match="is empty"):
        config.secret(tmp_path / "master.key")


def write_certificate(folder: Path, at: float) -> None:
    pytest.importorskip("cryptography")
    made = certificates.make(["localhost"], 1.7e9)
    (folder / "tls.crt").write_text(made.certificate)
    (folder / "tls.key").write_text(made.key)
    for name in ("tls.crt", "tls.key"):
        os.utime(folder / name, (at, at))


def test_a_renewed_certificate_is_taken_and_a_half_written_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    write_certificate(tmp_path, 1.0)
    certificate = ReloadedCertificate(tmp_path)
    certificate.renew()
    assert caplog.messages == []
    (tmp_path / "tls.key").write_text("half")
    certificate.renew()
    assert "cannot be read again" in caplog.messages[-1]
    write_certificate(tmp_path, 2.0)
    certificate.renew()
    assert caplog.messages[-1] == "the webhook's certificate was renewed"


def test_a_missing_certificate_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tls\.crt"):
        ReloadedCertificate(tmp_path)


# what the webhook is told


def queues() -> dict[str, Any]:
    meta = {"labels": {"volcano-reshape.io/inject": "true"}, "annotations": {"volcano-reshape.io/devices": "recreate"}}
    return {"alone": {"metadata": meta}, "plain": {"metadata": {}}}


def test_queues_are_answered_from_what_the_watches_show(tmp_path: Path) -> None:
    answers = PodDecisionLookup(SqliteStore(str(tmp_path / "s.db")), queues)
    assert answers.queue("alone") == (True, "recreate")
    assert answers.queue("plain") == (False, "shared")
    with pytest.raises(Transient, match="not known"):  # it may be ours: the API server has selected its pod
        answers.queue("none")


def test_each_pod_of_a_gang_is_told_its_own_part(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "s.db"))
    answers = PodDecisionLookup(store, queues)
    for gpu, node in (("g0", "node-a"), ("g1", "node-b"), ("g2", "node-b")):
        store.insert("gpus", {"_id": gpu, "node": node, "emulated": True})
    job = {"job_id": "j", "gpus_per_pod": 1, "gpu_ids": ["g0", "g1"], "launch": 1, "checkpoint_claim": "kept"}
    growing = {"kind": "reshape", "to": ["g0", "g1", "g2"]}
    store.insert("jobs", {**job, "_id": job_key("v"), "reshape": growing})
    found = [answers.decided("v", None, member) for member in range(4)]
    assert [(one.node, one.gpu_ids, one.claim) for one in found if one] == [
        ("node-a", ("g0",), "kept"), ("node-b", ("g1",), "kept"), ("node-b", ("g2",), "kept"), (None, (), "kept"),
    ]  # fmt: skip
    store.insert("launches", {"_id": "j-l1", "doc": {**job, "_id": "j", "reshape": growing}})
    of_record = answers.decided("its uid", "j-l1", 1)
    assert of_record is not None and (of_record.node, of_record.gpu_ids) == ("node-b", ("g1",))
    late = answers.decided("its uid", "j-l1", 2)  # what is wanted of the launch counts, not what the job is about to do
    assert late is not None and (late.node, late.gpu_ids) == (None, ())
    assert answers.decided("its uid", "j-l2", 0) is None


def test_what_is_decided_is_where_the_job_goes_and_not_where_it_was(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "s.db"))
    answers = PodDecisionLookup(store, queues)
    assert answers.decided("v") is None
    assert answers.decided("w") is None
    store.insert("gpus", {"_id": "g1", "node": "node-b", "emulated": True})
    job = {"_id": job_key("v"), "job_id": "team.train", "node": "node-a", "gpu_ids": ["g0"], "pinned": None}
    store.insert("jobs", job)
    found = answers.decided("v")
    assert found is not None and (found.job_id, found.node, found.gpu_ids) == ("team.train", "node-a", ("g0",))
    store.put("jobs", {**job, "reshape": {"kind": "move", "node": "node-b", "to": ["g1"]}})
    moving = answers.decided("v")
    assert moving is not None and (moving.node, moving.gpu_ids, moving.emulated) == ("node-b", ("g1",), True)
    store.put("jobs", {**job, "node": None, "gpu_ids": None, "pinned": "node-c"})
    waiting = answers.decided("v")
    assert waiting is not None and (waiting.node, waiting.gpu_ids) == ("node-c", ())
