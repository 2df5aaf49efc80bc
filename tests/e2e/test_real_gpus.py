"""On real NVIDIA GPUs: a training sees the sets that it is given, one after the other, and gives all of it back.

Run by `pytest -m gpu` on a machine with a driver and a PyTorch or TensorFlow that uses it; skipped elsewhere. With one
GPU the sets are the same one three times.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar import device_filter, warm
from sidecar.protocol import Heartbeat
from sidecar.resources.gpus import SLACK, Footprint, NvmlProbe, device_minors, list_gpus
from tests.fakes.sidecar_launch import Launch
from tests.fakes.tiny_coordinator import TinyCoordinator, serving
from tests.interpreters import python_with
from tests.patience import eventually

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]

FOREIGN = 4 << 30  # bytes

TORCH = """
import torch
import reshape_hooks
print("visible", torch.cuda.device_count(), flush=True)
models = [torch.nn.Linear(2048, 2048).to(f"cuda:{n}") for n in range(torch.cuda.device_count())]
state = reshape_hooks.Elastic(model=models[0])
for step in state.steps(1_000_000):
    for model in models:
        model(torch.randn(512, 2048, device=model.weight.device)).sum().backward()
        model.zero_grad()
"""
KERAS = """
import numpy as np, tensorflow as tf, keras
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
print("visible", len(gpus), flush=True)
x = np.random.default_rng(0).normal(size=(4096, 64)).astype("float32")
with tf.distribute.MirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(x, x[:, :1], batch_size=64, epochs=1_000_000, verbose=0)
"""
SCRIPTS = {
    "torch": ("import torch; print(torch.cuda.device_count())", TORCH),
    "tensorflow": ("import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))", KERAS),
}


@pytest.fixture
def gpus() -> list[str]:
    """The UUIDs of at most two real GPUs."""
    found = [gpu.gpu_id for gpu in list_gpus()]
    if not found:
        pytest.skip("this machine has no NVIDIA GPU with a driver")
    return found[:2]


@pytest.fixture(params=sorted(SCRIPTS))
def script(request: pytest.FixtureRequest, tmp_path: Path, gpus: list[str]) -> list[str]:
    """The command of a training on all GPUs that it sees."""
    count, text = SCRIPTS[request.param]
    python = python_with(request.param)
    seen = python and subprocess.run([python, "-c", count], capture_output=True, text=True, check=False).stdout.strip()
    if not python or not seen or int(seen.splitlines()[-1]) < len(gpus):
        pytest.skip(f"there is no {request.param} here that uses these GPUs")
    (tmp_path / "train.py").write_text(text)
    return [python, str(tmp_path / "train.py")]


@pytest.fixture
def coordinator() -> Iterator[TinyCoordinator]:
    with serving(TinyCoordinator()) as tiny:
        yield tiny


@pytest.fixture
def launch(tmp_path: Path, coordinator: TinyCoordinator, script: list[str]) -> Iterator[Launch]:
    checkpoints = {"RESHAPE_CHECKPOINTS": str(tmp_path / "launch" / "checkpoints"), "RESHAPE_WARM": "0.5"}
    given: dict[str, Any] = {"gpus": "nvml", "command": script, "hooks": True, "env": checkpoints, "grace_s": 60.0}
    begun = Launch(tmp_path / "launch", coordinator.url(), **given)
    yield begun.ready()
    begun.end()


def told(coordinator: TinyCoordinator, generation: int, true: Callable[[Heartbeat], Any], what: str) -> Heartbeat:
    """The newest heartbeat once it is of that generation, and true."""

    def newest() -> Heartbeat | None:
        return next((b for b in coordinator.beats[-1:] if b.shim.generation == generation and true(b)), None)

    found = eventually(newest, what, within=60)
    assert found is not None
    return found


def held(gpus: list[str]) -> dict[str, Footprint]:
    found = NvmlProbe().footprints(gpus)
    assert set(found) == set(gpus)
    return found


def test_it_trains_on_each_set_of_gpus_in_turn_and_gives_them_back(
    coordinator: TinyCoordinator, launch: Launch, gpus: list[str]
) -> None:
    before = held(gpus)
    for generation, given in ((1, gpus), (3, gpus[:1]), (5, gpus)):
        launch.start(generation, tuple(given))
        trains = told(coordinator, generation, lambda b: b.hook and b.gpus and b.gpus[0].utilisation, "it trains")
        assert [gpu.gpu_id for gpu in trains.gpus] == given
        during = held(given)
        for gpu in trains.gpus:
            assert gpu.healthy and gpu.memory_total and gpu.memory_total > 1 << 30
            assert during[gpu.gpu_id].memory > before[gpu.gpu_id].memory, "the training holds memory of it"
        log = (launch.folder / "output.log").read_text()
        assert [int(count) for count in re.findall(r"^visible (\d+)$", log, re.M)][-1] == len(given)
        waits = told(coordinator, generation, lambda b: b.shim.warm.startswith("ready"), "an interpreter waits")
        child = interpreter(waits)
        assert warm.opened(child) == "", "it holds no context"
        assert not any(child in one.pids for one in held(gpus).values())
        trainer = waits.shim.trainer_pid
        launch.call("stop", {"generation": generation + 1, "command_id": f"stop-{generation}", "grace_s": 60.0})
        ended = told(coordinator, generation + 1, lambda b: b.shim.trainer == "exited", "the end")
        after = held(gpus)  # the end is told when this holds
        assert ended.shim.exit_code == 143
        assert ended.checkpoint is not None
        for gpu_id, one in after.items():
            assert trainer not in one.pids
            assert one.memory <= before[gpu_id].memory + SLACK


PLAIN = """
import time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(1, 601):
    time.sleep(0.02)
    loss = model(torch.randn(256, 1024, device="cuda")).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step={step} loss={loss.item()!r}", flush=True)
