"""The `reshape` command: what each verb does, and how it ends when something is wrong."""

from __future__ import annotations

import getpass
import itertools
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from coordinator.errors import Rejected, Transient
from reshape.cli import main
from reshape.client import job_output as logs_of_jobs
from reshape.output import terminal
from tests.fakes.coordinator_api import Live
from tests.fakes.terminal import ROOT, Output, environment
from tests.patience import patient

Run = Callable[..., Output]
Process = Callable[..., "subprocess.Popen[str]"]
HEAVY = (
    "numpy",
    "tornado",
    "msgspec",
    "pymongo",
    "ansible_runner",
    "tensorflow",
    "asyncio",
    "http.client",
    "yaml",
    "json",
)


def submit(reshape: Run, name: str = "a") -> None:
    assert reshape("submit", "--name", name, "--gpus-allowed", "1,2", "--", "sh", "-c", "train").code == 0


@pytest.mark.parametrize(
    "arguments", [["--help"], ["submit", "--help"], ["simulate", "--help"], ["profile", "import", "-h"], ["--version"]]
)
def test_help_loads_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    heavy = [h for h in HEAVY if arguments != ["--version"] or h != "json"]
    code = (
        "import sys; from reshape.cli.main import run; code = run(sys.argv[1:]); "
        f"loaded = set({heavy!r}) & set(sys.modules); sys.exit(f'loaded: {{loaded}}' if loaded else code)"
    )
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "reshape" in done.stdout


