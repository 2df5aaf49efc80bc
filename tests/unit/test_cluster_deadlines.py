"""The six runs of `make bench-cluster`, as far as they need no cluster: jobs, sums of requests, the books of a run."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cluster_deadlines import runs
from benchmarks.cluster_deadlines.runs import ClusterOutcome, cores, requested
from benchmarks.cluster_deadlines.workload import EVERY_S, MnistJob, drawn, history


def test_jobs_are_the_same_for_one_seed_and_known_in_the_history() -> None:
    jobs = drawn(3, 40)
    assert jobs == drawn(3, 40) != drawn(4, 40)
    assert jobs[0].arrives_s == 0 and jobs[-1].arrives_s == pytest.approx(40 * EVERY_S, rel=0.6)
    known = {(row["cores"], row["execution_s"]) for row in history()}
    assert {(task.millicores / 1000, task.seconds) for job in jobs for task in job.tasks} == known
    assert all(job.target_s >= 1.4 * sum(task.seconds for task in job.tasks) for job in jobs)


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
