"""`reshape doctor` on one machine: each thing that is not as it should be is one sentence that says what to do."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from reshape import foreign, machine_doctor
from reshape.doctor import Finding
from sidecar import device_filter
from tests.e2e.up import running
from tests.fakes.terminal import Output
from tests.patience import eventually

Run = Callable[..., Output]


def found(state: Path, level: str = "") -> list[str]:
    return [f.sentence for f in machine_doctor.examine(state) if level in ("", f.level)]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_machine_on_which_all_is_there_lacks_nothing(state: Path) -> None:
    assert found(state, "missing") == []
    assert f"No `reshape up` runs with the state folder {state}." in found(state, "well")
    assert not state.exists(), "it changes nothing"


def test_a_state_folder_that_others_can_change_is_told(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "api.token").write_text("x")
    (state / "api.token").chmod(0o644)
    assert found(state, "warning")[-1].startswith(f"Other users can read or change {state}/api.token: the next")
    (state / "api.token").chmod(0o600)
    assert not any("Other users" in sentence for sentence in found(state))


@pytest.mark.parametrize("url", ['{"url": 1}', '{"url": "http://127.0.0.1:99999"}', "[]", "{}"])
def test_an_address_that_is_none_is_passed_over(state: Path, url: str) -> None:
    state.mkdir(mode=0o700)
    (state / "up.json").write_text(url)
    assert f"No `reshape up` runs with the state folder {state}." in found(state)


def test_a_package_of_somebody_else_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise click.ClickException("The package sidecar in /x hides that of volcano-reshape.")

    monkeypatch.setattr(foreign, "check", hidden)
    assert found(state, "missing") == ["The package sidecar in /x hides that of volcano-reshape."]


def test_what_real_gpus_lack_is_told_and_their_absence_is_no_fault(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = [SimpleNamespace(gpu_type="NVIDIA H100 80GB HBM3")] * 2
    monkeypatch.setattr(machine_doctor, "list_gpus", lambda: two)
    assert "GPUs that NVML finds: 2 H100." in found(state, "well")
    monkeypatch.setattr(device_filter, "unable", lambda: "")
    assert "The kernel can keep each job from the GPUs of others (device filter)." in found(state, "well")
    monkeypatch.setattr(device_filter, "unable", lambda: "`reshape up` does not run as root")
    said = "A script that chooses GPUs itself can use those of other jobs: `reshape up` does not run as root."
    assert said in found(state, "warning")
    monkeypatch.setattr(machine_doctor, "list_gpus", list)
    assert any("emulates some" in said for said in found(state, "warning"))


def test_few_open_files_are_warned_of(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    assert any("at most 1,024 files" in said for said in found(state, "warning"))


def test_a_full_disk_and_full_memory_are_told(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(free: int) -> Callable[[Any], Any]:
        return lambda _: SimpleNamespace(free=free)

    monkeypatch.setattr(machine_doctor.shutil, "disk_usage", usage(50 * 2**20))
    assert any("50 MiB free: checkpoints will not fit" in said for said in found(state, "missing"))
    assert any(said.startswith("/dev/shm has only 50 MiB") for said in found(state, "warning"))
    monkeypatch.setattr(machine_doctor, "SHM", state / "nowhere")
    assert any("cannot be written, so a reshaped training stands still" in said for said in found(state, "warning"))


def test_a_state_folder_that_is_a_file_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert found(file / "state", "missing") == [
        f"The state folder {file / 'state'} cannot be written: choose another one with --state."
    ]


def test_a_clock_behind_what_was_written_is_told(state: Path) -> None:
    state.mkdir()
    (state / "reshape.sqlite").write_text("")
    later = 4e9
    os.utime(state / "reshape.sqlite", (later, later))
    assert any(said.startswith("The clock is ") and "behind the newest file" in said for said in found(state))


def test_a_port_that_trainings_report_to_and_another_program_has_is_told(state: Path) -> None:
    state.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (state / "up.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}", "token": "x"}))
        assert any(f"has taken port {port}" in said for said in found(state, "warning"))
    assert not any("has taken port" in said for said in found(state))


def test_interpreters_that_wait_and_those_that_do_not_are_told() -> None:
    cold = "the next one is cold (too little memory)"
    jobs = [
        {"job_id": "a", "state": "running", "restart": "the next one is warm"},
        {"job_id": "b", "state": "running", "restart": cold},
        {"job_id": "c", "state": "submitted", "restart": None},
    ]
    assert list(machine_doctor._waiting_interpreters(jobs)) == [
        Finding("warning", f"A reshape of job b will take longer: {cold}."),
        Finding("well", "An interpreter waits beside 1 of 2 running jobs."),
    ]


def test_it_looks_at_the_reshape_up_that_runs_and_at_one_that_does_not_answer(state: Path) -> None:
    with running(state, "2xV100") as up:
        assert f"`reshape up` runs at {up.client.url} and answers." in found(state, "well")
        written = (state / "up.json").read_text()
        (state / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "token": "x"}))
        (said,) = found(state, "missing")
        assert said.startswith(f"`reshape up` runs with the state folder {state}, but does not answer: ")
        (state / "up.json").write_text(written)


def test_shares_that_do_not_bind_are_told(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "shares.yaml").write_text("queues: {a: {wieght: 2}}")
    with running(state, "2xV100"):
        (said,) = eventually(lambda: [one for one in found(state, "warning") if "shares.yaml" in one])
    why = "Queue a has no setting wieght, did you mean weight?"
    assert said == f"{state / 'shares.yaml'} does not bind: {why} Until it is corrected, the last good one does."


def test_the_command_checks_the_machine_where_no_cluster_is_named(
    reshape: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = reshape("doctor")
    assert shown.code == 0, shown.out
    assert shown.out.startswith("well     Python 3.") and shown.out.endswith("All is there.\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert reshape("doctor").err.startswith("The cluster cannot be checked")
    assert reshape("doctor", "--machine").out.startswith("well     Python 3.")
    assert reshape("doctor", "--machine", "--context", "x").code == 2
