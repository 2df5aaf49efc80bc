"""Shows text that changes on a terminal until Ctrl-C, on a screen of its own; without a terminal once.

Promises that the terminal is as it was afterwards, however it ends.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator

import click

from reshape.client import CoordinatorUnreachable

EVERY_S = 1.0
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END_OF_LINE, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"

Draw = Callable[[int | None, int | None], str]  # of the columns and lines of the terminal, or of None


def show(draw: Draw, every_s: float = EVERY_S) -> None:
    """Draw again and again; a coordinator that is away for a while is told and waited for."""
    if not sys.stdout.isatty():
        click.echo(draw(None, None))
        return
    last = draw(*shutil.get_terminal_size())  # an error before the first picture ends it
    with contextlib.suppress(KeyboardInterrupt), _own_screen():
        while True:
            _paint(last)
            time.sleep(every_s)
            size = shutil.get_terminal_size()
            try:
                last = draw(*size)
            except CoordinatorUnreachable as away:
                kept = last.splitlines()
                last = "\n".join([f"{away} This is what it said last:", *kept[1 : size.lines - 1]])


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    sys.stdout.write(ENTER)
    try:
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()


def _paint(text: str) -> None:
    """In place, without a flicker."""
    lines = "".join(f"{line}{TO_END_OF_LINE}\r\n" for line in text.splitlines())
    sys.stdout.write(f"{HOME}{lines.removesuffix(chr(13) + chr(10))}{TO_END}")
    sys.stdout.flush()
