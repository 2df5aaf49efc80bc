"""MongoDB is emptied under running trainings: the same processes go on in the same pods, with the books as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster.bed_kubectl import until
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import LONG, again, alive, lost_steps, processes, steps_on, trains, uid, violations
from tests.cluster.installed import Installed, answered

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


def stored(on: Installed) -> int:
    with on.table("jobs") as table:
        return int(table.count_documents({}))
