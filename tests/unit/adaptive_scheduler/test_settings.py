"""Promise: a setting that means nothing stops the start, naming the field."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from adaptive_scheduler.settings import Deadlines, FlowCon, Settings, SpeCon

POLICIES = Path(__file__).parents[3] / "docs" / "reference" / "policies.md"


@pytest.mark.parametrize(
    "bad",
    [
        {"tiebreak": "fast"}, {"tiebreak": None}, {"min_gain_factor": -1}, {"min_gain_factor": float("nan")},
        {"cooldown_factor": "10"}, {"cooldown_factor": True}, {"cooldown_factor": float("inf")},
        {"makespan_scope": "world"}, {"removal_range": ""}, {"over_release": 1}, {"tiebreak": "last"},
        {"refined": "yes"}, {"allow_noop": None}, {"reshape_up_with_pending": 0},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_value_is_refused_with_the_name_of_its_field(bad):
    with pytest.raises(ValueError, match=rf"^{next(iter(bad))} must be"):
        Settings(**bad)


def test_whole_numbers_and_zero_are_factors_too():
    assert Settings(min_gain_factor=0, cooldown_factor=3).min_gain_factor == 0


def test_every_field_says_in_prose_what_it_means():
    source = inspect.getsource(Settings)
    for field in dataclasses.fields(Settings):
        after = source.split(f"\n    {field.name}: ")[1]
        assert after.split("\n")[1].strip().startswith('"""')


@pytest.mark.parametrize(
    ("kind", "prefix"), [(Settings, ""), (SpeCon, "specon."), (FlowCon, "flowcon."), (Deadlines, "deadlines.")]
)
def test_every_setting_is_explained_in_the_docs_with_its_default(kind, prefix):
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (.*?) \|", POLICIES.read_text(encoding="utf-8"), re.MULTILINE))
    for field in dataclasses.fields(kind):
        if field.name in ("specon", "flowcon", "deadlines"):
            continue
        assert f"`{show(field.default)}`" in rows[prefix + field.name], field.name


def show(value):
    return ", ".join(value) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)
