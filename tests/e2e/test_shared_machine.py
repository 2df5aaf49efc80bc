"""Three Unix users share one machine under a real `reshape up --shared`: each has own jobs, run as that user.

The users are made for it, the sockets and processes are real. Needs root, as the service does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.device_filter import Unable, own_group
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE, GpuReading, Heartbeat, ShimStatus, sign
from tests.e2e.shared_box import NOBODY, STRANGER, Box, Reply, User, administrator, shared_box
from tests.e2e.up import wait_for

NAMES = ("ann", "ben", "eve")
SECRET = "the secret of root"


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    with shared_box() as found:
        yield found


@pytest.fixture
def secret(box: Box) -> Iterator[Path]:
    """A file that only root reads."""
    path = box.folder / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    yield path
    path.unlink(missing_ok=True)


def others(name: str) -> list[str]:
    return [other for other in NAMES if other != name]


def ids_of(pid: int) -> dict[str, list[int]]:
    """The user and group ids of a process."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: [*map(int, lines[name].split())] for name in ("Uid", "Gid", "Groups")} | {
        "caps": [int(lines["CapEff"], 16)]
    }


def lives(pid: int) -> bool:
    """True unless it has ended, also where nobody has taken note of its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# the uid


def test_each_training_has_the_ids_the_environment_and_the_folder_of_its_owner(box: Box) -> None:
    for name in NAMES:
        assert box.submit(name, f"who-{name}").status == 201
    for name in NAMES:
        user, job = box.users[name], box.until(f"who-{name}", "running")
        said = box.until_said(name, f"who-{name}", "step=2")
        for process in ("trainer_pid", "shim_pid", "sidecar_pid"):
            ids = ids_of(job[process])
            assert (ids["Uid"], ids["Gid"], ids["caps"]) == ([user.uid] * 4, [user.gid] * 4, [0]), process
            assert sorted(ids["Groups"]) == sorted(user.groups)
        assert f"ids {(user.uid,) * 3} {(user.gid,) * 3} {sorted(user.groups)}" in said
        assert f"{user.home} {user.name} {user.name}" in said
        for folder in (box.folder_of(f"who-{name}"), box.folder_of(f"who-{name}", launch=True)):
            kept = [folder, *folder.rglob("*")]
            assert {path.lstat().st_uid for path in kept} == {user.uid}
            assert not any(path.lstat().st_mode & 0o077 for path in kept if not path.is_symlink()), kept
    for name in NAMES:
        box.cancel(name, f"who-{name}")


def test_nobody_changes_or_reads_the_job_of_another_user(box: Box) -> None:
    assert box.submit("ann", "own").status == 201
    box.until("own", "running")
    changes = (
        ("DELETE", "/v1/jobs/own", None),
        ("POST", "/v1/jobs/own/suspend", {}),
        ("POST", "/v1/jobs/own/resume", {}),
        ("POST", "/v1/jobs/own/reshape", {"gpus": 1}),
        ("POST", "/v1/jobs/own/remove", {}),
        ("POST", "/v1/jobs/own/rerun", {}),
        ("GET", "/v1/jobs/own/logs", None),
    )
    for name in others("ann"):
        for method, path, body in changes:
            assert box.call(box.users[name], method, path, body).status == 403, (name, method, path)
        seen = box.call(box.users[name], "GET", "/v1/jobs/own").doc
        assert (seen["job_id"], seen["state"], seen["num_gpus"]) == ("own", "running", 1)
        assert seen["owner"] == box.users["ann"].name
        shown = json.dumps([seen, box.call(box.users[name], "GET", "/v1/decisions?job=own").doc])
        assert "says_who" not in shown and "trainer_pid" not in {key for key in seen if seen[key] is not None}
    assert box.until("own", "running")["suspended"] is not True
    assert box.call(box.users["ann"], "GET", "/v1/jobs/own/logs").status == 200
    box.cancel("ann", "own")
    (by,) = {one["by"] for one in box.root("GET", "/v1/decisions?job=own").doc["decisions"] if one["kind"] == "cancel"}
    assert by == box.users["ann"].name


def test_the_command_finds_the_service_and_shows_whose_jobs_there_are(box: Box) -> None:
    done = box.reshape("ann", "submit", "--gpus", "1", "--name", "typed", "--", "sleep", "60")
    assert done.returncode == 0, done.stderr
    assert f"in {box.users['ann'].home}" in done.stdout
    seen = box.reshape("ben", "jobs")
    assert re.search(rf"typed +{box.users['ann'].name} ", seen.stdout), seen.stdout + seen.stderr
    refused = box.reshape("ben", "cancel", "typed")
    assert refused.returncode == 1 and "belongs to another user" in refused.stderr
    assert box.reshape("ann", "cancel", "typed").returncode == 0
    box.until("typed", "cancelled")


def test_the_processes_of_a_cancelled_job_are_gone_and_its_gpus_idle(box: Box) -> None:
    box.submit("eve", "ending")
    pids = [box.until("ending", "running")[pid] for pid in ("trainer_pid", "shim_pid", "sidecar_pid")]
    box.cancel("eve", "ending")
    wait_for(lambda: box.job("ending")["closed"], what="it is closed")
    assert not [pid for pid in pids if lives(pid)]
    assert {gpu["state"] for gpu in box.root("GET", "/v1/gpus").doc["gpus"]} == {"idle"}


def test_a_job_goes_on_when_the_service_is_started_again(box: Box) -> None:
    box.submit("ann", "lasting")
    before = box.until("lasting", "running")["trainer_pid"]
    box.stop()
    assert ids_of(before)["Uid"][0] == box.users["ann"].uid
    box.start()
    wait_for(lambda: box.job("lasting").get("trainer_pid") == before, what="it is heard of again")
    box.cancel("ann", "lasting")


# who calls


def test_a_uid_without_an_account_gets_nothing(box: Box) -> None:
    stranger, nobody = User("ghost", STRANGER, STRANGER), User("nobody", NOBODY, NOBODY)
    assert box.call(nobody, "GET", "/v1/jobs").status == 403, "whom the kernel cannot name"
    for method, path in (("GET", "/v1/jobs"), ("GET", "/v1/gpus"), ("GET", "/v1/events?follow=false")):
        assert box.call(stranger, method, path).status == 403
    doc = {"command": ["true"], "optional_num_gpus": [1], "owner": box.users["ann"].name}
    assert box.call(stranger, "POST", "/v1/jobs", doc).status == 403
    assert box.call(stranger, "POST", "/v1/logins", {}).status == 403
    assert box.call(stranger, "GET", "/v1/jobs", where=box.port).status == 401


def test_the_owner_is_who_calls_whatever_the_request_says(box: Box) -> None:
    ann, eve = box.users["ann"], box.users["eve"]
    assert box.submit("eve", "forged", owner=ann.name).status == 403
    doc = {"job_id": "claimed", "command": ["sleep", "60"], "optional_num_gpus": [1], "owner_uid": ann.uid}
    sent = box.call(eve, "POST", "/v1/jobs", doc, X_Reshape_User=ann.name, X_Forwarded_For="127.0.0.1")
    assert (sent.status, sent.doc["owner"]) == (201, eve.name)
    assert ids_of(box.until("claimed", "running")["trainer_pid"])["Uid"][0] == eve.uid
    assert box.call(ann, "DELETE", "/v1/jobs/claimed").status == 403
    box.cancel("eve", "claimed")


def test_the_name_of_an_ended_job_of_another_user_gives_no_right_to_that_one(box: Box) -> None:
    box.submit("ann", "reused", steps=1)
    box.until("reused", "completed")
    wait_for(lambda: box.job("reused")["closed"], what="it is closed")
    assert box.call(box.users["eve"], "POST", "/v1/jobs/reused/rerun", {}).status == 403
    assert box.submit("eve", "reused").status == 201
    box.until("reused", "running")
    for method, path in (("DELETE", "/v1/jobs/reused"), ("GET", "/v1/jobs/reused/logs")):
        assert box.call(box.users["ann"], method, path).status == 403
    box.cancel("eve", "reused")


def test_what_concerns_all_users_is_for_administrators(box: Box) -> None:
    eve = box.users["eve"]
    node = box.root("GET", "/v1/nodes").doc["nodes"][0]["node"]
    for method, path, body in (
        ("GET", "/v1/snapshot", None),
        ("GET", "/v1/journal", None),
        ("GET", "/v1/profiles/overheads", None),
        ("POST", "/v1/profiles/overheads", {"rows": [{"job_type": "x", "ckpt": 1}]}),
        ("POST", f"/v1/nodes/{node}/drain", {}),
        ("POST", "/v1/slamls", {}),
    ):
        assert box.call(eve, method, path, body).status == 403, path
    for path in ("/v1/wishes", f"/v1/nodes/{node}", "/v1/extender/jobEnqueueable"):
        assert box.call(eve, "POST", path, {}).status == 404, path


def test_members_of_reshape_admin_may_change_all_but_run_no_command_of_others(box: Box) -> None:
    box.submit("ann", "helped")
    box.until("helped", "running")
    with administrator(box.users["ben"]):
        wait_for(lambda: box.call(box.users["ben"], "GET", "/v1/snapshot").status == 200, what="the group is known")
        assert box.call(box.users["ben"], "GET", "/v1/jobs/helped/logs").status == 200
        assert box.call(box.users["ben"], "DELETE", "/v1/jobs/helped").status == 202
        wait_for(lambda: box.job("helped")["closed"], what="it is closed")
        assert box.call(box.users["ben"], "POST", "/v1/jobs/helped/rerun", {}).status == 403
    found = box.root("GET", "/v1/decisions?job=helped").doc["decisions"]
    assert [one["by"] for one in found if one["kind"] == "cancel"] == [box.users["ben"].name]
    events = box.call(User("root", 0, 0), "GET", "/v1/events?after=0&follow=false").text
    assert re.search(rf'"type":"asked","user":"{box.users["ben"].name}","verb":"cancel","about":"helped"', events)
    wait_for(lambda: box.call(box.users["ben"], "GET", "/v1/snapshot").status == 403, what="the group is gone")


# the dashboard and TCP


def log_in(box: Box, name: str) -> str:
    """The cookie of a browser of this user."""
    path = box.call(box.users[name], "POST", "/v1/logins", {}).doc["path"]
    answer = box.call(box.users[name], "GET", path, where=box.port)
    assert answer.status == 200, answer.text
    return answer.headers["Set-Cookie"].partition(";")[0]


def test_a_stolen_cookie_and_a_stolen_link_let_no_other_user_in(box: Box) -> None:
    ann, eve = box.users["ann"], box.users["eve"]
    link = box.call(ann, "POST", "/v1/logins", {}).doc["path"]
    assert box.call(eve, "GET", link, where=box.port).status == 401
    assert box.call(ann, "GET", link, where=box.port).status == 200, "a thief must not use it up"
    cookie = log_in(box, "ann")
    assert box.call(ann, "GET", "/", where=box.port, Cookie=cookie).status == 200
    for path in ("/", "/jobs", "/live?of=/"):
        assert box.call(eve, "GET", path, where=box.port, Cookie=cookie).status == 401
    assert box.call(eve, "GET", "/", Cookie=cookie).status == 401, "nor by the Unix socket"
    forged = re.sub(r"\.\d+\.", f".{eve.uid}.", cookie)
    assert forged != cookie
    assert box.call(eve, "GET", "/", where=box.port, Cookie=forged).status == 401


def test_the_dashboard_changes_own_jobs_and_shows_of_others_their_names(box: Box) -> None:
    box.submit("ann", "pictured")
    box.until("pictured", "running")
    box.until_said("ann", "pictured", "step=2")
    for name, status in (("eve", 403), ("ann", 303)):
        user, cookie = box.users[name], log_in(box, name)
        page = box.call(user, "GET", "/jobs/pictured", where=box.port, Cookie=cookie)
        assert "pictured" in box.call(user, "GET", "/jobs", where=box.port, Cookie=cookie).text
        assert ("step=2" in page.text) is (name == "ann")
        (proof,) = set(re.findall(r'name="csrf" value="(\w+)"', page.text))
        form = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
        asked = box.call(user, "POST", "/jobs/pictured/cancel", f"csrf={proof}", where=box.port, **form)
        assert asked.status == status, asked.text
    box.until("pictured", "cancelled")


def test_a_token_is_its_user_over_tcp_until_it_is_revoked(box: Box) -> None:
    made = json.loads(box.reshape("ann", "-o", "json", "token", "create", "--expires", "1h").stdout)
    bearer = {"Authorization": f"Bearer {made['token']}"}
    assert made["token"] not in "".join(path.read_text() for path in box.state.glob("tokens*"))
    box.submit("ben", "not-anns")
    for status, path in ((200, "/v1/jobs"), (403, "/v1/jobs/not-anns/logs")):
        assert box.call(box.users["eve"], "GET", path, where=box.port, **bearer).status == status
    doc = {"job_id": "by-token", "command": ["true"], "optional_num_gpus": [1]}
    sent = box.call(box.users["eve"], "POST", "/v1/jobs", doc, where=box.port, **bearer)
    assert (sent.status, sent.doc["owner"]) == (201, box.users["ann"].name)
    assert box.call(box.users["eve"], "POST", "/v1/tokens", {"lasts_s": 60}, where=box.port, **bearer).status == 404
    assert made["id"] in box.reshape("ann", "token", "list").stdout
    assert box.reshape("eve", "token", "revoke", made["id"]).returncode == 1
    assert box.reshape("ann", "token", "revoke", made["id"]).returncode == 0
    assert box.call(box.users["ann"], "GET", "/v1/jobs", where=box.port, **bearer).status == 401
    box.cancel("ben", "not-anns")


# hostile owners


def test_links_in_place_of_the_output_show_nothing_of_root(box: Box, secret: Path) -> None:
    box.submit("eve", "linked", steps=1)
    box.until("linked", "completed")
    eve, output = box.users["eve"], box.folder_of("linked") / "output.log"
    for name in ("output.log", "output.log.1"):
        box.run(eve, "rm", "-f", str(output.with_name(name)))
        assert box.run(eve, "ln", "-s", str(secret), str(output.with_name(name))).returncode == 0
        assert SECRET not in box.call(eve, "GET", "/v1/jobs/linked/logs").text
    box.run(eve, "rm", "-f", str(output), f"{output}.1")
    box.run(eve, "mkfifo", str(output))
    assert box.call(eve, "GET", "/v1/jobs/linked/logs").status in (200, 503), "nor is a pipe waited for"


HIDES = """
import os, resource, signal, sys, time
print("step=1 total=9", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_RTTIME, (resource.getrlimit(resource.RLIMIT_RTTIME)[1],) * 2)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.closerange(3, 4096)
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)  # " + sys.argv[1]], {})
time.sleep(600)
"""


def hidden(word: str) -> list[int]:
    """The processes that have this word in their arguments, but for those that start others."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word.encode() in (entry / "cmdline").read_bytes().split(b"# ")[-1] and lives(int(entry.name)):
                found.append(int(entry.name))
    return found


