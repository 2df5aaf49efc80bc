"""Parses the usual outputs of trainings: one table, each row with a name, a pattern and an example that is its test.

Promises: a line counts only if a row matches all of it, so that prose is not taken for progress; iterations are
those of the whole training, `(epoch - 1) * per epoch + done`, wherever an output counts them anew in each epoch; a bar
of validation, of a download or of unknown purpose moves nothing. Pure. Called by `progress.py`.

Groups of a pattern: `epoch` of `epochs`, `i` done of `n` in it (or of all, where a row has no epoch), `values` as
`name: number`, or a value by its own name. An epoch is counted from 1, or from 0 where 0 was seen or the row says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import msgspec

NUMBER = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,3})?"
_VALUE = rf"(?:{NUMBER}|[-+]?(?:nan|inf))"
_NAME = r"[A-Za-z][\w.]{0,40}(?: [A-Za-z][\w.]{0,40}){0,3}"
_VALUES = rf"(?P<values>(?:[\s,:|;–-]++{_NAME}\s?[:=]\s*{_VALUE}(?:%|ms|s)?)+)[\s.|]*"
_BAR = (
    r"\s*[0-9]{1,3}%\|[ #0-9▏▎▍▌▋▊▉█]*\|\s*(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12}) "
    r"\[[0-9:]+<(?:[0-9]+ days?, )?[0-9:?]+,\s*(?P<rate>[0-9.]+|\?) ?(?:it/s|s/it)(?:, (?P<values>[^\]]*))?\]\s*"
)
_METER = rf"\t[A-Z][\w@]{{0,20}}\s+{_VALUE} \(\s*{_VALUE}\)"
_KERAS_TIME = r"(?:ETA: )?[0-9][0-9:]*(?:s|ms|us|m|h|d)?(?: [0-9]+(?:us|ms|s)/(?:step|epoch))?"
_KERAS_DONE = rf" +\[?[━=>.]+\]?(?: (?:- )?{_KERAS_TIME})?| - {_KERAS_TIME}(?: - {_KERAS_TIME})?(?:/step|/epoch)?"
_KERAS_VALUES = rf"(?P<values>(?: - [A-Za-z_][\w.]{{0,40}}: {_VALUE})*)"
_PAIR = re.compile(rf"(?P<name>{_NAME})\s?[:=]\s*(?P<value>{_VALUE})")
_KERAS_BAR = re.compile(r"\s*(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12})\s+[━=>.\[]")
_HF_VALUE = rf"'[A-Za-z_]\w{{0,60}}': '?{_VALUE}'?"
_HF_PAIR = re.compile(rf"'(?P<name>\w+)': '?(?P<value>{_VALUE})")
_NO_MEASURE = re.compile(r".*(?:runtime|per_second|_time|grad_norm|learning_rate)")


class ProgressLine(msgspec.Struct, frozen=True):
    """The content of one line. Lines of one `kind` can be compared with one another (`lost.py`)."""

    kind: str
    step: int | None = None  # iterations done since training began
    total: int | None = None  # of them
    epoch: float | None = None  # epochs done
    values: dict[str, str] = {}
    begins: bool = False  # whether it is printed before what it counts next is done
    closes: bool = False  # whether nothing can follow in this line


@dataclass(frozen=True)
class OutputFormat:
    name: str
    expression: str
    example: str  # the last line of it is the one that the row is about
    first: int | None = None  # number of the first epoch; None: 1, or 0 once that was seen
    samples: bool = False  # whether `i` of `n` are samples, not iterations
    ends: bool = False  # whether it is printed at the end of its epoch; else at its beginning, without `i`

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when a line first needs it: many a sidecar never meets one, and each starts sooner without."""
        return re.compile(self.expression)


KERAS_HEADER, KERAS_BAR, LIGHTNING = "Epoch 3/30", "Keras' bar", "Lightning's bar"
HF_BAR, HF_LENGTH, HF_LOG, HF_EVALUATION = "Hugging Face's bar", "HF's length", "HF's log", "HF's evaluation"

ANOTHER = "another bar"
FIRST = frozenset("TEe{0123456789")  # with one of these a line of each row begins

