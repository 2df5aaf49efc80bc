"""Computes what a store must say after it was lost, restored from an old backup or damaged. Pure.

Three sources: what the store holds, copies of documents kept elsewhere, and what the shims of living launches say. Of
each job the document with the highest version counts, and what runs counts more than any document. Promises: nothing
that runs is stopped for it; a store that lost nothing stays as it is; a GPU on which something trains belongs to that
job afterwards. Where two trainings claim one GPU, both jobs are set aside until a human decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adaptive_scheduler.candidates import gpus as gpus_in_words
from coordinator.model import states as s
from coordinator.model.document_validation import is_closed
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import GpuChanges, JobChanges, JobRow, plain
from coordinator.ports import Doc, LivingLaunch
from coordinator.stores.row_facts import precedence
from coordinator.stores.rules import are_lost
from sidecar.protocol import ShimStatus, command_id

TRAINS = ("running", "stopping")
NO_DOCUMENT = "a training of which no document is left runs on it"
ENDED_UNKNOWN = "another job of this name came after it; how it ended went with the store"


@dataclass(frozen=True)
class Rebuilt:
    """What to write, and a sentence for each job that changes."""

    jobs: tuple[Doc, ...] = ()  # whole documents
    gpus: Mapping[str, GpuChanges] = field(default_factory=dict)
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Job:
    """One job: its newest document as it will be, and what the store has of it."""

    doc: JobRow
    stored: JobRow | None
    running: LivingLaunch | None

    @property
    def record(self) -> JobRecord:
        return JobRecord(self.doc)

    @property
    def open(self) -> bool:
        return not is_closed(self.doc) and self.record.state not in s.ENDED

    @property
    def shim(self) -> ShimStatus | None:
        return self.running.shim if self.running else None

    @property
    def used(self) -> tuple[str, ...]:
        """The GPUs on which it trains now; those of its document if its shim does not answer."""
        if self.running is None:
            return ()
        if self.shim is None:
            return () if _starts(self.record) else self.record.gpu_ids
        return _trained(self.shim)


def rebuild(
    stored: Sequence[Doc],
    gpus: Sequence[Doc],
    kept: Sequence[Doc],
    living: Sequence[LivingLaunch],
    wall: float,
    remembered: Sequence[Doc] = (),
) -> Rebuilt:
    """`stored`: the open jobs of the store, and whatever it holds under the `_id` of another one. `wall`: now.

    `kept`: copies, of which the job may have been deleted since; `remembered`: documents of which that is not so.
    """
    rows = {str(row["_id"]): GpuRecord(row) for row in gpus}
    jobs = _one_of_each_name(_newest(stored, kept, remembered, living, rows, wall))
    users = _users(jobs.values())
    jobs = {uid: _marked(job, users) for uid, job in jobs.items()}
    nameless = _nameless(jobs, living, rows)
    changed = [job for job in jobs.values() if job.stored is None or plain(job.doc) != plain(job.stored)]
    taken = {str(row["_id"]): str(row.get("uid")) for row in stored}
    return Rebuilt(
        tuple(_fit_to_store(job, taken) for job in changed),
        _gpu_changes(rows, jobs, users, nameless - users.keys()),
        tuple(f"Job {job.record.id}: {job.doc.get('message')}." for job in changed),
    )


def _newest(
    stored: Sequence[Doc],
    kept: Sequence[Doc],
    remembered: Sequence[Doc],
    living: Sequence[LivingLaunch],
    rows: Mapping[str, GpuRecord],
    wall: float,
) -> dict[str, _Job]:
    """By uid, the newest document of each job, brought in line with what runs of it."""
    names: dict[str, Any] = {str(doc["uid"]): doc.get("job_id") for doc in (*kept, *remembered)}
    names |= {one.uid: one.job_id for one in living}  # of what runs, whatever rows that name its uid say
    ours = {str(doc["uid"]): doc for doc in sorted(stored, key=precedence, reverse=True) if doc.get("uid")}
    newest, sure = dict(ours), {str(doc["uid"]) for doc in remembered}
    for doc in (*kept, *remembered):
        uid = str(doc["uid"])
        if uid not in newest or _version(doc) > _version(newest[uid]):
            newest[uid] = doc
    running, claims = _present(living), _claims(living, newest)
    found, known = {}, [JobRecord(doc) for doc in newest.values() if not is_closed(doc)]
    missing = {job.uid for job in known if job.uid not in ours and job.uid not in sure and _deleted(job, claims, rows)}
    deleted = set[str]() if are_lost(len(missing), len(known)) else missing
    for uid, doc in newest.items():
        job, now = JobRecord(doc), running.get(uid)
        lost = uid not in ours
        if uid in deleted or (job.state in s.ENDED if lost else is_closed(ours[uid])):
            continue
        if job.state not in s.ENDED:
            told: JobChanges = {"message": _rebuilt_from(job)} if lost or doc is not ours[uid] else {}
            doc = _with(doc, {**told, **_edited(job, names.get(uid)), **_followed(job, now, rows, wall)})
        elif doc is not ours[uid]:
            doc = _with(doc, {"closed": False})  # what the store's rows still say of it is to be released
        found[uid] = _Job(doc, ours.get(uid), now)
    return found


def _edited(job: JobRecord, name: Any) -> JobChanges:
    """Fields that somebody has changed of a job that was launched under `name`, and that are to be as they were."""
    if name is None:
        return {}
    changes: JobChanges = {"closed": False} if job.doc.get("closed") is None else {}
    if str(name) != job.id:
        changes |= {"job_id": name, "message": "its job_id was changed: it keeps the name that it was launched under"}
    return changes


def _rebuilt_from(job: JobRecord) -> str:
    return f"the store had lost it; it goes on from the copy of version {job.doc.get('version')}"


def _present(living: Sequence[LivingLaunch]) -> dict[str, LivingLaunch]:
    """By uid, the launch that counts: the one that trains, else the one that obeyed last, else the newest."""
    found: dict[str, LivingLaunch] = {}
    for one in sorted(living, key=_rank):
        found[one.uid] = one
    return found


def _rank(one: LivingLaunch) -> tuple[bool, int, int]:
    return one.shim is not None and one.shim.trainer in TRAINS, one.shim.generation if one.shim else 0, one.launch


def _claims(living: Sequence[LivingLaunch], docs: Mapping[str, JobRow]) -> dict[str, set[str]]:
    """By GPU, the uids of what trains on it; of a launch that does not answer its document says so."""
    claims: dict[str, set[str]] = {}
    for one in living:
        for gpu in _Job(docs.get(one.uid, {}), None, one).used:
            claims.setdefault(gpu, set()).add(one.uid)
    return claims


def _deleted(job: JobRecord, claims: Mapping[str, set[str]], rows: Mapping[str, GpuRecord]) -> bool:
    """True if its document was deleted by somebody: the rows of GPUs still name it, and what runs agrees with them."""
    named = {gpu.id for gpu in rows.values() if job.id in (gpu.job, gpu.held_by)}
    sure = {gpu for gpu in named if claims.get(gpu, {job.uid}) == {job.uid}}
    mine = {gpu for gpu, uids in claims.items() if job.uid in uids}
    return bool(sure) and all(gpu in sure and rows[gpu].held_by == job.id for gpu in mine)


def _followed(job: JobRecord, running: LivingLaunch | None, rows: Mapping[str, GpuRecord], wall: float) -> JobChanges:
    """Fields by which the document says what runs; empty if it does, or if a step that was cut off explains it."""
    shim = running.shim if running else None
    if running is None or shim is None or not _is_ahead(job, running.launch, shim):
        return {}
    node = next((rows[gpu].node for gpu in shim.gpu_ids if gpu in rows), job.node)
    changes: JobChanges = {
        "state": s.RUNNING,
        "reshape": None,
        "closed": False,
        "launch": running.launch,
        "up": running.launch,
        "generation": shim.generation,
        "gpu_ids": list(shim.gpu_ids),
        "num_gpus": len(shim.gpu_ids),
        "node": node,
        "unleased": None if shim.leased else True,
        "message": f"the store had lost its newest steps; it goes on as it runs, on {gpus_in_words(len(shim.gpu_ids))}",
    }
    changes |= {name: wall for name in ("start_ts", "run_ts") if not job.doc.get(name)}
    return changes


def _is_ahead(job: JobRecord, launch: int, shim: ShimStatus) -> bool:
    """True if it trains, or has trained, by a grant of which the document knows nothing."""
    if shim.trainer in ("none", "frozen"):  # of one that is frozen its first report says what to do
        return False
    if shim.generation <= job.generation:
        return launch > job.launch and shim.trainer in TRAINS
    started = shim.command_id == command_id(job.id, shim.generation, "start")
    return started or set(shim.gpu_ids) != set(job.gpu_ids)  # else only a stop was obeyed, as before each grant


def _one_of_each_name(jobs: dict[str, _Job]) -> dict[str, _Job]:
    """Close all open jobs of one name but one: that which runs, else the last that was submitted."""
    kept: dict[str, str] = {}
    rivals = {uid: job for uid, job in jobs.items() if job.open}
    for uid, job in sorted(rivals.items(), key=_precedence):
        kept[job.record.id] = uid
    ended: JobChanges = {
        "state": s.FAILED,
        "closed": True,
        "reshape": None,
        "gpu_ids": None,
        "num_gpus": 0,
        "message": ENDED_UNKNOWN,
    }
    found = {}
    for uid, job in jobs.items():
        if uid not in rivals or kept[job.record.id] == uid:
            found[uid] = job
        elif job.stored is not None and job.running is None:
            found[uid] = _Job(_with(job.doc, ended), job.stored, None)
    return found


def _precedence(one: tuple[str, _Job]) -> tuple[bool, float, str]:
    uid, job = one
    return job.running is not None, job.record.submit_ts, uid


def _users(jobs: Iterable[_Job]) -> dict[str, list[_Job]]:
    """By GPU, the jobs that train on it now."""
    users: dict[str, list[_Job]] = {}
    for job in sorted(jobs, key=lambda one: (not one.open, one.shim is None)):  # first those that answer
        for gpu in job.used:
            users.setdefault(gpu, []).append(job)
    return users


def _nameless(jobs: Mapping[str, _Job], living: Sequence[LivingLaunch], rows: Mapping[str, GpuRecord]) -> set[str]:
    """GPUs on which launches train that no document describes, and no row names."""
    ours = [job.running for job in jobs.values()]
    others = [one for one in living if one.shim is not None and not any(one is known for known in ours)]
    used = {(gpu, one.job_id) for one in others for gpu in _trained(one.shim)}
    return {gpu for gpu, job_id in used if gpu in rows and rows[gpu].held_by != job_id}


def _marked(job: _Job, users: Mapping[str, list[_Job]]) -> _Job:
    """Set a job aside that shares a GPU with another one; one that no longer does goes on."""
    shared = [gpu for gpu in job.used if job.open and sum(one.open for one in users[gpu]) > 1]  # ended ones leave it
    if not shared:
        mark = None
    else:
        others = sorted({other.record.id for gpu in shared for other in users[gpu] if other.open} - {job.record.id})
        mark = (
            f"job {', '.join(others)} trains on GPU {', '.join(shared)}, too; `reshape store settle NAME` lets the job "
            "NAME go on and cancels the other"
        )
    if job.doc.get("contradiction") == mark:
        return job
    return _Job(_with(job.doc, {"contradiction": mark}), job.stored, job.running)


def _fit_to_store(job: _Job, taken: Mapping[str, str]) -> Doc:
    """The document with a version above all that were seen, under an `_id` that no other job has."""
    doc, uid = dict(plain(job.doc)), job.record.uid
    if taken.get(str(doc["_id"]), uid) != uid:
        doc["_id"] = f"{doc['_id']}-{uid}"
    return {**doc, "version": max(_version(doc), _version(job.stored or {})) + 1}


def _gpu_changes(
    rows: Mapping[str, GpuRecord], jobs: Mapping[str, _Job], users: Mapping[str, list[_Job]], nameless: set[str]
) -> dict[str, GpuChanges]:
    names = {job.record.id for job in jobs.values() if job.open}
    found: dict[str, GpuChanges] = {}
    for gpu_id, gpu in rows.items():
        if gpu_id in users:
            changes = _in_use(gpu, users[gpu_id][0].record, names)
        elif gpu_id in nameless:
            changes = {"state": s.FAULTY, "problem": NO_DOCUMENT}
        elif gpu.faulty and gpu.doc.get("problem") == NO_DOCUMENT:
            changes = {"state": s.IDLE, "problem": ""}
        else:
            changes = {}
        found[gpu_id] = changes
    for job in jobs.values():
        record = job.record
        if not job.open or record.state not in s.LAUNCHED or _starts(record):
            continue
        for gpu_id in record.gpu_ids:
            free = gpu_id in rows and rows[gpu_id].job is None and not rows[gpu_id].faulty
            if free and gpu_id not in users and gpu_id not in nameless:
                found[gpu_id] = _in_use(rows[gpu_id], record, names)
    return {gpu_id: changes for gpu_id, changes in found.items() if _differs(rows[gpu_id], changes)}


def _in_use(gpu: GpuRecord, job: JobRecord, names: set[str]) -> GpuChanges:
    """A GPU that a job holds; one that is promised to another job stays promised."""
    promised = gpu.held_by == job.id and gpu.job in names and gpu.job != job.id
    if promised:
        return {}
    held: GpuChanges = {"job_id": job.raw_id, "held_by": job.raw_id, "generation": job.generation}
    changes: GpuChanges = {**held, "unleased": True if job.unleased else None}
    if gpu.doc.get("problem") == NO_DOCUMENT:
        return {**changes, "state": s.IN_USE, "problem": ""}
    return {**changes, "state": s.FAULTY if gpu.faulty else s.IN_USE}


def _differs(gpu: GpuRecord, changes: GpuChanges) -> bool:
    """Whether they change more than the number of the generation."""
    row = plain(gpu.doc)
    return any(row.get(name) != value for name, value in changes.items() if name != "generation")


def _starts(job: JobRecord) -> bool:
    """True if it waits for its first start, so that its GPUs are promised only."""
    op = job.operation
    return op is not None and op.kind == "start" and job.generation < op.generation


def _trained(shim: ShimStatus | None) -> tuple[str, ...]:
    return tuple(shim.gpu_ids) if shim is not None and shim.trainer in TRAINS else ()


def _with(doc: JobRow, changes: JobChanges) -> Doc:
    return plain(doc) | plain(changes)


def _version(doc: JobRow) -> int:
    found = doc.get("version")
    return found if isinstance(found, int) and not isinstance(found, bool) else 0
