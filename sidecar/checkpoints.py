"""Finds the newest checkpoint of a job that is whole (`reliability.md` 4, P3).

Promise: returns only checkpoints that were verified hash by hash against their manifest; raises nothing and changes
nothing, whatever the folder holds (setting bad ones aside is left to a trainer's hook).
Called by `service.py` in a thread of its own, since the files may be large; standard library only.

The format is `reshape_hooks/plain.py`'s: `<folder>/<name>/manifest.json` with job_id, generation, step and
files {relative name: sha256}.
"""

from __future__ import annotations

import hashlib
import json
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from sidecar.protocol import Checkpoint

MANIFEST = "manifest.json"
MANIFEST_LIMIT = 1 << 20  # bytes
CHUNK = 1 << 20  # bytes


class DamagedCheckpoint(Exception):
    """A checkpoint cannot be used; the reason as a sentence."""


@dataclass(frozen=True)
class _Manifest:
    name: str
    generation: int
    step: int
    files: dict[str, str]


def newest_good(folder: Path, job_id: str) -> Checkpoint | None:
    """Return the verified checkpoint with the highest (generation, step), or None."""
    return find_newest(folder, job_id)[0]


def find_newest(folder: Path, job_id: str) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest verified checkpoint, and a sentence for each newer one that was passed over."""
    problems: list[str] = []
    found: list[_Manifest] = []
    for path in _folders(folder, problems):
        try:
            found.append(_manifest(path, job_id))
        except DamagedCheckpoint as bad:
            problems.append(f"checkpoint {path.name} is not used: {bad}")
    for one in _newest_first(found):
        if checkpoint := _verified(folder, one, problems):
            return checkpoint, problems
    return None, problems


class CheckpointWatch:
    """Finds each newer checkpoint once while training goes on. Does not read a checkpoint twice."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self._folder, self._job_id = folder, job_id
        self._seen: dict[str, tuple[int, int]] = {}  # name -> when its manifest was written, and its size
        self._newest = (-1, -1)  # generation and step of the one that was found

    def find_newer(self) -> Checkpoint | None:
        """The newest whole one if it is newer than what was found before, else None. Skips damaged ones silently."""
        here = {path.name: written for path in _folders(self._folder, []) if (written := _written(path / MANIFEST))}
        fresh = [name for name, written in here.items() if self._seen.get(name) != written]
        self._seen = here
        found = [one for name in fresh if (one := self._read(name)) and (one.generation, one.step) > self._newest]
        for one in _newest_first(found):
            if checkpoint := _verified(self._folder, one, []):
                self._newest = (one.generation, one.step)
                return checkpoint
        return None

    def _read(self, name: str) -> _Manifest | None:
        try:
            return _manifest(self._folder / name, self._job_id)
        except DamagedCheckpoint:
            return None


def _written(manifest: Path) -> tuple[int, int] | None:
    """Return modification time and size; None if it is missing: it is written last, so the checkpoint is incomplete."""
    try:
        status = manifest.lstat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _newest_first(found: list[_Manifest]) -> list[_Manifest]:
    return sorted(found, key=lambda m: (m.generation, m.step, m.name), reverse=True)


def _verified(folder: Path, one: _Manifest, problems: list[str]) -> Checkpoint | None:
    try:
        _verify(folder / one.name, one.files)
    except DamagedCheckpoint as bad:
        problems.append(f"checkpoint {one.name} is not used: {bad}")
        return None
    return Checkpoint(name=one.name, step=one.step, generation=one.generation)


def _folders(folder: Path, problems: list[str]) -> list[Path]:
    """Return folders that may be checkpoints: `.` and `bad-` names are being written or set aside."""
    try:
        plain = [e for e in sorted(folder.iterdir()) if e.name.isprintable() and not e.name.startswith((".", "bad-"))]
        return [e for e in plain if e.is_dir() and not e.is_symlink()]
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"the checkpoint folder cannot be read: {error.strerror}")
        return []


def _manifest(path: Path, job_id: str) -> _Manifest:
    raw = _read_manifest(path / MANIFEST)
    if str(raw.get("job_id")) != job_id:
        raise DamagedCheckpoint(f"it belongs to job {str(raw.get('job_id'))[:80]}")
    generation, step, files = raw.get("generation"), raw.get("step"), raw.get("files")
    if not _is_count(generation) or not _is_count(step) or not isinstance(files, dict):
        raise DamagedCheckpoint("its manifest lacks generation, step or files")
    if not all(isinstance(name, str) and isinstance(digest, str) for name, digest in files.items()):
        raise DamagedCheckpoint("the files in its manifest are not names with hashes")
    return _Manifest(path.name, generation, step, files)


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


def _verify(folder: Path, files: dict[str, str]) -> None:
    if not files:
        raise DamagedCheckpoint("its manifest names no file")
    for name, digest in files.items():
        plain = PurePosixPath(name)
        if plain.is_absolute() or ".." in plain.parts or "\0" in name or not plain.parts:
            raise DamagedCheckpoint(f"file name {name[:80]!r} leads outside")
        if _sha256(folder / plain, name) != digest:
            raise DamagedCheckpoint(f"file {name[:80]!a} is not what was written")


def _sha256(path: Path, name: str) -> str:
    digest = hashlib.sha256()
    try:
        _must_be_file(path)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        why = error.strerror if isinstance(error, OSError) else "no file can have this name"
        raise DamagedCheckpoint(f"file {name[:80]!a} cannot be read ({why})") from None
    return digest.hexdigest()


def _must_be_file(path: Path) -> None:
    """Raise `DamagedCheckpoint` unless it is a plain file: opening a pipe would block."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise DamagedCheckpoint(f"{path.name[:80]!a} is not a plain file")