def test_no_process_of_a_job_outlives_it_by_hiding(box: Box) -> None:
    try:
        own_group()
    except Unable as why:
        pytest.skip(f"marks alone find processes here, and one that clears them is not found: {why}")
    script, word = Path(box.users["eve"].home) / "hides.py", f"mark-{os.getpid()}"
    box.run(box.users["eve"], "tee", str(script), text=HIDES)
    doc = {"job_id": "hiding", "command": [box.python, str(script), word], "optional_num_gpus": [1]}
    assert box.call(box.users["eve"], "POST", "/v1/jobs", doc).status == 201
    shim = str(box.until("hiding", "running")["shim_pid"])
    pids = wait_for(lambda: hidden(word), what="a process hides")
    assert {ids_of(pid)["Uid"][0] for pid in pids} == {box.users["eve"].uid}
    assert box.run(box.users["eve"], "kill", "-KILL", shim).returncode == 0, "which would have found them"
    box.cancel("eve", "hiding")
    assert hidden(word) == []


def test_a_shim_that_its_user_has_replaced_holds_nobody_up(box: Box) -> None:
    """Its user kills it, takes its lock and answers in its place, so that nothing would ever be over."""
    box.submit("eve", "replaced")
    job, launch = box.until("replaced", "running"), box.folder_of("replaced", launch=True)
    code = (
        "import fcntl, os, socket, sys, time; os.chdir(sys.argv[1]); os.kill(int(sys.argv[2]), 9);"
        "lock = open('shim.lock'); fcntl.flock(lock, fcntl.LOCK_EX); os.unlink('shim.sock'); one = socket.socket(socket"
        ".AF_UNIX); one.bind('shim.sock'); one.listen(99); print('held', flush=True); time.sleep(600)"
    )
    impostor = subprocess.Popen(
        [box.python, "-c", code, str(launch), str(job["shim_pid"])], stdout=subprocess.PIPE,
        user=box.users["eve"].uid, group=box.users["eve"].gid, extra_groups=[],
    )  # fmt: skip
    try:
        assert impostor.stdout is not None and impostor.stdout.readline() == b"held\n"
        box.submit("ann", "meanwhile")
        box.until("meanwhile", "running")
        box.cancel("ann", "meanwhile")
    finally:
        impostor.kill()
        impostor.wait()
        impostor.stdout.close()
    box.cancel("eve", "replaced")


