"""What a failed playbook says: the API server's own sentence where there is one."""

from __future__ import annotations

import json

import pytest

from launcher.playbook import _message

STATUS = {"kind": "Status", "status": "Failure", "message": 'webhook "v.volcano.sh" denied it', "code": 400}
REFUSED = f"Failed to patch object: {json.dumps(STATUS, separators=(',', ':')).encode()!r} Reason: Bad Request"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": REFUSED}, 'webhook "v.volcano.sh" denied it'),
        ({"msg": "first\nlast line"}, "last line"),
        ({"stderr": "its own words", "msg": "non-zero return code"}, "its own words"),
        ({}, "no reason was given"),
    ],
)
def test_the_most_telling_words_are_shown(result: dict[str, str], said: str) -> None:
    assert _message(result) == said
