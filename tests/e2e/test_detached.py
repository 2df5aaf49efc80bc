"""`reshape up --detach` and `reshape down` as a user types them, with real processes; what trains is not touched."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from reshape.client import Client, CoordinatorRefused
from reshape.services.up_log import MOST
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
        (state / "up.log").open("ab").write(b"x" * (MOST + 1))  # as one who repeats a line without end
        eventually(lambda: (state / "up.log.1").exists(), "its log begins anew")
        pid = json.loads((state / "up.json").read_text())["pid"]
        os.kill(pid, signal.SIGSTOP)
        paused = reshape(state, "down")
        os.kill(pid, signal.SIGCONT)
        assert paused[0] == 1 and f"resume it with `kill -CONT {pid}`" in paused[2]
        assert (state / "up.log.1").read_bytes().startswith(b"Reshape is up at ")
    finally:
        down = reshape(state, "down")
    assert down[:2] == (0, "Reshape is down. Running jobs keep training; the next `reshape up` picks them up.\n")
    eventually(lambda: not of_folder(state), f"nothing is left: {of_folder(state)}")
    assert reshape(state, "down") == nothing


def test_what_cannot_start_says_why_and_down_ends_no_other_process(tmp_path: Path) -> None:
    state = tmp_path / "state"
    refused = reshape(state, "up", "--detach", "--gpus", "2xV100", "--host", "203.0.113.7")
    assert refused[0] == 1
    assert refused[2].startswith("--host 203.0.113.7 is not an IPv4 address or name of this machine")
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (state / "up.json").write_text(json.dumps({"pid": bystander.pid, "url": "http://127.0.0.1:9", "token": "x"}))
        assert reshape(state, "down")[0] == 3 and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


TRAINS = "import time\nwhile True: print('step=1', flush=True); time.sleep(0.1)"
DEAF = (
    "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "open(os.environ['RESHAPE_ANNOUNCE'], 'w').write('SIGUSR1 143')\n"
    "while True: print('step=1', flush=True); time.sleep(0.1)"
)


def trainings(state: Path) -> list[str]:
    return [line for line in of_folder(state).values() if "step=1" in line]


def submit(client: Client, job_id: str, script: str) -> None:
    client.submit({"job_id": job_id, "command": [sys.executable, "-c", script], "optional_num_gpus": [1]})
    eventually(lambda: client.job(job_id)["state"] == "running", f"{job_id} trains")


def test_what_was_cancelled_has_ended_once_it_is_down(tmp_path: Path) -> None:
    state = tmp_path / "state"
    try:
        assert reshape(state, "up", "--detach", "--gpus", "2xV100")[0] == 0
        client = Client.find(state)
        submit(client, "ends", TRAINS)
        submit(client, "stays", TRAINS)
        assert len(trainings(state)) == 2
        client.cancel("ends")
        code, out, complaint = reshape(state, "down")
        assert (code, complaint) == (0, "") and out.endswith("the next `reshape up` picks them up.\n")
        assert len(trainings(state)) == 1
        assert reshape(state, "up", "--detach", "--gpus", "2xV100")[0] == 0
    finally:
        code, out, _ = reshape(state, "down", "--cancel-all")
    assert code == 0 and out.startswith("Waiting for stays to stop.\n")
    assert "keep training" not in out
    eventually(lambda: not of_folder(state), f"nothing is left: {of_folder(state)}")


@pytest.mark.deep
def test_a_row_that_cannot_be_cancelled_keeps_no_other_job_training(tmp_path: Path) -> None:
    state = tmp_path / "state"
    try:
        assert reshape(state, "up", "--detach", "--gpus", "2xV100")[0] == 0
        with closing(sqlite3.connect(state / "reshape.sqlite")) as by_hand, by_hand:
            by_hand.execute("INSERT INTO documents (name, key, body) VALUES ('jobs', 'a', '3')")
        submit(Client.find(state), "trains", TRAINS)
    finally:
        code, _, complaint = reshape(state, "down", "--cancel-all")
    assert (code, complaint) == (
        1,
        "Reshape is down. All jobs were cancelled but a (The row 'a' of jobs is no JSON object that can be read: "
        "correct or delete it).\n",
    )
    eventually(lambda: not of_folder(state), f"nothing is left: {of_folder(state)}")


@pytest.mark.deep
def test_what_was_told_to_stop_and_has_not_is_named_once_it_is_down(tmp_path: Path) -> None:
    state = tmp_path / "state"
    try:
        assert reshape(state, "up", "--detach", "--gpus", "2xV100")[0] == 0
        client = Client.find(state)
        submit(client, "deaf", DEAF)
        eventually(lambda: not suspend_refused(client), "it has announced itself")
        pid = json.loads((state / "up.json").read_text())["pid"]
        down = begun_down(state)
        assert down.stdout is not None
        assert down.stdout.readline() == "Waiting for deaf to stop.\n"
        eventually(lambda: "Waiting for deaf" in (state / "up.log").read_text(), "it was told to end")
        os.kill(pid, signal.SIGTERM)  # as a second `reshape down`, which waits, too
        os.kill(pid, signal.SIGINT)  # as a second Ctrl-C
        assert "deaf still runs though told to stop" in down.communicate()[1] and down.returncode == 1
        assert reshape(state, "up", "--detach", "--gpus", "2xV100")[0] == 0
    finally:
        assert reshape(state, "down", "--cancel-all")[0] == 0
    eventually(lambda: not of_folder(state), f"nothing is left: {of_folder(state)}")


@pytest.mark.deep
def test_a_second_down_waits_with_the_first_one(tmp_path: Path) -> None:
    state = tmp_path / "state"
    end = tmp_path / "end"
    try:
        assert reshape(state, "up", "--detach", "--gpus", "2xV100")[0] == 0
        client = Client.find(state)
        submit(client, "deaf", DEAF.replace("while True", f"while not os.path.exists({str(end)!r})"))
        eventually(lambda: not suspend_refused(client), "it has announced itself")
        both = [begun_down(state), begun_down(state)]
        assert [said.readline() for said in (down.stdout for down in both) if said] == [
            "Waiting for deaf to stop.\n"
        ] * 2
        eventually(lambda: "Waiting for deaf" in (state / "up.log").read_text(), "it was told to end")
        pid = json.loads((state / "up.json").read_text())["pid"]
        os.kill(pid, signal.SIGTERM)  # as a third one
        for _ in range(20):  # one that went on without waiting would not answer for so long
            assert client.health()
            time.sleep(0.05)
        assert trainings(state)
        end.touch()
        for down in both:
            out, complaint = down.communicate()
            assert (down.returncode, complaint) == (0, ""), complaint
            assert out.startswith("Reshape is down.")
    finally:
        end.touch()
        reshape(state, "down", "--cancel-all")
    eventually(lambda: not of_folder(state), f"nothing is left: {of_folder(state)}")


def begun_down(state: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "reshape", "--state", str(state), "down"]
    return subprocess.Popen(command, env=environment(state), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def suspend_refused(client: Client) -> bool:
    try:
        client.suspend("deaf")
    except CoordinatorRefused:
        return True
    return False
