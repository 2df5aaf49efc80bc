"""What the shim promises as the first process of a trainer's container, beside a sidecar in another one."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import io
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from sidecar import container, shim
from sidecar.protocol import Heartbeat, Output
from sidecar.source_watch import PodSourceWatch
from tests.fakes.pod import CONTAINER, Pod, can_make_containers, pod, signed_call
from tests.fakes.shim_client import boottime, trainer
from tests.fakes.sidecar_launch import ROOT
from tests.fakes.tiny_coordinator import TinyCoordinator, serving
from tests.interpreters import python_of
from tests.patience import eventually, patient

EXITS = [sys.executable, "-c", "import sys; sys.exit(int(sys.argv[1]))"]
SHOWS = [sys.executable, "-c", "import json,os; print(json.dumps([dict(os.environ), os.getcwd()]))"]
STRANGER = 65532  # the sidecar's user


def steps(one: Pod, count: int = 3) -> None:
    eventually(lambda: one.output.exists() and f"step={count}\n" in one.output.read_text(), "steps")


def last(coordinator: TinyCoordinator, true: Callable[[Heartbeat], Any], what: str) -> Heartbeat:
    found: Heartbeat = eventually(lambda: next((beat for beat in coordinator.beats if true(beat)), None), what)
    return found


def test_the_command_of_the_container_runs_in_its_own_folder_with_its_own_environment(tmp_path):
    with pod(tmp_path, SHOWS, command=["not", "this"]) as one:
        client = one.run_shim(FROM_THE_IMAGE="1").listening()
        client.start(1, ["A"])
        client.wait("exited")
        env, cwd = json.loads(one.output.read_text())
        assert cwd == str(tmp_path / "cwd")
        assert env["FROM_THE_IMAGE"] == "1" and env["CUDA_VISIBLE_DEVICES"] == "A"
        assert env["RESHAPE_CHECKPOINTS"] == str(one.checkpoints)
        assert one.stdout.read_bytes() == one.output.read_bytes(), "and its output is the container's"


@pytest.mark.parametrize(("code", "status"), [("0", 0), ("3", 3)])
def test_the_container_ends_with_the_trainers_exit_code(tmp_path, code, status):
    with pod(tmp_path, [*EXITS, code]) as one:
        client = one.run_shim().listening()
        client.start(1)
        client.wait("exited")
        client.ask("end")
        client.close()
        assert one.ended() == status


def test_a_trainer_killed_by_a_signal_is_told_as_a_shell_tells_it(tmp_path):
    with pod(tmp_path, [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]) as one:
        client = one.run_shim().listening()
        client.start(1)
        client.wait("exited")
        client.ask("end")
        client.close()
        assert one.ended() == 137


def test_a_launch_in_which_nothing_was_trained_has_not_succeeded(tmp_path):
    with pod(tmp_path, [*EXITS, "0"]) as one:
        client = one.run_shim().listening()
        client.ask("end")
        client.close()
        assert one.ended() == 143


def test_a_trainer_that_was_stopped_has_not_succeeded_whatever_it_returns(tmp_path):
    saves = "import signal,sys,time; signal.signal(15, lambda *_: sys.exit(0)); print('up', flush=True); time.sleep(99)"
    with pod(tmp_path, [sys.executable, "-c", saves]) as one:
        client = one.run_shim().listening()
        client.start(1)
        eventually(lambda: one.output.exists() and "up" in one.output.read_text(), "it runs")
        client.stop(2)
        assert client.wait("exited")["exit_code"] == 0
        client.ask("end")
        client.close()
        assert one.ended() == 143


def test_a_job_that_reached_its_end_has_succeeded_though_its_trainer_was_stopped(tmp_path):
    with pod(tmp_path, trainer("counts")) as one:
        client = one.run_shim().listening()
        client.start(1)
        steps(one)
        assert not client.ask("end", exit_code="nothing")["ok"]
        client.ask("end", exit_code=0)
        client.ask("end")
        client.wait("exited")
        client.close()
        assert one.ended() == 0


def test_a_first_start_that_fails_is_told_in_the_containers_log(tmp_path):
    with pod(tmp_path, ["no-such-program"]) as one:
        client = one.run_shim().listening()
        assert client.start(1)["status"]["exit_code"] == 127
        assert "no-such-program" in one.stderr.read_text()


def test_the_shim_waits_for_its_sidecar_to_tell_the_end_but_not_for_ever(tmp_path):
    with pod(tmp_path, [*EXITS, "0"]) as one:
        client = one.run_shim().listening()
        client.start(1)
        client.wait("exited")
        asked = boottime()
        client.ask("end")
        assert client.status()["ending"] is True, "it still answers"
        assert one.ended() == 0 and boottime() - asked >= shim.FAREWELL_S - 0.1


def test_another_user_can_command_it_and_no_other_container_can(tmp_path):
    with pod(tmp_path, trainer("counts")) as one:
        one.run_shim().listening()
        assert stat.S_IMODE((one.folder / "shim.sock").stat().st_mode) == 0o666
        assert stat.S_IMODE((one.folder / "launch.json").stat().st_mode) == 0o644
        assert stat.S_IMODE(one.checkpoints.stat().st_mode) == 0o777


def test_in_recreate_mode_the_trainer_gets_those_that_the_device_plugin_chose(tmp_path):
    with pod(tmp_path, SHOWS, visible_gpus=["GPU-a", "GPU-b", "GPU-c"], device_plugin=True) as one:
        client = one.run_shim(NVIDIA_VISIBLE_DEVICES="GPU-x,GPU-y").listening()
        refused = client.start(1, ["GPU-a", "GPU-b", "GPU-c"])
        assert not refused["ok"] and "2 GPUs, not 3" in refused["error"]
        client.start(1, ["GPU-a"])
        assert client.wait("exited")["gpu_ids"] == ["GPU-a"], "the books go on naming the granted one"
        assert json.loads(one.output.read_text())[0]["CUDA_VISIBLE_DEVICES"] == "GPU-x"


@pytest.mark.parametrize("named", ["void", "0,1", ""])
def test_where_the_plugin_names_no_uuids_the_trainer_counts_what_its_container_has(tmp_path, named):
    with pod(tmp_path, SHOWS, device_plugin=True) as one:
        client = one.run_shim(NVIDIA_VISIBLE_DEVICES=named).listening()
        client.start(1, ["GPU-a", "GPU-b"])
        client.wait("exited")
        assert json.loads(one.output.read_text())[0]["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_container_started_again_obeys_nothing_twice_and_nothing_old(tmp_path):
    with pod(tmp_path, trainer("counts")) as one:
        client = one.run_shim().listening()
        client.start(5, ["A"], lease_deadline=boottime() + 1e6)
        steps(one)
        one.shim.kill()
        one.shim.wait()
        client = one.run_shim().listening()
        status = client.status()
        assert (status["trainer"], status["generation"], status["exit_code"]) == ("exited", 5, -9)
        assert "started again" in status["exit_note"] and status["lease_deadline"] == 0.0
        assert client.start(5, ["A"])["status"]["trainer"] == "exited", "the same command again: done long ago"
        assert client.start(4, ["A"])["conflict"]
        assert client.start(6, ["A"])["status"]["trainer"] == "running"


@pytest.mark.parametrize("left", [b"", b"\0" * 300, b'[{"generation": 1', b"[1, 2]", b"[{}, []]", b"\xff{"])
def test_what_a_power_loss_left_of_the_state_hinders_no_new_start(tmp_path, left):
    with pod(tmp_path, [*EXITS, "0"]) as one:
        (one.folder / "shim.state").write_bytes(left)
        client = one.run_shim().listening()
        client.start(3, ["A"])
        assert client.wait("exited")["generation"] == 3
        client.ask("end")
        client.close()
        assert one.ended() == 0
        assert "begins anew, because shim.state cannot be read" in one.stderr.read_text()


def test_a_full_disk_leaves_the_state_that_was_kept_before(tmp_path):
    with pod(tmp_path, trainer("counts")) as one:
        client = one.run_shim().listening()
        client.start(5, ["A"])
        steps(one)
        resource.prlimit(one.shim.pid, resource.RLIMIT_FSIZE, (0, 0))  # writing fails from now on
        client.stop(6)
        client.wait("exited")
        one.shim.kill()
        one.shim.wait()
        client = one.run_shim().listening()
        assert (client.status()["trainer"], client.status()["generation"]) == ("exited", 5)
        assert client.start(4, ["A"])["conflict"]


def test_as_pid_1_a_pods_deletion_lets_the_trainer_save(tmp_path):
    if not can_make_containers():
        pytest.skip("needs the right to make a PID namespace; run as root with util-linux")
    with pod(tmp_path, trainer("counts")) as one:
        client = one.run_shim(CONTAINER).listening()
        assert client.start(1)["status"]["shim_pid"] == 1
        steps(one)
        child = Path(f"/proc/{one.shim.pid}/task/{one.shim.pid}/children").read_text().split()[0]
        os.kill(int(child), signal.SIGTERM)
        assert client.wait("exited")["exit_code"] == 143
        client.close()
        assert one.ended() == 143 and (one.checkpoints / "count").exists() and one.left() == []


def test_as_pid_1_a_pods_deletion_is_heard_while_the_shim_starts(tmp_path):
    if not can_make_containers():
        pytest.skip("needs the right to make a PID namespace; run as root with util-linux")
    with pod(tmp_path, trainer("counts")) as one, (one.folder / "shim.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # so that it waits
        one.run_shim(CONTAINER)

        def waiting() -> int | None:
            children = Path(f"/proc/{one.shim.pid}/task/{one.shim.pid}/children").read_text().split()
            with contextlib.suppress(OSError, IndexError):  # it is still being made, or has just closed one
                if lock.name in [str(fd.readlink()) for fd in Path(f"/proc/{children[0]}/fd").iterdir()]:
                    return int(children[0])
            return None

        os.kill(eventually(waiting, "the shim waits for its lock"), signal.SIGTERM)
        assert one.ended() == 143 and not (one.checkpoints / "count").exists()


@pytest.mark.parametrize("version", ["3.6", "3.7"])
def test_a_python_that_is_too_old_is_told_of_in_a_sentence(tmp_path, version):
    old = python_of(version)
    with pod(tmp_path, ["true"]) as one:
        one.run_shim(python=old)
        assert one.ended() == 1
        assert "needs Python 3.8 or newer" in one.stderr.read_text() and "Traceback" not in one.stderr.read_text()


V1 = {
    "cpuacct/cpuacct.usage": "2500000000\n",
    "memory/memory.usage_in_bytes": "5000\n",
    "memory/memory.stat": "cache 7\ntotal_inactive_file 1000\n",
    "blkio/blkio.throttle.io_service_bytes": "8:0 Read 30\n8:0 Write 12\n8:0 Total 42\nTotal 42\n",
    "cpu/cpu.cfs_quota_us": "50000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "cpu/cpu.shares": "512\n",
    "memory/memory.limit_in_bytes": "8000\n",
}
V2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
    "memory.current": "5000\n",
    "memory.stat": "anon 1\ninactive_file 1000\n",
    "io.stat": "8:0 rbytes=20 wbytes=12 rios=3 wios=4 dbytes=9\n8:16 rbytes=10 wbytes=0\n",
    "cpu.max": "50000 100000\n",
    "cpu.weight": "20\n",
    "memory.max": "8000\n",
    "memory.oom.group": "1\n",
}
FREE_1 = {**V1, "cpu/cpu.cfs_quota_us": "-1\n", "blkio/blkio.throttle.io_service_bytes": "Total 0\n"}
FREE_1 |= {"memory/memory.limit_in_bytes": "9223372036854771712\n"}
FREE_2 = {**V2, "cpu.max": "max 100000\n", "io.stat": "", "memory.max": "max\n"}
USED = {"cpu_s": 2.5, "memory": 4000}


@pytest.mark.parametrize(
    ("files", "found", "limits"),
    [
        (V1, {**USED, "block_io": 42, "cpu_limit": 0.5, "cpu_weight": 512}, (8000, 4000, False)),
        (V2, {**USED, "block_io": 42, "cpu_limit": 0.5, "cpu_weight": 20}, (8000, 4000, True)),
        (FREE_1, {**USED, "block_io": 0, "cpu_limit": None, "cpu_weight": 512}, (0, None, False)),
        (FREE_2, {**USED, "block_io": 0, "cpu_limit": None, "cpu_weight": 20}, (0, None, False)),
        ({}, dict.fromkeys(("cpu_s", "memory", "block_io", "cpu_limit", "cpu_weight")), (0, None, False)),
    ],
)
def test_what_a_container_uses_is_read_from_either_version_of_control_groups(monkeypatch, files, found, limits):
    def opened(path: str) -> io.StringIO:
        if (name := path.removeprefix("/sys/fs/cgroup/")) not in files:
            raise FileNotFoundError(path)
        return io.StringIO(files[name])

    monkeypatch.setattr(container, "open", opened, raising=False)
    assert container.use() == found
    assert container.limits() == limits


# beside a sidecar in another container


@pytest.fixture
def coordinator():
    with serving(TinyCoordinator()) as tiny:
        yield tiny


def call(beat: Heartbeat, path: str, body: Any) -> tuple[int, bytes]:
    address, (raw, headers) = urlsplit(beat.url), signed_call(path, body)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=patient(15))
    try:
        connection.request("POST", path, raw, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def watched(one: Pod) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return PodSourceWatch(one.folder).edited() == []
    return False


def start(beat: Heartbeat, generation: int = 1) -> None:
    body = {"generation": generation, "command_id": f"job-1:{generation}:start", "gpu_ids": ["g0"]}
    assert call(beat, "/v1/start", body)[0] == 200


def test_a_sidecar_waits_for_the_trainers_container_and_trains_with_it(tmp_path, coordinator):
    with pod(tmp_path, trainer("counts"), coordinator.url()) as one:
        (one.folder / "launch.json").write_text("{}")  # training code may write here what it likes
        one.run_sidecar()
        eventually(lambda: "listens on" in one.sidecar_said(), "the sidecar listens")
        assert coordinator.beats == [], "the image may be pulled for minutes"
        shutil.copy(one.keys / "launch.json", one.folder)
        one.run_shim()
        beat = last(coordinator, lambda b: True, "a heartbeat")
        assert beat.job_id == "job-1" and beat.url.startswith("http://127.0.0.1:")
        start(beat)
        steps(one)
        status, raw = call(beat, "/v1/output", {"offset": 0, "limit": 7})
        piece = msgspec.json.decode(raw, type=Output)
        assert (status, piece.data, piece.offset) == (200, one.output.read_bytes()[:7], 7)


def test_what_the_trainer_uses_is_counted_by_its_own_container(tmp_path, coordinator):
    with pod(tmp_path, trainer("counts"), coordinator.url()) as one:
        one.run_shim().listening()
        one.run_sidecar()
        start(last(coordinator, lambda b: True, "a heartbeat"))
        beat = last(coordinator, lambda b: b.shim.trainer == "running" and b.usage.cpu_cores is not None, "usage")
        assert beat.shim.cpu_s is not None and beat.usage.memory and beat.shim.memory
        # The shim reads it for each of the two, and here all that runs beside counts; ours alone is a hundredth of it.
        assert 0.5 < beat.usage.memory / beat.shim.memory < 2
        assert not (one.folder / "sidecar.url").exists(), "nobody there needs it"


def test_a_restarted_sidecar_finds_the_same_trainer(tmp_path, coordinator):
    with pod(tmp_path, trainer("counts"), coordinator.url()) as one:
        one.run_shim().listening()
        one.run_sidecar()
        start(last(coordinator, lambda b: True, "a heartbeat"))
        old = last(coordinator, lambda b: b.progress.iterations >= 3, "steps")
        one.sidecar.kill()
        one.sidecar.wait()
        one.run_sidecar()
        new = last(coordinator, lambda b: b.sidecar_pid == one.sidecar.pid and b.progress.iterations, "a new sidecar")
        assert (new.shim.trainer_pid, new.shim.spawn_at) == (old.shim.trainer_pid, old.shim.spawn_at)
        assert new.seq > old.seq and new.progress.iterations >= old.progress.iterations


@pytest.mark.parametrize(("answer", "status"), [("completed", 0), ("unknown launch", 143)])
def test_when_the_coordinator_is_done_with_a_launch_its_containers_end_by_themselves(
    tmp_path, coordinator, answer, status
):
    with pod(tmp_path, trainer("counts"), coordinator.url()) as one:
        one.run_shim().listening()
        one.run_sidecar()
        start(last(coordinator, lambda b: True, "a heartbeat"))
        steps(one)
        coordinator.answer = answer
        assert one.ended() == status
        assert any(b.shim.trainer == "exited" and b.shim.ending for b in coordinator.beats), "the end was told"
        one.sidecar.terminate()  # as the kubelet does once the trainer's container has ended
        assert one.sidecar.wait(patient(10)) == 0


def test_a_deleted_pod_tells_its_end_and_its_checkpoint_before_it_goes(tmp_path, coordinator):
    with pod(tmp_path, trainer("counts"), coordinator.url()) as one:
        one.run_shim().listening()
        one.run_sidecar()
        start(last(coordinator, lambda b: True, "a heartbeat"))
        steps(one)
        asked = boottime()
        one.shim.terminate()
        assert one.ended() == 143
        assert coordinator.beats[-1].shim.trainer == "exited" and coordinator.beats[-1].shim.exit_code == 143
        assert boottime() - asked < shim.FAREWELL_S + 5.0


def test_a_sidecar_of_another_user_reaches_the_shim(tmp_path, coordinator):
    if os.geteuid() != 0:
        pytest.skip("needs the right to change users; run as root")
    probe = (
        "import os,socket; folder = os.open('.', os.O_RDONLY); s = socket.socket(socket.AF_UNIX);"
        "s.connect(f'/proc/self/fd/{folder}/shim.sock'); s.sendall(b'{\"do\":\"status\"}\\n'); print(s.recv(9999))"
    )
    with pod(tmp_path, trainer("counts")) as one:
        one.run_shim().listening()
        done = subprocess.run(
            ["python3", "-c", probe], cwd=one.folder, env={"PATH": "/usr/bin:/bin"}, user=STRANGER, group=STRANGER,
            extra_groups=[], capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "trainer" in done.stdout, done.stderr


def test_in_a_container_of_one_image_the_shim_starts_its_sidecar_and_nothing_is_installed(tmp_path, coordinator):
    with pod(tmp_path, trainer("counts"), coordinator.url()) as one:
        command = [sys.executable, "-m", "sidecar", "--folder", str(one.folder), "--keys", str(one.keys)]
        spec = json.loads((one.keys / "launch.json").read_text())
        (one.keys / "launch.json").write_text(json.dumps({**spec, "sidecar": command}))
        (one.folder / "launch.json").unlink()
        one.checkpoints.rmdir()
        one.run_shim(more=("--keys", str(one.keys)), POD_IP="127.0.0.1", PYTHONPATH=str(ROOT))
        start(last(coordinator, lambda b: True, "a heartbeat"))
        beat = last(coordinator, lambda b: b.shim.trainer == "running" and b.usage.memory, "usage")
        assert one.checkpoints.is_dir() and beat.shim.cpu_s is None, "it is counted from /proc"
        coordinator.answer = "completed"
        assert one.ended() == 0 and one.left() == []


@pytest.mark.parametrize("single_container", [False, True], ids=["apart", "one-container"])
def test_an_unasked_stop_is_refused_where_code_in_the_trainers_container_is_edited(
    tmp_path: Path, coordinator: TinyCoordinator, single_container: bool
) -> None:
    (tmp_path / "cwd").mkdir()
    module, script = tmp_path / "cwd" / "model.py", tmp_path / "cwd" / "train.py"
    module.write_text("VERSION = 1\n")
    counts = Path(trainer("counts")[1]).read_text()
    script.write_text(f"import sys\nsys.path.insert(0, {str(module.parent)!r})\nimport model\n{counts}")
    with pod(tmp_path, [sys.executable, "train.py"], coordinator.url()) as one:
        if single_container:
            command = [sys.executable, "-m", "sidecar", "--folder", str(one.folder), "--keys", str(one.keys)]
            spec = json.loads((one.keys / "launch.json").read_text())
            (one.keys / "launch.json").write_text(json.dumps({**spec, "sidecar": command}))
            one.run_shim(more=("--keys", str(one.keys)), POD_IP="127.0.0.1", PYTHONPATH=str(ROOT))
        else:
            one.run_sidecar().run_shim()
        start(last(coordinator, lambda b: True, "a heartbeat"))
        steps(one)
        beat = last(coordinator, lambda b: b.shim.trainer == "running", "it trains")
        eventually(lambda: watched(one), "its code is watched")
        named = [pid for pid in one.left() if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert named == [beat.shim.trainer_pid], "whoever ends the script by its name ends nothing else"
        stop = {"generation": 2, "command_id": "job-1:2:stop", "grace_s": 5.0, "unasked": True}
        module.write_text("VERSION = 2\nif VERSI")
        status, answer = call(beat, "/v1/stop", stop)
        assert (status, json.loads(answer)["error"]) == (
            409,
            "the code has changed since the training was started: model.py",
        )
        last(coordinator, lambda b: b.edited == ["model.py"], "it is told")
        module.write_text("VERSION = 1\n")
        assert call(beat, "/v1/stop", stop)[0] == 200, "it is as it was"
        last(coordinator, lambda b: b.shim.trainer == "exited", "it has stopped")
        module.write_text("VERSION = 3\n")
        start(beat, 3)
        last(coordinator, lambda b: b.shim.generation == 3 and b.shim.trainer == "running", "the new code trains")
        assert call(beat, "/v1/stop", {**stop, "generation": 4, "command_id": "job-1:4:stop"})[0] == 200
        last(coordinator, lambda b: b.shim.generation == 4 and b.shim.trainer == "exited", "it has stopped again")
        coordinator.answer = "completed"
        assert one.ended() == 0
        assert one.left() == [] or single_container
