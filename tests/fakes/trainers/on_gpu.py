"""A trainer that uses a GPU of the fake driver (`fake_cuda.c`) and never saves: prints `step=N` until it is killed.

`--steps N`: ends after so many. `--nccl`: names a thread as NCCL does. `--twice`: a second process uses the GPU, too.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

here = Path(os.environ["FAKE_CUDA"])
(here / f"{os.getpid()}.held").write_text(f"{os.environ['CUDA_VISIBLE_DEVICES'].split(',')[0]} {2 << 30}\n")
(here / f"{os.getpid()}.state").write_text("0\n")
if "--nccl" in sys.argv:
    Path(f"/proc/self/task/{os.getpid()}/comm").write_text("pt_nccl_watchdg")
if "--twice" in sys.argv:
    subprocess.Popen([sys.executable, __file__])
last = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else sys.maxsize
step = 0
while step < last:
    time.sleep(0.02)
    step += 1
    print(f"step={step}", flush=True)  # noqa: T201
