"""`reshape reserve`, `reservations`, `unreserve`, `drain --at`: the times that they read, and what they print."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from reshape.cli.main import cli
from reshape.cli.reserve_verbs import _node_names, moment
from tests.fakes.coordinator_api import TOKEN, Live, serve
from tests.fakes.world import NODE, World

NOON = time.mktime(time.strptime("2026-05-30 12:00", "%Y-%m-%d %H:%M"))


def local(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


@pytest.fixture
def live() -> Iterator[Live]:
    """A coordinator over HTTP whose wall clock is this machine's."""
    world = World()
    world.clock.ahead_s = time.time() - world.clock.wall()
    world.tick()
    world.c.trouble = ""
    with serve(world.api) as found:
        yield found


def call(live: Live, *words: str) -> Result:
    return CliRunner().invoke(cli, ["--url", live.url, "--token", TOKEN, *words])


@pytest.mark.parametrize(
    ("text", "begin", "found"),
    [
        ("18:00", None, "2026-05-30 18:00"),
        ("11:59", None, "2026-05-30 11:59"),
        ("2026-05-31T06:30", None, "2026-05-31 06:30"),
        ("2026-05-31 06:30", None, "2026-05-31 06:30"),
        ("4h", None, "2026-05-30 16:00"),
        ("06:00", "2026-05-30 22:00", "2026-05-31 06:00"),
        ("23:00", "2026-05-30 22:00", "2026-05-30 23:00"),
        ("90m", "2026-05-30 22:00", "2026-05-30 23:30"),
        ("2d", "2026-05-30 22:00", "2026-06-01 22:00"),
    ],
)
def test_a_time_of_day_a_day_and_a_span_are_read_in_local_time(text: str, begin: str | None, found: str) -> None:
    assert moment("--until", text, NOON, None if begin is None else local(begin)) == local(found)


@pytest.mark.parametrize("text", ["25:00", "noon", "", "4", "4w", "2026-13-01T00:00", "-4h", "18:00:00"])
def test_anything_else_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time: write 14:00, 2026-05-31T14:00, or a span such as 90m"):
        moment("--from", text, NOON)


def test_a_time_of_day_that_has_passed_is_refused_with_how_to_name_tomorrows() -> None:
    with pytest.raises(click.BadParameter, match="11:00 has passed today; write the day, too, such as 2026-05-31T11"):
        moment("--from", "11:00", NOON)


@pytest.mark.parametrize("text", ["2026-05-29T18:00", "2026-05-30 11:58"])
def test_a_day_that_has_passed_is_refused_with_the_present_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"{text} has passed; now it is 2026-05-30T12:00"):
        moment("--from", text, NOON)


def test_a_beginning_that_has_passed_is_named_rather_than_the_end(live: Live) -> None:
    refused = call(live, "reserve", "1", "--from", "2020-05-31T18:00", "--until", "23:00")
    assert "--from: 2020-05-31T18:00 has passed" in refused.output


def test_one_gpu_is_given_back_and_an_unknown_type_lists_those_that_there_are(live: Live) -> None:
    assert call(live, "reserve", "1", "--until", "4h").output.endswith("` gives it back.\n")
    refused = call(live, "reserve", "1", "--until", "4h", "--type", "A100")
    assert str(refused.exception) == "1 GPU cannot be had: no node has GPUs of type 'A100'; there are V100."


def test_gpus_are_reserved_listed_and_given_back(live: Live) -> None:
    made = call(live, "reserve", "2", "--until", "4h", "--for", "ada")
    assert made.output.startswith(f"2 GPUs of {NODE} are reserved for ada from "), made.output
    name = made.output.split("unreserve ")[1].split("`")[0]
    head, row = call(live, "reservations").output.splitlines()
    assert head.split() == ["ID", "NODE", "GPUS", "FOR", "FROM", "UNTIL", "STATE"]
    assert row.split()[:4] == [name, NODE, "2", "ada"] and row.split()[-1] == "kept"
    refused = call(live, "reserve", "3", "--until", "2h")
    assert "3 GPUs cannot be had: reserved then: 2 GPUs of n1 for ada. For as long a time they can be had from " in str(
        refused.exception
    )
    assert not getattr(refused.exception, "problems", ()), "seconds since 1970 are for programs"
    assert call(live, "unreserve", name).output == f"{name} is cancelled: its GPUs of {NODE} are kept for nobody.\n"
    assert json.loads(call(live, "reservations", "-o", "json").output) == []


def test_who_calls_is_who_may_use_them(live: Live) -> None:
    made = json.loads(call(live, "reserve", "1", "--until", "1h", "-o", "json").output)
    assert made["user"] and made["purpose"] == "user" and made["missing"] == 0


def test_a_node_is_drained_for_a_time(live: Live) -> None:
    done = call(live, "drain", NODE, "--at", "2h", "--until", "4h")
    assert done.exit_code == 0, done.exception
    said = done.output.splitlines()
    assert said[0].startswith(f"Node {NODE} is drained from ") and "unreserve" in said[1]
    (row,) = json.loads(call(live, "reservations", "-o", "json").output)
    assert (row["purpose"], row["until"] - row["from"]) == ("maintenance", 4 * 3600)
    assert call(live, "reservations").output.splitlines()[1].split()[3] == "maintenance"
    open_end = call(live, "drain", NODE, "--at", "9h").output
    assert "until undrain." in open_end.splitlines()[0]
    assert call(live, "undrain", NODE).exit_code == 0
    assert json.loads(call(live, "reservations", "-o", "json").output) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"gpus": 0, "until": 1}, "gpus must be a whole number from 1"),
        ({"gpus": 1, "until": "18:00"}, "until must be a time in seconds since 1970"),
        ({"gpus": 1, "until": 1, "user": 3}, "user must be a text"),
        ({"gpus": 1, "until": 1, "why": "x"}, "is not known here"),
        ({"gpus": 1, "until": None}, "until must be a time"),
        ({"gpus": 1, "until": 9e9, "user": "no such user!"}, "user must be the name of a user"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(live: Live, body: dict[str, object], words: str) -> None:
    from reshape.client import Client, CoordinatorRefused

    with pytest.raises(CoordinatorRefused, match=words):
        Client(live.url, TOKEN)._ask("POST", "/v1/reservations", body)


def test_gpus_are_reserved_on_several_nodes(live: Live) -> None:
    odd = call(live, "reserve", "3", "--nodes", "2", "--until", "2h")
    assert odd.exit_code == 2 and "3 GPUs are not as many on each of 2 nodes." in odd.output.replace("\n", " ")
    refused = call(live, "reserve", "2", "--nodes", "2", "--until", "2h")
    assert "2 GPUs cannot be had: there are no 2 nodes of one GPU type that have 1 GPU each." in str(refused.exception)
    assert _node_names({"nodes": ["n1", "n2", "n3"]}) == "n1, n2 and n3"
