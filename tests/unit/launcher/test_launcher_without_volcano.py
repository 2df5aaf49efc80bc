"""A cluster without Volcano's kinds, or one that loses them: what is not served is not gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Rejected
from coordinator.stores.elector import Elector, Holder
from launcher import playbook
from launcher.cluster.api import Expired
from launcher.cluster.controllers.admission import PodDecisionLookup
from launcher.cluster.launch_service import LaunchService
from launcher.cluster.pods.job_spec import objects
from launcher.cluster.pods.pod_state import ObservedCluster
from tests.patience import eventually
from tests.unit.launcher import test_launch_service, test_volcano_job_controller
from tests.unit.launcher.test_job_spec import DOC, MASTER, NAME
from tests.unit.launcher.test_launch_service import SETTINGS
from tests.unit.launcher.test_pods import ENDED, RUNNING, pod
from tests.unit.launcher.test_volcano_jobs import vcjob

Doc = dict[str, Any]

WITHOUT = replace(SETTINGS, volcano=False)
OF_VOLCANO = {"Job", "Queue", "PodGroup"}
LAUNCH = test_launch_service.NAME


class Ground(test_launch_service.Ground):
    """A launcher over fakes, by default one that is told that there is no Volcano."""

    def start_as(self, settings: Any = WITHOUT) -> LaunchService:
        elector = Elector(self.store, self.time, 15.0, Holder("one", 1, "1"), "launcher")
        service = LaunchService(
            self.store,
            self.kube,
            self.time,
            elector,
            settings,
            b"master",
            (),
            Path("plays"),
            self.folder,
            5.0,  # type: ignore[arg-type]
        )
        self.made.append(service)
        service.start()
        return service

    def play(self, book: Path, folder: Path, values: Any, *more: Any) -> None:
        if book.name == "remove.yml":
            self.playbooks.append(f"{book.name} {values['kind']}")
            self.kube.delete(values["kind"], values["name_of_launch"], values["namespace"])
        else:
            super().play(book, folder, values, *more)

    def make_pod(self, **status: Any) -> None:
        """As Kubernetes makes that of a batch Job."""
        (job,) = self.kube.of("BatchJob")
        uid = job["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": LAUNCH, "uid": uid, "controller": True}
        doc = pod(RUNNING, "Running")
        meta = job["spec"]["template"]["metadata"]
        name = f"{LAUNCH}-x7k2p"
        self.kube.put("Pod", name, spec=doc["spec"], status=doc["status"], meta={**meta, "ownerReferences": [owner]})


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    made = Ground(tmp_path)
    monkeypatch.setattr(playbook, "run", made.play)
    monkeypatch.setattr("launcher.cluster.informer.LOOK_AGAIN_S", 0.05)
    yield made
    for service in made.made:
        service.stop()
    for kind in ("Pod", "Job", "BatchJob", "Queue", "PodGroup", "Slaml"):
        made.kube.put(kind, "last")  # ends the watches
    made.store.close()


def test_a_record_becomes_a_batch_job_whose_pod_is_known_whatever_its_name(ground: Ground) -> None:
    ground.kube.without = set(OF_VOLCANO)
    ground.ask()
    ground.start_as()
    eventually(lambda: ground.record().get("applied"))
    (job,) = ground.kube.of("BatchJob")
    assert (job["metadata"]["name"], ground.kube.of("Job")) == (LAUNCH, [])
    ground.make_pod()
    eventually(lambda: (ground.record()["pod"] or {}).get("phase") == "Running")
    about = "volcano-reshape.io/record"
    eventually(lambda: about in (ground.kube.of("BatchJob")[0]["metadata"].get("annotations") or {}))
    ground.want_removal()
    eventually(lambda: "remove.yml BatchJob" in ground.playbooks)


def test_a_record_whose_batch_job_was_deleted_fails_with_that_reason(ground: Ground) -> None:
    ground.kube.without = set(OF_VOLCANO)
    ground.ask()
    ground.start_as()
    eventually(lambda: ground.kube.of("BatchJob") and ground.record().get("applied"))
    ground.kube.vanish("BatchJob", LAUNCH)
    eventually(lambda: ground.record()["failure"] == "its batch Job was deleted")


def test_where_volcano_was_to_be_used_and_is_not_there_a_record_says_what_to_install(ground: Ground) -> None:
    ground.kube.without = set(OF_VOLCANO)
    ground.ask()
    service = ground.start_as(SETTINGS)
    eventually(lambda: ground.record()["failure"])
    assert "install Volcano, or volcano-reshape without it" in ground.record()["failure"]
    assert service.ready and ground.playbooks == []


def test_a_volcano_that_is_installed_later_is_used_without_a_restart(ground: Ground) -> None:
    ground.kube.without = set(OF_VOLCANO)
    service = ground.start_as(SETTINGS)
    eventually(lambda: service.trouble == "")
    assert service.queues_of_volcano() is None and not service.has_volcano_jobs
    ground.kube.without = set()
    eventually(lambda: service.has_volcano_jobs and service.queues_of_volcano() == {})
    ground.ask()
    eventually(lambda: ground.record().get("applied"))
    assert ground.kube.of("Job") != []


def test_jobs_of_a_volcano_that_comes_while_the_launcher_looks_do_not_count_as_gone(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.kube.without = set(OF_VOLCANO)
    service = ground.start_as(SETTINGS)
    eventually(lambda: service.trouble == "")
    read = service._jobs[0].items

    def read_then_listed() -> dict[str, Doc]:
        before = read()
        ground.kube.without = set()
        eventually(lambda: service.has_volcano_jobs)
        return before

    with monkeypatch.context() as patch:
        patch.setattr(service._jobs[0], "items", read_then_listed)
        assert not service.observed().has_volcano_jobs
    assert service.observed().has_volcano_jobs


def test_a_kind_that_vanishes_stops_all_decisions_with_a_sentence(ground: Ground) -> None:
    service = ground.start_as(SETTINGS)
    eventually(lambda: service.trouble == "" and len(ground.kube._watches) > 3)
    ground.kube.without = {"Job"}
    ground.kube.break_watches(Expired("its definition was deleted"))
    eventually(lambda: "no longer serves the kind Job" in service.trouble)
    ground.ask()
    eventually(lambda: "no longer serves the kind Job" in service.trouble)
    assert ground.playbooks == []
    ground.kube.without = set()
    eventually(lambda: ground.record().get("applied"))


def test_a_launch_whose_volcano_job_cannot_be_asked_for_is_left_alone(ground: Ground) -> None:
    ground.ask()
    first = ground.start_as(SETTINGS)
    eventually(lambda: ground.record().get("applied"))
    first.stop()
    ground.kube.without = set(OF_VOLCANO)
    ground.show_pod(ENDED, "Failed")
    second = ground.start_as(SETTINGS)
    eventually(lambda: second.trouble == "" and second.elector.leads)
    assert (ground.record()["failure"], ground.playbooks) == (None, ["launch.yml"])
    second.stop()
    ground.kube.without = set()
    third = ground.start_as(SETTINGS)
    eventually(lambda: third.has_volcano_jobs)
    eventually(lambda: ground.record().get("gone"))


def test_a_pod_needs_no_queue_where_there_are_none(ground: Ground) -> None:
    answers = PodDecisionLookup(ground.store, lambda: None)
    assert answers.queue("anything") == (False, "shared")


@pytest.mark.parametrize("how", ["never served", "no longer served", "being deleted"])
def test_a_job_is_not_cancelled_while_its_volcano_job_cannot_be_asked_for(tmp_path: Path, how: str) -> None:
    ground = test_volcano_job_controller.Ground(tmp_path)
    ground.turn(vcjob())
    ground.let_in(state="running")
    ground.kube.without = {"Job"}
    jobs = {str(doc["_id"]): doc for doc in ground.store.list("jobs", {"closed": False})}
    if how == "being deleted":  # objects go first, and their kind is still read
        ground.kube.get = lambda *_: None  # type: ignore[method-assign]
    ground.doors.turn(ObservedCluster(has_volcano_jobs=how != "never served"), jobs)
    assert (ground.job() or {}).get("cancel") is None
    ground.kube.without = set()
    ground.turn()
    assert (ground.job() or {})["cancel_reason"] == "its Volcano Job was deleted"
    ground.store.close()


def test_the_batch_job_of_a_record_has_the_same_pod_and_never_makes_a_second_one() -> None:
    secret, job = objects(DOC, WITHOUT, MASTER, True)
    _, usual = objects(DOC, SETTINGS, MASTER, True)
    template = usual["spec"]["tasks"][0]["template"]
    del template["spec"]["schedulerName"]
    assert (job["apiVersion"], job["kind"], job["metadata"]["name"]) == ("batch/v1", "Job", NAME)
    assert job["spec"]["template"] == template
    assert (job["spec"]["backoffLimit"], job["spec"]["completions"]) == (0, 1)
    assert secret is not None


def test_a_record_keeps_the_scheduler_that_it_names() -> None:
    _, job = objects({**DOC, "pod": {"schedulerName": "mine"}}, WITHOUT, MASTER, True)
    assert job["spec"]["template"]["spec"]["schedulerName"] == "mine"


def test_a_record_of_several_pods_is_refused() -> None:
    with pytest.raises(Rejected, match="needs Volcano, and this installation is without it"):
        objects({**DOC, "gpus_per_pod": 1}, WITHOUT, MASTER, True)
