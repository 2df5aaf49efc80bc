"""Compares what a stopped and resumed training left behind with what undisturbed ones did. Pure.

Promises: what already differs between two undisturbed runs is not held against a stop, and the rest of the same file or
line still is; times, speeds, bars of progress, warnings of libraries and our own lines are none. Called by `rehearsal`.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

OURS = re.compile(r"^(?:reshape: |checkpoint=\S+ step=|step=\d+.* time=\d|reports=ended )")
BAR = re.compile(r"\d+%\||\d+/\d+ .*[━█]")  # of tqdm and Keras: drawn anew at each step
DATE = r"(19|20)\d\d[-/_]?(0[1-9]|1[0-2])[-/_]?(0[1-9]|[12]\d|3[01])"
# Of libraries, at each start; the line of its source may follow.
WARNING = re.compile(r"\S+:\d+: \w*Warning: |[IWE]\d{4} \d\d:\d\d")
PASSING = (  # what the clock says: dates, times of day, durations, speeds, seconds since 1970
    (re.compile(r"(?<![\d.])1[5-9]\d{8}(\.\d+)?(?!\d)"), "TIME"),
    (re.compile(rf"(?<![\d.]){DATE}([T _@-]?\d\d[:_-]?\d\d([:_-]?\d\d)?)?(?!\d)"), "DATE"),
    (re.compile(r"\d{1,3}:\d\d(:\d\d)?([.,]\d+)?"), "TIME"),
    (re.compile(r"\d+([.,]\d+)?(e-?\d+)? ?(µs|us|ms|s|sec|seconds|it/s|s/it|samples/s)(/\w+)?\b"), "TIME"),
)
EVENTS = re.compile(r"(events\.out\.tfevents)[^/]*")  # a new file at each start, which TensorBoard reads as one
SUM = "/.data/serialization_id"  # of PyTorch's files: follows from the rest of them
NUMBER = re.compile(r"[-+\w.]*\d[-+\w.]*")  # in a row; a hash, too
SAYS = re.compile(r"\w")
VARIES = "…"
EXAMPLE = 60  # characters of a row that are shown
CONTEXT = 20  # of them before the place where it differs


@dataclass(frozen=True)
class RunResult:
    """What a run left: the bytes of each file by its path, what it printed, its exit code (None: it was not seen).

    `held`: why it did not start again after a stop.
    """

    files: Mapping[str, bytes]
    output: str
    exit_code: int | None
    held: str = ""


@dataclass(frozen=True)
class Difference:
    """One way in which the stopped run differs. `kind`: start, file, rows, printed lines or exit code."""

    kind: str
    sentence: str


def differences(first: RunResult, second: RunResult, stopped: RunResult) -> list[Difference]:
    """Return how `stopped` differs from two undisturbed runs, beyond what these differ in themselves."""
    if stopped.held:  # all else follows from that
        return [Difference("start", f"it does not start again after a stop: {stopped.held}")]
    runs = [_by_name(run.files) for run in (first, second, stopped)]
    found = _of_names(*runs)
    for name in sorted(set(runs[0]) & set(runs[1]) & set(runs[2])):
        found += _of_contents(name, *(b"".join(files[name]) for files in runs))
    found += _of_rows("printed lines", "what it prints", *(_printed(run.output) for run in (first, second, stopped)))
    if first.exit_code == second.exit_code != stopped.exit_code:
        found.append(Difference("exit code", f"it ends with {stopped.exit_code}, undisturbed with {first.exit_code}"))
    return found


def _by_name(files: Mapping[str, bytes]) -> dict[str, list[bytes]]:
    """Return the contents by name without times; of several with one such name in the order of their paths."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for path in sorted(files):
        found[_steady(path)].append(files[path])
    return dict(found)


def _of_names(
    first: dict[str, list[bytes]], second: dict[str, list[bytes]], stopped: dict[str, list[bytes]]
) -> list[Difference]:
    """Compare names; give those that vary by themselves, as one drawn at random, one name in all runs."""
    found = []
    for name in sorted(first.keys() & second.keys()):
        one = len(first[name])
        now = len(stopped.get(name, ()))
        if one != len(second[name]) or now == one or EVENTS.search(name):
            continue
        how = f"is there {now} times, undisturbed {one}" if now else "is missing"
        found.append(Difference("file", f"{name} {how}"))
    own = [sorted(first.keys() - second.keys()), sorted(second.keys() - first.keys())]
    new = sorted(stopped.keys() - (first.keys() & second.keys()))
    if not any(own):
        return [*found, *(Difference("file", f"{name} is new") for name in new)]
    if len(own[0]) == len(own[1]) == len(new):
        for name, other, another in zip(own[0], own[1], new, strict=True):
            second[name] = second.pop(other)
            stopped[name] = stopped.pop(another)
    elif len(own[0]) == len(own[1]):
        sentence = f"{len(new)} files with a name of their own, undisturbed {len(own[0])}, such as {[*new, *own[0]][0]}"
        found.append(Difference("file", sentence))
    return found


