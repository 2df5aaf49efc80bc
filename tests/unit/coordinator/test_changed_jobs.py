"""Which records have changed from one map to the next, and which of them a test holds for."""

from __future__ import annotations

import random

from coordinator.model.records import JobRecord
from coordinator.telemetry.changed_jobs import Picked, changed


def record(name: str, suspended: bool) -> JobRecord:
    return JobRecord({"_id": name, "job_id": name, "suspended": suspended})


def test_changed_are_new_keys_and_other_objects_in_any_order() -> None:
    a, b, c = object(), object(), object()
    assert changed({"a": a, "b": b}, {"b": b, "a": c, "c": c}) == ["a", "c"]
    assert changed({"a": a, "b": b}, {"b": b}) == []


def test_picked_jobs_are_those_of_a_whole_search_and_unchanged_ones_are_not_tested_again() -> None:
    rng, tested = random.Random(5), list[JobRecord]()

    def is_suspended(job: JobRecord) -> bool:
        tested.append(job)
        return job.suspended

    picked, jobs = Picked(is_suspended), dict[str, JobRecord]()
    for _ in range(300):
        before, name = jobs, rng.choice("abcdef")
        jobs = {key: job for key, job in jobs.items() if key != name or rng.random() < 0.5}
        if rng.random() < 0.7:
            jobs[name] = record(name, rng.random() < 0.5)
        if rng.random() < 0.2:
            jobs = {key: jobs[key] for key in rng.sample(sorted(jobs), len(jobs))}
        tested.clear()
        found = picked.from_jobs(jobs)
        assert list(found.items()) == [(key, job) for key, job in jobs.items() if job.suspended]
        assert tested == [jobs[key] for key in changed(before, jobs)]
        assert picked.from_jobs(jobs) is found
