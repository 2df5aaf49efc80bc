"""`reshape submit`: a command as it was typed becomes a job that runs as it would have by hand; waiting for its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.model.text_rules import problems_of_text
from reshape.cli import main, submit_verb
from reshape.client import command as shell
from tests.fakes.coordinator_api import TOKEN, Live
from tests.fakes.terminal import Output, Terminal, environment
from tests.patience import eventually

Run = Callable[..., Output]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current one, with a script and a virtual environment that is active."""
    here, venv = tmp_path / "mine", tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    here.mkdir()
    for path, text in (
        (here / "train.py", "print('hi')\n"),
        (here / "run.sh", "#!/bin/sh\n"),
        (venv / "bin/python", ""),
    ):
        path.write_text(text)
    (here / "run.sh").chmod(0o755)
    (venv / "bin/python").chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("VIRTUAL_ENV", str(venv))
    monkeypatch.setenv("PATH", f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}")
    yield here


def test_a_command_is_submitted_with_the_folder_and_environment_of_who_types_it(
    reshape: Run, got: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hf")
    done = reshape("submit", "--", "python", "train.py", "--lr", "0.1")
    venv = os.environ["VIRTUAL_ENV"]
    said = f"Job train-1 is submitted: 1 GPU, in {folder}, with python of the virtual environment {venv}.\n"
    assert (done.code, done.out, done.err) == (0, said, "")
    (doc,) = got
    assert (doc["command"], doc["code"]) == (["python", "train.py", "--lr", "0.1"], str(folder))
    assert (doc["optional_num_gpus"], "elastic" in doc) == ([1], False)
    env = doc["env"]
    assert (env["PATH"], env["VIRTUAL_ENV"], env["HF_HOME"]) == (os.environ["PATH"], venv, "/data/hf")


def test_nothing_that_may_be_a_secret_leaves_the_shell() -> None:
    secrets = {"HF_TOKEN": "x", "WANDB_API_KEY": "x", "CONDA_TOKEN": "x", "HF_HUB_PASSWORD": "x", "AWS_REGION": "x"}
    kept = {"PATH": "/bin", "LC_ALL": "C", "CONDA_PREFIX": "/c", "HF_HUB_OFFLINE": "1"}
    unfit = {"LANG": "\x1b[2J", "HF_ENDPOINT": "{{ x }}", "TZ": "\udc80", "CONDA_X": "y" * 40_000, "CONDA-Y": "x"}
    assert shell.variables({**secrets, **kept, **unfit}) == kept


@pytest.mark.parametrize(
    ("options", "allowed", "said"),
    [
        ([], [1], "1 GPU,"),
        (["--gpus", "2"], [2], "2 GPUs,"),
        (["--gpus", "4,1,2"], [1, 2, 4], f"1, 2 or 4 GPUs ({submit_verb.KEEPS}),"),
        (["--gpus", "1-4", "--elastic"], [1, 2, 3, 4], "1, 2, 3 or 4 GPUs,"),
        (["--gpus-allowed", "1,2", "--rigid"], [1, 2], "1 or 2 GPUs,"),
        (["--cpu"], [0], "on CPU only,"),
        (["--gpus", "0"], [0], "on CPU only,"),
    ],
)
def test_counts_are_said_plainly(
    reshape: Run, got: list[dict[str, Any]], folder: Path, options: list[str], allowed: list[int], said: str
) -> None:
    done = reshape("submit", *options, "--", "python", "train.py")
    assert done.out.startswith(f"Job train-1 is submitted: {said}")
    assert got[0]["optional_num_gpus"] == allowed


def test_a_job_that_is_held_says_what_lets_it_start(reshape: Run, got: list[dict[str, Any]], folder: Path) -> None:
    done = reshape("submit", "--hold", "--", "python", "train.py")
    assert done.out.endswith(". It waits until `reshape release train-1`.\n")
    assert got[0]["hold"] is True


@pytest.mark.parametrize(("option", "elastic"), [("--elastic", True), ("--rigid", False)])
def test_whether_it_may_be_stopped_can_be_said(
    reshape: Run, got: list[dict[str, Any]], folder: Path, option: str, elastic: bool
) -> None:
    assert reshape("submit", option, "--", "python", "train.py").code == 0
    assert got[0]["elastic"] is elastic


def test_jobs_are_numbered_after_their_script(reshape: Run, live: Live, folder: Path) -> None:
    names = [reshape("submit", "--", "./run.sh").out.split()[1] for _ in range(2)]
    live.coordinator.documents["run-7"] = {**live.coordinator.documents["run-1"], "job_id": "run-7"}
    names.append(reshape("submit", "--", "./run.sh").out.split()[1])
    assert names == ["run-1", "run-2", "run-8"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-u", "train.py"], "train"),
        (["python", "-m", "my.pkg.fit", "--x", "1"], "fit"),
        (["torchrun", "--nproc", "2", "src/a b.py"], "a-b"),
        (["/usr/bin/env"], "env"),
        (["..."], "job"),
    ],
)
def test_a_job_is_called_after_what_it_runs(command: list[str], name: str) -> None:
    assert shell.name(command) == name


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("train.py", "train.py is not on PATH; for the file in {folder} write ./train.py, or python train.py."),
        ("./train.py", "./train.py is not executable: chmod +x ./train.py, or python ./train.py."),
        ("./nope", "There is no file ./nope in {folder}."),
        ("nope", "There is no program nope on PATH: look how it is written, or activate its environment."),
        ("for i in 1 2; do echo $i; done", "is not a program; for the syntax of a shell, write sh -c '…'."),
        ("./", "./ is a folder."),
    ],
)
def test_a_program_that_a_shell_would_not_find_is_refused_at_once(
    reshape: Run, got: list[dict[str, Any]], folder: Path, word: str, sentence: str
) -> None:
    done = reshape("submit", "--", word)
    assert (done.code, done.out, got) == (1, "", [])
    assert sentence.format(folder=folder) in done.err


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["python", "trian.py"], "There is no file trian.py in {folder}. Did you mean train.py?"),
        (["python", "-u", "-W", "ignore", "trian.py", "x"], "There is no file trian.py in {folder}. Did you mean"),
        (["sh", "-e", "nowhere/run.sh"], "There is no file nowhere/run.sh in {folder}.\n"),
    ],
)
def test_a_script_that_is_not_there_is_refused_at_once(
    reshape: Run, got: list[dict[str, Any]], folder: Path, command: list[str], sentence: str
) -> None:
    done = reshape("submit", "--", *command)
    assert (done.code, done.out, got) == (1, "", [])
    assert sentence.format(folder=folder) in done.err


