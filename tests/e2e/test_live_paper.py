"""An experiment of the papers with real trainings: coordinators, sidecars and all policies really run, one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.stores.opening import open_store
from reshape_papers.live_paper import outcome, runner
from reshape_papers.workloads import build
from simulator.scenario import Workload
from tests.e2e.up import ROOT, WITHIN_S, of_folder, wait_for
from tests.patience import patient


def two_jobs(name: str, iterations: float | None = None) -> Workload:
    """An experiment cut down to two jobs and to its first and last policy."""
    whole = build(name, 0, None)
    jobs = [replace(job, arrival_s=0.0, iterations=iterations or job.iterations) for job in whole.jobs[-2:]]
    return replace(whole, jobs=tuple(jobs), policy_setups=(whole.policy_setups[0], whole.policy_setups[-1]))


@pytest.mark.deep
def test_two_jobs_on_an_emulated_core_train_with_limits_and_without(tmp_path: Path) -> None:
    result = runner.train([two_jobs("flowcon-random-10")], 0.004, tmp_path)
    assert [row["policy"] for row in result["rows"]] == ["na", "flowcon"]
    for row in result["rows"]:
        slowest, both = max(row["jct_s"].values()), sum(row["jct_s"].values())
        assert 0 < slowest <= row["makespan_s"] < both, "from the first one submitted to the last one completed"
        assert set(row["jct_s"]) == {"job-06", "job-07"}
        assert 0.5 * row["asked_core_s"] < row["core_s"] < row["all_core_s"], "its work, and starts"
        assert row["own_core_s"] > 0 and row["others_core_s"] >= 0
    assert all("where" in sentence for sentence in result["off"]), "at this scale starts may weigh too much"
    ratio = next(f for f in result["figures"] if f["measure"] == "makespan_ratio")
    assert ratio["live"] == result["rows"][1]["makespan_s"] / result["rows"][0]["makespan_s"]
    assert "emulated: the nodes" in outcome.as_table(result)
    assert of_folder(tmp_path) == {}, "all that it started has ended"


@pytest.mark.deep
def test_two_jobs_on_emulated_gpus_train_on_the_count_of_the_paper_and_on_more(tmp_path: Path) -> None:
    result = runner.train([two_jobs("elastic-w2", 10_000.0)], 0.005, tmp_path)
    assert [row["policy"] for row in result["rows"]] == ["default", "sidecar"]
    assert result["gpu_owner_violations"] == 0
    assert result["rows"][0]["adds"] == result["rows"][0]["removes"] == 0, "the baseline leaves jobs alone"
    assert of_folder(tmp_path) == {}, "all that it started has ended"


@pytest.mark.deep
def test_the_termination_of_the_evaluation_runs_live_and_never_shrinks_a_job(tmp_path: Path) -> None:
    workload = two_jobs("elastic-w2", 10_000.0)
    setups = [one for one in build("elastic-w2", 0, None).policy_setups if one.name in ("default", "termination")]
    result = runner.train([replace(workload, policy_setups=tuple(setups))], 0.005, tmp_path)
    assert [(row["policy"], row["removes"]) for row in result["rows"]] == [("default", 0), ("termination", 0)]
    store = open_store(f"sqlite:///{tmp_path / '0-termination' / 'state' / 'reshape.sqlite'}")
    reasons = {row["algorithm"] for row in store.list("decisions") if row["kind"] == "start"}
    store.close()
    assert reasons == {"termination"}, "the planner of the simulated baseline decided"


@pytest.mark.deep
def test_jobs_begin_on_the_nodes_of_the_papers_round_robin_and_may_leave_them(tmp_path: Path) -> None:
    workload = two_jobs("specon-random-20")
    runner.train([workload], 0.003, tmp_path)
    for policy in ("ds", "specon-makespan"):
        store = open_store(f"sqlite:///{tmp_path / f'0-{policy}' / 'state' / 'reshape.sqlite'}")
        rows = {row["job_id"]: row for row in store.list("jobs")}
        began = {d["jobs"][0]: d["node"] for d in store.list("decisions") if d["kind"] == "start"}
        store.close()
        assert began == {job.id: job.node for job in workload.jobs}
        assert {row["pinned"] for row in rows.values()} == {None}


@pytest.mark.deep
def test_ctrl_c_ends_the_jobs_and_the_coordinator(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "reshape", "paper", "flowcon-fixed", "--live"]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: list(tmp_path.glob("reshape-live-*/*/state/jobs/*/output.log")), what="a job trains")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=patient(WITHIN_S))
    finally:
        process.terminate()  # ends its jobs, too
    assert process.returncode == 130 and "Its files are in" in said
    assert of_folder(tmp_path) == {}
