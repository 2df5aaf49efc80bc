"""Restores a script's files to what they were at the checkpoint from which its training resumes.

A restarted script repeats what it does before it trains: it opens its logs with "w", creates folders, empties them.
Until its training has resumed, that is a replay of what it has done already. Promises: a file or folder that this
training created in an earlier generation is neither emptied nor removed by the replay; when the training resumes, each
file is as it was at that checkpoint, and what the script has open continues from there; a process killed in between
leaves the next one everything that it found; what another process writes, or what differs from the note, is left as it
is, with a sentence. Called by `watch` at the start, and by adapters (`resumed`). Standard library, Python 3.8.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import json
import os
import pathlib
import pickle
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from reshape_hooks import plain
from reshape_hooks.files import note as noting
from reshape_hooks.files import watch as watching

DEEP = 3  # levels below the checkpoint folder at which trainings have theirs
BACK = 1 << 20  # bytes copied at once
RENAME = os.rename  # without our guard


class Changed(Exception):
    """Raised when a file must not be touched; the argument is the reason, for a sentence."""


def begin(watch: watching.Watch) -> None:
    """Protect what this script has written in earlier generations, if a checkpoint of it exists."""
    notes = list(_notes(watch.checkpoints))
    ended = _ended(watch)
    own = [
        (found["order"], path, found)
        for path, found in notes
        # The same command again without a restart in between: what the first one has created is not protected.
        if found["who"] == watch.who and not (found["order"][0] == watch.generation and os.path.dirname(path) in ended)
    ]
    if not own:
        return
    _order, path, newest = max(own, key=lambda one: one[0])
    shared = {path for _, found in notes if found["who"] != watch.who for path in found["files"]}
    replay = Replay(watch, os.path.dirname(path), newest, shared)
    with watch.ours():
        replay.put_back()
    watch.replay = replay
    replay.guard()
    atexit.register(replay.at_exit)


def resumed(saved: plain.Saved | None) -> None:
    """Restore the files as the training resumes at this checkpoint. None: it begins anew."""
    watch = watching.this()
    if watch is None or watch.replay is None or saved is None:
        return
    with watch.ours():
        watch.replay.resumed(str(saved.path))


def ended_before() -> None:
    """Note that the training is resumed at its end: the script does again what follows it."""
    watch = watching.this()
    if watch is not None:
        watch.again = True


def left_alone() -> None:
    """Note that this training is not resumed: what it writes now is its own."""
    watch = watching.this()
    if watch is not None and watch.replay is not None:
        with watch.ours():
            watch.replay.give_up()


def not_yet_made() -> frozenset[str]:
    """Return the folders of earlier generations that this start of the script has not created again yet.

    It does not see them yet: a script, or a library, that numbers its folders then gives them the same numbers again.
    """
    watch = watching.this()
    replay = watch.replay if watch is not None else None
    return frozenset(replay.folders - replay.again) if replay is not None else frozenset()


def aside(path: str) -> str:
    """Return where a file of an earlier generation stays while the script starts."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.reshape-kept")