def test_the_files_of_the_service_are_closed_to_its_users(box: Box) -> None:
    box.submit("ann", "private", env={"PASSWORD": "of-ann"})
    box.until("private", "running")
    places = [path for path in box.state.rglob("*") if path.name not in ("jobs", "imports") and not path.is_symlink()]
    for name in ("ben", "eve"):
        files = [path for path in places if path.is_file() and path.stat().st_uid != box.users[name].uid]
        done = box.run(box.users[name], "cat", *map(str, files))
        assert done.stdout == "", "something of the state folder may be read by others"
    assert box.run(box.users["eve"], "ls", str(box.state)).returncode != 0
    assert box.run(box.users["eve"], "ls", str(box.state / "jobs")).returncode != 0
    assert box.run(box.users["eve"], "rm", "-rf", str(box.folder_of("private"))).returncode != 0
    tokens = [path for path in box.folder_of("private", launch=True).iterdir() if path.name == "operator.token"]
    assert tokens == [], "a job's folder must not hold the token of root"
    box.cancel("ann", "private")


def test_a_forged_heartbeat_speaks_for_own_gpus_and_names_no_other_address(box: Box) -> None:
    for name in ("ann", "eve"):
        box.submit(name, f"beats-{name}")
    ann, eve = (box.until(f"beats-{name}", "running") for name in ("ann", "eve"))
    key = (box.folder_of("beats-eve", launch=True) / "launch.key").read_bytes()

    def sent(job_id: str, seq: int, **more: Any) -> Reply:
        gpus = [GpuReading(gpu_id=gpu, utilisation=0.123) for gpu in (*ann["gpu_ids"], *eve["gpu_ids"])]
        shim = ShimStatus(trainer="running", generation=eve["generation"])
        given = {"job_id": job_id, "launch": 1, "seq": seq, "url": eve["sidecar_url"], "sidecar_pid": 1, "shim": shim}
        body = msgspec.json.encode(Heartbeat(**{**given, "gpus": gpus, **more})).decode()
        signature = sign(key, "POST", "/v1/heartbeats", body.encode())
        headers = {HEADER_JOB: job_id, HEADER_LAUNCH: "1", HEADER_SIGNATURE: signature}
        return box.call(box.users["eve"], "POST", "/v1/heartbeats", body, box.port, **headers)

    assert sent("beats-ann", 10**12).status == 401
    assert sent("beats-eve", 10**12, url="http://192.0.2.1:80").status == 400
    assert sent("beats-eve", 10**12).status == 200
    shown = {gpu["gpu_id"]: gpu["utilisation"] for gpu in box.root("GET", "/v1/gpus").doc["gpus"]}
    assert [shown[gpu] == 0.123 for gpu in (*ann["gpu_ids"], *eve["gpu_ids"])] == [False, True]
    for name in ("ann", "eve"):
        box.cancel(name, f"beats-{name}")


