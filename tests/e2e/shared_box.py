"""A machine that Unix users share: accounts made for the test, and a `reshape up --shared` of root for them.

Promises: users, groups, processes and files of it are gone when `shared_box` ends. What a user does is done by a
process of that user. Not a test.
"""

from __future__ import annotations

import contextlib
import grp
import http.client
import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from coordinator.adapters.accounts import ADMINS
from tests.e2e.up import ENDED, ROOT, SHORT, wait_for
from tests.patience import patient

NOBODY = 65534
STRANGER = 54_321  # a uid without an account
SAYS_WHO = """
import grp, os, sys, time
print("ids", os.getresuid(), os.getresgid(), sorted(os.getgroups()), flush=True)
print("place", os.getcwd(), os.environ["HOME"], os.environ["USER"], os.environ["LOGNAME"], flush=True)
with open(os.path.join(os.environ["RESHAPE_CHECKPOINTS"], "kept"), "w") as file:
    file.write("mine")
for step in range(int(sys.argv[1])):
    print(f"step={step + 1} total={sys.argv[1]}", flush=True)
    time.sleep(0.1)
"""
CALL = """
import http.client, json, socket, sys
where, method, path, body, headers = json.loads(sys.argv[1])
link = http.client.HTTPConnection("localhost", timeout=30)
if isinstance(where, str):
    link.sock = socket.socket(socket.AF_UNIX)
    link.sock.connect(where)
else:
    link.sock = socket.create_connection(("127.0.0.1", where))
try:
    link.request(method, path, body, headers)
except BrokenPipeError:  # it was refused before its body had been sent
    pass
answer = link.getresponse()
print(json.dumps([answer.status, dict(answer.getheaders()), answer.read().decode("utf-8", "replace")]))
"""


@dataclass(frozen=True)
class User:
    """Somebody with a uid, mostly with an account."""

    name: str
    uid: int
    gid: int
    groups: Sequence[int] = ()
    home: str = "/"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def doc(self) -> Any:
        return json.loads(self.text)


