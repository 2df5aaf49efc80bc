"""The launcher's loop, on a real store and an API in memory; playbooks do to it what Ansible would."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Transient
from coordinator.recovery.lost_trainings import lost_trainings
from coordinator.stores.elector import Elector, Holder
from coordinator.stores.sqlite import SqliteStore
from launcher import playbook
from launcher.admission.inject import PodSettings
from launcher.cluster.api import ApiUnavailable
from launcher.cluster.controllers.admission import PodDecisionLookup
from launcher.cluster.controllers.kept_records import is_recorded
from launcher.cluster.launch_service import LaunchService
from launcher.names import launch_name
from tests.fakes.kube import AWAY, Kube
from tests.patience import eventually, patient
from tests.unit.launcher.test_pods import ENDED, RUNNING, pod
from tests.unit.launcher.test_volcano_job_controller import Time

Doc = dict[str, Any]

SETTINGS = PodSettings(image="ours:1", coordinator="http://c:8080")
JOB: Doc = {
    "_id": "j", "job_id": "j", "uid": "u", "launch": 1, "node": "node-a", "command": ["x"], "image": "img",
    "gpu_ids": [], "state": "initializing", "closed": False,
}  # fmt: skip
NAME = launch_name("j", "u", 1)
POD = f"{NAME}-trainer-0"


class Ground:
    """A launcher over fakes. `playbooks` are the names of those that ran."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kube, self.time = folder, Kube(), Time()
        self.store = SqliteStore(str(folder / "store.db"))
        self.playbooks: list[str] = []
        self.refusal: str | None = None
        self.made: list[LaunchService] = []

    def start(self, holder: str = "one", term_s: float = 15.0) -> LaunchService:
        elector = Elector(self.store, self.time, term_s, Holder(holder, 1, "1"), "launcher")
        service = LaunchService(
            self.store, self.kube, self.time, elector, SETTINGS, b"master", (), Path("plays"), self.folder, 5.0,  # type: ignore[arg-type]
        )  # fmt: skip
        self.made.append(service)
        service.start()
        return service

    def play(self, book: Path, folder: Path, values: Mapping[str, str], *_: Any) -> None:
        self.playbooks.append(book.name)
        if self.refusal is not None or self.kube.trouble is not None:
            raise Transient(self.refusal or "cannot connect")
        if book.name == "launch.yml":
            self.kube.apply(json.loads(Path(values["job"]).read_text()))
        else:
            self.kube.delete("Job", values["name_of_launch"], values["namespace"])

    def ask(self, wanted: str = "launch", origin: str = "record", job_id: str = "j", **doc: Any) -> None:
        job = {**JOB, **doc, "_id": job_id, "job_id": job_id}
        name = launch_name(job_id, "u", 1)
        about = {"_id": name, "job_id": job_id, "uid": "u", "launch": 1, "origin": origin, "wanted": wanted, "doc": job}
        self.store.put("jobs", job)
        self.store.put("launches", {**about, "failure": None, "gone": False, "pod": None, "version": 1})

    def want_removal(self, **job: Any) -> None:
        self.store.put("jobs", {**JOB, **job})
        self.store.update("launches", NAME, {}, {"wanted": "remove"})

    def record(self) -> Doc:
        return self.store.get("launches", NAME) or {}

    def show_pod(self, state: Doc | None, phase: str = "Running", **meta: Any) -> None:
        about = {"annotations": {"volcano-reshape.io/launch": NAME}, "labels": {"volcano-reshape.io/job": "j"}}
        doc = pod(state, phase, meta={**about, **meta})
        self.kube.put("Pod", POD, spec=doc["spec"], status=doc["status"], meta={**about, **meta})

    def make_pods(self, *members: int) -> None:
        """As Volcano and our webhook do."""
        owner = [
            {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "uid": self.kube.of("Job")[0]["metadata"]["uid"]}
        ]
        for member in members:
            name, node = f"{NAME}-trainer-{member}", "node-a" if member == 0 else "node-b"
            doc = pod({"waiting": {"reason": "ContainerCreating"}}, "Pending", node)
            notes = {"volcano-reshape.io/launch": f"{name}-0a1b2c3{member}"}
            meta = {"annotations": notes, "labels": {"volcano-reshape.io/job": "j"}, "ownerReferences": owner}
            self.kube.put("Pod", name, spec=doc["spec"], status=doc["status"], meta=meta)

    def size(self) -> tuple[int, int]:
        spec = self.kube.of("Job")[0]["spec"]
        return spec["tasks"][0]["replicas"], spec["minAvailable"]


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    made = Ground(tmp_path)
    monkeypatch.setattr(playbook, "run", made.play)
    yield made
    for service in made.made:
        service.stop()
    for kind in ("Pod", "Job", "Queue", "PodGroup", "Slaml"):
        made.kube.put(kind, "last")  # ends the watches
    made.store.close()


