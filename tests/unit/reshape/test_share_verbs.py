"""`reshape shares` and `reshape usage`: what they show, set, add up and refuse."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reshape.cli import share_verbs
from reshape.cli.main import cli
from tests.fakes.coordinator_api import TOKEN, Live


def call(live: Live, *words: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["--url", live.url, "--token", TOKEN, *words], **more)


def account(user: str, gpu_type: str, gpu_s: float, **more: float) -> dict[str, Any]:
    return {"queue": "default", "user": user, "gpu_type": gpu_type, "gpu_s": gpu_s, "borrowed_s": 0.0, **more}


def test_shares_are_set_from_a_file_and_shown(live: Live, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text("queues: {vision: {weight: 2, guaranteed: 4, limit: 6}}")
    done = call(live, "shares", "set", str(tmp_path / "new.yaml"))
    assert (done.exit_code, done.output) == (
        0,
        "The shares are set, from the next decision on; `reshape shares` shows them.\n",
    )
    lines = call(live, "shares").output.splitlines()
    assert lines[0].split() == [
        "QUEUE", "WEIGHT", "GUARANTEED", "LIMIT", "ENTITLED", "HELD", "BORROWED", "WANTED", "USED", "WAITS",
    ]  # fmt: skip
    assert lines[2].split() == ["vision", "2", "4", "6", "0", "0", "0", "0", "0", "-"]
    assert json.loads(call(live, "shares", "-o", "json").output)["queues"][1]["guaranteed"] == 4


def test_what_is_guaranteed_of_a_type_is_shown_with_the_type(live: Live) -> None:
    call(live, "shares", "set", "-", input="queues: {vision: {guaranteed: {V100: 2, K80: 4}}}")
    assert call(live, "shares").output.splitlines()[2].split()[:3] == ["vision", "1", "2xV100,4xK80"]
    row = json.loads(call(live, "shares", "-o", "json").output)["queues"][1]
    assert (row["guaranteed"], row["guaranteed_types"]) == (6, {"V100": 2, "K80": 4})


def test_shares_that_cannot_be_kept_are_refused_with_the_reason(live: Live) -> None:
    refused = call(live, "shares", "set", "-", input="queues: {a: {limit: 1, guaranteed: 2}}")
    assert "Queue a has a limit of 1, below the 2 GPUs that it is guaranteed" in str(refused.exception)


def test_usage_is_added_up_by_what_is_asked(live: Live) -> None:
    live.coordinator.accounts = [
        account("ada", "V100", 7200.0, borrowed_s=3600.0), account("ada", "K80", 3600.0),
        account("bob", "V100", 1800.0, lost_s=900.0, reclaimed=2, shrinks=1),
    ]  # fmt: skip
    by_user = call(live, "usage").output.splitlines()
    assert by_user[0].split()[:4] == ["QUEUE", "USER", "HOURS", "OWN"]
    assert by_user[1].split() == ["default", "ada", "3", "2", "1", "0", "0", "0", "0", "0"]
    assert by_user[2].split() == ["default", "bob", "0.5", "0.5", "0", "0", "0.25", "2", "1", "0"]
    assert max(map(len, by_user)) <= 80
    assert call(live, "usage", "--by", "queue").output.splitlines()[1].split()[:2] == ["default", "3.5"]
    rows = list(csv.DictReader(io.StringIO(call(live, "usage", "--by", "type", "--csv").output)))
    assert [(row["user"], row["gpu_type"], row["gpu_hours"]) for row in rows] == [
        ("ada", "K80", "1.0"), ("ada", "V100", "2.0"), ("bob", "V100", "0.5"),
    ]  # fmt: skip


@pytest.mark.parametrize("since", ["90m", "24h", "7d", "2026-05-31"])
def test_a_span_or_a_day_says_since_when(live: Live, since: str) -> None:
    assert call(live, "usage", "--since", since).exit_code == 0


@pytest.mark.parametrize("since", ["yesterday", "7", "h", "2026-13-01"])
def test_anything_else_is_refused_with_an_example(live: Live, since: str) -> None:
    refused = call(live, "usage", "--since", since)
    assert refused.exit_code == 2
    assert "is neither a span such as 90m, 24h or 7d nor a day such as 2026-05-31" in refused.output.replace("\n", " ")


def test_where_volcanos_queues_give_rights_each_row_says_what_does(live: Live) -> None:
    view = live.coordinator.shares()
    row = view["queues"][0]
    rows = [
        {**row, "queue": name, "from": source} for name, source in (("a", "Volcano"), ("b", "shares.yaml"), ("c", None))
    ]
    lines = share_verbs._share_tables({**view, "queues": rows, "users": []}).splitlines()
    assert [line.split()[-1] for line in lines] == ["FROM", "Volcano", "shares.yaml", "-"]
