"""The node agent on a node whose GPUs are device files that a test made: `seated_agent.py agent`, in the agents' image.

A fake of NVML names them, beside this file. All else is the agent as it is shipped. Imports nothing of the tests.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from reshape.cli.main import main
from sidecar import device_filter
from sidecar.resources import seat_plugin

MAJOR = 4  # of terminals, which to open does no harm
FIRST_MINOR = {"node-a": 60, "node-b": 56}
GPUS = 4
FOLDER = "/var/lib/kubelet/device-files"  # of the node


def gpu_id(node: str, number: int) -> str:
    return f"GPU-{node}-{number}"


def run() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    nvml: Any = importlib.import_module("fake_pynvml")
    node = os.environ["RESHAPE_NODE"]
    first = FIRST_MINOR[node]
    gpus = [nvml.FakeGpu(gpu_id(node, number), minor=first + number) for number in range(GPUS)]
    sys.modules["pynvml"] = nvml.FakeNvml(gpus)
    device_filter.MAJOR = MAJOR
    seat_plugin.DEVICES = FOLDER
    main()


if __name__ == "__main__":
    run()
