"""Who is signalled when a training is stopped: the process that trains, however the user's command starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reshape_hooks import plain
from tests.fakes.shim_client import ShimProcess, running_shim
from tests.patience import eventually

STEPS = 400
TRAIN = f"""
import os, sys, time
import reshape_hooks

class Count:
    done = 0
    def state_dict(self):
        return {{"done": self.done}}
    def load_state_dict(self, state):
        self.done = state["done"]

count = Count()
state = reshape_hooks.Elastic(count=count)
for step in state.steps({STEPS}):
    count.done += 1
    with open("trained", "a") as file:
        file.write(f"{{step}}\\n")
    print("the script trains", step, flush=True)
    time.sleep(0.01 if not os.path.exists("hurry") else 0)
print("the result is", count.done, flush=True)
"""
SWEEP = """
import subprocess, sys
for rate in ("0.1", "0.01"):
    subprocess.run([sys.executable, "train.py", rate])
    open("went_on", "a").write(rate)
"""
# As `torch.multiprocessing.spawn`: the end of the parent interrupts its children.
SPAWN = """
import ctypes, signal, subprocess, sys
def with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGINT)
child = subprocess.Popen([sys.executable, "train.py"], preexec_fn=with_parent)
sys.exit(child.wait())
"""
COMMANDS = {
    "a pipe": "PYTHON train.py | tee log.txt; echo x >> went_on",
    "a pipe of both streams": "PYTHON train.py 2>&1 | tee log.txt; echo x >> went_on",
    "a file": "PYTHON train.py > log.txt 2>&1; echo x >> went_on",
    "a shell in a shell": "bash -c 'PYTHON train.py | tee log.txt; echo x >> went_on'; echo x >> went_on",
    "a shell with a trap": "trap 'exit 0' TERM; PYTHON train.py | tee log.txt; echo x >> went_on",
    "in the background": "PYTHON train.py > log.txt & wait; echo x >> went_on",
    "a sweep": "PYTHON sweep.py",
    "a parent whose end ends it": "PYTHON spawn.py",
}


@contextlib.contextmanager
def training(folder: Path, command: str, **launch: Any) -> Iterator[ShimProcess]:
    folder.mkdir(exist_ok=True)
    for name, text in (("train.py", TRAIN), ("sweep.py", SWEEP), ("spawn.py", SPAWN)):
        (folder / name).write_text(text)
    words = ["bash", "-c", command.replace("PYTHON", sys.executable)]
    env = {"RESHAPE_CHECKPOINTS": str(folder / "saved"), "RESHAPE_WARM": "0", "PYTHONPATH": ""}
    settings = {"hooks": True, "workdir": str(folder), "grace_s": 120, "env": env}
    with running_shim(folder, words, **{**settings, **launch}) as shim:
        yield shim


def stat_of(pid: int) -> list[str]:
    """The state of a process, its parent and all that follows in its `stat`."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def trained(folder: Path) -> list[int]:
    path = folder / "trained"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def reported(shim: ShimProcess) -> list[int]:
    """The steps that the hook reported, as the sidecar reads them."""
    text = shim.output.read_text() if shim.output.exists() else ""
    return [int(line.split()[0][5:]) for line in text.splitlines() if line.startswith("step=")]


def announced_savers(folder: Path) -> set[int]:
    """The processes that announced that they save."""
    lines = eventually(lambda: (folder / "announce").exists() and (folder / "announce").read_text(), "it announces")
    return {int(line.split()[-1].partition("@")[0]) for line in lines.splitlines()}


def until_trained(shim: ShimProcess, more: int = 5) -> None:
    goal = len(trained(shim.folder)) + more
    eventually(lambda: len(trained(shim.folder)) >= goal, f"{goal} steps", within=60)


