"""The playbooks of a cluster, played by the real Ansible, against a small HTTP server in place of the API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Transient
from launcher import playbook
from launcher.cluster.api import APPLY, FIELD_MANAGER
from launcher.cluster.launch_service import FOR_ANSIBLE
from tests.patience import patient
from tests.unit.launcher.test_cluster import Server, kubeconfig, serving

pytest.importorskip("kubernetes")

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"
JOB = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j-1", "namespace": "n"}}
PATH = "/apis/batch.volcano.sh/v1alpha1/namespaces/n/jobs/j-1"
DENIED = {"kind": "Status", "status": "Failure", "message": 'webhook "v.volcano.sh" denied it', "code": 400}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as made:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(made, tmp_path)))
        yield made


def play(name: str, folder: Path, **values: str) -> None:
    playbook.run(PLAYBOOKS / name, folder, values, patient(60), inherit=FOR_ANSIBLE)


def apply(folder: Path) -> None:
    (folder / "job.json").write_text(json.dumps(JOB))
    play("launch.yml", folder, job=str(folder / "job.json"))


def remove(folder: Path) -> None:
    play("remove.yml", folder, name_of_launch="j-1", namespace="n", kind="Job")


def test_a_launch_is_one_server_side_apply_that_may_be_repeated(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        server.asked.clear()
        apply(tmp_path)
        query = {"fieldManager": [FIELD_MANAGER], "force": ["true"]}
        assert server.asked == [("PATCH", PATH, query, APPLY, JOB)]


def test_a_removal_is_one_deletion_of_the_pods_first(server: Server, tmp_path: Path) -> None:
    remove(tmp_path)
    asked: list[tuple[str, str, Any]] = [
        (verb, path, body["propagationPolicy"]) for verb, path, _, _, body in server.asked
    ]
    assert asked == [("DELETE", PATH, "Foreground")]


def test_removing_what_is_not_there_is_no_failure(server: Server, tmp_path: Path) -> None:
    server.answer = (404, {"kind": "Status", "message": "not found"})
    remove(tmp_path)
    assert len(server.asked) == 1


@pytest.mark.parametrize("verb", [apply, remove])
def test_a_refusal_is_said_in_the_servers_own_words(verb: Any, server: Server, tmp_path: Path) -> None:
    server.answer = (400, DENIED)
    with pytest.raises(Transient, match=r"""^task '\w+ the Job' failed: webhook "v\.volcano\.sh" denied it$"""):
        verb(tmp_path)


def test_a_server_that_does_not_answer_is_a_failed_task(server: Server, tmp_path: Path) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(Transient, match="the API server does not answer"):
        apply(tmp_path)
