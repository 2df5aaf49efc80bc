"""Tokens of users of a shared machine: kept as hashes, each its user's until its end."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from coordinator.adapters.user_tokens import MOST_OF_ONE, UserTokens
from coordinator.errors import Rejected

ANN, BEN = (1001, "ann"), (1002, "ben")


@pytest.fixture
def tokens(tmp_path: Path) -> UserTokens:
    return UserTokens(tmp_path / "tokens.json")


def test_a_token_is_its_users_until_its_end(tokens: UserTokens) -> None:
    made = tokens.make(*ANN, 60, 1_000.0)
    assert (tokens.user_of(made["token"], 1_059.0), made["ends"]) == (ANN, 1_060.0)
    assert tokens.user_of(made["token"], 1_060.0) is None
    assert tokens.user_of("", 1_000.0) is tokens.user_of(made["token"] + "x", 1_000.0) is None
    assert tokens.tokens_of_user(ANN[0], 1_060.0) == tokens.tokens_of_user(BEN[0], 1_000.0) == []


def test_it_cannot_be_read_again_and_holds_over_a_restart(tokens: UserTokens, tmp_path: Path) -> None:
    made = tokens.make(*ANN, 60, 1_000.0)
    path = tmp_path / "tokens.json"
    assert made["token"] not in path.read_text() and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert made["token"] not in str(tokens.tokens_of_user(ANN[0], 1_000.0))
    assert UserTokens(path).user_of(made["token"], 1_000.0) == ANN


def test_a_user_revokes_own_tokens_only(tokens: UserTokens) -> None:
    made = tokens.make(*ANN, 60, 1_000.0)
    with pytest.raises(Rejected) as refused:
        tokens.revoke(BEN[0], made["id"])
    assert refused.value.status == 404
    tokens.revoke(ANN[0], made["id"])
    assert tokens.user_of(made["token"], 1_000.0) is None


def test_the_tokens_of_one_user_are_limited_and_ended_ones_do_not_count(tokens: UserTokens) -> None:
    for _ in range(MOST_OF_ONE):
        tokens.make(*ANN, 60, 1_000.0)
    with pytest.raises(Rejected, match="revoke one first"):
        tokens.make(*ANN, 60, 1_059.0)
    tokens.make(*BEN, 60, 1_059.0)
    tokens.make(*ANN, 60, 1_060.0)


def test_tokens_hold_again_once_a_clock_that_was_set_ahead_is_right(tokens: UserTokens) -> None:
    job = tokens.make(*ANN, 3_600, 1_000.0)
    for _ in range(2):
        tokens.make(*BEN, 60, 1e9)
        tokens.make(*ANN, 60, 1e9)
    assert tokens.user_of(job["token"], 1e9) is None
    assert tokens.user_of(job["token"], 1_010.0) == ANN


def test_the_ended_tokens_of_one_user_are_limited_too(tokens: UserTokens, tmp_path: Path) -> None:
    tokens.make(*BEN, 1, 1.0)
    for second in range(MOST_OF_ONE + 10):
        tokens.make(*ANN, 1, 2.0 * second)
    tokens.make(*ANN, 1, 1e9)
    assert len(json.loads((tmp_path / "tokens.json").read_text())) == MOST_OF_ONE + 2


def test_a_damaged_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(Rejected, match="cannot be read"):
        UserTokens(tmp_path / "tokens.json")
