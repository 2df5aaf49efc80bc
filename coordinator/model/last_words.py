"""Chooses what of a program's output a sentence quotes: the last line or lines that say something, cut to be read."""

from __future__ import annotations

import re

QUOTED = 300  # characters of a line that a sentence quotes
OF_THE_END = 1 / 3  # of these, how many are the line's last ones: the cause often comes behind what a command was given

COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
WORD = re.compile(r"[^\W\d_]{2}")  # two letters of any language; a bar, dots or a ruler has none
REPEATED = re.compile(r"([^\w\s])\1{3,}")
# The end of torchrun's table, whose last line says nothing of the failure.
TORCHRUN = re.compile(
    r"rank +: (\d+)[^\n]*\n\s*exitcode +: (-?\d+)[^\n]*\n\s*error_file:[^\n]*\n"
    r"\s*traceback : To enable traceback[^\n]*\W*$"
)


def last_words(output: str) -> str:
    """Return the last line with a word in it, uncut, else the last line; empty if there is none.

    Of torchrun's table of failures, say whose failure it names: what that process printed is far above it.
    """
    if (table := TORCHRUN.search(output)) is not None:
        return f"of torchrun's processes, rank {table[1]} ended first, with {table[2]}: see what it printed"
    lines = [line.strip() for line in COLOUR.sub("", output).splitlines()]
    lines = [line for line in lines if line]
    worded = [line for line in lines if WORD.search(line)]
    return (worded or lines or [""])[-1]


def last_lines(output: str, most: int) -> str:
    """Return the last `most` lines with a word in them, each cut to be read, with bars between them."""
    lines = [quoted(line) for line in COLOUR.sub("", output).splitlines() if WORD.search(line)]
    return " | ".join(lines[-most:])


def quoted(text: str, most: int = QUOTED) -> str:
    """Return it on one line of at most `most` characters: its beginning and its end, without long rows of one sign."""
    line = " ".join(REPEATED.sub(r"\1\1\1", text).split())
    if len(line) <= most:
        return line
    end = int(most * OF_THE_END)
    begin = most - end - len(" … ")
    return f"{_whole_words(line[:begin], last=True)} … {_whole_words(line[-end:], last=False)}"


def _whole_words(part: str, last: bool) -> str:
    """Return it without the word that was cut at its end, or at its beginning; one that is all there is stays."""
    rest = part.rpartition(" ")[0] if last else part.partition(" ")[2]
    return rest or part
