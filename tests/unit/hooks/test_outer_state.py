"""What a script keeps outside of its training is said before the first stop. Small modules stand for libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import reshape_hooks

STARTUP = Path(reshape_hooks.__file__).parent / "startup"
LIBRARIES = {
    "wandb/sdk/wandb_init.py": "def init(entity=None, project=None, **more): pass\n",
    "mlflow/tracking/fluent.py": "def start_run(run_id=None, experiment_id=None, **more): pass\n",
    "optuna/study/study.py": """
class InMemoryStorage: pass
class RDBStorage: pass
class Study:
    def __init__(self, storage): self._storage = storage
    def optimize(self, objective, n_trials):
        objective(1)
        objective(2)
""",
}
STUDY = """
import os, reshape_hooks, sqlite3
from optuna.study import study
def objective(trial):
    part = {}
    state = reshape_hooks.Elastic(part=part)
    for step in state.steps(3): part["step"] = step
study.Study(study.STORAGE()).optimize(objective, 2)
print(open(os.environ["RESHAPE_ANNOUNCE"]).read())
"""


def run(folder: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    for path, code in LIBRARIES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(code)
    (folder / "train.py").write_text(script)
    env = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(STARTUP), "RESHAPE_CHECKPOINTS": str(folder / "saved"),
        "RESHAPE_JOB_ID": "job", "RESHAPE_GENERATION": "1", "RESHAPE_ANNOUNCE": str(folder / "announce"), **more,
    }  # fmt: skip
    argv = [sys.executable, "train.py"]
    ended = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended


@pytest.mark.parametrize(
    ("begin", "more", "said"),
    [
        ("from wandb.sdk import wandb_init; wandb_init.init('me', project='mine')", {}, "W&B begins another run"),
        ("from wandb.sdk import wandb_init; wandb_init.init(id='mine', resume='allow')", {}, ""),
        ("from wandb.sdk import wandb_init; wandb_init.init()", {"WANDB_RUN_ID": "mine"}, ""),
        ("from wandb.sdk import wandb_init; wandb_init.init(mode='disabled')", {}, ""),
        ("from mlflow.tracking import fluent; fluent.start_run(run_name='mine')", {}, "MLflow begins another run"),
        ("from mlflow.tracking import fluent; fluent.start_run('mine')", {}, ""),
    ],
)
def test_a_tracker_that_begins_another_run_at_each_start_is_said(
    tmp_path: Path, begin: str, more: dict[str, str], said: str
) -> None:
    errors = run(tmp_path, f"{begin}\n{begin}", **more).stderr
    assert (errors.count("\n"), errors.startswith(f"reshape: {said}")) == ((1, True) if said else (0, False))


def test_a_training_within_a_study_in_a_data_base_keeps_its_gpus_and_one_in_memory_does_not(tmp_path: Path) -> None:
    ended = run(tmp_path, STUDY.replace("STORAGE", "RDBStorage"))
    assert "this training keeps its GPUs from now on, because its study of Optuna is in a data base" in ended.stderr
    assert "SIGUSR1" not in ended.stdout
    (tmp_path / "memory").mkdir()
    ended = run(tmp_path / "memory", STUDY.replace("STORAGE", "InMemoryStorage"))
    assert (ended.stderr, "SIGUSR1" in ended.stdout) == ("", True)


def test_a_data_base_that_a_library_has_open_is_said_once(tmp_path: Path) -> None:
    script = """
import reshape_hooks, sqlite3
table = sqlite3.connect("runs.sqlite")
table.execute("create table if not exists runs(id text)")
table.execute("insert into runs values('mine')")
table.commit()
part = {}
state = reshape_hooks.Elastic(part=part)
for step in state.steps(3): part["step"] = step
"""
    errors = run(tmp_path, script).stderr
    assert errors.count("runs.sqlite is written by a library, so what the script does to it before it trains") == 1
