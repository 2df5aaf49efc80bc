"""A real sidecar beside a real shim, with a tiny coordinator on loopback."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.adapters.sidecars import HttpSidecars
from coordinator.errors import Fatal, Transient
from sidecar import kept_output
from sidecar.endpoints.server import may_be_operator
from sidecar.protocol import HEADER_JOB, HEADER_LAUNCH, HEADER_SIGNATURE, Heartbeat, StopCall, sign, signed
from tests.fakes.sidecar_launch import ROOT, Launch, rights
from tests.fakes.tiny_coordinator import KEY, TinyCoordinator, serving
from tests.patience import eventually, patient

Begin = Callable[..., Launch]
START = {"generation": 1, "command_id": "job-1:1:start", "gpu_ids": ["g0"]}
STOP = {"generation": 2, "command_id": "job-1:2:stop", "grace_s": 10.0}


@pytest.fixture
def coordinator() -> Iterator[TinyCoordinator]:
    with serving(TinyCoordinator()) as tiny:
        yield tiny


@pytest.fixture
def begin(tmp_path: Path, coordinator: TinyCoordinator) -> Iterator[Begin]:
    begun: list[Launch] = []

    def one(folder: Path | None = None, **changes: Any) -> Launch:
        begun.append(Launch(folder or tmp_path / "launch", coordinator.url(), **changes))
        return begun[-1].ready()

    yield one
    for launch in begun:
        launch.end()


def last(coordinator: TinyCoordinator, true: Callable[[Heartbeat], Any], what: str) -> Heartbeat:
    """The first heartbeat of which it is true."""
    return eventually(lambda: next((beat for beat in coordinator.beats if true(beat)), None), what)


def more_beats(coordinator: TinyCoordinator, count: int = 3) -> None:
    have = len(coordinator.beats)
    eventually(lambda: len(coordinator.beats) >= have + count, "further heartbeats")


def test_heartbeats_are_signed_numbered_and_say_where_the_sidecar_answers(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin()
    more_beats(coordinator)
    taken = list(coordinator.taken)
    assert all(one.trusted for one in taken)
    first = taken[0].beat
    assert [one.beat.seq - first.seq for one in taken] == list(range(len(taken)))
    assert (first.job_id, first.launch, first.url, first.emulated) == ("job-1", 3, launch.url(), True)
    assert first.shim.trainer == "none" and first.shim.shim_pid == launch.shim.pid


def test_a_lease_is_counted_from_when_the_heartbeat_was_sent(coordinator: TinyCoordinator, begin: Begin) -> None:
    coordinator.delay_s, coordinator.lease_s = 0.5, 100.0
    launch = begin()
    deadline = eventually(lambda: launch.status().shim.lease_deadline, "a lease")
    assert any(deadline - 100.0 <= one.at for one in coordinator.taken), "counted from the answer"
    assert coordinator.most_at_once == 1


@pytest.mark.parametrize("how", ["unsigned", "other key", "other path", "earlier number", "500", "junk"])
def test_an_answer_that_is_not_the_coordinators_to_this_heartbeat_renews_nothing(
    coordinator: TinyCoordinator, begin: Begin, how: str
) -> None:
    coordinator.answer = how
    launch = begin()
    more_beats(coordinator)
    assert launch.status().shim.lease_deadline == 0.0
    coordinator.answer = "good"
    eventually(lambda: launch.status().shim.lease_deadline > 0, "a lease once the answers are right")


def test_a_launch_that_the_coordinator_does_not_know_saves_and_ends(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin()
    launch.start(1)
    last(coordinator, lambda b: b.progress.first_step_at, "a step")
    coordinator.answer = "unknown launch"
    assert eventually(lambda: launch.shim.poll() is not None, "the shim's end")
    assert list(launch.checkpoints.iterdir())


def test_training_is_told_from_first_step_to_verified_checkpoint(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin(heartbeat_s=30.0)  # so all that comes, comes at once
    launch.start(1, ("g0", "g1"))
    running = last(coordinator, lambda b: b.shim.trainer == "running", "running")
    assert running.shim.gpu_ids == ["g0", "g1"] and running.shim.generation == 1
    first = last(coordinator, lambda b: b.progress.first_step_at, "the first step")
    assert first.shim.spawn_at is not None and first.progress.first_step_at > first.shim.spawn_at
    assert first.progress.iterations >= 1 and first.progress.total_iterations == 100000
    status, _, answer = launch.call("stop", STOP)
    assert (status, answer["trainer"], answer["generation"]) == (200, "stopping", 2)
    ended = last(coordinator, lambda b: b.shim.trainer == "exited", "the end")
    assert ended.checkpoint is not None and ended.shim.exit_code == 143
    assert ended.checkpoint.step == ended.progress.iterations and ended.checkpoint.generation == 1
    assert ended.checkpoint_at is not None and ended.shim.stop_at <= ended.checkpoint_at <= ended.shim.exit_at


SAVES_ON = """
import hashlib, json, os, sys, time
if sys.argv[2] == "hook":
    open(os.environ["RESHAPE_ANNOUNCE"], "w").write("SIGUSR1")
