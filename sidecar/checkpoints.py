"""Finds a job's newest intact checkpoint (`reliability.md` 4, P3).

Promise: returns only checkpoints whose files match their manifest: each file was read to its end and has its digest, or
it is the very file that a hook wrote, digested and forced to disk while this sidecar watched ("What is verified" in
`reliability.md`). Raises nothing and changes nothing, whatever the folder holds (setting bad ones aside is left to a
trainer's hook). Called by `service.py` in its own threads, since the files may be large.

The format is `reshape_hooks/plain.py`'s: `<folder>/<name>/manifest.json` with job_id, generation, step, files {relative
name: digest} and written {boot, stamps {relative name: [size, mtime_ns, inode]}}. A job that trains several times keeps
its later trainings' checkpoints in `<folder>/training-2` and so on (`reshape_hooks/claims.py`); they are named
`training-2:<name>`.
"""

from __future__ import annotations

import json
import stat
import threading
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from reshape_hooks.plain import BEHIND_TRAINING, MANIFEST, TRAINING, UnknownDigest, boot_id, matches, stamp
from sidecar.protocol import Checkpoint

MANIFEST_LIMIT = 1 << 20  # bytes


class DamagedCheckpoint(Exception):
    """Raised for a checkpoint that cannot be used; the argument is a sentence."""


@dataclass(frozen=True)
class _Manifest:
    name: str
    generation: int
    step: int
    files: dict[str, str]
    stamps: Any  # of its files, taken once a hook had forced them to disk; None if not in this boot


def newest_good(folder: Path, job_id: str) -> Checkpoint | None:
    """Return the verified checkpoint with the highest (generation, step), or None."""
    return find_newest(folder, job_id)[0]


def find_newest(folder: Path, job_id: str) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest verified checkpoint, and a sentence for each newer one that was skipped."""
    return CheckpointWatch(folder, job_id).find_newest()


class CheckpointWatch:
    """A job's checkpoints, each read at most once. Thread-safe.

    A checkpoint that appeared after the first look is not read at all if its files are as their writer recorded them.
    """

    def __init__(self, folder: Path, job_id: str) -> None:
        self._folder, self._job_id, self._boot = folder, job_id, boot_id()
        self._one_look = threading.Lock()
        self._unseen: set[str] | None = None  # there before the first look: nobody saw them being written
        self._whole: dict[str, dict[str, list[int]]] = {}  # checkpoint -> stamps of its files when verified
        self._seen: dict[str, tuple[int, int]] = {}  # name -> mtime and size of its manifest
        self._paths: dict[str, Path] = {}  # of what was there at the last look
        self._newest = (-1, -1)  # generation and step of the one last found
        self.size = 0  # bytes of the one last verified

    def find_newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest verified checkpoint, and a sentence for each newer one that was skipped."""
        with self._one_look:
            problems: list[str] = []
            found: list[_Manifest] = []
            for name, path in self._look(problems).items():
                try:
                    found.append(_manifest(name, path, self._job_id, self._boot))
                except DamagedCheckpoint as bad:
                    problems.append(f"checkpoint {name} is not used: {bad}")
            return self._first_whole(found, problems), problems

    def find_newer(self) -> Checkpoint | None:
        """Return the newest intact checkpoint if it is newer than the one found before, else None.

        Skips damaged ones silently.
        """
        with self._one_look:
            here = {name: at for name, path in self._look([]).items() if (at := _written(path / MANIFEST))}
            fresh = [name for name, written in here.items() if self._seen.get(name) != written]
            self._seen = here
            found = [one for name in fresh if (one := self._read(name)) and (one.generation, one.step) > self._newest]
            checkpoint = self._first_whole(found, [])
            if checkpoint:
                self._newest = (checkpoint.generation, checkpoint.step)
            return checkpoint

    def _look(self, problems: list[str]) -> dict[str, Path]:
        """Return possible checkpoints by name."""
        self._paths = found = {}
        for path in _folders(self._folder, problems):
            if TRAINING.fullmatch(path.name):
                found.update({f"{path.name}{BEHIND_TRAINING}{one.name}": one for one in _folders(path, problems)})
            else:
                found[path.name] = path
        if self._unseen is None:
            self._unseen = set(found)
        self._whole = {name: self._whole[name] for name in found if name in self._whole}
        return found

    def _read(self, name: str) -> _Manifest | None:
        try:
            return _manifest(name, self._paths[name], self._job_id, self._boot)
        except DamagedCheckpoint:
            return None

    def _first_whole(self, found: list[_Manifest], problems: list[str]) -> Checkpoint | None:
        for one in sorted(found, key=lambda m: (m.generation, m.step, m.name), reverse=True):
            try:
                self._verify(one)
            except DamagedCheckpoint as bad:
                problems.append(f"checkpoint {one.name} is not used: {bad}")
            else:
                return Checkpoint(name=one.name, step=one.step, generation=one.generation)
        return None

    def _verify(self, one: _Manifest) -> None:
        """Raise `DamagedCheckpoint` unless its files are those that its writer wrote."""
        if not one.files:
            raise DamagedCheckpoint("its manifest names no file")
        paths = {name: _inside(self._paths[one.name], name) for name in one.files}
        now = {name: _stamp(path, name) for name, path in paths.items()}
        watched = self._unseen is not None and one.name not in self._unseen
        if now != self._whole.get(one.name) and not (watched and now == one.stamps):
            for name, path in paths.items():
                _verify_file(path, name, one.files[name])
        self._whole[one.name] = now
        self.size = sum(size for size, *_ in now.values())


