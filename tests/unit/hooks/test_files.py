"""What a script writes itself comes out as if it had never been stopped, moved or killed: byte for byte.

Each script trains by `Elastic`, for eight steps, and writes in one of the ways of public scripts.
"""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reshape_hooks
from reshape_hooks.files.watch import Watch
from tests.interpreters import python_of

STARTUP = Path(reshape_hooks.__file__).parent / "startup"
TRAINS = """
import os, sys, reshape_hooks
done = {"rows": []}
state = reshape_hooks.Elastic(done=done)
def asked(place):
    for name, number in (("STOP", 15), ("KILL", 9)):
        if place == os.environ.get(name):
            os.kill(os.getpid(), number)
"""
LOOP = """
for step in state.steps(8):
    asked(f"before {step}")
    done["rows"].append([step, step * step])
    write(step, step * step)
    asked(f"{step}")
"""
END = "print('end', done['rows'])"
WAYS = {
    "held open with w": """
log = open("log.txt", "w")
log.write("begins\\n")
def write(step, loss): log.write(f"{step} {loss}\\n")
""",
    "flushed at each line": """
log = open("log.txt", "w", buffering=1)
def write(step, loss): print(step, loss, file=log)
""",
    "csv.writer": """
import csv
table = csv.writer(open("log.csv", "w", newline=""))
table.writerow(["step", "loss"])
def write(step, loss): table.writerow([step, loss])
""",
    "header with w, rows with a": """
with open("log.csv", "w") as file:
    file.write("step,loss\\n")
def write(step, loss):
    with open("log.csv", "a") as file: file.write(f"{step},{loss}\\n")
""",
    "append": """
def write(step, loss):
    with open("log.txt", "a") as file: file.write(f"{step} {loss}\\n")
""",
    "append, held open": """
log = open("log.txt", "a")
log.write("begins\\n")
def write(step, loss): log.write(f"{step} {loss}\\n")
""",
    "append, header if it is new": """
def write(step, loss):
    new = not os.path.exists("log.txt")
    with open("log.txt", "a") as file: file.write("step loss\\n" * new + f"{step} {loss}\\n")
""",
    "logging": """
import logging
logging.basicConfig(filename="log.txt", filemode="w", level="INFO", format="%(message)s")
logging.info("begins")
def write(step, loss): logging.info("%s %s", step, loss)
""",
    "JSON written whole": """
import json
def write(step, loss):
    with open("log.json", "w") as file: json.dump(done["rows"], file)
""",
    "JSON read, changed and written": """
import json
with open("log.json", "w") as file: json.dump([], file)
def write(step, loss):
    with open("log.json") as file: rows = json.load(file)
    with open("log.json", "w") as file: json.dump([*rows, [step, loss]], file)
""",
    "JSON put in place": """
import json, pathlib
def write(step, loss):
    rows = json.loads(pathlib.Path("log.json").read_text()) if step else []
    pathlib.Path("new.json").write_text(json.dumps([*rows, [step, loss]]))
    os.replace("new.json", "log.json")
""",
    "binary": """
import struct
log = open("log.bin", "wb")
log.write(b"head")
def write(step, loss): log.write(struct.pack("<II", step, loss))
""",
    "folder made once": """
os.makedirs("out")
log = open("out/log.txt", "w")
def write(step, loss): log.write(f"{step} {loss}\\n")
""",
    "pathlib folder made once": """
import pathlib
pathlib.Path("out").mkdir()
def write(step, loss):
    with pathlib.Path("out", f"{step % 3}.txt").open("a") as file: file.write(f"{step} {loss}\\n")
""",
    "folder emptied first": """
import shutil
if os.path.exists("out"):
    shutil.rmtree("out")
os.mkdir("out")
def write(step, loss):
    with open("out/log.txt", "a") as file: file.write(f"{step} {loss}\\n")
""",
    "log removed first": """
if os.path.exists("log.txt"):
    os.remove("log.txt")
def write(step, loss):
    with open("log.txt", "a") as file: file.write(f"{step} {loss}\\n")
""",
    "old log moved first": """
if os.path.exists("log.txt"):
    os.rename("log.txt", "log.txt.old")
log = open("log.txt", "x")
def write(step, loss): log.write(f"{step} {loss}\\n")
""",
    "folder for each step": """
def write(step, loss):
    os.mkdir(f"step{step}")
    with open(f"step{step}/loss.txt", "x") as file: file.write(f"{loss}\\n")
""",
    "opened with the first row": """
import csv
log = []
def write(step, loss):
    if not log:
        log.append(open("log.csv", "w", newline=""))
        csv.writer(log[0]).writerow(["step", "loss"])
    csv.writer(log[0]).writerow([step, loss])
""",
    "config written first": """
with open("config.json", "w") as file: file.write('{"steps": 8}')
log = open("log.txt", "w+")
def write(step, loss): log.write(f"{step} {loss} {log.tell()}\\n")
""",
}
SAVES_ALWAYS, SAVES_IF_ASKED = "1e-9", "0"


