"""Launches on this machine: the real command, the real shim, real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import shim_command
from launcher.launch_queue import AT_ONCE
from launcher.local import LocalPlatform
from launcher.local_spec import LocalSettings
from sidecar.protocol import launch_key
from sidecar.resources.limits import ControlGroup
from tests.patience import eventually, patient

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "sidecar" / "shim.py"
MASTER = b"master key of the tests"
CANARY = "canary-5b1c"
TRAINER = "import os, time; print('env', dict(os.environ), flush=True); time.sleep(600)"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def uid_of(job_id: str) -> str:
    """Return another one in each process of the session: a launch of its own in another folder holds up a launch."""
    return f"uid of {job_id} {os.getpid()}"


def doc_of(job_id: str = "job a", **more: Any) -> dict[str, Any]:
    command = [sys.executable, "-c", TRAINER]
    return {"_id": job_id, "job_id": job_id, "uid": uid_of(job_id), "launch": 1, "command": command, **more}


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


class Ground:
    """Platforms over one state folder; whatever they launched is ended afterwards."""

    def __init__(self, state: Path) -> None:
        self.state, self.made = state, []

    def platform(self, **settings: Any) -> LocalPlatform:
        chosen = LocalSettings(**{"grace_s": 2.0, "kill_s": 1.0, **settings})
        self.made.append(LocalPlatform(self.state, "http://127.0.0.1:9", MASTER, chosen))
        return self.made[-1]

    def clear(self) -> None:
        for platform in self.made:
            platform.stop_all(10)
        for pid in self.state.glob("jobs/*/shim.pid"):
            folder = pid.parent
            command = [sys.executable, SHIM, "--folder", folder, "--end"]
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
    assert key.read_bytes() == launch_key(MASTER, uid_of("job a"), 1)
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
    shim = launched(platform, doc)
    assert CANARY.encode() not in Path(f"/proc/{shim}/environ").read_bytes()
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


def test_a_code_folder_without_its_full_path_is_said_so(ground: Ground) -> None:
    platform = ground.platform()
    doc = doc_of(code="no/such/folder")
    platform.launch(doc)
    sentence = eventually(lambda: platform.failure(doc))
    assert sentence == "its `code` must be the full path of a folder on this machine, not no/such/folder"
    assert not (platform.folders(doc).launch / "operator.token").exists()
    assert platform.gone(doc)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Let launches start this script in place of the shim."""

    def write(code: str) -> Path:
        script = tmp_path / "stand_in.py"
        script.write_text(code)
        monkeypatch.setattr(shim_command, "SHIM", script)
        return script

    return write


HANGS = """
import subprocess, sys, time
subprocess.Popen(["/bin/sh", "-c", "sleep 517.25; exit", *sys.argv])
time.sleep(517.25)
"""


def test_a_command_that_fails_reaches_the_user_as_one_sentence(ground: Ground, stand_in: Callable[[str], Path]) -> None:
    stand_in("import sys; sys.exit('the disk is full')")
    platform = ground.platform()
    doc = doc_of()
    platform.launch(doc)
    sentence = eventually(lambda: platform.failure(doc))
    assert sentence == "its shim did not start: the disk is full"
    assert platform.gone(doc)
    platform.launch(doc)  # it has been heard: once more
    assert platform.failure(doc) is None
    assert eventually(lambda: platform.failure(doc)) == sentence


def test_a_command_that_is_killed_is_said_so(ground: Ground, stand_in: Callable[[str], Path]) -> None:
    stand_in("import os; os.kill(os.getpid(), 9)")
    platform = ground.platform()
    doc = doc_of()
    platform.launch(doc)
    assert eventually(lambda: platform.failure(doc)) == "its shim did not start: the command ended with -9"


def test_a_command_that_cannot_begin_is_said_so(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_command.sys, "executable", "/no/such/python")
    platform = ground.platform()
    doc = doc_of()
    platform.launch(doc)
    assert eventually(lambda: platform.failure(doc)) == "its shim did not start: No such file or directory"


@pytest.mark.parametrize("code", [HANGS, "while True: print('x' * 1000)"], ids=["hangs", "floods its output"])
def test_a_command_that_does_not_end_is_stopped_and_leaves_no_process(
    ground: Ground, stand_in: Callable[[str], Path], code: str
) -> None:
    stand_in(code)
    platform = ground.platform(launch_timeout_s=1.0)
    doc = doc_of()
    platform.launch(doc)
    assert eventually(lambda: platform.failure(doc)) == "its shim did not start within 1 s"
    assert not processes_of(platform.folders(doc).launch)


