"""Raises the `SystemExit` that ends a process whose training is saved, and follows it in a script that catches it.

A script that continued would reach its last lines with a model that is not fully trained, and write its result. So the
exception is raised again at the first line after the script's handler, outside its `finally` and `with` blocks:
everything that the script does on the way to an exit is done. A library that catches it, such as multiprocessing or a
notebook kernel, continues; the script is stopped once it continues after that. Standard library, Python 3.8.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from reshape_hooks.library_code import is_library

COMMANDS = Path(sysconfig.get_path("scripts")).resolve()  # of installed packages
TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))


class SavedAndStopped(SystemExit):
    """Ends a training that is saved. Nothing may keep it: it references the script's frames, and so its files."""


class Raised:
    """Follows what was raised through the script, in the main thread.

    Python removes a trace function that raises, so a profile function takes over at the next call or return, and vice
    versa.
    """

    def __init__(self, code: int, warn: Callable[[str], object]) -> None:
        self.code = code
        self.warn = warn
        self.lines: dict[int, int] = {}  # last line of each frame of the script, by the frame's id

    def follow(self, frame: FrameType | None) -> None:
        """Trace the script's functions that led to this frame, and no others."""
        while frame is not None:
            if _is_scripts(frame):
                frame.f_trace = self._trace_lines
                self.lines.setdefault(id(frame), frame.f_lineno)
            frame = frame.f_back
        sys.settrace(self._trace_lines)

    def _trace_lines(self, frame: FrameType, event: str, _value: object) -> Any:
        if event == "call":
            return None  # what a handler calls is not restricted
        if event == "line" and self._goes_on_without(frame):
            sys.setprofile(self._profile_calls)
            self._raise_again(frame)
        return self._trace_lines

    def _profile_calls(self, frame: FrameType, event: str, _value: object) -> None:
        sys.setprofile(None)
        stays = frame if event == "c_call" else frame.f_back
        self.follow(stays)
        calls = event in ("call", "c_call")
        if calls and stays is not None and id(stays) in self.lines and self._goes_on_without(stays):
            self._raise_again(stays)

    def _goes_on_without(self, frame: FrameType) -> bool:
        """Return whether the script is past a handler that caught what was raised, and is not cleaning up."""
        was = self.lines.get(id(frame), frame.f_lineno)
        self.lines[id(frame)] = frame.f_lineno
        return not _is_handled(frame) and not _tidies_up(frame, was)

    def _raise_again(self, frame: FrameType) -> None:
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.warn(f"reshape: this training is saved and ends at {place}: its script had caught the SystemExit")
        raise SavedAndStopped(self.code)


def _is_scripts(frame: FrameType) -> bool:
    module = frame.f_globals.get("__name__", "")
    return not is_library(frame.f_code.co_filename, module) or module.partition(".")[0] in _installed_program()


@functools.lru_cache(1)
def _installed_program() -> tuple[str, ...]:
    """Return the package that this process runs, if installed: with `python -m`, or with its own command."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "__main__", spec.name.partition(".")[0]
    if Path(getattr(main, "__file__", "")).resolve().parent != COMMANDS:
        return ()
    called = (getattr(one, "__module__", None) for one in vars(main).values() if callable(one))
    return tuple({name.partition(".")[0] for name in called if name})


def _is_handled(frame: FrameType) -> bool:
    """Return whether the frame is in an `except`, `finally` or `with` that what was raised passes through."""
    if frame.f_lasti in _handler_starts(frame.f_code):
        return True
    one = sys.exc_info()[1]
    while one is not None and not _holds_ours(one):
        one = one.__context__
    return one is not None


def _holds_ours(one: BaseException) -> bool:
    """Return whether it is what was raised, or a group with it, as in `except*`."""
    return isinstance(one, SavedAndStopped) or any(map(_holds_ours, getattr(one, "exceptions", ())))


@functools.lru_cache(256)
def _handler_starts(code: CodeType) -> frozenset[int]:
    """Return which handler instructions run before `sys.exc_info` knows the exception; none before Python 3.11.

    A handler begins with PUSH_EXC_INFO, except a comprehension's from 3.12 on, which only ends with RERAISE.
    """
    table = getattr(dis, "_parse_exception_table", lambda _: ())(code)
    found = set()
    for at in (one.target for one in table):
        while at < len(code.co_code):
            found.add(at)
            if dis.opname[code.co_code[at]] in ("PUSH_EXC_INFO", "CLEANUP_THROW", "RERAISE"):
                break
            at += 2
    return frozenset(found)


def _tidies_up(frame: FrameType, was: int) -> bool:
    """Return whether the line is in a `finally`, or exits a `with` entered before. `was`: the previous line."""
    line = frame.f_lineno
    for part in _lines_that_tidy_up(frame.f_code.co_filename):
        if part.first <= line <= part.last and part.begin <= was <= part.end:
            return True
    return False


class Tidying(NamedTuple):
    """Lines that clean up, from `first` to `last`, when coming from lines `begin` to `end`."""

    first: int
    last: int
    begin: int
    end: int


@functools.lru_cache(64)
def _lines_that_tidy_up(file: str) -> tuple[Tidying, ...]:
    """Return a source's cleanup lines; none if it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, TRIES) and node.finalbody:
            end = node.end_lineno or 0
            found.append(Tidying(node.finalbody[0].lineno, end, node.lineno, end))
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            body = node.body[0].lineno
            found.append(Tidying(node.lineno, max(node.lineno, body - 1), body, node.end_lineno or 0))
    return tuple(found)
