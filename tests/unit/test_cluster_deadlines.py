"""`make bench-cluster`, as far as it needs no cluster: its jobs, sums of requests, the books and figures of runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.cluster_deadlines import figures, runs
from benchmarks.cluster_deadlines.runs import ClusterOutcome, DeadlineVolcano, PlainVolcano, cores, requested
from benchmarks.cluster_deadlines.workload import MnistJob, drawn, history
from coordinator.scheduling.slaml.slaml_object import row_of
from coordinator.scheduling.slaml.slaml_spec import Slaml, documents
from launcher.admission.inject import PodSettings
from launcher.cluster.pods import job_spec
from launcher.cluster.pods.limit_rules import amount
from reshape_papers.papers import results
from tests.e2e.test_slaml_example import slaml

ALONE = {"small": (1.0, 2.0, 7.0), "medium": (1.0, 2.0, 17.0), "large": (1.0, 2.0, 27.0)}


def test_jobs_are_the_same_for_one_seed_and_known_in_the_history() -> None:
    jobs = drawn(3, 40, 1.0, ALONE)
    assert jobs == drawn(3, 40, 1.0, ALONE) != drawn(4, 40, 1.0, ALONE)
    assert jobs[0].arrives_s == 0 and jobs[-1].arrives_s == pytest.approx(40 * 0.15 * 20, rel=0.6)
    known = {row["cores"]: row["execution_s"] for row in history(ALONE)}
    assert len(known) == 9, "tasks of all sizes are told apart by their cores"
    for job in jobs:
        assert tuple(known[task.millicores / 1000] for task in job.tasks) == ALONE[job.size]
        assert job.target_s >= 1.4 * sum(ALONE[job.size])


def test_a_large_job_has_the_tasks_replicas_and_parameters_of_the_paper() -> None:
    paper, ours = slaml().parts, MnistJob("a", "large").tasks
    assert [(t.type, t.replicas, list(t.params)) for t in ours] == [
        (part.spec["type"], part.replicas, part.params) for part in paper
    ]
    assert [["python", "mnist.py", t.name] for t in ours] == [["python", *p.spec["command"][1:]] for p in paper]


def test_both_sides_have_the_same_pods() -> None:
    """Command, image, requests and limits of what our launcher makes of a Slaml; the rest is what the method costs."""
    applied: list[dict[str, Any]] = []
    on: Any = SimpleNamespace(cluster=SimpleNamespace(apply=applied.append))
    job = MnistJob("a", "medium", target_s=60)
    PlainVolcano(on).submit(job)
    DeadlineVolcano(on).submit(job)
    plain, slaml_object = applied
    (theirs,) = plain["spec"]["tasks"][0]["template"]["spec"]["containers"]
    about = {**slaml_object["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}
    row: Any = {**row_of({**slaml_object, "metadata": about}), "_id": "u"}
    doc: Any = documents(Slaml.from_row(row))[0]
    settings = PodSettings(image="ours", coordinator="http://c")
    _, made = job_spec.objects({**doc, "uid": "u", "launch": 1}, settings, b"m" * 64, True)
    (ours,) = made["spec"]["tasks"][0]["template"]["spec"]["containers"]
    assert ours["command"][-3:] == theirs["command"] == ["python", "mnist.py", "prepare"]
    assert ours["image"] == theirs["image"]
    amounts = [
        {kind: {name: amount(str(value)) for name, value in each[kind].items()} for kind in ("requests", "limits")}
        for each in (ours["resources"], theirs["resources"])
    ]
    assert amounts[0] == amounts[1] and amounts[0]["limits"]["cpu"] == amount("200m")


def test_response_times_of_jobs_that_both_sides_did_become_figures_of_the_paper() -> None:
    runs_of_two = [
        ClusterOutcome("gang", side, seed, {"a": 10.0 * (2 - side) * (1 + seed), **({} if side else {"b": 99.0})})
        for seed in (0, 1)
        for side in (False, True)
    ]
    found = figures.figures(runs_of_two)
    assert list(found) == ["deadline-gang"] and found["deadline-gang"]["seeds"] == 2
    assert results.value(found, "deadline-gang", "gang+deadlines", "art_s") == 15.0
    (shown,) = [cells for cells in figures.beside(found) if cells[1] == "mean_jct_ratio to gang"]
    assert (shown[0], shown[2], shown[4]) == ("gang+deadlines", "falls", "0.5")
    assert figures.figures([ClusterOutcome("gang", False)]) == {}


def test_a_pod_holds_what_the_scheduler_counts_until_it_has_ended() -> None:
    def one(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec = {"containers": [one("100m"), {}], "initContainers": [one("1", restartPolicy="Always"), one("4")]}
    assert requested({"spec": spec, "status": {"phase": "Running"}}) == 5.0  # while its first container initializes
    spec["initContainers"].pop()
    assert requested({"spec": spec, "status": {"phase": "Running"}}) == pytest.approx(1.1)
    assert requested({"spec": spec, "status": {"phase": "Succeeded"}}) == 0
    assert [cores(text) for text in ("2", "0.5", "250m", "odd")] == [2.0, 0.5, 0.25, 0.0]


class Scripted:
    """A cluster on which each job ends as is written here, at once."""

    def __init__(self, ends: dict[str, str]) -> None:
        self.ends, self.submitted = ends, list[str]()

    def submit(self, job: MnistJob) -> None:
        self.submitted.append(job.name)

    def phases(self) -> dict[str, str]:
        return {name: self.ends[name] for name in self.submitted}

    def rescheduled(self) -> int:
        return 0


def test_each_job_counts_once_as_done_or_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOOK_S", 0.0)
    jobs = [MnistJob("a", "small", 0.0, 100), MnistJob("b", "small", 0.01, 100), MnistJob("c", "small", 0.02, 100)]
    outcome, side = ClusterOutcome("gang", True), Scripted({"a": "Completed", "b": "Refused", "c": "Running"})
    runs._play(side, jobs, outcome, 0.1)
    assert side.submitted == ["a", "b", "c"]
    assert list(outcome.response_s) == ["a"] and outcome.in_time == 1
    assert outcome.failed == ["b: Refused", "c: not done within 0 s"]
    assert outcome.art_s == outcome.response_s["a"]
    assert ClusterOutcome("gang", False).art_s is None
