"""Runs an experiment of the papers live: every contender after the other, as a `reshape up` of its own.

The jobs are submitted when they arrive; all figures come from the coordinator's events and the trainers' own GPU
locks. Called by `reshape paper --live`. Ctrl-C and SIGTERM cancel the jobs and end the coordinator; a failed run keeps
its folder.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from coordinator.errors import Conflict, Rejected
from coordinator.stores.opening import open_store
from launcher.local import cores_of_their_own
from reshape.client import Client, CoordinatorRefused, CoordinatorUnreachable
from reshape.output.terminal import to_json, writable_folder
from reshape.services.temporary_system import Follower, RunFailed, running, submit
from reshape_hooks import locks as gpu_locks
from reshape_papers import report
from reshape_papers.ending_signals import end_as_by_ctrl_c
from reshape_papers.live_paper import core_seconds, outcome, scaling, trainings
from reshape_papers.live_paper.scaling import Contender, LiveJob
from reshape_papers.papers import results
from reshape_papers.run import compare
from reshape_papers.workloads import build
from simulator.scenario import NoWorkload, Workload

View = dict[str, Any]

SCALES = {"elastic": 0.015, "workload": 0.015, "specon": 0.1, "flowcon": 0.15}
"""Scale by the first word of an experiment, with which one run takes less than a quarter of an hour on two cores."""
TRAINERS = {
    "replay": "each model is matrix products as long as the model's work, with the loss that it has in the simulation",
    "keras": "each model is trained in Keras, as long as the paper's work; LSTM-CRF is a plain LSTM",
    "numpy": "each model is the NumPy training on digits, as long as the model's work; its loss is its own",
}
"""What stands in for the models on CPU, by `--trainer`."""
PATIENCE_S, PATIENCE = 600.0, 10.0  # a contender may take so many seconds, and so many times the arrivals and more


@dataclass(frozen=True)
class LivePlan:
    """One draw of an experiment on this machine."""

    workload: Workload
    scale: float
    core: float
    jobs: Sequence[LiveJob]
    trainings: trainings.Trainings
    asked_core_s: float | None = None
    """Core-seconds of the work of all jobs, where they train on CPU."""


@dataclass(frozen=True)
class LiveSystem:
    """A coordinator that acts as one contender, and what is known of the place where its jobs train."""

    client: Client
    violations: Callable[[], int]
    """Return how often a GPU had two users."""
    let_move: Callable[[str], None]
    """Let a job move that only had to begin on a node."""
    document: Callable[[View], View] = lambda doc: doc
    """Add what a job needs in this place."""
    after: int = 0
    """The number of the last event before this contender."""


Place = Callable[[LivePlan, Contender, Path], AbstractContextManager[LiveSystem]]
"""Runs the coordinator of a contender for as long as the context lasts, with files in that folder."""


def run(*, name: str, scale: float | None, runs: int, trainer: str, data: Path | None, out: Path, output: str) -> int:
    """Run, print the table or JSON, and write both to the folder `out`. Raises `Rejected` with a sentence."""
    begin(out)
    result = experiment(name, scale_of(name, scale), runs, trainer, data)
    click.echo(to_json(result) if output == "json" else outcome.as_table(result))
    click.echo("\n".join(f"wrote {path}" for path in written(result, out)), err=True)
    for sentence in result["off"]:
        click.echo(sentence, err=True)
    return 1 if result["off"] else 0


def begin(out: Path) -> None:
    """Refuse a folder that cannot take the figures, before hours of training, and let signals end what is started."""
    writable_folder(out, "--out")
    _known(out)
    end_as_by_ctrl_c()


def scale_of(name: str, given: float | None) -> float:
    return given or SCALES.get(name.split("-")[0], 0.1)


def experiment(name: str, scale: float, runs: int, trainer: str, data: Path | None) -> View:
    """Train `runs` draws of an experiment in a folder of their own, which a failed one keeps; return all figures."""
    folder = Path(tempfile.mkdtemp(prefix="reshape-live-"))
    try:
        result = train([draw(name, seed, data) for seed in range(runs)], scale, folder, trainer)
    except NoWorkload as refused:
        shutil.rmtree(folder)
        raise Rejected(str(refused)) from None
    except (RunFailed, OSError, ValueError) as failed:
        raise Rejected(f"The live run failed: {str(failed).rstrip('.')}. Its files are in {folder}.") from None
    except KeyboardInterrupt:
        click.echo(f"\nInterrupted: its jobs and coordinator are ended. Its files are in {folder}.", err=True)
        raise
    shutil.rmtree(folder)
    return result


def _known(out: Path) -> View:
    """Return the figures of experiments that the folder holds. `Rejected` if its file is something else."""
    figures = out / results.LIVE
    try:
        known = json.loads(figures.read_text()) if figures.is_file() else {}
    except (OSError, ValueError):
        known = None
    if not isinstance(known, dict):
        raise Rejected(f"{figures} does not hold the figures of experiments: name another folder with --out.")
    return known


def written(result: View, out: Path) -> list[Path]:
    """Write the result to a file of its own, and its figures to `live.json` beside those of other experiments.

    Figures with a draw whose baseline was off do not come into `live.json`.
    """
    whole, figures = out / f"{result['experiment']}.json", out / results.LIVE
    whole.write_text(to_json(result) + "\n")
    if result["off"]:
        return [whole]
    # Read anew: another experiment may have ended meanwhile.
    figures.write_text(json.dumps(_known(out) | {result["experiment"]: outcome.kept(result)}, indent=1) + "\n")
    return [whole, figures]


def draw(name: str, seed: int, data: Path | None) -> Workload:
    workload = build(name, seed, data)
    scaling.check(workload)
    return workload


def train(
    workloads: Sequence[Workload], scale: float, folder: Path, trainer: str = "replay", place: Place | None = None
) -> View:
    """Train the draws of one experiment under each of its policies, with all files in `folder`; return all figures.

    `place`: where; default: on emulated nodes of this machine.
    """
    plans = _plans(workloads, scale, trainer)
    name = workloads[0].name
    contenders = scaling.contenders(workloads[0], scale, place is None)
    held = cores_of_their_own()
    rows = list[report.Row]()
    draws = list[tuple[View, View]]()
    violations = 0
    off = list[str]()  # of draws that tell nothing
    steps = sum(len(plan.jobs) for plan in plans) * len(contenders)
    with click.progressbar(length=steps, label=f"Training {name}", file=sys.stderr) as bar:
        for plan in plans:
            ran = []
            for contender in contenders:
                files = folder / f"{plan.workload.seed}-{contender.name}"
                meter = core_seconds.CoreSecondMeter(files)
                with meter, (place or on_this_machine)(plan, contender, files) as system:
                    events = _run(plan, contender, system, bar.update)
                    violations += system.violations()
                row = outcome.row(contender.name, plan.workload, scale, plan.jobs, events)
                ran.append(row | core_seconds.of_run(meter.found, plan.asked_core_s) if place is None else row)
            ran = outcome.with_gains(ran)
            simulated = [one.row for one in compare(plan.workload, [c.name for c in contenders])]
            if place is None and (why := core_seconds.why_off(ran[0], simulated[0]["makespan_s"])):
                off.append(why)
            draws.append((report.summary(plan.workload, ran), report.summary(plan.workload, simulated)))
            rows += ran
    return {
        "experiment": name, "scale": scale, "jobs": len(plans[0].jobs), "runs": len(plans),
        "taken": datetime.now(UTC).date().isoformat(), "cores": len(os.sched_getaffinity(0)),
        "emulated_core": plans[0].core, "control_groups": held, "gpu_owner_violations": violations,
        "contenders": {c.name: c.says for c in contenders}, "trainer": trainer,
        "stands_in": _stands_in(plans[0], held, trainer), "off": off,
        "figures": outcome.figures(draws), "rows": rows,
    }  # fmt: skip


def _plans(workloads: Sequence[Workload], scale: float, trainer: str) -> list[LivePlan]:
    on_cpu = scaling.uses_cpu(workloads[0])
    core = scaling.real_cores(workloads[0], len(os.sched_getaffinity(0)))
    cpu_s = dict[str, float]()
    plans = list[LivePlan]()
    for workload in workloads:
        of_kind = trainings.ON_CPU[trainer](workload) if on_cpu else trainings.paced_digits
        kinds = {scaling.kind(job) for job in workload.jobs} if on_cpu else set[str]()
        cpu_s |= trainings.step_cpu_s(of_kind, kinds - cpu_s.keys())
        plans.append(_plan(workload, scale, core, cpu_s, of_kind))
    return plans


def _plan(
    workload: Workload, scale: float, core: float, step_cpu_s: Mapping[str, float], of_kind: trainings.Trainings
) -> LivePlan:
    jobs = scaling.live_jobs(workload, scale, core, step_cpu_s)
    asked = math.fsum(job.iterations * step_cpu_s[job.kind] for job in jobs) if step_cpu_s else None
    return LivePlan(workload, scale, core, jobs, of_kind, asked)


def _stands_in(plan: LivePlan, held: bool, trainer: str) -> list[str]:
    """Return what is emulated, one sentence each."""
    if not scaling.uses_cpu(plan.workload):
        return ["emulated: the GPUs, which pace a small NumPy training by the speed table's seconds per iteration"]
    said = [
        f"emulated: the nodes; each emulated core is {plan.core:.2f} of a real one, the work of all jobs in proportion"
    ]
    if not held:
        said.append("no control group can be made here: the nodes share all cores of this machine, without borders")
    said.append(TRAINERS[trainer])
    if any(job.step_s for job in plan.jobs):
        said.append("a job that uses a part of a core rests between its iterations")
    return said


@contextlib.contextmanager
def on_this_machine(plan: LivePlan, contender: Contender, folder: Path) -> Iterator[LiveSystem]:
    """Run a `reshape up` with emulated nodes."""
    locks = folder / "gpu-locks"
    beat_s = scaling.heartbeat_s(plan.workload, plan.scale)
    variables = {
        "RESHAPE_STORE": "", "RESHAPE_HEARTBEAT_S": f"{beat_s:g}", "RESHAPE_POLL_S": "1",
        "RESHAPE_GPU_LOCKS": str(locks), **contender.variables,
    }  # fmt: skip
    options = [*scaling.node_options(plan.workload, plan.core), "--policy", contender.policy]
    with running(folder, options, variables, contender.program) as client:
        yield LiveSystem(client, lambda: len(gpu_locks.violations(locks)), partial(_free, folder / "state"))


def _run(plan: LivePlan, contender: Contender, system: LiveSystem, ended: Callable[[int], None]) -> list[View]:
    """Run all jobs under one contender; return its events."""
    _teach_profile(system.client, plan)
    limit_s = PATIENCE_S + PATIENCE * max(job.arrival_s for job in plan.jobs)
    follower = Follower(system.client, lambda event, seconds: None, time.monotonic() + limit_s, system.after)
    with _arriving(system, plan, contender, follower.give_up):
        follower.until(_all_closed(plan, system, ended))
    return follower.events


def _teach_profile(client: Client, plan: LivePlan) -> None:
    """Give a coordinator the profile of the scaled jobs. Raises `RunFailed`."""
    try:
        if not scaling.uses_cpu(plan.workload):
            client.import_profiles("speed_profiles", scaling.speed_rows(plan.workload))
        client.import_profiles("overheads", scaling.overhead_rows(plan.workload, plan.scale))
    except (CoordinatorRefused, CoordinatorUnreachable) as error:
        raise RunFailed(str(error)) from None


def _all_closed(plan: LivePlan, system: LiveSystem, ended: Callable[[int], None]) -> Callable[[View], bool]:
    """Return what looks at each event, until nothing of any job is left."""
    closed, begins_at = set[str](), {job.id for job in plan.jobs if job.node is not None}

    def look(event: View) -> bool:
        if event["type"] == "initialized" and event["job_id"] in begins_at:
            system.let_move(event["job_id"])
            begins_at.discard(event["job_id"])
        if event["type"] == "closed":
            closed.add(event["job_id"])
            ended(1)
        return len(closed) == len(plan.jobs)

    return look


def _free(state: Path, job_id: str) -> None:
    """Let a job move: it only had to begin on the node of the paper's round robin, which no policy of ours is."""
    store = open_store(f"sqlite:///{state / 'reshape.sqlite'}")
    try:
        while True:
            (row,) = store.list("jobs", {"job_id": job_id})
            with contextlib.suppress(Conflict):
                store.update("jobs", row["_id"], {"version": row["version"]}, {"pinned": None})
                return
    finally:
        store.close()


@contextlib.contextmanager
def _arriving(
    system: LiveSystem, plan: LivePlan, contender: Contender, failed: Callable[[RunFailed], None]
) -> Iterator[None]:
    """Submit each job at its time, beside the body; call `failed` with what went wrong."""
    over, began = threading.Event(), time.monotonic()

    def arrive() -> None:
        for job in plan.jobs:
            if over.wait(max(0.0, began + job.arrival_s - time.monotonic())):
                return
            try:
                document = job.document(plan.trainings(job.kind), fixed=contender.name == "default")
                submit(system.client, system.document(document))
            except RunFailed as failure:
                failed(failure)
                return

    thread = threading.Thread(target=arrive, name="arrivals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
