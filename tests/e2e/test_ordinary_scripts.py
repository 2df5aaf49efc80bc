"""Scripts that were never made for this product, beside each other and beside one that is reshaped for them.

They import nothing of ours. What cannot resume must be left to its end, Keras' `fit` may be resized; every line that a
script does is in its own file exactly once, of Keras every epoch. The scripts are in `ordinary/`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.depth import DEEP, deep
from tests.e2e.up import ROOT, TRAINERS, Up, running, wait_for
from tests.fakes.gpu_log import GpuLog
from tests.interpreters import python_with

View = dict[str, Any]

SCRIPTS = Path(__file__).parent / "ordinary"
HOOKED = "hooked"
TENSORFLOW_S = 120.0  # for its import, while the others train


@dataclass(frozen=True)
class Script:
    """One of `ordinary/`: writes each line that it does into a file, and ends once another file is there."""

    name: str
    counts: tuple[int, ...] = (1,)  # of GPUs: more than one tempts a scheduler to let it grow
    python: str | None = sys.executable
    resumes: bool = False  # unchanged, by the hook that the shim loads; may be stopped, and loses nothing
    heavy: bool = False  # its imports take many seconds of CPU

    def command(self, file: Path) -> list[str]:
        interpreter = "bash" if self.name.endswith(".sh") else str(self.python)
        return [interpreter, str(SCRIPTS / self.name), str(file), str(end_of(file))]


def end_of(file: Path) -> Path:
    return file.with_suffix(".end")


ORDINARY = [
    Script("hugging_face.py"),
    Script("lightning.py"),
    Script("torch_mnist.py", python=python_with("torch"), heavy=True),
    Script("keras_fit.py", (1, 2), python_with("tensorflow"), resumes=True, heavy=True),
    Script("loop.sh", (1, 2)),
    Script("deaf.py"),
]
NO_SUCH_MODULE = Script("no_such_module.py", (1, 2))
THERE = [s for s in ORDINARY if s.python and (DEEP or not s.heavy)]
MISSING = "no interpreter of this machine has its package"
LARGEST = 4  # GPUs of the hooked job, of which it must give some: one GPU too few for that and all the others
GPUS = LARGEST + len(THERE) - 1


@dataclass(frozen=True)
class Ran:
    """What is left when all have ended: jobs and the lines in their files, by name; the hooked one's use of GPUs."""

    jobs: dict[str, View]
    lines: dict[str, list[str]]
    gpus: GpuLog


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Under arrivals: one more as soon as the one before it does its first line; then half of them end."""
    folder = tmp_path_factory.mktemp("ordinary")
    files = {s.name: folder / f"{s.name}.lines" for s in [*THERE, NO_SUCH_MODULE]}
    with running(folder / "state", f"{GPUS}xV100", RESHAPE_FIRST_STEP_TIMEOUT_S="10", RESHAPE_GRACE_S="30") as up:
        up.client.submit(hooked(folder / "hooked.end"))
        up.until(HOOKED, "running")
        for number, script in enumerate(THERE):
            if number == 2:
                submit(up, NO_SUCH_MODULE, files)
            submit(up, script, files)
            wait_for(files[script.name].exists, TENSORFLOW_S, f"{script.name} begins")
        end(up, THERE[: len(THERE) // 2], files)
        wait_for(lambda: grew(up.shapes(HOOKED)), what="the hooked job takes GPUs back")
        end(up, THERE[len(THERE) // 2 :], files)
        (folder / "hooked.end").touch()
        up.until(HOOKED, "completed")
        up.until(NO_SUCH_MODULE.name, "failed")
        jobs = {name: up.job(name) for name in (HOOKED, *files)}
        yield Ran(jobs, {name: file.read_text().split() for name, file in files.items()}, up)


def hooked(until: Path) -> View:
    """Paced, and so long by what it says that growing always pays."""
    return {
        "job_id": HOOKED, "state": "submitted", "job_type": "digits-numpy", "iterations": 100_000,
        "command": [sys.executable, str(TRAINERS / "until_told.py"), str(until)],
        "env": {"PYTHONPATH": str(ROOT)}, "optional_num_gpus": [*range(1, LARGEST + 1)],
    }  # fmt: skip


def submit(up: Up, script: Script, files: dict[str, Path]) -> None:
    """Of a type whose speeds are known, and so long that more GPUs would end it sooner if only it could resume."""
    job: View = {"job_id": script.name, "state": "submitted", "command": script.command(files[script.name])}
    long = {"job_type": "digits-numpy", "iterations": 200_000}
    up.client.submit(job | long | {"optional_num_gpus": list(script.counts)})


def end(up: Up, scripts: list[Script], files: dict[str, Path]) -> None:
    for script in scripts:
        end_of(files[script.name]).touch()
    for script in scripts:
        up.until(script.name, "completed")


def grew(shapes: list[int]) -> bool:
    return any(after > before for before, after in itertools.pairwise(shapes))


@pytest.mark.parametrize("script", [deep(s, name=s.name) if s.heavy else pytest.param(s, id=s.name) for s in ORDINARY])
def test_an_ordinary_script_does_every_line_once_and_is_not_stopped_unless_it_resumes(ran: Ran, script: Script) -> None:
    if script.python is None:
        pytest.skip(MISSING)
    lines = ran.lines[script.name]
    numbers, last = lines[: lines.index("end")], lines[lines.index("end") :]
    assert numbers == [str(n) for n in range(1, len(numbers) + 1)]
    # Behind its last `fit` a Keras script may be started once more where it is killed there (docs/starting.md).
    assert set(last) == {"end"} if script.resumes else last == ["end"]
    job = ran.jobs[script.name]
    assert job["state"] == "completed" and not job.get("lost")
    # Its first launch may have been undone before it began, where GPUs that it was promised were not given.
    assert script.resumes or (job["generation"], job["reshapes"]) == (1, 0)


def test_a_script_whose_import_fails_runs_once_and_its_job_says_what_is_missing(ran: Ran) -> None:
    assert ran.lines[NO_SUCH_MODULE.name] == ["1"]
    job = ran.jobs[NO_SUCH_MODULE.name]
    assert job["state"] == "failed" and "a_package_that_nobody_installed" in job["message"]


def test_the_hooked_job_beside_them_gives_gpus_and_takes_them_back_and_loses_no_step(ran: Ran) -> None:
    shapes, steps = ran.gpus.shapes(HOOKED), ran.gpus.steps(HOOKED)
    assert shapes[0] == LARGEST and min(shapes) < LARGEST and grew(shapes), shapes
    assert steps == list(range(1, len(steps) + 1))
    assert ran.gpus.violations() == []