@dataclass
class Box:
    """The machine. `process`: its `reshape up --shared`."""

    folder: Path
    python: str
    users: dict[str, User] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def socket(self) -> Path:
        return self.folder / "run" / "reshape.sock"

    @property
    def port(self) -> int:
        return int(json.loads((self.state / "up.json").read_text())["url"].rpartition(":")[2])

    @property
    def log(self) -> str:
        return (self.folder / "up.log").read_text() if (self.folder / "up.log").exists() else ""

    def environment(self) -> dict[str, str]:
        return {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "RESHAPE_SOCKET": str(self.socket), "LC_ALL": "C.UTF-8"}

    def start(self) -> None:
        command = [self.python, "-P", "-m", "reshape", "--state", str(self.state), "up", "--shared"]
        given = SHORT | self.environment() | self.settings | {"RESHAPE_COOLDOWN_FACTOR": "0"}
        with (self.folder / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--gpus", "4xV100"], stdout=log, stderr=log, env=given, start_new_session=True
            )
        wait_for(lambda: self.process and (self.process.poll() is not None or self._answers()), what="it answers")
        assert self.process.poll() is None, self.log[-3000:]

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AssertionError, http.client.HTTPException):
            written = json.loads((self.state / "up.json").read_text())
            return bool(self.process) and written["pid"] == self.process.pid and self.root("GET", "/healthz").doc["ok"]
        return False

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(patient(90))

    def run(self, who: User, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a program as this user, in the user's own folder and environment."""
        own = {"HOME": who.home, "USER": who.name, "LOGNAME": who.name}
        return subprocess.run(
            words, env=self.environment() | own, user=who.uid, group=who.gid, extra_groups=list(who.groups),
            cwd=who.home, capture_output=True, text=True, check=False, timeout=patient(60), input=text,
        )  # fmt: skip

    def reshape(self, who: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command `reshape` as this user, without any setting that names a coordinator."""
        return self.run(self.users[who], self.python, "-P", "-m", "reshape", *arguments)

    def call(
        self, who: User, method: str, path: str, body: Any = None, where: str | int | None = None, **headers: str
    ) -> Reply:
        """One request of a process of this user, by the Unix socket, or by TCP to the port `where`."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        given |= {"Content-Type": "application/json"} if isinstance(body, dict) else {}
        asked = json.dumps([str(self.socket) if where is None else where, method, path, text, given])
        done = self.run(who, self.python, "-I", "-c", CALL, asked)
        assert done.returncode == 0, done.stderr
        return Reply(*json.loads(done.stdout))

    def root(self, method: str, path: str, body: Any = None) -> Reply:
        return self.call(User("root", 0, 0), method, path, body)

    def submit(self, who: str, job_id: str, steps: int = 600, **more: Any) -> Reply:
        """Submit a training that says who it is."""
        script = self.folder / "says_who.py"
        command = [self.python, str(script), str(steps)]
        doc = {"job_id": job_id, "command": command, "optional_num_gpus": [1], "elastic": True, **more}
        return self.call(self.users[who], "POST", "/v1/jobs", doc)

    def cancel(self, who: str, *job_ids: str) -> None:
        """Cancel jobs of this user, and return once nothing is left to do for them."""
        for job_id in job_ids:
            assert self.call(self.users[who], "DELETE", f"/v1/jobs/{job_id}").status == 202
        for job_id in job_ids:
            wait_for(lambda job_id=job_id: self.job(job_id)["closed"], what=f"{job_id} is closed")

    def job(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.root("GET", f"/v1/jobs/{job_id}").doc
        return found

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job as root sees it, once it is in one of these states."""

        def there() -> dict[str, Any] | None:
            job = self.job(job_id)
            assert job["state"] in states or job["state"] not in ENDED, f"{job['message']}: {self.log[-3000:]}"
            return job if job["state"] in states else None

        return wait_for(there, what=f"job {job_id} is {' or '.join(states)}: {self.log[-2000:]}")

    def until_said(self, who: str, job_id: str, word: str) -> str:
        """The output of a job as this user reads it, once a word is in it."""

        def said() -> str:
            text = self.call(self.users[who], "GET", f"/v1/jobs/{job_id}/logs").text
            return text if word in text else ""

        return wait_for(said, what=f"{job_id} says {word}")

    def folder_of(self, job_id: str, launch: bool = False) -> Path:
        """The folder of a job, or of its only launch."""
        found = [path for path in (self.state / "jobs").glob(f"{job_id}-*") if path.name.endswith("-l1") == launch]
        assert len(found) == 1, found
        return found[0]

    def clear(self) -> None:
        with contextlib.suppress(Exception):  # it may have ended, or never begun
            for job in self.root("GET", "/v1/jobs").doc["jobs"]:
                self.root("DELETE", f"/v1/jobs/{job['job_id']}")
            wait_for(lambda: not self.root("GET", "/v1/jobs").doc["jobs"], 30, "all jobs are cancelled")
        self.stop()
        sys.stdout.write(self.log[-6000:])  # pytest shows it for a test that failed


def interpreter_for_all(folder: Path) -> str:
    """A Python with our packages that each user may run: ours, else one made of the system's. Skips without one."""
    if _runs_as_nobody(sys.executable):
        return sys.executable
    made = folder / "python"
    ours = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    system = "/usr/bin/python3"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = subprocess.run([system, "-m", "venv", "--without-pip", made], capture_output=True, check=False)
    packages = made / "lib" / f"python{version}" / "site-packages"
    if done.returncode != 0 or not packages.is_dir():
        pytest.skip(f"other users cannot run {sys.executable}, and {system} is no Python {version} that makes a venv")
    (packages / "ours.pth").write_text(f"{ours}\n")
    if not _runs_as_nobody(str(made / "bin" / "python")):
        pytest.skip(f"other users of this machine cannot read {ours}")
    return str(made / "bin" / "python")


def _runs_as_nobody(python: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-P", "-c", "import sidecar.service"], env={"PYTHONPATH": str(ROOT)}, user=NOBODY, group=NOBODY,
            extra_groups=[], cwd="/", capture_output=True, check=False,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def shared_box(**settings: str) -> Iterator[Box]:
    """A box with the users ann, ben and eve, of whom none administers it. Skips where this is not root."""
    if os.geteuid() != 0:
        pytest.skip("only root can make users and run jobs as them")
    if not (shutil.which("useradd") and shutil.which("userdel")):
        pytest.skip("useradd and userdel make the users, and are not installed here")
    folder = Path(tempfile.mkdtemp(prefix="reshape-shared-"))
    folder.chmod(0o711)
    with contextlib.ExitStack() as left:
        left.callback(shutil.rmtree, folder, ignore_errors=True)
        (folder / "says_who.py").write_text(SAYS_WHO)
        box = Box(folder, interpreter_for_all(folder), settings=settings)
        for name in ("ann", "ben", "eve"):
            box.users[name] = left.enter_context(_account(f"rt{name}{secrets.token_hex(3)}", folder / name))
        left.callback(box.clear)
        box.start()
        yield box


@contextlib.contextmanager
def _account(name: str, home: Path) -> Iterator[User]:
    subprocess.run(["useradd", "--create-home", "--home-dir", home, name], check=True, capture_output=True)
    try:
        made = pwd.getpwnam(name)
        yield User(name, made.pw_uid, made.pw_gid, os.getgrouplist(name, made.pw_gid), str(home))
    finally:
        subprocess.run(["userdel", "--force", name], check=False, capture_output=True)


@contextlib.contextmanager
def administrator(user: User) -> Iterator[None]:
    """Let a user administer the machine meanwhile."""
    with contextlib.suppress(KeyError):
        grp.getgrnam(ADMINS)
        pytest.skip(f"this machine has a group {ADMINS}, which is left alone")
    subprocess.run(["groupadd", ADMINS], check=True, capture_output=True)
    try:
        subprocess.run(["usermod", "--append", "--groups", ADMINS, user.name], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["groupdel", ADMINS], check=False, capture_output=True)
