"""Launches on this machine: real playbooks through ansible-runner, the real shim, real processes."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.errors import Fatal, Rejected, Transient
from launcher import playbook
from launcher.local import LocalPlatform
from launcher.local_spec import LocalSettings
from sidecar.protocol import launch_key
from sidecar.resources.limits import ControlGroup
from tests.patience import eventually, patient

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOKS = ROOT / "playbooks"
MASTER = b"master key of the tests"
CANARY = "canary-5b1c"
TRAINER = "import os, time; print('env', dict(os.environ), flush=True); time.sleep(600)"
PLAY = """\
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: {name}
      ansible.builtin.command:
        argv: {argv}
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def doc_of(job_id: str = "job a", **more: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", TRAINER]
    return {"_id": job_id, "job_id": job_id, "uid": f"uid of {job_id}", "launch": 1, "command": command, **more}


def shim_pid(platform: LocalPlatform, doc: dict[str, Any]) -> int:
    """0 until the shim has written it down, which it does only once it listens."""
    try:
        return int((platform.folders(doc).launch / "shim.pid").read_text() or 0)
    except FileNotFoundError:
        return 0


def launched(platform: LocalPlatform, doc: dict[str, Any]) -> int:
    """The pid of the shim, once it listens; asserts that the launch did not fail."""
    platform.launch(doc)
    eventually(lambda: platform.failure(doc) or shim_pid(platform, doc))
    assert platform.failure(doc) is None
    return shim_pid(platform, doc)


def ask(platform: LocalPlatform, doc: dict[str, Any], **request: Any) -> dict[str, Any]:
    """One request over the shim's socket, and its answer."""
    folder = os.open(platform.folders(doc).launch, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(patient(10))
        link.connect(f"/proc/self/fd/{folder}/shim.sock")
        os.close(folder)
        link.sendall(json.dumps(request).encode() + b"\n")
        for line in link.makefile():
            if "ok" in (message := json.loads(line)):
                return message
    raise AssertionError("the shim closed the socket")


def write_play(folder: Path, name: str, task: str, *argv: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(PLAY.format(name=task, argv=json.dumps(argv)))


class Ground:
    """Platforms over one state folder; whatever they launched is ended afterwards."""

    def __init__(self, state: Path) -> None:
        self.state, self.made = state, []

    def platform(self, playbooks: Path = PLAYBOOKS, **settings: Any) -> LocalPlatform:
        chosen = LocalSettings(**{"grace_s": 2.0, "kill_s": 1.0, **settings})
        self.made.append(LocalPlatform(self.state, "http://127.0.0.1:9", MASTER, playbooks, chosen))
        return self.made[-1]

    def clear(self) -> None:
        for platform in self.made:
            platform.stop_all(10)
        for pid in self.state.glob("jobs/*/shim.pid"):
            folder = pid.parent
            command = [sys.executable, ROOT / "sidecar" / "shim.py", "--folder", folder, "--end"]
            subprocess.run(command, timeout=patient(30), check=False, capture_output=True)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path / "state")
    yield ground
    ground.clear()


def test_a_sidecars_log_has_the_format_of_ours(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHAPE_LOG_FORMAT", "json")
    platform, doc = ground.platform(), doc_of()
    launched(platform, doc)
    log = platform.folders(doc).launch / "sidecar.log"
    line = eventually(lambda: log.exists() and log.read_text().partition("\n")[0])
    assert json.loads(str(line))["message"].startswith("listens on")


def test_a_launch_outlives_the_coordinator_and_ends_when_it_is_removed(ground: Ground) -> None:
    platform, doc = ground.platform(operator_token="the operator's"), doc_of()
    shim = launched(platform, doc)
    folder = platform.folders(doc).launch
    key = folder / "launch.key"
    assert key.read_bytes() == launch_key(MASTER, "uid of job a", 1)
    token = folder / "operator.token"
    assert token.read_text() == "the operator's"
    assert {stat.S_IMODE(file.stat().st_mode) for file in (key, token, folder / "launch.json")} == {0o600}
    platform.stop_all(10)
    assert alive(shim)
    later = ground.platform()
    assert not later.gone(doc)
    later.remove(doc)
    eventually(lambda: later.gone(doc))
    eventually(lambda: not alive(shim))
    assert not key.exists()
    assert not token.exists()
    later.remove(doc)
    eventually(lambda: later.gone(doc))
    assert list(folder.glob("ansible-*")) == []


def test_removing_a_launch_whose_shim_was_killed_leaves_no_socket(ground: Ground) -> None:
    platform, doc = ground.platform(), doc_of()
    os.kill(launched(platform, doc), signal.SIGKILL)
    eventually(lambda: platform.gone(doc))
    platform.remove(doc)
    eventually(lambda: not (platform.folders(doc).launch / "shim.sock").exists())


STARTED = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
child.wait()
"""
NAMELESS = STARTED.replace('"])', '"], env={}, start_new_session=True, stdout=subprocess.DEVNULL)')
FORKED = """
import os, time
if child := os.fork():
    print("child", child, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("script", [STARTED, NAMELESS, FORKED], ids=["started", "without environment", "forked"])
def test_a_launch_whose_shim_was_killed_is_gone_only_once_what_its_script_started_has_ended(
    ground: Ground, script: str
) -> None:
    """A child that has no descriptor of its parent holds no lock, and one that does holds it; neither is the shim's.

    One that has nothing of its parent's environment is known all the same.
    """
    platform, doc = ground.platform(), {**doc_of(), "command": [sys.executable, "-c", script]}
    shim = launched(platform, doc)
    asked = {"generation": 1, "command_id": "c1", "gpu_ids": ["GPU-0"], "checkpoint": "", "lease_deadline": 0}
    assert ask(platform, doc, do="start", **asked)["ok"]
    text = eventually(lambda: found if (found := platform.output(doc, 0, 1000)[0]).endswith(b"\n") else b"")
    child = int(text.split()[-1])
    assert alive(child) and not platform.gone(doc)
    os.kill(shim, signal.SIGKILL)
    eventually(lambda: platform.gone(doc))
    assert not alive(child)


@pytest.mark.parametrize(
    ("module", "jump_s"), [("pexpect.expect", -40 * 86_400.0), ("ansible_runner.runner", 40 * 86_400.0)]
)
def test_a_clock_that_is_set_while_a_playbook_runs_fails_no_launch(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, jump_s: float
) -> None:
    """pexpect and ansible-runner, which wait for the playbook, count by the wall clock."""
    jumps = chain(range(6), repeat(6))
    clock = SimpleNamespace(time=lambda: time.time() + jump_s * next(jumps), sleep=time.sleep)
    monkeypatch.setattr(importlib.import_module(module), "time", clock)
    write_play(tmp_path / "plays", "slow.yml", "take a second", "sleep", "1")
    playbook.run(tmp_path / "plays" / "slow.yml", tmp_path, {}, 30.0)
    assert next(jumps) == 6, "it was set"


def test_removing_a_launch_whose_shim_was_killed_leaves_no_control_group(ground: Ground) -> None:
    platform, doc = ground.platform(), doc_of()
    shim = launched(platform, doc)
    group = ControlGroup(platform.folders(doc).launch.name)
    try:
        group.hold(shim, 100.0, None)
    except OSError as why:
        pytest.skip(f"no control group can be made here: {why}")
    os.kill(shim, signal.SIGKILL)
    eventually(lambda: platform.gone(doc))
    eventually(lambda: not group.folder.exists() or not group.members.read_text().split())
    group.folder.mkdir(exist_ok=True)  # a sidecar that has time to leave removes it, one that is killed, too, does not
    platform.remove(doc)
    eventually(lambda: not group.folder.exists())


def test_a_launch_asked_for_again_also_by_another_coordinator_is_the_same_launch(ground: Ground) -> None:
    platform, doc = ground.platform(), doc_of()
    platform.launch(doc)
    shim = launched(platform, doc)
    assert launched(platform, doc) == shim
    platform.stop_all(10)
    later = ground.platform()
    assert launched(later, doc) == shim
    later.stop_all(30)
    assert shim_pid(later, doc) == shim
    assert alive(shim)


def test_a_trainer_sees_what_its_job_says_and_nothing_of_ours(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHAPE_MASTER", CANARY)
    platform = ground.platform()
    doc = doc_of(env={"MINE": "{{ lookup('pipe', 'true') }}", "MONGODB_URI": "mine"}, dataset="/data")
    launched(platform, doc)
    asked = {"generation": 1, "command_id": "c1", "gpu_ids": ["GPU-0"], "checkpoint": "", "lease_deadline": 0}
    assert ask(platform, doc, do="start", **asked)["ok"]
    written = eventually(lambda: found if (found := platform.output(doc, 0, 100_000)[0]).endswith(b"\n") else b"")
    text = written.decode()
    assert "'MINE': \"{{ lookup('pipe', 'true') }}\"" in text
    assert "'MONGODB_URI': 'mine'" in text
    assert "'RESHAPE_DATASET': '/data'" in text
    ours_first = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    assert f"'PATH': {ours_first!r}" in text
    assert CANARY not in text
    assert "ANSIBLE" not in text
    platform.stop_all(10)
    assert not [
        file for file in ground.state.rglob("*") if file.is_file() and CANARY in file.read_text("utf-8", "replace")
    ]


def test_output_is_read_in_pieces_and_from_the_start_of_a_new_file(ground: Ground) -> None:
    platform, doc = ground.platform(), doc_of()
    assert platform.output(doc, 0, 10) == (b"", 0)
    file = platform.folders(doc).output
    file.parent.mkdir(parents=True)
    file.write_bytes(b"0123456789")
    assert platform.output(doc, 0, 4) == (b"0123", 4)
    assert platform.output(doc, 4, 100) == (b"456789", 10)
    assert platform.output(doc, 10, 100) == (b"", 10)
    file.write_bytes(b"new")
    text, offset = platform.output(doc, 10, 100)
    assert text.decode() == "\n… the output before this line is gone …\nnew"
    assert offset == 3


def test_a_failing_playbook_reaches_the_user_as_one_sentence(ground: Ground, tmp_path: Path) -> None:
    write_play(
        tmp_path / "plays", "launch_local.yml", "start the shim", "sh", "-c", "echo the disk is full >&2; exit 3"
    )
    platform, doc = ground.platform(tmp_path / "plays"), doc_of()
    platform.launch(doc)
    sentence = eventually(lambda: platform.failure(doc))
    assert sentence == "task 'start the shim' failed: the disk is full"
    assert platform.gone(doc)
    platform.launch(doc)  # it has been heard: once more
    assert platform.failure(doc) is None
    assert eventually(lambda: platform.failure(doc)) == sentence


def test_a_code_folder_without_its_full_path_is_said_so(ground: Ground) -> None:
    platform, doc = ground.platform(), doc_of(code="no/such/folder")
    platform.launch(doc)
    sentence = eventually(lambda: platform.failure(doc))
    assert sentence == "its `code` must be the full path of a folder on this machine, not no/such/folder"
    assert not (platform.folders(doc).launch / "operator.token").exists()
    assert platform.gone(doc)


def test_a_playbook_that_hangs_is_stopped_and_leaves_no_process(ground: Ground, tmp_path: Path) -> None:
    write_play(tmp_path / "plays", "launch_local.yml", "hang", "sleep", "517.25")
    platform, doc = ground.platform(tmp_path / "plays", launch_timeout_s=3.0), doc_of()
    platform.launch(doc)
    assert eventually(lambda: platform.failure(doc)) == "its playbook took longer than 3 s and was stopped"
    eventually(lambda: not running(str(platform.folders(doc).launch)))


def test_removing_does_not_wait_for_a_launch_that_hangs(ground: Ground, tmp_path: Path) -> None:
    write_play(tmp_path / "plays", "launch_local.yml", "hang", "sleep", "517.25")
    platform, doc = ground.platform(tmp_path / "plays"), doc_of()
    platform.launch(doc)
    eventually(lambda: running(str(platform.folders(doc).launch)))
    assert not platform.gone(doc)
    platform.remove(doc)
    eventually(lambda: platform.gone(doc))
    assert not running(str(platform.folders(doc).launch))


def test_closing_waits_for_playbooks_only_so_long(ground: Ground, tmp_path: Path) -> None:
    write_play(tmp_path / "plays", "launch_local.yml", "hang", "sleep", "517.25")
    platform, doc = ground.platform(tmp_path / "plays"), doc_of()
    platform.launch(doc)
    eventually(lambda: running(str(platform.folders(doc).launch)))
    platform.stop_all(0.1)
    assert not running(str(platform.folders(doc).launch))


def test_a_coordinator_killed_while_its_playbook_runs_leads_to_one_launch(ground: Ground, tmp_path: Path) -> None:
    doc = doc_of()
    script = (
        "import json, pathlib, sys, time; from launcher.local import LocalPlatform\n"
        f"p = LocalPlatform(pathlib.Path({str(ground.state)!r}), 'http://127.0.0.1:9', {MASTER!r}, "
        f"pathlib.Path({str(PLAYBOOKS)!r}))\n"
        f"p.launch({doc!r}); time.sleep(600)"
    )
    victim = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)})
    platform = ground.platform()
    try:
        eventually(lambda: running(str(platform.folders(doc).launch)))
    finally:
        victim.send_signal(signal.SIGKILL)
        victim.wait()
    shim = launched(platform, doc)
    platform.stop_all(30)
    assert running(str(platform.folders(doc).launch)) == []
    assert shims_of(platform.folders(doc).launch) == [shim]


def test_a_folder_name_is_never_read_as_a_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "{{ lookup('pipe', 'touch canary') }} %s"
    folder.mkdir()
    write_play(tmp_path, "show.yml", "show", "{{ python }}", "-c", "import sys; sys.exit(sys.argv[1])", "{{ folder }}")
    monkeypatch.setenv("MONGODB_URI", CANARY)
    with pytest.raises(Transient) as failure:
        playbook.run(tmp_path / "show.yml", folder, {"python": sys.executable, "folder": str(folder)}, 30)
    assert str(failure.value) == f"task 'show' failed: {folder}"
    assert not list(tmp_path.rglob("canary"))
    kept = [file for file in (folder / "ansible-show").rglob("*") if file.is_file()]
    assert kept  # for whoever looks into the failure
    assert not [file for file in kept if CANARY in file.read_text(encoding="utf-8", errors="replace")]


def test_a_playbook_that_cannot_run_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "broken.yml").write_text("- hosts: [\n  foo")
    with pytest.raises(Fatal, match="YAML"):
        playbook.run(tmp_path / "broken.yml", tmp_path, {}, 30)
    with pytest.raises(Fatal, match=r"^there is no playbook "):
        playbook.run(tmp_path / "none.yml", tmp_path, {}, 30)


def test_a_missing_ansible_is_said_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ansible" else found(name))
    with pytest.raises(Fatal, match=r"\[launch\]"):
        playbook.run(PLAYBOOKS / "launch_local.yml", tmp_path, {}, 30)


@pytest.mark.parametrize("name", ["$HOME", "{{ x }}", "{% x %}", "a\nb"])
def test_a_state_folder_that_ansible_would_misread_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Rejected, match=r"choose one without .*\.$"):
        LocalPlatform(tmp_path / name, "http://127.0.0.1:9", MASTER, PLAYBOOKS)


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


def shims_of(folder: Path) -> list[int]:
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words and any(word.endswith(b"shim.py") for word in words):
            found.append(int(cmdline.parent.name))
    return found