else:
    path = os.path.join(sys.argv[1], "g1-s7")
    os.makedirs(path)
    open(os.path.join(path, "model"), "w").write("weights")
    manifest = {"job_id": sys.argv[2], "generation": 1, "step": 7}
    manifest["files"] = {"model": hashlib.sha256(b"weights").hexdigest()}
    json.dump(manifest, open(os.path.join(path, "manifest.json"), "w"))
print("ready", flush=True)
time.sleep(1000)
"""


def saving(begin: Begin, tmp_path: Path, what: str) -> Launch:
    folder, script = tmp_path / "launch", tmp_path / "saves_on.py"
    script.write_text(SAVES_ON)
    launch = begin(command=[sys.executable, str(script), str(folder / "checkpoints"), what], heartbeat_s=30.0)
    launch.start(1)
    return launch


def test_a_hook_that_announces_itself_is_told_at_once_and_by_the_next_sidecar_too(
    coordinator: TinyCoordinator, begin: Begin, tmp_path: Path
) -> None:
    launch = saving(begin, tmp_path, "hook")
    told = last(coordinator, lambda b: b.hook, "a heartbeat that names the hook")
    assert told.shim.trainer == "running" and not any(b.hook for b in coordinator.beats if b.shim.trainer != "running")
    os.kill(told.sidecar_pid, signal.SIGKILL)
    last(coordinator, lambda b: b.sidecar_pid != told.sidecar_pid and b.hook, "the hook, told by the next sidecar")
    launch.call("stop", STOP)
    last(coordinator, lambda b: b.shim.trainer == "exited", "the end")


def test_a_checkpoint_is_verified_and_told_while_its_trainer_goes_on(
    coordinator: TinyCoordinator, begin: Begin, tmp_path: Path
) -> None:
    saving(begin, tmp_path, "job-1")
    told = last(coordinator, lambda b: b.checkpoint, "a heartbeat with the checkpoint")
    assert told.shim.trainer == "running" and told.checkpoint is not None
    assert (told.checkpoint.name, told.checkpoint.step, told.checkpoint.generation) == ("g1-s7", 7, 1)
    (folder,) = tmp_path.rglob("g1-s7")
    files = [one for one in folder.rglob("*") if one.is_file() and one.name != "manifest.json"]
    assert told.checkpoint_bytes == sum(one.stat().st_size for one in files) > 0


def test_a_second_generation_goes_on_and_its_gap_can_be_told(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin()
    launch.start(1)
    last(coordinator, lambda b: b.progress.iterations >= 5, "some steps")
    launch.call("stop", STOP)
    ended = last(coordinator, lambda b: b.shim.trainer == "exited", "the end")
    launch.start(2, ("g0",), checkpoint=ended.checkpoint.name)
    told = ended.seq
    again = last(
        coordinator, lambda b: b.seq > told and b.shim.trainer == "running" and b.progress.first_step_at, "a step"
    )
    assert again.progress.previous_last_step_at == ended.progress.last_step_at
    assert again.progress.first_step_at > again.shim.spawn_at > again.progress.previous_last_step_at
    assert again.progress.iterations >= ended.progress.iterations


def test_a_repeated_start_is_answered_as_before_and_starts_nothing(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin()
    pid = launch.start(1)["trainer_pid"]
    assert launch.start(1)["trainer_pid"] == pid
    assert launch.status().shim.trainer_pid == pid


def test_an_older_generation_gets_409_and_the_answer_is_signed(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin()
    launch.start(5)
    raw = json.dumps({**START, "generation": 4, "command_id": "job-1:4:start"}).encode()
    status, headers, body = launch.send("POST", "/v1/start", raw, rights("/v1/start", raw))
    assert status == 409 and json.loads(body)["error"]
    assert signed(KEY, "REPLY", "/v1/start", body, headers[HEADER_SIGNATURE])


def test_an_unasked_stop_is_refused_where_the_next_start_would_run_other_code(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin()
    pid = launch.start(1)["trainer_pid"]
    last(coordinator, lambda beat: beat.progress.iterations > 5, "it trains")
    script = launch.folder / "trainer.py"
    code = script.read_text()
    script.write_text(code + "half a li")
    status, _, answer = launch.call("stop", {**STOP, "unasked": True})
    assert (status, answer["error"]) == (409, "the code has changed since the training was started: trainer.py")
    assert last(coordinator, lambda beat: beat.edited, "it is told").edited == ["trainer.py"]
    assert launch.status().shim.trainer_pid == pid and not launch.status().shim.stop_asked
    script.write_text(code)
    assert launch.call("stop", {**STOP, "unasked": True})[0] == 200, "it is as it was"
    last(coordinator, lambda beat: beat.shim.trainer == "exited", "it has stopped")
    launch.start(3)
    script.write_text(code + "half a li")
    assert launch.call("stop", {**STOP, "generation": 4, "command_id": "job-1:4:stop"})[0] == 200, "somebody asked"


def test_answers_to_signed_calls_are_signed_and_others_are_not(begin: Begin) -> None:
    launch = begin()
    raw = json.dumps(START).encode()
    _, headers, body = launch.send("POST", "/v1/start", raw, rights("/v1/start", raw))
    assert signed(KEY, "REPLY", "/v1/start", body, headers[HEADER_SIGNATURE])
    _, headers, body = launch.send("GET", "/v1/status", b"", rights("/v1/status", b"", "GET"))
    assert signed(KEY, "REPLY", "/v1/status", body, headers[HEADER_SIGNATURE])
    assert HEADER_SIGNATURE not in launch.send("GET", "/v1/status")[1]


def test_a_start_that_comes_after_its_lease_starts_nothing(coordinator: TinyCoordinator, begin: Begin) -> None:
    coordinator.answer = "unsigned"
    launch = begin()
    more_beats(coordinator)
    status, headers, answer = launch.call("start", {**START, "lease_s": 0.01})
    assert status == 503 and headers["Retry-After"] and "lease" in answer["error"]
    assert launch.status().shim.trainer == "none"


def strangers(path: str, body: bytes) -> dict[str, dict[str, str]]:
    good = rights(path, body)
    return {
        "nothing": {},
        "no signature": {HEADER_JOB: "job-1", HEADER_LAUNCH: "3"},
        "empty signature": {**good, HEADER_SIGNATURE: ""},
        "another key": {**good, HEADER_SIGNATURE: sign(b"x" * 64, "POST", path, body)},
        "another job": {**good, HEADER_JOB: "job-2"},
        "another launch": {**good, HEADER_LAUNCH: "2"},
        "another path": {**good, HEADER_SIGNATURE: sign(KEY, "POST", "/v1/status", body)},
        "another method": {**good, HEADER_SIGNATURE: sign(KEY, "GET", path, body)},
        "another body": {**good, HEADER_SIGNATURE: sign(KEY, "POST", path, body + b" ")},
        "an answer's signature": {**good, HEADER_SIGNATURE: sign(KEY, "REPLY", path, body)},
        "truncated": {**good, HEADER_SIGNATURE: good[HEADER_SIGNATURE][:-1]},
        "not ASCII": {**good, HEADER_SIGNATURE: "\xe9" * 64},
        "a bearer token": {"Authorization": "Bearer " + KEY.decode()},
    }


def test_commands_obey_only_the_coordinator_and_all_others_get_the_same_answer(begin: Begin) -> None:
    launch = begin()
    bodies = set()
    calls = {"/v1/start": START, "/v1/stop": STOP, "/v1/checkpoint": START, "/v1/output": {"offset": 0, "limit": 1}}
    for path, call in calls.items():
        raw = json.dumps(call).encode()
        for who, headers in strangers(path, raw).items():
            status, answered, body = launch.send("POST", path, raw, headers)
            assert status == 401, (who, path)
            assert HEADER_SIGNATURE not in answered
            bodies.add(body)
        assert launch.send("POST", f"{path}?signature={sign(KEY, 'POST', path, raw)}", raw)[0] == 401
    assert len(bodies) == 1
    shim = launch.status().shim
    assert (shim.trainer, shim.generation, shim.command_id) == ("none", 0, "")


def test_a_pod_of_a_gang_says_which_it_is_and_its_trainer_is_told_where_the_others_are(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin(member=2, pod_uid="uid-of-the-pod")
    meet = {"RANK": "2", "WORLD_SIZE": "3", "TF_CONFIG": '{"cluster": {}}'}
    launch.start(1, env=meet)
    told = last(coordinator, lambda b: b.shim.trainer == "running", "running")
    assert (told.member, told.boot.partition("/")[2]) == (2, "uid-of-the-pod")
    environ = Path(f"/proc/{told.shim.trainer_pid}/environ").read_bytes().decode().split("\0")
    assert meet.items() <= dict(line.partition("=")[::2] for line in environ).items()


@pytest.mark.parametrize(
    ("verb", "body", "named"),
    [
        ("start", b"", "body"),
        ("start", b"{", "body"),
        ("start", b"[" * 60_000, "body"),
        ("start", b'{"generation": NaN}', "body"),
        ("start", b'\xff\xfe{"a"', "body"),
        ("start", {"command_id": "c", "gpu_ids": []}, "generation"),
        ("start", {**START, "generation": "1"}, "generation"),
        ("start", {**START, "generation": -1}, "generation"),
        ("start", {**START, "generation": 10**30}, "generation"),
        ("start", {**START, "gpu_ids": "g0"}, "gpu_ids"),
        ("start", {**START, "gpu_ids": ["g0", "g0"]}, "gpu_ids"),
        ("start", {**START, "checkpoint": "../../etc"}, "checkpoint"),
        ("start", {**START, "checkpoint": ".."}, "checkpoint"),
        ("start", {**START, "env": {"A B": "1"}}, "env"),
        ("start", {**START, "env": {"A": "\0"}}, "env"),
        ("start", {**START, "env": {f"A{n}": "" for n in range(65)}}, "env"),
        ("start", {**START, "env": {"A": 1}}, "env"),
        ("start", {**START, "lease_s": 1e300}, "lease_s"),
        ("stop", {**STOP, "grace_s": -1}, "grace_s"),
        ("stop", {**STOP, "command_id": ""}, "command_id"),
        ("checkpoint", {"generation": 1}, "command_id"),
        ("output", {"offset": -(1 << 30), "limit": 10}, "offset"),
        ("output", {"offset": 0, "limit": 1 << 30}, "bytes"),
        ("output", {"offset": 0}, "limit"),
    ],
)
def test_a_signed_call_that_cannot_be_gets_400_with_the_fields_name(
    shared: Launch, verb: str, body: Any, named: str
) -> None:
    status, _, answer = shared.call(verb, body)
    assert status == 400 and named in answer["error"]
    assert shared.status().shim.command_id == ""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """A launch that no test changes; its folder's path is longer than a Unix socket's may be."""
    with serving(TinyCoordinator()) as tiny:
        launch = Launch(tmp_path_factory.mktemp("shared") / ("d" * 100) / ("e" * 100), tiny.url())
        yield launch.ready()
        launch.end()


def test_unknown_paths_and_methods_get_a_sentence(shared: Launch) -> None:
    for method, path, wanted in (
        ("GET", "/", 404),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1/start", 405),
        ("DELETE", "/v1/stop", 405),
        ("POST", "/v1/status", 405),
        ("PATCH", "/metrics", 405),
    ):
        status, headers, body = shared.send(method, path)
        assert status == wanted and json.loads(body)["error"]
        assert ("Allow" in headers) == (wanted == 405)


def test_a_body_over_the_limit_is_refused_and_the_next_request_served(shared: Launch) -> None:
    raw = b" " * (1 << 20)
    try:
        status = shared.send("POST", "/v1/start", raw, rights("/v1/start", raw))[0]
    except OSError:  # it may close before we have sent it all
        status = 413
    assert 400 <= status < 500
    assert shared.send("GET", "/healthz")[0] == 200


def test_a_checkpoint_that_the_trainer_cannot_make_is_refused_with_a_sentence(shared: Launch) -> None:
    status, _, answer = shared.call("checkpoint", {"generation": 1, "command_id": "job-1:1:checkpoint"})
    assert status == 400 and "cannot save without exiting" in answer["error"]


def test_livez_does_not_ask_the_shim(begin: Begin) -> None:
    launch = begin()
    os.kill(launch.shim.pid, signal.SIGSTOP)
    assert launch.send("GET", "/livez")[::2] == (200, b'{"status":"ok"}')
    os.kill(launch.shim.pid, signal.SIGCONT)


PRINTS_MUCH = """
import sys
from reshape_hooks import plain
megabyte = b"step=3 of a line that tells nothing\\n" * 30_000
def flood(megabytes):
    for _ in range(megabytes):
        sys.stdout.buffer.write(megabyte)
    sys.stdout.flush()