@pytest.mark.parametrize("how", COMMANDS)
def test_a_training_inside_a_users_command_saves_each_step_and_the_command_does_not_go_on_without_it(tmp_path, how):
    with training(tmp_path, COMMANDS[how]) as shim:
        for generation in (1, 2):
            shim.client.start(generation, ["A"])
            until_trained(shim)
            shim.client.stop(generation, grace_s=120)
            status = shim.client.wait("exited")
            assert status["stop_asked"] and not status["exit_note"].startswith("had to kill"), status
            assert not (tmp_path / "went_on").exists()
        (tmp_path / "hurry").touch()
        shim.client.start(3, ["A"])
        assert shim.client.wait("exited")["exit_code"] == 0
    assert trained(tmp_path)[:STEPS] == list(range(STEPS)), "each step once"
    assert reported(shim)[-1] == STEPS or how == "a sweep"


@pytest.mark.parametrize("how", ["a pipe", "a shell in a shell", "a sweep"])
def test_a_kill_while_it_saves_is_told_though_the_command_around_it_is_ended_by_the_shim(tmp_path, how):
    with training(tmp_path, COMMANDS[how]) as shim:
        shim.client.start(1, ["A"])
        until_trained(shim)
        (saver,) = announced_savers(tmp_path)
        os.kill(saver, signal.SIGSTOP)  # so that the kill comes before it has saved
        parent = stat_of(saver)[1]
        shim.client.stop(1, grace_s=120)
        eventually(lambda: stat_of(int(parent))[0] == "T", "its parent is held")
        os.kill(saver, signal.SIGKILL)
        status = shim.client.wait("exited")
        assert (status["stop_asked"], status["exit_code"]) == (True, -signal.SIGKILL)
        assert not (tmp_path / "went_on").exists()


def test_a_training_behind_thousands_that_have_ended_is_waited_for(tmp_path):
    """As the last one of a long sweep."""
    before = "seq 4000 | sed 's/.*/SIGUSR1 143 9999999@&\\nended 9999999@&/' > \"$RESHAPE_ANNOUNCE\"; "
    with training(tmp_path, before + COMMANDS["a pipe"]) as shim:
        shim.client.start(1, ["A"])
        until_trained(shim)
        (saver,) = (pid for pid in announced_savers(tmp_path) if Path(f"/proc/{pid}").exists())
        os.kill(saver, signal.SIGSTOP)  # it takes longer than the grace to save
        shim.client.stop(1, grace_s=0.1, wait=True)
        eventually(lambda: shim.client.status()["patient"], "it is waited for")
        eventually(lambda: stat_of(int(stat_of(saver)[1]))[0] == "T", "its parent is held")
        os.kill(saver, signal.SIGCONT)
        status = shim.client.wait("exited")
        assert status["stop_asked"] and not status["exit_note"].startswith("had to kill"), status
        (tmp_path / "hurry").touch()
        shim.client.start(2, ["A"])
        assert shim.client.wait("exited")["exit_code"] == 0
    assert trained(tmp_path) == list(range(STEPS)), "each step once"


GOES_ON = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
subprocess.run([sys.executable, "train.py"])
while True:
    subprocess.run(["sleep", "0.1"])
"""
GO_ON = {
    "a driver that handles SIGTERM": ("exec PYTHON goes_on.py", "had to kill"),
    "an interactive shell, which ignores it": ("bash -ic 'PYTHON train.py; echo x >> went_on; sleep 1000'", ""),
}


@pytest.mark.parametrize("how", GO_ON)
def test_a_command_that_goes_on_without_its_training_has_its_grace_and_no_more(tmp_path, how):
    (tmp_path / "goes_on.py").write_text(GOES_ON)
    command, note = GO_ON[how]
    with training(tmp_path, command, grace_s=1.0) as shim:
        shim.client.start(1, ["A"])
        until_trained(shim)
        shim.client.stop(1, grace_s=1.0, wait=True)
        status = shim.client.wait("exited")
        assert status["exit_note"].startswith(note) and bool(note) == bool(status["exit_note"]), status
        assert status["exit_code"] == (-signal.SIGKILL if note else -signal.SIGTERM)
        assert not (tmp_path / "went_on").exists()
        done = len(trained(tmp_path))
        shim.client.start(2, ["A"])
        until_trained(shim)
    assert trained(tmp_path)[: done + 5] == list(range(done + 5)), "each step once"


RESTARTS = {
    "a shell": "trap : TERM; until PYTHON train.py; do sleep 0.1; done",
    "a script": "exec PYTHON restarts.py",
}
RESTART = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: None)
while subprocess.run([sys.executable, "train.py"]).returncode:
    pass
"""