def train(
    folder: Path, script: str, generation: int, stop: str = "", kill: str = "", mtbf: str = SAVES_IF_ASKED,
    python: str = sys.executable, **more: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run one generation of a script in `folder`; `stop`, `kill`: where it asks itself to stop, and is killed."""
    work, state = folder / "work", folder / "state"
    work.mkdir(parents=True, exist_ok=True)
    state.mkdir(exist_ok=True)
    (state / "train.py").write_text(script)
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "STOP": stop, "KILL": kill, "RESHAPE_JOB_ID": "job"}
    env |= {"RESHAPE_CHECKPOINTS": str(state / "saved"), "RESHAPE_GENERATION": str(generation), "RESHAPE_MTBF_S": mtbf}
    argv = [python, "-c", more["SHELL_COMMAND"]] if "SHELL_COMMAND" in more else [python, str(state / "train.py")]
    return subprocess.run(argv, cwd=work, env=env | more, capture_output=True, text=True, check=False)


def written(folder: Path) -> dict[str, bytes]:
    """All files and folders of a run, and what is in them."""
    paths = sorted((folder / "work").rglob("*"))
    return {str(path.relative_to(folder / "work")): path.read_bytes() if path.is_file() else b"" for path in paths}


def undisturbed(folder: Path, script: str) -> dict[str, bytes]:
    ended = train(folder, script, 1)
    assert (ended.returncode, ended.stderr) == (0, "")
    return written(folder)


@pytest.mark.parametrize("way", WAYS)
def test_files_of_a_script_that_was_stopped_twice_are_those_of_one_that_was_not(tmp_path: Path, way: str) -> None:
    script = TRAINS + WAYS[way] + LOOP + END
    whole = undisturbed(tmp_path / "whole", script)
    first = train(tmp_path / "parts", script, 1, stop="2")
    second = train(tmp_path / "parts", script, 2, stop="5")
    third = train(tmp_path / "parts", script, 3)
    assert [one.returncode for one in (first, second, third)] == [143, 143, 0], third.stderr
    assert first.stderr + second.stderr + third.stderr == ""
    assert written(tmp_path / "parts") == whole


@pytest.mark.parametrize("way", WAYS)
def test_files_of_a_script_that_was_killed_behind_a_checkpoint_have_each_row_once(tmp_path: Path, way: str) -> None:
    script = TRAINS + WAYS[way] + LOOP.replace('asked(f"before', 'save_at(step)\n    asked(f"before') + END
    script = "def save_at(step):\n    if step == 3 and not state._step_saved: state._save()\n" + script
    script = script.replace("def asked", "state._step_saved = False\ndef asked")
    whole = undisturbed(tmp_path / "whole", script)
    first = train(tmp_path / "parts", script, 1, kill="5")
    second = train(tmp_path / "parts", script, 2)
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 0), second.stderr
    assert second.stderr == ""
    assert written(tmp_path / "parts") == whole


FOLDS = """
import os, random, reshape_hooks
scores = []
for fold in range(3):
    drawn = {"fold": fold, "numbers": []}
    state = reshape_hooks.Elastic(drawn=drawn)
    for step in state.steps(4):
        drawn["numbers"].append(random.random())
        if f"{fold}.{step}" == os.environ.get("STOP"):
            os.kill(os.getpid(), 15)
    print("evaluates", fold)
    scores.append(sum(drawn["numbers"]) + random.random())
    with open("folds.csv", "a") as file:
        file.write(f"{fold},{scores[-1]}\\n")
print("end", scores)
"""


def test_what_stands_between_trainings_is_done_again_at_each_start_and_its_rows_are_there_once(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", FOLDS, 1)
    assert (whole.returncode, whole.stderr) == (0, "")
    evaluated = []
    for generation, stop in enumerate(("1.1", "2.1", ""), start=1):
        ended = train(tmp_path / "parts", FOLDS, generation, stop=stop)
        assert (ended.returncode, ended.stderr) == (143 if stop else 0, "")
        evaluated.append(ended.stdout.count("evaluates"))
    assert evaluated == [1, 2, 3]
    assert ended.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1]
    assert written(tmp_path / "parts") == written(tmp_path / "whole")


@pytest.mark.parametrize("where", ["before the checkpoint counts", "behind the checkpoint"])
@pytest.mark.parametrize("way", ["csv.writer", "append", "JSON read, changed and written"])
def test_a_kill_at_the_seam_of_a_checkpoint_gives_no_row_twice(tmp_path: Path, way: str, where: str) -> None:
    seam = """
from reshape_hooks import plain
name = "_write_set" if os.environ.get("SEAM") == "before the checkpoint counts" else "save"
home = plain if name == "_write_set" else plain.Checkpoints
theirs, calls = getattr(home, name), []
def killed_behind(*args):
    theirs(*args)
    calls.append(0)
    if len(calls) == 4 and "SEAM" in os.environ:
        os.kill(os.getpid(), 9)
setattr(home, name, killed_behind)
"""
    each_step = LOOP.replace('asked(f"before', 'state._saver.finish()\n    asked(f"before')  # what is written beside it
    script = TRAINS + seam + WAYS[way] + each_step + END
    whole = undisturbed(tmp_path / "whole", script)
    first = train(tmp_path / "parts", script, 1, mtbf=SAVES_ALWAYS, SEAM=where)
    second = train(tmp_path / "parts", script, 2)
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 0), second.stderr
    assert written(tmp_path / "parts") == whole


@pytest.mark.parametrize("python", ["3.8", "3.13"])
def test_it_holds_in_the_oldest_python_and_in_a_new_one(tmp_path: Path, python: str) -> None:
    program = python_of(python)
    for way in ("csv.writer", "pathlib folder made once", "JSON read, changed and written"):
        script = TRAINS + WAYS[way] + LOOP + END
        whole = undisturbed(tmp_path / way / "whole", script)
        train(tmp_path / way / "parts", script, 1, stop="4", python=program)
        ended = train(tmp_path / way / "parts", script, 2, python=program)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert written(tmp_path / way / "parts") == whole


@pytest.mark.parametrize("fault", ["os.kill(os.getpid(), 9)", "raise ValueError('no data')"])
def test_a_start_that_fails_before_it_trains_loses_nothing(tmp_path: Path, fault: str) -> None:
    fails = f"if os.environ.get('FAILS'): {fault}\n"
    script = TRAINS + WAYS["csv.writer"] + fails + LOOP + END
    whole = undisturbed(tmp_path / "whole", script)
    train(tmp_path / "parts", script, 1, stop="4")
    before = written(tmp_path / "parts")
    failed = train(tmp_path / "parts", script, 2, FAILS="yes")
    assert failed.returncode not in (0, 143)
    if "raise" in fault:
        assert written(tmp_path / "parts") == before, "whoever looks into it finds all rows"
    train(tmp_path / "parts", script, 3)
    assert written(tmp_path / "parts") == whole


def test_a_fresh_start_empties_and_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "log.csv").write_text("of another run")
    assert train(tmp_path, TRAINS + WAYS["csv.writer"] + LOOP, 1).returncode == 0
    assert (tmp_path / "work" / "log.csv").read_text().startswith("step,loss")
    (tmp_path / "work" / "out").mkdir()
    assert "FileExistsError" in train(tmp_path, TRAINS + WAYS["folder made once"] + LOOP, 1).stderr


def test_rows_of_others_stay_and_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    shared = tmp_path / "work" / "log.txt"
    shared.write_text("of another training\n")
    script = TRAINS + WAYS["append"] + LOOP
    train(tmp_path, script, 1, kill="5", mtbf=SAVES_ALWAYS)
    with shared.open("a") as file:
        file.write("of a third one\n")
    ended = train(tmp_path, script, 2)
    assert "log.txt is left as it is after a restart, because it is older than this training" in ended.stderr
    text = shared.read_text()
    assert "of another training\n" in text and "of a third one\n" in text and text.endswith("7 49\n")


def test_what_another_process_writes_to_is_left_as_it_is(tmp_path: Path) -> None:
    script = TRAINS + WAYS["append"] + LOOP
    train(tmp_path, script, 1, kill="5", mtbf=SAVES_ALWAYS)
    with (tmp_path / "work" / "log.txt").open("a") as file:
        file.write("of another process\n")
        file.flush()
        ended = train(tmp_path, script, 2)
    assert "because another process writes to it" in ended.stderr
    assert "of another process\n" in (tmp_path / "work" / "log.txt").read_text()


def test_a_file_that_was_changed_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    script = TRAINS + WAYS["append"] + LOOP
    train(tmp_path, script, 1, kill="5", mtbf=SAVES_ALWAYS)
    (tmp_path / "work" / "log.txt").write_text("a note of mine, longer than all that was in here\n" * 3)
    ended = train(tmp_path, script, 2)
    assert "because it is not as it was when the training was saved" in ended.stderr
    assert (tmp_path / "work" / "log.txt").read_text().startswith("a note of mine")


def test_a_child_that_writes_the_same_file_does_as_it_always_did(tmp_path: Path) -> None:
    child = "import subprocess\nsubprocess.run([sys.executable, '-c', \"open('log.txt', 'w').write('of a child')\"])\n"
    script = TRAINS + child + WAYS["append"] + LOOP
    train(tmp_path, script, 1, stop="3")
    ended = train(tmp_path, script, 2)
    assert ended.returncode == 0
    assert (tmp_path / "work" / "log.txt").read_text().startswith("of a child")


def test_a_folder_named_by_the_time_is_named_before_the_first_stop(tmp_path: Path) -> None:
    way = """
import time
folder = time.strftime("runs/%Y-%m-%d") + f"_{time.monotonic_ns()}"
os.makedirs(folder)
log = open(f"{folder}/log.txt", "w")
def write(step, loss): log.write(f"{step} {loss}\\n")
"""
    first = train(tmp_path, TRAINS + way + LOOP, 1, stop="2")
    assert "is named by the time, so after a restart the script writes to another path" in first.stderr
    second = train(tmp_path, TRAINS + way + LOOP, 2)
    assert "before the restart: each holds a part" in second.stderr
    texts = sorted((path.read_text() for path in (tmp_path / "work").rglob("log.txt")), key=len)
    assert "".join(texts).split("\n")[:-1] == [f"{step} {step * step}" for step in range(8)]


def test_events_for_tensorboard_are_no_files_to_be_named_otherwise(tmp_path: Path) -> None:
    way = """
import time
os.makedirs("runs", exist_ok=True)
log = open(f"runs/events.out.tfevents.{int(time.time())}.host.{os.getpid()}", "wb")
def write(step, loss): log.write(b"event")
"""
    first = train(tmp_path, TRAINS + way + LOOP, 1, stop="2")
    assert "begins a file of events in" in first.stderr and "named by the time" not in first.stderr
    second = train(tmp_path, TRAINS + way + LOOP, 2)
    assert second.returncode == 0
    sizes = [path.stat().st_size for path in (tmp_path / "work" / "runs").iterdir()]
    assert (len(sizes), sum(sizes)) == (2, 8 * len(b"event"))
    assert "holds a part" not in second.stderr


def test_an_archive_is_named_before_the_first_stop_and_what_was_in_it_stays(tmp_path: Path) -> None:
    way = """
import gzip
log = gzip.open("log.gz", "wt")
def write(step, loss): log.write(f"{step} {loss}\\n")
"""
    first = train(tmp_path, TRAINS + way + LOOP + "log.close()\n", 1, stop="2")
    assert "log.gz is not written line by line at its end" in first.stderr
    second = train(tmp_path, TRAINS + way + LOOP + "log.close()\n", 2)
    assert "what was in it before the restart is in" in second.stderr
    archives = sorted((tmp_path / "work").glob("log.gz*"), reverse=True)
    texts = [gzip.decompress(path.read_bytes()).decode() for path in archives]
    assert "".join(texts).split("\n")[:-1] == [f"{step} {step * step}" for step in range(8)]


@pytest.mark.parametrize("into", ["> log.txt 2>&1", ">> log.txt"])
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_output_that_the_command_redirects_goes_on_where_it_was(tmp_path: Path, into: str, end: str) -> None:
    way = "print('begins', flush=True)\ndef write(step, loss): print(step, loss, flush=True)\n"
    script = TRAINS + way + LOOP + END

    def rows(folder: Path) -> list[str]:
        lines = (folder / "work" / "log.txt").read_text().splitlines()
        return [line for line in lines if not line.startswith(("step=", "checkpoint="))]

    def run(folder: Path, generation: int, **asked: str) -> int:
        shell = f"exec {sys.executable} {folder / 'state' / 'train.py'} {into}"
        return train(folder, script, generation, python="/bin/sh", SHELL_COMMAND=shell, **asked).returncode

    assert run(tmp_path / "whole", 1) == 0
    if end == "stop":
        assert run(tmp_path / "parts", 1, stop="4") == 143
    else:
        assert run(tmp_path / "parts", 1, kill="4", mtbf=SAVES_ALWAYS) == -signal.SIGKILL
    assert run(tmp_path / "parts", 2) == 0
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_files_through_which_the_hooks_speak_are_those_of_each_generation(tmp_path: Path) -> None:
    script = TRAINS + WAYS["append"] + LOOP
    ours = {"RESHAPE_ANNOUNCE": str(tmp_path / "announce"), "RESHAPE_GPU_LOCKS": str(tmp_path / "locks")}
    ours["CUDA_VISIBLE_DEVICES"] = "emulated-0"
    train(tmp_path, script, 1, stop="3", **ours)
    (tmp_path / "announce").unlink()  # as the shim does
    ended = train(tmp_path, script, 2, **ours)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "announce").read_text().startswith("SIGUSR1 143")
    assert len(list((tmp_path / "locks").glob("*.jsonl"))) == 2


def test_files_in_shared_memory_are_a_script_s_own_and_devices_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHAPE_MEMORY", "/dev/shm/ours")
    watch = Watch(str(tmp_path), 1)
    assert not watch.skips("/dev/shm/table.csv")
    assert all(map(watch.skips, ("/dev/null", "/proc/self/fd", "/dev/shm/ours/state.pkl")))
