"""What a failed playbook says: the words of the program that failed where there are some."""

from __future__ import annotations

import pytest

from launcher.playbook import _message


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "first\nlast line"}, "last line"),
        ({"stderr": "its own words", "msg": "non-zero return code"}, "its own words"),
        ({}, "no reason was given"),
    ],
)
def test_the_most_telling_words_are_shown(result: dict[str, str], said: str) -> None:
    assert _message(result) == said
