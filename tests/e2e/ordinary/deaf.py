"""Ignores SIGTERM, as some frameworks' workers do, and keeps everything in memory; until the second file is there."""

import os
import signal
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
number = total = 0


def write_down(text):
    with open(sys.argv[1], "a") as file:
        file.write(f"{text}\n")


while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
    number += 1
    total += number
    write_down(number)
print("total", total)
write_down("end")
