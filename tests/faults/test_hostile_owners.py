"""What a user of a shared machine puts into folders of an own job leads root nowhere. With real users' ids, as root."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from coordinator.http import peers
from launcher import acting_as, as_owner, shim_command
from launcher.acting_as import acting_as as act
from launcher.ended_folders import remove_ended
from launcher.local import LocalPlatform, unlocked
from launcher.local_spec import LocalSettings
from reshape.services import shared_state
from sidecar import leftovers
from tests.patience import eventually, patient

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as other users")
OWNER = pwd.getpwnam("nobody")
OTHER = 65_533
SLEEPS = "import sys, time; print('up', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def no_groups() -> Iterator[None]:
    """As `reshape up --shared` gives up the groups of root."""
    before = os.getgroups()
    os.setgroups([])
    yield
    os.setgroups(before)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that all users reach, as pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="reshape-owners-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture
def secret(place: Path) -> Path:
    path = place / "secret"
    path.write_text("of root")
    path.chmod(0o600)
    return path


def own_folder(place: Path, uid: int = OWNER.pw_uid) -> Path:
    folder = place / f"of-{uid}"
    folder.mkdir(mode=0o700)
    os.chown(folder, uid, OWNER.pw_gid)
    return folder


def everybodys_python() -> str:
    """A Python that other users may run; the test is skipped without one."""
    for python in (sys.executable, "/usr/bin/python3"):
        with suppress(OSError):
            if subprocess.run([python, "-c", ""], user=OTHER, extra_groups=[], check=False).returncode == 0:
                return python
    pytest.skip(f"other users cannot run {sys.executable}, and there is no /usr/bin/python3")


# the rights of one thread


def test_acting_as_a_user_opens_what_that_user_may_and_nothing_else(place: Path, secret: Path) -> None:
    folder = own_folder(place)
    (folder / "link").symlink_to(secret)
    with act(OWNER.pw_uid):
        with pytest.raises(PermissionError):
            (folder / "link").read_text()
        with pytest.raises(PermissionError):
            (folder / "link").write_text("overwritten")
        with pytest.raises(PermissionError):
            (place / "made").write_text("in a folder of root")
        (folder / "made").write_text("x")
    assert (folder / "made").stat().st_uid == OWNER.pw_uid
    assert secret.read_text() == "of root", "root is root again"


def test_acting_as_a_user_is_refused_with_groups_of_root(place: Path) -> None:
    os.setgroups([0])
    with pytest.raises(PermissionError, match="groups"), act(OWNER.pw_uid):
        pass


def test_a_kernel_that_leaves_the_rights_of_root_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf:
        def setfsuid(self, uid: int) -> int:
            return 0

        def setfsgid(self, gid: int) -> int:
            return 0

    monkeypatch.setattr(acting_as, "LIBC", Deaf())
    with pytest.raises(PermissionError), act(OWNER.pw_uid):
        raise AssertionError("it went on as root")


# becoming a user for good


def as_user(uid: int, code: str, group: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", as_owner.__file__, str(uid), group, "/bin/sh", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(30))


def test_a_program_is_run_with_the_ids_of_its_user_and_without_any_right_of_root() -> None:
    done = as_user(OWNER.pw_uid, "id -u; id -g; umask; grep -E 'Uid|Gid|CapEff|CapPrm' /proc/self/status")
    uid, gid, umask, *status = done.stdout.split("\n")
    assert (int(uid), int(gid), int(umask, 8)) == (OWNER.pw_uid, OWNER.pw_gid, 0o077), done.stderr
    ids = dict(line.split(":\t") for line in status if line)
    assert set(ids["Uid"].split()) == {uid} and set(ids["Gid"].split()) == {gid}
    assert int(ids["CapEff"], 16) == int(ids["CapPrm"], 16) == 0


def test_it_inherits_no_file_that_root_had_open(secret: Path) -> None:
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)
        command = [sys.executable, "-I", "-S", as_owner.__file__, str(OWNER.pw_uid), "", "/bin/sh", "-c"]
        done = subprocess.run(
            [*command, f"cat <&{file.fileno()}"], capture_output=True, text=True, check=False,
            pass_fds=[file.fileno()], timeout=patient(30),
        )  # fmt: skip
    assert "of root" not in done.stdout and done.returncode != 0


@pytest.mark.parametrize(("uid", "group", "why"), [(54_321, "", "no account"), (OWNER.pw_uid, "/no/such", "No such")])
def test_what_cannot_be_done_runs_nothing(uid: int, group: str, why: str) -> None:
    done = as_user(uid, "echo it ran", group)
    assert (done.returncode, done.stdout) == (as_owner.FAILED, "")
    assert why in done.stderr


def test_half_a_change_of_user_is_noticed() -> None:
    with pytest.raises(PermissionError):
        as_owner.check(OWNER.pw_uid, OWNER.pw_gid)  # we are root still
    uid, gid = OWNER.pw_uid, OWNER.pw_gid
    for half in (f"os.setresgid({gid}, {gid}, {gid}); os.setresuid({uid}, {uid}, 0)", f"os.setresuid(*[{uid}] * 3)"):
        package = str(Path(as_owner.__file__).parent)
        code = f"import os, sys; sys.path.insert(0, {package!r}); import as_owner; {half}; as_owner.check({uid}, {gid})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr, half


# the folders of a launch


@pytest.fixture(autouse=True)
def no_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are rendered, and have no shim to start."""
    monkeypatch.setattr(shim_command, "SHIM", Path("/no/shim.py"))


