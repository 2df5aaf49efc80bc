"""`reshape jobs` shows whose jobs there are: as the document says, else as the client that submitted them."""

from __future__ import annotations

import getpass
from typing import Any

import pytest

from coordinator.scheduling import intake
from reshape.client import Client
from reshape.output import job_table
from tests.api.caller import GOOD
from tests.fakes.coordinator_api import TOKEN, Live


def view(job_id: str, owner: str | None, **more: Any) -> dict[str, Any]:
    return {"job_id": job_id, "owner": owner, "state": "running", "num_gpus": 1, "optional_num_gpus": [1], **more}


def test_a_job_is_its_submitters_unless_its_document_says_whose(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    client = Client(live.url, TOKEN)
    client.submit({**GOOD, "job_id": "hers"})
    client.submit({**GOOD, "job_id": "his", "owner": "bob"})
    assert [live.coordinator.submitted[name].get("owner") for name in ("hers", "his")] == ["ada", "bob"]


@pytest.mark.parametrize("user", ["a b", "ü", "", "x" * 65])
def test_a_user_whose_name_is_none_is_not_told(live: Live, monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: user)
    Client(live.url, TOKEN).submit({**GOOD, "job_id": "one"})
    assert "owner" not in live.coordinator.submitted["one"]


def test_a_machine_that_knows_no_user_submits_all_the_same(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert Client(live.url, TOKEN).submit({**GOOD, "job_id": "one"})["state"] == "submitted"


def test_a_terminal_shows_owners_where_there_are_several() -> None:
    more = {"node": "gpu-node-1", "queue": "reshape", "message": "needs 4 GPUs and no node has so many idle"}
    several = job_table.table([view("one", "ada", **more), view("two", "bob", **more)], 0.0, 80)
    assert "ada" in several and "bob" in several
    one = job_table.table([view("one", "ada", **more), view("two", "ada", **more)], 0.0, 80)
    assert "ada" not in one
    assert max(map(len, [*several.splitlines(), *one.splitlines()])) <= 80
    assert "ada" in job_table.table([view("one", "ada", **more)], 0.0), "a pipe gets all"


def test_the_jobs_of_one_owner_can_be_chosen() -> None:
    rows = [view("one", "ada"), view("two", "bob"), view("three", None)]
    assert [row["job_id"] for row in job_table.chosen(rows, "age", owner="bob")] == ["two"]


@pytest.mark.parametrize("owner", ["a b", "", 7, "x" * 254, "-a"])
def test_what_is_no_user_name_is_refused_with_what_to_write(owner: object) -> None:
    (said,) = intake.problems({**GOOD, "job_id": "a", "state": "submitted", "owner": owner})
    assert said.startswith(
        "owner must be the name of a user, up to 253 letters, digits and any of . _ @ : / # + = ~ -, not "
    )
