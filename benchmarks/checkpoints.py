"""Times the way of a checkpoint: saved, verified by the sidecar, loaded by the next process; beside it with SHA-256.

Then the part of it for which a reshape in place stands still: saved and loaded, in memory first beside on the disk.

The other side is what this project did before: it forces each file to disk, reads it for the digest, reads it again in
the sidecar, and again before it is loaded. Both write one NumPy file to the same disk by turns. Seconds of the clock;
all reads come from memory, as between the two processes of a reshape.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.result import Result, Row, WrongAnswer
from reshape_hooks import plain as hooks
from reshape_hooks.plain import ROOM, Checkpoints
from sidecar.checkpoints import CheckpointWatch, newest_good
from sidecar.memory import SHM, write_copies

SIZES, TINY = (100, 1000), (1,)  # MB
ROUNDS = 5
FLOOR = 0.6
STAGES = ("saved", "verified", "loaded")
FILE = "weights.npy"

Times = list[float]  # seconds of each stage
T = TypeVar("T")


def run(options: argparse.Namespace) -> Result:
    sizes, rounds = (TINY, 1) if options.tiny else (SIZES, ROUNDS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="reshape-bench-") as folder:
        for size in sizes:
            rows += _rows(size, rounds, Path(folder))
    return Result(
        "checkpoints", "R3", "a checkpoint saved, verified and loaded", "sha-256, read each time",
        {"sizes": f"{', '.join(map(str, sizes))} MB", "rounds": rounds}, rows,
    )  # fmt: skip


def _rows(size: int, rounds: int, folder: Path) -> list[Row]:
    weights = np.random.default_rng(0).integers(0, 256, size * 1_000_000, np.uint8)
    watch = CheckpointWatch(folder, "job")
    watch.find_newest()
    ours: list[Times] = []
    theirs: list[Times] = []
    for step in range(rounds):
        ours.append(_ours(weights, size * 1000 + step, folder, watch))
        theirs.append(_theirs(weights, folder / "before"))
    found = [[statistics.median(times) for times in zip(*side, strict=True)] for side in (ours, theirs)]
    rows = [Row(f"{size} MB: {what}", a, b, a / b, "s") for what, a, b in zip(STAGES, *found, strict=True)]
    a, b = (statistics.median(map(sum, side)) for side in (ours, theirs))
    rows.append(Row(f"{size} MB: all", a, b, a / b, "s", floor=FLOOR))
    memory, disk = (_in_place(weights, rounds, folder / name, name == "memory") for name in ("memory", "disk"))
    stands = f"{size} MB: saved and loaded in place, memory against disk"
    return [*rows, Row(stands, memory, disk, memory / disk, "s")]


def _in_place(weights: np.ndarray, rounds: int, folder: Path, offered: bool) -> float:
    """Seconds for which a reshape in place stands still for a checkpoint, median; memory is written to disk unseen."""
    times: list[float] = []
    content = weights.data
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="reshape-bench-", dir=SHM) as copies, contextlib.ExitStack() as stack:
        (Path(copies) / ROOM).write_text(str(content.nbytes) if offered else "0")
        for name, value in (("RESHAPE_CHECKPOINTS", str(folder)), ("RESHAPE_MEMORY", copies)):
            os.environ[name] = value
            stack.callback(os.environ.pop, name)
        for step in range(1, rounds + 1):

            def pause(step: int = step) -> Any:
                Checkpoints(folder, "job", step).save(step, {FILE: content})
                saved = Checkpoints(folder, "job", step + 1).newest()
                return saved and (saved.path / FILE).read_bytes()

            with contextlib.redirect_stdout(io.StringIO()):
                seconds, loaded = _timed(pause)
            times.append(seconds)
            write_copies(hooks, copies, str(folder), "job")
            if loaded != content or not newest_good(folder, "job"):
                raise WrongAnswer(f"the checkpoint of {content.nbytes} bytes was not loaded or written as it was saved")
    return statistics.median(times)


def _ours(weights: np.ndarray, step: int, folder: Path, watch: CheckpointWatch) -> Times:
    checkpoints = Checkpoints(folder, "job", 1)

    def load() -> Any:
        saved = checkpoints.newest()
        return saved and np.load(saved.path / FILE)

    with contextlib.redirect_stdout(io.StringIO()):
        saved_s, _ = _timed(lambda: checkpoints.save(step, {FILE: lambda path: np.save(path, weights)}))
        verified_s, found = _timed(watch.find_newer)
        loaded_s, loaded = _timed(load)
    if found is None or found.step != step or not np.array_equal(loaded, weights):
        raise WrongAnswer(f"the checkpoint of {len(weights)} bytes was not found or not loaded as it was saved")
    checkpoints.prune(keep=1)
    return [saved_s, verified_s, loaded_s]


def _theirs(weights: np.ndarray, folder: Path) -> Times:
    path = folder / FILE

    def save() -> str:
        half = folder.with_name("half")
        half.mkdir()
        np.save(half / FILE, weights)
        _to_disk(half / FILE)
        digest = _sha256(half / FILE)
        (half / "manifest.json").write_text(json.dumps({FILE: digest}))
        _to_disk(half / "manifest.json")
        _to_disk(half)
        half.rename(folder)
        _to_disk(folder.parent)
        return digest

    saved_s, digest = _timed(save)
    verified_s, again = _timed(lambda: _sha256(path))
    loaded_s, (once_more, loaded) = _timed(lambda: (_sha256(path), np.load(path)))
    if not digest == again == once_more or not np.array_equal(loaded, weights):
        raise WrongAnswer(f"{path} was not read as it was written")
    shutil.rmtree(folder)
    return [saved_s, verified_s, loaded_s]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result
