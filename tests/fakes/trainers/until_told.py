"""A trainer that behaves, paced and under the oracle's locks like the examples, until a file is there.

The file is named on its command line. So a test, not the speed of a machine, decides when the training ends.
"""

import sys
from pathlib import Path

from reshape_hooks import plain
from reshape_hooks.locks import GpuLocks

told = Path(sys.argv[1])
here = plain.environment()
checkpoints = plain.Checkpoints(here.checkpoints, here.job_id, here.generation)
locks = GpuLocks(here)
saved = checkpoints.newest(here.prefer)
step = saved.step if saved else 0
stop = plain.StopFlag(here.announce)
pace = plain.Pace(here.step_seconds)
pace.start()
while not told.exists():
    if stop.stopping:
        checkpoints.save(step, {"step": str(step).encode()})
        sys.exit(plain.STOPPED)
    pace.wait()
    step += 1
    locks.used(step)
    plain.say(step=step)
