"""The shim's promises, on real processes and a real socket (`reliability.md` 5 and 7, rows 3 to 7 and 15)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar import disk_writes, kept_output
from sidecar.protocol import ENDLESS_LEASE_S
from tests.fakes.shim_client import WITHIN_S, ShimClient, boottime, marked, running_shim, trainer
from tests.interpreters import python_of
from tests.patience import eventually, patient

ROOT = Path(__file__).resolve().parents[2]
SHOW_ENV = [sys.executable, "-c", "import json,os,sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.argv]))"]


def lines(path: Path) -> list[str]:
    """Complete lines of a file that may not be there yet."""
    return path.read_text().splitlines() if path.exists() else []


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def shim_once(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "sidecar/shim.py", "--folder", str(folder), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patient(30), check=False)


@pytest.mark.parametrize(("announced", "finished"), [("SIGUSR1 143", True), ("SIGUSR1", False)])
def test_one_that_saves_with_143_only_and_ends_with_0_has_finished_though_it_was_asked_to_stop(
    tmp_path, announced, finished
):
    code = (
        "import os, signal, time; asked = []; signal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n"
        f"open(os.environ['RESHAPE_ANNOUNCE'], 'w').write({announced!r})\n"
        "print('trains', flush=True)\n"
        "while not asked: time.sleep(0.01)"
    )
    with running_shim(tmp_path, [sys.executable, "-c", code]) as shim:
        shim.client.start(1, ["A"])
        eventually(lambda: shim.output.exists() and shim.output.read_text() == "trains\n", "it trains")
        shim.client.stop(1)
        status = shim.client.wait("exited")
        assert (status["exit_code"], status["stop_asked"]) == (0, not finished)


def test_our_hooks_come_first_on_the_path_of_a_python_unless_the_record_keeps_them_out(tmp_path):
    show = [
        sys.executable,
        "-c",
        "import os, sys; print(os.environ['PYTHONPATH'], 'reshape_hooks.on_import' in sys.modules)",
    ]
    for hooks, before in ((True, f"{ROOT}/reshape_hooks/startup:"), (False, "")):
        folder = tmp_path / str(hooks)
        with running_shim(folder, show, env={"PYTHONPATH": str(tmp_path)}, hooks=hooks) as shim:
            shim.client.start(1, ["A"])
            assert shim.client.wait("exited")["exit_code"] == 0
            assert shim.output.read_text() == f"{before}{tmp_path} {hooks}\n"


def test_a_start_gives_the_trainer_its_gpus_generation_and_checkpoint(tmp_path):
    extra = {"env": {"MINE": "1", "CUDA_VISIBLE_DEVICES": "all"}, "workdir": str(tmp_path), "visible_gpus": ["A", "B"]}
    with running_shim(tmp_path / "f", SHOW_ENV, **extra) as shim:
        answer = shim.client.start(3, ["B", "A"], checkpoint="g2-100")
        assert answer["ok"] and answer["status"]["generation"] == 3
        assert shim.client.wait("exited")["exit_code"] == 0
        env, cwd, _ = json.loads(shim.output.read_text())
        assert cwd == str(tmp_path)
        expected = {
            "MINE": "1",
            "CUDA_VISIBLE_DEVICES": "B,A",
            "NVIDIA_VISIBLE_DEVICES": "B,A",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "PYTHONUNBUFFERED": "1",
            "RESHAPE_JOB_ID": "j",
            "RESHAPE_GENERATION": "3",
            "RESHAPE_CHECKPOINT": "g2-100",
        }
        assert {name: env.get(name) for name in expected} == expected


def test_zero_gpus_are_an_empty_list_and_never_an_unset_one(tmp_path):
    with running_shim(tmp_path, SHOW_ENV) as shim:
        shim.client.start(1, [])
        shim.client.wait("exited")
        env = json.loads(shim.output.read_text())[0]
        assert (env["CUDA_VISIBLE_DEVICES"], env["NVIDIA_VISIBLE_DEVICES"]) == ("", "void")


def test_a_stop_lets_the_trainer_save_and_the_next_generation_resumes(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        shim.client.start(1, ["A"])
        eventually(lambda: "step=5\n" in shim.output.read_text(), "five steps")
        assert shim.client.stop(2)["status"]["trainer"] in ("stopping", "exited")
        status = shim.client.wait("exited")
        assert (status["exit_code"], status["stop_asked"], status["exit_note"]) == (143, True, "")
        assert status["spawn_at"] < status["stop_at"] < status["exit_at"] <= boottime()
        saved = int((tmp_path / "count").read_text())
        assert saved >= 5 and f"saved step={saved}" in status["output_tail"]
        shim.client.start(2, ["B"])
        eventually(lambda: f"resumed step={saved} generation=2" in shim.output.read_text(), "resumed")
        assert shim.client.status()["gpu_ids"] == ["B"]
        assert [e["status"]["trainer"] for e in shim.client.events if e["event"] == "status"][-1] == "running"


def test_a_trainer_deaf_to_sigterm_is_killed_with_its_children(tmp_path):
    with running_shim(tmp_path, trainer("ignores_sigterm")) as shim:
        shim.client.start(1)
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        assert len(shim.left()) == 2
        shim.client.stop(2, grace_s=0.3)
        status = shim.client.wait("exited")
        assert shim.left() == []
        assert status["exit_code"] == -signal.SIGKILL and "had to kill" in status["exit_note"]
        assert status["exit_at"] - status["stop_at"] >= 0.3


def test_one_that_announced_that_it_saves_is_waited_for_however_long_that_takes(tmp_path):
    with running_shim(tmp_path, trainer("saves_late", str(tmp_path / "safe"))) as shim:
        shim.client.start(1)
        eventually(lambda: "step=1" in shim.output.read_text(), "it trains")
        assert shim.client.stop(2, grace_s=0.1, wait=True)["status"]["patient"] is True
        time.sleep(0.5)  # five times its grace
        assert shim.client.status()["trainer"] == "stopping"
        (tmp_path / "safe").touch()
        status = shim.client.wait("exited")
        assert (status["exit_code"], status["exit_note"], status["patient"]) == (143, "", False)
        assert "saved" in shim.output.read_text()


def test_one_that_is_waited_for_is_killed_after_the_grace_of_a_stop_that_does_not_wait(tmp_path):
    with running_shim(tmp_path, trainer("saves_late", str(tmp_path / "safe"))) as shim:
        shim.client.start(1)
        eventually(lambda: "step=1" in shim.output.read_text(), "it trains")
        shim.client.stop(2, wait=True)
        assert shim.client.stop(3, grace_s=0.2)["status"]["patient"] is False
        assert shim.client.wait("exited")["exit_code"] == -signal.SIGKILL


def test_one_that_did_not_announce_that_it_saves_is_not_waited_for_longer_than_its_grace(tmp_path):
    with running_shim(tmp_path, trainer("ignores_sigterm")) as shim:
        shim.client.start(1)
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        shim.client.stop(2, grace_s=0.2, wait=True)
        assert shim.client.wait("exited")["exit_code"] == -signal.SIGKILL


def test_what_a_trainer_leaves_behind_is_not_waited_for_once_it_has_saved(tmp_path):
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "open(os.environ['RESHAPE_ANNOUNCE'], 'w').write('SIGUSR1')\n"
        f"subprocess.Popen([sys.executable, '-c', {deaf!r}], start_new_session=True)\n"
        "while True: time.sleep(0.01)"
    )
    with running_shim(tmp_path, [sys.executable, "-c", code]) as shim:
        shim.client.start(1)
        eventually(lambda: "deaf" in shim.output.read_text(), "its child is deaf")
        shim.client.stop(2, grace_s=0.2, wait=True)
        assert "had to kill" in shim.client.wait("exited")["exit_note"]
        assert shim.left() == []


def test_a_kill_waits_while_files_of_checkpoints_grow(tmp_path):
    code = (
        "import os, pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    for k in range(60):\n"
        "        time.sleep(0.1); (pathlib.Path(sys.argv[1]) / str(k)).write_text('x')\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save); print('trains', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    saved = tmp_path / "saved"
    saved.mkdir()
    with running_shim(tmp_path / "f", [sys.executable, "-c", code, str(saved)], checkpoints=str(saved)) as shim:
        shim.client.start(1)
        eventually(lambda: "trains" in shim.output.read_text(), "it trains")
        shim.client.stop(2, grace_s=3)
        assert shim.client.wait("exited")["exit_code"] == 143
        assert len(list(saved.iterdir())) == 60


def test_a_kill_waits_while_a_file_of_checkpoints_is_written_over_in_place(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    for k in range(60):\n"
        "        time.sleep(0.1); os.pwrite(file, b'new', 3 * k)\n"
        "    sys.exit(143)\n"
        "file = os.open(sys.argv[1], os.O_RDWR); signal.signal(signal.SIGTERM, save); print('trains', flush=True)\n"
        "while True: time.sleep(0.01)"
    )
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "state").write_bytes(b"old" * 60)
    command = [sys.executable, "-c", code, str(saved / "state")]
    with running_shim(tmp_path / "f", command, checkpoints=str(saved)) as shim:
        shim.client.start(1)
        eventually(lambda: "trains" in shim.output.read_text(), "it trains")
        shim.client.stop(2, grace_s=3)
        assert shim.client.wait("exited")["exit_code"] == 143
        assert (saved / "state").read_bytes() == b"new" * 60


SNAPSHOT = """
import os, signal, sys, time
folder, who, pauses = sys.argv[1:]
def write():
    with open(folder + "/half", "wb") as file:
        for k in range(80):
            file.write(os.urandom(50_000)); file.flush(); os.fsync(file.fileno()); time.sleep(0.05)
            if pauses and k == 20:
                open(folder + "/paused", "w").write(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)
    os.rename(folder + "/half", folder + "/whole")
