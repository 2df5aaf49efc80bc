"""MongoDB is emptied under running trainings: the same processes go on in the same pods, with the books as before."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable
from typing import Any

from tests.cluster import steps_job
from tests.cluster.bed_kubectl import until
from tests.cluster.bed_processes import BedError
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import (
    LONG,
    again,
    alive,
    lost_steps,
    main_pid,
    overlap_s,
    processes,
    steps_on,
    trains,
    uid,
    violations,
)
from tests.cluster.installed import SYSTEM, Installed, answered

SAME = ("state", "uid", "generation", "launch", "num_gpus", "gpu_ids", "node", "reshapes", "submit_ts")


def books(on: Installed, jobs: list[str]) -> dict[str, Any]:
    """What the coordinator says of these jobs and of all GPUs."""
    found: dict[str, Any] = {job: {field: on.job(job).get(field) for field in SAME} for job in jobs}
    return found | {gpu["gpu_id"]: (gpu["state"], gpu["job_id"], gpu["node"]) for gpu in on.client.gpus()}


def test_a_mongodb_that_is_emptied_under_eight_trainings_is_filled_again_from_what_runs(
    installed: Installed, jobs: Callable[..., str], report: Report
) -> None:
    on = installed
    names = [jobs(f"emptied-{n}", LONG, [1]) for n in range(8)]
    pods = {name: uid(trains(on, name, 1, 120)) for name in names}
    for name in names:
        steps_on(on, name)
    with report.scenario("MongoDB emptied under eight trainings") as figures:
        before = books(on, names)
        with on.table("jobs") as table:
            for each in table.database.list_collection_names():
                table.database.drop_collection(each)
        until("a job is in the store again", lambda: stored(on), 60)
        answered("the books are as before", lambda: books(on, names) == before, 60)
        for name in names:
            steps_on(on, name)
        figures |= {
            "pods_unchanged": {name: uid(alive(on, name)) for name in names} == pods,
            "training_processes": [len(processes(on, name)) for name in names],
            "steps_again": sum(again(on, name) for name in names),
            "lost_steps": sum(lost_steps(on, name) for name in names),
        }  # fmt: skip
        assert figures["pods_unchanged"], figures
        assert figures["training_processes"] == [1] * 8, figures
        assert (figures["steps_again"], figures["lost_steps"]) == (0, 0), figures
        assert violations(on, *names) == []
        assert books(on, names) == before
    on.import_speeds()


def test_an_emptied_store_and_new_coordinators_and_launchers_find_each_training_once(
    installed: Installed, jobs: Callable[..., str], report: Report
) -> None:
    """No training gets a second record beside the one that trains, for which it would have to shrink."""
    on = installed
    name = f"mine-{uuid.uuid4().hex[:6]}"
    theirs = f"{steps_job.NAMESPACE}.{name}"
    on.cluster.apply(steps_job.volcano(name, LONG, [1, 2, 3], on.shared))
    names = [theirs, jobs("emptied-record", LONG, [1, 2])]
    try:
        for job in names:
            answered(f"{job} trains", lambda job=job: on.job(job)["state"] == "running", 120)
            steps_on(on, job)
        other_count = 1 if on.job(theirs)["num_gpus"] != 1 else 2  # it trains on others than at its launch
        on.client.reshape(theirs, other_count)
        on.until_on(theirs, other_count)
        answered("the other job is at rest", lambda: not on.job(names[1])["reshape"], 60)
        pods = {job: uid(alive(on, job)) for job in names}
        with report.scenario("MongoDB emptied, coordinators and launchers killed") as figures:
            before = {job: identity(on, job) for job in names}
            kill_our_parts(on)
            with on.table("jobs") as table:
                for each in table.database.list_collection_names():
                    table.database.drop_collection(each)
            until("a job is in the store again", lambda: stored(on), 90)
            answered("the jobs are as before", lambda: is_as_before(on, before), 90)
            for job in names:
                steps_on(on, job)
            with on.table("jobs") as table:
                figures["records"] = table.count_documents({"closed": False})
            figures["pods_unchanged"] = {job: uid(alive(on, job)) for job in names} == pods
            figures["two_at_once_s"] = sum(overlap_s(on, job) for job in names)
            figures["lost_steps"] = sum(lost_steps(on, job) for job in names)
            holders = {gpu["job_id"] for gpu in on.client.gpus() if gpu["job_id"]}
            assert figures["pods_unchanged"], figures
            assert (figures["records"], figures["two_at_once_s"]) == (2, 0), figures
            assert figures["lost_steps"] == 0, figures
            assert holders == set(names)
            assert violations(on, *names) == []
    finally:
        on.cluster.delete("vcjob", name, steps_job.NAMESPACE, "--wait=false")
        on.end(theirs)
        on.import_speeds()


def identity(on: Installed, job_id: str) -> tuple[Any, ...]:
    """Return what a second record of a training, or a launch of its own, would change.

    Its GPUs may: on a slow machine the lease of a training ends meanwhile, which then saves, stops and goes on.
    """
    with on.table("jobs") as table:
        job = table.find_one({"job_id": job_id}) or {}
    return tuple(job.get(field) for field in ("state", "uid", "launch", "reshape"))


def is_as_before(on: Installed, before: dict[str, tuple[Any, ...]]) -> bool:
    """Say which job differs: the error of the last look stands in the report of a test that waited in vain."""
    for job_id, was in before.items():
        now = identity(on, job_id)
        if now != was:
            raise BedError(f"{job_id}: (state, uid, launch, reshape) is {now}, was {was}")
    return True


def kill_our_parts(on: Installed) -> None:
    """Kill all coordinators and launchers at once: none can write back what it had in memory."""
    pids: list[int] = []
    for part in ("coordinator", "launcher"):
        pods = on.cluster.list("pods", SYSTEM, f"app.kubernetes.io/component={part}")
        pids += [main_pid(on, pod, part) for pod in pods]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def stored(on: Installed) -> int:
    with on.table("jobs") as table:
        return int(table.count_documents({}))
