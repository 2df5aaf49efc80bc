"""Write-through cache of jobs and GPUs: every change is written to the store first.

The store is authoritative; the copy saves reading it at each step. Each write is a compare-and-set on the cached
version, and the returned document replaces the copy. A write that loses the race reads that document again and raises
`Conflict`.

Jobs are listed by `closed`: missing = new, False = accepted and not at rest, True = done. Every row passes
`coordinator/model/document_validation.py`: invalid fields are replaced, or the row is set aside and shown.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set
from itertools import count, filterfalse
from types import MappingProxyType
from typing import Any

from coordinator.errors import Conflict, Rejected, ReshapeError, Transient
from coordinator.model import document_validation
from coordinator.model.records import GpuRecord, JobRecord
from coordinator.model.tables import GpuChanges, JobChanges
from coordinator.ports import Doc, Store
from coordinator.stores import rules
from coordinator.stores.row_facts import (
    ReadRows,
    is_by_hand,
    newer,
    owners_of,
    precedence,
    row_key,
    submitted_last,
    users_of,
    version_of,
)


class Cache:
    """Thread-safe. Records are immutable, and so is each map that readers get: it shows one moment.

    A map is copied at the first reading after a change, not at each reading: most readings follow none.
    """

    def __init__(self, store: Store, continuous: Callable[[bool], bool] = lambda lost: not lost) -> None:
        """`continuous`: whether the store is still the one that this process has written to, and has lost no rows."""
        self.store, self._continuous = store, continuous
        self._lock = threading.Lock()
        self._jobs: dict[str, JobRecord] = {}
        self._gpus: dict[str, GpuRecord] = {}
        self._ids: dict[tuple[str, Any], str] = {}  # ids of these jobs, by the row
        self._jobs_as_read: Mapping[str, JobRecord] | None = None  # the copy that readers get; None after a change
        self._gpus_as_read: Mapping[str, GpuRecord] | None = None
        self._gpus_by_job: dict[str, set[str]] = {}  # ids of GPUs that are promised to a job or held by it
        self._gpus_by_type: Counter[str] = Counter()
        self._changed: set[str] = set()  # jobs whose record changed since `take_changed`
        self._closed: set[str] = set()  # closed since the last refresh began, whose listing may be older
        self._writes = count()
        self._writer_id = secrets.token_hex(4)
        self._deleted: set[str] = set()  # jobs with deleted documents, kept until they are at rest
        self._read = ReadRows()
        self._aside: dict[str, JobRecord] = {}  # jobs that make no sense, by id
        self._again: list[Any] = []  # keys of jobs to be read again, changed or not: for intake, or as they are gone
        self.read_number: int | None = None  # of the store's changes, at the last reading; None: the next one reads all

    # reading

    def jobs(self) -> Mapping[str, JobRecord]:
        """All accepted jobs that are not closed, by id."""
        if (found := self._jobs_as_read) is not None:  # without the lock, for which answers to heartbeats would wait
            return found
        with self._lock:
            if self._jobs_as_read is None:
                self._jobs_as_read = MappingProxyType(dict(self._jobs))
            return self._jobs_as_read

    def gpus(self) -> Mapping[str, GpuRecord]:
        if (found := self._gpus_as_read) is not None:
            return found
        with self._lock:
            if self._gpus_as_read is None:
                self._gpus_as_read = MappingProxyType(dict(self._gpus))
            return self._gpus_as_read

    def gpus_by_type(self) -> dict[str, int]:
        """Return how many GPUs there are of each type, working or not."""
        with self._lock:
            return dict(self._gpus_by_type)

    def gpus_of(self, *jobs: JobRecord) -> dict[str, GpuRecord]:
        """All GPUs that are promised to these jobs, held by them, or named in their documents or operations."""
        with self._lock:
            named = {gpu for job in jobs for gpu in (*job.gpu_ids, *(job.operation.to if job.operation else ()))}
            named |= {gpu for job in jobs for gpu in self._gpus_by_job.get(job.id, ())}
            return {gpu: self._gpus[gpu] for gpu in sorted(named) if gpu in self._gpus}

    def gpus_of_others(self, jobs: Collection[str]) -> dict[str, list[GpuRecord]]:
        """By each job that is none of these: the GPUs that are promised to it or held by it."""
        with self._lock:
            others = sorted(filterfalse(jobs.__contains__, self._gpus_by_job))
            return {job_id: [self._gpus[gpu] for gpu in sorted(self._gpus_by_job[job_id])] for job_id in others}

    def take_changed(self) -> set[str]:
        """The jobs whose document, or that of one of their GPUs, has changed since the last call."""
        with self._lock:
            changed, self._changed = self._changed, set()
            return changed

    def job(self, job_id: str) -> JobRecord | None:
        return self._jobs.get(job_id)

    def first_gpu(self, job: JobRecord) -> GpuRecord | None:
        """The first of the GPUs that the job has, if it has any."""
        return self._gpus.get(job.gpu_ids[0]) if job.gpu_ids else None

    def node_of(self, gpu: str) -> str | None:
        found = self._gpus.get(gpu)
        return None if found is None else found.node

    def find(self, job_id: str) -> JobRecord | None:
        """A job by its id, including ended ones and those not accepted.

        Of several: the open one, then one that waits for intake, then the last one of that id.
        """
        known = self.job(job_id) or self._aside.get(job_id)
        return known or max(self.named(job_id), key=submitted_last, default=None)

    def named(self, job_id: str) -> list[JobRecord]:
        """All jobs of this id, open and ended, as stored."""
        whole = [int(job_id)] if job_id.isdecimal() and len(job_id) < 19 else []  # as MongoDB can hold it
        found: list[JobRecord] = []
        for raw in (job_id, *whole):
            found += [JobRecord(doc) for doc in self.store.list("jobs", {"job_id": raw})]
            found += [JobRecord(doc) for doc in [self.store.get("jobs", raw)] if doc is not None]
        return found

    def refresh(self) -> list[JobRecord]:
        """Read what has changed in the store, or all of it. Returns the documents that intake has not accepted (yet).

        The deletion of an accepted job's document is a cancellation (`reliability.md` 7, row 17).
        """
        self._closed = set()
        number, rows = self.store.changed(("jobs", "gpus"), self.read_number)
        new = self._read_all() if rows is None else self._read_rows(rows)
        self.read_number = number
        return new

    def _read_all(self) -> list[JobRecord]:
        new = [JobRecord(doc) for doc in self.store.list("jobs", {"closed": None})]
        open_ = self.store.list("jobs", {"closed": False})
        by_hand, ours, aside = self._let_in(open_)
        owners = owners_of(ours.values())
        rows = self.store.list("gpus")
        gpus = [GpuRecord(self._read.validated("gpus", doc, owners.get(str(doc["_id"]))).doc) for doc in rows]
        missing = {job_id: job for job_id, job in self.jobs().items() if job_id not in ours | aside}
        docs = {job_id: self.store.get("jobs", job.key) for job_id, job in missing.items()}
        gone = self._gpus.keys() - {gpu.id for gpu in gpus}
        if self._jobs or self._gpus:
            self._check_store(ours, docs, gone)
        for job_id, job in missing.items():
            ours |= self._missed(job, docs[job_id])
        with self._lock:
            for key in self._jobs.keys() - ours.keys():
                self._put_job(key, None)
            self._aside, self._again = aside, [job.key for job in (*by_hand, *self._take_jobs(ours))]
            for key in gone:
                self._put_gpu(key, None)
            for gpu in gpus:
                self._put_gpu(gpu.id, newer(self._gpus.get(gpu.id), gpu))
            kept = [("jobs", job.key) for job in (*self._jobs.values(), *self._aside.values())]
            self._read.keep_only([*kept, *(("gpus", gpu.doc["_id"]) for gpu in gpus)])
        return new + by_hand

    def _read_rows(self, rows: Mapping[tuple[str, Any], Doc | None]) -> list[JobRecord]:
        """Take these rows, and read the documents that wait for intake."""
        new = [JobRecord(doc) for doc in self.store.list("jobs", {"closed": None})]
        docs = {key: doc for (table, key), doc in rows.items() if table == "jobs"}
        docs |= {key: self.store.get("jobs", key) for key in self._again if key not in docs}
        open_ = [doc for doc in docs.values() if doc is not None and doc.get("closed") is False]
        by_hand, ours, aside = self._let_in(open_)
        apart = {job.key: job for job in self.set_aside().values()}
        known = {key: apart.get(key) or self.job(self._ids.get(row_key("jobs", key), "")) for key in docs}
        before = {key: job for key, job in known.items() if job is not None}
        left = {job.id: job for job in before.values() if job.id not in ours | aside}
        gpus = {key: doc for (table, key), doc in rows.items() if table == "gpus"}
        gone = {str(key) for key, doc in gpus.items() if doc is None}
        self._check_store(ours, {job.id: docs[job.key] for job in left.values()}, gone)
        for job in left.values():
            ours |= self._missed(job, docs[job.key]) if job.id in self._jobs else {}
        with self._lock:
            for job in before.values():
                if job.id not in ours:
                    self._put_job(job.id, None)
                self._aside.pop(job.id, None)
            self._aside |= aside
            self._again = [job.key for job in (*by_hand, *self._take_jobs(ours))]
            for key in docs.keys() - {job.key for job in (*ours.values(), *aside.values())}:
                self._read.forget_row("jobs", key)
        owners = owners_of(self.jobs().values()) if any(("gpus", key) not in self._read for key in gpus) else {}
        for key, doc in gpus.items():
            self._take_gpu(key, doc, owners)
        return new + by_hand

    def _is_older(self, job: JobRecord) -> bool:
        """True if its row went back to before what is known of it, so that no write would fit again."""
        known = self._jobs.get(job.id)
        if known is None or job.id in self._deleted or version_of(known.doc) <= version_of(job.doc):
            return False
        doc = self.store.get("jobs", job.key)  # once more, as a write may have overtaken the listing
        return doc is not None and version_of(doc) < version_of(known.doc)

    def _check_store(self, ours: Mapping[str, JobRecord], missing: Mapping[str, Doc | None], gpus: Set[str]) -> None:
        """Raise `Transient` if what a reading missed is lost, not deleted, or one of `ours` is as it was before."""
        lost = any(map(self._is_older, ours.values()))
        if not (lost or missing or gpus or ours.keys() - self._jobs.keys()):
            return
        gone = [job_id for job_id, doc in missing.items() if doc is None and job_id not in self._deleted]
        lost |= rules.are_lost(len(gone), len(self._jobs.keys() - self._deleted))
        lost |= self._gpus.keys() <= set(gpus) and any(users_of(gpu) for gpu in self._gpus.values())
        if not self._continuous(lost):
            raise Transient("the store was emptied or replaced by an older one: what is known is written back")

    def _missed(self, job: JobRecord, doc: Doc | None) -> dict[str, JobRecord]:
        """A job that the listing of open ones did not show: deleted, overtaken by the listing, or closed by another."""
        if doc is None or self._read.validated("jobs", doc).doc.get("uid") != job.uid:  # deleted; another in its place
            self._deleted.add(job.id)
            return {job.id: JobRecord({**job.doc, "cancel": True})}
        found = JobRecord(self._read.validated("jobs", doc).doc)
        return {} if document_validation.is_closed(doc) else {found.id: found}

    def _take_jobs(self, read: Mapping[str, JobRecord]) -> list[JobRecord]:
        """Take what was read, unless a write has overtaken it; returns those to be read again. With the lock."""
        gone = {job_id for job_id in self._deleted if job_id not in self._jobs}  # at rest since they were looked up
        self._deleted -= gone
        overtaken = self._closed | gone
        for job_id, job in read.items():
            if job_id not in overtaken:
                self._put_job(job_id, newer(self._jobs.get(job_id), job))
        return [job for job_id, job in read.items() if job_id in overtaken or job_id in self._deleted]

    def _take_gpu(self, key: Any, doc: Doc | None, owners: Mapping[str, JobRecord]) -> None:
        if doc is None:
            self._read.forget_row("gpus", key)
            with self._lock:
                self._put_gpu(str(key), None)
            return
        owner = owners.get(str(key)) if ("gpus", key) not in self._read else None
        self._keep_gpu(GpuRecord(self._read.validated("gpus", doc, owner).doc))

    def _let_in(self, docs: list[Doc]) -> tuple[list[JobRecord], dict[str, JobRecord], dict[str, JobRecord]]:
        """(Rows for intake, valid jobs by id, jobs set aside by id). Another row of a job's name is for intake."""
        new, ours, aside = list[JobRecord](), dict[str, JobRecord](), dict[str, JobRecord]()
        for doc in sorted(docs, key=precedence):
            if is_by_hand(doc):
                new.append(JobRecord(doc))
                continue
            found = self._read.validated("jobs", doc)
            record = JobRecord(found.doc)
            known = self.job(record.id) or self._aside.get(record.id)
            other = known is not None and known.key != record.key and self._is_open(known)
            if other or record.id in ours or record.id in aside:
                new.append(JobRecord(doc))
            else:
                (ours if found.usable else aside)[record.id] = record
        return new, ours, aside

    def _is_open(self, job: JobRecord) -> bool:
        """True if its row lies in the store under its key: a job that was written back may lie under another one."""
        doc = self.store.get("jobs", job.key)
        return doc is not None and doc.get("uid") == job.uid and not document_validation.is_closed(doc)

    def invalid_fields(self, table: str) -> dict[str, tuple[str, ...]]:
        """Invalid fields of `jobs` or `gpus` as sentences, by `_id`."""
        return self._read.invalid_fields(table)

    def invalid_fields_of(self, job: JobRecord) -> tuple[str, ...]:
        """Invalid fields of one job's document, as sentences."""
        return self._read.invalid_fields_of("jobs", job.key)

    def set_aside(self) -> dict[str, JobRecord]:
        """Jobs with invalid documents, by id, without the invalid fields; they are not reconciled."""
        with self._lock:
            return dict(self._aside)

    def is_set_aside(self, job_id: str) -> bool:
        """Whether a job of this id is in `set_aside()`."""
        return job_id in self._aside

    def set_aside_rows(self) -> list[Doc]:
        """Their documents as they lay in the store, with the invalid fields."""
        found = (self._read.document("jobs", job.key) for job in self.set_aside().values())
        return [doc for doc in found if doc is not None]

    # writing

    def write_job(self, job: JobRecord, changes: JobChanges, op: str) -> JobRecord:
        """Persist `changes` if the job is still at the version in `job`."""
        if job.id in self._deleted:
            return self._keep_job(JobRecord({**job.doc, **changes}))
        if (aside := self._aside.get(job.id)) is not None and aside.key == job.key:
            why = next(iter(self.invalid_fields_of(job)), "it was changed meanwhile")
            raise Rejected(f"Job {job.id} is set aside until its document is corrected: {why}.", 409)
        expect = {"version": job.doc.get("version")}
        last_op = self._name(op)
        try:
            doc = self.store.update("jobs", job.key, expect, {**changes, "last_op": last_op})
        except (Conflict, Transient) as error:
            doc = self._reread("jobs", job.key, last_op, error)
        return self._keep_job(JobRecord(self._read.validated("jobs", doc).doc))

    def write_gpu(self, gpu: GpuRecord, expect: GpuChanges, changes: GpuChanges) -> GpuRecord:
        """Claim, free or mark one GPU; `expect` holds what the change relies on."""
        last_op = self._name("gpu")
        try:
            doc = self.store.update("gpus", gpu.doc["_id"], expect, {**changes, "last_op": last_op})
        except (Conflict, Transient) as error:
            doc = self._reread("gpus", gpu.doc["_id"], last_op, error)
        return self.take_gpu(doc)

    def take_gpu(self, doc: Doc) -> GpuRecord:
        """Keep a row of a GPU as it lies in the store."""
        return self._keep_gpu(GpuRecord(self._read.validated("gpus", doc).doc))

    def _name(self, op: str) -> str:
        """A name unique to each write, by which a write whose reply was lost is recognised."""
        return f"{op}:{self._writer_id}:{next(self._writes)}"

    def _reread(self, table: str, key: Any, last_op: str, error: ReshapeError) -> Doc:
        """Read the document after a lost race or an unknown outcome; a write is never repeated blindly."""
        doc = self.store.get(table, key)
        if doc is not None and doc.get("last_op") == last_op:
            return doc
        if doc is not None and table == "jobs":
            self._keep_job(JobRecord(self._read.validated("jobs", doc).doc))
        elif doc is not None:
            self.take_gpu(doc)
        raise error

    def _keep_job(self, job: JobRecord) -> JobRecord:
        with self._lock:
            if job.doc.get("closed"):
                self._put_job(job.id, None)
                self._closed.add(job.id)
                self._deleted.discard(job.id)
            elif job.uid:  # not one that intake has yet to let in
                self._put_job(job.id, newer(self._jobs.get(job.id), job))
        return job

    def _keep_gpu(self, gpu: GpuRecord) -> GpuRecord:
        with self._lock:
            self._put_gpu(gpu.id, newer(self._gpus.get(gpu.id), gpu))
        return gpu

    def _put_job(self, job_id: str, job: JobRecord | None) -> None:
        """Replace or drop (None) a record; one that says the same is kept, with what was worked out from it."""
        before = self._jobs.get(job_id)
        if before is job or (before is not None and job is not None and before.doc == job.doc):
            return
        if before is not None:
            self._ids.pop(row_key("jobs", before.key), None)
        if job is None:
            self._jobs.pop(job_id, None)
        else:
            self._jobs[job_id], self._ids[row_key("jobs", job.key)] = job, job_id
        self._jobs_as_read = None
        self._changed.add(job_id)

    def _put_gpu(self, gpu_id: str, gpu: GpuRecord | None) -> None:
        """Likewise, and keep the index of jobs."""
        before = self._gpus.get(gpu_id)
        if before is gpu or (before is not None and gpu is not None and before.doc == gpu.doc):
            return
        for job_id in users_of(before):
            self._gpus_by_job[job_id].discard(gpu_id)
            if not self._gpus_by_job[job_id]:
                del self._gpus_by_job[job_id]
        for job_id in users_of(gpu):
            self._gpus_by_job.setdefault(job_id, set()).add(gpu_id)
        if before is not None:
            self._gpus_by_type[before.gpu_type] -= 1
            self._gpus_by_type += Counter()  # drops types of which none is left
        if gpu is None:
            self._gpus.pop(gpu_id, None)
        else:
            self._gpus[gpu_id] = gpu
            self._gpus_by_type[gpu.gpu_type] += 1
        self._gpus_as_read = None
        self._changed |= users_of(before) | users_of(gpu)

    def admit(self, job: JobRecord, changes: JobChanges) -> JobRecord:
        """Accept a new document, or mark what is wrong with it."""
        version = job.doc.get("version")
        comparable = version is None or isinstance(version, int | str)  # else it is marked as wrong, whatever it is now
        doc = self.store.update("jobs", job.key, {"version": version} if comparable else {}, changes)
        record = JobRecord(doc)
        return self._keep_job(record) if record.accepted and record.doc.get("closed") is False else record
