"""A trainer that exits on SIGTERM and leaves behind an orphan in a session of its own, deaf to SIGTERM.

With `--exit` it exits by itself as soon as the orphan is there. With `--kind` the orphan heeds SIGTERM.
"""

import os
import signal
import sys
import time

reader, writer = os.pipe()
if os.fork() == 0:  # it goes, so that its child becomes an orphan
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if "--kind" in sys.argv else signal.SIG_IGN)
        os.write(writer, b"x")
        os.close(writer)
        while True:
            time.sleep(0.1)
    os._exit(0)
os.wait()
os.read(reader, 1)
print("ready", flush=True)  # noqa: T201
while "--exit" not in sys.argv:
    time.sleep(0.1)
