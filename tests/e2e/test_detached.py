"""`reshape up --detach` and `reshape down` as a user types them, with real processes; what trains is not touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from reshape.client import Client
from tests.e2e.up import of_folder
from tests.fakes.terminal import environment
from tests.patience import eventually


def reshape(state: Path, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "reshape", "--state", str(state), *words]
    done = subprocess.run(command, env=environment(state), capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_it_comes_up_in_the_background_once_and_goes_down_when_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    nothing = (3, "", f"No `reshape up` runs with the state folder {state}; there is nothing to stop.\n")
    assert reshape(state, "down") == nothing
    try:
        code, out, complaint = reshape(state, "up", "--detach", "--gpus", "2xV100")
        assert (code, complaint) == (0, ""), complaint
        client = Client.find(state)
        assert out.startswith(f"Reshape is up at {client.url}, in the background; `reshape down` stops it")
        assert len(client.gpus()) == 2
        again = reshape(state, "up", "--detach", "--gpus", "2xV100")
        assert again == (1, "", f"`reshape up` already runs with the state folder {state}.\n")
    finally:
        down = reshape(state, "down")
    assert down[:2] == (0, "Reshape is down. What trains goes on; the next `reshape up` finds it again.\n")
    eventually(lambda: not of_folder(state), f"nothing is left: {of_folder(state)}")
    assert reshape(state, "down") == nothing


def test_what_cannot_start_says_why_and_down_ends_no_other_process(tmp_path: Path) -> None:
    state = tmp_path / "state"
    refused = reshape(state, "up", "--detach", "--gpus", "2xV100", "--host", "203.0.113.7")
    assert refused[0] == 1 and refused[2].startswith("--host 203.0.113.7 is no IPv4 address or name of this machine")
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (state / "up.json").write_text(json.dumps({"pid": bystander.pid, "url": "http://127.0.0.1:9", "token": "x"}))
        assert reshape(state, "down")[0] == 3 and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