@pytest.mark.parametrize(
    "command",
    [
        ["python", "-um", "trian"],
        ["python", "-c", "print()"],
        ["python", "-"],
        ["sh", "-ec", "trian.py"],
        ["sh", "run.sh", "no.py"],
        ["python", "-s", "-Wignore::m", "train.py"],
        ["env", "python", "trian.py"],
    ],
)
def test_what_may_be_no_path_of_a_script_is_not_refused(
    reshape: Run, got: list[dict[str, Any]], folder: Path, command: list[str]
) -> None:
    assert reshape("submit", "--", *command).code == 0
    assert got[0]["command"] == command


def test_what_it_needs_can_be_typed(reshape: Run, got: list[dict[str, Any]], folder: Path) -> None:
    reshape("submit", "--name", "first", "--", "python", "train.py")
    options = ["--deadline", "2h", "--gpu-type", "V100", "--node", "local", "--after", "first", "--env", "LR=a=b"]
    assert reshape("submit", *options, "--", "python", "train.py").code == 0
    env = got[1].pop("env")
    assert env["LR"] == "a=b" and "PATH" in env
    wanted = {"sla": "2h", "gpu_type": "V100", "node": "local", "depends_on": ["first"]}
    assert {name: got[1].get(name) for name in wanted} == wanted
    wrong = reshape("submit", "--env", "LR", "--", "python", "train.py")
    assert (wrong.code, "'LR' does not set a variable: write NAME=VALUE" in wrong.err) == (2, True)


def test_more_gpus_than_any_node_has_are_refused_at_once(
    reshape: Run, live: Live, got: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.coordinator, "nodes", lambda: [{"node": "a", "gpus": 8}, {"node": "b", "gpus": 4}])
    done = reshape("submit", "--gpus", "9", "--", "python", "train.py")
    assert (done.code, got) == (1, [])
    assert "No node has 9 GPUs; the largest has 8: write --gpus 8 or less." in done.err
    assert reshape("submit", "--gpus", "8,16", "--", "python", "train.py").code == 0


