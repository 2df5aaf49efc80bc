"""Decides whether a training may be stopped, from what is known of its saving and resuming. Pure.

No work is lost without consent. A job is *rigid*, and so keeps its GPUs, until it has shown that it resumes (its
trainer's hook announced itself, or a checkpoint of it was verified) or its record says so (`"elastic": true`). The
evidence is kept in its document as `resumes`; `withdrawn` is why its hook says that a stop would cost work now, as when
its last save has failed; `lost` counts the work that was repeated after a stop all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptive_scheduler.candidates import gpus
from coordinator.model.records import Doc, JobRecord, Moment, number
from coordinator.model.tables import JobChanges
from sidecar.protocol import Heartbeat, Lost

SHOWN = ("hook", "checkpoint")
ADVICE = 'use reshape_hooks (examples/README.md), or submit it with "elastic": true if you know that it resumes'
NOT_TWICE = "not started again: it is not known what running it twice would do"


def resumes(job: JobRecord, beat: Heartbeat | None = None) -> bool:
    """True if the job resumes where it was stopped, by evidence or by its record. `beat`: its newest report."""
    shows = beat is not None and bool(resumability_shown(job, beat))
    return shows or job.doc.get("elastic") is True or job.doc.get("resumes") in SHOWN


def rigid(job: JobRecord, beat: Heartbeat | None = None) -> bool:
    """True if only its user may stop its training. `beat`: its newest report, which may say that it cannot be saved."""
    if job.stalled:
        return True  # it might not hear that it shall save
    if job.doc.get("elastic") is False or not resumes(job) or unapproved_loss(job):
        return True
    return bool(withdrawn(job, beat))


def freezable(job: JobRecord) -> bool:
    """True if it is rigid, but may give its GPU up unharmed: frozen in memory by the driver, as its record allows."""
    tried_in_vain = bool(job.unfrozen) or bool(job.stalled)
    alone = job.gpus_per_pod is None and len(job.gpu_ids) == 1
    return job.doc.get("freeze") is True and alone and not tried_in_vain and rigid(job)


def withdrawn(job: JobRecord, beat: Heartbeat | None = None) -> str:
    """Return why its hook says that a stop would cost work now; empty if it does not."""
    known = job.doc.get("withdrawn")
    if beat is not None and beat.shim.trainer == "running" and (beat.hook or beat.withdrawn):
        known = beat.withdrawn
    return known if isinstance(known, str) else ""


def saving_told(job: JobRecord, beat: Heartbeat) -> JobChanges:
    """Fields to write if this report says that the training cannot be saved now, or that it can again."""
    known = withdrawn(job, beat)
    return {"withdrawn": known or None} if known != withdrawn(job) else {}


def stays_unasked(job: JobRecord, beat: Heartbeat | None = None) -> bool:
    """True if it is left alone unless its user asks: a stop would lose work, or the next start run other code."""
    return rigid(job, beat) or bool(job.edited)


def leased(job: JobRecord) -> bool:
    """True if silence may end its trainer; the work of one that has not shown that it resumes would be lost."""
    return not job.unleased or resumes(job)


def unapproved_loss(job: JobRecord) -> Doc:
    """The loss of work without consent, after which the job is not reshaped any more; empty if none."""
    lost = job.doc.get("lost")
    return dict(lost) if isinstance(lost, dict) and lost.get("agreed") is not True else {}


def resumability_shown(job: JobRecord, beat: Heartbeat) -> JobChanges:
    """Fields to write if this report shows for the first time that the job resumes."""
    known = job.doc.get("resumes")
    if job.doc.get("elastic") is True:
        return {}  # the record already says so
    if beat.hook and known != "hook":
        return {"resumes": "hook"}
    return {"resumes": "checkpoint"} if beat.checkpoint is not None and known not in SHOWN else {}


def newly_known(job: JobRecord, beats: Mapping[int, Heartbeat], whole: Heartbeat) -> JobChanges:
    """Fields to write if reports show that the job resumes, that a stop has cost work, or that it has a lease now.

    `beats`: of each of its pods; `whole`: of all together.
    """
    given = job.unleased and resumes(job) and all(beat.shim.leased for beat in beats.values())
    now_leased: JobChanges = {"unleased": None} if given else {}
    shown = resumability_shown(job, whole) | saving_told(job, whole) | reported_loss(job, whole)
    return shown | now_leased | _code_changed(job, whole)


def _code_changed(job: JobRecord, beat: Heartbeat) -> JobChanges:
    """Fields to write if files of its code have changed since its trainer was started, or are as they were again."""
    if beat.shim.generation != job.generation or beat.shim.trainer != "running":
        return {}
    now = {"files": beat.edited[:20], "generation": job.generation} if beat.edited else None
    return {"edited": now} if now != job.doc.get("edited") else {}


def reported_loss(job: JobRecord, beat: Heartbeat) -> JobChanges:
    """Fields to write if this report says that work was repeated.

    The loss counts as agreed if an operator, a fault or the trainer itself had stopped the training, and if what it
    had saved was lost by a fault.
    """
    lost, known = beat.lost, job.doc.get("lost")
    if lost is None or not (lost.iterations > 0 or lost.epochs > 0):
        return {}
    before = number(known.get("generation")) if isinstance(known, dict) else None
    if before is not None and before >= lost.generation:
        return {}
    stopped = number(job.doc.get("stopped_by_us"))
    agreed = stopped is None or stopped > lost.generation or _save_was_lost(beat, lost)
    kept = {"iterations": lost.iterations, "epochs": lost.epochs, "generation": lost.generation, "agreed": agreed}
    if unapproved_loss(job) and agreed:  # keep the reason why it is not reshaped
        return {}
    words = describe_loss(lost)
    ends = "" if agreed else ", as it did not go on where it was stopped; keeps what it has from now on"
    return {"lost": kept, "message": f"trains; {words}{ends}"}


def _save_was_lost(beat: Heartbeat, lost: Lost) -> bool:
    """True if what the trainer before had saved was lost with the process that held it on a GPU."""
    copy = beat.shim.copy_lost
    saved = beat.checkpoint
    saved_since = copy and saved and saved.newer_than(copy) and saved.generation < lost.generation
    return copy is not None and not saved_since


def unsaved_s(job: JobRecord, beat: Heartbeat | None, running_s: float) -> float:
    """Seconds of training that a stop now would lose. `running_s`: seconds that it has trained."""
    if not resumes(job):
        return running_s
    if job.doc.get("resumes") != "checkpoint" or beat is None:
        return 0.0  # it saves on SIGTERM, or its record says that it resumes
    progress, since = beat.progress, beat.checkpoint_at
    spawned, last = beat.shim.spawn_at, progress.last_step_at
    begun = max((at for at in (since, spawned) if at is not None), default=None)
    return max(0.0, last - begun) if last is not None and begun is not None else 0.0


def describe_loss(lost: Lost | Mapping[str, Any]) -> str:
    """Format a loss as `lost 17 epochs` or `lost 340 iterations`; empty if nothing was lost."""
    given = lost if isinstance(lost, Mapping) else {"iterations": lost.iterations, "epochs": lost.epochs}
    epochs, iterations = number(given.get("epochs")) or 0.0, int(number(given.get("iterations")) or 0)
    if epochs >= 1 or (epochs > 0 and not iterations):
        count = f"{round(epochs, 1):g}"
        return f"lost {count} epoch{'s' * (count != '1')}"
    return f"lost {iterations} iteration{'s' * (iterations != 1)}" if iterations else ""


def rigidity_reason(job: JobRecord, beat: Heartbeat | None = None) -> str:
    """Return why the job keeps its GPUs and what its user can do; empty if it may be reshaped; `beat` as in `rigid`."""
    if not stays_unasked(job, beat):
        return ""
    keeps = f"keeps its {gpus(len(job.gpu_ids))}" if job.gpu_ids else "stays where it is"
    if job.edited and not rigid(job, beat):
        files, has = ", ".join(job.edited[:3]), "have" if len(job.edited) > 1 else "has"
        again = f"`reshape suspend {job.id}` and `reshape resume {job.id}` start it with the new code"
        return f"{keeps}: {files} {has} changed since it was started; {again}"
    if job.stalled:
        return f"{keeps} until it makes steps again: stopped now, it might not save"
    if job.doc.get("elastic") is False:
        return f'{keeps} until it ends: its record says "elastic": false'
    if lost := unapproved_loss(job):
        return f"{keeps} until it ends: it {describe_loss(lost)} when it was stopped, without consent"
    if why := withdrawn(job, beat):
        return f"{keeps} as long as a stop would cost work: {why}"
    if freezable(job):
        return f"{keeps} until it ends or is frozen in memory: it has not shown that it can save and resume"
    if job.unfrozen:
        return (
            f"{keeps} until it ends: it has not shown that it can save and resume, nor can it be frozen: {job.unfrozen}"
        )
    return f"{keeps} until it ends: it has not shown that it can save and resume; {ADVICE}"


def refuse_resize(job: JobRecord, request: str, force: str) -> str:
    """Return the refusal of an operator's `request`, such as `run on 2 GPUs`; `force`: the way to override."""
    why = _why(job, "it has not shown that it can save and resume, so it would begin again from the start")
    return f"Job {job.id} would have to be stopped to {request}, and {why}: {force} does it all the same."


