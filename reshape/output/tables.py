"""Formats tables and wraps text to the width of a terminal. Pure; called by `render.py`.

Promises that text of users cannot move the cursor, colour the screen or reorder a line: characters that do not
print are shown as their escape.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from coordinator.dashboard import words as said

Cells = Sequence[str]
Paints = Mapping[int, Callable[[str], str]]  # by the place of a column: colours one of its cells

GAP = "  "
LEAST = 10  # columns: what is left of the last column on a narrow terminal
LONGEST = 128  # columns of any cell but a row's last: as long as a job's name may be; what nobody let in may be longer
LEAST_REASON = 14  # columns left for why a job is as it is
REASON_SHARE = 0.18  # of all columns, likewise
MOST_REASON = 40  # columns: what it shows of that on a terminal, however wide
FILLED = 0.6  # of its columns: a sentence that ends earlier at a comma or stop is cut between words instead
NONE = "-"


def table(head: Cells, rows: Iterable[Cells], width: int | None = None, paints: Paints | None = None) -> str:
    """Columns as wide as their widest cell, of which none but the last is wider than `LONGEST`; `width` (columns) cuts
    the last one, None does not. `paints` colours cells below the head."""
    lines = [list(head), *([*(middle_cut(plain(c), LONGEST) for c in row[:-1]), plain(row[-1])] for row in rows)]
    widths = [max(columns(line[i]) for line in lines) for i in range(len(head))]
    if width is not None:
        before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(width - before, LEAST))
    head_line, *row_lines = lines
    return "\n".join([_line(head_line, widths, {}), *(_line(line, widths, paints or {}) for line in row_lines)])


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


def one_line_each(
    head: Cells,
    rows: Sequence[Cells],
    width: int | None,
    least_wanted: Sequence[str],
    paints: Mapping[str, Callable[[str], str]] | None = None,
) -> str:
    """A line for each row, none wider than `width` columns: those of `least_wanted` go first, then the last is cut.

    They go until `LEAST_REASON` and `REASON_SHARE` are left for the last one, if a row has so much to say there; it
    takes `MOST_REASON` at most. `paints`, by the names of columns, colours cells.
    """
    if width is None:
        return table(head, rows)
    rows = [[*row[:-1], shortened(plain(row[-1]), MOST_REASON)] for row in rows]
    shown = list(head)
    longest = max(columns(row[-1]) for row in [head, *rows])
    wanted = min(longest, max(LEAST_REASON, int(width * REASON_SHARE)))
    for name in [*least_wanted, None]:
        before = _widest(table(shown[:-1], _of(head, rows, shown[:-1]))) + len(GAP)
        if name is None or before + wanted <= width:
            break
        shown.remove(name)
    room = max(width - before, LEAST)
    lines = [[*row[:-1], shortened(row[-1], room)] for row in _of(head, rows, shown)]
    if before + LEAST > width:
        return "\n".join(cut(line, width) for line in table(shown, lines, width).splitlines())
    return table(shown, lines, width, {shown.index(name): paint for name, paint in (paints or {}).items()})


def shortened(text: str, width: int) -> str:
    """The text in at most so many columns: its first parts if they say enough, else its first words and a mark."""
    if columns(text) <= width:
        return text
    parts = [text[: stop.start()] for stop in re.finditer(r"[;:.,] ", text)]
    for part in reversed(parts):
        if FILLED * width <= columns(part) <= width:
            return part
    words = _first(text, width - 1)
    before_last, _, last = words.rpartition(" ")
    whole = text[len(words)] == " "
    return f"{before_last if before_last and not whole and columns(last) < width // 2 else words.rstrip()}…"


def middle_cut(text: str, width: int) -> str:
    """The text in at most so many columns of a terminal, cut in its middle."""
    return said.middle_cut(text, width, columns)


def cut_apart(names: Sequence[str], width: int) -> list[str]:
    """Cut names in their middle, or as near to it as leaves different names different: `sweep-lr-…10`, `sweep-lr-…20`.

    Each takes so many columns at most.
    """
    best = [middle_cut(name, width) for name in names]
    different = len(set(names))
    kept = width - 1
    for head in sorted(range(1, kept), key=lambda count: abs(2 * count - kept)):
        if len(set(best)) == different:
            break
        tried = [name if columns(name) <= width else f"{name[:head]}…{name[head - kept :]}" for name in names]
        if len(set(tried)) > len(set(best)) and max(map(columns, tried)) <= width:
            best = tried
    return best


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


def _line(cells: Cells, widths: Sequence[int], paints: Paints) -> str:
    shown = [*cells[:-1], cut(cells[-1], widths[-1])]
    missing = [" " * (width - columns(cell)) for cell, width in zip(shown, widths, strict=True)]
    painted = [paints[at](cell) if at in paints else cell for at, cell in enumerate(shown)]
    return GAP.join(cell + spaces for cell, spaces in zip(painted, missing, strict=True)).rstrip()


def cut(text: str, width: int) -> str:
    """The text in at most so many columns, with a mark where it goes on."""
    if columns(text) <= width:
        return text
    return _first(text, width - 1) + "…"