def stop(*_):
    if who == "itself":
        write()
    elif os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        write()
        os._exit(0)
    os._exit(143)
signal.signal(signal.SIGTERM, stop)
if who != "itself":
    open(os.environ["RESHAPE_ANNOUNCE"], "w").write("SIGUSR1")
print("trains", flush=True)
while True: time.sleep(0.01)
"""


@contextlib.contextmanager
def with_snapshot(folder, who, pauses=""):
    """Run a trainer that writes a snapshot for some seconds when it is stopped, itself or by a process it forks."""
    before = disk_writes.written_by(os.getpid())
    with (folder / "probe").open("wb") as probe:
        probe.write(bytes(8192))
        probe.flush()
        os.fsync(probe.fileno())
    if disk_writes.written_by(os.getpid()) == before:
        pytest.skip("the kernel does not count what is written to the file system of temporary files")
    with running_shim(folder / "f", [sys.executable, "-c", SNAPSHOT, str(folder), who, pauses]) as shim:
        shim.client.start(1)
        eventually(lambda: "trains" in shim.output.read_text(), "it trains")
        yield shim


@pytest.mark.parametrize("who", ["itself", "a process that it forks"])
def test_what_still_writes_is_waited_for_by_a_stop_that_nobody_asked_for_and_by_no_other_one(tmp_path, who):
    for asked in (False, True):
        folder = tmp_path / str(asked)
        folder.mkdir()
        with with_snapshot(folder, who) as shim:
            shim.client.stop(2, grace_s=1.5, wait=not asked)
            status = shim.client.wait("exited")
            assert (folder / "whole").exists() is not asked
            assert shim.left() == []
            assert asked or (status["exit_code"], status["exit_note"]) == (143, "")


def test_a_snapshot_that_is_paused_by_a_signal_is_waited_for_too(tmp_path):
    with with_snapshot(tmp_path, "a process that it forks", pauses="yes") as shim:
        shim.client.stop(2, grace_s=0.1, wait=True)
        eventually((tmp_path / "paused").exists, "it is paused")
        time.sleep(4.0)  # many times its grace
        assert shim.client.status()["trainer"] == "stopping"
        os.kill(int((tmp_path / "paused").read_text()), signal.SIGCONT)
        assert shim.client.wait("exited")["exit_note"] == ""
        assert (tmp_path / "whole").exists()


def test_an_orphan_in_its_own_session_does_not_outlive_the_trainer(tmp_path):
    with running_shim(tmp_path, trainer("forks_setsid")) as shim:
        shim.client.start(1)
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        shim.client.stop(2, grace_s=0.3)
        status = shim.client.wait("exited")
        assert shim.left() == []
        assert status["exit_code"] == -signal.SIGTERM and "had to kill" in status["exit_note"]


def test_children_of_a_trainer_that_ends_by_itself_are_asked_to_end(tmp_path):
    with running_shim(tmp_path, trainer("forks_setsid", "--exit", "--kind")) as shim:
        shim.client.start(1)
        status = shim.client.wait("exited")
        assert shim.left() == []
        assert (status["exit_code"], status["exit_note"], status["stop_asked"]) == (0, "", False)


def test_a_killed_shim_takes_its_trainer_along(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        shim.client.start(1)
        eventually(lambda: "step=" in shim.output.read_text(), "running")
        shim.process.kill()
        eventually(lambda: marked(shim.mark) == [], "the trainer is gone")


def test_a_killed_shim_takes_a_trainer_along_that_prints_nothing(tmp_path):
    """One that prints would end by itself as nobody reads what it prints any more."""
    with running_shim(tmp_path, ["sleep", "600"]) as shim:
        shim.client.start(1)
        assert len(shim.left()) == 1
        shim.process.kill()
        eventually(lambda: marked(shim.mark) == [], "the trainer is gone")


def test_the_next_shim_kills_what_the_trainer_of_a_killed_one_left(tmp_path):
    with running_shim(tmp_path, trainer("ignores_sigterm")) as first:
        first.client.start(1)
        eventually(lambda: "ready" in first.output.read_text(), "ready")
        first.process.kill()
        first.process.wait()
        eventually(lambda: len(marked(first.mark)) == 1, "only the child, which nobody told, is left")
        with running_shim(tmp_path, trainer("counts")) as second:
            assert marked(first.mark) == []
            assert second.client.start(2)["ok"]


def test_a_killed_sidecar_is_restarted_and_the_trainer_does_not_notice(tmp_path):
    says = "import os, time; os.write(1, b'%d\\n' % os.getpid()); time.sleep(1000)"  # at once, whatever is buffered
    sidecar = [sys.executable, "-c", says]
    with running_shim(tmp_path, trainer("counts"), sidecar=sidecar) as shim:
        log = tmp_path / "sidecar.log"
        eventually(lambda: len(lines(log)) == 1, "the sidecar runs")
        running = shim.client.start(1)["status"]["trainer_pid"]
        os.kill(int(log.read_text()), signal.SIGKILL)
        eventually(lambda: len(lines(log)) == 2, "the sidecar runs again")
        status = shim.client.status()
        assert (status["trainer"], status["trainer_pid"]) == ("running", running)
        shim.client.stop(2)
        shim.client.wait("exited")
        assert len(shim.left()) == 1, "the end of the trainer leaves the sidecar alone"


def test_a_sidecar_that_keeps_dying_is_restarted_more_and_more_slowly(tmp_path):
    sidecar = [sys.executable, "-c", "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME))"]
    with running_shim(tmp_path, trainer("counts"), sidecar=sidecar):
        log = tmp_path / "sidecar.log"
        eventually(lambda: len(lines(log)) >= 4, "four times")
        at = [float(line) for line in log.read_text().split()]
        assert at[1] - at[0] >= 0.2 and at[2] - at[1] >= 0.4 and at[3] - at[2] >= 0.8


def test_two_shims_on_one_folder_are_one(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        shim.client.start(1)
        for more in ((), ("--",), ("--detach",), ("--detach", "--")):
            second = shim_once(tmp_path, *more)
            assert (second.returncode, second.stdout) == (0, "already running\n")
        assert shim.client.status()["trainer"] == "running"


def test_a_replayed_command_has_one_effect(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        first = shim.client.start(1)
        again = shim.client.start(1)
        assert again["ok"] and again["status"]["trainer_pid"] == first["status"]["trainer_pid"]
        shim.client.stop(2)
        done = shim.client.wait("exited")
        assert shim.client.stop(2)["ok"] and shim.client.start(1)["ok"], "also when it is old by now"
        assert shim.client.status() == done


def test_older_generations_and_a_second_trainer_are_refused(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        pid = shim.client.start(5)["status"]["trainer_pid"]
        for answer in (
            shim.client.start(4),
            shim.client.stop(4),
            shim.client.start(5, command_id="another"),
            shim.client.start(6),
        ):
            assert (answer["ok"], answer["conflict"]) == (False, True), answer
        assert shim.client.start(4)["error"] == "old generation"
        assert shim.client.status()["trainer_pid"] == pid
        shim.client.stop(7)
        shim.client.wait("exited")
        assert shim.client.start(6)["conflict"], "a stop of 7 makes 6 old"
        assert shim.client.start(7)["ok"]


def test_a_stop_with_nothing_running_is_done_and_fences_older_starts(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        answer = shim.client.stop(4)
        assert answer["ok"] and answer["status"]["trainer"] == "none" and answer["status"]["generation"] == 4
        assert shim.client.start(3)["conflict"]


def test_gpus_that_were_not_given_to_the_launch_are_refused(tmp_path):
    with running_shim(tmp_path, trainer("counts"), visible_gpus=["A", "B"]) as shim:
        for gpus in (["C"], ["A", "A"], ["A,B"], [""], "AC", [1], [["A"]], ["A", None]):
            answer = shim.client.start(1, gpus)
            assert not answer["ok"] and "gpu_ids" in answer["error"], answer
        assert shim.client.start(1, ["A", "B"])["ok"]


def test_when_the_lease_ends_the_trainer_saves_and_a_new_generation_can_start(tmp_path):
    with running_shim(tmp_path, trainer("counts"), grace_s=0.5) as shim:
        shim.client.start(1)
        eventually(lambda: "step=" in shim.output.read_text(), "it trains, so it saves when it is told")
        deadline = boottime() + 1.5
        shim.client.ask("renew", deadline=deadline)
        status = shim.client.wait("exited")
        assert status["fenced"] and status["stop_asked"] and status["exit_code"] == 143
        assert deadline - 0.5 <= status["stop_at"] and (tmp_path / "count").exists()
        refused = shim.client.start(2, command_id="late")
        assert not refused["ok"] and not refused["conflict"], "a lease that is over starts nothing"
        assert shim.client.start(2, lease_deadline=boottime() + 60)["ok"]
        assert not shim.client.status()["fenced"]


def test_a_trainer_that_does_not_save_in_time_is_killed_at_the_deadline(tmp_path):
    with running_shim(tmp_path, trainer("ignores_sigterm"), grace_s=0.5) as shim:
        shim.client.start(1)
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        deadline = boottime() + 1.0
        assert shim.client.ask("renew", deadline=deadline)["ok"]
        status = shim.client.wait("exited")
        assert status["fenced"] and status["exit_code"] == -signal.SIGKILL and status["exit_at"] >= deadline
        assert shim.left() == []


def test_a_lease_that_ends_while_a_stop_is_waited_for_is_told(tmp_path):
    """See that what is lost then is not the training's own fault."""
    with running_shim(tmp_path, trainer("ignores_sigterm"), grace_s=0.5) as shim:
        shim.client.start(1)
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        shim.client.stop(2, grace_s=1e6)
        assert not shim.client.status()["fenced"]
        shim.client.ask("renew", deadline=boottime() + 1.0)
        status = shim.client.wait("exited")
        assert status["fenced"] and status["exit_code"] == -signal.SIGKILL


