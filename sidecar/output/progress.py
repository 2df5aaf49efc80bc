"""Reads training progress from what the trainer prints.

Promises: any text may be fed and nothing raises; iterations and epochs never go back, unless a better count of
iterations replaces one that may restart; once a hook has reported, no counter printed by the script moves iterations,
speed or lost work; a printed configuration is not progress; impossible numbers (NaN, 1e300, a negative step) are
dropped field by field. Pure: no clock, no files.

Called by `service.py` and `reshape_papers/recordings/recording.py`; understands plain `key=value` lines, JSON lines,
the common training outputs (`formats.py`) and a user's pattern (`algorithms.md` 1.3, the periodic report). Times are
CLOCK_BOOTTIME seconds. A line's own time (`time=…`) takes precedence over the time at which it arrived.
"""

from __future__ import annotations

import codecs
import functools
import math
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from reshape_hooks.plain import BEHIND_TRAINING, REPORTS_END
from sidecar.output.formats import KERAS_BAR, NUMBER, FormatMatcher, ProgressLine
from sidecar.output.lost import LostWorkCounter
from sidecar.protocol import Lost, Progress

LINE_LIMIT = 4096  # characters; a longer line is no report
MOST_SAVED = 16  # checkpoints whose time is kept
WINDOW = 32  # reports that count for seconds per iteration, or more: those of the last two reads of the output,
WINDOW_S = 5.0  # or of this long, since a pause in a training that reports every millisecond is not its speed
SPACING_S = WINDOW_S / WINDOW  # reports closer than this to the previous one count as one
MOST = 10**12  # a count or value above this is a misread line
REPORT_S = 600.0  # within which a hook's report arrives: an older time is a step's duration, not a timestamp
MOST_SEARCHED = 4 * 1024 * 1024  # bytes of output without hook reports to search for the newest count
CLOCK_SLACK_S = 1.0  # how far a line's own time may be ahead of its arrival

STEP_KEYS = ("step", "iteration", "iter", "global_step")
TOTAL_KEYS = ("total", "total_steps", "total_iterations")
PLAIN_VALUES = ("loss", "accuracy", "acc")  # training accuracy stalls while the loss is still informative
LAST = 10  # after all ranks
# Counts of iterations, best first: a hook's, Keras' own, a printed one, one that may restart, epochs.
BY_HOOK, BY_KERAS, PRINTED, MAY_BEGIN_ANEW, ONLY_EPOCHS, ANYTHING = range(6)

_BREAK = re.compile(r"[\r\n\x08\x1e]+")
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_PAIR = re.compile(rf"(?<![\w.])([A-Za-z_]\w{{0,40}})=({NUMBER})(?![\w.])")
_BY_HOOK = re.compile(r"(?:[A-Za-z_]\w{0,40}=[^\s=]+ )+time=[0-9]{1,12}\.[0-9]{6}$")  # as `plain.say` writes it
_REPORT_END = re.compile(rb" time=[0-9]{1,12}\.[0-9]{6}(?=\n)")
_CALL = re.compile(r"[A-Za-z_]\w*\([^()]*=")  # as in Namespace(lr=0.1), a printed configuration
_CHECKPOINT = re.compile(r"(?<!\S)checkpoint=([^\s/]{1,200})(?!\S)")
_TOOK = re.compile(rf"(?<!\S)took=({NUMBER})(?!\S)")
_SPLIT = re.compile(r"(?:train|training|eval|valid|validation)_(?=.)")  # the data split, as a name's prefix
_VALIDATION = re.compile(r"val_[A-Za-z0-9_]{1,40}")


