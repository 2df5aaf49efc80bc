"""Notes at a save how far the script's files have grown, as one more file of the checkpoint.

Promises: what was written before the save is in the file, and its length is in the note, which exists if and only if
the checkpoint does; a note costs as much as has changed since the last one. Called by `periodic.saver`, and earlier by
adapters whose state is older than their save. Standard library, Python 3.8.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import re
import stat
import sys
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from reshape_hooks.files import watch as watching

FILES = "script-files.pickle"  # in a checkpoint
END = 4096  # bytes before the noted length that identify a file
MOST_CONTENT, MOST_CONTENTS = 1 << 20, 8 << 20  # bytes of one file, and of all files that are rewritten each time
MOST_OUTPUT = 256 << 20  # bytes of the command's redirected output that are kept twice
BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
OF_EVENTS = "each start of this script begins a file of events in {}; TensorBoard shows them as one"
QUEUED = ("torch.utils.tensorboard.writer", "tensorboardX.writer")  # whose SummaryWriter queues events in a thread
PACKED = (b"\x1f\x8b", b"PK", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"\x89HDF", b"SQLite", b"PAR1")
DATES = ("%Y%m%d", "%Y-%m-%d", "%Y_%m_%d", "%d-%m-%Y", "%d%m%Y", "%b%d_")
SECONDS = re.compile(r"\d{10}(?!\d)")


def take_note(folder: str, durable: bool = True) -> bytes | None:
    """Return the current note for a checkpoint in this folder; None if there is nothing to note, as in a worker.

    `durable`: force what is noted to disk, too, so that it survives a machine failure, as the checkpoint does.
    """
    watch = watching.this()
    if watch is None:
        return None
    if watch.replay is not None:
        passed: bytes | None = watch.replay.passed.get(os.path.abspath(folder))
        if passed is not None:  # a finished training is saved once more, before the script has reached its place
            return passed or None
        watch.replay.give_up()
    with watch.ours():
        if watch.late is not None:
            watch.late.join()
        held = open_files()
        _warn_of_libraries(watch, held)
        if not (watch.files or watch.folders or any(one.number in (1, 2) for one in held.values())):
            return None
        if held:
            flush(watch, held)
            held = open_files()
        entries = _entries(watch, dict(held))
        if durable:
            for one in held.values():
                os.fsync(one.number)
        _warn(watch, entries)
        watch.notes += 1
        note = {
            "who": watch.who,
            "order": (watch.generation, watch.notes),
            "files": entries,
            "folders": [path for path in watch.folders if os.path.isdir(path)],
        }
        keep_made(watch)
        return pickle.dumps(note, protocol=4)


class OpenFile:
    """A regular file that this process has open for writing. `at`: the offset of the next byte."""

    __slots__ = ("append", "at", "number", "numbers", "path", "size")

    def __init__(self, number: int, path: str, size: int, at: int, append: bool) -> None:
        self.number, self.path, self.size, self.at, self.append = number, path, size, at, append
        self.numbers = [number]


def open_files(process: str = "self") -> dict[tuple[int, int], OpenFile]:
    """Return the regular files that a process has open for writing, by device and inode."""
    found: dict[tuple[int, int], OpenFile] = {}
    folder = f"/proc/{process}"
    for name in sorted(map(int, os.listdir(f"{folder}/fd"))):
        try:
            status = os.stat(f"{folder}/fd/{name}")
            if not stat.S_ISREG(status.st_mode):
                continue
            with open(f"{folder}/fdinfo/{name}", encoding="ascii") as file:
                fields = dict(line.split(None, 1) for line in file if line.startswith(("pos:", "flags:")))
            flags = int(fields["flags:"], 8)
            if flags & os.O_ACCMODE == os.O_RDONLY:
                continue
            key = status.st_dev, status.st_ino
            if key in found:
                found[key].numbers.append(name)
                continue
            path = os.readlink(f"{folder}/fd/{name}")
            one = OpenFile(name, path, status.st_size, int(fields["pos:"]), bool(flags & os.O_APPEND))
            found[key] = one
        except (OSError, ValueError, KeyError):  # closed meanwhile, or a file system that says no more
            continue
    return found


def flush(watch: watching.Watch, held: Mapping[tuple[int, int], OpenFile]) -> None:
    """Flush what the script has written. `held`: the open files, by which new ones are detected."""
    key = {(place, tuple(one.numbers)) for place, one in held.items()}
    known = [one() for one in watch.writers[1]]
    if watch.writers[0] != key or None in known:
        known = sorted(writers(), key=lambda one: type(one) in BUFFERED[1:])  # text first: it flushes into bytes
        watch.writers = key, [weakref.ref(one) for one in known]
    for one in known:
        with contextlib.suppress(Exception):  # closed, or read-only
            one.flush()


def writers() -> Iterator[Any]:
    """Yield the objects through which this script writes to files."""
    queued = [getattr(sys.modules[name], "SummaryWriter", None) for name in QUEUED if name in sys.modules]
    kinds = {*BUFFERED, *queued}
    for one in gc.get_objects():
        if type(one) in kinds:
            yield one


def end_of(file: Any, length: int) -> int:
    """Return a checksum of the last bytes before this length."""
    begin = max(0, length - END)
    file.seek(begin)
    return zlib.crc32(file.read(length - begin))


def output_copy(watch: watching.Watch, path: str) -> str:
    """Return the path of the redirected output's copy, beside the checkpoints."""
    return os.path.join(watch.checkpoints, f"output-{zlib.crc32(os.fsencode(path)):08x}")


