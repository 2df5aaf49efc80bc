"""What trainers of tests do with a state in "GPU" memory: of a real driver, or of `tests/fakes/cuda`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reshape_hooks import plain
from reshape_hooks.adapters import held_memory
from reshape_hooks.adapters.held_memory import Piece


def hand_over(folder: Path, pieces: Sequence[Piece]) -> dict[str, bytes] | None:
    """Hand these to the holder, and return the file that tells the next trainer; None where they are not held."""
    try:
        kept = held_memory.hand_over(folder, pieces, 0, 0)
    except (held_memory.CannotBeHeld, OSError) as why:
        plain.warn(f"not held: {why}")
        return None
    return {plain.TENSORS: json.dumps(kept).encode()}


def loaded(folder: Path) -> tuple[list[bytes], str]:
    """Return the pieces of a checkpoint that were handed over, and where they were: GPU or file.

    Raises CheckpointError if their holder ended without writing them, as `gpu_state` does.
    """
    kept = json.loads((folder / plain.TENSORS).read_text())
    with contextlib.suppress(held_memory.CannotBeHeld, OSError):
        pieces = held_memory.take_back(kept, _made)
        if pieces is not None:
            return [piece.raw for piece in pieces], "GPU"
    while not (folder / plain.BULK).exists():
        fault = plain.held_fault(folder)
        if fault and not (folder / plain.BULK).exists():
            raise plain.CheckpointError(f"checkpoint {folder.name} cannot be loaded: {fault}")
        time.sleep(0.005)
    written = (folder / plain.BULK).read_bytes()
    return [written[begin : begin + size] for begin, size in zip(kept["begins"], kept["sizes"], strict=True)], "file"


def _made(size: int) -> tuple[Any, int]:
    piece = ctypes.create_string_buffer(size)
    return piece, ctypes.addressof(piece)