flood(2)
for step in range(1, 21):
    plain.say(step=step, total=20)
flood(40)
"""


def test_the_last_step_is_told_though_far_more_is_printed_behind_it_than_can_be_read(
    coordinator: TinyCoordinator, begin: Begin, tmp_path: Path
) -> None:
    script = tmp_path / "prints_much.py"
    script.write_text(PRINTS_MUCH)
    launch = begin(command=[sys.executable, str(script)], env={"PYTHONPATH": str(ROOT)})
    launch.start(1)
    ended = last(coordinator, lambda b: b.shim.trainer == "exited", "the end")
    assert ended.shim.exit_code == 0, ended.shim.output_tail
    assert (ended.progress.iterations, ended.progress.total_iterations) == (20, 20)


def test_the_coordinator_reads_what_the_trainer_printed(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin()
    status, headers, answer = launch.call("output", {"offset": 0, "limit": 100})
    assert (status, answer) == (200, {"data": "", "offset": 0}) and HEADER_SIGNATURE in headers
    launch.start(1)
    last(coordinator, lambda b: b.progress.iterations >= 3, "some steps")
    text = (launch.folder / "output.log").read_bytes()
    answer = launch.call("output", {"offset": 5, "limit": 10})[2]
    assert (base64.b64decode(answer["data"]), answer["offset"]) == (text[5:15], 15)
    answer = launch.call("output", {"offset": -7, "limit": 1000})[2]
    end = base64.b64decode(answer["data"])
    assert (launch.folder / "output.log").read_bytes()[: answer["offset"]].endswith(end) and len(end) >= 7, "the end"
    answer = launch.call("output", {"offset": 1 << 40, "limit": 10})[2]
    found = base64.b64decode(answer["data"])
    assert found == kept_output.LOST.encode() + text[:10], "this is another log than the one that was read"


def test_steps_of_an_earlier_launch_in_the_same_log_are_not_taken_for_those_of_its_own_trainer(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin(command=["sleep", "60"])
    with (launch.folder / "output.log").open("a") as log:
        log.write("step=1000 loss=0.5\n")  # the earlier one, in the moment in which it was stopped
    launch.start(1)
    beat = last(coordinator, lambda b: b.shim.trainer == "running" and b.progress.iterations == 1000, "read")
    later = last(coordinator, lambda b: b.seq > beat.seq + 2, "more heartbeats")
    assert (later.progress.first_step_at, later.progress.last_step_at, later.progress.value) == (None, None, 0.5)


# the log of a launch that is gone


def test_a_reader_shows_the_log_to_the_coordinator_and_to_nobody_else(tmp_path: Path) -> None:
    log, key = tmp_path / "output.log", b"the reader's key"
    log.write_bytes(b"step=1\nstep=2\n")
    about = {"job_id": "job-1", "launch": 0, "coordinator": "http://c:8080", "output": str(log), "port": 0}
    (tmp_path / "launch.json").write_text(json.dumps(about))
    (tmp_path / "launch.key").write_bytes(key)
    command = [sys.executable, "-m", "sidecar.reader", "--keys", str(tmp_path)]
    reader = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert reader.stderr is not None
        url = reader.stderr.readline().rpartition(" ")[2].strip()
        found = HttpSidecars().read_output(url, key, "job-1", 0, 7, 100)
        assert found == (b"step=2\n", 14)
        for wrong in ((b"another key", "job-1", 0), (key, "job-2", 0), (key, "job-1", 1)):
            with pytest.raises(Fatal, match="401"):
                HttpSidecars().read_output(url, *wrong, 0, 100)
        with pytest.raises(Fatal, match="404"):
            HttpSidecars().stop(url, key, "job-1", 0, StopCall(generation=1, command_id="c", grace_s=1))
        log.unlink()
        assert HttpSidecars().read_output(url, key, "job-1", 0, 7, 100) == (kept_output.LOST.encode(), 0)
        log.symlink_to(tmp_path / "launch.key")
        with pytest.raises(Transient, match="cannot be read"):
            HttpSidecars().read_output(url, key, "job-1", 0, 0, 100)
        log.unlink()
        os.mkfifo(log)
        with pytest.raises(Transient, match="cannot be read"):
            HttpSidecars().read_output(url, key, "job-1", 0, 0, 100)
    finally:
        reader.terminate()
    assert reader.wait(patient(10)) == 0


@pytest.mark.parametrize(
    ("host", "remote", "may"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "10.0.0.7", False),
        ("::1", "::1", True),
        ("10.0.0.9", "10.0.0.7", True),
        ("10.0.0.9", None, True),
        ("127.0.0.1", None, False),
    ],
)
def test_on_a_pods_own_address_an_operator_may_call_from_elsewhere(host: str, remote: str | None, may: bool) -> None:
    assert may_be_operator(host, remote) is may


def test_metrics_are_prometheus_text(shared: Launch) -> None:
    status, headers, body = shared.send("GET", "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    assert b"\nreshape_iterations_total 0.0\n" in body and b"\nreshape_heartbeats_sent_total " in body


def test_an_operators_wish_reaches_the_coordinator_and_changes_nothing_here(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin()
    operator = {"Authorization": "Bearer secret-1"}
    assert launch.send("POST", "/v1/reshape", b'{"gpus": 2}', operator)[0] == 401
    (launch.folder / "operator.token").write_text("secret-1\n")
    before = launch.status().shim
    status, _, body = launch.send("POST", "/v1/reshape", b'{"gpus": 2}', operator)
    assert (status, json.loads(body)) == (202, {"decision_id": "d-1"})
    assert launch.send("POST", "/v1/signal", b'{"signal": "checkpoint"}', operator)[0] == 202
    assert launch.send("POST", "/v1/reshape", b'{"gpus": 1, "force": true}', operator)[0] == 202
    assert [(w.job_id, w.launch, w.gpus, w.signal, w.force) for w in coordinator.wishes] == [
        ("job-1", 3, 2, None, False),
        ("job-1", 3, None, "checkpoint", False),
        ("job-1", 3, 1, None, True),
    ]
    after = launch.status().shim
    assert (after.generation, after.command_id, after.trainer) == (before.generation, before.command_id, "none")


def test_a_wish_needs_the_operators_token_and_must_make_sense(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin()
    (launch.folder / "operator.token").write_text("secret-1")
    raw = b'{"gpus": 2}'
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": "secret-1"}, rights("/v1/reshape", raw)):
        assert launch.send("POST", "/v1/reshape", raw, headers)[0] == 401
    operator = {"Authorization": "Bearer secret-1"}
    for path, bad in (("reshape", b'{"gpus": -1}'), ("reshape", b"{}"), ("signal", b'{"signal": "rm -rf"}')):
        status, _, body = launch.send("POST", f"/v1/{path}", bad, operator)
        assert status == 400 and ("gpus" if path == "reshape" else "signal") in json.loads(body)["error"]
    coordinator.refuse_wishes = 409
    status, _, body = launch.send("POST", "/v1/reshape", raw, operator)
    assert (status, json.loads(body)) == (409, {"error": "the job has ended"})
    assert coordinator.wishes == []


def test_the_coordinator_may_be_away_and_come_back_while_training_goes_on(tmp_path: Path) -> None:
    tiny = TinyCoordinator()
    with serving(tiny):
        launch = Launch(tmp_path / "launch", tiny.url()).ready()
        (launch.folder / "operator.token").write_text("secret-1")
        pid = launch.start(1)["trainer_pid"]
        step = last(tiny, lambda b: b.progress.iterations >= 3, "some steps").progress.iterations
    try:
        status, headers, body = launch.send("POST", "/v1/reshape", b'{"gpus": 2}', {"Authorization": "Bearer secret-1"})
        assert status == 503 and headers["Retry-After"] and "cannot be reached" in json.loads(body)["error"]
        eventually(lambda: launch.status().progress.iterations > step + 10, "steps without a coordinator")
        tiny.taken.clear()
        with serving(tiny):
            beat = last(tiny, lambda b: True, "a heartbeat after the coordinator came back")
            assert beat.shim.trainer_pid == pid and beat.progress.iterations > step
    finally:
        launch.end()


def test_a_killed_sidecar_is_back_with_the_same_trainer_and_progress(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin()
    launch.start(1)
    old = last(coordinator, lambda b: b.progress.seconds_per_iteration, "some steps")
    assert old.progress.iterations >= 3
    os.kill(old.sidecar_pid, signal.SIGKILL)
    new = last(coordinator, lambda b: b.sidecar_pid != old.sidecar_pid and b.progress.first_step_at, "a new sidecar")
    assert new.shim.trainer_pid == old.shim.trainer_pid and new.seq > old.seq
    assert new.progress.iterations >= old.progress.iterations
    assert new.progress.first_step_at == old.progress.first_step_at


def test_a_frozen_shim_is_told_by_healthz_and_calls_wait_for_no_answer(begin: Begin) -> None:
    launch = begin()
    os.kill(launch.shim.pid, signal.SIGSTOP)
    status, headers, body = launch.send("GET", "/healthz")
    assert status == 503 and headers["Retry-After"] and "shim" in json.loads(body)["error"]
    status, _, answer = launch.call("stop", STOP)
    assert status == 503 and answer["error"]
    os.kill(launch.shim.pid, signal.SIGCONT)
    eventually(lambda: launch.send("GET", "/healthz")[0] == 200, "health after the freeze")


def test_progress_may_come_from_a_file_and_a_relaunch_tells_of_the_checkpoint_before(
    coordinator: TinyCoordinator, begin: Begin
) -> None:
    launch = begin(progress={"file": "progress.json"}, grace_s=patient(5))  # time to save
    launch.start(1)
    eventually(lambda: "step=" in (launch.folder / "output.log").read_text(), "it saves from now on when told to end")
    (launch.folder / "progress.json").write_text('{"iteration": 12, "total": 40, "accuracy": 0.5}')
    beat = last(coordinator, lambda b: b.progress.iterations, "progress from the file")
    assert (beat.progress.iterations, beat.progress.total_iterations, beat.progress.value) == (12, 40, 0.5)
    launch.end()
    saved = next(launch.checkpoints.iterdir()).name
    farewell = coordinator.beats[-1]
    assert farewell.shim.trainer == "exited" and farewell.checkpoint is not None and farewell.checkpoint.name == saved
    coordinator.taken.clear()
    launch.run()
    first = last(coordinator, lambda b: b.shim.shim_pid == launch.shim.pid, "a heartbeat of the relaunch")
    assert first.checkpoint is not None and first.checkpoint.name == saved


def test_no_secret_is_shown_or_logged(coordinator: TinyCoordinator, begin: Begin) -> None:
    launch = begin()
    (launch.folder / "operator.token").write_text("secret-1")
    launch.send("POST", "/v1/reshape", b'{"gpus": 2}', {"Authorization": "Bearer secret-1"})
    launch.send("POST", "/v1/stop", b"{}", {HEADER_SIGNATURE: "secret-1"})
    launch.call("stop", STOP)
    shown = b"".join(launch.send("GET", path)[2] for path in ("/v1/status", "/healthz", "/metrics"))
    launch.end()
    written = [path for path in launch.folder.rglob("*.log*") if path.is_file()]
    assert written
    for text in (shown, *(path.read_bytes() for path in written)):
        assert KEY not in text and b"secret-1" not in text


PYNVML = """
import pathlib
from tests.fakes import fake_pynvml
here = pathlib.Path(__file__).parent
nvml = fake_pynvml.FakeNvml([fake_pynvml.FakeGpu("GPU-1")])
def __getattr__(name):
    if name == "nvmlDeviceGetComputeRunningProcesses":
        nvml.gpus[0].pids = [int(pid) for pid in (here / "pids").read_text().split()]
        (here / "looks").open("a").write("x")
    return getattr(nvml, name)
