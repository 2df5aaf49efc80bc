"""What is said where a playbook fails, or cannot run: the words of the program that failed where there are some."""

from __future__ import annotations

import importlib.util

import pytest

from launcher import playbook


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "first\nlast line"}, "last line"),
        ({"stderr": "its own words", "msg": "non-zero return code"}, "its own words"),
        ({}, "no reason was given"),
    ],
)
def test_the_most_telling_words_are_shown(result: dict[str, str], said: str) -> None:
    assert playbook._message(result) == said


def test_playbooks_need_both_the_library_and_ansible_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert playbook.installed()
    find = importlib.util.find_spec
    for missing in ("ansible", "ansible_runner"):
        with monkeypatch.context() as patched:
            patched.setattr(
                importlib.util, "find_spec", lambda name, gone=missing: None if name == gone else find(name)
            )
            assert not playbook.installed()
