"""Runs the three tasks of the Slaml paper's MNIST job: `mnist.py prepare`, `extract`, `train`. The last one is PyTorch.

The tasks exchange files in the folder DATA (/data). The input is `mnist.npz` there, as Keras ships MNIST, if it exists,
else the 1,797 digits of scikit-learn. The environment names the replica and its parameters: RESHAPE_JOB_ID ends with
the replica's number, or behind it a part of the uid if an earlier Slaml had that name; BATCH_SIZE, EPOCHS and LR are
its modelParams.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and PyTorch: models this small lose by threads

import numpy as np

import reshape_hooks

DATA = Path(os.environ.get("DATA", "/data"))
PARTS = 3  # replicas of the second task; each extracts its part of the features
HIDDEN = 128


def prepare() -> None:
    """Write pixels from 0 to 1 and labels to one file."""
    given = DATA / "mnist.npz"
    if given.exists():
        with np.load(given) as data:
            x, y = np.concatenate([data["x_train"], data["x_test"]]), np.concatenate([data["y_train"], data["y_test"]])
        x = x.reshape(len(x), -1).astype(np.float32) / 255
    else:
        x, y = _digits()
    _write("prepared.npz", x=x, y=y.astype(np.int64))
    print(f"{len(x)} digits of {x.shape[1]} pixels from {given if given.exists() else 'scikit-learn'}")


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Read the file that scikit-learn ships, without importing it, which would take a second."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        sys.exit(f"put mnist.npz into {DATA}, or install scikit-learn, whose digits are taken else")
    rows = np.loadtxt(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", np.float32, delimiter=",")
    return rows[:, :-1] / 16, rows[:, -1]


def extract() -> None:
    """Write one of three feature sets: pixels, their differences to the right, their differences downwards."""
    replica = re.search(r"\.(\d+)(\.[0-9a-f]{8})?$", os.environ.get("RESHAPE_JOB_ID", ""))
    part = int(replica[1]) % PARTS if replica else 0
    with np.load(DATA / "prepared.npz") as data:
        x = data["x"]
    images = x.reshape(len(x), round(x.shape[1] ** 0.5), -1)
    made = [images, np.diff(images, axis=2), np.diff(images, axis=1)][part]
    _write(f"features-{part}.npz", x=made.reshape(len(x), -1))
    print(f"part {part}: {made[0].size} features of {len(x)} digits")


def train() -> None:
    """Train with this replica's parameters, and test on a tenth; stopped and started again, it goes on where it was."""
    import torch
    from torch import nn

    x, y = map(torch.from_numpy, _features())
    tenth = len(y) // 10
    torch.manual_seed(0)
    samples = torch.utils.data.TensorDataset(x[tenth:], y[tenth:])
    loader = torch.utils.data.DataLoader(samples, int(os.environ["BATCH_SIZE"]), shuffle=True)
    model = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.Adam(model.parameters(), float(os.environ["LR"]))
    state = reshape_hooks.Elastic(model=model, optimizer=optimizer)
    for epoch in state.epochs(int(os.environ["EPOCHS"])):
        for images, labels in state.batches(loader):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (model(x[:tenth]).argmax(1) == y[:tenth]).float().mean()
        print(f"epoch={epoch + 1} loss={loss.item():.6g} val_accuracy={right.item():.4f}", flush=True)


def _features() -> tuple[np.ndarray, np.ndarray]:
    with np.load(DATA / "prepared.npz") as data:
        y = data["y"]
    parts = []
    for part in range(PARTS):
        with np.load(DATA / f"features-{part}.npz") as data:
            parts.append(data["x"])
    return np.concatenate(parts, axis=1), y


def _write(name: str, **arrays: np.ndarray) -> None:
    """Write the file completely or not at all: a stopped task repeats it."""
    DATA.mkdir(parents=True, exist_ok=True)
    part = DATA / f".{name}"
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(DATA / name)


if __name__ == "__main__":
    os.umask(0o22)
    tasks = {"prepare": prepare, "extract": extract, "train": train}
    if sys.argv[1:2] == [] or sys.argv[1] not in tasks:
        sys.exit(f"say what to do: {', '.join(tasks)}")
    try:
        tasks[sys.argv[1]]()
    except (FileNotFoundError, ModuleNotFoundError) as error:
        sys.exit(str(error))