@pytest.mark.parametrize("how", RESTARTS)
def test_a_command_that_starts_its_training_again_is_ended_and_no_step_is_lost(tmp_path, how):
    (tmp_path / "restarts.py").write_text(RESTART)
    with training(tmp_path, RESTARTS[how]) as shim:
        shim.client.start(1, ["A"])
        until_trained(shim)
        shim.client.stop(1, grace_s=2.0, wait=True)
        status = shim.client.wait("exited")
        assert status["stop_asked"] and "a command that started it again" in status["exit_note"], status
        (tmp_path / "hurry").touch()
        shim.client.start(2, ["A"])
        assert shim.client.wait("exited")["exit_code"] == 0
    assert trained(tmp_path) == list(range(STEPS)), "each step once"


def test_steps_are_reported_though_the_output_goes_to_a_file_which_holds_only_what_the_script_prints(tmp_path):
    with training(tmp_path, "PYTHON train.py > log.txt 2>&1") as shim:
        (tmp_path / "hurry").touch()
        shim.client.start(1, ["A"])
        shim.client.wait("exited")
        printed = [f"the script trains {step}" for step in range(STEPS)]
        assert (tmp_path / "log.txt").read_text().splitlines() == [*printed, f"the result is {STEPS}"]
        steps = reported(shim)
        assert steps == sorted(steps) and steps[-1] == STEPS, "none twice, the last one not lost"


def test_a_report_begins_a_line_of_its_own_behind_an_unfinished_one(tmp_path):
    code = "import os; from reshape_hooks import plain; os.write(2, b' 40%|####'); plain.say(step=7)"
    with training(tmp_path, f'PYTHON -c "{code}" > log.txt') as shim:
        shim.client.start(1, ["A"])
        shim.client.wait("exited")
        first, second = shim.output.read_text().splitlines()
        assert first == " 40%|####" and second.startswith("step=7 time=")


def test_steps_are_reported_from_a_notebook_whose_stdout_only_seems_to_be_that_of_its_process(tmp_path):
    code = (
        "import sys; from reshape_hooks import plain; seems = sys.stdout\n"
        "class Cells:\n    fileno = seems.fileno\n    write = flush = lambda *_: None\n"
        "sys.stdout = Cells(); plain.say(step=7)"
    )
    with training(tmp_path, f"PYTHON -c '{code}'") as shim:
        shim.client.start(1, ["A"])
        shim.client.wait("exited")
        assert reported(shim) == [7]


def test_what_is_printed_to_the_shim_itself_is_reported_once(tmp_path):
    with training(tmp_path, "PYTHON train.py") as shim:
        (tmp_path / "hurry").touch()
        shim.client.start(1, ["A"])
        shim.client.wait("exited")
        assert reported(shim) == list(range(1, STEPS + 1))


@pytest.mark.parametrize("how", ["a pipe", "a sweep"])
def test_a_checkpoint_without_exit_is_asked_of_the_process_that_trains(tmp_path, how):
    with training(tmp_path, COMMANDS[how]) as shim:
        shim.client.start(1, ["A"])
        until_trained(shim)
        assert shim.client.ask("checkpoint", generation=1, command_id="c")["ok"]
        eventually(lambda: list((tmp_path / "saved").rglob("manifest.json")), "a checkpoint")
        until_trained(shim)
        assert shim.client.status()["trainer"] == "running"