class Replay:
    """What a process protects until its training resumes. `folder`: that of the newest note's checkpoints."""

    def __init__(self, watch: watching.Watch, folder: str, newest: dict[str, Any], shared: set[str]) -> None:
        self.watch, self.folder, self.newest = watch, _on_disk(folder, watch), newest
        self.files = {path: entry for path, entry in newest["files"].items() if path not in shared}
        self.shared = [path for path in newest["files"] if path in shared]
        self.folders = set(newest["folders"])
        self.again: set[str] = set()  # those of them that the script has requested again
        self.passed: dict[str, bytes] = {}  # notes of finished trainings, by checkpoint folder; empty: none

    def put_back(self) -> None:
        """Move back what a process put aside that was killed before its training resumed."""
        for path in self.files:
            if os.path.lexists(aside(path)):
                with contextlib.suppress(OSError):
                    os.replace(aside(path), path)

    # While the script starts

    def put_aside(self, path: str) -> None:
        """Put a file aside that the script is about to empty. Raises OSError if it would be lost."""
        if path not in self.files or os.path.lexists(aside(path)):
            return
        try:
            RENAME(path, aside(path))
        except OSError as error:
            raise OSError(
                error.errno, f"reshape: what was written before the restart would be lost ({error.strerror})", path
            ) from error

    def guard(self) -> None:
        """Turn calls that create or remove what an earlier generation left into no-ops until the training resumes."""
        for module, name, passes in (
            (os, "mkdir", self._is_made_again),
            (os, "rmdir", self._is_made),
            (os, "remove", self._is_file),
            (os, "unlink", self._is_file),
            (shutil, "rmtree", self._holds),
            (os, "rename", self._is_file),
            (os, "replace", self._is_file),
        ):
            _put_in_place(module, name, self._guarded(getattr(module, name), passes))

    def _guarded(self, theirs: Any, passes: Any) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            watch = self.watch
            if watch.replay is self and watching.this() is watch and kwargs.get("dir_fd") is None:
                path = watching.absolute(args[0] if args else kwargs.get("path", kwargs.get("src")))
                if path and passes(path):
                    return None
            return theirs(*args, **kwargs)

        guarded.__name__, guarded.__doc__, guarded.__wrapped__ = theirs.__name__, theirs.__doc__, theirs  # type: ignore[attr-defined]
        for name in ("avoids_symlink_attacks",):
            if hasattr(theirs, name):
                setattr(guarded, name, getattr(theirs, name))
        return guarded

    def _is_made(self, path: str) -> bool:
        return path in self.folders and os.path.isdir(path)

    def _is_made_again(self, path: str) -> bool:
        made = self._is_made(path)
        if made:
            self.again.add(path)
        return made

    def _is_file(self, path: str) -> bool:
        return path in self.files and os.path.exists(path) and not os.path.lexists(aside(path))

    def _holds(self, path: str) -> bool:
        below = os.path.join(path, "")
        return any(one == path or one.startswith(below) for one in (*self.folders, *self.files) if os.path.lexists(one))

    # When it is resumed

    def resumed(self, checkpoint: str) -> None:
        """Restore all files to what this checkpoint noted, if it is the newest of this script."""
        found = _read(checkpoint)
        here = _on_disk(os.path.dirname(checkpoint), self.watch)
        same = here == self.folder
        if found is None:
            if same:
                self.give_up()
            self.passed[here] = b""  # it had ended before the script wrote anything
            return
        if found["order"] != self.newest["order"] and not same:
            with open(os.path.join(checkpoint, noting.FILES), "rb") as file:
                self.passed[here] = file.read()
            return
        self._end()
        noting.flush(self.watch, noting.open_files())
        others = _Others()
        for path, entry in found["files"].items():
            if path in self.shared:
                self._say(path, "another training of this job writes to it, too")
                continue
            try:
                if entry["output"]:
                    self.watch.output_made = entry["made"]
                    self._restore_output(path, entry)
                else:
                    self._restore(path, entry, others)
            except Changed as why:
                self._leave(path, str(why))
            except OSError as error:
                self._leave(path, error.strerror or str(error))
            known = self.watch.files.setdefault(path, watching.File(entry["made"]))
            known.made, known.rewritten = entry["made"], known.rewritten or entry["kind"] == "whole"
            if entry["output"]:
                del self.watch.files[path]
        self.watch.folders.update(dict.fromkeys(found["folders"]))
        late = Late(self.watch, found["files"])
        if late.files:
            self.watch.late = late
            atexit.register(late.at_exit)
        self._undo_what_came_later(found)
        self._name_what_moved(found)
        self.watch.training = True

    def _restore(self, path: str, entry: dict[str, Any], others: _Others) -> None:
        kept = aside(path)
        there = kept if os.path.lexists(kept) else path
        if entry["kind"] == "whole":
            if entry["content"] is not None:
                _write_whole(path, entry["content"])
                if there == kept:
                    os.unlink(kept)
            elif there == kept:
                os.replace(kept, path)
            return
        if not os.path.exists(there):
            raise Changed("it is gone")
        if entry["kind"] == "packed":
            if there == kept:
                raise Changed("it is an archive or a data base, which cannot be continued")
        elif entry["kind"] == "grows":
            self._cut(there, entry, others)
            if there == kept:
                self._bring_back(kept, path, entry["size"], entry["size"])
            else:
                _go_on_at(path, entry["size"])
        elif there == kept:
            self._bring_back(kept, path, os.path.getsize(kept), entry["at"])

    def _cut(self, path: str, entry: dict[str, Any], others: _Others) -> None:
        """Truncate what was written after the checkpoint: it is repeated."""
        size = entry["size"]
        if not _begins_as_noted(path, entry):
            raise Changed("it is not as it was when the training was saved")
        if os.path.getsize(path) == size:
            return
        if not entry["made"]:
            raise Changed("it is older than this training, so some of its last lines may be of another one")
        if others.write(path):
            raise Changed("another process writes to it")
        os.truncate(path, size)

    def _bring_back(self, kept: str, path: str, size: int, at: int) -> None:
        """Put the earlier file in place of the one that the script has begun anew."""
        ours = _ours(path)
        if ours is None and not _mapped(path):
            os.replace(kept, path)
            return
        _copy_into(kept, path, size)
        os.unlink(kept)
        _go_on_at(path, at)

    def _restore_output(self, path: str, entry: dict[str, Any]) -> None:
        one = _ours(path)
        if one is None or not {1, 2} & set(one.numbers):
            raise Changed("the output goes elsewhere now")
        if entry["kind"] != "grows":
            return
        size = entry["size"]
        if one.append:
            if _begins_as_noted(path, entry) and entry["made"]:
                os.truncate(path, size)
            return
        copy = noting.output_copy(self.watch, path)
        if not _begins_as_noted(copy, entry):
            raise Changed("the copy of it is not as it was when the training was saved")
        os.truncate(copy, size)
        _copy_into(copy, path, size)
        _go_on_at(path, size)

    def _undo_what_came_later(self, found: dict[str, Any]) -> None:
        """Undo what began after the checkpoint and will be repeated.

        Growing files are removed; folders may be created again.
        """
        path = noting.made_list(self.watch)
        with contextlib.suppress(OSError, ValueError, SyntaxError):
            with open(path, encoding="ascii") as file:
                lines = [ast.literal_eval(line) for line in file if line.endswith("\n")]
            later: list[tuple[str, str]] = []
            for kind, made in lines:
                if made in found["files"] or made in found["folders"] or not os.path.lexists(made):
                    continue
                if kind == "grows" and _ours(made) is None:
                    os.unlink(made)
                    continue
                later.append((kind, made))
            again = {made for kind, made in later if kind == "folder"}
            temporary = f"{path}.new"
            with open(temporary, "w", encoding="ascii") as file:
                file.writelines(f"{one!a}\n" for one in later)
            os.replace(temporary, path)
            if again:
                _make_again(self.watch, again)

    def _name_what_moved(self, found: dict[str, Any]) -> None:
        """Report where a script that names files by time has continued in another one."""
        before = {path for path, entry in found["files"].items() if entry["held"] and not entry["output"]}
        now = {one.path for one in noting.open_files().values()} & set(self.watch.files)
        gone, new = sorted(before - now), sorted(now - set(found["files"]))
        new = [path for path in new if not noting.holds_events(path)]
        if gone and new:
            watching.say(
                self.watch,
                f"this script now writes to {new[0]} and wrote to {gone[0]} before the restart: each holds a part",
            )

    # When it is not

    def give_up(self) -> None:
        """Keep what was put aside under another name, as the training is not resumed."""
        self._end()
        for path in self.files:
            if os.path.lexists(aside(path)):
                self._leave(path, "this training was begun anew")

    def at_exit(self) -> None:
        """Handle the script's end without a resume: after an error, restore everything as before its start."""
        if self.watch.replay is self and self.watch.pid == os.getpid():
            with self.watch.ours():
                self._end()
                if hasattr(sys, "last_type"):
                    self.put_back()
                    return
                for path in filter(os.path.lexists, map(aside, self.files)):  # the next generation moves it back
                    watching.say(self.watch, f"what was written before this start is in {path}")

    def _end(self) -> None:
        self.watch.replay = None

    def _leave(self, path: str, why: str) -> None:
        kept = aside(path)
        if os.path.lexists(kept):
            other = f"{path}.before-g{self.watch.generation}"
            with contextlib.suppress(OSError):
                os.replace(kept, other)
                why += f"; what was in it before the restart is in {other}"
        self._say(path, why)

    def _say(self, path: str, why: str) -> None:
        watching.say(self.watch, f"{path} is left as it is after a restart, because {why}")


