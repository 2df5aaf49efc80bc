"""A test bed that was killed with all its processes hinders no other one: neither in its folder nor in another.

Runs last, since it ends the bed that the others use.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import bed_leftovers, bed_network, bed_nodes
from tests.cluster.bed import Bed
from tests.cluster.bed_kubectl import phase
from tests.cluster.bed_processes import BedError, end
from tests.cluster.test_bed import pod

MOUNTS = Path("/proc/self/mounts")


@pytest.fixture
def elsewhere() -> Iterator[Bed]:
    """A bed of another folder, as of another clone: with a short path, since sockets lie below it."""
    folder = Path(tempfile.mkdtemp(prefix="bed-"))
    another = Bed(folder / "run")
    yield another
    try:
        another.down()
    except BedError:
        pass  # it has not come up, and the one that lives is another's
    shutil.rmtree(folder, ignore_errors=True)


def kill(bed: Bed) -> None:
    """As a session ends: all its processes at once, by SIGKILL; those of pods have no record, but control groups."""
    recorded = [pid for name in bed.processes.records() if (pid := bed.processes.pid(name))]
    for pid in recorded:
        os.kill(pid, signal.SIGKILL)
    end(recorded, kill=True)


def test_a_second_bed_is_refused_while_the_first_one_lives(bed: Bed, elsewhere: Bed) -> None:
    with pytest.raises(BedError, match=rf"carries another test bed, in {bed.folder}, of which .* run: end it first"):
        elsewhere.up()
    assert bed.is_up()
    assert not elsewhere.folder.exists()


def test_what_a_killed_bed_left_is_removed_and_pods_run_in_the_next_one_of_another_folder(
    bed: Bed, elsewhere: Bed, bed_stays_up: bool
) -> None:
    bed.cluster.apply(pod("runs", "default", node="node-b"))
    bed.cluster.wait("pod", "runs", phase("Running"))
    kill(bed)
    assert (bed.folder / "nodes").exists()
    elsewhere.up()
    assert not (bed.folder / "nodes").exists(), "gigabytes of unpacked images"
    assert str(bed.folder) not in MOUNTS.read_text()
    elsewhere.cluster.apply(pod("runs-again", "default"))
    elsewhere.cluster.wait("pod", "runs-again", phase("Running"))
    kill(elsewhere)
    elsewhere.down()
    assert str(elsewhere.folder) not in MOUNTS.read_text()
    assert not bed_leftovers.OWNER.exists()
    assert not any(group.exists() for node in bed_network.NODES for group in bed_nodes.cgroups(node))
    assert not any(Path("/run/netns", bed_network.namespace(node)).exists() for node in bed_network.NODES)
    if bed_stays_up:
        bed.up()
