"""Judges a value by the type that its field is declared with, and says in a sentence what the field must be. Pure.

A type is a Python type with the constraints of msgspec: `Annotated[int, Meta(ge=1)]`. Words that cannot be derived from
it are declared with it, by `worded`. Called where documents are let in (`coordinator.scheduling.intake`) and where rows
are read (`coordinator.model.document_validation`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, UnsetType

from coordinator.model.records import show

LARGEST = 2**63  # beyond it neither a store nor an array holds a whole number
PRACTICAL = 10**15  # a bound of whole numbers that is not worth a word
BOUNDS = ("ge", "gt", "le", "lt")  # of msgspec's `Meta`
BEFORE_END = r"(?!\n)"  # Python's `$` also fits before a line feed that ends a text

Count = Annotated[int, Meta(ge=0, le=LARGEST - 1)]
Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
"""A number that is finite."""


def worded(words: str, *, secret: bool = False) -> Meta:
    """Return what is said of a type: `must be WORDS`. `secret`: sentences do not repeat the value."""
    return Meta(extra={"words": words, "secret": secret})


def counted_in(unit: str) -> Meta:
    """Return the unit of a number, for sentences."""
    return Meta(extra={"unit": unit})


def refused_alone(sentence: str) -> Meta:
    """Return the sentence for a text in a list that is wrong where the list itself is one; {} stands for the text."""
    return Meta(extra={"alone": sentence})


def one_of(*texts: str) -> Meta:
    """Return the constraint that a text is one of these."""
    return Meta(pattern=f"^(?:{'|'.join(texts)})${BEFORE_END}", extra={"words": f"one of {', '.join(texts)}"})


def whole_text(pattern: re.Pattern[str]) -> Meta:
    """Return the constraint that all of a text has this pattern."""
    return Meta(pattern=f"^(?:{pattern.pattern})${BEFORE_END}")


def is_of_type(value: object, kind: Any) -> bool:
    """Return whether a value is of this type."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError):
        return False
    return True


def wrong_fields(doc: Mapping[str, Any], struct: type[msgspec.Struct]) -> list[str]:
    """Return the fields of a document that are not of the type that `struct` declares, or are needed and missing.

    Null is as a field that is left out.
    """
    if is_of_type(doc, struct):
        return []
    kinds = types_of_fields(struct)
    known = [(name, value) for name, value in doc.items() if name in kinds and value is not None]
    needed = [one.encode_name for one in msgspec.structs.fields(struct) if one.required]
    missing = [name for name in needed if doc.get(name) is None]
    return [*(name for name, value in known if not is_of_type(value, kinds[name])), *missing]


