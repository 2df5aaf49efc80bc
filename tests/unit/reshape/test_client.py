"""The Python client: finds the coordinator, passes on its words, and says so when nobody answers."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from coordinator.errors import Rejected
from coordinator.model.fields import unknown_fields
from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable, JobList, NotRunnable, SubmittedJob
from tests.fakes.coordinator_api import TOKEN, Live

Got = list[dict[str, Any]]  # the documents that were submitted

GOOD = {"command": ["true"], "optional_num_gpus": [1, 2]}


@pytest.fixture
def client(live: Live) -> Client:
    return Client(live.url, TOKEN)


def test_a_job_goes_in_and_comes_out(client: Client) -> None:
    assert client.submit({**GOOD, "job_id": "a"})["state"] == "submitted"
    assert client.job("a") == client.jobs()[0]
    assert client.reshape("a", 2) == "wish-a-2"
    assert client.cancel("a")["state"] == "cancelled"
    assert client.jobs() == []
    assert [j["job_id"] for j in client.jobs(include_ended=True)] == ["a"]


@pytest.mark.parametrize("name", ["a/b", "../jobs", "?x=1", "é ü", "%2e", "a\nb", "none"])
def test_any_text_is_looked_up_as_it_is(client: Client, name: str) -> None:
    with pytest.raises(CoordinatorRefused) as refusal:
        client.job(name)
    assert (refusal.value.status, repr(name) in str(refusal.value)) == (404, True)


def test_a_refusal_has_the_coordinators_sentence_and_problems(client: Client) -> None:
    with pytest.raises(CoordinatorRefused, match="not accepted") as refusal:
        client.submit({"job_id": "x y"})
    assert len(refusal.value.problems) == 3


def test_a_wrong_token_is_refused_not_unreachable(live: Live) -> None:
    with pytest.raises(CoordinatorRefused) as refusal:
        Client(live.url, "wrong").jobs()
    assert refusal.value.status == 401


CURVE = {
    "value_name": "loss",
    "values": [[0, 2.3], [100, 0.5]],
    "speeds": [[50, 0.25], [100, 0.125]],
    "gpus": [[0, 1], [60, 2]],
}


def test_a_job_shows_how_it_trained_as_a_picture_in_a_line_and_in_a_file(
    client: Client, live: Live, tmp_path: Path
) -> None:
    job = client.submit({**GOOD, "job_id": "a"})
    live.coordinator.curves["a"] = CURVE
    plot = job.plot()
    assert job.curve() == {"job_id": "a", **CURVE}
    assert plot._repr_svg_().count("<polyline") == 2
    assert "2 GPUs" in plot.svg
    assert repr(plot) == "<Plot of job a: loss 2.3 to 0.5 in 100 iterations, 0.125 s per iteration, on 1 then 2 GPUs>"
    plot.save(tmp_path / "a.svg")
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"


def test_a_job_whose_output_tells_no_step_has_a_plot_that_says_so(client: Client) -> None:
    plot = client.submit({**GOOD, "job_id": "a"}).plot()
    assert "No step of job a was seen in its output yet." in plot.svg
    assert repr(plot) == "<Plot of job a: no step was seen in its output yet>"


def test_events_are_followed_and_resumed(client: Client, live: Live) -> None:
    for _ in range(3):
        live.coordinator.tell({"type": "gpu"})
    events = client.events(after=1)
    assert [next(events)["_id"], next(events)["_id"]] == [2, 3]
    threading.Thread(target=live.coordinator.tell, args=({"type": "late"},)).start()
    assert next(events)["type"] == "late"
    events.close()


def test_health_is_told_also_when_it_is_bad(client: Client, live: Live) -> None:
    assert client.health()["ok"] is True
    live.coordinator.store_down = True
    assert client.health() == {"ok": False, "sentence": "The store does not answer."}


def test_nobody_there_is_said_with_what_to_do(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(CoordinatorUnreachable, match="reshape up"):
            Client(url, "x").jobs()
        with pytest.raises(CoordinatorUnreachable, match="reshape up"):
            next(Client(url, "x").events())
    with pytest.raises(CoordinatorUnreachable, match="reshape up"):
        Client.find(tmp_path)


def test_a_coordinator_that_breaks_off_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(CoordinatorUnreachable, match="closed the connection"):
            Client(f"http://127.0.0.1:{server.getsockname()[1]}", "x").jobs()
        thread.join()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": 3, "token": "x"}', '{"url": "ftp://x", "token": "x"}'])
def test_a_damaged_state_folder_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "up.json").write_text(text)
    with pytest.raises(CoordinatorUnreachable):
        Client.find(tmp_path)


def test_the_token_may_stand_in_the_file_or_beside_it(tmp_path: Path, live: Live) -> None:
    (tmp_path / "secret").write_text(f"{TOKEN}\n")
    for where in ({"token": TOKEN}, {"token_file": "secret"}, {"token_file": str(tmp_path / "secret")}):
        (tmp_path / "up.json").write_text(json.dumps({"url": live.url, **where}))
        assert Client.find(tmp_path).jobs() == []


def test_no_token_file_is_like_no_coordinator(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "token_file": "token"}))
    with pytest.raises(CoordinatorUnreachable, match="reshape up"):
        Client.find(tmp_path)


@pytest.fixture
def here(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client of a `reshape up` on this machine, asked in a folder with a script."""
    (tmp_path / "up.json").write_text(json.dumps({"url": live.url, "token": TOKEN}))
    (tmp_path / "train.py").write_text("print('step=1 total=1')\n")
    monkeypatch.setenv("RESHAPE_STATE", str(tmp_path))
    monkeypatch.delenv("RESHAPE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return Client()


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ("train.py", [sys.executable, "train.py"]),
        (["python", "train.py", "--lr", "0.1"], [sys.executable, "train.py", "--lr", "0.1"]),
        (["sh", "-c", "exit 0"], ["sh", "-c", "exit 0"]),
        (Path("train.py"), [sys.executable, "./train.py"]),
        (["python", Path("train.py"), "--n", 3], [sys.executable, "train.py", "--n", "3"]),
        ("train.py --lr '0.1 0.2'", [sys.executable, "train.py", "--lr", "0.1 0.2"]),
        ("python train.py --lr 0.1", [sys.executable, "train.py", "--lr", "0.1"]),
        ("python train.py > log", ["sh", "-c", "python train.py > log"]),
        ("LR=1 python train.py", ["sh", "-c", "LR=1 python train.py"]),
        ("exit 3", ["sh", "-c", "exit 3"]),
        ("true", ["true"]),
    ],
)
def test_a_command_runs_in_this_folder_with_this_python(
    here: Client, got: Got, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Any, words: list[str]
) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hf")
    here.submit(job, gpus=[1, 2], env={"LR": "1"}, sla="2h")
    (doc,) = got
    assert (doc["command"], doc["optional_num_gpus"], doc["code"], doc["sla"]) == (words, [1, 2], str(tmp_path), "2h")
    assert (doc["env"]["HF_HOME"], doc["env"]["LR"]) == ("/data/hf", "1")