"""
PATIENT = """
import sys
if "sidecar" in sys.orig_argv:
    from sidecar.resources import gpu_release
    gpu_release.READ_S = gpu_release.RELEASE_S = 1e6
"""


def test_the_end_is_told_when_nothing_of_the_trainer_is_left_on_its_gpu(
    coordinator: TinyCoordinator,
    begin: Begin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "pynvml.py").write_text(PYNVML)
    (fake / "sitecustomize.py").write_text(PATIENT)
    (fake / "pids").write_text("1")
    monkeypatch.setenv("PYTHONPATH", f"{fake}:{ROOT}")
    launch = begin(gpus="nvml", heartbeat_s=0.1)
    launch.start(1, ("GPU-1",))
    reading = last(coordinator, lambda b: b.gpus, "readings").gpus[0]
    assert (reading.memory_used, reading.memory_own, reading.memory_others) == (1 << 30, 0, 1 << 30), "a stranger's"
    metrics = launch.send("GET", "/metrics")[2].decode()
    for field, held in (("memory", 1 << 30), ("memory_own", 0), ("memory_others", 1 << 30)):
        assert float(metrics.split(f'\nreshape_gpu_{field}_bytes{{gpu_id="GPU-1"}} ')[1].split()[0]) == held
    last(coordinator, lambda b: b.progress.first_step_at, "a step")
    before = len((fake / "looks").read_text())
    (fake / "pids").write_text("1 2")
    launch.call("stop", STOP)
    eventually(lambda: len((fake / "looks").read_text()) > before + 2, "it looks again and again")
    more_beats(coordinator)
    assert coordinator.beats[-1].shim.trainer == "stopping"
    (fake / "pids").write_text("1")
    assert last(coordinator, lambda b: b.shim.trainer == "exited", "the end").checkpoint is not None
