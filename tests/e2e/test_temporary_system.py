"""The `reshape up` of a demo or an experiment: nothing of it runs afterwards."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from launcher.local import unlocked
from reshape.services.temporary_system import running, submit
from tests.patience import eventually


def test_the_launches_of_a_temporary_system_that_was_killed_are_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    with running(tmp_path, ["--gpus", "1xV100"], {}) as client:
        submit(client, {"job_id": "one", "job_type": "sleeps", "command": command, "num_gpus": 1})
        eventually(lambda: client.job("one")["state"] == "running")
        (launch,) = (tmp_path / "state" / "jobs").glob("*-l1")
        assert not unlocked(launch / "shim.lock")
        os.kill(json.loads((tmp_path / "state" / "up.json").read_text())["pid"], signal.SIGKILL)
    assert unlocked(launch / "shim.lock")
