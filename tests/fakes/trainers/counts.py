"""A trainer that behaves: prints `step=N`, saves on SIGTERM and exits 143, resumes, saves on SIGUSR1 and goes on.

Its checkpoint is one number in `$RESHAPE_CHECKPOINTS/count`. Runs until it is told to stop, or for `--steps N`.
"""

import os
import signal
import sys
import time
from pathlib import Path

saved = Path(os.environ.get("RESHAPE_CHECKPOINTS", ".")) / "count"
wanted: list[int] = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda sign, _frame: wanted.append(sign))
if "RESHAPE_ANNOUNCE" in os.environ:
    Path(os.environ["RESHAPE_ANNOUNCE"]).write_text("SIGUSR1\n")

step = int(saved.read_text()) if saved.exists() else 0
last = step + int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else sys.maxsize
print(f"resumed step={step} generation={os.environ.get('RESHAPE_GENERATION')}", flush=True)  # noqa: T201
while step < last:
    time.sleep(0.02)
    step += 1
    print(f"step={step}", flush=True)  # noqa: T201
    if wanted:
        part = saved.with_name("count.part")
        part.write_text(str(step))
        part.replace(saved)
        print(f"saved step={step}", flush=True)  # noqa: T201
        if wanted.pop() == signal.SIGTERM:
            sys.exit(143)
