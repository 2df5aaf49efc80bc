"""Slamls on the real cluster: tasks one after another, refused with the smallest target that holds, overdue tasks.

Past tasks are rows that the tests import. Jobs with four GPUs have rows of three seconds and one that took very long:
whoever runs longer than three is overdue and taken to go on for long, however fast this machine is.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Object, until
from tests.cluster.bed_report import Report
from tests.cluster.installed import Installed, answered
from tests.cluster.plays import ENDLESS, NODE, in_order
from tests.cluster.steps_job import CLAIM, IMAGE, NAMESPACE, QUEUE

Doc = dict[str, Any]

REGISTRY, _, NAME_AND_TAG = IMAGE.rpartition("/")
NAME, _, TAG = NAME_AND_TAG.partition(":")
# Writes down what it was given, where whoever tests can see it, and trains for ten steps.
SCRIPT = """\
import json, os, pathlib, time
folder = pathlib.Path(os.environ["RESHAPE_CHECKPOINTS"])
folder.mkdir(parents=True, exist_ok=True)
names = ("RESHAPE_JOB_ID", "BATCH_SIZE", "EPOCHS", "LR", "MODEL_PARAMS")
(folder / "given.json").write_text(json.dumps({name: os.environ.get(name) for name in names}))
for step in range(1, 11):
    print(f"step={step} total=10", flush=True)
    time.sleep(0.1)
