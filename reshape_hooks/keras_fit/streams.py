"""Reads and restores a process's random streams: those of `seeds`, and TensorFlow's source of seeds."""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import context

from reshape_hooks import seeds

OF_SEEDS = "tensorflow"


def read() -> dict[str, Any]:
    """Return the picklable state of all streams."""
    of_seeds = getattr(context.context(), "_rng", None)
    return {**seeds.streams(), OF_SEEDS: of_seeds.getstate() if of_seeds is not None else None}


def write(states: dict[str, Any]) -> None:
    """Restore all streams to what `read` returned."""
    seeds.restore(states)
    of_seeds = getattr(context.context(), "_rng", None)
    if of_seeds is not None and states[OF_SEEDS] is not None:
        of_seeds.setstate(states[OF_SEEDS])