def test_jobs_are_named_after_their_script_or_as_asked(here: Client, got: Got) -> None:
    assert [here.submit("train.py").job_id for _ in range(2)] == ["train-1", "train-2"]
    assert here.submit("train.py", gpus=0, name="mine").job_id == "mine"
    assert got[-1]["optional_num_gpus"] == [0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([["--lr", 0.1], ["--lr", 0.01]], [["--lr", "0.1"], ["--lr", "0.01"]]),
        ([{"lr": 0.1}, {"lr": 0.01, "-n": 2}], [["--lr", "0.1"], ["--lr", "0.01", "-n", "2"]]),
        (({"lr": rate} for rate in (0.1, 0.01)), [["--lr", "0.1"], ["--lr", "0.01"]]),
        ([], []),
    ],
)
def test_a_sweep_is_one_job_for_each_dictionary_or_list_of_words(
    here: Client, live: Live, arguments: Any, words: list[list[str]]
) -> None:
    jobs = here.map("train.py", arguments, gpus=1)
    assert [live.coordinator.documents[job.job_id]["command"][2:] for job in jobs] == words


def test_the_jobs_of_a_sweep_are_numbered_after_its_name(here: Client) -> None:
    jobs = here.map("train.py", [{"lr": 1}, {"lr": 2}], name="rates")
    assert [job.job_id for job in jobs] == ["rates-1", "rates-2"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([{"lr": 1}, "--lr=2"], "'--lr=2' does not say what to append to the command: give each job a dictionary"),
        ([{"lr": 1}, 2], "2 does not say what to append"),
        ([{"lr": 1}, {"amp": True}], r"amp=True can be written in several ways: give a list of words, .*\['--amp'\]"),
    ],
)
def test_no_job_of_a_sweep_is_submitted_if_one_cannot_be(
    here: Client, live: Live, arguments: Any, sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        here.map("train.py", arguments)
    with pytest.raises(TypeError, match="takes no further words"):
        here.map("echo hi; echo", [["a"]])
    assert live.coordinator.documents == {}


def test_a_sweep_that_is_refused_midway_names_the_jobs_that_run(here: Client) -> None:
    here.submit("train.py", name="rates-2")
    with pytest.raises(CoordinatorRefused) as refusal:
        here.map("train.py", [{"lr": 1}, {"lr": 2}], name="rates")
    assert refusal.value.__notes__ == ["Submitted before that, and not cancelled: rates-1."]


@pytest.mark.parametrize(
    ("job", "options", "error", "sentence"),
    [
        ("trian.py", {}, NotRunnable, r"no file trian\.py in .*\. Did you mean train\.py\?"),
        ("trian.py --lr 1", {}, NotRunnable, r"Did you mean train\.py\?"),
        ("python trian.py", {}, NotRunnable, r"Did you mean train\.py\?"),
        (Path("trian.py"), {}, NotRunnable, r"Did you mean train\.py\?"),
        ("nb.ipynb", {}, NotRunnable, "no program nb.ipynb on PATH"),
        ("", {}, NotRunnable, "The command is empty"),
        ([], {}, NotRunnable, "The command is empty"),
        (None, {}, TypeError, "None is not a job: give a script"),
        (b"train.py", {}, TypeError, "is not a job: give a script"),
        ("train.py", {"code": "nowhere"}, NotRunnable, "no folder"),
        ("train.py", {"gpus": 9}, NotRunnable, "No node has 9 GPUs; the largest has 8: write gpus=8 or less"),
        ("train.py", {"gpus": "2"}, NotRunnable, "'2' is not a GPU count: write gpus=2"),
        ("train.py", {"gpus": 1.5}, NotRunnable, "1.5 is not a GPU count"),
        ("train.py", {"gpus": True}, NotRunnable, "True is not a GPU count"),
        ("train.py", {"gpus": []}, NotRunnable, r"\[\] is not a GPU count"),
        ("train.py", {"gpus": [-1, 2]}, NotRunnable, "is not a GPU count"),
        ("train.py", {"num_gpus": 2}, TypeError, "submit does not take num_gpus: write gpus=2"),
        ("train.py", {"command": ["x"]}, TypeError, "submit does not take command: give the words first"),
        ("train.py", {"wait": True}, TypeError, r"call wait\(\) of the job"),
        ("train.py", {"env": ["A=1"]}, TypeError, "env is a dictionary of variables"),
        ("train.py", {"env": {"A": None}}, TypeError, "The variable A is None: write it as a text"),
        (GOOD, {"gpus": 1}, TypeError, "holds all that is said of a job"),
        (
            {"command": ["python", "train.py"], "num_gpus": 1},
            {},
            NotRunnable,
            r'in which folder train\.py is: add "code": "\."',
        ),
    ],
)
def test_what_cannot_run_is_said_before_anything_is_sent(
    here: Client, live: Live, monkeypatch: pytest.MonkeyPatch, job: Any, options: Any, error: Any, sentence: str
) -> None:
    monkeypatch.setattr(live.coordinator, "nodes", lambda: [{"node": "a", "gpus": 8}, {"node": "b", "gpus": 4}])
    with pytest.raises(error, match=sentence):
        here.submit(job, **options)
    assert live.coordinator.documents == {}


@pytest.mark.parametrize(
    ("keyword", "guess"),
    [("gpsu", " Did you mean gpus=…?"), ("deadlin", " Did you mean deadline=…?"), ("zzz", "")],
)
def test_a_keyword_that_was_mistyped_is_guessed(
    here: Client, live: Live, monkeypatch: pytest.MonkeyPatch, keyword: str, guess: str
) -> None:
    def refuse(doc: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        found = tuple(unknown_fields(doc))
        raise Rejected(f"The job was not accepted: {found[0]}.", problems=found)

    monkeypatch.setattr(live.coordinator, "submit", refuse)
    with pytest.raises(CoordinatorRefused, match="there is no field") as refusal:
        here.submit("train.py", **{keyword: 1})
    assert str(refusal.value).endswith(f"begin the name of one of your own with x_.{guess}")


def test_options_of_the_command_line_are_taken_by_their_names(here: Client, got: Got) -> None:
    here.submit("train.py", gpus=[4, 1, 1], deadline="2h", after=["first"], env={"LR": 0.1})
    assert (got[0]["sla"], got[0]["depends_on"], got[0]["env"]["LR"]) == ("2h", ["first"], "0.1")
    assert got[0]["optional_num_gpus"] == [1, 4]
    assert got[0].keys().isdisjoint({"deadline", "after"})


def test_a_users_own_webhook_is_that_of_all_commands_that_name_none(
    here: Client, got: Got, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RESHAPE_NOTIFY_ME", "https://chat.example/mia")
    here.submit("train.py")
    here.submit("train.py", notify="https://chat.example/this")
    here.submit({**GOOD, "code": "."})
    assert [doc.get("notify") for doc in got] == ["https://chat.example/mia", "https://chat.example/this", None]
    assert "RESHAPE_NOTIFY_ME" not in got[0]["env"], "the job does not learn the address"


@pytest.mark.parametrize(
    "problem", ["notify must be the address of a webhook, http://HOST/...", "this tells no webhooks: leave notify out"]
)
def test_a_webhook_that_is_refused_is_traced_to_the_variable_that_names_it(
    here: Client, live: Live, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    def refuse(doc: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        raise Rejected(f"The job was not accepted: {problem}.", problems=(problem,))

    monkeypatch.setattr(live.coordinator, "submit", refuse)
    monkeypatch.setenv("RESHAPE_NOTIFY_ME", "chat")
    with pytest.raises(CoordinatorRefused) as refusal:
        here.submit("train.py")
    assert str(refusal.value).endswith(" It is the one in the variable RESHAPE_NOTIFY_ME: change it, or unset it.")
    with pytest.raises(CoordinatorRefused) as refusal:
        here.submit("train.py", notify="mine")
    assert "RESHAPE_NOTIFY_ME" not in str(refusal.value)


def test_a_relative_folder_of_a_document_is_that_of_who_submits_it(here: Client, got: Got, tmp_path: Path) -> None:
    here.submit({**GOOD, "code": "."})
    assert got[0]["code"] == str(tmp_path)


@pytest.mark.parametrize(
    "command",
    [["python", "/srv/train.py"], ["python", "-m", "train"], ["python", "-c", "print(1)"], ["./run"], [], [1]],
)
def test_a_document_that_needs_no_folder_is_sent_as_it_is(here: Client, got: Got, command: list[Any]) -> None:
    here.submit({"command": command, "optional_num_gpus": [1]})
    assert got[0]["command"] == command


def test_a_coordinator_elsewhere_is_sent_no_folder_and_no_variables(client: Client, got: Got) -> None:
    with pytest.warns(UserWarning, match="were not sent: on a cluster the image has its own"):
        client.submit(["python3", "/code/train.py"], env={"LR": "1"})
    (doc,) = got
    assert ("code" in doc, doc["env"]) == (False, {"LR": "1"})
    assert doc["command"] == ["python3", "/code/train.py"]


def test_with_an_image_nothing_is_missed_and_a_folder_in_it_may_be_named(
    client: Client, got: Got, recwarn: pytest.WarningsRecorder
) -> None:
    client.submit("train.py", code="/app", image="registry.example/me/train:1")
    (doc,) = got
    assert (doc["command"], doc["code"]) == (["python3", "train.py"], "/app")
    assert not recwarn.list


def test_an_empty_address_in_the_environment_is_none(here: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESHAPE_URL", "")
    assert Client().here


@pytest.fixture
def running(here: Client, live: Live) -> SubmittedJob:
    """A job that trains."""
    job = here.submit("train.py", name="a")
    live.coordinator.outputs["a"] = b"step=1\nstep=2\n"
    trains = {"state": "running", "num_gpus": 2, "iters_done": 3, "iterations": 9, "eta_s": 3900.0, "message": "<b>"}
    live.coordinator.documents["a"] |= trains
    return job


def test_a_job_shows_itself_and_knows_its_client(running: SubmittedJob) -> None:
    assert repr(running.refresh()) == "<Job a: running on 2 GPUs, 3/9, ends in 65 min, <b>>"
    assert "<td>ends in 65 min</td><td>&lt;b&gt;</td>" in running._repr_html_()
    assert '<progress value="3" max="9"></progress> 3/9' in running._repr_html_()
    assert (running["state"], running.logs()) == ("running", "step=1\nstep=2\n")
    assert running.cancel()["state"] == "cancelled"
    assert running.wait(progress=False).id == "a"
    assert repr(running) == "<Job a: cancelled on 2 GPUs, 3/9, <b>>"


def test_the_state_of_a_job_is_that_of_now_until_it_has_ended(running: SubmittedJob, live: Live) -> None:
    assert (running["state"], running.state, running["state"]) == ("submitted", "running", "running")
    live.coordinator.documents["a"]["state"] = "completed"
    assert running.state == "completed"
    del live.coordinator.documents["a"]
    assert running.state == "completed"


def test_what_a_coordinator_says_is_escaped_in_a_notebook() -> None:
    job = SubmittedJob(Client("http://127.0.0.1:1", "x"), {"job_id": "<i>", "state": "failed", "message": "<script>"})
    assert job._repr_html_().count("&lt;") == 2
    assert "<i>" not in job._repr_html_() and "<script>" not in job._repr_html_()


def test_several_jobs_are_one_table_without_empty_columns(here: Client) -> None:
    jobs = here.map("train.py", [{"lr": 1}, {"lr": 2}])
    assert (len(jobs), jobs[0].id) == (2, "train-1")
    table = jobs._repr_html_()
    assert (table.count("<tr>"), "<th>state</th>" in table, "<th>expected</th>" in table) == (3, True, False)
    assert [job.id for job in here.jobs()] == ["train-1", "train-2"]
    assert JobList()._repr_html_() == "No jobs."


def test_a_slaml_shows_itself_and_says_that_it_is_several_jobs(client: Client) -> None:
    slaml = SubmittedJob(client, {"slaml": "slaml.default.a"})
    assert (repr(slaml), slaml.id) == ("<Job slaml.default.a>", "slaml.default.a")
    with pytest.raises(TypeError, match="is a Slaml, several jobs"):
        slaml.wait()


def test_ctrl_c_ends_the_waiting_and_not_the_job(running: SubmittedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reshape.client.job_output.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.wait()
    assert running.state == "running"