def test_a_program_in_the_folder_named_is_found_there(tmp_path: Path, folder: Path) -> None:
    assert shell.program("./run.sh", folder, {}) == str(folder / "run.sh")
    with pytest.raises(shell.NotRunnable, match=r"no file \./run\.sh in"):
        shell.program("./run.sh", tmp_path, {})


def test_a_coordinator_elsewhere_is_sent_neither_folder_nor_variables(
    live: Live, got: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main.run(["--url", live.url, "--token", TOKEN, "submit", "--", "python", "train.py"])
    out, err = capsys.readouterr()
    assert (code, out, err) == (0, "Job train-1 is submitted: 1 GPU.\n", shell.NOT_SENT + "\n")
    assert set(got[0]) == {"command", "optional_num_gpus", "job_id", "owner"}, "and whose it is"


# waiting


def ends(live: Live, name: str, state: str, message: str, text: bytes = b"") -> threading.Thread:
    """The job ends in that state as soon as it is there."""

    def run() -> None:
        until = time.monotonic() + 20
        while name not in live.coordinator.documents and time.monotonic() < until:
            time.sleep(0.01)
        live.coordinator.outputs[name] = text
        live.coordinator.documents[name] |= {"state": state, "message": message}

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("outcome", "message", "code", "said"),
    [
        ("completed", "completed", 0, "Job a completed.\n"),
        ("failed", "it ended with exit code 3", 1, "Job a failed: it ended with exit code 3.\n"),
        ("cancelled", "cancelled by the user", 1, "Job a was cancelled: cancelled by the user.\n"),
    ],
)
def test_waiting_ends_with_the_job_and_with_its_outcome(
    reshape: Run, live: Live, folder: Path, outcome: str, message: str, code: int, said: str
) -> None:
    thread = ends(live, "a", outcome, message)
    done = reshape("submit", "--wait", "--name", "a", "--", "python", "train.py")
    assert (done.code, done.err) == (code, said)
    thread.join()


def test_waiting_on_a_terminal_shows_one_line_that_is_gone_at_the_end(live: Live, state: Path, folder: Path) -> None:
    words = ["submit", "--wait", "--name", "a", "--", sys.executable, str(folder / "train.py")]
    terminal = Terminal(environment(state), *words)
    eventually(lambda: terminal.shows("\ra  submitted"), "the line is shown")
    live.coordinator.documents["a"] |= {"state": "completed", "message": "completed"}
    eventually(terminal.has_ended, "the wait has ended")
    assert "\r\x1b[KJob a completed." in terminal.text


def test_following_prints_what_the_job_writes(process: Callable[..., subprocess.Popen[str]], live: Live) -> None:
    thread = ends(live, "a", "completed", "completed", b"epoch 1\nepoch 2\n")
    done = process("submit", "--follow", "--name", "a", "--", sys.executable, "-m", "train")
    out, err = done.communicate(timeout=60)
    thread.join()
    assert (done.returncode, err) == (0, "Job a completed.\n")
    assert out.endswith("epoch 1\nepoch 2\n")


def test_ctrl_c_ends_the_waiting_and_says_that_the_job_goes_on(
    process: Callable[..., subprocess.Popen[str]], live: Live
) -> None:
    running = process("submit", "--follow", "--name", "a", "--", sys.executable, "-m", "train")
    assert running.stdout is not None
    running.stdout.readline()
    live.coordinator.documents["a"]["state"] = "running"
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err == "Job a keeps running: `reshape logs -f a` follows it, `reshape cancel a` ends it.\n"
    assert live.coordinator.documents["a"]["state"] == "running"


def test_only_one_job_can_be_followed(reshape: Run, tmp_path: Path) -> None:
    docs = [{"job_id": name, "command": "x", "optional_num_gpus": [1]} for name in ("a", "b")]
    (tmp_path / "jobs.json").write_text(json.dumps(docs))
    done = reshape("submit", "--follow", "-f", str(tmp_path / "jobs.json"))
    assert (done.code, "wait for several with --wait" in done.err) == (2, True)


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "",
        "a\tb\nc",
        "a\x00b",
        "a\rb",
        "\x7f",
        "\ud800",
        "{{x",
        "{%x",
        "{#x",
        "{ {",
        "x" * 32_768,
        "x" * 32_769,
    ],
)
def test_the_client_sends_the_variables_that_a_coordinator_takes(value: str) -> None:
    assert shell.is_sent(value) is not any(problems_of_text("env", value))
