"""`reshape profile import-trace`: the jobs of a trace become observations; the file is made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coordinator.errors import Rejected
from reshape.cli.main import run
from reshape_papers.commands import trace_rows
from tests.fakes.coordinator_api import TOKEN, serve
from tests.fakes.world import World


def google(folder: Path, instances: int) -> Path:
    """Instance n takes n + 1 seconds with half of the cores and a quarter of the memory of the largest machine."""
    events = [
        {"collection_id": "7", "instance_index": str(n), "time": str((600 + at) * 1_000_000), "type": kind,
         "resource_request": {"cpus": 0.5, "memory": 0.25}}
        for n in range(instances) for at, kind in ((0, "SUBMIT"), (10, "SCHEDULE"), (11 + n, "FINISH"))
    ]  # fmt: skip
    (folder / "instance_events.json").write_text("\n".join(map(json.dumps, events)))
    return folder


def test_googles_instances_become_rows_of_what_they_asked_for_and_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, world = str(google(tmp_path, 2)), World()
    with serve(world.api) as live:
        there = ("--url", live.url, "--token", TOKEN)
        for _ in range(2):  # the same again replaces them
            assert run([*there, "profile", "import-trace", "google", "--data", folder, "--node", "c=cpu:8"]) == 0
    assert capsys.readouterr().out.splitlines() == 2 * ["2 of 2 jobs imported into observations."]
    rows = world.api.profiles.profiles("observations")
    assert [(r["cores"], r["memory"], r["gpus"], r["execution_s"], r["origin"]) for r in rows] == [
        (4.0, 64 * 2.0**30, 0, 1.0, "google"), (4.0, 64 * 2.0**30, 0, 2.0, "google"),
    ]  # fmt: skip
    assert [row["job_id"] for row in rows] == ["7-0", "7-1"]


def test_of_a_long_trace_jobs_are_taken_evenly(tmp_path: Path) -> None:
    rows, jobs = trace_rows.read("google", google(tmp_path, 10), 4, ())
    assert ([row["execution_s"] for row in rows], jobs) == ([1.0, 4.0, 6.0, 9.0], 10)


@pytest.mark.parametrize(("name", "words"), [("gogle", "no trace format 'gogle'"), ("google:x.csv", "has no x.csv")])
def test_what_is_not_there_is_said(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(Rejected, match=words):
        trace_rows.read(name, tmp_path, 4, ())