def test_a_wanted_launch_becomes_one_volcano_job_and_its_secret(ground: Ground) -> None:
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    assert [job["metadata"]["name"] for job in ground.kube.of("Job")] == [NAME]
    assert set(ground.kube.of("Secret")[0]["data"]) == {"launch.json", "launch.key", "operator.token"}
    ground.show_pod(RUNNING)
    eventually(lambda: (ground.record()["pod"] or {}).get("phase") == "Running")
    assert ground.playbooks == ["launch.yml"]
    assert [reason for reason, _ in ground.kube.events()] == ["Launched"]
    metrics = ground.made[0].metrics
    eventually(lambda: 'reshape_launches{state="applied"} 1.0' in metrics.text().decode())
    assert 'reshape_playbook_seconds_count{outcome="done",verb="launch"} 1.0' in metrics.text().decode()


def test_a_gang_gets_pods_one_by_one_and_gives_the_last_ones_back(ground: Ground) -> None:
    for gpu, node in (("g0", "node-a"), ("g1", "node-b"), ("g2", "node-b")):
        ground.store.insert("gpus", {"_id": gpu, "node": node, "emulated": True})
    ground.ask(gpus_per_pod=1, gpu_ids=["g0", "g1"])
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    assert (ground.size(), ground.kube.of("Secret")) == ((2, 2), [])
    ground.make_pods(0, 1)
    eventually(lambda: [entry and entry["applied"] for entry in ground.record().get("pods") or ()] == [True, True])
    told = [json.loads(base64.b64decode(each["data"]["launch.json"])) for each in ground.kube.of("Secret")]
    assert [(one["member"], one["pod_uid"]) for one in told] == [
        (member, ground.record()["pods"][member]["uid"]) for member in range(2)
    ]
    doc = ground.record()["doc"]
    ground.store.update("launches", NAME, {}, {"doc": {**doc, "gpu_ids": ["g0", "g1", "g2"]}})
    eventually(lambda: ground.size() == (3, 2))
    ground.make_pods(2)
    eventually(lambda: ground.size() == (3, 3))
    ground.store.update("launches", NAME, {}, {"doc": doc})
    eventually(lambda: ground.size() == (2, 2))
    ground.kube.vanish("Pod", f"{NAME}-trainer-2")
    eventually(lambda: len(ground.record()["pods"]) == 2)
    assert ground.record()["pod"]["name"] == f"{NAME}-trainer-0" and ground.record()["failure"] is None
    assert ground.playbooks == ["launch.yml"]
    for member in range(2):
        ended = pod(ENDED, "Succeeded", "node-a")
        ground.kube.put("Pod", f"{NAME}-trainer-{member}", status=ended["status"])
    eventually(lambda: ground.record()["gone"])
    ground.kube.put("Job", NAME, status={"state": {"phase": "Completed"}})
    ground.want_removal(closed=True)
    eventually(lambda: not ground.record())
    assert [each["metadata"]["name"] for each in ground.kube.of("Secret")] == [f"{NAME}-trainer-2-0a1b2c32"]


def test_a_refusal_is_the_launchs_failure_and_asking_again_tries_again(ground: Ground) -> None:
    ground.refusal = "exceeded quota"
    ground.ask()
    ground.start()
    eventually(lambda: ground.record()["failure"] == "exceeded quota")
    ground.refusal = None
    ground.store.update("launches", NAME, {}, {"failure": None})
    eventually(lambda: ground.record().get("applied"))


