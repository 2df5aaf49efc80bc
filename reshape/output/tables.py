"""Formats tables and wraps text to the width of a terminal. Pure; called by `render.py`.

Promises that text of users cannot move the cursor, colour the screen or reorder a line: characters that do not
print are shown as their escape.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

Cells = Sequence[str]

GAP = "  "
LEAST = 10  # columns: what is left of the last column on a narrow terminal
LONGEST = 128  # columns of any cell but a row's last: as long as a job's name may be; what nobody let in may be longer
LEAST_REASON = 14  # columns: what a table of jobs leaves for why a job is as it is
NONE = "-"


def table(head: Cells, rows: Iterable[Cells], width: int | None = None) -> str:
    """Columns as wide as their widest cell, of which none but the last is wider than `LONGEST`; `width` (columns) cuts
    the last one, None does not."""
    lines = [list(head), *([*(middle_cut(plain(c), LONGEST) for c in row[:-1]), plain(row[-1])] for row in rows)]
    widths = [max(columns(line[i]) for line in lines) for i in range(len(head))]
    if width is not None:
        before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(width - before, LEAST))
    return "\n".join(_line(line, widths) for line in lines)


def columns(text: str) -> int:
    """Return the number of terminal columns that the text takes."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def plain(text: str) -> str:
    """The text on one line, with everything that does not print as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text.replace("\n", " "))


def fitted(head: Cells, rows: Sequence[Cells], width: int | None, least_wanted: Sequence[str]) -> str:
    """The same, but what the last column does not hold goes on lines of its own, uncut.

    Of columns that do not fit even then, those of `least_wanted` go first.
    """
    whole = table(head, rows)
    if width is None or _widest(whole) <= width:
        return whole
    shown = list(head[:-1])
    for name in least_wanted:
        if _widest(table(shown, _of(head, rows, shown))) > width:
            shown.remove(name)
    first, *lines = table(shown, _of(head, rows, shown), width).splitlines()
    under = [_under(line, row[-1], width) for line, row in zip(lines, rows, strict=True)]
    return "\n".join([first, *(part for parts in under for part in parts)])


def one_line_each(head: Cells, rows: Sequence[Cells], width: int | None, least_wanted: Sequence[str]) -> str:
    """A line for each row, none wider than `width` columns: those of `least_wanted` go first, then the last is cut.

    They go until `LEAST_REASON` columns are left for the last one, if a row has so much to say there.
    """
    if width is None:
        return table(head, rows)
    shown = list(head)
    longest = max((columns(plain(row[-1])) for row in [head, *rows]), default=0)
    for name in least_wanted:
        before = _widest(table(shown[:-1], _of(head, rows, shown[:-1]))) + len(GAP)
        if before + min(longest, LEAST_REASON) <= width:
            break
        shown.remove(name)
    return table(shown, _of(head, rows, shown), width)


def middle_cut(text: str, width: int) -> str:
    """The text in at most so many columns, with a mark in the middle: names often differ at their ends."""
    if columns(text) <= width:
        return text
    kept = text if len(text) <= 2 * width else text[:width] + text[-width:]  # one by one takes long of a long one
    while columns(kept) >= width:
        at = len(kept) // 2
        kept = kept[:at] + kept[at + 1 :]
    at = (len(kept) + 1) // 2
    return f"{kept[:at]}…{kept[at:]}"


def folded(head: Cells, rows: Sequence[Cells], width: int | None = None) -> str:
    """The same with every column: what the last one does not hold stands below its row, uncut."""
    return fitted(head, rows, width, ())


def _of(head: Cells, rows: Sequence[Cells], shown: Cells) -> list[Cells]:
    at = [head.index(name) for name in shown]
    return [[row[i] for i in at] for row in rows]


def _widest(text: str) -> int:
    return max(map(columns, text.splitlines()))


def _under(line: str, message: str, width: int) -> list[str]:
    return [line, *(f"  {part}" for part in wrapped(plain(message), max(width - 2, LEAST)) if message != NONE)]


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most so many columns, between words where it can."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and columns(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
        while columns(lines[-1]) > width:
            part = _first(lines[-1], width)
            lines[-1:] = [part, lines[-1][len(part) :]]
    return [line for line in lines if line]


def _first(text: str, width: int) -> str:
    while columns(text) > width:
        text = text[:-1]
    return text


def _line(cells: Cells, widths: Sequence[int]) -> str:
    shown = [*cells[:-1], cut(cells[-1], widths[-1])]
    return GAP.join(c + " " * (w - columns(c)) for c, w in zip(shown, widths, strict=True)).rstrip()


def cut(text: str, width: int) -> str:
    """The text in at most so many columns, with a mark where it goes on."""
    if columns(text) <= width:
        return text
    return _first(text, width - 1) + "…"