TABLE = (
    OutputFormat(
        "PyTorch's MNIST example",
        rf"Train Epoch: (?P<epoch>[0-9]{{1,9}}) \[(?P<i>[0-9]{{1,12}})/(?P<n>[0-9]{{1,12}}) \([0-9]{{1,3}}%\)\]"
        rf"\s+Loss: (?P<loss>{_VALUE})",
        "Train Epoch: 5 [1600/4000 (40%)]\tLoss: 0.312",
        first=1, samples=True,
    ),
    OutputFormat(
        "PyTorch's MNIST test",
        rf"Test set: Average loss: (?P<val_loss>{_VALUE}), Accuracy: (?P<right>[0-9]{{1,12}})/(?P<of>[0-9]{{1,12}})"
        r" \([0-9.]{1,5}%\)",
        "Test set: Average loss: 0.0262, Accuracy: 9910/10000 (99%)",
    ),
    OutputFormat(
        "PyTorch's ImageNet example",
        r"Epoch: \[(?P<epoch>[0-9]{1,9})\]\[\s*(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12})\]"
        rf"(?:{_METER})*?\s+Loss\s+(?P<loss>{_VALUE}) \(\s*{_VALUE}\)(?:{_METER})*",
        "Epoch: [2][ 40/100]\tTime  0.612 ( 0.640)\tLoss 3.1e+00 (3.4e+00)\tAcc@1  25.00 ( 21.30)",
        first=0,
    ),
    OutputFormat(
        "an epoch and a step",
        r"Epoch:?\s*\[?(?P<epoch>[0-9]{1,9})/(?P<epochs>[0-9]{1,9})\]?\s*[,|-]?\s*(?:Step|Batch|Iter|Iteration):?\s*"
        rf"\[?(?P<i>[0-9]{{1,12}})/(?P<n>[0-9]{{1,12}})\]?(?:{_VALUES})?",
        "Epoch [3/30], Step [100/600], Loss: 0.4213",
    ),
    OutputFormat(
        "an epoch and its values",
        rf"(?=.*(?i:loss|acc|err|score|ppl|perplexity|mse|mae|f1|auc|iou|bleu))[Ee]poch:?\s*\[?(?P<epoch>[0-9]{{1,9}})(?:/(?P<epochs>[0-9]{{1,9}}))?\]?{_VALUES}",
        "Epoch [3/30], Loss: 0.42",
        ends=True,
    ),
    OutputFormat(KERAS_HEADER, r"Epoch (?P<epoch>[0-9]{1,9})/(?P<epochs>[0-9]{1,9})", "Epoch 3/30"),
    OutputFormat(
        KERAS_BAR,
        r"(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12})"
        rf"(?:{_KERAS_DONE}){_KERAS_VALUES}",
        "Epoch 3/30\n12/60 ━━━━━━━━━━━━━━━━━━━━ 0s 12ms/step - accuracy: 0.9100 - loss: 0.3000",
    ),
    OutputFormat(
        LIGHTNING,
        rf"Epoch (?P<epoch>[0-9]{{1,9}})(?:/(?P<epochs>[0-9]{{1,9}}))?:{_BAR}",
        "Epoch 3:  40%|████      | 24/60 [00:03<00:05, 7.10it/s, v_num=0, train_loss=0.520]",
    ),
    OutputFormat(
        HF_LENGTH,
        r"Total optimization steps = (?P<n>[0-9]{1,3}(?:,[0-9]{3}){0,3})",
        "  Total optimization steps = 1,000",
    ),
    OutputFormat(
        HF_LOG,
        rf"\{{(?=.*'learning_rate')(?:{_HF_VALUE}, )+'epoch': '?(?P<epoch>{NUMBER})'?\}}",
        "{'loss': 0.52, 'grad_norm': 1.31, 'learning_rate': 4.9e-05, 'epoch': 1.2}",
    ),
    OutputFormat(
        HF_EVALUATION,
        rf"\{{'eval_\w+': (?:'?{_VALUE}'?), (?:{_HF_VALUE}, )*'epoch': '?(?P<epoch>{NUMBER})'?\}}",
        "{'eval_loss': 0.41, 'eval_accuracy': 0.87, 'eval_runtime': 1.52, 'epoch': 2.0}",
    ),
    OutputFormat(
        HF_BAR,
        _BAR,
        " 40%|████      | 399/1000 [01:02<01:33,  6.40it/s]\n"
        "{'loss': 0.52, 'grad_norm': 1.31, 'learning_rate': 4.9e-05, 'epoch': 1.2}\n"
        " 40%|████      | 400/1000 [01:02<01:33,  6.40it/s]",
    ),
)  # fmt: skip