def test_a_renewal_counts_only_when_it_is_larger(tmp_path):
    with running_shim(tmp_path, trainer("counts"), grace_s=0.3) as shim:
        now = boottime()
        assert shim.client.start(1)["status"]["lease_deadline"] == 0, "not given yet: no fence"
        assert shim.client.ask("renew", deadline=now + 2)["status"]["lease_deadline"] == now + 2
        assert shim.client.ask("renew", deadline=now + 1)["status"]["lease_deadline"] == now + 2
        for bad in (None, "soon", [1], {}):
            assert not shim.client.ask("renew", deadline=bad)["ok"]
        for bad in (b"NaN", b"-1", b"-1e999"):
            answer = shim.client.send_bytes(b'{"do":"renew","deadline":%s}' % bad)
            assert answer["status"]["lease_deadline"] == now + 2
        assert shim.client.wait("exited")["stop_at"] >= now + 2 - 0.3


def test_an_endless_lease_gives_way_to_a_shorter_one(tmp_path):
    with running_shim(tmp_path, trainer("counts"), grace_s=0.3) as shim:
        endless, soon = boottime() + 3 * ENDLESS_LEASE_S, boottime() + 2
        assert shim.client.start(1, lease_deadline=endless)["status"]["lease_deadline"] == endless
        assert shim.client.send_bytes(b'{"do":"renew","deadline":NaN}')["status"]["lease_deadline"] == endless
        assert shim.client.ask("renew", deadline=soon)["status"]["lease_deadline"] == soon
        assert shim.client.wait("exited")["fenced"]