def _written(manifest: Path) -> tuple[int, int] | None:
    """Return mtime and size; None if there is no manifest: it is written last, so the checkpoint is incomplete."""
    try:
        status = manifest.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _folders(folder: Path, problems: list[str]) -> list[Path]:
    """Return folders that may be checkpoints, without `.` and `bad-` names: those are in progress or set aside."""
    try:
        plain = [e for e in sorted(folder.iterdir()) if e.name.isprintable() and not e.name.startswith((".", "bad-"))]
        return [e for e in plain if e.is_dir() and not e.is_symlink()]
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"the checkpoint folder cannot be read: {error.strerror}")
        return []


def _manifest(name: str, path: Path, job_id: str, boot: str) -> _Manifest:
    raw = _read_manifest(path / MANIFEST)
    if str(raw.get("job_id")) != job_id:
        raise DamagedCheckpoint(f"it belongs to job {str(raw.get('job_id'))[:80]}")
    generation, step, files = raw.get("generation"), raw.get("step"), raw.get("files")
    if not _is_count(generation) or not _is_count(step) or not isinstance(files, dict):
        raise DamagedCheckpoint("its manifest lacks generation, step or files")
    if not all(isinstance(file, str) and isinstance(digest, str) for file, digest in files.items()):
        raise DamagedCheckpoint("the files in its manifest are not names with hashes")
    written, stamps = raw.get("written"), None
    if isinstance(written, dict) and boot and written.get("boot") == boot:
        stamps = written.get("stamps")
    return _Manifest(name, generation, step, files, stamps)


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        _must_be_file(path)
        with path.open("rb") as file:
            text = file.read(MANIFEST_LIMIT + 1)
        raw = json.loads(text) if len(text) <= MANIFEST_LIMIT else None
    except OSError as error:
        raise DamagedCheckpoint(f"its manifest cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise DamagedCheckpoint("its manifest is not JSON") from None
    if not isinstance(raw, dict):
        raise DamagedCheckpoint("its manifest is not a JSON object")
    return raw


def _is_count(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 1 << 63


def _inside(folder: Path, name: str) -> Path:
    plain = PurePosixPath(name)
    if plain.is_absolute() or ".." in plain.parts or "\0" in name or not plain.parts:
        raise DamagedCheckpoint(f"file name {name[:80]!r} leads outside")
    return folder / plain


def _stamp(path: Path, name: str) -> list[int]:
    try:
        _must_be_file(path)
        return stamp(path)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None


def _verify_file(path: Path, name: str, digest: str) -> None:
    try:
        whole = matches(path, digest)
    except UnknownDigest as unknown:
        raise DamagedCheckpoint(str(unknown)) from None
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    if not whole:
        raise DamagedCheckpoint(f"file {name[:80]!a} is not what was written")


def _unreadable(name: str, error: Exception) -> DamagedCheckpoint:
    # ValueError: a name that no file can have
    why = error.strerror if isinstance(error, OSError) else "no file can have this name"
    return DamagedCheckpoint(f"file {name[:80]!a} cannot be read ({why})")


def _must_be_file(path: Path) -> None:
    """Raise `DamagedCheckpoint` unless it is a plain file: opening a pipe would block."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise DamagedCheckpoint(f"{path.name[:80]!a} is not a plain file")
