"""Documents that did, or could, stop the coordinator for everybody: a hole in a list, and texts of megabytes.

What is wrong with a document, word by word, is in `test_intake.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.model import states as s
from coordinator.scheduling.intake import TEXTS, problems
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

GOOD: dict[str, Any] = {"_id": "j", "state": "submitted", "optional_num_gpus": [1, 2], "command": ["python", "t.py"]}
LONGEST = 500  # characters of one sentence
MEGABYTES = 2_000_000  # a document may have 16 MB
ODD = st.none() | st.booleans() | st.integers(-2, 4) | st.floats() | st.text(max_size=2) | st.just([]) | st.just({})


@pytest.mark.parametrize("counts", [[None], [None, 1], [1, None], [None, None]])
def test_a_hole_in_the_list_of_counts_is_named(counts: list[Any]) -> None:
    assert problems({**GOOD, "optional_num_gpus": counts}) == [
        "optional_num_gpus: None is not a whole number from 1 to 65536"
    ]


@given(st.lists(ODD, max_size=5))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_counts_are_let_in_only_if_they_go_up_from_one_or_are_the_one_0_of_a_job_on_cpu(counts: list[Any]) -> None:
    on_gpus = bool(counts) and all(type(n) is int and n >= 1 for n in counts) and sorted(set(counts)) == counts
    good = on_gpus or (counts == [0] and type(counts[0]) is int)
    assert (problems({**GOOD, "optional_num_gpus": counts}) == []) == good


@given(
    st.lists(ODD, max_size=3), st.sampled_from(["command", "env", "reshape_exit_codes", "job_id", "state", "schema"])
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_lists_of_anything_get_sentences(value: list[Any], field: str) -> None:
    assert all(0 < len(sentence) <= LONGEST for sentence in problems({**GOOD, field: value}))


@pytest.mark.parametrize("field", [*TEXTS, "command", "optional_num_gpus", "job_id", "state", "env", "iterations"])
def test_a_text_of_megabytes_is_refused_in_one_short_sentence(field: str) -> None:
    found = problems({**GOOD, field: "x" * MEGABYTES})
    assert len(found) == 1
    assert len(found[0]) <= LONGEST


def test_a_pattern_with_a_name_of_many_letters_is_refused_in_a_short_sentence() -> None:
    (sentence,) = problems({**GOOD, "progress_pattern": "(?P<" + "!" * 20_000 + ">x)"})
    assert sentence.startswith("progress_pattern is no regular expression")
    assert len(sentence) <= LONGEST


@pytest.mark.parametrize("counts", [[None], [None, 1]])
def test_the_next_job_is_started_whatever_lies_in_the_table(counts: list[Any]) -> None:
    world = World()
    world.users.insert("jobs", {**GOOD, "optional_num_gpus": counts})
    world.submit("good", [1], Behaviour(iterations=2))
    world.run(lambda w: w.states()["good"] == s.COMPLETED)
    assert world.job("j").doc["problems"] != []
