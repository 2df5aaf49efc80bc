"""`reshape-client` is a distribution of its own: the client, and none of the packages with plain names."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import reshape
from tests import wheels
from tests.fakes.coordinator_api import TOKEN, Live
from tests.fakes.terminal import ROOT

SCRIPT = """
import sys
from reshape import Client, __version__
client = Client(sys.argv[1], sys.argv[2])
client.submit({"job_id": "a", "command": ["true"], "optional_num_gpus": [1]})
client.cancel("a")
print(__version__, client.wait("a")["state"])
ours = {name.split(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print(sorted(ours - set(sys.stdlib_module_names) - {"__main__", "sitecustomize"}))
try:
    client.what_if()
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which its wheel is unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "reshape", folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    return wheels.unpacked(folder / "source", "reshape_client", folder)


def test_it_holds_the_client_and_nothing_else(packages: Path) -> None:
    client = {path.relative_to(ROOT) for path in (ROOT / "reshape" / "client").glob("*.py")}
    wanted = {*client, Path("reshape/__init__.py"), Path("reshape/py.typed")}
    found = {path.relative_to(packages) for path in packages.rglob("*") if path.is_file()}
    assert {path for path in found if not path.parts[0].endswith(".dist-info")} == wanted


def test_it_works_with_the_standard_library_alone(packages: Path, live: Live, tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", SCRIPT, live.url, TOKEN]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(packages)}, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    state, loaded, why = done.stdout.splitlines()
    assert (state, loaded) == (f"{reshape.__version__} cancelled", "['reshape']")
    assert why.startswith("what_if simulates on this machine") and "install volcano-reshape" in why
