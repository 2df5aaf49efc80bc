"""Parses the common output formats of trainings.

They are one table, each row with a name, a pattern and an example that is its test. Promises: a line counts only if a
row matches all of it, so that prose is not taken for progress; iterations count the whole training, `(epoch - 1) * per
epoch + done`, where an output restarts them in each epoch; a progress bar of a validation, a download or unknown
purpose changes nothing. Pure. Called by `progress.py`.

What a script's logger puts before a line (time, level, module) is skipped. Groups of a pattern: `epoch` of `epochs`,
`i` done of `n` in it (or of all, where a row has no epoch), `values` as `name: number`, or a loss by its own name.
Epochs count from 1, or from 0 where epoch 0 was seen or the row says so.
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
_SPACED = rf"(?P<values>(?:[\s,:|;–-]++(?!(?i:step|iter)){_NAME}(?:\s?[:=]\s*|\s){_VALUE}(?:%|ms|s)?)+)[\s.|]*"
_BAR = (
    r"\s*[0-9]{1,3}%\|[ #0-9▏▎▍▌▋▊▉█]*\|\s*(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12}) "
    r"\[[0-9:]+<(?:[0-9]+ days?, )?[0-9:?]+,\s*(?P<rate>[0-9.]+|\?) ?(?:it/s|s/it)(?:, (?P<values>[^\]]*))?\]\s*"
)
_SLASH = r"\s*+\[?\s*+(?P<i>[0-9]{1,12})\s{0,8}(?:/|\sof\s)\s{0,8}(?P<n>[0-9]{1,12})\s{0,8}\]?"
_MEASURED = r"(?=.*(?i:loss|acc|err|score|ppl|perplexity|mse|mae|f1|auc|iou|bleu))"
_LOGGER_TIME = (
    r"(?:[0-9]{4}[-/])?[0-9]{1,2}[-/][0-9]{1,2}[T ]+[0-9]{1,2}:[0-9]{2}:[0-9]{2}"
    r"(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9:]{4,6})?"
)
_LEVEL = r"\[?(?:DEBUG|INFO|WARNING)\]?"
_WORD = r"(?:\[?[\w.<>:/-]{1,80}\]?|\[[\w.<>:/ -]{1,80}\])"
_APART = r"[\s|:-]{0,8}"
_LOGGER = re.compile(
    rf"\[(?:INFO|WARNING)\|[\w.]{{1,80}}:[0-9]+\] {_LOGGER_TIME} >> "
    rf"|(?:\[?{_LOGGER_TIME}\]?{_APART})?(?:{_WORD}[\s|-]{{0,8}})?{_LEVEL}{_APART}"
    rf"|\[{_LOGGER_TIME}(?: [\w.]{{1,80}})?\]:?\s*"
    rf"|[IW][0-9]{{4}} [0-9:.]{{8,18}}\s+[0-9]+ [\w./-]{{1,80}}:[0-9]+\] |{_LOGGER_TIME}[\s|:-]{{1,8}}"
)
_LOGGED_BY = re.compile(r"[\w.<>:-]{1,80}(?: - |:\s{0,4})(?=\S)")  # the module, after time and level
_DURATION = r"(?:[0-9]{1,4} days?, )?[0-9]{1,4}:[0-9:]{2,8}"
_MM = (  # mmcv and mmengine, after their counts
    rf"\s*(?=.*\bloss: (?P<loss>{_VALUE})(?![\w.]))"
    rf"(?:base_)?lr: {_VALUE}(?:[\s,]{{1,4}}[\w./]{{1,60}}: (?:{_DURATION}|{_VALUE}(?![:\w])))+"
)
_TIMM_NUMBER = r"\s+[0-9.e+-]{1,12}(?:s,\s+[0-9.]{1,12}/s)?"
_METER = rf"\t[A-Z][\w@]{{0,20}}\s+{_VALUE} \(\s*{_VALUE}\)"
_KERAS_TIME = r"(?:ETA: )?[0-9][0-9:]*(?:s|ms|us|m|h|d)?(?: [0-9]+(?:us|ms|s)/(?:step|epoch))?"
_KERAS_DONE = rf" +\[?[━=>.]+\]?(?: (?:- )?{_KERAS_TIME})?| - {_KERAS_TIME}(?: - {_KERAS_TIME})?(?:/step|/epoch)?"
_KERAS_VALUES = rf"(?P<values>(?: - [A-Za-z_][\w.]{{0,40}}: {_VALUE})*)"
_PAIR = re.compile(rf"(?P<name>{_NAME})(?:\s?[:=]\s*|\s)(?P<value>{_VALUE})")
_KERAS_BAR = re.compile(r"\s*(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12})\s+[━=>.\[]")
_HF_VALUE = rf"'[A-Za-z_]\w{{0,60}}': '?{_VALUE}'?"
_HF_PAIR = re.compile(rf"'(?P<name>\w+)': '?(?P<value>{_VALUE})")
_NO_MEASURE = re.compile(r".*(?:runtime|per_second|_time|grad_norm|learning_rate)")


class ProgressLine(msgspec.Struct, frozen=True):
    """The content of one line. Lines of the same `kind` are comparable (`lost.py`)."""

    kind: str
    step: int | None = None  # iterations done since the training began
    total: int | None = None  # of those
    epoch: float | None = None  # epochs done
    values: dict[str, str] = {}
    begins: bool = False  # whether it is printed before the work that it counts next
    closes: bool = False  # whether nothing more can follow on this line
    epochs: int | None = None  # of the whole training
    weak: bool = False  # whether it may restart in each epoch or generation: any other count of iterations is better
    open_end: bool = False  # whether it shows that no total is known: what looked like one was an epoch's
    by_hook: bool = False  # whether a hook wrote it, which counts what the training really did


@dataclass(frozen=True)
class OutputFormat:
    name: str
    expression: str
    example: str  # its last line is what the row is about
    first: int | None = None  # number of the first epoch; None: 1, or 0 once seen
    samples: bool = False  # whether `i` of `n` are samples, not iterations
    ends: bool = False  # whether it is printed at the end of its epoch; else at its beginning, without `i`
    from_zero: bool = False  # whether the first iteration, of an epoch too, is number 0
    n_is_total: bool = False  # whether `n` is the length of the training, unless `i` restarts

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compile the pattern on first use: many sidecars never need it, and each starts sooner without."""
        return re.compile(self.expression)


