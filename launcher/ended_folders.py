"""Removes from this machine's disk what is left of jobs that ended long ago and that the store has dropped.

Promises: only what we wrote ourselves goes: folders of launches, the output, the copy of the document. Checkpoints
stay, as they may be all that a training has come to, and so does what its script wrote into its folder. Nothing goes of
a job that the store has, or of which a process runs. A pass that was killed is done again. Called by `reshape up`.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from coordinator.model import states as s
from coordinator.model.records import JobRecord
from launcher.launch_records import ended_copy, read_copy
from launcher.local import unlocked
from launcher.names import is_launch_of, job_name

OUTPUTS = ("output.log", "output.log.1")


def remove_ended(jobs: Path, known: Collection[str], before: float) -> int:
    """Remove what is left of jobs that ended before `before`, in seconds since 1970; return how many those were.

    `known`: the uids of all jobs of the store. A folder that cannot be removed is tried again by the next call.
    """
    names = [entry.name for entry in jobs.iterdir()] if jobs.is_dir() else []
    launches: dict[str, list[Path]] = {}
    for name in names:
        launches.setdefault(name.rpartition("-l")[0], []).append(jobs / name)
    removed = 0
    for folder in _ended(jobs, names, known, before):
        of_it = [launch for launch in launches.get(folder.name, ()) if is_launch_of(folder.name, launch.name)]
        copy = ended_copy(jobs, folder.name)
        uid = (read_copy(copy) or {}).get("owner_uid")
        if not all(unlocked(launch / "shim.lock", uid) for launch in of_it):
            continue
        with suppress(OSError):
            _remove(folder, of_it, copy)
            removed += 1
    return removed


def _ended(jobs: Path, names: Collection[str], known: Collection[str], before: float) -> Iterator[Path]:
    for name in sorted(names):
        folder = jobs / name
        copy = ended_copy(jobs, name)
        try:
            young = copy.stat().st_mtime >= before  # most are: these need not be read
        except OSError:
            continue
        doc = None if young or folder.is_symlink() else read_copy(copy)
        if doc is None:
            continue
        job = JobRecord(doc)
        ours = name == job_name(job.id, job.uid)  # a script may have written a file of this name
        if ours and job.uid not in known and job.state in s.ENDED and 0 < job.finish_ts < before:
            yield folder


def _remove(folder: Path, launches: Collection[Path], copy: Path) -> None:
    for launch in launches:
        shutil.rmtree(launch)  # follows no link, whoever put it there
    for name in OUTPUTS:
        (folder / name).unlink(missing_ok=True)
    copy.unlink(missing_ok=True)  # last: by it this is done again
    for empty in (folder / "checkpoints", folder):
        with suppress(OSError):  # it holds something
            empty.rmdir()
