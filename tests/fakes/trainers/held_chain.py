"""A trainer whose state shows each of its steps, and lies in "GPU" memory: of a real driver, or of `tests/fakes/cuda`.

Files in its folder hold it up at some points, or have it end there.
"""

import ctypes
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import held

from reshape_hooks import plain
from reshape_hooks.adapters import held_memory

BULK = int(sys.argv[1])  # bytes of a state beside its digest


def at(point: str) -> None:
    if Path(f"kill-{point}").exists():
        Path(f"kill-{point}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    while Path(f"hold-{point}").exists():
        Path(f"held-{point}").touch()
        time.sleep(0.005)


here = plain.environment()
checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
try:
    saved = checkpoints.newest(here.prefer)
except plain.CheckpointError as fault:
    sys.exit(str(fault))
at("load")
step, state, place = 0, b"", "nowhere"
if saved:
    step, state = saved.step, (saved.path / "state").read_bytes()
    bulk, place = (saved.path / "bulk").read_bytes() if (saved.path / "bulk").exists() else b"", "disk"
    if (saved.path / plain.TENSORS).exists():
        (bulk,), place = held.loaded(saved.path)
    assert bulk == state[:1] * BULK
at("loaded")
stop = plain.StopFlag(here.announce)
plain.tell(f"begins={here.generation} at={step} from={place}")
while True:
    if stop.stopping:
        bulk = ctypes.create_string_buffer(state[:1] * BULK, BULK)
        whole = {"state": state, "bulk": bulk.raw}
        kept = None
        if folder := held_memory.offered():
            at("hand-over")
            kept = held.hand_over(folder, [held_memory.Piece(ctypes.addressof(bulk), BULK)])
        at("save")
        checkpoints.save(step, whole, in_memory=kept and {"state": state, **kept})
        checkpoints.prune()
        at("exit")
        sys.exit(plain.STOPPED)
    step, state = step + 1, hashlib.sha256(state + str(step).encode()).digest()
    plain.tell(f"step={step} state={state.hex()}")
    time.sleep(0.002)
