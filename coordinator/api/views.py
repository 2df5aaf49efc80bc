"""Builds the views of jobs, pods, GPUs and nodes that callers get, from documents and newest reports. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptive_scheduler.candidates import gpus
from adaptive_scheduler.models.pause import described
from adaptive_scheduler.profiles.growth import UNMEASURED, Efficiency
from coordinator.expected_times import ExpectedTimes
from coordinator.forecasts.intervals import WhenExpected
from coordinator.model import progress, requirements, resumption, time_limit
from coordinator.model import states as s
from coordinator.model.progress import iteration_counts, iterations_left
from coordinator.model.records import RUNS, GpuRecord, JobRecord, Moment, number
from coordinator.model.tables import JobField, JobRow
from coordinator.scheduling.why.change import Change
from coordinator.telemetry.measured.other_load import HeldByOthers
from coordinator.telemetry.node_load import NodeLoad
from coordinator.webhooks import host, is_webhook
from sidecar.protocol import GpuReading, Heartbeat, NodeJobs, ShimStatus, Usage

View = dict[str, Any]

# Fields of the document that are shown as they are; the others are computed or not shown.
SHOWN: tuple[JobField, ...] = (
    "state",
    "num_gpus",
    "gpu_ids",
    "optional_num_gpus",
    "node",
    "generation",
    "launch",
    "message",
    "problems",
    "submit_ts",
    "start_ts",
    "finish_ts",
    "reshape",
    "reshapes",
    "reshape_cost_s",
    "command",
    "code",
    "dataset",
    "wanted",
    "retries",
    "checkpoint",
    "cancel",
    "closed",
    "resources",
    "tasks",
    "sla",
    "estimate",
    "target",
    "target_top5",
    "time_limit",
    "owner",
    "gpus_per_pod",
    "devices",
    "queue",
    "namespace",
    "fault",
    "elastic",
    "resumes",
    "lost",
    "weight",
)
SEEN_BY_ALL = frozenset(
    {
        "job_id",
        "owner",
        "state",
        "num_gpus",
        "gpu_ids",
        "optional_num_gpus",
        "gpus_per_pod",
        "node",
        "generation",
        "launch",
        "reshapes",
        "moves",
        "preempts",
        "retries",
        "submit_ts",
        "start_ts",
        "finish_ts",
        "closed",
        "cancel",
        "suspended",
        "emulated",
        "queue",
        "namespace",
    }
)
"""Fields of a job that all users of a shared machine may see."""
NOTHING_SEEN: View = {
    "message": "",
    "problems": [],
    "warnings": [],
    "yields_to": [],
    "start_guesses": [],
    "pods": [],
    "iters_done": 0,
    "rigid": False,
    "length_unsure": False,
    "growth_efficiency": {},
}
"""Values for the others that may not be null."""
TIMES: tuple[JobField, ...] = ("submit_ts", "start_ts", "finish_ts")


def job_view(
    job: JobRecord,
    beat: Heartbeat | None,
    stored: Mapping[str, Any],
    emulated: bool,
    needs: int | None = None,
    efficiency: Efficiency = UNMEASURED,
) -> View:
    """The view of one job. `stored` is the row of the last written heartbeat, shown until the sidecar reports again.

    `needs`: total iterations until its target, as predicted from its curve.
    """
    done, total = iteration_counts(job, beat)
    done = max(done, int(stored.get("iters_done") or 0))
    ours: JobRow = job.doc if job.accepted else {}  # before intake a document may hold anything
    view: View = {"job_id": job.raw_id, "job_type": job.doc.get("job_type"), **{f: job.doc.get(f) for f in SHOWN}}
    view |= {field: None for field in TIMES if number(view[field]) is None}  # as a hand wrote into an ended job
    view |= {
        "num_gpus": view["num_gpus"] or 0,
        "generation": job.generation,
        "launch": job.launch,
        "gpus_per_pod": job.gpus_per_pod,
        "reshapes": int(number(view["reshapes"]) or 0),
        "moves": ours.get("moves") or 0,
        "preempts": ours.get("preempts") or 0,
        "fault": ours.get("fault"),
        "yields_to": ours.get("yields_to") or [],
        "warnings": ours.get("warnings") or [],
        "category": ours.get("category"),
        "pinned": ours.get("pinned"),
        "suspended": job.suspended,
        "held": None if job.state in s.ENDED else job.held or None,
        "stalled": None,
        "message": str(view["message"] or ""),
        "notify": _notified(ours),
        "unlimitable": job.unlimitable if job.accepted else None,
        "growth_efficiency": growth_efficiency(efficiency),
        "problems": [str(one) for one in problems] if isinstance(problems := view["problems"], list) else [],
        "rigid": job.accepted and resumption.rigid(job),
        "left_alone": _left_alone(job),
        "lost": _lost(ours),
        "iterations": total,
        "iters_done": done,
        "emulated": emulated,
        "epochs_done": job.doc.get("epochs_done"),
        "value": job.doc.get("value"),
        "value_name": job.doc.get("value_name"),
        "seconds_per_iteration": None,
        "usage": _usage(Usage()),
        "eta_s": None,
        "time_left_s": None,
        "iterations_left": None,
        "epochs_left": None,
        "length_unsure": False,
        "restart": None,
        "pause": None,
        "gpu_access": None,
        "because": None,
        "receipt": None,
        **starts_if(None),
    }
    if job.state not in s.ENDED:
        to_do = iterations_left(job, done, total, needs)
        view |= _length(job, to_do, needs)
        # The last report of a job that is back in the queue shows processes that are gone.
        view |= _live(beat, to_do) if beat is not None and job.state != s.SUBMITTED and not job.held else {}
    return view


def times(
    job: JobRecord, view: Mapping[str, Any], expected: Mapping[str, ExpectedTimes], ago_s: float, wall: float
) -> View:
    """Fields of the view: when a waiting job starts, when a placed one ends, by how much its deadline is missed.

    `expected` was computed `ago_s` seconds ago. An end by measured speed, which the view has, replaces a predicted
    one. `start_guesses` names jobs of unknown length that the predicted start rests on.
    """
    foreseen = job.accepted and job.state not in s.ENDED and not (job.held or job.stalled or job.idle_in_stop)
    found = expected.get(job.id, ExpectedTimes()) if foreseen else ExpectedTimes()
    start, end = (None if t is None else max(0.0, t - ago_s) for t in (found.start_s, found.end_s))
    waits = job.state == s.SUBMITTED
    return {
        "start_in_s": start if waits else None,
        "start_guesses": list(found.guesses) if waits else [],
        "eta_s": view["eta_s"] if view["eta_s"] is not None or waits else end,
        "late_s": progress.tardiness_s(job.doc, wall) if job.accepted else None,
        "deadline_ts": progress.deadline_ts(job.doc) if job.accepted else None,
    }


def silence(job: JobRecord, silent_s: float) -> View:
    """The message of a job without a lease that is not heard from, instead of its last one."""
    what = gpus(len(job.gpu_ids)) if job.gpu_ids else "its place"
    why = (
        f"not heard from for {silent_s:.0f} s: it may train on, so it keeps {what} until it is heard from or its pod "
        "has ended; if its node is off for good, delete its pod by force, or the node"
    )
    return {"message": why} if job.state in s.LAUNCHED else {}


def no_report(job: JobRecord, view: View, silent_s: float) -> View:
    """The message of a job that has trained and is not heard from, instead of its last one."""
    if job.state not in RUNS or job.doc.get("up") != job.launch:
        return {}
    where = _where_to_look(view)
    return {"message": f"not heard from for {silent_s:.0f} s: it may train on, and what is shown is old; {where}"}


AGENT_WAITS = {
    "open": "its GPUs have not been opened to its pod",
    "close": "GPUs stay where they are, as they have not been closed to the pod that gives them up,",
}
LOOK_AT_AGENT = "look at the agent of that node: `reshape doctor` says whether it runs and what it lacks"


def no_answer(view: View, command: str, for_s: float, why: str) -> View:
    """The message of a job whose sidecar does not answer a command, `start` or `stop`, or that waits for the agent of a
    node, which is to `open` GPUs to its pod, or to `close` those that change hands."""
    if command in AGENT_WAITS:
        return {
            "message": f"{AGENT_WAITS[command]} for {for_s:.0f} s, and this is tried again ({why}); {LOOK_AT_AGENT}"
        }
    where = _where_to_look(view)
    return {"message": f"could not be told to {command} for {for_s:.0f} s, and is told again ({why}); {where}"}


def _where_to_look(view: View) -> str:
    pids = [f"{name} (process {view[pid]})" for name in ("sidecar", "shim") if view.get(pid := f"{name}_pid")]
    return f"look whether its {' or '.join(pids) or 'sidecar or shim'} is stopped, or its machine overloaded"


def time_left(job: JobRecord, view: Mapping[str, Any], at: Moment) -> View:
    """Fields of the view: the training time that its limit leaves an open job, which its end does not exceed."""
    left_s = None if job.state in s.ENDED or not job.accepted else time_limit.left_s(job, at)
    if left_s is None or view["eta_s"] is None or job.state == s.SUBMITTED:
        return {"time_left_s": left_s}
    return {"time_left_s": left_s, "eta_s": min(view["eta_s"], left_s)}


def standstill(job: JobRecord, at: Moment) -> View:
    """The fields of a job whose training makes no step, or does nothing in a stop: since when, and what to do."""
    why = resumption.describe_standstill(job, at)
    look, end = f"`reshape logs {job.raw_id}` shows what it wrote last", f"`reshape cancel {job.raw_id}` ends it"
    may = "it may hang, and is not killed, as it may still save" if job.idle_in_stop else "it may hang"
    return {"stalled": why, "message": f"{why}: {may}; {look}, {end}", "eta_s": None} if why else {}


def pause(job: JobRecord, beat: Heartbeat | None, pause_s: float) -> View:
    """Fields of the view of a training: how long a reshape is predicted to pause it, where its state is large."""
    if job.state not in s.LAUNCHED:
        return {}
    return {"pause": described(pause_s, *progress.state_of(beat, job.recreated)) or None}


def between(expected: WhenExpected) -> View:
    """Fields of the view: earliest and latest time of its start and its end, between which 9 of 10 outcomes lie."""
    start, end = (None if found is None else [found.earliest, found.latest] for found in (expected.start, expected.end))
    return {"starts_between": start, "ends_between": end}


def starts_if(change: Change | None) -> View:
    """Fields of the view of a waiting job: what binds it, and what would start it now. Null while that is unknown."""
    return {"binds": change and change.binds, "starts_if": change and change.remedy}


def of_another_user(view: View) -> View:
    """Return what users of a shared machine see of a job that is not theirs: its name, owner, state and counts."""
    hidden = dict.fromkeys(view) | {field: empty for field, empty in NOTHING_SEEN.items() if field in view}
    return hidden | {field: value for field, value in view.items() if field in SEEN_BY_ALL} | {"usage": _usage(Usage())}


def _left_alone(job: JobRecord) -> str | None:
    """The reason why the scheduler leaves a training job as it is; None if it does not."""
    return resumption.rigidity_reason(job) or None if job.accepted and job.state in s.LAUNCHED else None


def _notified(doc: JobRow) -> str | None:
    """The host of its webhook, of which the rest may be a secret."""
    return host(doc["notify"]) if is_webhook(doc.get("notify")) else None


def _lost(doc: JobRow) -> View | None:
    """The work that was repeated after the last stop, with a sentence."""
    lost = doc.get("lost")
    return {**lost, "sentence": resumption.describe_loss(lost)} if isinstance(lost, dict) else None


def pods_view(job: JobRecord, beats: Mapping[int, Heartbeat], gpus: Mapping[str, GpuRecord]) -> list[View]:
    """Views of the pods of a gang, by rank; empty for a job that has one pod."""
    if job.gpus_per_pod is None or not job.gpu_ids:
        return []
    views = []
    for pod, part in enumerate(job.parts(job.gpu_ids)):
        gpu, beat = gpus.get(part[0]), beats.get(pod)
        live = {"trainer": beat.shim.trainer, "exit_code": beat.shim.exit_code, "sidecar_url": beat.url} if beat else {}
        place: View = {"pod": pod, "node": gpu.node if gpu else None, "gpu_ids": list(part)}
        views.append({**place, "trainer": None, "exit_code": None, "sidecar_url": None, **live})
    return views


def _length(job: JobRecord, to_do: float | None, needs: int | None) -> View:
    """Iterations and epochs left; with a target predicted, or the maximum if no progress is visible."""
    unsure = requirements.target(job.doc) is not None and needs is None
    epoch = job.epoch_iterations
    epochs = None if to_do is None or epoch is None else to_do / epoch
    return {"iterations_left": to_do, "epochs_left": epochs, "length_unsure": unsure}


WAITED_FOR = "was told to stop and comes to a step at which it can save, so it is waited for; cancel it to end it now"


def _live(beat: Heartbeat, to_do: float | None) -> View:
    progress, speed = beat.progress, beat.progress.seconds_per_iteration
    live: View = {
        "epochs_done": progress.epochs,
        "seconds_per_iteration": speed,
        "usage": _usage(beat.usage),
        "eta_s": None if speed is None or to_do is None else to_do * speed,
        "sidecar_pid": beat.sidecar_pid,
        "shim_pid": beat.shim.shim_pid,
        "trainer_pid": beat.shim.trainer_pid,
        "sidecar_url": beat.url,
        "restart": _restart(beat.shim),
        "gpu_access": beat.shim.gpu_access or None,
    }
    if progress.value is not None:
        live |= {"value": progress.value, "value_name": progress.value_name}
    if beat.shim.patient:
        live["message"] = WAITED_FOR
    return live


def _restart(shim: ShimStatus) -> str | None:
    """Why its last start was cold, and whether the next one will be; None while nothing is known."""
    was = f"its last start was cold ({shim.cold})" if shim.cold else ""
    known = {"ready": "the next one is warm", "begins": "an interpreter begins to wait for the next one"}
    less = shim.warm.partition("; ")[2] if shim.waits else ""  # what is not done early
    will = known.get(shim.waits, f"the next one is cold ({shim.warm})" if shim.warm else "")
    return "; ".join(filter(None, (was, will, less))) or None


def _usage(usage: Usage) -> View:
    """The use, with the CPU limit that its sidecar reports as in force and how it is enforced."""
    return {
        "cpu_cores": usage.cpu_cores,
        "memory": usage.memory,
        "block_io": usage.block_io,
        "network_io": usage.network_io,
        "cpu_limit": usage.limit,
        "limited_by": usage.limited_by or None,
        "cpu_weight": usage.cpu_weight,
        "used_from": None,
    }


def growth_efficiency(efficiency: Efficiency) -> View:
    """Change of its value per second and unit of each resource: G of FlowCon. Empty until it was measured.

    `shares`: of its own peak, by which jobs are compared; `list`: new (NL), watched (WL) or converging (CL).
    """
    if not efficiency.measured:
        return {}
    return {"per_unit": dict(efficiency.raw), "shares": dict(efficiency.share), "list": efficiency.list}


READINGS = ("utilisation", "memory_used", "memory_own", "memory_others")  # of a GPU, by the sidecar of its job


def gpu_view(gpu: GpuRecord, reading: GpuReading | None, stored: Mapping[str, Any]) -> View:
    doc = gpu.doc
    view: View = {
        "gpu_id": doc.get("gpu_id", gpu.id),
        **{f: doc.get(f) for f in ("node", "index", "gpu_type", "state")},
    }
    view |= {f: doc.get(f) for f in ("job_id", "worker_id", "held_by", "memory_total")} | {"kept_for": None}
    view |= {"problem": doc.get("problem") or doc.get("others") or None, "emulated": bool(doc.get("emulated"))}
    view |= dict.fromkeys(READINGS)
    if reading is not None:
        return view | {
            **{field: getattr(reading, field) for field in READINGS},
            "memory_total": reading.memory_total or view["memory_total"],
        }
    return view | {f: stored[f] for f in READINGS if f in stored}


def node_load_view(load: NodeLoad, reported: NodeJobs | None) -> View:
    """The load of a node; `told` holds its jobs as its agent got them in a reply and `reported` back, or None."""
    jobs = load.jobs
    return {
        "jobs": jobs.jobs,
        "categories": {"PC": jobs.pc, "WC": jobs.wc, "CC": jobs.cc},
        "score": load.score,
        "cpu_use": load.cpu_use,
        "memory_use": load.memory_use,
        "told": None if reported is None else _as_told(reported),
    }


def others_view(others: HeldByOthers) -> View:
    """What jobs cannot have of a node, and where that figure is from: requests of pods, or what was measured."""
    return {"others_cores": others.cores, "others_memory": others.memory, "others_from": others.source}


def _as_told(jobs: NodeJobs) -> View:
    return {"jobs": jobs.jobs, "PC": jobs.pc, "WC": jobs.wc, "CC": jobs.cc}
