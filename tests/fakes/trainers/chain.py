"""A trainer whose state shows each of its steps: a chain of digests. Files in its folder hold it up at some points."""

import hashlib
import sys
import time
from pathlib import Path

from reshape_hooks import plain

BULK = int(sys.argv[1])  # bytes of a checkpoint


def while_there(name: str) -> None:
    while Path(name).exists():
        time.sleep(0.005)


here = plain.environment()
checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
try:
    saved = checkpoints.newest(here.prefer)
except plain.CheckpointError as fault:
    sys.exit(str(fault))
Path("looked").write_text(str(here.generation))
while_there("hold-load")
step, state = 0, b""
if saved:
    step, state = saved.step, (saved.path / "state").read_bytes()
    assert (saved.path / "bulk").read_bytes() == state[:1] * BULK
stop = plain.StopFlag(here.announce)
plain.tell(f"begins={here.generation} at={step} path={saved.path if saved else None}")
while True:
    if stop.stopping:
        checkpoints.save(step, {"state": state, "bulk": state[:1] * BULK})
        checkpoints.prune()
        while_there("hold-exit")
        sys.exit(plain.STOPPED)
    step, state = step + 1, hashlib.sha256(state + str(step).encode()).digest()
    plain.tell(f"step={step} state={state.hex()}")
    time.sleep(0.002)
