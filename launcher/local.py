"""Runs launches on this machine (platform `local`): detached processes, each started and ended by one command.

Promises (`coordinator.ports.Platform`): every call returns at once and may be repeated; a launch outlives
this process; `gone` is True only when no process of the launch runs. Called by the reconciler, from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from coordinator.adapters.accounts import UnixAccount, account_of
from coordinator.errors import Fatal, Transient
from coordinator.model.records import JobRecord
from coordinator.model.tables import JobRow, plain
from coordinator.ports import Doc, Evidence, LivingLaunch
from launcher import shim_command
from launcher.acting_as import acting_as
from launcher.datasets.dataset_cache import DatasetCache
from launcher.launch_group import FACTS, group_of, is_shared
from launcher.launch_queue import Cancelled, LaunchQueue, Verb
from launcher.launch_records import (
    ENDED_APART,
    RECORDS,
    LaunchRecords,
    ask_status,
    ended_copy,
    listens,
    read_copy,
)
from launcher.local_spec import DATASETS, Folders, LocalSettings, launch_spec
from launcher.names import job_name, launch_name, may_be_launch_of
from launcher.playbook import search_path
from sidecar import device_filter, kept_output, leftovers, protocol
from sidecar.resources.limits import ControlGroup
from sidecar.startup.log_format import VARIABLE

SIDECAR = Path(protocol.__file__).parent
LAUNCH_BYTES = 64 * 1024  # of the files that a launch begins with
NOBODY = 65534
NO_LOCKS = (errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.ENXIO, errno.EACCES)  # what its owner put in its place
REMOVE_AGAIN_S = (1.0, 5.0)  # pauses before the retries: the reconciler asks once, then waits for `gone`

log = logging.getLogger(__name__)


class LocalPlatform:
    """Keeps launches below `state`/jobs; their sidecars report to the coordinator at the URL `coordinator`."""

    def __init__(self, state: Path, coordinator: str, master_key: bytes, settings: LocalSettings | None = None) -> None:
        self._state = state.absolute()
        self._jobs = self._state / "jobs"
        self._coordinator, self._master_key = coordinator, master_key
        self._groups = f"node-{zlib.crc32(str(self._jobs).encode()):08x}"
        self._settings = settings or LocalSettings()
        self._datasets = DatasetCache(state.absolute() / DATASETS)
        self._records = LaunchRecords(state.absolute(), self._jobs)
        self._told_of: set[str] = set()  # folders of launches of other state folders
        self._runs = LaunchQueue(self._carry_out, prepare=self._datasets.wait_for)
        if self._settings.shared:
            _prepare_shared(self._state)

    def launch(self, doc: JobRow) -> None:
        """Request the launch. Does nothing while it is under way, once it succeeded, or until `failure` was read."""
        self._runs.request(_name(doc), "launch", plain(doc))

    def unplaced(self, doc: JobRow) -> str | None:
        """Return that its data set is being fetched, or that the disk takes no files: no fault of the job's."""
        return self._datasets.under_way(doc) or disk_trouble(self._jobs.parent)

    def remove(self, doc: JobRow) -> None:
        """Request the end of the launch, also while it is starting. Another call after a failure tries again."""
        self._runs.request(_name(doc), "remove", plain(doc))

    def failure(self, doc: JobRow) -> str | None:
        """Return why the launch failed; after this call `launch` tries once more."""
        return self._runs.failure(_name(doc))

    def gone(self, doc: JobRow) -> bool:
        """True if shim and trainer have released the lock and no command can still start them."""
        return not self._runs.under_way(_name(doc)) and self._nothing_lives(self.folders(doc).launch, self._owner(doc))

    def _owner(self, doc: JobRow) -> int | None:
        """Return the user whose the folders of this job are, on a shared machine; None where they are ours."""
        if not self._settings.shared:
            return None
        uid = doc.get("owner_uid")
        return uid if isinstance(uid, int) else NOBODY

    def _nothing_lives(self, launch: Path, uid: int | None) -> bool:
        """True if no process of the launch is left. What a killed shim has left is killed: nobody could stop it."""
        free = unlocked(launch / "shim.lock", uid)
        if not free and listens(launch, uid):
            return False
        left = leftovers.end_all(str(launch.resolve()), uid)
        if free and uid is not None and not group_of(launch).end():  # not before: one may still write a checkpoint
            return False
        return free and not left and not self._lives_elsewhere(launch, uid)

    def _lives_elsewhere(self, launch: Path, uid: int | None) -> bool:
        """True if it runs in another state folder, of which this one is a copy or which was deleted.

        It is left alone: who started it may still command it.
        """
        other = leftovers.other_folder(str(launch.resolve()), uid)
        if other and other not in self._told_of:
            self._told_of.add(other)
            log.warning(
                "launch %s still runs in %s, which is of another state folder: nothing takes its place until it has "
                "ended; go on with that state folder, or end its processes",
                launch.name,
                other,
            )
        return bool(other)

    def vanished(self, doc: JobRow) -> frozenset[int]:
        """Return no pods: there are none here."""
        return frozenset()

    def nothing_runs(self, job_id: str) -> bool:
        """True if no process of a job runs whose document was deleted. Removes the launches that still do."""
        over = True
        for folder in self._jobs.glob("*"):
            if not may_be_launch_of(job_id, folder.name):
                continue
            known = _written(_facts(folder))
            if known and known["job_id"] != job_id:
                continue  # its name only looks the same
            if known:
                self.remove({"_id": job_id} | known)
                self._records.remove_copy(job_id, known["uid"])
            idle = not known and not self._runs.under_way(folder.name)
            over = over and idle and self._nothing_lives(folder, self._owner_of_folder(folder))
        return over

    def _owner_of_folder(self, launch: Path) -> int | None:
        """Return the user whose a launch's folder is: root made it so, and nobody else can."""
        return launch.lstat().st_uid if self._settings.shared else None

    def keep(self, doc: JobRow) -> None:
        """Write a copy of the document beside the store."""
        self._records.keep(doc)

    def adopt(self, doc: JobRow) -> None:
        """Do nothing: the launch's folder is all that is known of it."""

    def recall(self, jobs: Sequence[JobRow]) -> Evidence:
        """Read the copies, and ask the shim of each launch that lives."""
        return Evidence((*self._records.open(), *self._records.ended(jobs)), tuple(self._living()))

    def _living(self) -> Iterator[LivingLaunch]:
        for folder, known in _living(self._jobs):
            status = ask_status(folder, known.get("owner_uid"))
            yield LivingLaunch(str(known["job_id"]), known["uid"], known["launch"], status)

    def ended(self, doc: JobRow) -> frozenset[int]:
        """Return no members: this platform runs no gangs (`Config.many_pods`)."""
        return frozenset()

    def output(self, doc: JobRow, offset: int, limit: int) -> tuple[bytes, int]:
        """Return about `limit` bytes of the trainer's output from `offset` and the next offset, over all launches."""
        try:
            with acting_as(self._owner(doc)):
                opener = kept_output.open_as_it_is if self._settings.shared else None
                return kept_output.read(str(self.folders(doc).output), offset, limit, opener)
        except OSError as error:
            raise Transient(f"the output of job {JobRecord(doc).id} cannot be read: {error.strerror}") from error

    def folders(self, doc: JobRow) -> Folders:
        """Return the folders of this launch and of its job."""
        job = JobRecord(doc)
        return Folders(self._jobs / _name(doc), self._jobs / job_name(job.id, job.uid), self._owner(doc))

    def stop_all(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for running commands, then stop them. Launches live on."""
        self._datasets.close()
        self._runs.stop_all(timeout)
        for node in self._settings.node_cores:
            with contextlib.suppress(OSError):  # it was never made, or launches live on in it
                ControlGroup(f"{self._groups}-{node}").folder.rmdir()

    def _carry_out(self, verb: Verb, doc: JobRow, cancelled: Cancelled) -> None:
        if verb == "launch":
            self._launch(doc, cancelled)
        else:
            self._remove(doc, cancelled)

    def _launch(self, doc: JobRow, cancelled: Cancelled) -> None:
        code, folders = doc.get("code"), self.folders(doc)
        if code and not Path(code).is_absolute():  # whether it is there, the shim says
            raise Fatal(f"its `code` must be the full path of a folder on this machine, not {code}")
        account = self._account(doc)
        try:
            self._render(doc, folders, account)
        except OSError as error:
            raise Transient(f"{error.filename or folders.launch} cannot be written: {error.strerror}") from error
        shim_command.run("launch", folders.launch, folders.owner, self._settings.launch_timeout_s, cancelled)

    def _account(self, doc: JobRow) -> UnixAccount | None:
        """Return the user that a job runs as on a shared machine; None where it runs as ours. `Fatal`: it cannot."""
        uid = doc.get("owner_uid")
        name = doc.get("owner")
        if not self._settings.shared:
            if uid is not None:  # else a job of anybody would run as us
                raise Fatal(f"it was submitted by user {name} to a shared `reshape up`: start that, with --shared")
            return None
        if not isinstance(uid, int):
            raise Fatal("nobody has proved that it is theirs: its user submits it to this shared `reshape up` again")
        account = account_of(uid)
        if account is None or account.name != name:
            raise Fatal(f"user {name} has no account with uid {uid} on this machine any more")
        return account

    def _render(self, doc: JobRow, folders: Folders, account: UnixAccount | None) -> None:
        job = JobRecord(doc)
        gid = NOBODY
        if account is not None:
            gid = account.gid
            known = {"job_id": job.id, "uid": job.uid, "launch": job.launch, "owner_uid": account.uid}
            _write(_facts(folders.launch), json.dumps(known).encode())
            for folder in (folders.job, folders.launch, folders.imports):
                _give(folder, account)
        with acting_as(folders.owner, gid):
            for folder in (self._jobs, folders.job, folders.launch, folders.checkpoints):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # `-P`, because the shim's working folder must not hide modules; `env`, for a project that is not installed.
        # The format of our log, because the sidecar is started with an empty environment.
        variables = {"PYTHONPATH": str(SIDECAR.parent), VARIABLE: os.environ.get(VARIABLE, "text")}
        start = ["/usr/bin/env", *map("=".join, variables.items()), sys.executable, "-P", "-m", "sidecar"]
        command = [*start, "--folder", str(folders.launch)]
        environ = {**os.environ, "PATH": search_path()}
        spec = launch_spec(job, folders, self._coordinator, command, self._settings, environ, account)
        spec["group"] = self._entrance(doc)
        key = protocol.launch_key(self._master_key, job.uid, job.launch)
        text = json.dumps(spec, indent=1).encode()
        with acting_as(folders.owner, gid):
            _write(folders.launch / "launch.key", key)
            if self._settings.operator_token is not None:
                _write(folders.launch / "operator.token", self._settings.operator_token.encode())
            _write(folders.launch / "launch.json", text)

    def _node_group(self, doc: JobRow) -> ControlGroup | None:
        """Return the control group with the cores of the job's emulated node; None for any other node."""
        node = JobRecord(doc).node or ""
        return ControlGroup(f"{self._groups}-{node}") if node in self._settings.node_cores else None

    def _entrance(self, doc: JobRow) -> str:
        """Return the file by which the launch enters the cores of its node; empty where it has none of its own."""
        group = self._node_group(doc)
        if group is None:
            return ""
        try:
            group.give(self._settings.node_cores[JobRecord(doc).node or ""])
        except OSError as fault:
            log.info("emulated nodes share all cores of this machine: %s", fault)
            return ""
        return str(group.members)

    def _remove(self, doc: JobRow, cancelled: Cancelled) -> None:
        folders = self.folders(doc)
        # Without launch.json a shim that an orphaned command starts late ends at once.
        self._unlink(folders, "launch.json", "launch.key", "operator.token")
        if not unlocked(folders.launch / "shim.lock", folders.owner):
            self._end(doc, folders, cancelled)
        else:  # its shim was killed, if these are still there
            self._unlink(folders, "shim.sock", "shim.pid")
        if folders.owner is not None:  # without the rights of root its sidecar has made no control group
            group_of(folders.launch).end()  # of what would not end by itself
            _facts(folders.launch).unlink(missing_ok=True)
            return
        # A killed shim takes along the sidecar that would have lifted it.
        ControlGroup(folders.launch.name, below=self._node_group(doc)).lift()
        device_filter.remove_group_of(str(folders.launch))

    def _unlink(self, folders: Folders, *names: str) -> None:
        """Remove these files of the launch, if they are there."""
        with acting_as(folders.owner):
            for name in names:
                try:
                    (folders.launch / name).unlink(missing_ok=True)
                except OSError:
                    if folders.owner is None:
                        raise
                    # Its owner has closed the folder, or put another one there: the launch ends all the same.

    def _end(self, doc: JobRow, folders: Folders, cancelled: Cancelled) -> None:
        patience = self._settings.grace_s + self._settings.kill_s + self._settings.launch_timeout_s
        if folders.owner is not None:
            try:
                shim_command.run("remove", folders.launch, folders.owner, patience, cancelled)
            except Transient as error:
                if cancelled():
                    raise
                log.warning("job %s does not end by itself, and is killed: %s", JobRecord(doc).id, error)
            return
        for pause in (*REMOVE_AGAIN_S, None):
            try:
                shim_command.run("remove", folders.launch, None, patience, cancelled)
                break
            except Transient as error:
                if pause is None or self._runs.closing.wait(pause):
                    raise
                log.warning("remove of job %s failed: %s; trying again", JobRecord(doc).id, error)


def _prepare_shared(state: Path) -> None:
    """Make the folders of a shared machine: users get to their own ones below `jobs`, and to no other."""
    for name in (FACTS, ENDED_APART):
        (state / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in (state, state / "jobs", state / "imports"):
        folder.mkdir(mode=0o711, exist_ok=True)
        folder.chmod(0o711)


def _give(folder: Path, account: UnixAccount) -> None:
    """Make a folder that is this user's alone. Its parent is ours, so that nobody can put another in its place."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        os.chown(folder, account.uid, account.gid, follow_symlinks=False)
    if (there := folder.lstat()).st_uid not in (account.uid, 0) or not stat.S_ISDIR(there.st_mode):
        raise Fatal(f"{folder} is not a folder of user {account.name}: remove it")
    os.chown(folder, account.uid, account.gid, follow_symlinks=False)  # also where we were killed before


def _facts(launch: Path) -> Path:
    """Return the file by which a launch is known again: on a shared machine in a folder of root's, who alone may."""
    return launch.parent.parent / FACTS / f"{launch.name}.json" if is_shared(launch) else launch / "launch.json"


def disk_trouble(state: Path) -> str | None:
    """Return why no launch can be written into a state folder now; None if one can."""
    try:
        with tempfile.NamedTemporaryFile(dir=state, prefix=".room-", buffering=0) as probe:
            probe.write(bytes(LAUNCH_BYTES))
    except OSError as error:
        return f"no file can be written in {state} ({error.strerror}): make room on that disk"
    return None


def running_jobs(state: Path) -> set[str]:
    """Return the jobs of a state folder of which processes run, also of those that were told to end and have not."""
    jobs = state / "jobs"
    ending = {_job_of_removed(folder) for folder in jobs.glob("*-l*") if not _written(_facts(folder))}
    return {str(known["job_id"]) for _, known in _living(jobs)} | (ending - {""})


def _job_of_removed(launch: Path) -> str:
    """Return the job of a launch whose removal has begun and whose processes run; empty if none do.

    On a shared machine what is known of it is removed last.
    """
    if not (launch / "shim.lock").exists() or unlocked(launch / "shim.lock"):
        return ""
    job = launch.name.rpartition("-l")[0]
    copies = (launch.parent.parent / RECORDS / f"{job}.json", ended_copy(launch.parent, job))
    doc = next(filter(None, map(read_copy, copies)), None)
    return launch.name if doc is None else JobRecord(doc).id


def _living(jobs: Path) -> Iterator[tuple[Path, Doc]]:
    for folder in sorted(jobs.glob("*-l*")):
        known = _written(_facts(folder))
        if known and not unlocked(folder / "shim.lock", known.get("owner_uid")):
            yield folder, known


def cores_of_their_own() -> bool:
    """Return whether the kernel lets us give emulated nodes cores of their own, by control groups."""
    group = ControlGroup(f"node-{os.getpid()}")
    try:
        group.give(1.0)
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            group.folder.rmdir()
    return True


def _name(doc: JobRow) -> str:
    job = JobRecord(doc)
    return launch_name(job.id, job.uid, job.launch)


def _write(path: Path, content: bytes) -> None:
    """Write the file atomically, readable by this user only."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    new.replace(path)


def _written(path: Path) -> Doc:
    """Return what a file says of its launch; empty if the file is gone."""
    try:
        found = json.loads(path.read_bytes())
        owner = {"owner_uid": found["owner_uid"]} if "owner_uid" in found else {}
        return {field: found[field] for field in ("job_id", "uid", "launch")} | owner
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def unlocked(lock: Path, uid: int | None = None) -> bool:
    """True if no process holds the lock; shim, trainer and the trainer's children hold it until they end.

    `uid`: the user in whose folder it is, on a shared machine. Where that user has put something else in its place, or
    has closed it, the lock tells nothing, and the processes of the launch are found by their marks alone.
    """
    opener = None if uid is None else kept_output.open_as_it_is
    try:
        with acting_as(uid), open(lock, "rb", opener=opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError as fault:
        return uid is not None and fault.errno in NO_LOCKS
    return True
