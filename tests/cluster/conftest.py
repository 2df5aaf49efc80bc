"""Tests on a real cluster, the test bed unless told otherwise: collected only with `--cluster` (`make test-cluster`).

With RESHAPE_TEST_CLUSTER=1 the cluster of KUBECONFIG is used, and what needs the bed itself (killing a kubelet, cutting
a link) is skipped. A missing part of the bed is a skip that names it, in CI a failure.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.bed import Bed
from tests.cluster.bed_build import ROOT, Missing
from tests.cluster.bed_kubectl import Cluster
from tests.cluster.bed_processes import BedError
from tests.cluster.bed_report import Report
from tests.cluster.installed import installed, jobs  # noqa: F401 - fixtures
from tests.cluster.plays import played  # noqa: F401 - fixture
from tests.patience import patient

REPORT = pytest.StashKey[Report]()
UP = pytest.StashKey[Bed]()
KEPT = pytest.StashKey[bool]()  # whether the bed is to stay up afterwards
TROUBLE = pytest.StashKey[dict[str, str]]()  # what was wrong in the cluster when a test failed, by the error's text
WHY_FILE = ROOT / "build" / "cluster-trouble.txt"  # of the first failure: .ci/run prints it last
LAST = ("test_rbac.py", "test_without_volcano.py", "test_helm.py", "test_killed_bed.py")
TEST_LIMIT_S = patient(300)  # of a test alone: what its fixtures build takes as long as it takes


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cluster")
    group.addoption("--cluster", action="store_true", help="run the tests on a real cluster")
    group.addoption("--keep-bed", action="store_true", help="leave the test bed up afterwards")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    return None if config.getoption("cluster", False) else True


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.cluster)
    item.add_marker(pytest.mark.timeout(TEST_LIMIT_S, func_only=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The rights of the service accounts come last: they are held against what all the others used.

    But for those that remove our parts, with their rights, and those that kill the bed itself.
    """
    items.sort(key=lambda item: LAST.index(item.path.name) if item.path.name in LAST else -1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Look at the cluster while it is as the failed test left it; once for an error that a fixture gives to many."""
    report = yield
    bed, known = item.config.stash.get(UP, None), item.config.stash.setdefault(TROUBLE, {})
    error = str(call.excinfo.value) if call.excinfo is not None else ""
    if report.failed and bed is not None and error not in known:
        known[error] = bed.trouble()
        report.sections.append(("the cluster when it failed", known[error]))
        if len(known) == 1:
            WHY_FILE.write_text(f"{item.nodeid}\n{error}\n{known[error]}\n")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if found := config.stash.get(REPORT, None):
        terminalreporter.section("scenarios on the cluster")
        for line in found.lines():
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
    WHY_FILE.unlink(missing_ok=True)
    bed = Bed()
    keep = bed.is_up() or request.config.getoption("--keep-bed")
    capture = request.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():  # how it came up is printed, a second attempt above all
            bed.up()
    except Missing as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))
    except BedError as error:
        WHY_FILE.write_text(f"{error}\n")
        raise
    request.config.stash[UP], request.config.stash[KEPT] = bed, keep
    yield bed
    del request.config.stash[UP]
    if not keep:
        bed.down()


@pytest.fixture
def bed_stays_up(bed: Bed, request: pytest.FixtureRequest) -> bool:
    """Whether it was up before these tests, or is to be kept."""
    return request.config.stash[KEPT]


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
def report(request: pytest.FixtureRequest) -> Report:
    """`with report.scenario("name") as figures: figures["gap_s"] = ...`"""
    found = Report(ROOT / "build" / "cluster-report.json")
    request.config.stash[REPORT] = found
    return found
