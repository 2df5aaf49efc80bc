"""An operator's signals to a real sidecar under a real `reshape up`, over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from sidecar.checkpoints import newest_good
from tests.e2e.up import TRAINERS, Up, running, wait_for


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("signals") / "state", "2xV100") as one:
        yield one


def launch_of(up: Up, job_id: str) -> Path:
    """The folder of a job's present launch."""
    found = [path.parent for path in up.state.glob("jobs/*/launch.json") if _job_of(path) == job_id]
    return max(found, key=lambda folder: folder.stat().st_mtime)


def _job_of(launch: Path) -> Any:
    return json.loads(launch.read_text())["job_id"]


def signal(up: Up, job_id: str, **body: Any) -> tuple[int, dict[str, Any]]:
    folder = launch_of(up, job_id)
    url, token = ((folder / name).read_text().strip() for name in ("sidecar.url", "operator.token"))
    request = Request(f"{url}/v1/signal", json.dumps(body).encode(), {"Authorization": f"Bearer {token}"})
    try:
        with urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refusal:
        return refusal.code, json.load(refusal)


def test_a_training_told_to_stop_saves_and_ends_and_its_job_is_cancelled(up: Up, tmp_path: Path) -> None:
    command = [sys.executable, str(TRAINERS / "until_told.py"), str(tmp_path / "never")]
    up.client.submit({"job_id": "saves", "command": command, "optional_num_gpus": [1], "job_type": "digits-numpy"})
    up.until("saves", "running")
    wait_for(lambda: up.job("saves")["resumes"] == "hook" and up.steps("saves"), what="it has shown that it saves")
    checkpoints = Path(json.loads((launch_of(up, "saves") / "launch.json").read_text())["checkpoints"])
    status, answer = signal(up, "saves", signal="stop")
    assert status == 202 and answer["decision_id"] in {d["decision_id"] for d in up.client.decisions("saves")}
    ended = up.until("saves", "cancelled")
    saved = newest_good(checkpoints, "saves")
    assert saved is not None and saved.step == up.steps("saves")[-1], "it saved the last step that it made"
    assert ended["num_gpus"] == 0


def test_a_script_that_cannot_save_is_told_to_stop_only_by_force(up: Up) -> None:
    command = ["sh", "-c", "while sleep 0.2; do echo line; done"]
    up.client.submit({"job_id": "loops", "command": command, "optional_num_gpus": [1]})
    up.until("loops", "running")
    status, answer = signal(up, "loops", signal="stop")
    assert (status, "has not shown that it saves" in answer["error"], "force" in answer["error"]) == (409, True, True)
    assert up.job("loops")["state"] == "running"
    assert signal(up, "loops", signal="stop", force=True)[0] == 202
    up.until("loops", "cancelled")
