"""Compares mean JCTs of Tiresias, Optimus+Oracle and Pollux in Pollux's simulated cluster with the published ones.

`results_jobload.csv`: eight workloads at four loads, 16 nodes of 4 T4 (OSDI 2021, section 5.3). The cluster is
`rounds.py`, the jobs are `pollux_jobs.py`. Called by `validate`; takes some minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from reshape_papers import pollux_jobs
from reshape_papers.comparison_policies.allotment import Allot
from reshape_papers.comparison_policies.optimus import optimus
from reshape_papers.comparison_policies.pollux import Pollux
from reshape_papers.comparison_policies.tiresias import Tiresias
from reshape_papers.pollux_jobs import PER_NODE, PolluxApplication
from reshape_papers.published_tables import table
from reshape_papers.validation.rounds import NODES, RoundedJob, Rounds
from reshape_papers.validation.rows import ComparedFigure

FOLDERS = {"0.5": "workloads-0.5", "1.0": "workloads", "1.5": "workloads-1.5", "2.0": "workloads-2.0"}
WORKLOADS = tuple(f"workload-{i}" for i in range(1, 9))
SOURCE = "Pollux (OSDI 2021), simulator/results-jobload"

NOT_ELASTIC = "ncf"
"""Trained on one GPU, at its largest batch where Pollux chooses (`get_pollux_job_info` of its simulator)."""
NCF_BATCH = 32768


@dataclass(frozen=True)
class PublishedPolicy:
    """One of its policies: a fresh object for each run, and whether it chooses batches too."""

    policy: Callable[[], Allot]
    tuned: bool = False


POLICIES = {
    "tiresias": PublishedPolicy(Tiresias),
    "optimus": PublishedPolicy(lambda: optimus),
    "pollux": PublishedPolicy(Pollux, tuned=True),
}


def rows(data: Path) -> Iterator[ComparedFigure]:
    """Yield Tiresias and Optimus for each workload, Pollux as a mean over the eight, since its search is random."""
    published = {
        (line["relative_load"], line["workload"], line["policy"]): float(line["avg_jct_s"])
        for line in table(data, "pollux/results_jobload.csv")
    }
    apps = pollux_jobs.read(data)
    for load in FOLDERS:
        for name, contest in POLICIES.items():
            theirs = [published[load, workload, name] for workload in WORKLOADS]
            ours = [mean_jct_s(data, apps, load, workload, contest) for workload in WORKLOADS]
            if contest.tuned:
                yield _row(f"pollux.load_{load}.mean_of_8.{name}", fmean(theirs), fmean(ours))
                continue
            for workload, their, our in zip(WORKLOADS, theirs, ours, strict=True):
                yield _row(f"pollux.load_{load}.{workload}.{name}", their, our)


def mean_jct_s(
    data: Path, apps: Mapping[str, PolluxApplication], load: str, workload: str, contest: PublishedPolicy
) -> float:
    """Return the mean JCT of one run, in seconds from submission."""
    jobs = [_job(line, apps, contest.tuned) for line in table(data, f"pollux/{FOLDERS[load]}/{workload}.csv")]
    done = Rounds(jobs, contest.policy(), _counts).run()
    return fmean(job.finished_s - job.submit_s for job in done if job.finished_s is not None)


def _row(name: str, published: float, ours: float) -> ComparedFigure:
    return ComparedFigure(f"{name}.mean_jct_s", SOURCE, published, ours, within=0.1)


def _job(line: Mapping[str, str], apps: Mapping[str, PolluxApplication], tuned: bool) -> RoundedJob:
    fixed = line["application"] == NOT_ELASTIC
    return RoundedJob(
        name=line["name"],
        app=apps[line["application"]],
        submit_s=float(line["time"]),
        asked=int(line["num_replicas"]),
        batch=NCF_BATCH if tuned and fixed else int(line["batch_size"]),
        tuned=tuned and not fixed,
    )


def _counts(job: RoundedJob) -> tuple[int, ...]:
    """Return the allowed counts: up to the one that leaves every GPU the smallest measured batch."""
    largest = (job.app.max_batch if job.tuned else job.batch) // job.app.min_local
    return (1,) if job.app.name == NOT_ELASTIC else tuple(range(1, min(largest, NODES * PER_NODE) + 1))
