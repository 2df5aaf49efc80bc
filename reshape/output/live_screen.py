"""Shows text that changes on a terminal, on a screen of its own: until Ctrl-C, or beside other work.

Promises that the terminal is as it was afterwards, however it ends.
"""

from __future__ import annotations

import contextlib
import http
import shutil
import sys
import threading
from collections.abc import Callable, Iterator

import click

from reshape.client import CoordinatorRefused, CoordinatorUnreachable

EVERY_S = 1.0
AWAY = http.HTTPStatus.SERVICE_UNAVAILABLE
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, TO_END_OF_LINE, TO_END = "\x1b[H", "\x1b[K", "\x1b[J"

Draw = Callable[[int | None, int | None], str]  # of the columns and lines of the terminal, or of None


def show(draw: Draw) -> None:
    """Draw again and again until Ctrl-C, and once where there is no terminal."""
    if not sys.stdout.isatty():
        click.echo(draw(None, None))
        return
    painter = _Painter(draw)  # an error before the first picture ends it
    with contextlib.suppress(KeyboardInterrupt), _own_screen():
        painter.run()


@contextlib.contextmanager
def beside(draw: Draw) -> Iterator[None]:
    """Draw again and again on the terminal while the body runs, which must print nothing."""
    painter = _Painter(draw)
    with _own_screen():
        threading.Thread(target=painter.run, name="screen", daemon=True).start()
        try:
            yield
        finally:
            painter.end()


class _Painter:
    """Paints what `draw` returns. A coordinator or store that is away for a while is told and waited for."""

    def __init__(self, draw: Draw) -> None:
        self._draw, self._last = draw, draw(*shutil.get_terminal_size())
        self._ended, self._lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        """Paint until `end` is called, or for ever."""
        while self._paints() and not self._ended.wait(EVERY_S):
            self._last = self._next()

    def end(self) -> None:
        """Nothing is painted any more once this has returned."""
        with self._lock:
            self._ended.set()

    def _next(self) -> str:
        size = shutil.get_terminal_size()
        try:
            return self._draw(*size)
        except (CoordinatorUnreachable, CoordinatorRefused) as away:
            if isinstance(away, CoordinatorRefused) and away.status != AWAY:
                raise
            kept = self._last.splitlines()
            return "\n".join([f"{away} This is what it said last:", *kept[1 : size.lines - 1]])

    def _paints(self) -> bool:
        """In place, without a flicker."""
        lines = "".join(f"{line}{TO_END_OF_LINE}\r\n" for line in self._last.splitlines())
        with self._lock:
            if self._ended.is_set():
                return False
            sys.stdout.write(f"{HOME}{lines.removesuffix(chr(13) + chr(10))}{TO_END}")
            sys.stdout.flush()
            return True


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    sys.stdout.write(ENTER)
    try:
        yield
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