def test_a_process_that_is_not_the_trainers_is_never_signalled(tmp_path):
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            start = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
            says = (
                f"echo SIGUSR1 143 {other.pid}@{start} >> $RESHAPE_ANNOUNCE; echo SIGUSR1 143 $$@1 >> $RESHAPE_ANNOUNCE"
            )
            with training(tmp_path, f"{says}; echo ready; sleep 1000; true") as shim:
                shim.client.start(1, ["A"])
                eventually(lambda: shim.output.exists() and "ready" in shim.output.read_text(), "it is announced")
                assert not shim.client.ask("checkpoint", generation=1, command_id="c")["ok"]
                shim.client.stop(1)
                assert shim.client.wait("exited")["exit_code"] == -signal.SIGTERM, "the leader is asked instead"
            assert other.poll() is None
        finally:
            other.kill()


LEAVES = {
    "a shell": "PYTHON train.py > log.txt 2>&1 & exit 0",
    "with its own shell": "nohup bash -c 'PYTHON train.py > log.txt 2>&1' & exit 0",
    "a daemon": 'PYTHON -c "import os; os.fork() and os._exit(0); os.setsid(); os.fork() and os._exit(0); '
    "os.execv('PYTHON', ['python', 'train.py'])\"",
}


@pytest.mark.parametrize("how", LEAVES)
def test_a_training_that_its_command_left_in_the_background_is_waited_for_and_stopped_as_any_other(tmp_path, how):
    with training(tmp_path, LEAVES[how]) as shim:
        shim.client.start(1, ["A"])
        until_trained(shim)
        status = shim.client.status()
        assert status["trainer"] == "running" and status["trainer_pid"]
        shim.client.stop(1, grace_s=120)
        status = shim.client.wait("exited")
        assert (status["stop_asked"], status["exit_code"], status["exit_note"]) == (True, 143, "") or (
            how == "with its own shell" and status["exit_code"] == -signal.SIGTERM
        )
        (tmp_path / "hurry").touch()
        shim.client.start(2, ["A"])
        status = shim.client.wait("exited")
        assert (status["stop_asked"], status["exit_code"]) == (False, 0)
    assert trained(tmp_path) == list(range(STEPS)), "each step once, and all of them before the end is told"


@pytest.mark.parametrize("does", ["sum(range(1000))", "print('it trains', flush=True)"], ids=["computes", "prints"])
def test_what_a_command_left_behind_trains_while_it_computes_or_prints_and_its_end_is_the_trainers(tmp_path, does):
    pause = "" if "sum" in does else "time.sleep(0.5)"
    (tmp_path / "work.py").write_text(
        f"import time\nend = time.monotonic() + 12\nwhile time.monotonic() < end:\n    {does}\n    {pause}\n"
        "open('finished', 'w').close()\nraise SystemExit(3)\n"
    )
    with training(tmp_path, "PYTHON work.py & exit 0", hooks=False) as shim:
        shim.client.start(1, ["A"])
        assert shim.client.wait("exited")["exit_code"] == 3
        assert (tmp_path / "finished").exists()


def test_what_a_command_left_behind_and_does_nothing_is_ended(tmp_path):
    with training(tmp_path, "sleep 1000 & exit 0") as shim:
        shim.client.start(1, ["A"])
        status = shim.client.wait("exited")
        assert (status["exit_code"], status["exit_note"], shim.left()) == (0, "", [])


class Broken:
    """As a stream whose reader is gone."""

    def write(self, _text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("stream", [Broken(), None, "closed"])
def test_no_report_raises_into_a_training(tmp_path, monkeypatch, stream):
    if stream == "closed":
        stream = (tmp_path / "closed").open("w")
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    plain.say(step=1, total=2)
    plain.warn("a sentence")
    plain.flush()
    for variable, value in (("RESHAPE_OUTPUT", "1:2"), ("RESHAPE_REPORTS", str(tmp_path / "nobody reads"))):
        monkeypatch.setenv(variable, value)
    os.mkfifo(tmp_path / "nobody reads")
    plain.say(step=2, total=2)


def test_an_announcement_that_cannot_be_written_leaves_the_training_as_it_is(tmp_path, capsys):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    try:
        stop = plain.StopFlag(str(tmp_path / "no such folder" / "announce"))
        assert not stop.stopping
        assert "cannot be written (No such file or directory)" in capsys.readouterr().err
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGUSR1), before, strict=True):
            signal.signal(number, handler)