def test_who_holds_the_output_of_a_command_that_has_ended_holds_up_nobody(
    ground: Ground, stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    stand_in(
        "import subprocess, sys\n"
        "child = subprocess.Popen(['/bin/sleep', '600'], start_new_session=True)\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "sys.exit(3)"  # without a word: all that could be read is the child's
    )
    platform = ground.platform()
    doc = doc_of()
    platform.launch(doc)
    try:
        assert eventually(lambda: platform.failure(doc)) == "its shim did not start: the command ended with 3"
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_removing_does_not_wait_for_a_launch_that_hangs(ground: Ground, stand_in: Callable[[str], Path]) -> None:
    stand_in(HANGS)
    platform = ground.platform()
    doc = doc_of()
    platform.launch(doc)
    eventually(lambda: processes_of(platform.folders(doc).launch))
    assert not platform.gone(doc)
    platform.remove(doc)
    eventually(lambda: platform.gone(doc))
    assert not processes_of(platform.folders(doc).launch)


def test_closing_waits_for_commands_only_so_long(ground: Ground, stand_in: Callable[[str], Path]) -> None:
    stand_in(HANGS)
    platform = ground.platform()
    doc = doc_of()
    platform.launch(doc)
    eventually(lambda: processes_of(platform.folders(doc).launch))
    platform.stop_all(0.1)
    assert not processes_of(platform.folders(doc).launch)


LATE = """
import os, sys, time
while not os.path.exists({go!r}):
    time.sleep(0.01)
os.execv(sys.executable, [sys.executable, "-I", "-S", {shim!r}, *sys.argv[1:]])
"""


def test_removals_that_have_not_reached_their_shims_when_the_launcher_ends_are_carried_out(
    ground: Ground, stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    """Their commands are slow, as on a full machine, and some still wait for their turn."""
    go = tmp_path / "go"
    stand_in(LATE.format(go=str(go), shim=str(SHIM)))
    go.touch()
    platform = ground.platform()
    docs = [doc_of(f"job {number}") for number in range(AT_ONCE + 1)]
    shims = [launched(platform, doc) for doc in docs]
    go.unlink()
    for doc in docs:
        platform.remove(doc)
    platform.stop_all(0.1)
    go.touch()
    eventually(lambda: not [shim for shim in shims if alive(shim)])


KILLED = """
import sys, time
from pathlib import Path
from launcher import shim_command
from launcher.local import LocalPlatform
shim_command.SHIM = Path({late!r})
platform = LocalPlatform(Path({state!r}), "http://127.0.0.1:9", {master!r})
platform.launch({doc!r})
time.sleep(600)
"""


class Orphan:
    """The command of a coordinator that was killed meanwhile. It goes on once `go` is there."""

    def __init__(self, ground: Ground, folder: Path, doc: dict[str, Any]) -> None:
        self.platform = ground.platform()
        self.launch = self.platform.folders(doc).launch
        self.go = folder / "go"
        late = folder / "late.py"
        late.write_text(LATE.format(go=str(self.go), shim=str(SHIM)))
        script = KILLED.format(late=str(late), state=str(ground.state), master=MASTER, doc=doc)
        victim = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)})
        try:
            (self.pid,) = eventually(lambda: processes_of(self.launch))
        finally:
            victim.kill()
            victim.wait()

    def goes_on(self) -> None:
        assert alive(self.pid)
        self.go.touch()
        eventually(lambda: not alive(self.pid))


def test_a_coordinator_killed_while_its_command_runs_leads_to_one_launch(ground: Ground, tmp_path: Path) -> None:
    doc = doc_of()
    orphan = Orphan(ground, tmp_path, doc)
    shim = launched(orphan.platform, doc)
    orphan.goes_on()
    assert shims_of(orphan.launch) == [shim]


def test_the_command_of_a_killed_coordinator_starts_nothing_once_its_launch_is_removed(
    ground: Ground, tmp_path: Path
) -> None:
    doc = doc_of()
    orphan = Orphan(ground, tmp_path, doc)
    orphan.platform.remove(doc)
    eventually(lambda: orphan.platform.gone(doc))
    orphan.goes_on()
    assert processes_of(orphan.launch) == []
    assert orphan.platform.gone(doc)


def test_a_shim_that_gets_its_lock_only_after_its_launch_was_removed_ends(
    ground: Ground, stand_in: Callable[[str], Path]
) -> None:
    stand_in("raise SystemExit('only the files are written')")
    platform = ground.platform()
    doc = doc_of()
    platform.launch(doc)
    eventually(lambda: platform.failure(doc))
    launch = platform.folders(doc).launch
    with (launch / "shim.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-I", "-S", SHIM, "--folder", launch, "--detach"]
        late = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        eventually(lambda: any(file.readlink() == launch / "shim.lock" for file in open_files(late.pid)))
        (launch / "launch.json").unlink()
    _, said = late.communicate(timeout=patient(30))
    assert late.returncode == 1 and "the launch was removed before its shim had the lock" in said
    assert processes_of(launch) == []


@pytest.mark.parametrize("name", ["$HOME", "{{ x }}", "{% x %}", "a\nb"])
def test_a_state_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    ground = Ground(tmp_path / name)
    doc = doc_of()
    platform = ground.platform()
    try:
        shim = launched(platform, doc)
        platform.remove(doc)
        eventually(lambda: platform.gone(doc))
        assert not alive(shim)
    finally:
        ground.clear()


def open_files(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/fd").iterdir())


def processes_of(launch: Path) -> list[int]:
    """Each process that names the folder of a launch in its arguments."""
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(launch).encode() in cmdline.read_bytes().split(b"\0") and alive(int(cmdline.parent.name)):
                found.append(int(cmdline.parent.name))
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