def test_a_sidecar_tells_other_users_nothing(box: Box) -> None:
    box.submit("ann", "beside")
    box.until("beside", "running")
    url = (box.folder_of("beside", launch=True) / "sidecar.url").read_text().strip()
    port = int(url.rpartition(":")[2])
    for path in ("/v1/status", "/metrics"):
        assert box.call(box.users["eve"], "GET", path, where=port).status == 401
    box.cancel("ann", "beside")


# what it refuses


def test_without_root_it_says_why_not(box: Box) -> None:
    done = box.reshape("ann", "--state", f"{box.users['ann'].home}/state", "up", "--shared", "--gpus", "1xV100")
    assert done.returncode == 1
    assert "so it runs as root" in done.stderr


def test_an_installation_that_only_root_can_read_is_refused_before_a_job_fails_by_it(box: Box, tmp_path: Path) -> None:
    made = Path(box.python).parents[1]
    if made.parent != box.folder:
        pytest.skip("the interpreter of the tests is large, and is not copied to where only root can read it")
    closed = tmp_path / "venv"  # in a folder of pytest's, which is root's alone
    shutil.copytree(made, closed, symlinks=True)
    words = (
        str(closed / "bin" / "python"),
        "-P",
        "-m",
        "reshape",
        "--state",
        str(tmp_path / "state"),
        "up",
        "--shared",
    )
    done = box.run(User("root", 0, 0), *words, "--gpus", "1xV100")
    assert done.returncode == 1 and "install it where all may read it" in done.stderr, done.stderr


def test_its_state_folder_is_used_by_no_other_kind_of_service(box: Box) -> None:
    box.stop()
    try:
        root = User("root", 0, 0, (), "/")
        words = (box.python, "-P", "-m", "reshape", "--state", str(box.state), "up", "--gpus", "4xV100")
        done = box.run(root, *words)
        assert done.returncode == 1 and "belongs to a shared `reshape up`" in done.stderr
    finally:
        box.start()


def test_a_machine_can_hide_the_jobs_of_others() -> None:
    with shared_box(RESHAPE_OTHERS_SEEN="0") as hidden:
        hidden.submit("ann", "unseen")
        hidden.until("unseen", "running")
        ben = hidden.users["ben"]
        assert hidden.call(ben, "GET", "/v1/jobs/unseen").status == 404
        assert hidden.call(ben, "DELETE", "/v1/jobs/unseen").status == 404
        told = [hidden.call(ben, "GET", f"/v1/{what}").text for what in ("jobs?ended=true", "gpus", "decisions")]
        told.append(hidden.call(ben, "GET", "/v1/events?after=0&follow=false").text)
        assert "unseen" not in "".join(told) and hidden.users["ann"].name not in "".join(told)
