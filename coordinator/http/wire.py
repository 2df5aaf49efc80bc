"""Reads and writes JSON of the HTTP API. Pure; called by the handlers only.

Promises that every object that `read_object` returns can be stored and written back: finite numbers that fit 64 bits,
text that is UTF-8, no deeper than `MAX_DEPTH`. Everything else is `Rejected` with a sentence that names the field.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from coordinator.errors import Rejected
from coordinator.unique_names import unique_names

MAX_DEPTH = 32
MAX_INTEGER = 2**63 - 1  # what MongoDB and SQLite can both hold
SURROGATE = re.compile("[\ud800-\udfff]")


def write(value: Any) -> bytes:
    """JSON; a key that a user chose in MongoDB (ObjectId) becomes text, NaN becomes null."""
    return msgspec.json.encode(value, enc_hook=str)


def read_object(raw: bytes) -> dict[str, Any]:
    """The JSON object in a request's body."""
    value = _parse(raw)
    if not isinstance(value, dict):
        raise Rejected(f"The body must be a JSON object, not {_kind(value)}.")
    for path, part, depth in _parts(value):
        if problem := _problem(part, depth):
            raise Rejected(f"{path} {problem}.")
    return value


def only_fields(doc: dict[str, Any], *names: str, maybe: tuple[str, ...] = ()) -> None:
    """Every one of `names` is in `doc`, and nothing else but some of `maybe`."""
    for name in names:
        if name not in doc:
            raise Rejected(f"{name} is missing from the body.")
    names = (*names, *maybe)
    if unknown := sorted(set(doc) - set(names)):
        raise Rejected(f"{_shown(unknown[0])} is not known here; the body has only: {', '.join(names)}.")


def whole(name: str, text: str | None, default: int, low: int, high: int) -> int:
    """A whole number given as text in a query or a header."""
    if text is None:
        return default
    # int() alone would let "1_000", " 7 " and digits of other scripts through.
    if re.fullmatch(r"-?[0-9]{1,20}", text) is None or not low <= int(text) <= high:
        raise Rejected(f"{name} must be a whole number from {low} to {high}.")
    return int(text)


def time(name: str, value: Any) -> float | None:
    """A time in a body, in seconds since 1970; None if there is none."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11):
        raise Rejected(f"{name} must be a time in seconds since 1970.")
    return None if value is None else float(value)


def truth(name: str, text: str | None) -> bool:
    """A query flag; absent is false."""
    if text not in (None, "true", "false"):
        raise Rejected(f"{name} must be true or false.")
    return text == "true"


def _parse(raw: bytes) -> Any:
    if not raw:
        raise Rejected("The body is empty: send a JSON object.")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=unique_names)
    except UnicodeDecodeError as error:
        raise Rejected(f"The body is not UTF-8 text (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise Rejected(f"The body is not JSON: {error.msg} (line {error.lineno}, column {error.colno}).") from None
    except RecursionError:
        raise Rejected(f"The body is nested more than {MAX_DEPTH} deep.") from None
    except ValueError:
        # json reads a whole number with int(), which refuses thousands of digits.
        raise Rejected("The body has a number that is too large.") from None


def _parts(value: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield every value and key below `value` with its path and depth; no recursion, so depth cannot hurt."""
    left: list[tuple[str, Any, int]] = [("The body", value, 1)]
    while left:
        path, part, depth = left.pop()
        yield path, part, depth
        if depth > MAX_DEPTH:
            continue
        within = "" if depth == 1 else path
        if isinstance(part, dict):
            for key, child in part.items():
                name = f"{within}.{_shown(key)}".lstrip(".")
                yield f"The name {_shown(key)}", key, depth
                left.append((name, child, depth + 1))
        elif isinstance(part, list):
            left.extend((f"{within}[{i}]", child, depth + 1) for i, child in enumerate(part))


def _problem(part: Any, depth: int) -> str:
    if depth > MAX_DEPTH:
        return f"is nested more than {MAX_DEPTH} deep"
    if isinstance(part, float) and not math.isfinite(part):
        return "must be a finite number"
    if isinstance(part, int) and abs(part) > MAX_INTEGER:
        return "is too large a number"
    if isinstance(part, str) and SURROGATE.search(part):
        return "has half a character (a lone surrogate)"
    return ""


def _shown(name: str) -> str:
    """A field's name, short and printable, so that it can stand in a sentence and in the log."""
    return ascii(name)[1:-1][:80]


def _kind(value: Any) -> str:
    names = {list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