def test_why_volcano_cannot_make_the_pod_is_the_launchs_failure(ground: Ground) -> None:
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    uid = ground.kube.of("Job")[0]["metadata"]["uid"]
    ground.kube.put("Event", "e", reason="FailedCreate", involvedObject={"uid": uid}, message="exceeded quota")
    ground.kube.put("Event", "f", reason="FailedCreate", involvedObject={"uid": "other"}, message="something else")
    eventually(lambda: ground.time.__setattr__("at", ground.time.at + 1) or ground.record()["failure"])
    assert ground.record()["failure"] == "Volcano cannot make its pod: exceeded quota"


def test_while_the_api_server_is_away_nothing_fails_and_then_it_goes_on(ground: Ground) -> None:
    service = ground.start()
    eventually(lambda: service.trouble == "")
    ground.kube.trouble = AWAY
    ground.ask()
    ground.kube.break_watches(AWAY)
    eventually(lambda: service.trouble.startswith("The API server"))
    assert ground.record()["failure"] is None
    ground.kube.trouble = None
    eventually(lambda: ground.record().get("applied"))


def test_a_launch_of_which_the_api_server_did_not_answer_once_is_played_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, apply = [ApiUnavailable("the API server does not answer")], ground.kube.apply
    monkeypatch.setattr(ground.kube, "apply", lambda doc: _raise(silent.pop()) if silent else apply(doc))
    ground.start()
    ground.ask()
    eventually(lambda: ground.record().get("applied"))
    assert ground.record()["failure"] is None


