"""Copies shim and hooks into a pod before its containers start.

Run by the init container as `python -m sidecar.startup.install --from SECRET --to FOLDER`. Promise: afterwards FOLDER
holds the shim's files and launch.json, each written atomically and readable by every user, the hooks, and a checkpoints
folder that every user of this pod may write; the keys are not copied. Idempotent, since the kubelet may repeat it.
Standard library only.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

SHIM = (
    "container.py",
    "disk_writes.py",
    "kept_output.py",
    "leftovers.py",
    "warm.py",
    "memory.py",
    "source_watch.py",
    "shim.py",
)
LAUNCH = "launch.json"
HOOKS = "reshape_hooks"
CHECKPOINTS = "checkpoints"


def main() -> int:
    parser = argparse.ArgumentParser(prog="sidecar.startup.install", description="Puts the shim into a pod.")
    parser.add_argument("--from", dest="secret", type=Path, required=True, help="holds launch.json")
    parser.add_argument("--to", dest="folder", type=Path, required=True, help="shared with the trainer's container")
    options = parser.parse_args()
    try:
        install(options.secret, options.folder)
    except OSError as error:
        print(f"sidecar: {error.filename} cannot be copied: {error.strerror}", file=sys.stderr)  # noqa: T201 (the pod's log)
        return 1
    return 0


def install(secret: Path, folder: Path) -> None:
    """Copy shim, launch.json and hooks. Raises `OSError` if the volume is full or the Secret lacks launch.json."""
    ours = Path(__file__).parents[1]
    for source in (*(ours / name for name in SHIM), secret / LAUNCH):
        fresh = folder / f"{source.name}.new"
        fresh.write_bytes(source.read_bytes())
        fresh.chmod(0o644)
        fresh.replace(folder / source.name)
    hooks = Path(__file__).parents[2] / HOOKS
    shutil.copytree(hooks, folder / HOOKS, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    checkpoints = folder / CHECKPOINTS
    checkpoints.mkdir(exist_ok=True)
    checkpoints.chmod(0o777)  # for any user of the image


if __name__ == "__main__":
    sys.exit(main())
