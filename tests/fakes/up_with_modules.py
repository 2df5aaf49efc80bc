"""Runs `reshape`, and has sidecars, too, find the modules of a folder first.

Called as `python -m tests.fakes.up_with_modules ARGUMENTS OF RESHAPE`; the folder is in TEST_MODULES. TEST_GPU_MAJOR:
the number of the kind of device files that stand for GPUs, if any do. Usable without pytest.
"""

from __future__ import annotations

import os
from typing import Any

from launcher import local
from reshape.cli.main import main as reshape
from sidecar import device_filter


def main() -> None:
    """Run `reshape` with the arguments of this process."""
    folder, made = os.environ["TEST_MODULES"], local.launch_spec

    def with_modules(job: Any, folders: Any, coordinator: str, command: list[str], *more: Any) -> dict[str, Any]:
        command = [word.replace("PYTHONPATH=", f"PYTHONPATH={folder}:", 1) for word in command]
        return dict(made(job, folders, coordinator, command, *more))

    if major := os.environ.get("TEST_GPU_MAJOR"):
        device_filter.MAJOR = int(major)
    local.launch_spec = with_modules
    reshape()


if __name__ == "__main__":
    main()