def _of_contents(name: str, first: bytes, second: bytes, stopped: bytes) -> list[Difference]:
    """Compare a file: members of an archive, rows of a text, bytes of anything else."""
    if first == second == stopped or EVENTS.search(name):
        return []
    one, other, now = map(_members, (first, second, stopped))
    if one is not None and other is not None and now is not None:
        found = []
        for member in sorted(one.keys() & other.keys()):
            if member not in now:
                found.append(Difference("file", f"{name}/{member} is missing"))
            else:
                found += _of_contents(f"{name}/{member}", one[member], other[member], now[member])
        return found
    try:
        return _of_rows("rows", name, *(_rows(content) for content in (first, second, stopped)))
    except UnicodeDecodeError:
        pass
    if first == second:
        return [Difference("file", f"{name} holds other bytes than undisturbed")]
    if len(first) == len(second) != len(stopped):
        return [Difference("file", f"{name} holds {len(stopped)} bytes, undisturbed {len(first)}")]
    return []


def _members(content: bytes) -> dict[str, bytes] | None:
    """Return the files in an archive of zip, as NumPy, PyTorch and Keras write them; None if it is none."""
    if not content.startswith(b"PK"):
        return None
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            names = [name for name in archive.namelist() if not name.endswith(SUM)]
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        return None


def _of_rows(
    kind: str, where: str, first: Sequence[str], second: Sequence[str], stopped: Sequence[str]
) -> list[Difference]:
    hides = _varying(first, second)
    first, second, stopped = ([_without_varying(row, hides) for row in rows] for rows in (first, second, stopped))
    one, other, now = Counter(first), Counter(second), Counter(stopped)
    nothing_steady = any(hides.values()) and not any(map(SAYS.search, one))
    if one != other or nothing_steady:  # they vary by themselves: only their number can be compared
        count = len(stopped) - len(first)
        if len(first) == len(second) and count:
            how = f"{-count} fewer" if count < 0 else f"{count} more"
            return [Difference(kind, f"{where}: {how} {kind} than the {len(first)} of an undisturbed run")]
        return []
    missing, more = one - now, now - one
    twice = Counter({row: count for row, count in more.items() if row in one})
    others = more - twice
    if missing and others and missing.total() == more.total() == others.total():  # in place of these
        was, example = _around_difference(next(iter(missing)), next(iter(others)))
        sentence = f"{where}: {others.total()} of {len(first)} {kind} other, such as {example!r} instead of {was!r}"
        return [Difference(kind, sentence)]
    found = []
    for what, rows in (("missing", missing), ("twice", twice), ("other", others)):
        if rows:
            example = next(iter(rows))[:EXAMPLE]
            found.append(
                Difference(kind, f"{where}: {rows.total()} of {len(first)} {kind} {what}, such as {example!r}")
            )
    if not found and list(first) == list(second) != list(stopped):
        found.append(Difference(kind, f"{where}: the same {kind} in another order"))
    return found


def _varying(first: Sequence[str], second: Sequence[str]) -> dict[str, set[int]]:
    """Return which numbers of rows vary between two undisturbed runs: their places, by the row without its numbers."""
    alike: list[dict[str, list[list[str]]]] = []
    for rows in (first, second):
        found: dict[str, list[list[str]]] = defaultdict(list)
        for row in rows:
            found[NUMBER.sub(VARIES, row)].append(NUMBER.findall(row))
        alike.append(found)
    return {
        shape: {
            place
            for one, other in zip(alike[0][shape], alike[1][shape], strict=True)
            for place, pair in enumerate(zip(one, other, strict=True))
            if pair[0] != pair[1]
        }
        for shape in alike[0].keys() & alike[1].keys()
        if len(alike[0][shape]) == len(alike[1][shape])
    }


def _without_varying(row: str, hides: Mapping[str, set[int]]) -> str:
    """Return the row without those of its numbers that vary by themselves."""
    places = hides.get(NUMBER.sub(VARIES, row))
    if not places:
        return row
    at = iter(range(len(row)))
    return NUMBER.sub(lambda number: VARIES if next(at) in places else number[0], row)


def _around_difference(was: str, now: str) -> tuple[str, str]:
    """Return both rows around the first place at which they differ."""
    same = next((place for place, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]), 0)
    begin = max(0, same - CONTEXT)
    return was[begin : begin + EXAMPLE], now[begin : begin + EXAMPLE]


def _steady(text: str) -> str:
    for pattern, word in PASSING:
        text = pattern.sub(word, text)
    return EVENTS.sub(r"\1", text)


def _rows(content: bytes) -> list[str]:
    """Return the lines of a text, also of a packed one. Raises UnicodeDecodeError."""
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            pass
    text = content.decode()
    if "\0" in text:
        raise UnicodeDecodeError("utf-8", content, 0, 1, "not a text")
    return [_steady(line) for line in text.splitlines()]


def _printed(output: str) -> list[str]:
    lines = [line for line in _lines_shown(output) if line.strip() and not OURS.match(line) and not BAR.search(line)]
    return [
        _steady(line)
        for before, line in zip(["", *lines], lines, strict=False)
        if not WARNING.match(line) and not (WARNING.match(before) and line.startswith("  "))
    ]


def _lines_shown(output: str) -> Iterator[str]:
    """Yield the lines as a terminal would show them in the end."""
    for line in output.splitlines():
        yield line.rpartition("\r")[2]
