"""ansible-runner is first imported by whichever launch comes first, while others may already follow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# The package as another thread sees it half way through its import: the modules are there, `plugins` is not yet.
HALF_WAY = """
import threading
from . import runner, config
from .runner import Runner, RunnerConfig
class AnsibleRunnerException(Exception): pass
import other
second = threading.Thread(target=other.launches)
second.start()
second.join(0.5)
plugins = {}
"""
RUNNER = """
import ansible_runner
class RunnerConfig:
    env, command = {}, []
    def __init__(self, *given, **named): pass
    def prepare(self): pass
class Runner:
    timed_out = False
    def __init__(self, *given, **named): pass
    def run(self):
        list(ansible_runner.plugins)
"""
OTHER = """
from pathlib import Path
from launcher.playbook import _runner
told = []
def launches():
    try:
        _runner(Path("play.yml"), Path("."), {}, lambda: False)
        told.append("launched")
    except BaseException as error:
        told.append(repr(error))
"""
MAIN = "import ansible_runner, other; ansible_runner.second.join(); print(*other.told)"


def test_a_launch_waits_for_the_import_that_another_launch_began(tmp_path: Path) -> None:
    package = tmp_path / "ansible_runner"
    (package / "config").mkdir(parents=True)
    (package / "__init__.py").write_text(HALF_WAY)
    (package / "runner.py").write_text(RUNNER)
    (package / "config" / "__init__.py").write_text("")
    (package / "config" / "runner.py").write_text("from ansible_runner.runner import RunnerConfig\n")
    (package / "exceptions.py").write_text("class AnsibleRunnerException(Exception): pass\n")
    (tmp_path / "other.py").write_text(OTHER)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "launched", done.stderr
