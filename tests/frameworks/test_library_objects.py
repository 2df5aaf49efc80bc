"""An object of a library that a training's callbacks change, and that nothing keeps, is named and never announced."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.depth import deep
from tests.interpreters import python_with
from tests.unit.hooks.test_elastic import STARTUP

LIBRARY = """
class Table:
    def __init__(self): self.rows = []
    def append(self, row): self.rows.append(row)
class Average:
    def __init__(self, sums): self.sums = sums
    def take(self, x): self.sums += x
    def replace(self, x): self.sums = self.sums + x
    def twice(self): return self.sums * 2
class Around:
    def __init__(self, net): self.net = net
"""
SCRIPTS = {
    "transformers": """
import torch
from library import Table
from transformers import Trainer, TrainerCallback, TrainingArguments
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(2, 1)
    def forward(self, x=None, labels=None): return {"loss": ((self.layer(x) - labels) ** 2).mean()}
class Collects(TrainerCallback):
    def __init__(self): self.own = Table()
    def on_step_end(self, args, state, control, **_):
        CHANGE
data = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 8
table, still, callback = Table(), Table(), Collects()
arguments = TrainingArguments("out", max_steps=4, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
Trainer(Net(), arguments, train_dataset=data, callbacks=[callback]).train()
""",
    "lightning": """
import torch, lightning
from library import Table
class Net(lightning.LightningModule):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, _): return self.layer(batch).mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.1)
class Collects(lightning.Callback):
    def __init__(self): self.own = Table()
    def on_train_batch_end(self, *_):
        CHANGE
table, still, callback = Table(), Table(), Collects()
loader = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=2)
quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=[callback], **quiet).fit(Net(), loader)
""",
    "tensorflow": """
import keras, numpy
from library import Table
class Collects(keras.callbacks.Callback):
    def __init__(self): super().__init__(); self.own = Table()
    def on_train_batch_end(self, batch, logs=None):
        CHANGE
table, still, callback = Table(), Table(), Collects()
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(numpy.ones((8, 2)), numpy.ones(8), batch_size=2, epochs=2, verbose=0, callbacks=[callback])
""",
}
LOOP = """
import torch, reshape_hooks
from library import Around, Average
net = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(net.parameters(), 0.1)
state = reshape_hooks.Elastic(net=net, sgd=sgd)
average, around = Average(torch.zeros(2)), Around(net)
for step in state.steps(6):
    net(torch.ones(2)).sum().backward()
    sgd.step()
    CHANGE
print(average.sums, around.net.weight)
"""
LOCKS = "import threading\nlocks = [threading.Lock()]\n"
USES_IT = "print('rows', len(table.rows), len(locks))\n"
BEGINS = "pass\n    def on_train_{}(self, *_, **__): self.handles, self.steps = [threading.Lock()], len(locks)"


def trained(folder: Path, library: str, change: str) -> tuple[str, bool]:
    """Return what a training says in which a callback changes something, and whether it was announced at its end."""
    python = python_with(library)
    if python is None:
        pytest.skip(f"{library} is not installed: make test-frameworks")
    packages = folder / "site-packages"
    packages.mkdir()
    (packages / "library.py").write_text(LIBRARY)
    script = folder / "train.py"
    script.write_text(LOOP.replace("CHANGE", change) if library == "torch" else _of_callbacks(library, change))
    given = {
        "PYTHONPATH": os.pathsep.join([str(STARTUP), str(packages)]),
        "RESHAPE_JOB_ID": "job",
        "RESHAPE_GENERATION": "1",
        "RESHAPE_CHECKPOINTS": str(folder / "checkpoints"),
        "RESHAPE_MTBF_S": "0.000001",
        "RESHAPE_ANNOUNCE": str(folder / "announce"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        [python, str(script)], cwd=folder, env=os.environ | given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    announced = (folder / "announce").read_text() if (folder / "announce").exists() else ""
    return done.stdout + done.stderr, any(line.startswith("SIGUSR1") for line in announced.splitlines())


def _of_callbacks(library: str, change: str) -> str:
    return LOCKS + SCRIPTS[library].replace("CHANGE", change) + USES_IT


@pytest.mark.parametrize("change", ["average.take(torch.ones(2))", "average.replace(torch.ones(2))"])
def test_an_object_of_a_library_whose_tensors_change_is_named_and_never_announced(change: str, tmp_path: Path) -> None:
    told, announced = trained(tmp_path, "torch", change)
    assert "average (Average) changes during training, and a restart would reset it" in told
    assert not announced


def test_tensors_that_stay_and_the_model_in_an_object_of_a_library_are_no_reason_to_keep_gpus(tmp_path: Path) -> None:
    told, announced = trained(tmp_path, "torch", "assert average.twice().sum() == 0")
    assert "changes during training" not in told
    assert announced


@pytest.mark.parametrize("library", ["transformers", deep("lightning"), deep("tensorflow")])
def test_an_object_of_a_library_that_a_callback_changes_is_named_and_never_announced(
    library: str, tmp_path: Path
) -> None:
    told, announced = trained(tmp_path, library, "table.append(1)")
    assert "table (Table) changes during training, and a restart would reset it" in told
    assert not announced


@pytest.mark.parametrize("library", ["transformers", deep("lightning"), deep("tensorflow")])
def test_a_list_that_a_callback_changes_and_that_cannot_be_kept_is_named_and_never_announced(
    library: str, tmp_path: Path
) -> None:
    told, announced = trained(tmp_path, library, "locks.append(threading.Lock())")
    assert "locks of <module> changes during training, and a restart would reset it, because it holds what" in told
    assert not announced


@pytest.mark.parametrize("library", ["transformers", deep("lightning"), deep("tensorflow")])
def test_a_list_that_a_callback_makes_at_each_start_is_no_reason_to_keep_gpus(library: str, tmp_path: Path) -> None:
    told, announced = trained(tmp_path, library, BEGINS.format("start" if library == "lightning" else "begin"))
    assert "changes during training" not in told
    assert announced


@pytest.mark.parametrize("library", ["transformers", deep("lightning"), deep("tensorflow")])
def test_objects_of_libraries_that_are_kept_or_stay_are_no_reason_to_keep_gpus(library: str, tmp_path: Path) -> None:
    told, announced = trained(tmp_path, library, "self.own.append(len(still.rows))")
    assert "changes during training" not in told
    assert announced
