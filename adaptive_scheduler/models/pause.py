"""Predicts how much more a reshape takes for a job whose state is larger than what its type's overheads rest on.

The overheads of a type hold the fixed part of a pause and that of a state of one size (`Overheads.ckpt_state`,
`restart_state`). Another size adds what its bytes take on their path to the next trainer, and saves of the type that
were measured correct the rate. Every answer is 0 where a size is not known. Pure; seconds and bytes."""

from __future__ import annotations

from typing import NamedTuple

from adaptive_scheduler.profiles.profiles import Overheads, StatePath
from adaptive_scheduler.snapshot import Job

TOLD = 1e9
"""Bytes of a state from which on people are told what it does to a pause."""
LEARN_FROM_S = 1.0
"""Seconds that saving a state should take from which on the rate of a measured save is believed: a shorter one tells
more of what each save costs."""
MOST_OFF = 10.0
"""At most so many times faster or slower than `RATES` is what was measured believed to be."""


class Rate(NamedTuple):
    """Bytes per second on one path, into a checkpoint and out of it."""

    save: float
    load: float


RATES: dict[StatePath, Rate] = {
    "disk": Rate(15.7e9 / 21.0, 15.7e9 / 9.7),
    "host memory": Rate(15.7e9 / 16.8, 15.7e9 / 9.7),
    "GPU": Rate(15.7e9 / 0.013, 15.7e9 / 0.013),
}
"""Measured with the 15.7 GB of a GPT of 1.3 B parameters and its AdamW on an H100 with PyTorch 2.11: `torch.save` to
disk with fsync and to /dev/shm, `torch.load` with `load_state_dict`, a copy into another process's GPU memory."""
WORDS: dict[StatePath, str] = {"disk": "to disk", "host memory": "in host memory", "GPU": "on the GPU"}


def save_s(size: float, path: StatePath) -> float:
    """Return the seconds that saving so many bytes takes at `RATES`."""
    return size / RATES[path].save


def load_s(size: float, path: StatePath) -> float:
    """Return the seconds that loading so many bytes takes at `RATES`."""
    return size / RATES[path].load


def path_of(job: Job) -> StatePath:
    """Return the path that the state of a job takes in a reshape: a relaunch leaves nothing behind but the disk."""
    return "disk" if job.relaunches else job.state_path


def more_to_save_s(o: Overheads, size: float, path: StatePath) -> float:
    """Return by how much saving so many bytes takes longer than `o.ckpt`; negative if it takes less."""
    if size <= 0 or o.ckpt_state is None:
        return 0.0
    expected = save_s(size, path)
    if o.ckpt_state >= LEARN_FROM_S:
        slower = min(max(o.ckpt / o.ckpt_state, 1 / MOST_OFF), MOST_OFF)
        return max((expected - o.ckpt_state) * slower, -o.ckpt)
    return max(expected - o.ckpt_state, -o.ckpt)


def more_to_load_s(o: Overheads, size: float, path: StatePath) -> float:
    """Return by how much a start with so many bytes takes longer than that of the type; negative if it takes less."""
    if size <= 0 or o.restart_state is None:
        return 0.0
    return max(load_s(size, path) - o.restart_state, -o.restart)


def more_s(o: Overheads, size: float, path: StatePath) -> float:
    """Return by how much a reshape with so many bytes takes longer than `o.reshape`."""
    return more_to_save_s(o, size, path) + more_to_load_s(o, size, path)


def more_of_s(o: Overheads, job: Job) -> float:
    """Return by how much a reshape of this job on its host takes longer than `o.reshape`."""
    return more_s(o, job.state_bytes, path_of(job))


def more_elsewhere_s(o: Overheads, job: Job) -> float:
    """Return by how much more its state delays a move, which only the disk reaches."""
    return more_s(o, job.state_bytes, "disk") - more_of_s(o, job)


def described(pause_s: float, size: float, path: StatePath) -> str:
    """Return `pause 34 s: 15.7 GB to disk`; empty for a small state, and one of unknown size."""
    if size < TOLD:
        return ""
    shown = f"{pause_s:.0f} s" if pause_s >= 10 else f"{pause_s:.1f} s"
    return f"pause {shown}: {size / 1e9:.1f} GB {WORDS[path]}"
