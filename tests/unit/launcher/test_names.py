"""Names of launches are valid, short and never those of another job."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.names import is_launch_of, job_name, launch_name

LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
ANY_TEXT = st.text(st.characters(codec=None), max_size=200)  # lone surrogates, too
LAUNCHES = st.integers(0, 10**10 - 1)


@given(ANY_TEXT, ANY_TEXT, LAUNCHES)
@example("", "", 0)
@example("🚀🚀", "u", 1)
@example("مرحبا \u202e", "u", 1)
@example("a\x00b", "u", 1)
@example("../../etc/passwd", "u", 1)
@example("{{ lookup('pipe', 'true') }}", "u", 1)
@example("x" * 10_000, "y" * 10_000, 10**10 - 1)
@example("---", "u", 1)
@example("7-of-nine", "u", 1)
def test_any_text_becomes_a_name_that_kubernetes_and_file_systems_take(job_id: str, uid: str, launch: int) -> None:
    name = launch_name(job_id, uid, launch)
    assert is_launch_of(job_name(job_id, uid), name)
    assert LABEL.fullmatch(name)
    assert LABEL.fullmatch(job_name(job_id, uid))
    assert name == f"{job_name(job_id, uid)}-l{launch}"


@given(st.tuples(ANY_TEXT, ANY_TEXT), st.tuples(ANY_TEXT, ANY_TEXT))
@example(("a", "bc"), ("ab", "c"))
@example(("A", "u"), ("a", "u"))
@example(("a b", "u"), ("a-b", "u"))
@example(("x" * 10_000, "u"), ("x" * 9_999, "u"))
def test_two_jobs_never_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (job_name(*one) == job_name(*other)) == (one == other)


def test_the_readable_part_stays_readable() -> None:
    assert re.fullmatch(r"resnet50-cifar-[a-z2-7]{8}-l3", launch_name("ResNet50 / CIFAR", "u1", 3))


@pytest.mark.parametrize("launch", [-1, 10**10])
def test_a_launch_number_that_cannot_be_is_refused(launch: int) -> None:
    with pytest.raises(ValueError, match="launch number"):
        launch_name("job", "u", launch)