def made_list(watch: watching.Watch) -> str:
    """Return the path of the list of paths that this training has created, beside the checkpoints."""
    return os.path.join(watch.checkpoints, f"made-{zlib.crc32(repr(watch.who).encode()):08x}")


def keep_made(watch: watching.Watch) -> None:
    """Record each path from now on as soon as it is created: a killed process cannot tell."""
    if watch.made is not None:
        return
    try:
        os.makedirs(watch.checkpoints, exist_ok=True)
        number = os.open(made_list(watch), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return

    def made(kind: str, path: str) -> None:
        with contextlib.suppress(OSError):
            os.write(number, ascii((kind, path)).encode() + b"\n")

    watch.made = made


def _entries(watch: watching.Watch, held: dict[tuple[int, int], OpenFile]) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    room = MOST_CONTENTS
    last = watch.entries
    for path, known in list(watch.files.items()):
        try:
            status = os.stat(path)
            one = held.pop((status.st_dev, status.st_ino), None)
            entry = _entry(path, status, known, one, last.get(path), room)
        except FileNotFoundError:
            del watch.files[path]
            continue
        except OSError:
            continue
        room -= len(entry["content"] or b"")
        entries[path] = entry
    for one in held.values():  # not opened by this script: the command's output, or opened in C
        if one.number in (1, 2) and not watch.skips(one.path) and os.path.exists(one.path):
            entries[one.path] = _output(watch, one)
    watch.entries = entries
    return entries


def _entry(path: str, status: os.stat_result, known: Any, one: Any, last: Any, room: int) -> dict[str, Any]:
    stamp = status.st_size, status.st_mtime_ns, status.st_ino
    entry: dict[str, Any] = {"size": status.st_size, "stamp": stamp, "made": known.made, "held": one is not None}
    entry.update(at=one.at if one else None, append=one.append if one else None, content=None, output=False)
    if last is not None and last["stamp"] == stamp and last["held"] == entry["held"] and not last["output"]:
        return {**last, **entry, "content": last["content"], "kind": last["kind"], "end": last["end"]}
    with open(path, "rb") as file:
        head = file.read(8)
        entry["end"] = end_of(file, status.st_size)
        if one and head.startswith(PACKED):
            entry["kind"] = "packed"
        elif one and not one.append and one.at != one.size:
            entry["kind"] = "in places"
        elif known.rewritten and not one:
            entry["kind"] = "whole"
            if status.st_size <= min(MOST_CONTENT, room):
                file.seek(0)
                entry["content"] = file.read()
        else:
            entry["kind"] = "grows"
    return entry


def _output(watch: watching.Watch, one: OpenFile) -> dict[str, Any]:
    """Note the command's redirected output; keep a copy if a shell would truncate the file at the next start."""
    with open(one.path, "rb") as file:
        end = end_of(file, one.size)
        kept = output_copy(watch, one.path)
        whole = one.append
        if not one.append and one.at == one.size <= MOST_OUTPUT:
            whole = _add_to_copy(file, kept, one.size)
    return {
        "size": one.size,
        "stamp": None,
        "made": watch.output_made,
        "held": True,
        "at": one.at,
        "append": one.append,
        "content": None,
        "output": True,
        "end": end,
        "kind": "grows" if whole else "in places",
    }


def _add_to_copy(file: Any, kept: str, size: int) -> bool:
    try:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        with open(kept, "ab") as copy:
            have = copy.tell()
            if have > size:  # from a run with another output
                copy.truncate(0)
                have = 0
            file.seek(have)
            left = size - have
            while left > 0:
                part = file.read(min(left, 1 << 20))
                if not part:
                    return False
                copy.write(part)
                left -= len(part)
    except OSError:
        return False
    return True


def holds_events(path: str) -> bool:
    """Return whether TensorBoard reads this file: the library names it by time, differently at each start."""
    return os.path.basename(path).startswith("events.out.tfevents")


def _warn_of_libraries(watch: watching.Watch, held: Mapping[tuple[int, int], OpenFile]) -> None:
    """Report what is unknown about files that libraries have open, such as a database or events for TensorBoard."""
    for place, one in held.items():
        path, folder = one.path, os.path.dirname(one.path)
        ours = place in watch.inherited or path in watch.files or watch.skips(path) or folder in watch.libraries
        if ours or not path.startswith(os.path.join(watch.who[1], "")) or not os.path.exists(path):
            continue
        watch.libraries.add(folder)
        if holds_events(path):
            sentence = OF_EVENTS.format(folder)
        else:
            sentence = (
                f"{path} is written by a library, so what the script does to it before it trains is done again after a "
                "restart: let it look first whether that is done"
            )
        watching.say(watch, sentence)


def _warn(watch: watching.Watch, entries: dict[str, dict[str, Any]]) -> None:
    """Report before the first stop what will differ from a run without one."""
    for path, entry in entries.items():
        if entry["kind"] in ("in places", "packed") and not entry["output"]:
            watching.say(
                watch,
                f"{path} is not written line by line at its end (an archive, or positions set by the script), so it is "
                "not continued exactly after a restart: write it when the training ends",
            )
        elif entry["kind"] == "in places":
            watching.say(
                watch,
                f"the output in {path} cannot be kept over a restart, at which `>` empties it: "
                "use `>>`, or leave it to `reshape logs`",
            )
    if "ipykernel" in sys.modules:
        watching.say(
            watch,
            "what cells have printed before a restart is not in the notebook that comes out: write it to a file",
        )
    if len(watch.files) >= watching.MOST:
        watching.say(
            watch, f"this script writes more than {watching.MOST} files: only the first ones are continued exactly"
        )
    for folder in sorted({os.path.dirname(path) for path in entries if holds_events(path)}):
        watching.say(watch, OF_EVENTS.format(folder))
    named = next((path for path in [*watch.folders, *entries] if _named_by_time(watch, path)), None)
    if named:
        watching.say(
            watch,
            f"{named} is named by the time, so after a restart the script writes to another path and both hold a part: "
            "name it by something that stays, such as the environment variable RESHAPE_JOB_ID",
        )


def _named_by_time(watch: watching.Watch, path: str) -> bool:
    known = watch.files.get(path)
    if known is not None and not known.made:
        return False
    now = time.time()
    name = os.path.relpath(os.path.dirname(path) if holds_events(path) else path, watch.who[1])
    dates = {time.strftime(form, time.localtime(now - day * 86400)) for form in DATES for day in (0, 1)}
    recent = {found for found in SECONDS.findall(name) if abs(now - int(found)) < 30 * 86400}
    asked = watch.who[0].decode(errors="replace")  # a date that the command names stays
    return any(found in name and found not in asked for found in dates | recent)
