"""Whatever JSON is let in can be stored and written back unchanged; nothing else than `Rejected` comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import Rejected
from coordinator.http import wire

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), ANYTHING))
def test_what_is_let_in_comes_out_unchanged(doc: dict[str, Any]) -> None:
    try:
        read = wire.read_object(json.dumps(doc).encode())
    except Rejected:
        return
    assert json.loads(wire.write(read)) == doc


@given(st.binary())
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        assert isinstance(wire.read_object(raw), dict)
    except Rejected as error:
        assert str(error).isprintable()


@given(st.text())
def test_a_number_in_a_query_is_exact_or_refused(text: str) -> None:
    try:
        number = wire.whole("limit", text, 0, -100, 100)
    except Rejected:
        return
    assert -100 <= number <= 100
    assert int(text) == number


def test_thirty_two_levels_are_let_in_and_no_more() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)

    assert wire.read_object(nested(32))
    with pytest.raises(Rejected, match="nested"):
        wire.read_object(nested(33))


def test_a_key_that_is_no_text_is_written_as_text() -> None:
    class ObjectId:
        def __str__(self) -> str:
            return "65f0c0ffee"

    assert wire.write({"_id": ObjectId()}) == b'{"_id":"65f0c0ffee"}'
