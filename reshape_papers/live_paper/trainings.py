"""Names the training that each model of an experiment runs, and measures its CPU time on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from reshape import shipped
from reshape.services.temporary_system import RunFailed
from reshape_papers.live_paper.scaling import Training
from simulator.scenario import Workload

Trainings = Callable[[str], Training]
"""The training of a model, by its name in the workload."""

MEASURED_CPU_S = 0.5  # of steps, after those that warm up
WARMING_STEPS = 20
MOST_STEPS = 1_000_000
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
BATCH = 1500  # all digits: some milliseconds of CPU, so that output and its reader cost next to nothing beside it
REPLAYED = Path(__file__).with_name("replayed_training.py")
POINTS = 80  # of a replayed loss: twice as many as of a recorded one
SAMPLES, STEPS = 256, 8  # of an epoch of the zoo, with its batch of 32

ZOO = {
    "VAE": "vae", "GRU": "gru", "RNN": "rnn", "Bi-RNN": "birnn", "Dynamic RNN": "dynamic-rnn", "MNIST": "lenet",
    "LSTM-CFC": "lstm", "LSTM-CRF": "lstm",
}  # fmt: skip
"""The script's name of each model that SpeCon and FlowCon trained."""


def numpy_digits(kind: str) -> Training:
    """Return the NumPy training on digits, whatever the model: small enough that its start is short beside it."""
    return Training((*_script("numpy_digits.py"), "--save-every", "0", "--batch-size", str(BATCH)))


def keras_zoo(kind: str) -> Training:
    """Return the model itself, in Keras also where the paper had it in PyTorch."""
    model = ZOO[kind.partition("(")[0]]
    command = (*_script("zoo/keras_zoo.py"), model, "--samples", str(SAMPLES))
    return Training(command, "--epochs", STEPS, "Epoch ")


def paced_digits(kind: str) -> Training:
    """Return the NumPy training with small batches, for emulated GPUs, which set its pace."""
    return Training((*_script("numpy_digits.py"), "--save-every", "0"))


def replayed(workload: Workload) -> Trainings:
    """Return, for each model, a training that prints the loss that the model has in the workload."""
    curves = {job.cpu.kind: job.cpu.curve for job in workload.jobs if job.cpu is not None}

    def of_kind(kind: str) -> Training:
        curve = curves[kind]
        assert curve is not None  # each model of SpeCon and FlowCon has one
        losses = ",".join(f"{curve(number / POINTS):.5g}" for number in range(POINTS + 1))
        return Training((sys.executable, str(REPLAYED), f"--losses={losses}"))

    return of_kind


ON_CPU: Mapping[str, Callable[[Workload], Trainings]] = {
    "replay": replayed,
    "numpy": lambda workload: numpy_digits,
    "keras": lambda workload: keras_zoo,
}
"""By the name of `--trainer`: the trainings of a workload."""


def _script(name: str) -> tuple[str, str]:
    return sys.executable, str(shipped.folder("examples") / name)


def step_cpu_s(trainings: Trainings, kinds: Iterable[str]) -> dict[str, float]:
    """Return the CPU seconds of one iteration by model; each distinct training is measured once."""
    known: dict[Training, float] = {}
    found = {}
    for kind in sorted(set(kinds)):
        training = trainings(kind)
        known[training] = known[training] if training in known else _measured(training)
        found[kind] = known[training]
    return found


def _measured(training: Training) -> float:
    """Run it alone until its steps took `MEASURED_CPU_S` of CPU. Raises `RunFailed` if it does not step."""
    warm = max(2, WARMING_STEPS // training.steps)
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [*training.command, training.option, str(MOST_STEPS)], cwd=folder, stdout=subprocess.PIPE, stderr=errors,
            text=True, env={**os.environ, "RESHAPE_CHECKPOINTS": folder, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            before = 0.0
            printed = filter(lambda line: line.startswith(training.mark), process.stdout)
            for marks, _ in enumerate(printed, start=1):
                if marks == warm:
                    before = _cpu_s(process.pid)
                if marks > warm and (used := _cpu_s(process.pid) - before) >= MEASURED_CPU_S:
                    return used / (marks - warm) / training.steps
            errors.seek(0)
            why = errors.read().strip()[-300:] or f"it printed no line that begins with {training.mark}"
            raise RunFailed(f"{' '.join(training.command)} did not train: {why}")
        finally:
            process.kill()
            process.wait()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S