def platform_of(state: Path) -> LocalPlatform:
    return LocalPlatform(state, "http://127.0.0.1:1", b"key", LocalSettings(shared=True))


def doc_of(**more: Any) -> dict[str, Any]:
    # Another uid in each process of the session: a launch has a control group by its name.
    doc = {"_id": "a", "job_id": "a", "uid": f"u{os.getpid()}", "launch": 1, "command": ["true"]}
    return doc | {"optional_num_gpus": [1], "owner": OWNER.pw_name, "owner_uid": OWNER.pw_uid} | more


def rendered(platform: LocalPlatform, doc: dict[str, Any]) -> str:
    """Why the launch failed: at the earliest for want of a shim, once all is written."""
    platform.launch(doc)
    return eventually(lambda: platform.failure(doc), "it is rendered")


def test_links_in_the_folders_of_a_launch_change_no_file_of_root(place: Path, secret: Path) -> None:
    platform, doc = platform_of(place / "state"), doc_of()
    try:
        assert "its shim did not start" in rendered(platform, doc)
        folders = platform.folders(doc)
        assert {folders.job.stat().st_uid, folders.launch.stat().st_uid} == {OWNER.pw_uid}
        with act(OWNER.pw_uid):
            folders.checkpoints.rmdir()
            folders.checkpoints.symlink_to(place)
            for name in ("launch.json", "launch.json.new", "launch.key.new", "shim.lock", "shim.sock", "gpu.group"):
                (folders.launch / name).unlink(missing_ok=True)
                (folders.launch / name).symlink_to(secret)
        assert "its shim did not start" in rendered(platform, doc)
        assert secret.read_text() == "of root"
        platform.remove(doc)
        eventually(lambda: platform.gone(doc), "it is gone")
        assert secret.read_text() == "of root" and secret.stat().st_uid == 0
    finally:
        platform.stop_all(1.0)


