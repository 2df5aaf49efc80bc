"""The wheel as a stranger gets it: built from this tree, installed with its `demo` extra, run from any folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import wheels
from tests.e2e.up import ROOT, of_folder

SHIPPED = (
    "reshape/_playbooks/launch_local.yml",
    "reshape/_playbooks/remove_local.yml",
    "reshape/_playbooks/launch.yml",
    "reshape/_playbooks/remove.yml",
    "reshape/_playbooks/containerize.yml",
    "reshape/_examples/numpy_digits.py",
    "reshape/_examples/keras_digits.py",
    "reshape/_examples/keras_plain.py",
    "reshape/_examples/digits.py",
    "coordinator/tables/speed_profiles.csv",
    "coordinator/tables/overheads.csv",
    "coordinator/tables/accuracy_profiles.csv",
    "coordinator/http/openapi.yaml",
    "coordinator/dashboard/templates/layout.html",
    "coordinator/dashboard/templates/job/facts.html",
    "coordinator/dashboard/static/dashboard.css",
    "coordinator/dashboard/static/dashboard.js",
    "coordinator/dashboard/static/icon.svg",
    "sidecar/shim.py",
)
OURS = {
    "reshape_hooks",
    "reshape",
    "adaptive_scheduler",
    "coordinator",
    "sidecar",
    "launcher",
    "simulator",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheels.built(ROOT, "volcano_reshape", tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_all_that_is_needed_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert set(SHIPPED) - names == set()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == OURS
    assert not [name for name in names if re.search(r"(^|[/_.])tests?([/_.]|$)|__pycache__", name.lower())]


@pytest.mark.deep
def test_installed_with_its_demo_extra_it_runs_the_demo_from_any_folder(wheel: Path, tmp_path: Path) -> None:
    """PATH names nothing but the new environment; PYTHONPATH nothing at all."""
    home, elsewhere = tmp_path / "venv", tmp_path / "any folder"
    elsewhere.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    install = [str(home / "bin" / "pip"), "install", "--no-compile", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"{wheel}[demo]"], check=True, cwd=elsewhere)
    environment = {"PATH": str(home / "bin"), "HOME": str(elsewhere), "LANG": "C.UTF-8"}
    demo = [str(home / "bin" / "reshape"), "demo", "--trainer", "numpy", "--json"]
    ended = subprocess.run(demo, cwd=elsewhere, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)
    assert result["complaints"] == [] and result["gpu_owner_violations"] == 0
    assert len(list(elsewhere.glob("reshape-demo/run-*/gantt.svg"))) == 1
    assert of_folder(tmp_path) == {}
