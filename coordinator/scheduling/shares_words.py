"""Says in plain words what is wrong with a value of `shares.yaml`, and what it must be. Pure; used by `shares_file`.

A parser tells of its own types, such as `int | null`; whoever writes the file knows names, numbers and lists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import ValidationError, inspect

from coordinator.model.fields import did_you_mean
from coordinator.model.owner_names import OWNER_WORDS
from coordinator.model.records import show

PLACE = re.compile(r"`\$([^`]*)`$")
STEP = re.compile(r"\w+|\[(?:\d+|\.\.\.)\]")
UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")
MISSING = re.compile(r"Object missing required field `([^`]*)`")


def refusal(error: ValidationError, given: Any, kind: Any, whose: str) -> str:
    """Return a sentence about the first thing that is wrong. `given`: what was to be a `kind`, such as a queue;
    `whose`: its name, which begins the sentence."""
    told = str(error)
    found = PLACE.search(told)
    steps = STEP.findall(found[1]) if found else []
    wanted = _without_null(inspect.type_info(kind))
    value = given
    name = ""
    for step in steps:
        wanted, value = _setting_at(wanted, value, step)
        name = f"an entry of {name}" if step.startswith("[") else f"{name}.{step}" if name else step
    holder = f"{whose}: {name}" if name else whose
    if unknown := UNKNOWN.match(told):
        names = [field.encode_name for field in getattr(wanted, "fields", ())]
        meant = did_you_mean(unknown[1], names) or f"; it can have {', '.join(names)}."
        return f"{holder} has no setting {unknown[1]}{meant}"
    if missing := MISSING.match(told):
        return f"{holder} needs the setting {missing[1]}."
    if "`key`" in told:
        odd = next((key for key in value if not isinstance(key, str)), "") if isinstance(value, Mapping) else ""
        return f"{holder} has the name {show(odd)}, which YAML does not read as text; put it in quotation marks."
    return f"{holder} must be {_words_for(wanted)}, not {show(value)}."


def _without_null(wanted: Any) -> Any:
    """Return the only kind besides null that a setting can have, if there is only one."""
    kinds = [kind for kind in getattr(wanted, "types", ()) if not isinstance(kind, inspect.NoneType)]
    return kinds[0] if len(kinds) == 1 else wanted


def _setting_at(wanted: Any, value: Any, step: str) -> tuple[Any, Any]:
    """Return kind and value of one setting, or of an entry of a list or of names with values."""
    if isinstance(wanted, inspect.StructType):
        kind = next(field.type for field in wanted.fields if field.encode_name == step)
        return _without_null(kind), value.get(step)
    if isinstance(wanted, inspect.VarTupleType):
        return wanted.item_type, value[int(step[1:-1])]
    if isinstance(wanted, inspect.UnionType):  # only one of the kinds has entries
        wanted = next(kind for kind in wanted.types if isinstance(kind, inspect.DictType))
    return wanted.value_type, _first_odd(value, wanted.value_type)


def _first_odd(values: Mapping[str, Any], wanted: Any) -> Any:
    """Return the first of some numbers that is none, or out of bounds: the parser does not say which."""

    def is_fine(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        whole = not isinstance(wanted, inspect.IntType) or isinstance(value, int)
        low_enough = is_number and value <= wanted.le
        return low_enough and whole and (value > wanted.gt if wanted.gt is not None else value >= wanted.ge)

    return next((value for value in values.values() if not is_fine(value)), None)


def _words_for(wanted: Any) -> str:
    match wanted:
        case inspect.IntType():
            return f"a whole number{_bounds_of_type(wanted)}"
        case inspect.FloatType():
            return f"a number{_bounds_of_type(wanted)}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return " or ".join(sorted(str(value) for value in wanted.values))
        case inspect.StrType():
            return OWNER_WORDS if wanted.pattern else "text"
        case inspect.VarTupleType():
            return "a list, such as [ada, bob]"
        case inspect.UnionType() if any(isinstance(kind, inspect.DictType) for kind in wanted.types):
            return "a whole number from 0 to 1,000,000, or one for each GPU type, such as {V100: 2}"
        case inspect.UnionType():
            return "a duration such as 90s, 15m or 24h"
        case inspect.StructType():
            return f"settings with their values ({', '.join(field.encode_name for field in wanted.fields)})"
    return "names with a value for each"


def _bounds_of_type(wanted: inspect.IntType | inspect.FloatType) -> str:
    most = f"{wanted.le:,}".removesuffix(".0")
    return f" from {wanted.ge:g} to {most}" if wanted.gt is None else f" above {wanted.gt:g}, up to {most}"