def test_by_hand_too_a_command_runs_as_the_owner_of_its_launch(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    platform = platform_of(place / "state")
    doc = doc_of()
    try:
        rendered(platform, doc)
        script = place / "says_who.py"
        script.write_text("import os, sys; sys.exit(f'as user {os.getuid()}')")
        script.chmod(0o644)
        monkeypatch.setattr(shim_command, "SHIM", script)
        monkeypatch.setattr(shim_command.sys, "executable", everybodys_python())
        for verb, does in shim_command.DOES.items():
            monkeypatch.setattr(shim_command.sys, "argv", ["shim_command", verb, str(platform.folders(doc).launch)])
            assert shim_command.main() == 1
            assert capfd.readouterr().err == f"its shim did not {does}: as user {OWNER.pw_uid}\n"
    finally:
        platform.remove(doc)
        eventually(lambda: platform.gone(doc), "it is gone")
        platform.stop_all(1.0)


def test_who_closes_the_folder_of_a_launch_does_not_keep_it_from_being_removed(place: Path) -> None:
    platform, doc = platform_of(place / "state"), doc_of()
    try:
        rendered(platform, doc)
        launch = platform.folders(doc).launch
        with act(OWNER.pw_uid):
            (launch / "launch.json").unlink()
            (launch / "launch.json").mkdir()
            launch.chmod(0)
        platform.remove(doc)
        eventually(lambda: platform.gone(doc), "it is gone")
        assert not list((place / "state" / "launches").iterdir())
    finally:
        platform.stop_all(1.0)


def test_a_job_runs_only_as_an_account_that_is_still_its_owners(place: Path) -> None:
    platform = platform_of(place / "state")
    try:
        for launch, wrong in enumerate(({"owner_uid": None}, {"owner": "mallory"}, {"owner_uid": 54_321}), 1):
            said = rendered(platform, doc_of(**wrong, launch=launch))
            assert "account" in said or "nobody has proved" in said, said
        assert not list((place / "state" / "jobs").iterdir()), "nothing was made for them"
    finally:
        platform.stop_all(1.0)


def test_a_job_of_a_shared_machine_runs_under_no_other_service(place: Path) -> None:
    platform = LocalPlatform(place / "state", "http://127.0.0.1:1", b"key", LocalSettings())
    try:
        assert "--shared" in rendered(platform, doc_of())
    finally:
        platform.stop_all(1.0)


def test_what_lies_in_place_of_a_lock_holds_nothing(place: Path, secret: Path) -> None:
    folder, uid = own_folder(place), OWNER.pw_uid
    lock = folder / "shim.lock"
    with act(uid):
        lock.symlink_to(secret)
    assert unlocked(lock, uid)
    with act(uid):
        lock.unlink()
        os.mkfifo(lock)
    assert unlocked(lock, uid), "a pipe is not waited for"
    with act(uid):
        lock.unlink()
        lock.write_text("")
    held = subprocess.Popen(
        [everybodys_python(), "-c", f"import fcntl; f = open({str(lock)!r}); fcntl.flock(f, 2); {SLEEPS}"],
        user=uid, extra_groups=[], stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert held.stdout is not None and held.stdout.readline() == b"up\n"
        assert not unlocked(lock, uid)
    finally:
        held.kill()
        held.communicate()


def test_what_is_left_of_ended_jobs_is_removed_by_what_root_knows_alone(place: Path, secret: Path) -> None:
    platform, doc = platform_of(place / "state"), doc_of()
    ended = doc | {"state": "completed", "finish_ts": 1_000.0, "closed": True}
    try:
        rendered(platform, doc)
        platform.remove(doc)
        eventually(lambda: platform.gone(doc), "its control group is gone, too")
        folders = platform.folders(doc)
        with act(OWNER.pw_uid):
            (folders.launch / "away").symlink_to(place, target_is_directory=True)
            (folders.job / "output.log").symlink_to(secret)
            (folders.job / "job.json").write_text(json.dumps(ended | {"uid": "forged", "owner_uid": 0}))
        jobs = place / "state" / "jobs"
        assert remove_ended(jobs, (), 2_000.0) == 0, "what its owner writes there is not believed"
        platform.keep(ended)
        (copy,) = (place / "state" / "ended").iterdir()
        os.utime(copy, (1_000, 1_000))
        assert platform.recall([doc]).records[-1]["owner_uid"] == OWNER.pw_uid
        assert remove_ended(jobs, (), 2_000.0) == 1
        assert not folders.launch.exists() and not (folders.job / "output.log").is_symlink()
        assert secret.read_text() == "of root"
    finally:
        platform.stop_all(1.0)


# processes and connections of others


@pytest.fixture
def pretender(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of another user that bears the marks of a launch."""
    announce = place / "jobs" / "a-l1" / leftovers.ANNOUNCE
    process = subprocess.Popen(
        ["/bin/sleep", "600"], env={"RESHAPE_ANNOUNCE": str(announce)}, user=OTHER, group=OTHER, extra_groups=[]
    )
    yield process
    process.kill()
    process.wait()


def test_marks_on_a_process_of_another_user_count_for_nothing(place: Path, pretender: subprocess.Popen[bytes]) -> None:
    launch, elsewhere = str(place / "jobs" / "a-l1"), str(place / "copy" / "a-l1")
    eventually(lambda: list(leftovers.left_in(launch)), "it bears the marks")
    assert leftovers.end_all(launch, OWNER.pw_uid) == []
    assert leftovers.other_folder(elsewhere) and not leftovers.other_folder(elsewhere, OWNER.pw_uid)
    assert pretender.poll() is None
    assert leftovers.end_all(launch, OTHER) == [pretender.pid]
    assert pretender.wait(patient(10)) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "who"),
    [
        (0o755, 0, 0, ""),
        (0o755, OWNER.pw_uid, 0, f"User {OWNER.pw_name} "),
        (0o755, OTHER, 0, f"User {OTHER} "),
        (0o775, 0, 0, ""),
        (0o775, 0, OTHER, f"Group {OTHER} "),
        (0o777, 0, 0, "Everybody "),
        (0o1777, 0, 0, ""),  # as /tmp: nobody removes what is another's
    ],
)
def test_who_could_change_what_root_runs_is_named(place: Path, mode: int, uid: int, gid: int, who: str) -> None:
    (place / "lib").mkdir()
    (place / "lib" / "code.py").touch(0o644)
    os.chown(place / "lib", uid, gid)
    (place / "lib").chmod(mode)
    told = shared_state.problem_of_code([place / "lib" / "code.py"])
    can = "from which this service runs code as root: install volcano-reshape where only root can write"
    assert told.startswith(f"{who}can change {place / 'lib'}, {can}") if who else not told


def test_the_kernel_tells_whose_a_connection_is(place: Path) -> None:
    code = (
        "import socket, sys, time; one = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
        "sys.stdin.readline(); one.shutdown(1) if sys.argv[2] == 'half' else one.close(); time.sleep(600)"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for end in ("half", "all"):
            other = subprocess.Popen(
                [everybodys_python(), "-c", code, str(listener.getsockname()[1]), end], user=OTHER, group=OTHER,
                extra_groups=[], stdin=subprocess.PIPE,
            )  # fmt: skip
            try:
                connection, _ = listener.accept()
                with connection:
                    assert peers.user_of(connection) == OTHER
                    assert other.stdin is not None
                    other.stdin.write(b"\n")
                    other.stdin.flush()
                    eventually(lambda one=connection: peers.user_of(one) is None, "who has closed it is nobody")
            finally:
                other.kill()
                other.wait()
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert peers.user_of(ours) == 0
