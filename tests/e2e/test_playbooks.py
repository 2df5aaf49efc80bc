"""Playbooks that `launcher.playbook` runs through the real ansible-runner, and those that an operator runs by hand."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordinator.errors import Fatal, Transient
from launcher import playbook, shim_command
from tests.e2e.test_launcher import CANARY, ROOT, Ground, alive, doc_of, shim_pid
from tests.patience import eventually, patient

PLAYBOOKS = ROOT / "playbooks"
PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: {name}
      ansible.builtin.command:
        argv: {argv}
"""


def write_play(folder: Path, name: str, task: str, *argv: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(PLAY.format(name=task, argv=json.dumps(argv)))


@pytest.mark.parametrize(
    ("module", "jump_s"), [("pexpect.expect", -40 * 86_400.0), ("ansible_runner.runner", 40 * 86_400.0)]
)
def test_a_clock_that_is_set_while_a_playbook_runs_fails_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, jump_s: float
) -> None:
    """pexpect and ansible-runner, which wait for the playbook, count by the wall clock."""
    jumps = chain(range(6), repeat(6))
    clock = SimpleNamespace(time=lambda: time.time() + jump_s * next(jumps), sleep=time.sleep)
    monkeypatch.setattr(importlib.import_module(module), "time", clock)
    write_play(tmp_path / "plays", "slow.yml", "take a second", "sleep", "1")
    playbook.run(tmp_path / "plays" / "slow.yml", tmp_path, {}, patient(120.0))
    assert next(jumps) == 6, "it was set"


def test_a_folder_name_is_never_read_as_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "{{ lookup('pipe', 'touch canary') }} %s"
    folder.mkdir()
    write_play(tmp_path, "show.yml", "show", "{{ python }}", "-c", "import sys; sys.exit(sys.argv[1])", "{{ folder }}")
    monkeypatch.setenv("MONGODB_URI", CANARY)
    with pytest.raises(Transient) as failure:
        playbook.run(tmp_path / "show.yml", folder, {"python": sys.executable, "folder": str(folder)}, patient(120))
    assert str(failure.value) == f"task 'show' failed: {folder}"
    assert not list(tmp_path.rglob("canary"))
    kept = [file for file in (folder / "ansible-show").rglob("*") if file.is_file()]
    assert kept  # for whoever looks into the failure
    assert not [file for file in kept if CANARY in file.read_text(encoding="utf-8", errors="replace")]


def test_a_playbook_that_cannot_run_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "broken.yml").write_text("- hosts: [\n  foo")
    with pytest.raises(Fatal, match="YAML"):
        playbook.run(tmp_path / "broken.yml", tmp_path, {}, patient(120))
    with pytest.raises(Fatal, match=r"^there is no playbook "):
        playbook.run(tmp_path / "none.yml", tmp_path, {}, patient(120))


def test_a_missing_ansible_is_said_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ansible" else found(name))
    with pytest.raises(Fatal, match=r"\[launch\]"):
        playbook.run(PLAYBOOKS / "launch.yml", tmp_path, {}, patient(120))


def play_by_hand(name: str, launch: Path) -> None:
    program = shutil.which("ansible-playbook", path=playbook.search_path())
    values = json.dumps({"folder": str(launch)})
    command = [str(program), "--inventory", "localhost,", "--extra-vars", values, str(PLAYBOOKS / name)]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=patient(120))
    assert done.returncode == 0, done.stdout


def test_by_hand_an_operator_starts_and_ends_a_launch_as_the_launcher_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path / "state")
    doc = doc_of()
    platform = ground.platform()
    with monkeypatch.context() as patched:
        patched.setattr(shim_command, "SHIM", tmp_path / "none.py")
        platform.launch(doc)
        eventually(lambda: platform.failure(doc))
    launch = platform.folders(doc).launch
    try:
        play_by_hand("launch_local.yml", launch)
        shim = shim_pid(platform, doc)
        assert alive(shim)
        platform.launch(doc)
        eventually(lambda: platform.gone(doc) or not platform._runs.under_way(launch.name))
        play_by_hand("launch_local.yml", launch)
        assert shim_pid(platform, doc) == shim
        play_by_hand("remove_local.yml", launch)
        assert not alive(shim)
        play_by_hand("remove_local.yml", launch)
        assert platform.gone(doc)
    finally:
        ground.clear()


def running(mark: str) -> list[int]:
    """Ansible's processes that work in a folder, by their environment."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"AWX_ISOLATED_DATA_DIR={mark}".encode() in environ.read_bytes() and alive(int(environ.parent.name)):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found
