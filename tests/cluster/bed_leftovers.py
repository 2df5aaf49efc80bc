"""Finds what test beds that were killed left on this machine: a session may end with all its processes killed at once.

Then network namespaces, links, mounts, control groups, shims' sockets and gigabytes of unpacked images stay, and the
next bed may stand in another folder. Promises: what a living bed uses is not touched, nor what bears no name of ours.
Called by bed.py, which removes what is found.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.bed_network import NODES
from tests.cluster.bed_processes import BedError, Processes

OWNER = Path("/run/reshape-test-bed")  # names the folder of the bed that this machine carries: there is one at a time
RECORDS = "processes.json"
# What containerd and kubelet of a node mount: the part before it is the bed's folder.
MOUNTED = re.compile(rf"(?P<folder>/.+)/nodes/(?:{'|'.join(NODES)})/(?:state|root|kubelet)/")


def folders(mounts: str, owner: Path = OWNER) -> list[Path]:
    """Folders of beds that this machine carries or carried, living ones too. `mounts`: text of /proc/self/mounts."""
    found = {Path(point["folder"]) for line in mounts.splitlines() if (point := MOUNTED.match(line.split()[1]))}
    found = {folder for folder in found if (folder / RECORDS).exists()}  # else they are mounts of another cluster
    if owner.exists() and (named := owner.read_text()):
        found.add(Path(named))
    return sorted(found)


def dead(of: Path, mounts: str, owner: Path = OWNER) -> list[Path]:
    """The other folders whose beds have ended without removing what they made; BedError where one lives."""
    others = [folder for folder in folders(mounts, owner) if folder != of]
    for folder in others:
        if running := Processes(folder).running():
            some = ", ".join(running[:3]) + (" and more" if len(running) > 3 else "")
            raise BedError(
                f"this machine carries another test bed, in {folder}, of which {some} run: "
                "end it first (make cluster-down there)"
            )
    return others
