"""Tries to open every GPU of its node, whatever it was given.

`evil.py try FILE`: for ever, beside a training; appends a JSON line when what opens has changed: {at, opens}, `at` in
seconds since the machine was booted. `evil.py train TOTAL`: trains as `steps.py` does, once each GPU that it was given
opens, and ends badly if one does not. GPU number N of a node is N-th of the device files /dev/nvidiaM.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

PAUSE_S = 0.01


def device_files() -> list[Path]:
    """The files of GPUs, the first GPU's first."""
    found = {int(path.name[6:]): path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()}
    return [found[number] for number in sorted(found)]


def opens(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except PermissionError:
        return False
    except OSError:  # there is nothing behind the file: the kernel has let it through
        return True
    return True


def try_for_ever(file: Path) -> None:
    last = None
    while True:
        now = [number for number, path in enumerate(device_files()) if opens(path)]
        if now != last:
            with file.open("a", encoding="utf-8") as log:
                at = time.clock_gettime(time.CLOCK_BOOTTIME)
                log.write(json.dumps({"at": at, "seen": len(device_files()), "opens": now}) + "\n")
            last = now
        time.sleep(PAUSE_S)


def train(total: int) -> int:
    import steps

    files = device_files()
    given = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    closed = [gpu for gpu in given if not opens(files[int(gpu.rpartition("-")[2])])]
    if closed or not given:
        print(f"given {given}, of which these do not open: {closed}", file=sys.stderr)
        return 7
    return int(steps.train(total))


if __name__ == "__main__":
    os.umask(0)
    if sys.argv[1] == "try":
        try_for_ever(Path(sys.argv[2]))
    sys.exit(train(int(sys.argv[2])))
