"""A trainer that prints 10 MB, as fast as it can, then says so in a file named on its command line."""

import sys
import time
from pathlib import Path

line = "x" * 99 + "\n"
for _ in range(100):
    sys.stdout.write(line * 1000)
sys.stdout.flush()
Path(sys.argv[1]).write_text("printed")
while True:
    time.sleep(0.1)
