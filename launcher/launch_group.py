"""Keeps all processes of a launch on a shared machine in one control group, so that none of them hides from root.

Promises: a process of the launch, and whatever it starts, is in the group until it ends: its user has no right to move
it out. So the group tells whether anything is left, and ends it, whatever its processes do. Where the kernel has none,
marks alone tell (`sidecar/leftovers.py`). Called by `local.py` and `shim_command.py`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sidecar.device_filter import Unable, own_group

FACTS = "launches"  # in the state folder of a shared machine, for root alone: what is known of each launch

log = logging.getLogger(__name__)


class LaunchGroup:
    """`note`: a file of root's that names the group, for whoever comes after us; it is there as long as the group."""

    def __init__(self, note: Path) -> None:
        self._note = note

    def make(self) -> str:
        """Make the group; return the file by which a process of root enters it, empty where there is none."""
        try:
            folder = Path(own_group()) / f"reshape-{self._note.stem}"
            folder.mkdir(exist_ok=True)
            self._note.write_text(str(folder), encoding="utf-8")
        except (Unable, OSError) as fault:
            log.info("what a launch leaves behind is known by its marks alone: %s", fault)
            return ""
        return str(folder / "cgroup.procs")

    def end(self) -> bool:
        """Kill all that is in the group; True once nothing is, and the group is removed. Ask again until then."""
        try:
            folder = Path(self._note.read_text("utf-8"))
        except FileNotFoundError:
            return True
        try:
            if "populated 1" in (folder / "cgroup.events").read_text():
                (folder / "cgroup.kill").write_text("1")
                return False
            folder.rmdir()
        except FileNotFoundError:  # the machine was started again
            pass
        except OSError as fault:
            log.warning("the control group %s stays for now: %s", folder, fault)
            return False
        self._note.unlink(missing_ok=True)
        return True


def is_shared(launch: Path) -> bool:
    """Return whether the folder of this launch belongs to a shared machine's state."""
    return (launch.parent.parent / FACTS).is_dir()


def group_of(launch: Path) -> LaunchGroup:
    """Return the group of the launch in this folder of a shared machine."""
    return LaunchGroup(launch.parent.parent / FACTS / f"{launch.name}.group")
