"""The files that `.containerignore` lets into an image are enough to build its wheel and to start what pods run.

The image has no reshape-papers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from launcher.admission import inject
from launcher.cluster.pods import log_reader
from reshape.cli import papers_verbs
from reshape.foreign import SERVICES
from tests import wheels

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image's wheel is installed into, as /opt/reshape/ours."""
    folder = tmp_path_factory.mktemp("image")
    for line in (ROOT / ".containerignore").read_text().splitlines():
        source, copy = ROOT / line[1:], folder / "src" / line[1:]
        if not line.startswith("!"):
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, copy, ignore=LEFT_OUT)
        else:
            shutil.copy(source, copy)
    link_others(folder / "others")
    return wheels.unpacked(folder / "src", "volcano_reshape", folder)


def link_others(folder: Path) -> None:
    """Fill a folder with links to all installed distributions but ours, whose entry points name this checkout."""
    folder.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "reshape" not in path.name:
            (folder / path.name).symlink_to(path)


def started(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with these words, which finds the image's files and the distributions beside them, not this checkout."""
    places = [str(installed), str(installed.parent / "others")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-S", "-P", *words]  # -S: no .pth file that names a checkout
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)


def test_the_image_has_all_packages_but_the_papers(installed: Path) -> None:
    found = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}
    assert found == {"reshape", "reshape_hooks", *SERVICES}
    assert (installed / "reshape" / "_playbooks" / "launch.yml").is_file()
    assert (installed / "coordinator" / "http" / "openapi.yaml").is_file()


@pytest.mark.parametrize(
    "command",
    [
        ("reshape", "--help"),
        ("reshape", "coordinator", "--help"),
        ("reshape", "launcher", "--help"),
        ("reshape", "agent", "--help"),
        *((one[one.index("-m") + 1], "--help") for one in (inject.SIDECAR_COMMAND, log_reader.COMMAND)),
        ("sidecar.startup.install", "--help"),
        ("sidecar.startup.fetch", "--help"),
    ],
    ids=" ".join,
)
def test_what_pods_start_is_in_the_image(installed: Path, command: tuple[str, ...]) -> None:
    done = started(installed, "-m", *command)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(("Usage:", "usage:"))


def test_the_shim_is_where_pods_with_an_image_of_their_own_start_it(installed: Path) -> None:
    path = Path(inject.SHIM_IN_IMAGE[inject.SHIM_IN_IMAGE.index("-S") + 1])
    done = started(installed, str(installed / path.relative_to("/opt/reshape/ours")), "--help")
    assert (done.returncode, done.stderr) == (0, "")


def test_all_modules_of_the_image_are_there_for_its_services(installed: Path) -> None:
    modules = ("reshape.services.coordinator", "reshape.services.node_agent", "launcher.cluster.process")
    code = "; ".join(("from reshape import foreign", "foreign.check()", *(f"import {name}" for name in modules)))
    done = started(installed, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_says_that_it_cannot_simulate(installed: Path) -> None:
    done = started(installed, "-m", "reshape", "simulate", "--workload", "case-study")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"Error: `reshape simulate` is not available. {papers_verbs.NOT_INSTALLED}\n"


def test_the_image_lists_the_verbs_that_it_lacks_and_how_to_get_them(installed: Path) -> None:
    for words in (("--help",), ("paper", "--help"), ("profile", "import-trace", "--help")):
        done = started(installed, "-m", "reshape", *words)
        assert done.returncode == 0
        assert papers_verbs.NOT_INSTALLED in " ".join(done.stdout.split())


def test_the_services_need_no_library_of_the_papers(installed: Path) -> None:
    (installed.parent / "others" / "scipy").unlink()
    done = started(
        installed, "-c", "import reshape.services.coordinator, launcher.cluster.process, reshape.services.up"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_copied_into_the_image_of_a_training_needs_no_other_package_of_ours(
    installed: Path, tmp_path: Path
) -> None:
    code = "import sys; from launcher import containerize; sys.stdout.write(str(containerize.SIDECAR))"
    folder = started(installed, "-c", code).stdout
    assert folder == str(installed / "sidecar")
    for package in ("sidecar", "reshape_hooks"):
        shutil.copytree(Path(folder).with_name(package), tmp_path / "copied" / package, ignore=LEFT_OUT)
    link_others(tmp_path / "others")
    for module in ("sidecar", "sidecar.reader", "sidecar.startup.install"):
        done = started(tmp_path / "copied", "-m", module, "--help")
        assert (done.returncode, done.stderr) == (0, "")