def refuse_suspension(job: JobRecord, lasting: bool) -> str:
    """Return why a job that has been launched cannot be suspended; empty if it can.

    `lasting`: its checkpoints outlive its launch.
    """
    if freezable(JobRecord({**job.doc, "unfrozen": None})):
        return ""
    if rigid(job):
        why = _why(job, "it has not shown that it can save and resume, so it would begin again from the start")
        if job.doc.get("freeze") is True and len(job.gpu_ids) != 1:
            why += f", and with {gpus(len(job.gpu_ids))} it cannot be frozen, only with one"
        return f"Job {job.id} cannot be suspended: {why}; cancel it, or let it train to its end."
    if job.keeps_pod:
        return (
            f"Job {job.id} cannot be suspended: its pod would have to go, and it cannot be made anew from here; "
            "cancel it, or let it train to its end."
        )
    if not lasting:
        return (
            f"Job {job.id} cannot be suspended: its checkpoints lie in its pod and would go with it; submit it with a "
            "checkpoint_claim, cancel it, or let it train to its end."
        )
    return ""


def describe_standstill(job: JobRecord, at: Moment) -> str:
    """Return for how long a training has made no step, or has done nothing in a stop; empty if it goes on."""
    if job.idle_in_stop:
        return f"does nothing since it was asked to stop, for {job.stood_s(at):.0f} s: no step, no CPU, nothing written"
    return f"no step for {job.stood_s(at):.0f} s, usually {job.stalled['usual_s']:.2g} s" if job.stalled else ""