@pytest.mark.parametrize("script", ["main", "kubectl", "complete"])
def test_ctrl_c_while_modules_are_read_prints_no_traceback(tmp_path: Path, script: str) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt", encoding="utf-8")  # it comes during this import
    code = f"from reshape.__main__ import {script}; {script}()"
    done = subprocess.run(
        [sys.executable, "-c", code, "jobs"], env=environment(tmp_path) | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (terminal.INTERRUPTED, "", "")


def test_a_command_becomes_a_job(reshape: Run, live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got: dict[str, Any] = {}
    (tmp_path / "train.sh").write_text("exit 0")
    submit_ = live.coordinator.submit
    monkeypatch.setattr(live.coordinator, "submit", lambda doc: got.update(doc) or submit_(doc))
    done = reshape(
        "submit", "--gpus-allowed", "4,1,2", "--job-type", "digits", "--iterations", "100", "--name", "a",
        "--code", str(tmp_path), "--", "sh", "train.sh", "--epochs", "3",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Job a is submitted: 1, 2 or 4 GPUs")
    del got["env"]
    assert got == {
        "command": ["sh", "train.sh", "--epochs", "3"], "optional_num_gpus": [1, 2, 4], "job_type": "digits",
        "iterations": 100, "job_id": "a", "code": str(tmp_path), "owner": getpass.getuser(),
    }  # fmt: skip


def test_one_bad_document_does_not_keep_the_others_back(reshape: Run, live: Live, tmp_path: Path) -> None:
    good = {"command": "x", "optional_num_gpus": [1]}
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([{**good, "job_id": "a"}, {"job_id": "b"}, {**good, "job_id": "c"}]))
    done = reshape("submit", "-f", str(file))
    assert (done.code, set(live.coordinator.documents)) == (1, {"a", "c"})
    assert done.err.startswith("Job b: The job was not accepted: ")
    assert "optional_num_gpus is missing" in done.err


def test_a_refused_document_without_a_name_is_told_by_its_number(reshape: Run, tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(json.dumps([{"command": "x", "optional_num_gpus": [1]}, {"command": "x"}]))
    assert reshape("submit", "-f", str(file)).err.startswith("Document 2: The job was not accepted: ")
    file.write_text(json.dumps({"command": "x"}))
    assert reshape("submit", "-f", str(file)).err.startswith("The job was not accepted: ")


@pytest.mark.parametrize("name", ["job-numpy.json", "job-keras.json"])
def test_the_examples_can_be_submitted_from_anywhere(
    reshape: Run, live: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    got: list[dict[str, Any]] = []
    submit_ = live.coordinator.submit
    monkeypatch.setattr(live.coordinator, "submit", lambda doc: got.append(doc) or submit_(doc))
    for folder, file in ((ROOT, f"examples/{name}"), (tmp_path, str(ROOT / "examples" / name))):
        live.coordinator.documents.clear()
        monkeypatch.chdir(folder)
        assert reshape("submit", "-f", file).code == 0
    assert [doc["code"] for doc in got] == [str(ROOT / "examples")] * 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "--gpus-allowed", "1,two", "--", "x"],
        ["submit", "--gpus", "4-1", "--", "x"],
        ["submit", "--gpus", "1-99999", "--", "x"],
        ["submit", "--gpus", "1", "--cpu", "--", "x"],
        ["submit", "--code", "/nowhere", "--", "x"],
        ["submit", "-f", "/nowhere/jobs.json"],
        ["submit", "-f", "-", "--", "x"],
        ["submit", "--iterations", "0", "--", "x"],
        ["submit", "--cpu", "-f", "-"],
        ["reshape", "a"],
        ["reshape", "a", "--gpus", "0"],
        ["reshape", "a", "--gpus", "2", "--auto"],
        ["up", "--gpus", "four"],
        ["up", "--gpus", "0xV100"],
        ["up", "--policy", "none"],
        ["profile", "show", "jobs"],
        ["jobs", "-o", "xml"],
        ["nothing"],
    ],
)
def test_wrong_usage_ends_with_2_and_a_sentence(reshape: Run, arguments: list[str]) -> None:
    done = reshape(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Error: " in done.err
    assert "Traceback" not in done.err


def test_jobs_are_listed_as_a_table_and_as_json(reshape: Run, live: Live) -> None:
    submit(reshape)
    live.coordinator.documents["a"] |= {
        "state": "running",
        "num_gpus": 2,
        "node": "local",
        "iters_done": 25,
        "eta_s": 75.0,
    }
    table = reshape("jobs").out.splitlines()
    assert table[0].split() == [
        "JOB", "OWNER", "QUEUE", "STATE", "GPUS", "NODE", "RESHAPES", "PROGRESS", "END", "DEADLINE", "TIME", "AGE",
        "REASON",
    ]  # fmt: skip
    assert table[1].split("  ")[0] == "a"
    for cell in ("running", "2/2", "local", "25/100 (25 %)", "in 75s", "waits for GPUs"):
        assert cell in table[1]
    assert reshape("-o", "json", "jobs").doc == reshape("jobs", "-o", "json").doc
    assert reshape("jobs", "-o", "json").doc[0]["iters_done"] == 25


def test_ended_jobs_are_listed(reshape: Run) -> None:
    submit(reshape)
    assert reshape("cancel", "a").out == "Job a is being cancelled.\n"
    assert "cancelled" in reshape("jobs").out, "it ended lately"
    assert "cancelled" in reshape("jobs", "-a").out


@pytest.mark.parametrize("on_cluster", [False, True])
def test_a_job_that_is_called_like_a_slaml_can_be_cancelled(reshape: Run, live: Live, on_cluster: bool) -> None:
    submit(reshape)
    live.coordinator.documents["slaml.default.a"] = {**live.coordinator.documents["a"], "job_id": "slaml.default.a"}
    live.coordinator.slaml_requests._on_cluster = on_cluster
    assert reshape("cancel", "slaml.default.a").out == "Job slaml.default.a is being cancelled.\n"
    none = reshape("cancel", "slaml.default.b")
    assert (none.code, "use kubectl" in none.err) == (1, on_cluster)


def test_no_jobs_is_a_sentence(reshape: Run) -> None:
    none = reshape("jobs")
    assert (len(none.out.splitlines()), "-a" in none.err) == (1, True)
    assert reshape("jobs", "-a").err == "No jobs.\n"


def test_one_job_is_shown_with_what_is_known(reshape: Run, live: Live) -> None:
    submit(reshape)
    live.coordinator.documents["a"] |= {"num_gpus": 1, "gpu_ids": ["GPU-1"], "value": 0.5, "value_name": "loss"}
    shown = reshape("job", "a").out
    assert "1 (emulated): GPU-1" in shown
    assert "loss:        0.5" in shown
    assert "finished" not in shown


def test_gpus_are_listed_with_use_and_memory(reshape: Run) -> None:
    lines = reshape("gpus").out.splitlines()
    assert len(lines) == 5
    assert "V100 (emulated)" in lines[4]
    assert "75%" in lines[4]
    assert "3.0 GiB of 16.0 GiB" in lines[4]


def test_nodes_are_listed_with_what_they_have(reshape: Run) -> None:
    assert reshape("nodes").out.splitlines()[1].split()[:5] == ["local", "V100", "(emulated)", "4", "4"]


DECISION = {
    "decision_id": "b-v1", "job_id": "b", "at": 1000.0, "kind": "start", "algorithm": "elastic.incoming",
    "sentence": "Taking 2 GPUs from job a ends all jobs soonest.", "unchanged_makespan_s": 80.0, "num_gpus": 2,
    "node": "local", "victim": "a", "victim_num_gpus": 2,
    "candidates": [
        {"node": "local", "num_gpus": 2, "makespan_s": 60.0, "sum_s": 100.0, "job_s": 40.0, "job": "b", "victim": "a",
         "victim_num_gpus": 2, "rejected": "", "low_confidence": True},
        {"node": "local", "num_gpus": 1, "makespan_s": 70.5, "sum_s": 120.0, "job_s": 55.0, "job": "b", "victim": "a",
         "victim_num_gpus": 2, "rejected": "ends later", "low_confidence": False},
    ],
}  # fmt: skip


def test_explain_shows_every_candidate_with_its_makespan(reshape: Run, live: Live) -> None:
    submit(reshape, "b")
    live.coordinator.stored_decisions = [DECISION]
    shown = reshape("explain", "b").out
    assert shown == reshape("explain", "b-v1").out
    unchanged = "If nothing changed, the jobs that ran would have been done in 80.0 s, as predicted then."
    for part in ("start job b on 2 GPUs, job a keeps 2", DECISION["sentence"], unchanged, "70.5 s", "ends later"):
        assert part in shown
    chosen = next(line for line in shown.splitlines() if "->" in line)
    assert "60.0 s ~" in chosen
    assert reshape("explain", "b", "-o", "json").doc == [DECISION]


def test_explain_tells_an_unknown_job_from_an_undecided_one(reshape: Run) -> None:
    submit(reshape)
    undecided = reshape("explain", "a")
    assert (undecided.code, "Nothing has been decided" in undecided.err) == (0, True)
    unknown = reshape("explain", "none")
    assert (unknown.code, "no job 'none'" in unknown.err) == (1, True)


def test_the_beginning_of_an_id_is_enough_where_one_job_has_it(reshape: Run, live: Live) -> None:
    for name in ("digits-1", "digits-2", "mnist-1"):
        submit(reshape, name)
    assert reshape("job", "mn").out.startswith("job:         mnist-1")
    assert "job mnist-1 yet" in reshape("explain", "mn").err
    several = reshape("cancel", "digits")
    assert (several.code, several.out) == (2, "")
    assert several.err == "Error: Several jobs begin with digits: digits-1, digits-2. Write more of the id.\n"
    assert reshape("cancel", "mnist").out == "Job mnist-1 is being cancelled.\n"
    submit(reshape, "digits")
    assert reshape("job", "digits").out.startswith("job:         digits\n")


def test_the_beginning_of_an_older_id_is_enough_where_no_other_job_has_it(
    reshape: Run, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(reshape, "mnist-1")
    listed = live.coordinator.list_jobs
    monkeypatch.setattr(live.coordinator, "list_jobs", lambda ended, within_s=0.0: listed(ended) if ended else [])
    assert reshape("job", "mn").out.startswith("job:         mnist-1")


@pytest.mark.parametrize("verb", ["cancel", "suspend", "resume", "rm", "job"])
def test_an_empty_id_means_no_job(reshape: Run, live: Live, verb: str) -> None:
    """As of a variable that is not set: the only job would begin with it."""
    submit(reshape, "mnist-1")
    before = dict(live.coordinator.documents["mnist-1"])
    done = reshape(verb, "")
    assert (done.code, done.out) == (2, "")
    assert "The job id is empty: is a variable of your shell unset" in done.err
    assert live.coordinator.documents["mnist-1"] == before


def test_several_jobs_or_all_are_changed_by_one_command(reshape: Run, live: Live) -> None:
    for name in ("a", "b", "c"):
        submit(reshape, name)
    done = reshape("suspend", "a", "nope", "b")
    assert (done.code, done.err) == (1, "There is no job 'nope'; `reshape jobs -a` lists all.\n")
    assert [line.split()[1] for line in done.out.splitlines()] == ["a", "b"]
    assert [line.split()[1] for line in reshape("suspend", "--all").out.splitlines()] == ["c"]
    assert [line.split()[1] for line in reshape("resume", "-a").out.splitlines()] == ["a", "b", "c"]
    assert reshape("resume", "--all").err == "There is no such job; `reshape jobs -a` lists all.\n"
    assert reshape("cancel", "--all").out.count("is being cancelled") == 3
    for wrong in (["cancel"], ["cancel", "--all", "a"]):
        assert "Name one or more jobs, or give --all." in reshape(*wrong).err


@pytest.mark.parametrize("verb", ["suspend", "cancel"])
@pytest.mark.parametrize("odd", [1.5, "", ["b"], "a/b"])
def test_a_verb_over_all_jobs_goes_on_past_one_that_it_cannot_do_and_names_it(
    reshape: Run, live: Live, verb: str, odd: object
) -> None:
    """As a row that was written into the store by hand."""
    submit(reshape, "a")
    documents = live.coordinator.documents
    documents["odd"] = {**documents["a"], "job_id": odd}
    documents["1.55"] = {**documents["a"], "job_id": "1.55"}
    submit(reshape, "b")
    done = reshape(verb, "--all")
    assert (done.code, [line.split()[1] for line in done.out.splitlines()]) == (1, ["a", "1.55", "b"])
    assert repr(str(odd)) in done.err


def test_a_beginning_that_several_jobs_have_does_not_keep_the_other_named_ones_from_being_changed(
    reshape: Run, live: Live
) -> None:
    for name in ("a-1", "a-2", "b"):
        submit(reshape, name)
    done = reshape("cancel", "a", "b")
    assert (done.code, done.out) == (2, "Job b is being cancelled.\n")
    assert "Several jobs begin with a: a-1, a-2." in done.err


def test_events_of_an_unknown_job_are_not_waited_for(reshape: Run) -> None:
    done = reshape("events", "nope")
    assert (done.code, done.err) == (1, "There is no job 'nope'; `reshape jobs -a` lists all.\n")


def test_an_operators_wish_is_passed_on_and_withdrawn(reshape: Run, live: Live) -> None:
    submit(reshape)
    live.coordinator.documents["a"] |= {"state": "running", "num_gpus": 1}
    assert "Resizing a to 2 GPUs" in reshape("scale", "a", "--gpus", "2").out
    assert "Resizing a to 2 GPUs" in reshape("reshape", "a", "--gpus", "2").out
    assert live.coordinator.documents["a"]["wanted"] == 2
    assert reshape("scale", "a", "--gpus", "1").out.startswith("a keeps its 1 GPU; `reshape explain a` shows")
    assert reshape("scale", "a", "--auto").out.startswith("The scheduler sizes a again; ")
    assert reshape("reshape", "a", "--auto", "-o", "json").doc == {"decision_id": "wish-a-None"}
    assert live.coordinator.documents["a"]["wanted"] is None
    live.coordinator.documents["a"]["elastic"] = False
    refused = reshape("reshape", "a", "--gpus", "2")
    assert (refused.code, "--force" in refused.err) == (1, True)
    assert reshape("reshape", "a", "--gpus", "2", "--force").code == 0


@pytest.mark.parametrize(
    ("words", "suspended", "said"),
    [
        (["--gpus", "2"], False, "a starts on 2 GPUs once they are free; "),
        (["--gpus", "1"], False, "a starts on 1 GPU once it is free; "),
        (["--gpus", "2"], True, "a starts on 2 GPUs once it is resumed; "),
        (["--auto"], False, "The scheduler chooses on how many GPUs a starts; "),
    ],
)
def test_a_job_that_waits_is_not_said_to_be_resized(
    reshape: Run, live: Live, words: list[str], suspended: bool, said: str
) -> None:
    submit(reshape)
    live.coordinator.documents["a"]["suspended"] = suspended
    assert reshape("scale", "a", *words).out.startswith(said)


@pytest.mark.parametrize(
    "arguments", [["job", "x"], ["logs", "x"], ["logs", "-f", "x"], ["cancel", "x"], ["reshape", "x", "--gpus", "2"]]
)
def test_an_unknown_job_ends_with_1_and_a_sentence(reshape: Run, arguments: list[str]) -> None:
    done = reshape(*arguments)
    assert (done.code, done.out, done.err) == (1, "", "There is no job 'x'; `reshape jobs -a` lists all.\n")


def test_a_refusal_shows_every_problem_once(reshape: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text('{"job_id": "../x", "command": "x"}')
    done = reshape("submit", "-f", str(file))
    assert done.code == 1
    assert done.err.count("optional_num_gpus is missing") == 1
    assert "letters, digits" in done.err


def test_logs_are_printed_byte_for_byte(reshape: Run, live: Live, process: Process) -> None:
    submit(reshape)
    live.coordinator.outputs["a"] = "épochs ▁▂▃\n".encode() * 40_000
    out, err = process("logs", "a").communicate(timeout=patient(30))
    assert (out.encode(), err) == (live.coordinator.outputs["a"], "")


def test_following_logs_ends_with_the_job_and_loses_nothing(
    reshape: Run, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(reshape)
    live.coordinator.documents["a"]["state"] = "running"
    monkeypatch.setattr(logs_of_jobs, "POLL_S", 0.0)
    steps = iter([b"one\n", b"two\n", b"last words\n"])
    logs = live.coordinator.logs

    def grow(job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        answer = logs(job_id, offset, limit)
        part = next(steps, b"")
        live.coordinator.outputs[job_id] = live.coordinator.outputs.get(job_id, b"") + part
        if part == b"last words\n":
            live.coordinator.documents[job_id]["state"] = "completed"
        return answer

    monkeypatch.setattr(live.coordinator, "logs", grow)
    done = reshape("logs", "-f", "a")
    assert (done.code, done.out) == (0, "one\ntwo\nlast words\n")


def test_a_log_that_outlived_its_pod_is_waited_for(reshape: Run, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(reshape)
    live.coordinator.outputs["a"] = b"step 1\n"
    monkeypatch.setattr(logs_of_jobs, "POLL_S", 0.0)
    logs, tries = live.coordinator.logs, iter([Transient("It is being fetched.")] * 3)

    def later(job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        for not_yet in tries:
            raise not_yet
        return logs(job_id, offset, limit)

    monkeypatch.setattr(live.coordinator, "logs", later)
    done = reshape("logs", "a")
    assert (done.code, done.out) == (0, "step 1\n")
    monkeypatch.setattr(logs_of_jobs, "FETCHES_S", 0.0)
    tries = iter([Transient("It is being fetched.")] * 9)
    done = reshape("logs", "a")
    assert (done.code, done.out) == (1, "") and "It is being fetched." in done.err


def test_a_log_that_went_with_its_pod_is_said_to_be_lost_and_ends_who_followed_it(
    reshape: Run, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(reshape)
    logs = live.coordinator.logs

    def gone(job_id: str, offset: int, limit: int) -> tuple[bytes, int]:
        if offset or not live.coordinator.outputs:
            raise Rejected("It went with its pod.", 410)
        return logs(job_id, offset, limit)

    monkeypatch.setattr(live.coordinator, "logs", gone)
    done = reshape("logs", "a")
    assert (done.code, done.out) == (1, "") and "It went with its pod." in done.err
    live.coordinator.outputs["a"] = b"step 1\n"
    live.coordinator.documents["a"]["state"] = "running"
    done = reshape("logs", "-f", "a")
    assert (done.code, done.out, done.err) == (0, "step 1\n", "")


def test_interrupting_logs_ends_quietly_with_130(reshape: Run, live: Live, process: Process) -> None:
    submit(reshape)
    live.coordinator.outputs["a"] = b"step 1\n"
    running = process("logs", "-f", "a")
    assert running.stdout is not None
    assert running.stdout.readline() == "step 1\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=patient(30))
    assert (running.returncode, err.strip()) == (130, "")


def test_a_reader_that_has_had_enough_ends_it_quietly(reshape: Run, process: Process, live: Live) -> None:
    for number in range(300):
        live.coordinator.submit({"command": "x" * 500, "optional_num_gpus": [1], "job_id": f"job-{number}"})
    for arguments in (["jobs"], ["jobs", "-o", "json"]):
        running = process(*arguments)
        assert running.stdout is not None
        running.stdout.close()
        assert running.stderr is not None
        assert running.stderr.read() == ""
        assert running.wait(patient(30)) == 0
        running.stderr.close()


def test_without_a_coordinator_it_ends_with_3_and_says_what_to_do(tmp_path: Path, reshape: Run, state: Path) -> None:
    unknown = reshape("--state", str(tmp_path / "none"), "jobs")
    assert (unknown.code, "start one with `reshape up`" in unknown.err) == (3, True)
    (state / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "token": "x"}))
    gone = reshape("jobs")
    assert (gone.code, gone.out) == (3, "")
    assert gone.err.startswith("No coordinator answers at http://127.0.0.1:1; start one with `reshape up`, or see ")


def test_while_the_store_is_down_the_sentence_reaches_the_user(reshape: Run, live: Live) -> None:
    live.coordinator.store_down = True
    done = reshape("jobs")
    assert (done.code, done.err) == (1, "The store does not answer; try again soon.\n")


def test_a_coordinator_that_ends_says_so(reshape: Run, live: Live) -> None:
    live.app.settings["threads"].shutdown()
    done = reshape("jobs")
    assert (done.code, done.err) == (1, "The coordinator is ending; try again once it runs.\n")


@pytest.mark.parametrize("verb", [["jobs"], ["jobs", "-o", "json"], ["queue"], ["job", "one"]], ids=" ".join)
def test_while_the_coordinator_cannot_work_a_list_of_jobs_says_that_it_may_be_old(
    reshape: Run, live: Live, verb: list[str]
) -> None:
    live.coordinator.documents["one"] = {"job_id": "one", "state": "submitted"}
    live.coordinator.trouble = "The store does not answer: the disk is full: free some space."
    done = reshape(*verb)
    assert done.code == 0
    assert "one" in done.out
    said = "What is shown may be old: The store does not answer: the disk is full: free some space.\n"
    assert done.err == said
    live.coordinator.trouble = ""
    assert reshape(*verb).err == ""


@pytest.mark.parametrize("verb", [["gpus"], ["nodes"], ["explain", "one"], ["slamls"], ["what-if"]], ids=" ".join)
def test_while_it_cannot_work_all_else_that_it_shows_may_be_old_too(reshape: Run, live: Live, verb: list[str]) -> None:
    live.coordinator.documents["one"] = {"job_id": "one", "state": "submitted"}
    live.coordinator.trouble = "The store does not answer."
    done = reshape(*verb)
    assert done.code == 0
    assert done.err.endswith("What is shown may be old: The store does not answer.\n")


def test_profiles_go_out_and_come_back_the_same(reshape: Run, live: Live, tmp_path: Path) -> None:
    rows = [{"job_type": "t", "gpu_type": "V100", "num_gpus": n, "seconds": 0.2 / n} for n in (1, 2)]
    live.coordinator.tables["speed_profiles"] = [{"_id": i, **r} for i, r in enumerate(rows)]
    exported = reshape("profile", "export", "speed_profiles")
    assert exported.doc == rows
    live.coordinator.tables["speed_profiles"] = []
    file = tmp_path / "rows.json"
    file.write_text(exported.out)
    assert reshape("profile", "import", "speed_profiles", str(file)).out == "2 rows imported into speed_profiles.\n"
    assert live.coordinator.tables["speed_profiles"] == rows
    shown = reshape("profile", "show", "speed_profiles").out.splitlines()
    assert shown[0].split() == ["JOB_TYPE", "GPU_TYPE", "NUM_GPUS", "SECONDS"]
    assert len(shown) == 3


def test_bad_profile_rows_are_listed(reshape: Run, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"job_type": "t"}\n{"seconds": 1}\n')
    done = reshape("profile", "import", "overheads", str(file))
    assert (done.code, "row 2: job_type is missing" in done.err) == (1, True)


def test_up_and_demo_get_their_options(reshape: Run, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    up, demo = ["--gpus", "4xV100", "--port", "0"], ["--json", "--out", "x"]
    for name, path, arguments in (("up", "reshape.services.up", up), ("demo", "reshape.demo.case_study", demo)):
        got: dict[str, Any] = {}
        module = ModuleType(path)
        module.run = lambda **options: got.update(options) or 1  # type: ignore[attr-defined]  # noqa: B023
        monkeypatch.setitem(sys.modules, path, module)
        assert reshape(name, *arguments).code == 1
        if name == "up":
            expected: dict[str, Any] = {"state": state, "gpus": "4xV100", "nodes": (), "store": None, "port": 0}
            assert got == {**expected, "host": "127.0.0.1", "policy": "planner", "shared": False}
        else:
            assert got == {"trainer": None, "as_json": True, "measure_all": False, "out": Path("x")}


def test_a_shared_service_keeps_its_state_in_a_folder_of_the_system(
    reshape: Run, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, Any] = {}
    module = ModuleType("reshape.services.up")
    module.run = got.update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reshape.services.up", module)
    monkeypatch.delenv("RESHAPE_STATE", raising=False)
    assert main.run(["up", "--shared"]) == 0
    assert (got["state"], got["shared"]) == (Path("/var/lib/reshape"), True)
    assert reshape("up", "--shared").code == 0
    assert got["state"] == state, "but for one that is named"


def test_the_store_may_be_named_by_a_variable_so_that_a_password_is_no_argument(
    reshape: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, Any] = {}
    module = ModuleType("reshape.services.up")
    module.run = got.update  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reshape.services.up", module)
    monkeypatch.setenv("RESHAPE_STORE", "mongodb://me:secret@db/reshape")
    assert reshape("up").code == 0
    assert got["store"] == "mongodb://me:secret@db/reshape"
    help_text = reshape("up", "--help").out
    assert "RESHAPE_STORE" in help_text
    assert "secret" not in help_text


def test_a_refusal_from_our_own_process_is_a_sentence_too(reshape: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("reshape.demo.case_study")

    def run(**_: Any) -> None:
        raise Rejected("TensorFlow is not installed; use --trainer numpy.")

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "reshape.demo.case_study", module)
    done = reshape("demo", "--trainer", "keras")
    assert (done.code, done.err) == (1, "TensorFlow is not installed; use --trainer numpy.\n")


def test_verbs_that_change_something_say_what_they_did(reshape: Run, live: Live) -> None:
    submit(reshape)
    assert reshape("suspend", "a").out == "Job a is not started until `reshape resume a`.\n"
    assert live.coordinator.documents["a"]["suspended"]
    live.coordinator.documents["a"]["state"] = "running"
    assert reshape("suspend", "a").out == "Job a saves, gives its GPUs up and waits until `reshape resume a`.\n"
    assert reshape("resume", "a").out == "Job a is in the queue again; it starts as soon as there is room.\n"
    again = reshape("resume", "a")
    assert (again.code, again.err) == (1, "Job a is not suspended: there is nothing to resume.\n")
    assert reshape("drain", "local").out == (
        "Node local takes no new work until `reshape undrain local`.\n"
        "Will move or shrink away as soon as there is room: a; see `reshape jobs`.\n"
        "Job b keeps its 1 GPU until it ends.\n"
    )
    assert live.coordinator.drained
    assert reshape("undrain", "local").out == "Node local takes jobs again.\n"
    assert json.loads(reshape("undrain", "local", "-o", "json").out)["drained"] is False
    assert reshape("drain", "x").err == "There is no node 'x'; `reshape nodes` lists all.\n"


def test_a_dry_run_submits_nothing_and_prints_what_would_be(reshape: Run, live: Live) -> None:
    done = reshape("submit", "--dry-run", "--name", "a", "--gpus", "1,2", "--weight", "5", "--", "sh", "-c", "train")
    first, _, document = done.out.partition("\n")
    assert (done.code, live.coordinator.documents) == (0, {})
    assert first.startswith("Not submitted, as --dry-run says; the coordinator would accept job a on 1 or 2 GPUs")
    assert (json.loads(document)["optional_num_gpus"], json.loads(document)["weight"]) == ([1, 2], 5.0)
    refused = reshape("submit", "--dry-run", "--name", "../x", "--", "sh", "-c", "train")
    assert (refused.code, refused.out) == (1, "") and "job_id must be" in refused.err
    assert reshape("submit", "--dry-run", "--wait", "--", "sh").code == 2


def test_the_last_lines_of_a_log_are_printed(reshape: Run, live: Live) -> None:
    submit(reshape)
    live.coordinator.outputs["a"] = b"".join(b"step=%d\n" % n for n in range(100_000))
    assert reshape("logs", "a", "--tail", "2").out == "step=99998\nstep=99999\n"
    assert reshape("logs", "a", "-n", "0").out == ""
    live.coordinator.outputs["a"] = b"one line without an end"
    assert reshape("logs", "a", "--tail", "5").out == "one line without an end"


def test_what_waits_and_which_policy_decides_can_be_asked(reshape: Run, live: Live) -> None:
    assert reshape("queue").err == "No job waits.\n"
    submit(reshape)
    submit(reshape, "b")
    live.coordinator.documents["a"] |= {"start_in_s": 60.0}
    live.coordinator.documents["b"] |= {"start_in_s": 5.0}
    assert [line.split()[0] for line in reshape("queue").out.splitlines()[1:3]] == ["b", "a"]
    assert reshape("policy").out == "systems: elastic\na reshape is done by: sidecar\nspecon.alpha = 0.5\n"
    assert reshape("rerun", "a").out == "Job a is submitted again.\n"
    assert reshape("rm", "a").out == "Job a is removed from the lists.\n"
    assert set(live.coordinator.documents) == {"b"}


def test_events_are_printed_as_they_happen(live: Live, process: Process) -> None:
    live.coordinator.submit({"command": "x", "optional_num_gpus": [1], "job_id": "a"})
    live.coordinator.tell({"type": "started", "job_id": "a", "sentence": "trains"})
    live.coordinator.tell({"type": "started", "job_id": "b"})
    running = process("events", "--after", "0", "a")
    assert running.stdout is not None
    try:
        assert running.stdout.readline().rstrip().endswith("  a  submitted")
        assert running.stdout.readline().rstrip().endswith("  a  started: trains")
        live.coordinator.cancel("a")
        assert running.stdout.readline().rstrip().endswith("  a  cancelled")
        assert running.wait(patient(30)) == 0, "nothing more comes of a job that has ended"
    finally:
        running.kill()


def test_all_events_are_followed_until_ctrl_c(live: Live, process: Process) -> None:
    live.coordinator.tell({"type": "cancelled", "job_id": "a"})
    running = process("events", "--after", "0")
    assert running.stdout is not None
    try:
        assert running.stdout.readline().rstrip().endswith("  a  cancelled")
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(patient(30)) == 130


def test_events_of_a_job_that_has_ended_are_those_that_are_kept(reshape: Run, live: Live) -> None:
    submit(reshape)
    live.coordinator.tell({"type": "completed", "job_id": "a"})
    live.coordinator.documents["a"]["state"] = "completed"
    done = reshape("events", "a")
    assert done.code == 0
    assert [line.split()[-2:] for line in done.out.splitlines()] == [["a", "submitted"], ["a", "completed"]]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(reshape: Run, shell: str) -> None:
    done = reshape("completion", shell)
    assert done.code == 0 and f"_RESHAPE_COMPLETE={shell}_complete" in done.out


def test_verbs_and_job_ids_are_completed(reshape: Run, live: Live, state: Path) -> None:
    submit(reshape, "digits-1")

    def completed(line: str) -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_RESHAPE_COMPLETE": "bash_complete"}
        code = "from reshape.cli.main import cli; cli(prog_name='reshape')"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment(state) | words, capture_output=True, text=True, check=False
        )
        return [answer.partition(",")[2] for answer in done.stdout.splitlines()]

    assert completed("reshape sus") == ["suspend"]
    assert completed("reshape suspend dig") == ["digits-1"]


def test_the_help_lists_each_command_once_and_whole_in_80_columns(
    reshape: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = [name for row in itertools.chain(*main.cli.sections.values()) for name in row.split(", ")]
    assert sorted(listed) == sorted(main.cli.commands)
    told = reshape("--help").out
    assert "..." not in told.partition("Your jobs:")[2] and max(map(len, told.splitlines())) <= 80
    for name in main.cli.commands:
        command = main.cli.get_command(click.Context(main.cli), name)
        assert " ".join(command.get_short_help_str(1_000).split()) in " ".join(told.split()), name


@pytest.mark.parametrize("verb", ["submit", "run", "rehearse"])
def test_an_option_of_the_own_command_without_dashes_before_it_is_told_where_it_goes(reshape: Run, verb: str) -> None:
    said = reshape(verb, "python", "train.py", "--lr", "3")
    assert said.code == 2 and f"{verb} -- python train.py --lr" in said.err
    assert "goes after" not in reshape(verb, "--gpu", "3", "--", "python", "train.py").err


def test_the_help_of_each_group_lists_its_commands_whole(reshape: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups = {name: one for name, one in main.cli.commands.items() if isinstance(one, click.Group)}
    assert {"shares", "store", "volcano", "token"} <= set(groups)
    for name in groups:
        told = reshape(name, "--help").out
        assert "..." not in told.partition("Commands:")[2] and max(map(len, told.splitlines())) <= 80, name


def test_the_exit_codes_that_are_documented_are_those_that_are_used() -> None:
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    documented = [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert documented == [0, terminal.REFUSED, click.UsageError.exit_code, terminal.UNREACHABLE, terminal.INTERRUPTED]


@pytest.mark.parametrize("given", [["+4"], ["x", "V100"], ["0", "V100"], ["+4", "--drain"]])
def test_gpus_of_what_if_that_make_no_sense_are_answered_with_an_example(reshape: Run, given: list[str]) -> None:
    done = reshape("what-if", "--gpus", *given)
    assert done.code == 2
    assert "such as --gpus +2 V100" in " ".join(done.err.split())
