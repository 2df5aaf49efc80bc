"""What other processes of one machine use is kept from jobs: a real `reshape up`, and real processes that burn CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.up import Up, digits, running, wait_for

PROCESSORS = len(os.sched_getaffinity(0))


@contextmanager
def busy() -> Iterator[None]:
    """A process that is not ours on each processor."""
    with ExitStack() as stack:
        for _ in range(PROCESSORS):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(process.kill)
        yield


def node(up: Up) -> dict[str, Any]:
    (found,) = up.client.nodes()
    return dict(found)


def test_a_job_that_asks_for_all_of_a_busy_machine_waits_and_one_that_asks_for_little_trains(tmp_path: Path) -> None:
    with busy(), running(tmp_path / "s", "1xV100") as up:
        seen = wait_for(
            lambda: now if (now := node(up))["others_cores"] and now["cpu_use"] else None, what="it is measured"
        )
        assert seen["others_from"] == "processes"
        assert 0 < seen["others_cores"] <= PROCESSORS / 2 < seen["cores"]
        assert seen["others_memory"] >= 0 and 0 < seen["cpu_use"] <= 1
        up.client.submit(digits("wide", 20, [0], resources={"cores": PROCESSORS}))
        up.client.submit(digits("narrow", 20, [0], resources={"cores": 0.25}))
        up.until("narrow", "completed")
        waits = up.job("wide")
        assert waits["state"] == "submitted"
        assert "other processes use" in waits["message"], waits["message"]


def test_it_is_not_where_that_is_switched_off_and_not_on_emulated_nodes(tmp_path: Path) -> None:
    with busy():
        with running(tmp_path / "off", "1xV100", RESHAPE_OTHER_PROCESSES="0") as up:
            up.client.submit(digits("wide", 20, [0], resources={"cores": PROCESSORS}))
            up.until("wide", "completed")
            assert (node(up)["others_cores"], node(up)["others_from"]) == (0.0, "requests")
        with running(tmp_path / "emulated", [f"c=cpu:{PROCESSORS}"]) as up:
            up.client.submit(digits("wide", 20, [0], resources={"cores": PROCESSORS}))
            up.until("wide", "completed")
            assert node(up)["others_cores"] == 0.0