KERAS_HEADER, KERAS_BAR, LIGHTNING = "Epoch 3/30", "Keras' bar", "Lightning's bar"
EPOCH_HEADER = "epoch 9 of 20"
HF_BAR, HF_LENGTH, HF_LOG, HF_EVALUATION = "Hugging Face's bar", "HF's length", "HF's log", "HF's evaluation"

ANOTHER = "another bar"
FIRST = frozenset("TtEe{0123456789|[-SsIiBbL")  # the characters with which a line of some row can start

TABLE = (
    OutputFormat(
        "PyTorch's MNIST example",
        rf"Train Epoch: (?P<epoch>[0-9]{{1,9}}) \[(?P<i>[0-9]{{1,12}})/(?P<n>[0-9]{{1,12}}) \([0-9]{{1,3}}%\)\]"
        rf"\s+Loss: (?P<loss>{_VALUE})",
        "Train Epoch: 5 [1600/4000 (40%)]\tLoss: 0.312",
        first=1,
        samples=True,
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
        rf"{_MEASURED}[Ee]poch:?\s*\[?(?P<epoch>[0-9]{{1,9}})(?:(?:/| of )(?P<epochs>[0-9]{{1,9}}))?\]?{_VALUES}",
        "Epoch [3/30], Loss: 0.42",
        ends=True,
    ),
    OutputFormat(KERAS_HEADER, r"Epoch (?P<epoch>[0-9]{1,9})/(?P<epochs>[0-9]{1,9})", "Epoch 3/30"),
    OutputFormat(
        EPOCH_HEADER,
        r"[Ee]poch:?\s*\[?(?P<epoch>[0-9]{1,9})\s*(?:/|of)\s*(?P<epochs>[0-9]{1,9})\]?\s*[.:-]*",
        "epoch 9 of 20",
    ),
    OutputFormat(
        "word_language_model",
        r"\| epoch +(?P<epoch>[0-9]{1,9}) \| +(?P<i>[0-9]{1,12})/ *(?P<n>[0-9]{1,12}) batches \| lr [0-9.e+-]+ "
        rf"\| ms/batch +[0-9.]+ \| loss +(?P<loss>{_VALUE}) \| ppl +{_VALUE}",
        "| epoch   3 |   200/ 2983 batches | lr 20.00 | ms/batch 11.25 | loss  5.63 | ppl   279.01",
        first=1,
    ),
    OutputFormat(
        "word_language_model's end of an epoch",
        rf"\| end of epoch +(?P<epoch>[0-9]{{1,9}}) \| time: +[0-9.]+s \| valid loss +(?P<val_loss>{_VALUE}) "
        rf"\| valid ppl +{_VALUE}",
        "| end of epoch   3 | time: 34.33s | valid loss  5.43 | valid ppl   228.20",
        first=1,
        ends=True,
    ),
    OutputFormat(
        "timm",
        r"Train: (?P<epoch>[0-9]{1,9}) \[\s*(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12})\s+\(\s*[0-9]{1,3}%\)\]"
        rf"\s+Loss:\s+(?P<loss>{_VALUE}) \(\s*{_VALUE}\)"
        rf"(?:\s+[A-Z][A-Za-z]{{1,20}}:{_TIMM_NUMBER}(?:\s+\((?:\s*[0-9.]{{1,12}}(?:s,\s+[0-9.]{{1,12}}/s)?)\))?)*",
        "Train: 2 [  50/1251 (  4%)]  Loss: 6.95 (6.96)  Time: 0.316s,  809.60/s  (0.372s,  688.40/s)  LR: 1.000e-05  "
        "Data: 0.012 (0.044)",
        first=0,
        from_zero=True,
    ),
    OutputFormat(
        "mmcv and mmengine by epochs",
        r"Epoch(?:\(train\))?\s+\[(?P<epoch>[0-9]{1,9})\]\[\s*(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12})\]" + _MM,
        "2024-05-01 10:00:00,123 - mmdet - INFO - Epoch [3][50/7330]\tlr: 1.978e-03, eta: 1 day, 2:33:44, time: 0.543, "
        "data_time: 0.052, memory: 3900, loss_cls: 0.61, loss: 1.2345",
        first=1,
    ),
    OutputFormat(
        "mmcv and mmengine by iterations",
        rf"Iter(?:\(train\))?{_SLASH}{_MM}",
        "05/01 10:00:00 - mmengine - INFO - Iter(train) [   50/160000]  base_lr: 9.9972e-03 lr: 9.9972e-03  "
        "eta: 14:20:31  time: 0.3229  data_time: 0.0071  memory: 8462  loss: 2.2144  decode.acc_seg: 23.1",
        n_is_total=True,
    ),
    OutputFormat(
        "detectron2",
        r"eta: [^:]{0,20}[0-9:]+\s+iter: (?P<i>[0-9]{1,12})\s+total_loss: "
        rf"(?P<loss>{_VALUE})(?:\s+[\w./]{{1,60}}: {_VALUE}M?)+",
        "[05/01 10:00:00 d2.utils.events]:  eta: 0:12:34  iter: 19  total_loss: 2.345  loss_cls: 0.912  time: 0.2134  "
        "last_time: 0.2101  data_time: 0.0112  last_data_time: 0.0031   lr: 4.9953e-06  max_mem: 2345M",
        from_zero=True,
    ),
    OutputFormat(
        "minGPT",
        rf"iter_dt [0-9.]+ms; iter (?P<i>[0-9]{{1,12}}): train loss (?P<loss>{_VALUE})",
        "iter_dt 12.34ms; iter 100: train loss 1.23456",
    ),
    OutputFormat(
        "minGPT's trainer of old",
        rf"epoch (?P<epoch>[0-9]{{1,9}}) iter (?P<i>[0-9]{{1,12}}): train loss (?P<loss>{_VALUE})\. lr {_VALUE}"
        r": +[0-9]{1,3}%\|[ #0-9▏▎▍▌▋▊▉█]*\| *[0-9]{1,12}/(?P<n>[0-9]{1,12}) \[[^\]]*\]",
        "epoch 2 iter 99: train loss 1.23456. lr 6.000000e-04:  20%|██        | 100/500 [00:12<00:48,  8.30it/s]",
        first=1,
        from_zero=True,
    ),
    OutputFormat(
        "XGBoost",
        rf"\[(?P<i>[0-9]{{1,12}})\](?P<values>(?:\s+[A-Za-z]\w{{0,40}}-[\w@.-]{{1,40}}:{_VALUE}(?:\+{_VALUE})?)+)",
        "[19]\ttrain-logloss:0.12345\teval-logloss:0.23456",
        from_zero=True,
    ),
    OutputFormat(
        "LightGBM",
        rf"\[(?P<i>[0-9]{{1,12}})\](?P<values>(?:\s+[\w ]{{1,40}}'s [\w@.-]{{1,40}}: {_VALUE}(?: \+ {_VALUE})?)+)",
        "[20]\ttraining's l2: 0.123\tvalid_1's l2: 0.234",
    ),
    OutputFormat(
        "LightGBM's program",
        rf"\[LightGBM\] \[Info\] Iteration:\s?(?P<i>[0-9]{{1,12}}), [\w ]{{1,40}} [\w@]{{1,40}} : {_VALUE}",
        "[LightGBM] [Info] Iteration:20, valid_1 auc : 0.781",
    ),
    OutputFormat(
        "scikit-learn's boosting by histograms",
        r"\[(?P<i>[0-9]{1,12})/(?P<n>[0-9]{1,12})\] [0-9]+ trees?, [0-9]+ leaves [^\[\]]{0,200}, in [0-9.]{1,12}s",
        "[20/100] 1 tree, 31 leaves (31 on avg), max depth = 8, train loss: 0.42, val loss: 0.45, in 0.010s",
        n_is_total=True,
    ),
    OutputFormat(
        "scikit-learn's forest",
        r"building tree (?P<i>[0-9]{1,12}) of (?P<n>[0-9]{1,12})",
        "building tree 20 of 100",
        n_is_total=True,
    ),
    OutputFormat(
        "scikit-learn's boosting",
        rf"(?P<i>[0-9]{{1,12}})\s+(?P<loss>{_VALUE})(?:\s+{_VALUE})?\s+[0-9.]{{1,12}}[smh]",
        "        20           0.8423            0.0103            1.23s",
    ),
    OutputFormat(
        "scikit-learn's linear models",
        rf"(?P<dashes>-- )?Epoch (?P<i>[0-9]{{1,12}})(?(dashes)|, change: {_VALUE})",
        "-- Epoch 20",
    ),
    OutputFormat(
        "a step of so many",
        rf"(?:[Tt]rain(?:ing)? )?(?:[Ss]tep|[Ii]ter|[Ii]teration|[Bb]atch):?{_SLASH}(?:{_SPACED}|[\s.,:|;-]*)",
        "step 9/20",
        n_is_total=True,
    ),
    OutputFormat(
        "a step",
        rf"(?:[Ss]tep|[Ii]ter|[Ii]teration)\s+\[?(?P<i>[0-9]{{1,12}})(?:\]|:|(?=,))(?:{_SPACED}|\s*)",
        "iter 9: loss 3.2345, time 123.45ms, mfu 5.12%",
    ),
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
)