class FormatMatcher:
    """Reads lines in their order, since some mean something only behind others."""

    def __init__(self) -> None:
        self._from_zero: set[str] = set()  # rows in which an epoch 0 was seen
        self._length: int | None = None  # of the bar without a name that is a training's
        self._bar: int | None = None  # that of the last one
        self._open: tuple[int, int] | None = None  # the epoch that Keras has begun, of how many

    def new_generation(self) -> None:
        """Another trainer writes from now on."""
        self._open, self._bar = None, None

    def line(self, text: str) -> ProgressLine | None:
        """Parse a whole line; None if no format matches it. An empty report: it matches but changes nothing."""
        text = text.strip()
        if text[:1] in FIRST:
            for row in TABLE:
                if match := row.pattern.fullmatch(text):
                    return self._read(row, match)
        return ProgressLine(ANOTHER) if "%|" in text else None

    def unfinished(self, text: str) -> ProgressLine | None:
        """Parse an incomplete line. A bar's line ends only when the next one begins: a step must not wait for that."""
        if text.rstrip().endswith("]") and "%|" in text:
            found = self.line(text)
            return None if found is None or found.kind == ANOTHER else msgspec.structs.replace(found, closes=True)
        match = _KERAS_BAR.match(text)
        return self._in_open_epoch(match, {}) if match else None

    def _read(self, row: OutputFormat, match: re.Match[str]) -> ProgressLine:
        groups = {name: given for name, given in match.groupdict().items() if given is not None}
        match row.name:
            case "HF's length":
                self._length = int(groups["n"].replace(",", ""))
                return ProgressLine(row.name)
            case "HF's log" | "HF's evaluation":
                return self._hugging_face(row, match)
            case "Keras' bar":
                return self._keras(match)
        if groups.get("rate") == "?":
            return ProgressLine(row.name)  # nothing of it is done yet
        if row.name == HF_BAR:
            return self._unnamed_bar(row, int(groups["i"]), int(groups["n"]))
        values = _pairs(groups.pop("values", "")) | {k: v for k, v in groups.items() if "loss" in k}
        if "of" in groups and int(groups["of"]) > 0:
            values["val_accuracy"] = str(int(groups["right"]) / int(groups["of"]))
        return self._counted(row, groups, values) if "epoch" in groups else ProgressLine(row.name, values=values)

    def _counted(self, row: OutputFormat, groups: dict[str, str], values: dict[str, str]) -> ProgressLine:
        number, epochs = int(groups["epoch"]), int(groups["epochs"]) if "epochs" in groups else None
        done = number - self._first(row, number, values)
        if epochs is not None and number > epochs:
            return ProgressLine(row.name)
        if row.name == KERAS_HEADER:
            self._open = (number, epochs or 0)
        if "i" not in groups:
            return ProgressLine(row.name, epoch=float(done + row.ends), values=values, begins=not row.ends)
        i, n = int(groups["i"]), int(groups["n"])
        if not 0 <= i <= n or n == 0:
            return ProgressLine(row.name)
        if row.samples:
            return ProgressLine(row.name, epoch=done + i / n, values=values)
        return _steps(row.name, done, i, n, epochs, values)

    def _first(self, row: OutputFormat, number: int, values: dict[str, str]) -> int:
        if row.first is not None:
            return row.first
        if number == 0 or (row.name == LIGHTNING and "v_num" in values):
            self._from_zero.add(row.name)
        return 0 if row.name in self._from_zero else 1

    def _keras(self, match: re.Match[str]) -> ProgressLine:
        found = self._in_open_epoch(match, _pairs(match["values"]))
        if found.step is not None and match["i"] == match["n"]:
            self._open = None  # a bar without a header of its own is evaluate's or predict's, not training's
        return found

    def _in_open_epoch(self, match: re.Match[str], values: dict[str, str]) -> ProgressLine:
        i, n = int(match["i"]), int(match["n"])
        if self._open is None or self._open[0] < 1 or not 0 < i <= n:  # of an epoch that was validated, or evaluate's
            return ProgressLine(KERAS_BAR, values=values if any(name.startswith("val_") for name in values) else {})
        return _steps(KERAS_BAR, self._open[0] - 1, i, n, self._open[1], values)

    def _unnamed_bar(self, row: OutputFormat, i: int, n: int) -> ProgressLine:
        """Anything may have a bar without a name: only that of a length that is known to be the training's counts."""
        self._bar = n
        return ProgressLine(row.name, i, n) if n == self._length and 0 < i <= n else ProgressLine(row.name)

    def _hugging_face(self, row: OutputFormat, match: re.Match[str]) -> ProgressLine:
        """Its trainer logs while only the bar of training is shown."""
        pairs = {one["name"]: one["value"] for one in _HF_PAIR.finditer(match[0])}
        if row.name == HF_LOG and "loss" in pairs and self._bar is not None:
            self._length = self._bar
        values = {name: given for name, given in pairs.items() if name != "epoch" and not _NO_MEASURE.fullmatch(name)}
        return ProgressLine(row.name, epoch=float(match["epoch"]), values=values)


def _steps(kind: str, done: int, i: int, n: int, epochs: int | None, values: dict[str, str]) -> ProgressLine:
    """`i` of `n` iterations of an epoch, after `done` whole ones of `epochs`."""
    if i == 0:
        return ProgressLine(kind)
    return ProgressLine(kind, done * n + i, epochs * n if epochs else None, done + i / n, values)


def _pairs(text: str | None) -> dict[str, str]:
    """`name: number` or `name=number`, the names as measures are usually called."""
    found = _PAIR.finditer(text or "")
    return {one["name"].lower().rstrip(".").replace(". ", "_").replace(" ", "_"): one["value"] for one in found}