def test_a_store_that_is_away_after_the_playbook_fails_no_launch(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, update = [Transient("the store does not answer")] * 2, ground.store.update

    def away(table: str, key: Any, expect: Mapping[str, Any], changes: Mapping[str, Any]) -> Doc:
        if silent and "applied" in changes:
            raise silent.pop()
        return update(table, key, expect, changes)

    monkeypatch.setattr(ground.store, "update", away)
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    assert ground.record()["failure"] is None and ground.playbooks == ["launch.yml"]


def test_what_was_made_after_everybody_forgot_the_launch_is_taken_away(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher stood still in the middle of its playbook; its successor removed and forgot the launch."""

    def late(*call: Any) -> None:
        ground.store.delete("launches", NAME)
        ground.play(*call)

    monkeypatch.setattr(playbook, "run", late)
    ground.ask()
    ground.start()
    eventually(lambda: ("delete", "Secret", NAME) in ground.kube.calls)
    eventually(lambda: ground.kube.of("Job") == ground.kube.of("Secret") == [])


def test_a_launch_whose_job_is_gone_is_removed_though_nobody_asked(ground: Ground) -> None:
    """Its document was deleted while no coordinator acted."""
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    ground.store.delete("jobs", "j")
    eventually(lambda: ground.record() == {})
    assert ground.kube.of("Job") == ground.kube.of("Secret") == []


def test_launches_whose_jobs_the_store_has_lost_are_left_alone_until_they_are_written_back(ground: Ground) -> None:
    """As where MongoDB is emptied under running trainings. A single one is deleted by its user, who means it."""
    for name in ("j", "k", "l"):
        ground.ask(job_id=name)
    ground.start()
    eventually(lambda: all(launch.get("applied") for launch in ground.store.list("launches")))
    ground.made.pop().stop()
    lost = ground.store.list("jobs")
    for doc in lost:
        ground.store.delete("jobs", doc["_id"])
    ground.ask(job_id="new")
    ground.start("two")
    eventually(lambda: (ground.store.get("launches", launch_name("new", "u", 1)) or {}).get("applied"))
    assert ground.playbooks == ["launch.yml"] * 4 and len(ground.kube.of("Job")) == 4
    for doc in lost:
        ground.store.put("jobs", doc)
    ground.store.delete("jobs", "j")
    eventually(lambda: ground.record() == {})
    assert len(ground.kube.of("Job")) == 3


def _raise(error: Exception) -> None:
    raise error


def test_a_launcher_that_follows_a_killed_one_applies_the_same_objects_again(ground: Ground) -> None:
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    ground.made.pop().stop()
    ground.store.update("launches", NAME, {}, {"applied": False})  # as if it was killed before it wrote that
    ground.start("two")
    eventually(lambda: ground.record().get("applied"))
    assert ground.playbooks == ["launch.yml", "launch.yml"]
    assert len(ground.kube.of("Job")) == len(ground.kube.of("Secret")) == 1


def test_only_one_launcher_acts(ground: Ground) -> None:
    first = ground.start()
    eventually(lambda: first.trouble == "")
    second = ground.start("two")
    eventually(lambda: second.trouble.startswith("Another launcher"))
    ground.ask()
    eventually(lambda: ground.record().get("applied"))
    assert ground.playbooks == ["launch.yml"]


def test_a_launcher_that_stands_by_answers_the_webhook_and_follows_one_that_ends(ground: Ground) -> None:
    ground.kube.put("Queue", "team", None, meta={"labels": {"volcano-reshape.io/inject": "true"}})
    first = ground.start()
    eventually(lambda: first.trouble == "")
    second = ground.start("two")
    eventually(lambda: second.trouble.startswith("Another launcher"))
    eventually(lambda: second.ready)
    ground.ask()
    ground.store.put("jobs", {**JOB, "_id": "volcano-w", "job_id": "ns.w"})
    answers = PodDecisionLookup(ground.store, second.queues)
    assert answers.queue("team") == (True, "shared")
    assert (found := answers.decided("w")) is not None and (found.job_id, found.node) == ("ns.w", "node-a")
    ground.made.remove(first)
    first.stop()
    eventually(lambda: second.elector.leads)
    ground.show_pod(RUNNING)
    eventually(lambda: (ground.record()["pod"] or {}).get("phase") == "Running")


def test_while_the_queues_are_not_known_a_launcher_is_not_ready(ground: Ground) -> None:
    ground.kube.trouble = AWAY
    service = ground.start()
    assert not service.ready
    ground.kube.trouble = None
    eventually(lambda: service.ready)


def test_a_turn_that_takes_long_does_not_lose_the_term(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    service, entered, leave = ground.start(term_s=0.5), threading.Event(), threading.Event()
    eventually(lambda: service.trouble == "")
    monkeypatch.setattr(service._volcano_jobs, "turn", lambda *_: (entered.set(), leave.wait(patient(10))))
    assert entered.wait(patient(10))
    renewed = (ground.store.get("terms", "launcher") or {})["version"]
    ground.time.at += 0.3
    eventually(lambda: (ground.store.get("terms", "launcher") or {})["version"] > renewed)
    leave.set()


def test_a_copy_of_a_pod_is_not_taken_for_its_launch(ground: Ground) -> None:
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    copy = pod(ENDED, "Failed", meta={"annotations": {"volcano-reshape.io/launch": NAME}})
    ground.kube.put("Pod", "copied", spec=copy["spec"], status=copy["status"], meta=copy["metadata"] | {"uid": "c"})
    ground.show_pod(RUNNING)
    eventually(lambda: ground.record()["pod"])
    assert ground.record()["pod"]["name"] == POD and ground.record()["failure"] is None


def test_a_removed_launch_is_gone_once_its_pod_is_proven_to_be_and_then_forgotten(ground: Ground) -> None:
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    ground.show_pod(RUNNING)
    eventually(lambda: ground.record()["pod"])
    ground.want_removal(launch=2)
    eventually(lambda: "remove.yml" in ground.playbooks)
    assert not ground.record()["gone"]
    ground.show_pod(ENDED, "Failed")
    ground.kube.vanish("Pod", POD)
    eventually(lambda: ground.record() == {})
    assert ground.kube.of("Secret") == []


def test_a_pod_that_vanished_without_proof_is_not_gone(ground: Ground) -> None:
    ground.ask()
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    ground.show_pod(RUNNING)
    eventually(lambda: ground.record()["pod"])
    ground.want_removal()
    eventually(lambda: ground.kube.of("Job") == [])
    ground.kube.vanish("Pod", POD)
    eventually(lambda: ground.record()["pod"]["phase"] == "Deleted")
    assert not ground.record()["gone"]


def test_a_finished_pods_volcano_job_is_left_to_its_user(ground: Ground) -> None:
    ground.ask()
    service = ground.start()
    eventually(lambda: ground.record().get("applied"))
    ground.show_pod(ENDED, "Succeeded")
    eventually(lambda: ground.record()["gone"])
    ground.want_removal(state="completed", closed=True)
    eventually(lambda: ground.record() == {})
    assert len(ground.kube.of("Job")) == 1 and ground.kube.of("Secret") == []
    assert ground.playbooks == ["launch.yml"]
    eventually(lambda: not (ground.folder / NAME).exists())
    assert not service._runs._tasks  # nothing is kept of it


def test_a_users_pod_gets_its_secret_and_owns_it(ground: Ground) -> None:
    origin = {"namespace": "default", "name": "train", "uid": "v"}
    ground.kube.put("Job", "train", apiVersion="batch.volcano.sh/v1alpha1", meta={"uid": "v"})
    ground.ask(origin="volcano", volcano=origin)
    owner = [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "uid": "v"}]
    secret_name = f"{POD}-12345678"
    ground.show_pod(None, "Pending", annotations={"volcano-reshape.io/launch": secret_name}, ownerReferences=owner)
    ground.start()
    eventually(lambda: ground.record().get("applied"))
    (secret,) = ground.kube.of("Secret")
    assert secret["metadata"]["name"] == secret_name
    assert secret["metadata"]["ownerReferences"][0]["uid"] == ground.record()["pod"]["uid"]
    assert ground.playbooks == []
    ground.store.put("jobs", {**JOB, "volcano": origin, "launch": 2})
    ground.store.update("launches", NAME, {}, {"wanted": "remove"})
    eventually(lambda: ground.kube.of("Pod") == [])  # Volcano makes another one
    assert len(ground.kube.of("Job")) == 1


def test_a_pod_of_another_namespace_that_names_its_owner_gets_no_key(ground: Ground) -> None:
    origin = {"namespace": "team", "name": "train", "uid": "v"}
    ground.kube.put("Job", "train", "team", apiVersion="batch.volcano.sh/v1alpha1", meta={"uid": "v"})
    ground.ask(origin="volcano", volcano=origin, namespace="team")
    notes = {"volcano-reshape.io/launch": f"{POD}-12345678"}
    ground.show_pod(
        None,
        "Pending",
        annotations=notes,
        ownerReferences=[{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "uid": "v"}],
    )
    service = ground.start()
    eventually(lambda: service.trouble == "")
    service.stop()
    assert (ground.kube.of("Secret"), ground.record()["pod"]) == ([], None)


def test_a_part_that_trips_hinders_no_launch(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def trips(*_: Any) -> None:
        raise KeyError("odd")

    monkeypatch.setattr("launcher.cluster.pods.log_reader.LogReaders.turn", trips)
    ground.ask()
    service = ground.start()
    eventually(lambda: ground.record().get("applied"))
    eventually(lambda: service.trouble == "The launcher's part for logs failed: 'odd'")


def test_a_document_that_cannot_be_launched_fails_alone(ground: Ground) -> None:
    ground.ask(pod={"containers": [{}, {}]})
    other = {**ground.record(), "_id": "k-l1", "job_id": "k", "doc": {**JOB, "_id": "k", "job_id": "k"}}
    ground.store.put("jobs", other["doc"])
    ground.store.put("launches", other)
    ground.store.put("launches", {"_id": "broken", "version": 1})
    ground.start()
    eventually(lambda: (ground.store.get("launches", "k-l1") or {}).get("applied"))
    assert eventually(lambda: ground.record()["failure"]).startswith("pod.containers must hold one container")


def test_an_emptied_store_gets_back_what_trains_and_nothing_is_removed_for_it(ground: Ground) -> None:
    """Coordinators and launchers are new, too: only the Volcano Job still knows the job."""
    ground.ask()
    first = ground.start()
    eventually(lambda: ground.record().get("applied"))
    ground.show_pod(RUNNING, ownerReferences=owned_by(ground.kube.of("Job")[0]))
    eventually(lambda: is_recorded(ground.kube.of("Job")[0]))
    first.stop()
    before = list(ground.playbooks)
    for table in ("jobs", "launches", "terms"):
        ground.store.remove(table, [row["_id"] for row in ground.store.list(table)])
    ground.start("two")
    eventually(lambda: lost_trainings(ground.store) == ["j"])
    eventually(lambda: (ground.record().get("pod") or {}).get("name") == POD)
    assert [(job["_id"], job["uid"]) for job in ground.store.list("jobs")] == [("j", "u")]
    assert ground.playbooks == before


def owned_by(job: Doc) -> list[Doc]:
    return [{"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "uid": job["metadata"]["uid"]}]