class ProgressReader:
    """Takes the trainer's output in order; `progress` is what has been read so far."""

    def __init__(self, pattern: str | None = None, measure: str = "", never: str = "") -> None:
        """Set up a reader. Raises `re.error` if `pattern` is invalid.

        `pattern`: a regular expression with some of the groups iteration, epoch, value, total. `measure`: the value
        that ranks first. `never`: a name containing it ranks last.
        """
        self._measure, self._never = measure, never
        self.progress = Progress()
        self.saved: dict[str, float] = {}  # the newest checkpoints announced: name -> completion time
        self._pattern = re.compile(pattern) if pattern else None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest, self._skipping = "", False
        self._spawn_at: float | None = None
        self._window: deque[tuple[int, float, int]] = deque()  # newest step at each time, number of reports merged
        self._reports = 0  # in the window
        self._newest_step: int | None = None
        self._newest_kind = ""  # the kind of line that reported it
        self._hook_tells_epochs = False
        self._formats, self._losses = FormatMatcher(), LostWorkCounter()
        self._counted_by = ANYTHING  # quality of the best count of iterations

    @property
    def lost(self) -> Lost | None:
        """Return the work that this generation repeated."""
        return self._losses.lost

    def new_generation(self, spawn_at: float) -> None:
        """Begin a new trainer: times restart, counts stay."""
        p = self.progress
        last = p.last_step_at if p.last_step_at is not None else p.previous_last_step_at
        self.progress = msgspec.structs.replace(
            p, seconds_per_iteration=None, first_step_at=None, last_step_at=None, previous_last_step_at=last
        )
        self._spawn_at, self._newest_step = spawn_at, None
        self._empty_window()

    def new_output(self, generation: int | None) -> None:
        """Begin the output of that generation; None: where it begins is unknown."""
        self._formats.new_generation()
        self._losses.new_generation(generation)

    def feed(self, chunk: bytes, at: float, late: bool = False) -> None:
        """Take output that arrived at `at`, cut anywhere. `late`: printed earlier, so only a line's own time counts."""
        *lines, self._rest = _BREAK.split(self._rest + self._decode(chunk))
        for line in lines:
            if not self._skipping:
                self.line(line, at, late)
            self._skipping = False
        if len(self._rest) > LINE_LIMIT:
            self._rest, self._skipping = "", True
        elif self._pattern is None and (report := self._formats.unfinished(_ANSI.sub("", self._rest))):
            self._take(report, None if late else at)
            self._rest = "" if report.closes else self._rest

    def flush(self, at: float, late: bool = False) -> None:
        """Take the rest as a whole line: the trainer has ended."""
        rest, self._rest = self._rest, ""
        if not self._skipping:
            self.line(rest, at, late)
        self._skipping = False

    def find_newest_count(self, pieces: Iterator[bytes], at: float) -> None:
        """Find the newest count of a trainer that has ended and whose output was fed only in part.

        `pieces`: the output, from its end backward. All of it is searched for a hook's report, and some megabytes for
        whatever counts if there is none.
        """
        searched = 0
        printed = Progress()
        for piece in pieces:
            if report := "" if self._pattern else _newest_report(piece):
                self.line(report, at, late=True)
                return
            if self._counted_by > BY_HOOK and searched < MOST_SEARCHED and not printed.iterations:
                printed = self._counted_alone(piece, at)
            searched += len(piece)
        if printed.iterations:
            self._take_newest(printed)

    def _counted_alone(self, piece: bytes, at: float) -> Progress:
        """Return what this piece alone reports; nothing if its count is worse than the known one."""
        alone = ProgressReader(self._pattern.pattern if self._pattern else None)
        alone.feed(piece + b"\n", at, late=True)
        return alone.progress if alone._counted_by <= self._counted_by else Progress()

    def _take_newest(self, found: Progress) -> None:
        p = self.progress
        self.progress = msgspec.structs.replace(
            p,
            iterations=max(p.iterations, found.iterations),
            total_iterations=found.total_iterations or p.total_iterations,
            epochs=max(p.epochs, found.epochs),
        )

    def line(self, text: str, at: float, late: bool = False) -> None:
        """Take one line, or the whole of a progress file."""
        if not text or len(text) > LINE_LIMIT:
            return
        text = _ANSI.sub("", text).strip()
        by_hook = _BY_HOOK.search(text) if text.endswith(tuple("0123456789")) and "time=" in text else None
        if by_hook and self._pattern is None:
            text = by_hook[0]  # without unterminated script output before it
        known = self._formats.line(text) if self._pattern is None and not by_hook else None
        pairs = (
            {} if known or _CALL.search(text) else _json(text) if text.startswith("{") else dict(_PAIR.findall(text))
        )
        own = number(pairs.get("time"))
        when = own if own is not None and 0 < own <= at + CLOCK_SLACK_S else None if late else at
        if marked := "checkpoint=" in text and _CHECKPOINT.search(text):
            if (took := _TOOK.search(text)) and (save_s := number(took[1])) is not None:
                self.progress = msgspec.structs.replace(self.progress, save_s=max(0.0, save_s))
            if when is not None:
                self.saved = dict([*self.saved.items(), (marked[1], when)][-MOST_SAVED:])
            self.saved_step(marked[1], count(pairs.get("step")) or 0)
        elif by_hook and REPORTS_END in text:
            self._counted_by = ANYTHING
        elif self._pattern is not None:
            found = self._pattern.search(text)
            self._take(_report("pattern", found.groupdict() if found else {}), when)
        else:
            report = known or _report(" ".join(sorted(pairs)), pairs)
            clocked = own is not None and own == when and (late or at - own < REPORT_S)
            self._take(msgspec.structs.replace(report, by_hook=bool(by_hook and clocked)), when)

    def _take(self, report: ProgressLine, at: float | None) -> None:
        p, epoch = self.progress, number(report.epoch)
        step, total = self._iterations(report)
        p = self.progress
        self.progress = msgspec.structs.replace(
            p,
            iterations=max(p.iterations, count(step) or 0),
            total_iterations=count(total) or (None if report.open_end and step is not None else p.total_iterations),
            epochs=max(p.epochs, (epoch or 0.0) if report.by_hook or not self._hook_tells_epochs else 0.0),
        )
        self._value(report.values)
        outranked = self._counted_by <= BY_KERAS and _rank_of_count(report) > self._counted_by
        if not report.weak and not outranked:  # a weak one may restart though no work is repeated
            self._losses.report(report)
        if step is not None and at is not None:
            self._stepped(step, at, report.kind)

    def saved_step(self, name: str, done: int) -> None:
        """Count what a checkpoint holds: the lines of its steps may be lost if a shim was killed.

        Only if its hook counts the same way, and not for a later training of the job, which counts from its own start.
        """
        p = self.progress
        if self._counted_by <= PRINTED and BEHIND_TRAINING not in name and done <= (p.total_iterations or 0):
            self.progress = msgspec.structs.replace(p, iterations=max(p.iterations, done))

    def _iterations(self, report: ProgressLine) -> tuple[int | None, int | None]:
        """Return step and total, or neither if a better count is known. Epochs count where nothing else does."""
        step, total = report.step, report.total
        rank = _rank_of_count(report)
        if step is not None and report.by_hook and report.epoch is not None:
            self._hook_tells_epochs = True
        if step is None and report.epochs and (report.epoch or 0.0) >= 1:
            step, total, rank = int(report.epoch or 0.0), report.epochs, ONLY_EPOCHS
        if step is None:
            return None, None if self._counted_by <= BY_KERAS else total
        if rank > self._counted_by:
            return None, None
        if rank < self._counted_by <= ONLY_EPOCHS:
            self.progress = msgspec.structs.replace(
                self.progress, iterations=0, total_iterations=None, seconds_per_iteration=None
            )
            self._newest_step = None
            self._empty_window()
            if rank <= BY_KERAS:
                self._losses.begin_anew()
        self._counted_by = rank
        return step, total

    def _value(self, pairs: dict[str, Any]) -> None:
        """Take the best-ranked value; a lower-ranked one never replaces it, so that a curve shows one measure only."""
        have = self._rank(self.progress.value_name)
        ranked = ((r, name) for name in pairs if (r := self._rank(name)) is not None and (have is None or r <= have))
        for _, name in sorted(ranked):
            if (value := number(pairs[name])) is not None:
                seen = self.progress.evaluations + 1
                self.progress = msgspec.structs.replace(self.progress, value=value, value_name=name, evaluations=seen)
                return

    def _rank(self, name: str) -> int | None:
        if self._measure and name == self._measure:
            return -1
        found = rank(name)
        return found if found is None or not self._never or self._never not in name else LAST + found

    def _stepped(self, step: int, at: float, kind: str) -> None:
        if self._spawn_at is None:
            return  # reread after a restart, of an unknown trainer: the clock may be another machine's
        p = self.progress
        if at < self._spawn_at:
            last = max(at, p.previous_last_step_at or at)
            self.progress = msgspec.structs.replace(p, previous_last_step_at=last)
            return
        if self._newest_step is not None and step == self._newest_step:
            return
        if self._newest_step is not None and step < self._newest_step:
            if kind != self._newest_kind or step == self._newest_step - 1:
                return  # another counter, as of a validation or a second process: not this one restarting
            self._empty_window()
        if p.first_step_at is not None:  # the first step includes compilation and cold caches: it is not the speed
            self._extend_window(step, at)
        self._newest_step = step
        self._newest_kind = kind
        first = p.first_step_at if p.first_step_at is not None else at
        last = max(at, p.last_step_at or at)
        gap_s = max(p.longest_gap_s, last - (p.last_step_at or last))
        self.progress = msgspec.structs.replace(
            p, first_step_at=first, last_step_at=last, longest_gap_s=gap_s, seconds_per_iteration=self._speed()
        )

    def _extend_window(self, step: int, at: float) -> None:
        """Add a step. Of steps at about the same time, only the newest is dated."""
        window = self._window
        close = len(window) > 1 and window[-1][1] - window[-2][1] < SPACING_S
        same = window.pop()[2] if close or (window and window[-1][1] == at) else 0
        window.append((step, at, same + 1))
        self._reports += 1
        while len(window) > 2 and self._reports > WINDOW and at - window[1][1] >= WINDOW_S:
            self._reports -= window.popleft()[2]

    def _empty_window(self) -> None:
        self._window.clear()
        self._reports = 0

    def _speed(self) -> float | None:
        if len(self._window) < 2:
            return self.progress.seconds_per_iteration
        (first, began, _), (last, ended, _) = self._window[0], self._window[-1]
        if last <= first or ended <= began:
            return self.progress.seconds_per_iteration
        return (ended - began) / (last - first)


