"""Finds what a script reads in step with a loop of ours, as `zip(state.batches(loader), others)` does.

After a stop our loop resumes where it was, while the other iterator begins anew: labels would be paired with other
samples' features. Called by `elastic` in a first step; standard library, Python 3.8.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator
from typing import Any

from reshape_hooks.adapters.script_iterators import is_ours

PAIRS = (zip, itertools.zip_longest, map)  # read several iterators in step
PARTS = (*PAIRS, itertools.islice)  # keep a count, or wrap others
DEPTH = 4  # of wrappers around our loop, such as tqdm


def read_beside_ours() -> list[str]:
    """Return the names of the calls that read another iterator in step with ours, or count its steps."""
    found = set()
    for one in gc.get_objects():
        if type(one) in PARTS:
            with contextlib.suppress(Exception):  # the script's own objects may raise when inspected
                found |= {type(one).__name__} if _begins_anew(one) else set()
    return sorted(found)


def _begins_anew(one: Any) -> bool:
    members = list(_iterators_read_by(one))
    ours = [member for member in members if _leads_to_ours(member, DEPTH)]
    others = [member for member in members if not isinstance(member, itertools.repeat)]
    return bool(ours) and (len(others) > len(ours) or type(one) not in PAIRS)


def _iterators_read_by(one: Any) -> Iterator[Any]:
    """Yield the iterators that one of PARTS reads."""
    for part in gc.get_referents(one):
        yield from (inner for inner in (part if isinstance(part, tuple) else (part,)) if hasattr(inner, "__next__"))


def _leads_to_ours(one: Any, depth: int) -> bool:
    """Return whether it is a loop of ours, or wraps one, such as a progress bar."""
    if is_ours(one):
        return True
    if not depth:
        return False
    inside = list(getattr(one, "__dict__", {}).values()) if hasattr(type(one), "__iter__") else []
    frame = getattr(one, "gi_frame", None)
    inside += frame.f_locals.values() if frame is not None else []
    inside += _iterators_read_by(one) if isinstance(one, (*PARTS, enumerate)) else []
    return any(_leads_to_ours(part, depth - 1) for part in inside if hasattr(type(part), "__iter__"))
