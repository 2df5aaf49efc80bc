"""Reads how far training has come out of what the trainer prints.

Promise: any text may be fed and nothing is raised; iterations and epochs never go back; numbers
that cannot be (NaN, 1e300, a negative step) are dropped field by field. Pure: no clock, no files.
Called by `service.py`; understands plain `key=value` lines, JSON lines, Keras' own output and a
user's pattern (`algorithms.md` 1.3, the periodic report).

Times are CLOCK_BOOTTIME seconds. A line may carry its own (`time=…`), which then counts instead of
the time at which it arrived.
"""

from __future__ import annotations

import codecs
import math
import re
from collections import deque
from typing import Any

import msgspec

from sidecar.protocol import Progress

LINE_LIMIT = 4096  # characters; a longer line is no report
MOST_SAVED = 16  # checkpoints whose time is kept
WINDOW = 32  # steps that count for seconds per iteration
MOST = 10**12  # a count or value above this is a misread line
CLOCK_SLACK_S = 1.0  # how far a line's own time may lie ahead of its arrival

STEP_KEYS = ("step", "iteration", "iter", "global_step")
TOTAL_KEYS = ("total", "total_steps", "total_iterations")
PLAIN_VALUES = ("accuracy", "acc", "loss")

_BREAK = re.compile(r"[\r\n\x08]+")
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_NUMBER = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,3})?"
_PAIR = re.compile(rf"(?<![\w.])([A-Za-z_]\w{{0,40}})=({_NUMBER})(?![\w.])")
_CHECKPOINT = re.compile(r"(?<!\S)checkpoint=([^\s/]{1,200})(?!\S)")
_EPOCH = re.compile(r"^\s*Epoch ([0-9]{1,9})/([0-9]{1,9})\s*$")
_BAR = re.compile(r"^\s*([0-9]{1,12})/([0-9]{1,12})\s+(?:[━=>.\[]| ?- )")
_VALIDATION = re.compile(r"val_[A-Za-z0-9_]{1,40}")
_METRIC = re.compile(rf" - ([A-Za-z_]\w{{0,40}}): ({_NUMBER})(?![\w.])")