class Late:
    """Files open at the checkpoint that the script reopens only now, while it trains.

    Reopening empties them, as the first time: they are put aside, and joined with the new content at the next save.
    """

    def __init__(self, watch: watching.Watch, entries: dict[str, dict[str, Any]]) -> None:
        self.watch = watch
        self.files = {
            path
            for path, entry in entries.items()
            if entry["held"] and entry["kind"] == "grows" and not entry["output"] and _ours(path) is None
        }
        self.begun: list[str] = []  # from scratch

    def opens(self, path: str) -> None:
        """Put a file aside that the script is about to empty."""
        if path in self.files:
            self.files.discard(path)
            RENAME(path, aside(path))
            self.begun.append(path)

    def join(self) -> None:
        """Prepend the earlier content to the new one."""
        begun, self.begun = self.begun, []
        if begun:
            noting.flush(self.watch, noting.open_files())
        for path in begun:
            try:
                self._join(path)
            except OSError as error:
                kept, why = aside(path), error.strerror or str(error)
                watching.say(self.watch, f"what was in {path} before the restart is in {kept} ({why})")

    def _join(self, path: str) -> None:
        with open(aside(path), "rb") as file:
            before = file.read()
        with open(path, "rb") as file:
            new = file.read()
        head = before.partition(b"\n")[0] + b"\n"
        if new.startswith(head):  # the column names, written on opening
            new = new[len(head) :]
        number = os.open(path, os.O_WRONLY)
        try:
            _write_at(number, before + new, 0)
        finally:
            os.close(number)
        os.unlink(aside(path))
        _go_on_at(path, len(before + new))

    def at_exit(self) -> None:
        if self.watch.pid == os.getpid():
            with self.watch.ours():
                self.join()


