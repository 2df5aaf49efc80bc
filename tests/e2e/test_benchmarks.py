"""`python -m benchmarks` at its smallest sizes: each one runs, checks its answers, and prints both sides and the floor.

The numbers themselves are judged by nobody here: what a busy machine measures proves nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gap_on_gpus import WAYS
from tests.interpreters import python_with
from tests.patience import patient

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.deep  # measures, so nothing should run beside it

NAMES = ("gap", "overhead", "round_trips", "decide", "extender", "launches", "checkpoints", "scale", "cluster_size")
NAMES += ("peers", "sharing")
WITHIN_S = patient(300.0)


def bench(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[str, dict[str, Any]]]:
    """What each prints as JSON; all run at once, since they mostly wait for one another's trainings."""
    running = {name: bench(name, "--tiny", "--json") for name in NAMES}
    try:
        found = {}
        for name, process in running.items():
            text, errors = process.communicate(timeout=WITHIN_S)
            assert process.returncode == 0, errors[-3000:]
            found[name] = json.loads(text)
        yield found
    finally:
        for process in running.values():
            process.terminate()
            process.communicate(timeout=WITHIN_S)


def rows(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["what"]: row for row in report["benchmarks"][0]["rows"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_both_sides_their_ratio_and_where_it_ran(reports: dict[str, Any], name: str) -> None:
    report = reports[name]
    assert {"cpu", "cores", "load"} <= report["machine"].keys()
    assert {"reshape", "python", "numpy"} <= report["versions"].keys()
    assert report["benchmarks"][0]["name"] == name
    assert rows(report)
    assert all(row["ours"] > 0 and row["theirs"] > 0 and row["ratio"] > 0 for row in rows(report).values())
    assert any(row["floor"] is not None for row in rows(report).values())


def test_the_gap_is_measured_in_rounds_on_all_sides(reports: dict[str, Any]) -> None:
    tables = {table["title"]: table["rows"] for table in reports["gap"]["benchmarks"][0]["tables"]}
    assert len(tables["numpy: every round, seconds"]) == 2


def test_a_reshape_writes_no_more_than_its_journal_its_reason_and_what_a_waiting_start_shows(
    reports: dict[str, Any],
) -> None:
    tables = {table["title"]: table["rows"] for table in reports["round_trips"]["benchmarks"][0]["tables"]}
    purposes = {row[0]: [int(n) for n in row[1:6]] for row in tables["reshapes, by purpose"]}
    assert purposes["reshape up"] == [1, 3, 1, 1, 0]  # GPUs changing hands, job, GPU, decision, receipt
    assert purposes["reshape down"] == [1, 3, 0, 0, 0]
    assert purposes["the start that it is for"] == [1, 4, 2, 1, 0]
    assert all(row["ratio"] <= 1 for what, row in rows(reports["round_trips"]).items() if "changing hands" in what)


def test_the_extender_costs_little_beside_a_bare_handler(reports: dict[str, Any]) -> None:
    """At twice the floor that the benchmark states: both sides ran in turns on the same busy machine."""
    session = rows(reports["extender"])["one session"]
    assert session["ratio"] <= 2 * session["floor"]


def test_the_gap_of_a_real_framework_is_measured_in_each_way_and_its_state_is_the_same() -> None:
    if python_with("torch") is None:
        pytest.skip("no Python here has PyTorch; make frameworks installs it")
    process = bench("gap", "--gpu", "--models", "tiny", "--rounds", "1", "--json")
    text, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0, errors[-3000:]
    report = json.loads(text)["benchmarks"][0]
    assert report["wrong"] == []
    stages = {row[2]: row[-2:] for row in report["tables"][0]["rows"]}
    assert stages == {way: ["1 of 1", "1 of 1"] for way in WAYS}  # the next step, with the same state


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    process = bench("gaps")
    _, errors = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 2
    assert "there is no benchmark gaps; there are gap, overhead, round_trips" in errors