class Reader:
    """Fed with the trainer's output in order; `progress` is what it says so far."""

    def __init__(self, pattern: str | None = None) -> None:
        """`pattern`: a regular expression with groups out of iteration, epoch, value, total. `re.error` if bad."""
        self.progress = Progress()
        self.saved: dict[str, float] = {}  # the newest checkpoints announced: name -> when it was complete
        self._pattern = re.compile(pattern) if pattern else None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest, self._skipping = "", False
        self._spawn_at: float | None = None
        self._window: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._newest_step: int | None = None
        self._keras = _Keras()

    def new_generation(self, spawn_at: float) -> None:
        """A new trainer was spawned: times start afresh, counts stay."""
        p = self.progress
        last = p.last_step_at if p.last_step_at is not None else p.previous_last_step_at
        self.progress = msgspec.structs.replace(
            p, seconds_per_iteration=None, first_step_at=None, last_step_at=None, previous_last_step_at=last
        )
        self._spawn_at, self._newest_step, self._keras = spawn_at, None, _Keras()
        self._window.clear()

    def feed(self, chunk: bytes, at: float, late: bool = False) -> None:
        """Output as it came, cut anywhere, at `at`. `late`: printed long before, so only a line's own time counts."""
        *lines, self._rest = _BREAK.split(self._rest + self._decode(chunk))
        for line in lines:
            if not self._skipping:
                self.line(line, at, late)
            self._skipping = False
        if len(self._rest) > LINE_LIMIT:
            self._rest, self._skipping = "", True
        elif self._pattern is None and (bar := self._keras.bar(_ANSI.sub("", self._rest))):
            # A bar ends only when the next one begins: its step must not wait for that.
            self._take(bar, None if late else at)

    def flush(self, at: float, late: bool = False) -> None:
        """The trainer has ended: what is left is a whole line."""
        rest, self._rest = self._rest, ""
        if not self._skipping:
            self.line(rest, at, late)
        self._skipping = False

    def line(self, text: str, at: float, late: bool = False) -> None:
        """One line, or the whole of a progress file."""
        if not text or len(text) > LINE_LIMIT:
            return
        text = _ANSI.sub("", text).strip()
        pairs = _json(text) if text.startswith("{") else dict(_PAIR.findall(text))
        own = number(pairs.get("time"))
        when = own if own is not None and 0 < own <= at + CLOCK_SLACK_S else None if late else at
        if marked := _CHECKPOINT.search(text):
            if when is not None:
                self.saved = dict([*self.saved.items(), (marked[1], when)][-MOST_SAVED:])
        elif self._pattern is not None:
            found = self._pattern.search(text)
            self._take(found.groupdict() if found else {}, when)
        else:
            self._take(pairs or self._keras.line(text), when)

    def _take(self, pairs: dict[str, Any], at: float | None) -> None:
        p = self.progress
        step = count(next((pairs[key] for key in STEP_KEYS if key in pairs), None))
        total = count(next((pairs[key] for key in TOTAL_KEYS if key in pairs), None))
        epoch = number(pairs.get("epoch"))
        self.progress = msgspec.structs.replace(
            p,
            iterations=max(p.iterations, step or 0),
            total_iterations=total or p.total_iterations,
            epochs=max(p.epochs, epoch or 0.0),
        )
        self._value(pairs)
        if step is not None and at is not None:
            self._stepped(step, at)

    def _value(self, pairs: dict[str, Any]) -> None:
        """Once a better-ranked value was seen a lesser one never replaces it: a curve of two measures is none."""
        known = [(rank(name), name, number(given)) for name, given in pairs.items() if rank(name) is not None]
        usable = [(r, name, value) for r, name, value in known if value is not None and r is not None]
        if not usable:
            return
        best, name, value = min(usable)
        have = rank(self.progress.value_name)
        if have is None or best <= have:
            seen = self.progress.evaluations + 1
            self.progress = msgspec.structs.replace(self.progress, value=value, value_name=name, evaluations=seen)

    def _stepped(self, step: int, at: float) -> None:
        if self._spawn_at is None:
            return  # read again after a restart of ours, of a trainer that is not known: its clock may be another's
        p = self.progress
        if at < self._spawn_at:
            last = max(at, p.previous_last_step_at or at)
            self.progress = msgspec.structs.replace(p, previous_last_step_at=last)
            return
        if self._newest_step is not None and step == self._newest_step:
            return
        if self._newest_step is not None and step < self._newest_step:
            self._window.clear()
        if p.first_step_at is not None:  # the first step pays for compiling and caches: it is not the speed
            self._window.append((step, at))
        self._newest_step = step
        first = p.first_step_at if p.first_step_at is not None else at
        self.progress = msgspec.structs.replace(
            p, first_step_at=first, last_step_at=max(at, p.last_step_at or at), seconds_per_iteration=self._speed()
        )

    def _speed(self) -> float | None:
        if len(self._window) < 2:
            return self.progress.seconds_per_iteration
        (first, began), (last, ended) = self._window[0], self._window[-1]
        if last <= first or ended <= began:
            return self.progress.seconds_per_iteration
        return (ended - began) / (last - first)


class _Keras:
    """Keras' own output: `Epoch 3/10`, then `12/100 ━━━ 0s 12ms/step - accuracy: 0.91 - loss: 0.3`."""

    def __init__(self) -> None:
        self._epoch: tuple[int, int] | None = None  # the open one, of how many

    def line(self, text: str) -> dict[str, Any]:
        if header := _EPOCH.match(text):
            self._epoch = (int(header[1]), int(header[2]))
            return {}
        found = self.bar(text)
        if not _BAR.match(text):
            return {}
        if found and found["step"] == found["ends"]:
            self._epoch = None  # a bar without a header of its own is evaluate's or predict's, not training's
        return found | dict(_METRIC.findall(text))

    def bar(self, text: str) -> dict[str, Any]:
        """Only the counts, so that an unfinished line will do."""
        match = _BAR.match(text)
        if match is None or self._epoch is None:
            return {}
        (epoch, epochs), done, steps = self._epoch, int(match[1]), int(match[2])
        if epoch < 1 or not 0 < done <= steps:
            return {}
        before = (epoch - 1) * steps
        return {
            "step": before + done,
            "ends": before + steps,
            "total": epochs * steps,
            "epoch": epoch - 1 + done / steps,
        }


def rank(name: str) -> int | None:
    """Which measure says most of the training's success: lower is better, None is no measure."""
    if name == "value":
        return 0
    if name in ("val_accuracy", "val_acc"):
        return 1
    if name == "val_loss":
        return 2
    if _VALIDATION.fullmatch(name):
        return 3
    return 4 + PLAIN_VALUES.index(name) if name in PLAIN_VALUES else None


def number(given: Any) -> float | None:
    """A finite number of believable size, else None."""
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        return None
    try:
        value = float(given)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and abs(value) <= MOST else None


def count(given: Any) -> int | None:
    """A whole number from 0, else None."""
    value = number(given)
    return int(value) if value is not None and value >= 0 and value.is_integer() else None


def _json(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}
    return found if isinstance(found, dict) else {}