class _Others:
    """Knows which files other processes have open for writing; looked up once, and only if needed."""

    def __init__(self) -> None:
        self._open: set[tuple[int, int]] | None = None

    def write(self, path: str) -> bool:
        if self._open is None:
            self._open = set()
            for pid in filter(str.isdigit, os.listdir("/proc")):
                if int(pid) != os.getpid():
                    with contextlib.suppress(OSError):
                        self._open.update(noting.open_files(pid))
        status = os.stat(path)
        return (status.st_dev, status.st_ino) in self._open


def _notes(folder: str, deep: int = DEEP) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the note of each checkpoint below this folder, and of in-memory copies."""
    memory = os.environ.get("RESHAPE_MEMORY") if deep == DEEP else None
    for place in filter(None, (folder, memory)):
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            path = os.path.join(place, name)
            if plain.NAME.fullmatch(name):
                found = _read(path)
                if found is not None:
                    yield path, found
            elif deep and not name.startswith((plain.BAD, plain.TEMPORARY)) and os.path.isdir(path):
                yield from _notes(path, deep - 1)


def _ended(watch: watching.Watch) -> set[str]:
    """Return the folders of trainings that have finished in this generation."""
    found: set[str] = set()
    memory = os.environ.get("RESHAPE_MEMORY")
    try:
        with open(os.path.join(watch.checkpoints, plain.CLAIMS), encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError):
        return found
    for one in known:
        if one["state"] != plain.RUNS and one["generation"] == watch.generation:
            name = plain.training_name(one["number"])
            found.update(os.path.join(place, name) if name else place for place in (watch.checkpoints, memory) if place)
    return found


def _on_disk(folder: str, watch: watching.Watch) -> str:
    """Return the folder of a training's checkpoints, also for in-memory copies of them."""
    in_memory = folder == os.environ.get("RESHAPE_MEMORY")
    return os.path.abspath(watch.checkpoints if in_memory else folder)


