"""Compares what a stopped and resumed training left behind with what undisturbed ones did. Pure.

Promises: what already differs between two undisturbed runs is not held against a stop; times, speeds and our own lines
are no difference. Called by `rehearsal`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OURS = re.compile(r"^(?:reshape: |checkpoint=\S+ step=|step=\d+.* time=\d)")
PASSING = (  # what the clock says: dates, times of day, durations, speeds, seconds since 1970
    (re.compile(r"\d{4}[-/_]?\d\d[-/_]?\d\d([T _-]\d\d[:_-]?\d\d([:_-]?\d\d)?)?"), "DATE"),
    (re.compile(r"\d{1,3}:\d\d(:\d\d)?([.,]\d+)?"), "TIME"),
    (re.compile(r"\d+([.,]\d+)?(e-?\d+)? ?(µs|us|ms|s|sec|seconds|it/s|s/it|samples/s)(/\w+)?\b"), "TIME"),
    (re.compile(r"\b1[5-9]\d{8}(\.\d+)?\b"), "TIME"),
)
EXAMPLE = 60  # characters of a row that are shown


@dataclass(frozen=True)
class RunResult:
    """What a run left: the bytes of each file by its path, what it printed, its exit code (None: it was not seen)."""

    files: Mapping[str, bytes]
    output: str
    exit_code: int | None


@dataclass(frozen=True)
class Difference:
    """One way in which the stopped run differs. `kind`: file, rows, printed lines or exit code."""

    kind: str
    sentence: str


def differences(first: RunResult, second: RunResult, stopped: RunResult) -> list[Difference]:
    """Return how `stopped` differs from two undisturbed runs, beyond what these differ in themselves."""
    found = _of_names(first, second, stopped)
    names = [{_steady(path): content for path, content in run.files.items()} for run in (first, second, stopped)]
    for name in sorted(set(names[0]) & set(names[1]) & set(names[2])):
        found += _of_rows("rows", name, *(_rows(files[name]) for files in names))
    found += _of_rows("printed lines", "what it prints", *(_printed(run.output) for run in (first, second, stopped)))
    if first.exit_code == second.exit_code != stopped.exit_code:
        found.append(Difference("exit code", f"it ends with {stopped.exit_code}, undisturbed with {first.exit_code}"))
    return found


def _of_names(first: RunResult, second: RunResult, stopped: RunResult) -> list[Difference]:
    names = [Counter(map(_steady, run.files)) for run in (first, second, stopped)]
    found = []
    for name in sorted(names[0].keys() | names[1].keys() | names[2].keys()):
        one, other, now = (count[name] for count in names)
        if one != other or now == one:
            continue
        if not one:
            found.append(Difference("file", f"{name} is new"))
        elif not now:
            found.append(Difference("file", f"{name} is missing"))
        else:
            found.append(Difference("file", f"{name} is there {now} times, undisturbed {one}"))
    return found


def _of_rows(
    kind: str, where: str, first: Sequence[str], second: Sequence[str], stopped: Sequence[str]
) -> list[Difference]:
    one, other, now = Counter(first), Counter(second), Counter(stopped)
    if one != other:  # they vary by themselves: only their number can be compared
        count = len(stopped) - len(first)
        if len(first) == len(second) and count:
            how = f"{-count} fewer" if count < 0 else f"{count} more"
            return [Difference(kind, f"{where}: {how} {kind} than the {len(first)} of an undisturbed run")]
        return []
    missing, more = one - now, now - one
    twice = Counter({row: count for row, count in more.items() if row in one})
    others = more - twice
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


def _steady(text: str) -> str:
    for pattern, word in PASSING:
        text = pattern.sub(word, text)
    return text


def _rows(content: bytes) -> list[str]:
    try:
        return [_steady(line) for line in content.decode().splitlines()]
    except UnicodeDecodeError:
        return [f"{len(content)} bytes, {hash(content):x}"]


def _printed(output: str) -> list[str]:
    lines = [line.rpartition("\r")[2] for line in output.splitlines()]
    return [_steady(line) for line in lines if line.strip() and not OURS.match(line)]
