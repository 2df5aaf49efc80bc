"""Under a `reshape up` of root each job opens only its own GPUs. Device files that the test makes stand for GPUs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar import device_filter
from tests.e2e.test_frozen import driver_of, up_on
from tests.e2e.test_suspend_and_drain import command
from tests.e2e.up import TRAINERS, Up, wait_for
from tests.fakes import gpu_nodes
from tests.fakes.gpu_nodes import MAJOR, needs_device_filter

pytestmark = needs_device_filter


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with driver_of(tmp_path, gpus=2) as driver, up_on(driver, tmp_path, TEST_GPU_MAJOR=str(MAJOR)) as started:
        yield started


def opens(up: Up, job_id: str) -> str:
    """Return what a job could open last; empty while it has not tried."""
    found: list[str] = re.findall(r"opens=(\S*) of_child=", up.client.output(job_id))
    return found[-1] if found else ""


def test_two_jobs_open_one_gpu_each_and_nothing_is_left_of_their_groups(up: Up, tmp_path: Path) -> None:
    line = [sys.executable, str(TRAINERS / "opens_devices.py"), *gpu_nodes.made(tmp_path)]
    for job_id in ("one", "two"):
        up.client.submit({"job_id": job_id, "state": "submitted", "command": line, "optional_num_gpus": [1]})
    for job_id in ("one", "two"):
        up.until(job_id, "running")
    found = [wait_for(lambda job_id=job_id: opens(up, job_id), what=f"{job_id} has tried") for job_id in ("one", "two")]
    assert sorted(found) == ["gpu0", "gpu1"]
    wait_for(lambda: up.job("one")["gpu_access"] == device_filter.OWN, what="it is told")
    assert re.search(r"^can open: +only its own GPUs \(device filter\)$", command(up, "job", "one")[1], re.M)
    groups = [Path(note.read_text().strip()) for note in up.state.glob(f"jobs/*/{device_filter.NOTE}")]
    assert len(groups) == 2
    assert all(group.is_dir() for group in groups)
    for job_id in ("one", "two"):
        up.client.cancel(job_id)
        up.until(job_id, "cancelled")
    wait_for(lambda: not any(group.exists() for group in groups), what="no group is left")
