"""Tests on a real cluster, the test bed unless told otherwise: collected only with `--cluster` (`make test-cluster`).

With RESHAPE_TEST_CLUSTER=1 the cluster of KUBECONFIG is used, and what needs the bed itself (killing a kubelet, cutting
a link) is skipped. A missing part of the bed is a skip that names it, in CI a failure. Each worker of pytest-xdist has
a bed of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.cluster.bed import Bed
from tests.cluster.bed_build import BUILT, ROOT, Missing
from tests.cluster.bed_kubectl import Cluster
from tests.cluster.bed_network import MARK
from tests.cluster.bed_report import Report
from tests.cluster.installed import installed, jobs  # noqa: F401 - fixtures
from tests.cluster.plays import played  # noqa: F401 - fixture

REPORTS = ROOT / "build"
FINISHED = BUILT / "finished.txt"  # ids of the tests of this run that have ended, of all workers
TEST_LIMIT_S = 300
# Files that share costly set-up, or take long with few tests: what has most tests is given out first. test_rbac has the
# fewest, so it comes last.
TOGETHER = {
    "test_gangs": "images of frameworks", "test_keras": "images of frameworks", "test_limits": "images of frameworks",
    "test_moves": "images of frameworks", "test_modes": "plays", "test_reshape": "plays",
    "test_faults_nodes": "nodes", "test_faults_parts": "nodes", "test_faults_pods": "nodes",
    "test_nodes_and_logs": "nodes", "test_profiler": "nodes",
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster")
    group.addoption("--cluster", action="store_true", help="run the tests on a real cluster")
    group.addoption("--keep-bed", action="store_true", help="leave the test bed up afterwards")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("cluster", False) else True


def pytest_configure(config: pytest.Config) -> None:
    """Remove what an earlier run has written. Workers start after this."""
    if config.getoption("cluster", False) and not in_worker():
        for left in REPORTS.glob("cluster-report*.json"):
            left.unlink()
        BUILT.mkdir(parents=True, exist_ok=True)
        FINISHED.write_text("")


class _ByFile(LoadScopeScheduling):
    """Gives a worker whole files, and with one all those it belongs together with."""

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.partition("::")[0]).stem
        return TOGETHER.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    return _ByFile(config, log) if config.getoption("cluster", False) else None


def in_worker() -> bool:
    """True in a worker of pytest-xdist; what it runs is told to the process that started it."""
    return "PYTEST_XDIST_WORKER" in os.environ


def pytest_runtest_logfinish(nodeid: str) -> None:
    if not in_worker():
        with FINISHED.open("a") as file:
            file.write(f"{nodeid}\n")


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.cluster)
    if item.get_closest_marker("timeout") is None:  # of the test alone: the first one's set-up may build Kubernetes
        item.add_marker(pytest.mark.timeout(TEST_LIMIT_S, func_only=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rights of the service accounts come last: they wait for all other tests, which use them."""
    items.sort(key=lambda item: item.path.name == "test_rbac.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("cluster", False) or in_worker():
        return
    report = Report(REPORTS / "cluster-report.json")
    report.take(sorted(REPORTS.glob("cluster-report*.json")))
    if report.scenarios:
        terminalreporter.section("scenarios on the cluster")
        for line in report.lines():
            terminalreporter.write_line(line)


def given_cluster() -> Path | None:
    """The kubeconfig of the cluster that the user wants used in the bed's place."""
    if os.environ.get("RESHAPE_TEST_CLUSTER") != "1":
        return None
    if not (kubeconfig := os.environ.get("KUBECONFIG")):
        raise pytest.UsageError("RESHAPE_TEST_CLUSTER=1 uses the cluster of KUBECONFIG: set KUBECONFIG, too")
    return Path(kubeconfig)


@pytest.fixture(scope="session")
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    """The test bed, up. One that was up before is used, and left up."""
    if given_cluster() is not None:
        pytest.skip("needs the test bed itself: run without RESHAPE_TEST_CLUSTER")
    bed = Bed()
    mark = bed.folder / "nodes" / "brought-up-by-tests"  # a run that was killed leaves its bed: the next one ends it
    keep = (bed.is_up() and not mark.exists()) or request.config.getoption("--keep-bed")
    try:
        bed.up()
    except Missing as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    if not keep:
        mark.touch()
    yield bed
    if not keep:  # in a session of its own: a Ctrl-C ends this worker before all is removed
        subprocess.run(
            [sys.executable, "-m", "tests.cluster.bed", "down", "--folder", bed.folder], start_new_session=True
        )


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster to test on: the user's, else the bed's."""
    if kubeconfig := given_cluster():
        return Cluster(kubeconfig)
    bed: Bed = request.getfixturevalue("bed")
    return bed.cluster


@pytest.fixture(scope="session")
def images(bed: Bed) -> None:
    """The images `base`, `reshape` and `nx` (see built_images.py) are on both nodes."""
    bed.provide_images()


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own, removed afterwards with all that is in it."""
    words = re.sub("[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())[:40].strip("-")
    name = f"{words}-{uuid.uuid4().hex[:6]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    cluster.wait("serviceaccount", "default", bool, name)
    yield name
    cluster.delete("namespace", name, "default", "--wait=false")


@pytest.fixture(scope="session")
def report() -> Report:
    """`with report.scenario("name") as figures: figures["gap_s"] = ...`"""
    return Report(REPORTS / f"cluster-report{MARK}.json")
