"""A trainer that tries to open device files again and again, by itself and in a process of its own session.

Called with the files. Prints `generation=N opens=NAMES of_child=NAMES` when that is another line than before; a file
counts as opened unless opening it is refused (EPERM): there need not be a device behind it.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

WAYS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
AS_CHILD = "--child"


def opened(paths: "list[str]") -> str:
    found = []
    for path in paths:
        try:
            os.close(os.open(path, WAYS))
        except PermissionError:
            continue
        except OSError:  # as without a device
            pass
        found.append(Path(path).name)
    return ",".join(found)


if AS_CHILD in sys.argv:
    print(opened(sys.argv[2:]), end="")  # noqa: T201
    sys.exit()
said, paths = "", sys.argv[1:]
while True:
    child = subprocess.run(
        [sys.executable, __file__, AS_CHILD, *paths], stdout=subprocess.PIPE, start_new_session=True, check=True
    )
    line = f"generation={os.environ['RESHAPE_GENERATION']} opens={opened(paths)} of_child={child.stdout.decode()}"
    if line != said:
        said = line
        print(line, flush=True)  # noqa: T201
    time.sleep(0.02)