@functools.cache
def types_of_fields(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the declared type of each field, by the name that documents use."""
    hints = get_type_hints(struct, include_extras=True)
    names = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    return {written: hints[attribute] for attribute, written in names}


def all_meta(kind: Any) -> tuple[Meta, ...]:
    """Return the constraints and words that stand directly at a type."""
    return tuple(meta for meta in kind.__metadata__ if isinstance(meta, Meta)) if get_origin(kind) is Annotated else ()


def alternatives(kind: Any) -> list[Any]:
    """Return the types that a value may have, one or several; null and a field that is left out are none of them."""
    bare = without_meta(kind)
    if get_origin(bare) not in (Union, UnionType):
        return [kind]
    return [one for one in get_args(bare) if one not in (NoneType, UnsetType)]


def is_nullable(kind: Any) -> bool:
    return NoneType in get_args(without_meta(kind))


def struct_of(name: str, kinds: Mapping[str, Any]) -> type[msgspec.Struct]:
    """Return a struct of these fields, of which each may be null or left out."""
    fields = [(field, kind if is_nullable(kind) else kind | None, None) for field, kind in kinds.items()]
    return msgspec.defstruct(name, fields)


def without_meta(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def is_flag(kind: Any) -> bool:
    """Return whether a value of this type is true or false, and nothing else."""
    return [without_meta(one) for one in alternatives(kind)] == [bool]


def said_of(kind: Any, key: str) -> Any:
    """Return what is declared with a type under this key, with itself or with its only alternative; else None."""
    own = [meta.extra[key] for meta in all_meta(kind) if meta.extra and key in meta.extra]
    if own:
        return own[-1]
    inner = alternatives(kind)
    return said_of(inner[0], key) if len(inner) == 1 and inner[0] is not kind else None


def words_of(kind: Any) -> str:
    """Return what a value of this type is: `a whole number from 1 to 65536`."""
    if words := said_of(kind, "words"):
        return str(words)
    inner = alternatives(kind)
    if len(inner) > 1:
        return " or ".join(map(words_of, inner))
    bare = without_meta(inner[0])
    if get_origin(bare) is Literal:
        return f"one of {', '.join(map(str, get_args(bare)))}"
    if bare in (int, float):
        return _words_of_number(inner[0], bare is int)
    words_by_type: dict[Any, str] = {
        str: "a text",
        bool: "true or false",
        dict: "an object",
        list: "a list",
        Any: "anything",
    }
    return words_by_type.get(get_origin(bare) or bare, "an object")


def _words_of_number(kind: Any, whole: bool) -> str:
    metas = all_meta(kind)
    unit = said_of(kind, "unit")
    noun = f"a number of {unit}" if unit else "a whole number" if whole else "a number"
    bounds = {name: next((b for m in metas if (b := getattr(m, name)) is not None), None) for name in BOUNDS}
    least = bounds["ge"]
    most = bounds["le"]
    if bounds["gt"] is not None and bounds["lt"] is not None:
        return f"{noun} between {bounds['gt']:g} and {bounds['lt']:g}"
    if least is None or most is None or least <= -LARGEST or most >= LARGEST - 1:
        return noun
    if whole and most >= PRACTICAL:
        return f"{noun} of at least {least}"
    return f"{noun} from {least} to {most}" if whole else f"{noun} from {least:g} to {most:g}"


def must_be(field: str, kind: Any, value: object) -> str:
    """Return the sentence for a value that is not what its field must be."""
    shown = "" if said_of(kind, "secret") else f", not {show(value)}"
    return f"{field} must be {words_of(kind)}{shown}"


def problems_of_value(field: str, kind: Any, value: object) -> Iterator[str]:
    """Yield a sentence for each part of a value that is not of its type; none for a value that is."""
    if is_of_type(value, kind):
        return
    inner = [without_meta(one) for one in alternatives(kind)]
    structs = [one for one in inner if isinstance(one, type) and issubclass(one, msgspec.Struct)]
    if structs and isinstance(value, dict):
        yield from _problems_of_object(field, structs[0], value)
    elif isinstance(value, list):
        yield from _problems_of_list(field, kind, value)
    elif value == "" and is_of_type("-", kind) and not said_of(kind, "words"):
        yield f"{field} is empty: {_what_to_name(kind)}or leave it out"
    else:
        yield must_be(field, kind, value)


def _what_to_name(kind: Any) -> str:
    meaning = next((meta.description for meta in all_meta(kind) if meta.description), "")
    return f"name {meaning[0].lower()}{meaning[1:].rstrip('.')}, " if meaning else ""


def _problems_of_list(field: str, kind: Any, values: list[Any]) -> Iterator[str]:
    lists = [one for one in alternatives(kind) if get_origin(without_meta(one)) is list]
    most = max((meta.max_length or 0 for one in lists for meta in all_meta(one)), default=0)
    (item,) = get_args(without_meta(lists[0])) if lists else (None,)
    if lists and 0 < most < len(values):
        yield f"{field} has more than {most} parts"
    elif lists and values and isinstance(without_meta(item), type) and issubclass(without_meta(item), msgspec.Struct):
        for number, one in enumerate(values, 1):
            yield from problems_of_value(f"{field.removesuffix('s')} {number}", item, one)
    elif (alone := said_of(item, "alone")) and (odd := _odd_texts(values, item)):
        yield f"{field}: {alone.format(show(odd[0]))}"
    else:
        yield must_be(field, kind, values)


def _odd_texts(values: list[Any], kind: Any) -> list[str]:
    """Return the texts in a list that are not of this type."""
    return [one for one in values if isinstance(one, str) and not is_of_type(one, kind)]


def _problems_of_object(field: str, struct: type[msgspec.Struct], value: Mapping[Any, Any]) -> Iterator[str]:
    kinds = types_of_fields(struct)
    if odd := sorted(str(name) for name in value if name not in kinds):
        yield f"{field} has a field {show(odd[0])}; there are {', '.join(kinds)}"
    for one in msgspec.structs.fields(struct):
        if one.required and one.encode_name not in value:
            yield f"{field} needs {one.encode_name}, {words_of(kinds[one.encode_name])}"
    for name, kind in kinds.items():
        if name in value:
            yield from problems_of_value(f"{field}: {name}", kind, value[name])
