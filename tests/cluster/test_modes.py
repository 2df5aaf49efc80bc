"""What each device mode can do: one test for each cell of the table in docs/kubernetes.md, on a real cluster.

             up           down for a newcomer   early initialization      move
shared       living pod   living pod            yes                       new pod first, from its checkpoint
recreate     new pod      new pod               no: its GPUs come first   new pod first, from its checkpoint
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster import steps_job, training_images
from tests.cluster.bed_report import Report
from tests.cluster.installed import Installed
from tests.cluster.plays import ENDLESS, Moved, Play, check_moved, cross_host, identity, in_order, play

Played = Callable[[str, str], Play]
QUEUES = {"shared": steps_job.QUEUE, "recreate": steps_job.RECREATE_QUEUE}


@pytest.mark.parametrize(("which", "counts"), [(1, (2, 4)), (0, (4, 2))], ids=["up", "down"])
@pytest.mark.parametrize(("mode", "same_pod"), [("shared", True), ("recreate", False)])
def test_up_and_down_for_a_newcomer(
    played: Played, mode: str, same_pod: bool, which: int, counts: tuple[int, int]
) -> None:
    seen = played(mode, "shared")
    before, after = seen.pods[which], seen.pods[which + 1]
    assert (seen.gaps[which].before, seen.gaps[which].after) == counts
    assert (identity(before) == identity(after)) == same_pod
    assert in_order(seen.steps)


@pytest.mark.parametrize(("mode", "early"), [("shared", True), ("recreate", False)])
def test_early_initialization(played: Played, mode: str, early: bool) -> None:
    """Of the newcomer: whether its pod comes up while its victim still trains."""
    seen = played("shared", mode)
    assert (seen.first(seen.newcomer, "launching") < seen.first(seen.job, "stop sent")) == early


@pytest.fixture(scope="module")
def moved(installed: Installed) -> Callable[[str], Moved]:
    """A job of each mode that had two GPUs of node-a and went to node-b as its four came free. Played once for both."""
    kept: dict[str, Moved] = {}

    def get(mode: str) -> Moved:
        if not kept:
            kept.update(cross_host(installed, {mode: {"queue": queue} for mode, queue in QUEUES.items()}))
        return kept[mode]

    return get


@pytest.mark.parametrize("mode", QUEUES)
def test_move(moved: Callable[[str], Moved], installed: Installed, report: Report, mode: str) -> None:
    with report.scenario(f"growth onto another node ({mode})") as figures:
        seen = moved(mode)
        figures |= seen.figures
        check_moved(installed, seen)


@pytest.fixture
def image(installed: Installed) -> str:
    installed.bed.provide(training_images.archive("numpy"), ["node-a"])
    return training_images.name_of("numpy")


def test_a_pod_of_one_container_is_reshaped_beside_one_of_two(installed: Installed, image: str, report: Report) -> None:
    """Seed 004's pod: the image carries shim and sidecar, so that all of it is in one container."""
    document = {
        "single_container": True, "image": image, "job_type": "digits-numpy",
        "command": ["python", "numpy_digits.py", "--iterations", str(ENDLESS)], "checkpoint_claim": None,
    }  # fmt: skip
    with report.scenario("a pod of one container is reshaped") as figures:
        seen = play(installed, steps_job.QUEUE, steps_job.QUEUE, **document)
        figures |= {"gap_down_s": seen.gaps[0].seconds, "gap_up_s": seen.gaps[1].seconds}
        assert {identity(pod) for pod in seen.pods} == {identity(seen.pods[0])}
        (container,) = seen.pods[0]["spec"]["containers"]
        assert not seen.pods[0]["spec"].get("initContainers")
        assert container["image"] == image
        assert [(gap.before, gap.after) for gap in seen.gaps] == [(4, 2), (2, 4)]
        assert in_order(seen.steps)
        assert installed.gpus.violations() == []