@dataclass
class Counting:
    """State of a count to `n` that may restart."""

    n: int
    i: int = 0
    anew: int = 0  # how often it has restarted

    @property
    def done(self) -> int:
        return self.anew * self.n + self.i


class FormatMatcher:
    """Parses lines in order, since some only make sense after others."""

    def __init__(self) -> None:
        self._from_zero: set[str] = set()  # rows in which epoch 0 was seen
        self._length: int | None = None  # of the unnamed bar that is a training's
        self._bar: int | None = None  # that of the last one
        self._open: tuple[int, int] | None = None  # the epoch begun by its header, and of how many
        self._epochs: int | None = None  # of the training, if a line named them
        self._counting: dict[str, Counting] = {}  # by row

    def new_generation(self) -> None:
        """Reset for another trainer's output."""
        self._open, self._bar = None, None
        self._counting.clear()

    def line(self, text: str) -> ProgressLine | None:
        """Parse a whole line; None if no format matches. An empty result matches but changes nothing."""
        text = text.strip()
        found = self._parse(text)
        if found is None and (logged := _LOGGER.match(text)) and logged.end():
            rest = text[logged.end() :].strip()
            found = self._parse(rest) or self._parse(_LOGGED_BY.sub("", rest, count=1))
        return ProgressLine(ANOTHER) if found is None and "%|" in text else found

    def _parse(self, text: str) -> ProgressLine | None:
        if text[:1] in FIRST:
            for row in TABLE:
                if match := row.pattern.fullmatch(text):
                    return self._read(row, match)
        return None

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
        if "epoch" in groups:
            return self._counted(row, groups, values)
        if "i" in groups:
            n = int(groups["n"]) if "n" in groups else None
            return self._iterations(row, int(groups["i"]) + row.from_zero, n, values)
        return ProgressLine(row.name, values=values)

    def _counted(self, row: OutputFormat, groups: dict[str, str], values: dict[str, str]) -> ProgressLine:
        number, epochs = int(groups["epoch"]), int(groups["epochs"]) if "epochs" in groups else None
        done = number - self._first(row, number, values)
        if epochs is not None and number > epochs:
            return ProgressLine(row.name)
        self._epochs = epochs or self._epochs
        if row.name in (KERAS_HEADER, EPOCH_HEADER):
            self._open = (done + 1, epochs or 0)
        if "i" not in groups:
            return ProgressLine(
                row.name, epoch=float(done + row.ends), values=values, begins=not row.ends, epochs=epochs
            )
        i, n = int(groups["i"]) + row.from_zero, int(groups["n"])
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
            self._open = None  # a bar without its own header is evaluate's or predict's, not training's
        return found

    def _in_open_epoch(self, match: re.Match[str], values: dict[str, str]) -> ProgressLine:
        i, n = int(match["i"]), int(match["n"])
        if self._open is None or self._open[0] < 1 or not 0 < i <= n:  # of a validated epoch, or evaluate's
            return ProgressLine(KERAS_BAR, values=values if any(name.startswith("val_") for name in values) else {})
        return _steps(KERAS_BAR, self._open[0] - 1, i, n, self._open[1], values)

    def _unnamed_bar(self, row: OutputFormat, i: int, n: int) -> ProgressLine:
        """Report an unnamed bar, which may show anything: once the training's length is known, only that counts."""
        self._bar = n
        if self._length is None:
            return self._iterations(row, i, n, {})
        return ProgressLine(row.name, i, n) if n == self._length and 0 < i <= n else ProgressLine(row.name)

    def _iterations(self, row: OutputFormat, i: int, n: int | None, values: dict[str, str]) -> ProgressLine:
        """Report `i` of `n` iterations that may or may not be one epoch's, without a total that is only an epoch's.

        Of two lengths, as of training and validation, the one with more work done counts.
        """
        if n is None:
            return ProgressLine(row.name, i, values=values, weak=True)
        if not 0 < i <= n:
            return ProgressLine(row.name)
        before = self._counting.get(row.name)
        if before is None or before.n != n:
            if before is not None and before.done >= i:
                return ProgressLine(row.name, values={name: v for name, v in values.items() if name.startswith("val_")})
            before = self._counting[row.name] = Counting(n)
        before.anew += i < before.i
        before.i = i
        if self._open is not None:
            before.anew = self._open[0] - 1
        total = self._epochs * n if self._epochs else n if row.n_is_total and not before.anew else None
        open_end = total is None and row.n_is_total
        return ProgressLine(row.name, before.done, total, values=values, weak=True, open_end=open_end)

    def _hugging_face(self, row: OutputFormat, match: re.Match[str]) -> ProgressLine:
        """Parse the Trainer's log, which is printed while only the training bar is shown."""
        pairs = {one["name"]: one["value"] for one in _HF_PAIR.finditer(match[0])}
        if row.name == HF_LOG and "loss" in pairs and self._bar is not None:
            self._length = self._bar
        values = {name: given for name, given in pairs.items() if name != "epoch" and not _NO_MEASURE.fullmatch(name)}
        return ProgressLine(row.name, epoch=float(match["epoch"]), values=values)


def _steps(kind: str, done: int, i: int, n: int, epochs: int | None, values: dict[str, str]) -> ProgressLine:
    """Report `i` of `n` iterations of an epoch, after `done` whole ones of `epochs`."""
    if i == 0:
        return ProgressLine(kind)
    return ProgressLine(kind, done * n + i, epochs * n if epochs else None, done + i / n, values)


def _pairs(text: str | None) -> dict[str, str]:
    """Parse `name: number` or `name=number`, normalizing names to how measures are usually called."""
    found = _PAIR.finditer(text or "")
    return {one["name"].lower().rstrip(".").replace(". ", "_").replace(" ", "_"): one["value"] for one in found}