"""


def losses(folder: Path) -> list[str]:
    """The lines of its steps."""
    lines = (folder / "output.log").read_text().splitlines()
    return [line for line in lines if line.startswith("step=")]


@pytest.mark.parametrize("script", ["torch"], indirect=True)
def test_a_training_that_never_saves_is_frozen_without_its_gpu_and_goes_on_as_undisturbed(
    coordinator: TinyCoordinator, launch: Launch, gpus: list[str], script: list[str], tmp_path: Path
) -> None:
    Path(script[1]).write_text(PLAIN)
    undisturbed = subprocess.run(
        script, env={**os.environ, "CUDA_VISIBLE_DEVICES": gpus[0]}, capture_output=True, text=True, check=True
    )
    before = held(gpus[:1])[gpus[0]]
    launch.start(1, (gpus[0],))
    told(coordinator, 1, lambda b: len(losses(launch.folder)) > 50, "it trains")
    trainer = told(coordinator, 1, lambda b: b.shim.trainer_pid, "its process").shim.trainer_pid
    launch.call("stop", {"generation": 2, "command_id": "freeze", "grace_s": 60.0, "freeze": True})
    eventually(lambda: (s := coordinator.beats[-1].shim).trainer == "frozen" or s.unfrozen, "it is frozen, or not", 60)
    frozen = coordinator.beats[-1]
    assert (frozen.shim.unfrozen, frozen.shim.trainer, frozen.shim.gpu_ids) == ("", "frozen", [])
    assert frozen.shim.trainer_pid == trainer
    free = held(gpus[:1])[gpus[0]]
    assert trainer not in free.pids
    assert free.memory <= before.memory + SLACK
    made = len(losses(launch.folder))
    assert made < 600
    launch.start(3, (gpus[-1],))
    told(coordinator, 3, lambda b: b.shim.trainer == "exited", "the end")
    assert losses(launch.folder) == [line for line in undisturbed.stdout.splitlines() if line.startswith("step=")]


HELD = """
from pathlib import Path
import torch
import reshape_hooks
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
state = reshape_hooks.Elastic(model=model, optimizer=optimizer)
enough = Path(__file__).with_name("enough")
for step in state.steps(1_000_000):
    if enough.exists() and step >= int(enough.read_text()):
        break
    loss = model(torch.randn(64, 4096, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"trained {step} {loss.item():.9e}", flush=True)
"""


def trained_steps(output: str) -> list[tuple[str, str]]:
    """Each step and its loss."""
    return re.findall(r"^trained (\d+) (\S+)$", output, re.M)


@pytest.mark.parametrize("script", ["torch"], indirect=True)
def test_a_state_that_stays_on_its_gpu_is_that_of_an_undisturbed_training(
    tmp_path: Path, coordinator: TinyCoordinator, launch: Launch, gpus: list[str], script: list[str]
) -> None:
    """1.6 GB of it: at each of three stops it is handed over on the GPU, and comes to the disk."""
    (tmp_path / "train.py").write_text(HELD)
    log = launch.folder / "output.log"
    before = held(gpus)
    checkpoint: str | None = None
    for generation in (1, 3, 5):
        launch.start(generation, (gpus[0],), checkpoint=checkpoint)
        done = len(trained_steps(log.read_text())) if log.exists() else 0
        told(coordinator, generation, lambda b, done=done: len(trained_steps(log.read_text())) > done + 20, "it trains")  # type: ignore[misc]
        told(coordinator, generation, lambda b: b.shim.holder is None, "the disk has the last one")
        stop = {"generation": generation + 1, "command_id": f"stop-{generation}", "grace_s": 60.0, "wait": True}
        launch.call("stop", {**stop, "in_place": True, "gpu_ids": [gpus[0]]})
        ended = told(coordinator, generation + 1, lambda b: b.shim.trainer == "exited", "the end").shim
        assert ended.exit_code == 143
        assert ended.on_gpu.startswith(f"state stays on GPU {gpus[0]} (1.6 GB)")
        assert ended.in_memory is not None
        checkpoint = ended.in_memory.name
    (tmp_path / "enough").write_text(str(len(trained_steps(log.read_text())) + 20))
    launch.start(7, (gpus[0],), checkpoint=checkpoint)
    ended = told(coordinator, 7, lambda b: b.shim.trainer == "exited", "the end").shim
    assert ended.exit_code == 0
    assert log.read_text().count("taken from GPU memory") == 3
    eventually(lambda: held(gpus)[gpus[0]].memory <= before[gpus[0]].memory + SLACK, "nothing is held any more", 60)
    given = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": gpus[0],
        "PYTHONPATH": str(ROOT),
        "RESHAPE_CHECKPOINTS": str(tmp_path / "x"),
    }
    alone = subprocess.run([*script], env=given, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert trained_steps(log.read_text()) == trained_steps(alone.stdout)


@pytest.fixture
def stranger(script: list[str], gpus: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Somebody else's process, which holds a tensor of `FOREIGN` bytes on the first GPU."""
    tensor = f"torch.ones({FOREIGN}, dtype=torch.uint8, device='cuda')"
    holds = f"import torch; x = {tensor}; print('holds', flush=True); input()"
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus[0]}
    with subprocess.Popen(
        [script[0], "-c", holds], env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield process
        process.kill()


@pytest.mark.parametrize("script", ["torch"], indirect=True)
def test_what_a_stranger_holds_of_a_gpu_is_shown_apart_from_the_jobs_memory(
    coordinator: TinyCoordinator, launch: Launch, gpus: list[str], stranger: subprocess.Popen[str]
) -> None:
    launch.start(1, (gpus[0],))
    told(coordinator, 1, lambda b: b.hook and b.gpus and b.gpus[0].utilisation, "it trains")
    beats = len(coordinator.beats)
    trains = told(coordinator, 1, lambda b: len(coordinator.beats) > beats + 1 and b.gpus, "a reading since")
    reading = trains.gpus[0]
    assert reading.memory_used is not None
    assert reading.memory_used >= FOREIGN
    if trains.shim.trainer_pid in held(gpus[:1])[gpus[0]].pids:
        assert reading.memory_own is not None
        assert reading.memory_others is not None
        assert 1 << 26 < reading.memory_own < FOREIGN, "its context and a small model"
        assert FOREIGN <= reading.memory_others <= reading.memory_used - reading.memory_own
    else:  # NVML names processes as the machine does, and we are in a container
        assert (reading.memory_own, reading.memory_others) == (None, None)
    assert stranger.poll() is None


def interpreter(beat: Heartbeat) -> int:
    """The pid of the interpreter that waits: a child of the shim that is not the trainer, and was told to wait."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            waits = b"RESHAPE_WAIT=" in (stat.parent / "environ").read_bytes()
        except OSError:
            continue
        if parent == beat.shim.shim_pid and int(stat.parent.name) != beat.shim.trainer_pid and waits:
            return int(stat.parent.name)
    raise AssertionError("no interpreter waits")


SEES = """
import torch
print("visible", torch.cuda.device_count() if torch.cuda.is_available() else 0, flush=True)
import time
time.sleep(1000)
"""


@pytest.mark.parametrize("script", ["torch"], indirect=True)
@pytest.mark.parametrize("own", [True, False], ids=["its own GPU", "another job's GPU"])
def test_a_training_can_use_only_the_gpus_whose_device_files_it_may_open(
    tmp_path: Path, coordinator: TinyCoordinator, gpus: list[str], script: list[str], own: bool
) -> None:
    """A wrong number of its device file stands for another GPU, as there may be one only."""
    if why := device_filter.unable():
        pytest.skip(f"no device filter can be in force here: {why}")
    Path(script[1]).write_text(SEES)
    number = device_minors()[gpus[0]]
    given: dict[str, Any] = {"gpus": "nvml", "command": script, "unfiltered": "", "gpu_major": device_filter.MAJOR}
    given["gpu_minors"] = {gpus[0]: number if own else number + 40}
    begun = Launch(tmp_path / "filtered", coordinator.url(), **given).ready()
    try:
        begun.start(1, (gpus[0],))
        log = begun.folder / "output.log"
        seen = eventually(
            lambda: log.exists() and re.findall(r"^visible (\d+)$", log.read_text(), re.M), "it looks", 60
        )
        assert seen == [str(int(own))]
        told(coordinator, 1, lambda b: b.shim.gpu_access == device_filter.OWN, "it is told")
    finally:
        begun.end()