def _newest_report(piece: bytes) -> str:
    """Return the last report line by a hook that has a step; empty if there is none."""
    for end in reversed(list(_REPORT_END.finditer(piece))):
        line = piece[piece.rfind(b"\n", 0, end.start()) + 1 : end.end()]
        report = _BY_HOOK.search(line[-LINE_LIMIT:].decode("utf-8", "replace")) if b"step=" in line else None
        if report and not report[0].startswith("checkpoint="):
            return report[0]
    return ""


def _rank_of_count(report: ProgressLine) -> int:
    """Return the rank of this line's count of iterations; lower is better."""
    if report.by_hook:
        return BY_HOOK
    if report.weak:
        return MAY_BEGIN_ANEW
    return BY_KERAS if report.kind == KERAS_BAR and report.total else PRINTED


def _report(kind: str, pairs: dict[str, Any]) -> ProgressLine:
    """Return the step, total and values among name-value pairs."""
    steps = [pairs[key] for key in STEP_KEYS if key in pairs]
    step, total = count(steps[0] if steps else None), count(next((pairs[k] for k in TOTAL_KEYS if k in pairs), None))
    if len({count(one) for one in steps}) > 1 or (step is not None and total is not None and step > total > 0):
        return ProgressLine(kind)  # a printed configuration: no training has two step counts, or more than all
    return ProgressLine(kind, step, total, number(pairs.get("epoch")), pairs)


@functools.lru_cache(maxsize=256)  # the same few names stand in each line
def rank(name: str) -> int | None:
    """Return the rank of a measure of success: lower is better; None: not a measure."""
    name = _plain(name).removesuffix("_step")
    if name == "value":
        return 0
    if name in ("val_accuracy", "val_acc"):
        return 1
    if name == "val_loss":
        return 2
    if _VALIDATION.fullmatch(name):
        return 3
    return 4 + PLAIN_VALUES.index(name) if name in PLAIN_VALUES else None


def _plain(name: str) -> str:
    found = _SPLIT.match(name)
    return name if found is None else ("" if found[0].startswith("train") else "val_") + name[found.end() :]


def number(given: Any) -> float | None:
    """Return a finite number of plausible size, else None."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        return None
    try:
        value = float(given)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and abs(value) <= MOST else None


def count(given: Any) -> int | None:
    """Return a non-negative integer, else None."""
    value = number(given)
    return int(value) if value is not None and value >= 0 and value.is_integer() else None


def _json(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return found if isinstance(found, dict) else {}
