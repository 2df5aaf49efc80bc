"""`make dist` builds each distribution and says what does not work in a fresh environment."""

from __future__ import annotations

import importlib.util
import re
import sys
import tarfile
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = "Programming Language :: Python :: "


@pytest.fixture(scope="module")
def dist() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dist_of_ci", ROOT / ".ci" / "dist.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(dist: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    found: list[Path] = dist.build(tmp_path_factory.mktemp("dist"))
    return found


@pytest.mark.deep  # builds, and makes environments
def test_each_distribution_has_a_wheel_and_an_sdist_with_what_its_wheel_is_built_from(built: list[Path]) -> None:
    kinds = {re.sub(r"-[0-9.]+(?=-py3|\.tar)", "", path.name) for path in built}
    names = ("volcano_reshape", "reshape_client", "reshape_hooks")
    assert kinds == {name + end for name in names for end in ("-py3-none-any.whl", ".tar.gz")}
    for path in built:
        if path.suffix == ".gz":
            with tarfile.open(path) as archive:
                inside = {name.partition("/")[2] for name in archive.getnames()}
            assert {"pyproject.toml", "README.md", "PKG-INFO"} <= inside
            assert not [name for name in inside if name.startswith((".venv", "build/", "dist/"))]


@pytest.mark.deep  # builds, and makes environments
def test_what_works_in_a_fresh_environment_has_no_faults_and_what_does_not_is_told_whole(
    dist: ModuleType, built: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the one distribution that needs no other package, so that nothing is downloaded."""
    (wheel,) = [path for path in built if path.suffix == ".whl" and path.name.startswith("reshape_hooks-")]
    assert list(dist.faults_of(wheel, sys.executable)) == []
    odd = dist.Trial(("python", "-c", "print('something else')"), "what it should print")
    monkeypatch.setitem(dist.TRIALS, "reshape_hooks", (odd,))
    (fault,) = dist.faults_of(wheel, sys.executable)
    assert "0, not exit code 0 and 'what it should print':\nsomething else" in fault


@pytest.mark.deep  # builds, and makes environments
def test_a_wheel_that_cannot_be_installed_is_a_fault(dist: ModuleType, tmp_path: Path) -> None:
    broken = tmp_path / "reshape_hooks-9.9.9-py3-none-any.whl"
    broken.write_text("no zip")
    (fault,) = dist.faults_of(broken, sys.executable)
    assert fault.startswith(f"{broken.name} cannot be installed with ")


def test_a_python_that_is_not_here_is_said_and_not_tried(
    dist: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dist.python_of("3.99") is None
    assert dist.python_of(HERE) is not None
    monkeypatch.setattr(dist, "VERSIONS", ("3.99",))
    assert dist.try_all([]) == 1, "nothing was tried"
    assert capsys.readouterr().out == "missing  Python 3.99 is not here, on PATH or in pyenv: not tried with it\n"


def test_the_project_names_no_python_that_is_not_tried(dist: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [line.removeprefix(PYTHON) for line in project["classifiers"] if line.startswith(PYTHON)]
    assert named and set(named) <= set(dist.VERSIONS)
    assert project["requires-python"] == f">={dist.VERSIONS[0]}" == f">={named[0]}"