def test_after_a_freeze_the_lease_counts_before_any_message(tmp_path):
    with running_shim(tmp_path, trainer("counts"), grace_s=0.2) as shim:
        deadline = boottime() + 1
        shim.client.start(1, lease_deadline=deadline)
        shim.process.send_signal(signal.SIGSTOP)
        shim.client.socket.sendall(json.dumps({"do": "renew", "deadline": deadline + 60}).encode() + b"\n")
        eventually(lambda: boottime() > deadline, "the deadline passes")
        shim.process.send_signal(signal.SIGCONT)
        assert shim.client.wait("exited")["fenced"]


WITHOUT_ENVIRONMENT = """
import subprocess, sys, time
child = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], env={}, start_new_session=True, stdout=subprocess.DEVNULL
)
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("more", [["--end"], []], ids=["end", "the next shim"])
def test_a_child_without_environment_and_files_of_a_killed_shim_is_ended_before_anything_is_started(tmp_path, more):
    with running_shim(tmp_path, [sys.executable, "-c", WITHOUT_ENVIRONMENT]) as shim:
        shim.client.start(1)
        eventually(lambda: shim.output.exists() and "\n" in shim.output.read_text(), "it has started its child")
        child = int(shim.output.read_text().split()[1])
        shim.process.kill()
        shim.process.wait()
        assert lives(child)
        next_one = subprocess.Popen([*shim.command, *more], env={**os.environ, "RESHAPE_TEST_MARK": shim.mark})
        try:
            if more:
                assert next_one.wait(WITHIN_S) == 0
            else:
                eventually(lambda: (tmp_path / "shim.pid").read_text() == f"{next_one.pid}\n", "it has begun")
            assert not lives(child)
        finally:
            next_one.terminate()
            next_one.wait(WITHIN_S)


def test_a_checkpoint_is_asked_for_only_where_the_trainer_announced_that_it_can(tmp_path):
    with running_shim(tmp_path / "can", trainer("counts")) as shim:
        shim.client.start(1)
        eventually(lambda: "step=" in shim.output.read_text(), "running")
        assert shim.client.ask("checkpoint", generation=1, command_id="c")["ok"]
        eventually(lambda: "saved step=" in shim.output.read_text(), "saved")
        assert shim.client.status()["trainer"] == "running"
    with running_shim(tmp_path / "cannot", trainer("forks_setsid")) as shim:
        shim.client.start(1)
        answer = shim.client.ask("checkpoint", generation=1, command_id="c")
        assert answer["error"] == "this trainer cannot save without exiting"
        assert shim.client.status()["trainer"] == "running"


def test_a_frozen_client_delays_nobody_while_ten_megabytes_are_printed(tmp_path):
    done = tmp_path / "done"
    with running_shim(tmp_path / "f", trainer("prints_a_lot", str(done))) as shim:
        frozen = shim.connect()
        shim.client.start(1)
        asked = 0
        while not done.exists():  # the frozen one also asks and never reads the answers
            try:
                frozen.socket.settimeout(0.01)
                frozen.socket.sendall(b'{"do":"status"}\n' * 10)
            except OSError:
                pass
            shim.client.status()
            asked += 1
            assert asked < 100_000
        eventually(lambda: shim.output.stat().st_size == 10_000_000, "everything is in the log")
        status = Path(f"/proc/{shim.process.pid}/status").read_text()
        assert int(status.split("VmHWM:")[1].split()[0]) < 64 * 1024, "less than 64 MiB"
        eventually(lambda: shim.client.status() and shim.client.events[-1].get("size") == 10_000_000, "pushed at last")


def test_a_client_that_missed_a_status_is_cut_off_and_never_left_with_an_old_one(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        frozen = shim.connect()
        for deadline in range(1, 1000):
            shim.client.ask("renew", deadline=deadline)
        seen = []
        with pytest.raises(EOFError):
            while True:
                seen.append(frozen.receive()["status"]["lease_deadline"])
        assert seen == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("junk", [b"hello", b"\xff\x00\xfe", b"[]", b"7", b"[" * 60_000, b'{"do":[]}', b"{}", b""])
def test_junk_is_answered_and_the_connection_stays(tmp_path, junk):
    with running_shim(tmp_path, trainer("counts")) as shim:
        assert shim.client.send_bytes(junk)["ok"] is False
        assert shim.client.status()["trainer"] == "none"


def test_a_command_with_a_wrong_field_has_no_effect(tmp_path):
    wrong = {"generation": [None, "one", [], {}, 1e999], "checkpoint": ["../other", "a/b", "..", "."]}
    wrong |= {"gpu_ids": [None, 7, ["A", "A"]], "lease_deadline": ["soon", [1], 1.0]}
    with running_shim(tmp_path, trainer("counts")) as shim:
        before = shim.client.status()
        for name, values in wrong.items():
            for value in values:
                fields = {"generation": 1, "command_id": "c", "gpu_ids": [], "checkpoint": None, name: value}
                answer = shim.client.ask("start", **fields)
                assert not answer["ok"] and answer["status"] == before, answer
        for missing in ({"generation": 1}, {"command_id": "c"}, {}):
            assert not shim.client.ask("stop", **missing)["ok"]
        assert shim.client.status() == before


def test_a_line_of_more_than_64_kib_costs_only_its_sender_the_connection(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        other = shim.connect()
        with pytest.raises((EOFError, OSError)):
            other.socket.sendall(b"x" * 300_000)
            while True:
                other.receive()
        assert shim.client.status()["trainer"] == "none"


def test_more_connections_than_32_are_turned_away_and_the_first_are_served(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        for _ in range(40):
            shim.connect()
        with pytest.raises((EOFError, OSError)):
            shim.clients[-1].status()
        assert shim.client.status()["trainer"] == "none"


def test_what_cannot_be_started_says_why(tmp_path):
    plain = tmp_path / "plain.txt"
    plain.write_text("not a program")
    for command, code in ((["no-such-program"], 127), ([str(plain)], 126)):
        with running_shim(tmp_path / str(code), command) as shim:
            status = shim.client.start(1)["status"]
            assert (status["trainer"], status["exit_code"]) == ("exited", code)
            assert command[0] in status["exit_note"] and status["exit_at"] >= status["spawn_at"]
    with running_shim(tmp_path / "cwd", SHOW_ENV, workdir=str(tmp_path / "absent")) as shim:
        assert "absent" in shim.client.start(1)["status"]["exit_note"]


def test_a_trainer_that_crashes_at_once_leaves_its_last_words(tmp_path):
    with running_shim(tmp_path, trainer("crashes_at_once")) as shim:
        shim.client.start(1)
        status = shim.client.wait("exited")
        assert status["exit_code"] == 1 and status["output_tail"].endswith("no such dataset: cifar-11\n")


def test_a_trainer_that_is_done_has_exited_with_0_unasked(tmp_path):
    with running_shim(tmp_path, trainer("exits_early")) as shim:
        shim.client.start(1)
        status = shim.client.wait("exited")
        assert (status["exit_code"], status["stop_asked"], status["output_tail"]) == (0, False, "step=1\n")


def test_the_output_log_begins_again_at_64_mib_and_says_what_came_before(tmp_path):
    full = 64 * 1024 * 1024 - 3
    (tmp_path / "output.log").write_bytes(b"")
    os.truncate(tmp_path / "output.log", full)  # sparse: takes no disk
    with running_shim(tmp_path, trainer("exits_early")) as shim:
        shim.client.start(1)
        shim.client.wait("exited")
        assert shim.output.read_text() == kept_output.FIRST_LINE.format(full + 1) + "step=1\n"
        assert (tmp_path / "output.log.1").stat().st_size == full + 1, "with an end for its last line"
        assert kept_output.read(str(shim.output), full + 1, 100) == (b"step=1\n", full + 8)


def test_a_full_log_is_moved_at_the_end_of_a_line(tmp_path):
    full = 64 * 1024 * 1024 - 3
    says = "print('o' * 10_000, end='', flush=True); print('ne', flush=True); print('two')"
    (tmp_path / "output.log").write_bytes(b"")
    os.truncate(tmp_path / "output.log", full - 8_000)
    with (tmp_path / "output.log").open("r+b") as log:
        log.seek(-1, os.SEEK_END)
        log.write(b"\n")
    with running_shim(tmp_path, [sys.executable, "-c", says]) as shim:
        shim.client.start(1)
        shim.client.wait("exited")
        printed = kept_output.read(str(shim.output), full - 8_000, 100_000)[0]
        assert printed.decode().splitlines() == ["o" * 10_000 + "ne", "two"]
        first, *rest = shim.output.read_text().splitlines()
        assert first + "\n" == kept_output.FIRST_LINE.format(full + 2_003) and rest == ["two"]


def test_a_log_that_cannot_be_begun_anew_loses_text_and_not_the_training(tmp_path):
    full = 64 * 1024 * 1024
    (tmp_path / "output.log").write_bytes(b"")
    os.truncate(tmp_path / "output.log", full)
    (tmp_path / "output.log.new").mkdir()
    code = "import time\nfor n in range(3): print(n, flush=True); time.sleep(0.2)"
    with running_shim(tmp_path, [sys.executable, "-c", code]) as shim:
        shim.client.start(1)
        status = shim.client.wait("exited")
        assert (status["exit_code"], status["output_tail"]) == (0, "0\n1\n2\n")
        assert "output for output.log is lost" in (tmp_path / "stderr").read_text().replace(f"{tmp_path}/", "")


@pytest.mark.parametrize("where", ["", " | cat", " 2>&1 > told"])
def test_a_report_of_a_hook_has_a_line_of_its_own_whatever_the_script_has_begun(tmp_path, where):
    code = (
        "import sys\nfrom reshape_hooks import plain\n"
        "for step in (1, 2):\n    sys.stdout.write(f'\\r{step}/2'); sys.stdout.flush(); plain.say(step=step, total=2)\n"
        "sys.stdout.write('end\\n'); sys.stdout.flush(); plain.say(done=1)"
    )
    (tmp_path / "script.py").write_text(code)
    command = ["sh", "-c", f"cd {tmp_path} && {sys.executable} script.py{where}"]
    with running_shim(tmp_path / "f", command, env={"PYTHONPATH": str(ROOT)}) as shim:
        shim.client.start(1)
        assert shim.client.wait("exited")["exit_code"] == 0
        text = shim.output.read_bytes().decode()
        reports = [line.rpartition(" time=")[0] for line in text.split("\n") if "time=" in line]
        assert reports == ["step=1 total=2", "step=2 total=2", "done=1"]
        assert "\x1e" not in text and "\n\n" not in text


def test_what_the_next_training_prints_is_not_joined_to_what_the_one_before_it_left_open(tmp_path):
    with running_shim(tmp_path, [sys.executable, "-c", "print('step=1', end='', flush=True)"]) as shim:
        for generation in (1, 2):
            shim.client.start(generation)
            status = shim.client.wait("exited")
        assert (shim.output.read_text(), status["output_from"]) == ("step=1\nstep=1", 7)


def test_a_full_disk_loses_text_and_not_the_training(tmp_path):
    with running_shim(tmp_path, trainer("exits_early"), output="/dev/full") as shim:
        shim.client.start(1)
        status = shim.client.wait("exited")
        assert (status["exit_code"], status["output_tail"]) == (0, "step=1\n")
        assert "make room" in (tmp_path / "stderr").read_text()


def test_tee_copies_output_and_a_stuck_reader_of_it_stops_nothing(tmp_path):
    with running_shim(tmp_path / "f", trainer("prints_a_lot", str(tmp_path / "done")), tee=True) as shim:
        shim.client.start(1)
        eventually((tmp_path / "done").exists, "printed though nobody reads the shim's stdout")
        shim.client.stop(2)
        shim.client.wait("exited")
        assert os.read(shim.process.stdout.fileno(), 100) == b"x" * 99 + b"\n"


def test_a_folder_deeper_than_a_socket_path_may_be(tmp_path):
    folder = tmp_path / ("deep" * 20) / ("deeper" * 20)
    with running_shim(folder, trainer("counts")) as shim:
        assert shim.client.start(1)["ok"]
        assert oct((folder / "shim.sock").stat().st_mode)[-4:] == "0600"
        assert int((folder / "shim.pid").read_text()) == shim.process.pid


def test_detach_returns_once_it_listens_and_end_once_all_is_gone(tmp_path):
    with running_shim(tmp_path, trainer("counts")) as shim:
        pass  # leaves a valid launch.json
    assert shim_once(tmp_path, "--detach").returncode == 0
    client = ShimClient(tmp_path)
    client.start(1)
    eventually(lambda: "step=" in (tmp_path / "output.log").read_text(), "running")
    assert shim_once(tmp_path, "--end").returncode == 0
    assert marked(shim.mark) == [] and not (tmp_path / "shim.sock").exists()
    assert (tmp_path / "count").exists(), "it could save"
    assert shim_once(tmp_path, "--end").returncode == 0, "nothing runs: fine"
    assert shim_once(tmp_path / "absent", "--end").returncode == 0
    client.close()


def test_end_on_a_killed_shim_kills_what_its_trainer_left(tmp_path):
    with running_shim(tmp_path, trainer("ignores_sigterm")) as shim:
        shim.client.start(1)
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        shim.process.kill()
        shim.process.wait()
        assert shim_once(tmp_path, "--end").returncode == 0
        assert marked(shim.mark) == []
        assert [*tmp_path.rglob("shim.sock"), *tmp_path.rglob("shim.pid")] == []


def test_the_lock_is_held_until_shim_and_trainer_are_gone(tmp_path):
    def free(lock):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    with running_shim(tmp_path, trainer("ignores_sigterm")) as shim:
        shim.client.start(1)
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        shim.process.kill()
        shim.process.wait()
        eventually(lambda: len(marked(shim.mark)) == 1, "its child is left")
        with (tmp_path / "shim.lock").open("w") as lock:
            assert not free(lock)
            os.kill(marked(shim.mark)[0], signal.SIGKILL)
            # Not `marked(...) == []`: a dying process loses its environment before its files are closed.
            eventually(lambda: free(lock), "free")


def test_sigterm_to_the_shim_lets_the_trainer_save_and_ends_all(tmp_path):
    sidecar = [sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)"]
    with running_shim(tmp_path, trainer("counts"), sidecar=sidecar, kill_s=0.5) as shim:
        shim.client.start(1)
        eventually(lambda: "step=" in shim.output.read_text(), "running")
        shim.process.terminate()
        assert shim.process.wait(WITHIN_S) == 0
        assert marked(shim.mark) == [] and (tmp_path / "count").exists()


def test_a_launch_that_makes_no_sense_is_refused_with_a_sentence(tmp_path):
    for text in ("", "[]", "{}", '{"job_id": 7}', '{"output": 7}'):
        (tmp_path / "launch.json").write_text(text)
        for more in ((), ("--detach",)):
            ended = shim_once(tmp_path, *more)
            assert ended.returncode == 1 and "launch.json" in ended.stderr and "Traceback" not in ended.stderr, ended
    assert "launch.json" in shim_once(tmp_path / "absent").stderr


def test_as_first_process_of_a_container_nothing_outlives_it(tmp_path):
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a PID namespace; run as root with util-linux")
    with running_shim(tmp_path, trainer("forks_setsid"), prefix=unshare) as shim:
        assert shim.client.start(1)["status"]["shim_pid"] == 1
        eventually(lambda: "ready" in shim.output.read_text(), "ready")
        shim.client.stop(2, grace_s=0.3)
        assert "had to kill" in shim.client.wait("exited")["exit_note"]
        shim.client.start(2)
        eventually(lambda: shim.output.read_text().count("ready") == 2, "ready again")
        shim.process.kill()  # unshare's --kill-child kills the first process, as a container's end does
        eventually(lambda: marked(shim.mark) == [], "all gone")


def test_it_refuses_a_proc_that_shows_other_processes(tmp_path):
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to make a PID namespace; run as root with util-linux")
    command = [*unshare, sys.executable, "-I", "-S", str(Path("sidecar/shim.py").resolve()), "--folder", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert ended.returncode == 1 and "/proc" in ended.stderr


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_it_runs_on_the_python_of_the_image(tmp_path, version):
    with running_shim(tmp_path, trainer("counts"), python=python_of(version), sidecar=["sleep", "1000"]) as shim:
        assert shim.client.start(1, ["A"])["ok"]
        eventually(lambda: "step=3\n" in shim.output.read_text(), "three steps")
        assert shim.client.send_bytes(b"\xff")["ok"] is False
        shim.client.ask("renew", deadline=boottime() + 60)
        shim.client.stop(2)
        assert shim.client.wait("exited")["exit_code"] == 143
        missing = running = shim.client.start(2)
        assert missing["ok"] and running["status"]["trainer"] == "running"
        shim.process.terminate()
        assert shim.process.wait(WITHIN_S) == 0
        assert marked(shim.mark) == [] and (tmp_path / "stderr").read_text() == ""


def test_an_idle_shim_uses_next_to_no_cpu(tmp_path):
    with running_shim(tmp_path, ["sleep", "1000"]) as shim:
        shim.client.start(1)
        before, begin = cpu_seconds(shim.process.pid), time.monotonic()
        eventually(lambda: time.monotonic() - begin > 1, "a second passes")
        assert cpu_seconds(shim.process.pid) - before <= 0.05


CALM_AT_ONCE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("shim", sys.argv[5])  # behind the rest: python -I -S shim.py
shim = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shim)
shim.CALM_S, shim.CALM_TICK_S, sys.argv[1:] = 0.0, float(sys.argv[1]), sys.argv[6:]
shim.main()
"""
PRINTS = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
for number in range(50):
    print(number, flush=True)
    time.sleep(0.01)
