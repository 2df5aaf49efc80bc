"""Each format is read as its authors wrote it, and what did not run to its end is left out (D11, D12).

The files are made here, in the columns of the originals.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from adaptive_scheduler.snapshot import Node
from reshape_papers.traces import READERS
from reshape_papers.traces.csv_files import TraceSource
from reshape_papers.traces.trace import Trace
from simulator.scenario import NoWorkload


def read(kind: str, folder: Path, file: str = "", nodes: tuple[Node, ...] = ()) -> Trace:
    return READERS[kind](TraceSource(folder, file, nodes))


def lines(path: Path, *text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(text) + "\n")


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    return {"start_time": start, "end_time": end, "detail": [{"ip": "m", "gpus": ["gpu"] * n} for n in gpus]}


def philly_log(folder: Path) -> None:
    jobs = [
        {
            "status": "Pass", "vc": "a", "jobid": "1", "user": "u", "submitted_time": "2017-10-07 01:11:39",
            "attempts": [
                attempt("2017-10-07 01:12:09", "2017-10-07 01:13:23", 8),
                attempt("2017-10-07 01:13:30", "2017-10-07 02:13:30", 8, 4),
            ],
        },
        {
            "status": "Killed", "vc": "a", "jobid": "2", "user": "u", "submitted_time": "2017-10-07 00:00:00",
            "attempts": [attempt("2017-10-07 01:00:00", "2017-10-07 02:00:00", 1)],
        },
        {
            "status": "Pass", "vc": "a", "jobid": "3", "user": "u", "submitted_time": "2017-10-07 01:00:00",
            "attempts": [attempt("2017-10-07 01:00:00", None, 1)],
        },
        {"status": "Pass", "vc": "a", "jobid": "4", "submitted_time": "2017-10-07 01:00:00", "attempts": []},
        {
            "status": "Pass", "vc": "a", "jobid": "5", "user": "u", "submitted_time": "2017-10-07 01:12:39",
            "attempts": [attempt("2017-10-07 01:13:00", "2017-10-07 01:13:01", 2)],
        },
    ]  # fmt: skip
    (folder / "cluster_job_log").write_text(json.dumps(jobs))


def test_a_philly_job_is_its_last_attempt_on_all_gpus_of_all_its_servers(tmp_path: Path) -> None:
    philly_log(tmp_path)
    first, second = read("philly", tmp_path).jobs
    assert (first.arrival_s, first.gpus, first.duration_s) == (0.0, 12, 3600.0)
    assert (second.arrival_s, second.gpus, second.duration_s) == (60.0, 2, 1.0)


def test_the_list_that_pollux_made_of_philly_is_read_packed_or_not(tmp_path: Path) -> None:
    head = "timestamp,duration,num_gpus,gpu_time,cluster"
    text = f"{head}\n2017-10-09 07:01:55,66.0,1,66.0,a\n2017-10-09 07:00:55,5.0,4,20.0,a\n"
    (tmp_path / "philly.csv.gz").write_bytes(gzip.compress(text.encode()))
    packed = read("philly", tmp_path).jobs
    assert [(job.arrival_s, job.gpus, job.duration_s) for job in packed] == [(0.0, 4, 5.0), (60.0, 1, 66.0)]
    (tmp_path / "philly.csv").write_text(text)
    assert read("philly", tmp_path, "philly.csv").jobs == packed


def test_of_helios_only_jobs_with_gpus_that_completed_are_kept(tmp_path: Path) -> None:
    head = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
    days = "2020-04-01 00:00:00,2020-04-01 00:01:00,2020-04-01 01:01:00,3600,60"
    lines(
        tmp_path / "cluster_log.csv", head,
        f"1,u,v,8,48,1,COMPLETED,{days}", f"2,u,v,8,48,1,CANCELLED,{days}", f"3,u,v,0,48,1,COMPLETED,{days}",
    )  # fmt: skip
    trace = read("helios", tmp_path)
    assert [(job.gpus, job.duration_s, job.cores) for job in trace.jobs] == [(8, 3600.0, 48.0)]


def test_an_openb_pod_runs_from_when_it_was_scheduled_until_it_was_deleted(tmp_path: Path) -> None:
    lines(
        tmp_path / "openb_pod_list_default.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time",
        "a,6000,1024,1,460,,LS,Succeeded,100,400,150",
        "b,6000,1024,1,460,,LS,Running,100,400,150",
        "c,6000,1024,1,460,,LS,Pending,100,400,",
        "d,6000,1024,0,0,,LS,Succeeded,100,400,150",
        "e,6000,1024,2,1000,,LS,Failed,300,300,300",
    )
    (job,) = read("alibaba", tmp_path).jobs
    assert (job.gpus, job.duration_s, job.cores, job.memory) == (1, 250.0, 6.0, 2.0**30)


def test_a_pai_job_has_the_gpus_of_all_instances_of_all_its_tasks(tmp_path: Path) -> None:
    lines(
        tmp_path / "pai_task_table.csv",
        "j1,worker,3,Terminated,100,400,600,20,50,T4",
        "j1,ps,1,Terminated,90,390,200,10,,CPU",
        "j2,worker,1,Failed,100,400,600,20,100,T4",
        "j3,worker,1,Running,100,,600,20,100,T4",
    )
    (job,) = read("alibaba-pai", tmp_path).jobs
    assert (job.gpus, job.duration_s, job.cores, job.memory) == (2, 310.0, 20.0, 70e9)


GOOGLE_HEAD = (
    "time,type,collection_id,collection_type,instance_index,resource_request.cpus,resource_request.memory,machine_id"
)


def google(folder: Path) -> None:
    second = 1_000_000
    lines(
        folder / "instance_events.csv", GOOGLE_HEAD,
        f"{600 * second},0,7,0,0,0.25,0.5,", f"{610 * second},3,7,0,0,0.25,0.5,m", f"{710 * second},6,7,0,0,,,m",
        # still running, evicted and come back, an alloc set, and one that began before the trace did
        f"{600 * second},0,7,0,1,0.25,0.5,", f"{610 * second},3,7,0,1,0.25,0.5,m",
        f"{600 * second},0,8,0,0,0.1,0.1,", f"{610 * second},3,8,0,0,0.1,0.1,m", f"{620 * second},4,8,0,0,0.1,0.1,m",
        f"{630 * second},3,8,0,0,0.1,0.1,m", f"{640 * second},6,8,0,0,0.1,0.1,m",
        f"{600 * second},3,9,1,0,0.5,0.5,m", f"{700 * second},6,9,1,0,0.5,0.5,m",
        "0,3,10,0,0,0.5,0.5,m", f"{700 * second},6,10,0,0,0.5,0.5,m",
    )  # fmt: skip


def test_a_google_instance_takes_completion_less_start_in_seconds_of_the_machine_that_is_named(tmp_path: Path) -> None:
    google(tmp_path)
    machine = Node("c", "", cores=64.0, memory=1e9)
    (job,) = read("google", tmp_path, nodes=(machine,)).jobs
    assert (job.id, job.gpus, job.duration_s, job.cores, job.memory) == ("7-0", 0, 100.0, 16.0, 5e8)


def test_google_events_as_bigquery_exports_them_to_json_mean_the_same(tmp_path: Path) -> None:
    event = {"collection_id": "7", "instance_index": "0", "resource_request": {"cpus": 0.5, "memory": 0.25}}
    events = [
        {**event, "time": "610000000", "type": "SCHEDULE"}, {**event, "time": "600000000", "type": "SUBMIT"},
        {**event, "time": "611000000", "type": "FINISH"},
    ]  # fmt: skip
    lines(tmp_path / "instance_events.json", *map(json.dumps, events))
    (job,) = read("google", tmp_path).jobs
    assert (job.duration_s, job.cores) == (1.0, 16.0)


@pytest.fixture
def gavel(tmp_path: Path) -> Path:
    lines(
        tmp_path / "throughputs_isolated_simulation.csv",
        "gpu_type,consolidated,model,batch_size_per_worker,scale_factor,steps_per_s",
        "v100,1,ResNet-18,64,1,10.0", "v100,1,ResNet-18,64,2,16.0", "v100,0,ResNet-18,64,2,1.0",
        "k80,1,ResNet-18,64,1,0.0",
    )  # fmt: skip
    return tmp_path


def test_a_gavel_step_is_one_workers_however_many_there_are(gavel: Path) -> None:
    head = "job_type,batch_size_per_worker,total_steps,scale_factor,priority_weight,slo,arrival_time_s"
    lines(gavel / "traces/small_test.csv", head, "ResNet-18,64,3200,2,1,1.5,10", "ResNet-18,64,100,1,1,-1.000000,20")
    trace = read("gavel", gavel)
    assert [(job.duration_s, job.iterations, job.sla_s) for job in trace.jobs] == [
        (200.0, 3200, 300.0),
        (10.0, 100, None),
    ]
    assert [(row["gpu_type"], row["num_gpus"], row["seconds_per_iteration"]) for row in trace.speeds] == [
        ("V100", 1, 1 / 10), ("V100", 2, 1 / 16),
    ]  # fmt: skip


def test_gavels_own_lines_mean_the_same_as_its_table(gavel: Path) -> None:
    command = "python3 main.py --data_dir=%s/cifar10\timage_classification/cifar10\t--num_steps\t1"
    lines(gavel / "own.trace", f"ResNet-18 (batch size 64)\t{command}\t3200\t2\t1\t-1.000000\t10.0")
    (job,) = read("gavel", gavel, "own.trace").jobs
    assert (job.model, job.iterations, job.gpus, job.duration_s) == ("ResNet-18-64", 3200, 2, 200.0)


def test_a_voda_job_has_the_work_that_its_log_adds_up_to(tmp_path: Path) -> None:
    lines(tmp_path / "speedup.csv", "model,gpus,speedup", "vgg16,1,1", "vgg16,2,1.6")
    lines(
        tmp_path / "jobs.csv",
        "workload,algorithm,job,model,submit_s,completed_s,elapsed_s,ran_s,waited_s,gpu_seconds,work_1gpu_s_derived",
        "run_1,ElasticFIFO,0,vgg16,5.0,1,1,1,0,1,1600", "run_1,AFS-L,0,vgg16,5.0,1,1,1,0,1,1700",
        "run_1_hard,ElasticFIFO,0,vgg16,5.0,1,1,1,0,1,800",
    )  # fmt: skip
    assert [job.iterations for job in read("voda", tmp_path).jobs] == [1600.0]
    assert [job.duration_s for job in read("voda", tmp_path, "run_1_hard").jobs] == [500.0]


def test_an_elasticflow_deadline_counts_from_submission_and_best_effort_has_none(tmp_path: Path) -> None:
    lines(tmp_path / "throughputs_A100/vgg16.csv", "global_batch_size,1,2,4,8", "64,2.0,3.0,4.0,")
    lines(
        tmp_path / "traces/philly_103959.csv",
        "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort",
        "0,100,200,vgg16,250,64,1,100,0", "1,100,200,vgg16,0,64,1,100,1",
    )  # fmt: skip
    trace = read("elasticflow", tmp_path)
    assert [job.sla_s for job in trace.jobs] == [150.0, None]
    assert [(row["num_gpus"], row["seconds_per_iteration"]) for row in trace.speeds] == [
        (1, 1 / 2),
        (2, 1 / 3),
        (4, 1 / 4),
    ]


def test_itp_and_tiresias_say_how_long_a_job_took_on_its_gpus(tmp_path: Path) -> None:
    lines(tmp_path / "raw_jobs.csv", "cluster,job,submission_time_s,duration_s,num_gpu", "c,0,1932025,2429,64")
    lines(
        tmp_path / "60_job.csv",
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval",
        "0,8,30,133,vgg11,147,23",
    )
    assert [(j.arrival_s, j.gpus, j.duration_s) for j in read("itp", tmp_path).jobs] == [(0.0, 64, 2429.0)]
    assert [(j.arrival_s, j.gpus, j.duration_s) for j in read("tiresias", tmp_path).jobs] == [(0.0, 8, 147.0)]


@pytest.mark.parametrize("kind", sorted(READERS))
def test_an_empty_folder_is_told_in_one_sentence_that_names_it_and_a_file(kind: str, tmp_path: Path) -> None:
    with pytest.raises(NoWorkload, match=f"{tmp_path} has no .*; name the folder that has it with --data.$"):
        read(kind, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("timestamp,num_gpus\n", "no column duration; expected are timestamp, duration, num_gpus."),
        ("timestamp,duration,num_gpus\n2017-10-09 07:01:55,long,1\n", "row 1: duration must be a number, not 'long'."),
        ("timestamp,duration,num_gpus\nmonday,66,1\n", "row 1: timestamp must be a time such as 2017-10-09 07:01:55"),
        ("timestamp,duration,num_gpus\n", "the philly trace has no job that ran to its end; name another file of it."),
        ("timestamp,duration,num_gpus\n2017-10-09 07:01:55,inf,1\n", "no job that ran to its end"),
    ],
)
def test_an_odd_file_is_told_with_its_row_and_what_is_expected(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "philly.csv").write_text(text)
    with pytest.raises(NoWorkload) as refused:
        read("philly", tmp_path)
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["{", "[1, 2]", '[{"jobid": 1}]', '{"jobid": 1}'])
def test_a_log_that_is_no_list_of_jobs_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "cluster_job_log").write_text(text)
    with pytest.raises(NoWorkload, match=r"cluster_job_log.* must "):
        read("philly", tmp_path)


def test_a_packed_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    (tmp_path / "philly.csv.gz").write_bytes(gzip.compress(b"timestamp,duration,num_gpus\n" * 99)[:30])
    with pytest.raises(NoWorkload, match=r"philly\.csv\.gz cannot be read"):
        read("philly", tmp_path)