"""
PARAMS = [{"batch-size": 64, "epochs": 14, "lr": 0.0001}, {"batch-size": 128, "epochs": 56, "lr": 0.0001}]
ROWS = [
    {"cores": 0, "memory": 0, "gpus": 3, "execution_s": 60.0},
    {"cores": 0, "memory": 0, "gpus": 2, "execution_s": 2.0},
    *({"cores": 0, "memory": 0, "gpus": 4, "execution_s": 3 + n / 100} for n in range(19)),
    {"cores": 0, "memory": 0, "gpus": 4, "execution_s": 100_000.0},
]


def task(name: str, total: int = 0, replicas: int = 1, **more: Any) -> Doc:
    """One that counts steps, or with no total the script above."""
    command = steps_job.command(total) if total else ["python3", "-u", "-c", SCRIPT]
    image = {"containerImage": NAME, "containerRegistry": REGISTRY, "containerTag": TAG}
    return {"taskName": name, "containerReplicas": replicas, **image, "command": command, **more}


class User:
    """Applies Slamls and looks at them as a user does."""

    def __init__(self, on: Installed) -> None:
        self.on, self.made = on, list[str]()

    def job(self, **more: Any) -> Doc:
        """What each job document says beside its task."""
        return {"pod": steps_job.pod(self.on.shared), "checkpoint_claim": CLAIM, "elastic": True, **more}

    def steps(self, total: int = ENDLESS) -> Doc:
        return self.job(job_type=steps_job.JOB_TYPE, iterations=total, node=NODE)

    def apply(self, name: str, target: object, tasks: list[Doc], gpus: str | None = None) -> None:
        notes = {"scheduling.volcano.sh/queue-name": QUEUE} | ({"volcano-reshape.io/gpus": gpus} if gpus else {})
        spec = {"isSla": target is not None, "name": "test", "tasks": tasks}
        spec |= {"slaTarget": target} if target is not None else {}
        about = {"name": name, "namespace": NAMESPACE, "annotations": notes}
        self.on.cluster.apply(
            {"apiVersion": "sla-operator.dcn.com/v1alpha1", "kind": "Slaml", "metadata": about, "spec": spec}
        )
        self.made.append(name)

    def get(self, name: str) -> Object:
        return self.on.cluster.get("slaml", name, NAMESPACE) or {}

    def state(self, name: str, task: int = 0) -> str:
        tasks = self.get(name).get("status", {}).get("tasks") or []
        return str(tasks[task]["state"]) if tasks else ""

    def condition(self, name: str, kind: str) -> Doc:
        found = self.get(name).get("status", {}).get("conditions") or []
        return next((one for one in found if one["type"] == kind), {})

    def until(self, name: str, task_state: str, within_s: float = 90.0) -> None:
        until(f"the task of {name} is {task_state}", lambda: self.state(name) == task_state, within_s)

    def jobs(self, name: str) -> list[Doc]:
        with self.on.table("jobs") as jobs:
            return list(jobs.find({"slaml.name": name}).sort("_id"))

    def why(self, about: str) -> list[str]:
        """What `reshape explain` shows, oldest first."""
        return [f"{each['algorithm']}: {each['sentence']}" for each in reversed(self.on.client.decisions(about))]

    def clear(self) -> None:
        for name in self.made:
            self.on.cluster.delete("slaml", name, NAMESPACE)
        for name in self.made:
            answered(f"{name} has no job left", lambda n=name: all(job.get("closed") for job in self.jobs(n)), 60)


@pytest.fixture(scope="module")
def rows(installed: Installed) -> None:
    installed.client.import_profiles("observations", ROWS)


@contextlib.contextmanager
def a_user(installed: Installed) -> Iterator[User]:
    made = User(installed)
    try:
        yield made
    finally:
        print(installed.words("coordinator"), installed.words("launcher"))
        made.clear()


@pytest.fixture
def user(installed: Installed, rows: None) -> Iterator[User]:
    with a_user(installed) as made:
        yield made


def named(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True)
class Run:
    """Of one Slaml of three tasks, from its submission to its end."""

    name: str
    final: Object
    columns: str
    jobs: list[Doc]
    waiting: dict[str, Object]  # annotations of the Volcano Job and its PodGroup of a training, while it ran
    events: list[str]
    given: dict[str, Doc]  # what the trainings found in their environment, by job
    why: list[str]


@pytest.fixture(scope="module")
def run(installed: Installed, rows: None) -> Iterator[Run]:
    name = named("mnist")
    with a_user(installed) as user:
        trains = {"type": "model", "GPU": "1", "modelParams": PARAMS, "job": user.job()}
        tasks = [
            task("prepare", type="data", CPU="2m", memory="2Mi", job=user.job()),
            task("extract", replicas=2, type="feature", CPU="3m", memory="2Mi", job=user.job()),
            task("train", replicas=2, **trains),
        ]
        user.apply(name, "10m", tasks)
        until("the trainings are there", lambda: user.state(name, 2) == "RUN", 120)
        waiting = _waiting(user, user.jobs(name)[-1])
        until("it is completed", lambda: user.get(name)["status"]["state"] == "Completed", 60)
        given = [json.loads(path.read_text()) for path in (installed.shared / "checkpoints").rglob("given.json")]
        yield Run(
            name, user.get(name), installed.cluster.kubectl("get", "slamls", name, "-n", NAMESPACE), user.jobs(name),
            waiting, installed.cluster.events(name, NAMESPACE), {each["RESHAPE_JOB_ID"]: each for each in given},
            user.why(f"slaml.{NAMESPACE}.{name}"),
        )  # fmt: skip


def _waiting(user: User, job: Doc) -> dict[str, Object]:
    (pod,) = user.on.pods(str(job["job_id"]))
    about = pod["metadata"]
    names = {"vcjob": about["labels"]["volcano.sh/job-name"]}
    names["podgroup"] = about["annotations"]["scheduling.k8s.io/group-name"]
    found = {kind: user.on.cluster.get(kind, name, NAMESPACE) or {} for kind, name in names.items()}
    return {kind: each["metadata"].get("annotations", {}) for kind, each in found.items()}


def _began(job: Doc) -> float:
    """When it was first seen to train; a short task may have ended by then."""
    return float(job["start_ts"] or job["finish_ts"])


def test_tasks_run_one_after_another_to_the_end_in_time(run: Run, report: Report) -> None:
    with report.scenario("Slaml of three tasks in time") as figures:
        status = run.final["status"]
        conditions = {one["type"]: one["status"] for one in status["conditions"]}
        assert conditions == {"Accepted": "True", "Completed": "True", "AtRisk": "False", "Violated": "False"}
        assert [(t["name"], t["state"], t["done"]) for t in status["tasks"]] == [
            ("prepare", "DONE", 1), ("extract", "DONE", 2), ("train", "DONE", 2),
        ]  # fmt: skip
        prepare, extract, train = run.jobs[:1], run.jobs[1:3], run.jobs[3:]
        assert max(j["finish_ts"] for j in prepare) < min(_began(j) for j in extract)
        assert max(j["finish_ts"] for j in extract) < min(_began(j) for j in train)
        figures["response_s"] = round(max(j["finish_ts"] for j in train) - train[0]["submit_ts"], 1)
        reasons = [event.split(":")[0] for event in run.events]
        assert reasons in (["LengthUnknown", "Completed"], ["Accepted", "Completed"])
        assert run.why[0].startswith("deadline.diagnosis: ")


def test_each_replica_gets_its_own_model_params(run: Run) -> None:
    for n, params in enumerate(PARAMS):
        given = run.given[f"{NAMESPACE}.{run.name}.train.{n}"]
        assert (given["BATCH_SIZE"], given["EPOCHS"], given["LR"]) == (
            str(params["batch-size"]), str(params["epochs"]), "0.0001",
        )  # fmt: skip
        assert json.loads(given["MODEL_PARAMS"]) == params
    assert run.given[f"{NAMESPACE}.{run.name}.prepare.0"]["BATCH_SIZE"] is None


def test_volcano_is_told_how_long_each_launch_may_wait(run: Run) -> None:
    texts = [notes["volcano.sh/sla-waiting-time"] for notes in run.waiting.values()]
    assert texts[0] == texts[1], "Volcano's scheduler reads the PodGroup"
    match = re.fullmatch(r"([0-9]+)s", str(texts[0]))
    assert match is not None
    assert 0 < int(match[1]) <= 600


def test_kubectl_shows_how_it_stands(run: Run) -> None:
    head, line = run.columns.splitlines()
    assert head.split() == ["NAME", "STATUS", "TARGET", "EXPECTED", "WAIT", "TASKS", "AGE"]
    assert line.split()[:3] == [run.name, "Completed", "600s"]
    assert "3/3" in line.split()


def test_one_that_cannot_hold_is_refused_and_taken_with_the_smallest_target_and_deleting_it_cancels(
    user: User, report: Report
) -> None:
    with report.scenario("Slaml refused with its smallest target") as figures:
        name = named("tight")
        tasks = [task("train", ENDLESS, GPU="3", job=user.steps())]
        user.apply(name, 50, tasks)
        refused = until("it is judged", lambda: user.condition(name, "Accepted"), 30)
        assert (refused["status"], refused["reason"], refused["observedGeneration"]) == ("False", "TargetTooSmall", 1)
        smallest = figures["minimum_target_s"] = user.get(name)["status"]["minimumTarget"]
        assert smallest == 58
        assert f"TargetTooSmall: {refused['message']}" in user.on.cluster.events(name, NAMESPACE)
        assert user.jobs(name) == []
        user.apply(name, smallest, tasks)
        until("it is taken", lambda: user.condition(name, "Accepted").get("status") == "True", 30)
        user.until(name, "RUN")
        assert [why.split(": ")[1][:9] for why in user.why(f"slaml.{NAMESPACE}.{name}")] == ["It cannot", "It is exp"]
        (job,) = user.jobs(name)
        user.on.cluster.delete("slaml", name, NAMESPACE)
        user.on.until(job["job_id"], "cancelled")
        with user.on.table("slamls") as slamls:
            until("nothing is kept of it", lambda: slamls.count_documents({"name": name}) == 0, 30)


def test_what_cannot_be_a_slaml_is_refused_by_the_api_server(user: User) -> None:
    two = [task("one", GPU="1"), task("one", GPU="1")]
    bad: list[tuple[object, list[Doc], str]] = [
        (50, two, "two tasks have the same taskName"),
        (50, [task("one", modelParams=PARAMS)], "modelParams must have one entry per replica"),
        ("soon", [task("one")], "spec.slaTarget"),
        (50, [task("one", CPU="lots")], "CPU"),
    ]
    for target, tasks, words in bad:
        with pytest.raises(Exception, match=re.escape(words)):
            user.apply(named("bad"), target, tasks)


def overdue(user: User, counts: str) -> str:
    """A Slaml on all GPUs of one node that has run for longer than was expected of it."""
    name = named("heavy")
    user.apply(name, None, [task("train", ENDLESS, GPU="4", job=user.steps())], gpus=counts)
    user.until(name, "RUN")
    job = f"{NAMESPACE}.{name}.train.0"
    expected = user.jobs(name)[0]["expected_s"]
    assert 3 <= expected < 4
    answered("it is overdue", lambda: len(user.on.gpus.steps(job)) > 20 * expected, 60)
    return name


def newcomer(user: User) -> str:
    name = named("light")
    user.apply(name, 60, [task("train", 20, GPU="2", job=user.steps(20))])
    return name


def test_an_overdue_task_gives_gpus_to_a_lighter_one(user: User, report: Report) -> None:
    with report.scenario("overdue Slaml task shrinks for a lighter one") as figures:
        heavy = overdue(user, "2,4")
        job = f"{NAMESPACE}.{heavy}.train.0"
        (pod,) = user.on.pods(job)
        light = newcomer(user)
        user.until(light, "DONE", 120)  # it trains for seconds, which a look from time to time may miss
        assert user.on.gpus.shapes(job)[:2] == [4, 2]
        assert [p["metadata"]["uid"] for p in user.on.pods(job)] == [pod["metadata"]["uid"]]
        (why,) = [why for why in user.why(f"{NAMESPACE}.{light}.train.0") if why.startswith("deadline.overdue")]
        assert "goes from 4 to 2" in why
        figures["waited_s"] = _waited(user, light)
        assert in_order(user.on.gpus.steps(job))


def test_an_overdue_task_that_cannot_shrink_stops_queues_and_goes_on_from_its_checkpoint(
    user: User, report: Report
) -> None:
    with report.scenario("overdue Slaml task stops, queues, goes on") as figures:
        heavy = overdue(user, "4")
        job = f"{NAMESPACE}.{heavy}.train.0"
        light = newcomer(user)
        user.until(light, "DONE", 120)
        before = len(user.on.gpus.steps(job))
        user.until(heavy, "RUN", 90)
        answered("it goes on", lambda: len(user.on.gpus.steps(job)) > before, 30)
        assert in_order(user.on.gpus.steps(job))
        assert any(why.startswith("deadline.overdue") and "goes back to the queue" in why for why in user.why(job))
        record = user.on.job(job)
        assert record["preempts"] == 1
        figures |= {"waited_s": _waited(user, light), "launches": record["launch"]}


def _waited(user: User, name: str) -> float:
    (job,) = user.jobs(name)
    return round(job["start_ts"] - job["submit_ts"], 1)