def describe_hold(job: JobRecord, unwritten: bool = False) -> str:
    """Return why a held job waits, and what its user can do.

    `unwritten`: its newest checkpoint is in memory only.
    """
    until = "as its pod cannot be made anew" if job.keeps_pod else "as its checkpoints lie in its pod"
    if unwritten and not job.keeps_pod:
        until = "until its disk has room for what it has saved in memory"
    has = f"keeps {'its cores' if job.uses_cpu else 'its ' + gpus(len(job.gpu_ids))}, {until}"
    waits = f"{job.id} is held: {job.held}" + ("" if job.suspended else f"; it {has}")
    resume, cancel = f"`reshape resume {job.id}`", f"`reshape cancel {job.id}`"
    starts = "thaws it" if job.frozen else "starts it from what it has saved"
    return f"{waits}. Mend this, then {resume} {starts}; {cancel} ends it."


def refuse_stop(job: JobRecord) -> str:
    """Return the refusal of an operator's `stop`, with the way to override."""
    why = _why(job, "it has not shown that it saves when it is stopped, so what it has trained would be lost")
    return f'Job {job.id} was not told to end: {why}; "force": true in the call ends it all the same.'


def _why(job: JobRecord, nothing_shown: str) -> str:
    """The reason against stopping a rigid job; `nothing_shown` if there is only the lack of evidence."""
    if job.stalled:
        return "it makes no step now, so it might not save"
    if job.doc.get("elastic") is False:
        return 'its record says "elastic": false'
    if lost := unapproved_loss(job):
        return f"it {describe_loss(lost)} when it was stopped before"
    return f"a stop would cost work now ({why})" if (why := withdrawn(job)) else nothing_shown
