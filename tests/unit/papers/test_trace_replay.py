"""A trace becomes a workload that the product's own decisions run, and what was assumed on the way is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaptive_scheduler.snapshot import Node
from reshape_papers.run import compare
from reshape_papers.traces import READERS, replay
from reshape_papers.traces.trace import SPEED_UP, Trace, TraceJob, on_nodes, speed_up, workload
from simulator.scenario import NoWorkload

DATA = os.environ.get("RESHAPE_DATA")
with_data = pytest.mark.skipif(not DATA, reason="needs other people's traces: set RESHAPE_DATA to their folder")

NODE = on_nodes("node", "V100", 1, 8)


def trace_of(*jobs: TraceJob) -> Trace:
    return Trace.from_jobs("made", jobs)


def gpu_job(name: str = "a", arrival_s: float = 0.0, gpus: int = 4, duration_s: float = 1000.0) -> TraceJob:
    return TraceJob(name, arrival_s, gpus, duration_s)


def test_on_the_gpus_that_it_had_a_job_trains_as_long_as_it_did() -> None:
    (job,), profiles = (w := workload(trace_of(gpu_job()), nodes=NODE)).jobs, w.policy_setups[0].profiles
    speed = profiles.speed(job.type, "V100", 4)
    assert speed is not None
    assert job.iterations * speed.seconds == pytest.approx(1000.0)


def test_a_job_may_have_powers_of_two_up_to_what_it_asked_for_and_that() -> None:
    jobs = workload(trace_of(gpu_job("a", gpus=6), gpu_job("b", gpus=1), gpu_job("c", gpus=32)), nodes=NODE).jobs
    assert [job.optional for job in jobs] == [(1, 2, 4, 6), (1,), (1, 2, 4, 8)]
    assert [job.fixed_gpus for job in jobs] == [6, 1, 8]


def test_times_count_from_the_first_arrival_and_jobs_come_in_that_order() -> None:
    jobs = trace_of(gpu_job("late", 1e9 + 60), gpu_job("early", 1e9)).jobs
    assert [(job.id, job.arrival_s) for job in jobs] == [("early", 0.0), ("late", 60.0)]


def test_the_jobs_left_out_are_what_is_known_of_the_past() -> None:
    trace = trace_of(*(gpu_job(f"job-{i}", i, duration_s=i + 1.0) for i in range(5)))
    assert [row.execution_s for row in workload(trace, 3).observations.rows] == [4.0, 5.0]
    assert len(trace.observations.rows) == 5


def test_without_nodes_there_are_most_of_what_the_jobs_would_hold_at_once() -> None:
    jobs = [gpu_job(f"job-{i}", i * 100.0, 8, 500.0) for i in range(20)]  # 5 at a time: 40 GPUs
    assert [len(node.gpus) for node in workload(trace_of(*jobs)).nodes] == [8, 8, 8, 8]
    weeks = gpu_job("weeks", 0.0, 8, 1e6)
    assert len(workload(trace_of(*jobs, weeks, gpu_job("and", 0.0, 8, 1e6))).nodes) == 6


@pytest.mark.parametrize(
    ("job", "node", "said"),
    [
        (gpu_job(), Node("c", "", cores=4.0), "name a node that has some, such as --node a=8xV100"),
        (TraceJob("a", 0.0, 0, 1.0, cores=1.0), NODE[0], "name a node for them: --node c=cpu:32"),
        (TraceJob("a", 0.0, 1, 1.0, model="m", iterations=1.0), NODE[0], "no speed of m on V100; no figures"),
    ],
)
def test_nodes_that_cannot_run_the_jobs_are_told(job: TraceJob, node: Node, said: str) -> None:
    with pytest.raises(NoWorkload, match=said):
        workload(trace_of(job), nodes=(node,))


def test_a_trace_trained_on_cpu_uses_at_most_the_cores_that_each_asked_for() -> None:
    jobs = [TraceJob(f"job-{i}", 0.0, 0, 100.0, cores=2.0) for i in range(2)]
    runs = {run.policy: run.outcome for run in compare(workload(trace_of(*jobs), nodes=(Node("c", "", cores=4.0),)))}
    assert set(runs) == {"volcano", "reshape"}
    for outcome in runs.values():
        assert [job.used for job in outcome.jobs] == pytest.approx([200.0, 200.0])


def test_every_policy_runs_a_trace_to_its_end_and_a_lone_job_takes_its_time_and_the_overheads() -> None:
    for run in compare(workload(trace_of(gpu_job()), nodes=NODE), ("default", "termination", "sidecar")):
        (job,) = run.outcome.jobs
        assert job.finished_s is not None
        assert job.finished_s > 1000.0


def test_what_was_assumed_is_said() -> None:
    said = " ".join(workload(trace_of(gpu_job())).invented)
    assert "ElasticFlow, throughputs_A100/resnet50.csv" in said
    assert "80% of the most" in said


@pytest.mark.parametrize(("name", "said"), [("filly", "take one of google, philly"), ("philly", "name it with --data")])
def test_an_unknown_format_and_a_missing_folder_are_told(name: str, said: str) -> None:
    with pytest.raises(NoWorkload, match=said):
        replay(name, None)


def test_more_gpus_are_faster_by_less_and_less() -> None:
    speeds = [speed_up(n) for n in (1, 2, 3, 4, 6, 8, 16, 32, 64)]
    assert speeds == sorted(speeds)
    assert all(speed_up(n) / n >= speed_up(n + 1) / (n + 1) for n in range(1, 70))
    assert speed_up(128) == speed_up(64)
    with pytest.raises(ValueError, match="at least 1 GPU, not 0"):
        speed_up(0)


@with_data
def test_the_curve_is_what_its_source_says() -> None:
    path = Path(DATA or "") / "elasticflow" / "throughputs_A100" / "resnet50.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    (row,) = (dict(zip(rows[0], cells, strict=True)) for cells in rows if cells[0] == "256")
    assert {n: round(float(row[str(n)]) / float(row["1"]), 3) for n in SPEED_UP} == SPEED_UP


STORED = {
    "philly": 82_247, "alibaba": 2_054, "gavel": 20, "gavel:gavel/traces/minimize_makespan.csv": 100, "pollux": 160,
    "pollux:pollux/workloads-realistic/workload-3.csv": 160, "voda": 24, "voda:run_1_hard": 24, "elasticflow": 876,
    "elasticflow:elasticflow/traces/elasticVpollux_e.csv": 195, "itp": 69_351, "tiresias": 60,
}  # fmt: skip
"""Jobs that ran, of each stored trace."""


LONG = ("itp", "philly")  # tens of thousands of jobs
EACH = [pytest.param(name, marks=pytest.mark.deep) if name in LONG else name for name in STORED]


@with_data
@pytest.mark.parametrize("name", EACH)
def test_a_stored_trace_is_read_whole_and_its_first_jobs_run(name: str) -> None:
    data = Path(DATA or "")
    whole = replay(name, data)
    assert len(whole.jobs) == STORED[name]
    (run,) = compare(replay(name, data, 12), ("sidecar",))
    assert all(job.finished_s is not None for job in run.outcome.jobs)


@with_data
def test_no_format_is_left_without_a_stored_trace_but_those_that_are_not_licensed() -> None:
    assert set(READERS) - {name.partition(":")[0] for name in STORED} == {"google", "helios", "alibaba-pai"}
