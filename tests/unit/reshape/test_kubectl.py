"""`kubectl reshape` reaches the coordinator of a cluster by kubectl, and leaves no process behind."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fakes.coordinator_api import TOKEN, Live
from tests.fakes.terminal import ROOT
from tests.patience import eventually

STAND_IN = """#!{python}
import os, sys, time
with open({log!r}, "a") as log:
    print(*sys.argv[1:], file=log)
if "get" in sys.argv:
    if "other" in sys.argv:
        sys.exit("error: context other does not exist")
    print({token!r}, end="")
else:
    open({log!r} + ".pid", "a").write(str(os.getpid()) + "\\n")
    print("Forwarding from 127.0.0.1:{port} -> 8080", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(live: Live, tmp_path: Path) -> Path:
    """A folder with a stand-in of kubectl: it forwards to a coordinator of this process."""
    token = base64.b64encode(TOKEN.encode()).decode()
    port = live.url.rpartition(":")[2]
    file = tmp_path / "kubectl"
    file.write_text(STAND_IN.format(python=sys.executable, log=str(tmp_path / "log"), token=token, port=port))
    file.chmod(0o755)
    return tmp_path


def typed(folder: Path, *words: str, call: str = "kubectl") -> subprocess.CompletedProcess[str]:
    """`kubectl reshape WORDS`, as kubectl runs the plugin."""
    code = f"import sys; from reshape.__main__ import {call}; sys.argv[0] = 'kubectl-reshape'; {call}()"
    environment = {**os.environ, "PATH": str(folder), "PYTHONPATH": str(ROOT), "HOME": str(folder), "RESHAPE_URL": "x"}
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def test_a_verb_is_asked_of_the_clusters_coordinator(folder: Path, live: Live) -> None:
    live.coordinator.submit({"job_id": "a", "command": ["x"], "optional_num_gpus": [1]})
    done = typed(folder, "--context", "mine", "jobs")
    assert (done.returncode, done.stderr) == (0, "")
    assert "a  " in done.stdout
    token, forward = (folder / "log").read_text().splitlines()
    assert token.startswith("--context mine --namespace reshape-system get secret reshape-keys -o jsonpath=")
    assert forward == "--context mine --namespace reshape-system port-forward service/reshape-coordinator :8080"
    all_have_ended(folder)


def all_have_ended(folder: Path) -> None:
    for pid in (folder / "log.pid").read_text().split():
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "the port-forward has ended")


def test_a_verb_that_asks_several_times_opens_one_way_which_ends_with_it(folder: Path, live: Live) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(typed, folder, "submit", "--name", "a", "--wait", "--", "x")
        eventually(lambda: "a" in live.coordinator.documents)
        live.coordinator.cancel("a")
        done = waiting.result()
    assert "a was cancelled" in done.stderr.replace("Job ", "").lower(), done.stderr
    assert len((folder / "log.pid").read_text().split()) == 1
    all_have_ended(folder)


def test_the_link_of_a_way_that_ends_is_not_printed(folder: Path) -> None:
    done = typed(folder, "dashboard")
    assert (done.returncode, done.stdout) == (2, "") and "port-forward" in done.stderr
    assert not (folder / "log").exists()


def test_a_job_is_submitted_without_this_machines_folder(folder: Path, live: Live) -> None:
    done = typed(folder, "submit", "--name", "b", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "the image has its own" in done.stderr.replace("\n", " ")
    assert "code" not in live.coordinator.documents["b"]


def test_help_and_wrong_usage_need_no_cluster(folder: Path) -> None:
    assert typed(folder, "--help").stdout.startswith("Usage: kubectl reshape [OPTIONS] COMMAND")
    assert typed(folder, "--context").returncode == 2
    assert not (folder / "log").exists()


def test_a_cluster_that_is_not_reached_is_one_sentence(folder: Path) -> None:
    done = typed(folder, "--context=other", "jobs")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("kubectl does not reach the token in Secret reshape-system/reshape-keys: error: con")
    (folder / "kubectl").unlink()
    assert typed(folder, "jobs").stderr.startswith("There is no kubectl on PATH")


def test_its_doctor_looks_at_a_cluster_also_where_none_is_named(folder: Path) -> None:
    done = typed(folder, "doctor")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("The cluster cannot be checked")


def test_kubectl_completes_its_words(folder: Path) -> None:
    done = typed(folder, "sus", call="complete")
    assert done.stdout.splitlines() == ["suspend", ":4"]