print("x" * 1_000_000, flush=True)
while not asked:
    time.sleep(0.01)
print("saved", flush=True)
sys.exit(143)
"""
PRINTED = "".join(f"{number}\n" for number in range(50)) + "x" * 1_000_000 + "\n"


@pytest.mark.parametrize("rest_s", [0.05, 3600.0], ids=["short rests", "a rest that only the stop ends"])
def test_output_that_is_read_rarely_while_nothing_happens_is_all_there_in_the_end(tmp_path, rest_s):
    prefix = [sys.executable, "-c", CALM_AT_ONCE, str(rest_s)]
    with running_shim(tmp_path, [sys.executable, "-c", PRINTS], prefix=prefix) as shim:
        shim.client.start(1, ["A"])
        if rest_s < 1.0:
            eventually(lambda: shim.output.exists() and shim.output.read_text() == PRINTED, "all that it prints")
        else:
            eventually(lambda: shim.output.exists() and shim.output.read_text(), "its first line")
        shim.client.stop(2)
        assert shim.client.wait("exited")["exit_code"] == 143
        assert shim.output.read_text() == PRINTED + "saved\n"


def test_output_that_rests_is_read_and_told_when_the_sidecar_asks_for_anything(tmp_path):
    code = "import os, time; os.chdir(os.environ['RESHAPE_CHECKPOINTS']); print('one', flush=True)\n"
    code += "while not os.path.exists('go'): time.sleep(0.01)\n"
    code += "print('two', flush=True); open('gone', 'w').close(); time.sleep(600)"
    prefix = [sys.executable, "-c", CALM_AT_ONCE, "3600"]
    with running_shim(tmp_path, [sys.executable, "-c", code], prefix=prefix) as shim:
        shim.client.start(1, ["A"])
        eventually(lambda: lines(shim.output) == ["one"], "its first line")
        (shim.folder / "go").touch()
        eventually((shim.folder / "gone").exists, "its second line is in the pipe")
        shim.client.status()
        eventually(lambda: lines(shim.output) == ["one", "two"], "its second line")
        eventually(lambda: shim.client.status() and shim.client.events[-1].get("size") == 8, "it is told")
        shim.client.stop(2)
