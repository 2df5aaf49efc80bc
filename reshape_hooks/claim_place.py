"""Finds the call of a script, and the iteration of its loops, in which a training begins (`claims`).

Promises: the answer is the same each time that a script reaches the same call in the same iteration, even after lines
around it have changed. Reads the script's source, if there is one. Standard library, Python 3.8 and newer.
"""

from __future__ import annotations

import contextlib
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reshape_hooks.record import library_folders

SHOWN = 60  # characters kept of a value; a longer one gets a checksum
MOST = 1 << 16  # characters inspected of a value
OTHER_EACH_TIME = re.compile(  # dates and times, epoch seconds, object ids, temporary names
    r"20\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?:[-_T /]+[0-2]\d[-_:.]?[0-5]\d(?:[-_:.]?[0-5]\d)?)?"
    r"|[A-Z][a-z]{2}\d\d_[0-2]\d-[0-5]\d-[0-5]\d|(?<!\d)[0-2]\d[-_:][0-5]\d[-_:][0-5]\d(?!\d)"
    r"|(?<![\d.])1[6-9]\d{8}(?:\d{3})?(?:\.\d+)?(?!\d)|0x[0-9a-f]+"
    r"|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{16,}|\btmp[._]?[A-Za-z0-9_]{6,10}\b"
)


def short(text: str) -> str:
    """Return a text without what differs at each start, shortened with a checksum."""
    text = OTHER_EACH_TIME.sub("#", text[:MOST])
    return text if len(text) <= SHOWN else f"{text[:20]}… {zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def place(called: str) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Return the script's calls that led here, values of the loops around them, and its functions' arguments.

    `called`: the name under which the innermost of these calls has called us.
    """
    site: list[str] = []
    loops: dict[str, str] = {}
    arguments: dict[str, str] = {}
    libraries = library_folders()
    frame: Any = sys._getframe(1)
    while frame is not None:
        code, local = frame.f_code, frame.f_locals
        ours = frame.f_globals.get("__name__", "").startswith("reshape_hooks.")
        if not ours and not code.co_filename.startswith(("<frozen", *libraries)):
            depth = len(site)
            which, looped, counted = _in_source(code.co_filename, frame.f_lineno, called)
            site.append(f"{Path(code.co_filename).name}:{code.co_name}:{which}")
            counted = [name for name in counted if isinstance(local.get(name), (int, str))]
            loops.update({f"{depth} {name}": value for name, value in _values(local, looped + counted)})
            parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            arguments.update({f"{depth} {name}": value for name, value in _values(local, parameters)})
        called, frame = called if ours else code.co_name, frame.f_back
    return site, loops, arguments


def _values(local: Any, names: Any) -> Iterator[tuple[str, str]]:
    """Yield names with what is kept of their values. Values without a stable text are skipped."""
    for name in names:
        with contextlib.suppress(Exception):  # the script's own `repr`
            text = _text(local[name])
            if text is not None:
                yield name, short(text)


def _text(value: Any) -> str | None:
    """Return a text that is the same for the same value in another process; None if there is none."""
    if type(value).__module__.startswith("reshape_hooks."):  # such as the generation
        return None
    if hasattr(value, "__array__") or hasattr(value, "numpy"):
        return f"{getattr(value, 'shape', '')} {zlib.crc32(memoryview(_array(value)).cast('B')[:MOST]):08x}"
    if isinstance(value, (list, tuple)):
        parts = [_text(one) for one in value[:100]]
        return None if None in parts else f"{len(value)} {parts}"
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", None)
    text = repr(value)
    return text if len(text) < MOST and " at 0x" not in text else None


def _array(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") else value.__array__()


_trees: dict[str, Any] = {}


def _in_source(path: str, line: int, called: str) -> tuple[str, list[str], list[str]]:
    """Return which call of `called` in its function this line is, and the targets and counters of loops around it."""
    import ast
    import linecache

    if path not in _trees:
        _trees[path] = None
        with contextlib.suppress(SyntaxError, ValueError, OSError):
            _trees[path] = ast.parse("".join(linecache.getlines(path)))
    tree = _trees[path]
    if not getattr(tree, "body", None):
        return str(line), [], []  # as with `python -c`
    inside = tree
    looped: list[str] = []
    counted: list[str] = []
    for one in ast.walk(tree):  # from the outside inward
        if not _covers(one, line):
            continue
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if any(_covers(part, line) for part in one.body):
                inside, looped, counted = one, [], []
        elif isinstance(one, (ast.For, ast.AsyncFor)) and not _covers(one.iter, line):
            looped += _names(one.target)
        elif isinstance(one, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            looped += [name for each in one.generators for name in _names(each.target)]
        elif isinstance(one, ast.While):
            counted += _names(one.test)
    calls = [one for one in ast.walk(inside) if isinstance(one, ast.Call) and called == _name(one.func)]
    calls.sort(key=lambda one: (one.lineno, one.col_offset))
    found = [number for number, one in enumerate(calls) if _covers(one, line)]
    which = str(found[0]) if found else short(" ".join(linecache.getline(path, line).split()))
    return which, looped, counted


def _names(node: Any) -> list[str]:
    import ast

    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def _name(function: Any) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _covers(one: Any, line: int) -> bool:
    return bool(getattr(one, "lineno", line + 1) <= line <= getattr(one, "end_lineno", -1))