def _read(checkpoint: str) -> dict[str, Any] | None:
    """Return a checkpoint's note; None without one. Whoever loads a damaged checkpoint detects that."""
    try:
        with open(os.path.join(checkpoint, noting.FILES), "rb") as file:
            found = pickle.load(file)
    except Exception:
        return None
    return found if isinstance(found, dict) else None


def _begins_as_noted(path: str, entry: dict[str, Any]) -> bool:
    try:
        with open(path, "rb") as file:
            long_enough = os.fstat(file.fileno()).st_size >= entry["size"]
            return bool(long_enough and noting.end_of(file, entry["size"]) == entry["end"])
    except FileNotFoundError:
        return False


def _ours(path: str) -> Any:
    """Return how this process has a file open for writing; None if it has not."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return noting.open_files().get((status.st_dev, status.st_ino))


def _mapped(path: str) -> bool:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        return any(line.rstrip("\n").endswith(path) for line in file)


def _write_whole(path: str, content: bytes) -> None:
    """Replace the file's content; atomically, unless the script has it open."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        if file.read(len(content) + 1) == content:
            return
    if _ours(path) is not None:
        number = os.open(path, os.O_WRONLY)
        try:
            _write_at(number, content, 0)
            os.ftruncate(number, len(content))
        finally:
            os.close(number)
        _go_on_at(path, len(content))
        return
    temporary = f"{aside(path)}-new"
    with open(temporary, "wb") as file:
        file.write(content)
    with contextlib.suppress(OSError):
        shutil.copymode(path, temporary)
    os.replace(temporary, path)


def _write_at(number: int, content: bytes, at: int) -> None:
    left = memoryview(content)
    while left:
        done = os.pwrite(number, left, at)
        left, at = left[done:], at + done


def _copy_into(source: str, target: str, size: int) -> None:
    """Replace the content of the target, which is open, with the source's."""
    with open(source, "rb") as file:
        number = os.open(target, os.O_WRONLY)
        try:
            at = 0
            while at < size:
                part = file.read(min(BACK, size - at))
                if not part:
                    break
                _write_at(number, part, at)
                at += len(part)
            os.ftruncate(number, size)
            os.fsync(number)
        finally:
            os.close(number)


def _go_on_at(path: str, at: int) -> None:
    """Move the offsets of all writers of this file to this byte."""
    one = _ours(path)
    if one is None or one.append:
        return
    for number in one.numbers:
        os.lseek(number, at, os.SEEK_SET)
    for writer in noting.writers():
        with contextlib.suppress(Exception):  # one without a file
            if writer.fileno() in one.numbers:
                writer.seek(0, os.SEEK_END) if at == os.path.getsize(path) else writer.seek(at)


def _make_again(watch: watching.Watch, again: set[str]) -> None:
    """Let the first call that creates one of these folders find that it has done so."""
    theirs = os.mkdir

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        known = watching.absolute(path)
        if known in again and watching.this() is watch and kwargs.get("dir_fd") is None and os.path.isdir(known):
            again.discard(known)
            watch.folders[known] = None
            return
        theirs(path, *args, **kwargs)

    _put_in_place(os, "mkdir", mkdir)


def _put_in_place(module: Any, name: str, ours: Any) -> None:
    """Replace this function, also in `pathlib`, which kept references to those of `os` up to Python 3.10."""
    setattr(module, name, ours)
    accessor = getattr(pathlib, "_NormalAccessor", None)
    if module is os and hasattr(accessor, name):
        setattr(accessor, name, staticmethod(ours))
