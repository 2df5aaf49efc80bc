"""Finished tasks become rows of `observations`: with what a real Prometheus saw, and without it with what pods told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.ports import MEASURED_S
from tests.cluster import bed_prometheus
from tests.cluster.bed_report import Report
from tests.cluster.installed import Installed, answered

ASKED = {"cores": 0.2, "memory": 64_000_000}
MEBIBYTE = 2**20


def rows_of(installed: Installed, job_id: str) -> list[dict[str, Any]]:
    return [row for row in installed.client.profiles("observations") if row.get("job_id") == job_id]


def test_a_finished_task_is_a_row_with_what_prometheus_saw(
    installed: Installed, jobs: Callable[..., str], report: Report
) -> None:
    with report.scenario("observations from Prometheus") as figures, bed_prometheus.watching(installed.bed):
        job_id = jobs("watched", 50, [1], resources=ASKED)
        installed.until(job_id, "running")
        node = installed.pod(job_id)["spec"]["nodeName"]
        installed.until(job_id, "completed")

        def seen() -> dict[str, Any] | None:
            (row,) = rows_of(installed, job_id) or [{}]
            return row if row.get("used_from") == "prometheus" else None

        row = answered("Prometheus has told of the task", seen, 20)
        assert row is not None
        assert (row["cores"], row["memory"], row["node"]) == (*ASKED.values(), node)
        assert row["execution_s"] > 15
        assert 0 < row["used_s"] <= row["execution_s"] + 1
        assert 0 < row["used_cores"] <= row["used_cores_peak"] < 2
        assert MEBIBYTE < row["used_memory"] < 2**30
        assert row["node_load"] >= 0
        figures |= {name: value for name, value in row.items() if name.startswith("used") or name == "execution_s"}


@pytest.mark.deep
def test_the_use_of_a_running_job_is_as_prometheus_measures_it(
    installed: Installed, jobs: Callable[..., str], report: Report
) -> None:
    with report.scenario("present use from Prometheus") as figures, bed_prometheus.watching(installed.bed):
        job_id = jobs("measured", 5_000, [1], resources=ASKED)
        installed.until(job_id, "running")

        def measured() -> dict[str, Any] | None:
            usage = dict(installed.client.job(job_id)["usage"])
            return usage if usage["used_from"] == "prometheus" else None

        usage = answered("it has trained unchanged for as long as the mean is taken over", measured, MEASURED_S + 60)
        assert 0 < usage["cpu_cores"] < 2
        assert MEBIBYTE < usage["memory"] < 2**30
        figures |= usage


def test_without_prometheus_its_own_reports_tell(installed: Installed, jobs: Callable[..., str]) -> None:
    job_id = jobs("unwatched", 10, [1], resources=ASKED)
    installed.until(job_id, "completed")
    (row,) = rows_of(installed, job_id)
    assert row["used_from"] == "heartbeats"
    assert row["execution_s"] > 0 and row["used_memory"] > MEBIBYTE
