"""A trainer that announces that it saves when asked, and comes to a safe point only once a file is there.

`saves_late.py FILE`: like one that evaluates, or that saves for long. Then it saves and exits with 143.
"""

import os
import signal
import sys
import time
from pathlib import Path

asked: list[int] = []
signal.signal(signal.SIGTERM, lambda sign, _frame: asked.append(sign))
Path(os.environ["RESHAPE_ANNOUNCE"]).write_text("SIGUSR1 143")
step = 0
print("step=1", flush=True)  # noqa: T201
while not (asked and Path(sys.argv[1]).exists()):
    time.sleep(0.02)
print("saved", flush=True)  # noqa: T201
sys.exit(143)
