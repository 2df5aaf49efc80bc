"""A process of torchrun that saves for some seconds when it is asked to stop, and ends with 143 after it."""

import os
import signal
import sys
import time
from pathlib import Path


def stop(*_: object) -> None:
    time.sleep(float(sys.argv[1]))
    Path("saved").touch()
    sys.exit(143)


signal.signal(signal.SIGTERM, stop)
Path("started").touch()
parent = os.getppid()
while os.getppid() == parent:
    time.sleep(0.1)
