"""Where another training by the same script has left its record, a job imports early before its first start, too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sidecar import warm
from tests.faults.test_shim_warm import SCRIPT, runs, stopped, until_ready, waiting, warm_shim
from tests.patience import eventually

SLOW = """
import os, time
while os.path.exists("SLOWLY"):
    time.sleep(0.01)
"""


class Machine:
    """A script beside its module and an installed one, which is imported slowly while `slowly` exists."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.imports, self.slowly = folder, folder / "imports", folder / "slowly"
        self.installed = folder / "site-packages"
        self.installed.mkdir()
        (self.installed / "slow.py").write_text(SLOW.replace("SLOWLY", str(self.slowly)))
        (folder / "mine.py").write_text("open('mine', 'a').write('x')\n")
        (folder / "script.py").write_text(SCRIPT.replace("import decimal,", "import slow, decimal,"))

    def shim(self, name: str, argument: str = "1", checkpoints: str = "", **env: str):
        """A shim of a job of this name, with a folder of its own, that runs the script."""
        (self.folder / name).mkdir()
        command = [sys.executable, str(self.folder / "script.py"), argument]
        given = {"PYTHONPATH": str(self.installed), **env}
        launch = {"imports": str(self.imports), "job_id": name} | ({"checkpoints": checkpoints} if checkpoints else {})
        return warm_shim(self.folder / name, command, given, **launch)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One on which a job has run the script and has left its record."""
    found = Machine(tmp_path)
    with found.shim("one") as shim:
        runs(shim, 1)
        until_ready(shim)
    return found


def test_a_job_imports_early_before_its_first_start_and_runs_nothing_of_the_users(machine):
    with machine.shim("two", "2") as shim:
        until_ready(shim)
        (one,) = shim.left()
        assert b"CUDA_VISIBLE_DEVICES=\0" in Path(f"/proc/{one}/environ").read_bytes()
        assert not (shim.folder / "mine").exists()
        runs(shim, 1)
        status = shim.client.status()
        assert (status["trainer_pid"], status["cold"]) == (one, "")
        assert status["warm_s"] > 0
        until_ready(shim)
        again = waiting(shim)
        stopped(shim, 1)
        runs(shim, 2)
        assert shim.client.status()["trainer_pid"] == again


def test_it_is_started_as_without_that_if_its_gpus_are_free_before_its_imports_are_done(machine):
    machine.slowly.touch()
    with machine.shim("two") as shim:
        eventually(lambda: shim.client.status()["warm"] == warm.BEGINS, "its imports begin")
        (one,) = shim.left()
        shim.client.start(1, ["A"])
        machine.slowly.unlink()
        eventually(lambda: (shim.folder / "runs").exists() and (shim.folder / "runs").read_text() == "x", "it runs")
        status = shim.client.status()
        assert status["trainer_pid"] != one and status["warm_s"] is None
        said = (shim.folder / "stderr").read_text()
        assert "the first trainer here does all its imports itself" in said and "anew" not in said


def test_a_killed_one_costs_nothing_and_a_job_that_is_never_started_leaves_none(machine):
    with machine.shim("two") as shim:
        until_ready(shim)
        os.kill(shim.left()[0], 9)
        until_ready(shim)  # another one
        shim.client.ask("end")
        eventually(lambda: not shim.left(), "all are gone")
    with machine.shim("three") as shim:
        until_ready(shim)
        os.kill(shim.left()[0], 9)
        runs(shim, 1)


def test_the_record_of_another_environment_is_not_used(machine):
    with machine.shim("two", OMP_NUM_THREADS="7") as shim:
        runs(shim, 1)
        assert shim.client.status()["warm_s"] is None


def test_what_chooses_the_imports_of_a_command_is_its_program_and_script(tmp_path):
    (tmp_path / "train.py").touch()
    path = str(tmp_path / "train.py")
    assert warm.script_of(["python", "-u", "train.py", "--epochs", "3"], str(tmp_path)) == ["python", "-u", path]
    assert warm.script_of(["python", path], "/") == ["python", path]
    assert warm.script_of(["python", "-m", "mine", "3"], "/code") == ["python", "-m", "mine", "/code"]
    assert warm.script_of(["./run", "3"], "/code") == ["./run", "3", "/code"]


def test_only_the_newest_records_are_kept(machine):
    for number in range(2 * warm.MOST_RECORDS):
        (machine.imports / f"old{number}").touch()
        os.utime(machine.imports / f"old{number}", (number, number))
    with machine.shim("two") as shim:
        runs(shim, 1)
        eventually(lambda: len(list(machine.imports.iterdir())) == warm.MOST_RECORDS, "old records are removed")
        assert not (machine.imports / "old0").exists()


def test_the_record_of_a_training_that_was_resumed_serves_one_that_begins(machine):
    """Files of the first are put back before its script; that imports `hashlib`, as the second's script does once it
    has set a variable.
    """
    script = machine.folder / "script.py"
    script.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport hashlib\n" + script.read_text())
    checkpoints = machine.folder / "checkpoints"
    checkpoints.mkdir()
    with machine.shim("resumed", checkpoints=str(checkpoints)) as shim:
        runs(shim, 1)
        until_ready(shim)
    assert any("files.replay" in record.read_text() for record in machine.imports.iterdir())
    with machine.shim("begins", checkpoints=str(machine.folder / "none")) as shim:
        until_ready(shim)
        runs(shim, 1)
        assert shim.client.status()["cold"] == ""
        eventually(lambda: shim.client.status()["warm"] not in ("", warm.BEGINS), "it is known whether one waits")
        assert shim.client.status()["warm"].startswith("ready")
