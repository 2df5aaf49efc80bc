"""The what-if form of the dashboard: answered beside what happens as things stand, and nothing is touched by asking."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from coordinator.forecasts import what_if_form
from tests.api.browser import Browser
from tests.fakes.coordinator_api import serve
from tests.fakes.shims import Behaviour
from tests.fakes.world import World


@pytest.fixture
def world() -> World:
    """Job one trains on all GPUs and cannot give any, job two waits."""
    world = World.training([4], Behaviour(iterations=4_000))
    world.submit("two", [4], Behaviour(iterations=100))
    world.tick()
    return world


@pytest.fixture
def browser(world: World) -> Iterator[Browser]:
    with serve(world.api) as live:
        yield Browser.logged_in(live)


def asked(browser: Browser, **fields: str) -> tuple[int, str]:
    answer = browser.post("/what-if", {"csrf": browser.proof, **fields})
    return answer.status, answer.raw.decode()


def test_more_gpus_would_start_a_waiting_job_and_the_form_keeps_what_was_asked(browser: Browser, world: World) -> None:
    before = world.store.writes
    status, page = asked(browser, count="4", gpu_type="V100")
    assert status == 200
    assert '<th scope="col">Then ends</th>' in page and "Makespan: " in page and ", then " in page
    assert 'name="count" size="4" inputmode="numeric" placeholder="+2" value="4"' in page
    assert world.store.writes == before


def test_what_changes_is_drawn_below_what_happens_now(browser: Browser) -> None:
    page = asked(browser, count="4", gpu_type="V100")[1]
    assert page.count('<svg class="gantt"') == page.count("the table below says the same") == 2
    assert re.search(r'<g class="earlier"><title>two: ', page)
    assert re.search(r'<g class="same"><title>one: ', page)


def test_the_page_opens_with_what_is_expected_and_with_examples_that_can_be_asked(
    browser: Browser, world: World
) -> None:
    world.c.forecaster.update()
    opened = browser.get("/what-if").raw.decode()
    drawn = opened.partition('<svg class="gantt"')[2].partition("</svg>")[0]
    assert "<title>one: runs, ends in " in drawn and "<title>two: starts in " in drawn
    assert "<table" not in opened and "table below" not in opened
    examples = re.findall(r'<form method="post" action="/what-if">(.*?)</form>', opened)
    assert len(examples) == 3  # one node alone is not left out
    for example in examples:
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', example))
        status, page = asked(browser, **fields)
        assert status == 200 and "Then ends" in page, fields


def test_the_page_says_so_where_no_job_is_there(browser: Browser, world: World) -> None:
    world.api.operator.cancel("one")
    world.api.operator.cancel("two")
    world.run(lambda w: all(bool(w.users.get("jobs", name)["closed"]) for name in ("one", "two")))
    world.c.forecaster.update()
    assert "No job runs or waits. Try a new one." in browser.get("/what-if").raw.decode()


def test_a_job_that_is_not_there_yet_is_tried(browser: Browser, world: World) -> None:
    page = asked(browser, new_gpus="4", new_iterations="50")[1]
    assert re.search(r'<g class="added"><title>new-1: starts in ', page)
    assert "new-1" not in world.states()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"count": "many", "gpu_type": "V100"}, "is no count and type"),
        ({"count": "2"}, "is no count and type"),
        ({"new_gpus": "2"}, "A new job needs GPU counts"),
        ({"new_gpus": "x", "new_iterations": "5"}, "are no counts"),
        ({"job": "one"}, "A deadline needs a job and a time"),
        ({"job": "one", "deadline": "soon"}, "names no job and time"),
        ({"job": "nobody", "deadline": "30m"}, "There is no job"),
        ({"node": "<b>"}, "&lt;b&gt;"),
        ({"policy": "best"}, "There is no policy"),
        ({"order": "luck"}, "queue_order"),
    ],
)
def test_a_senseless_field_is_named_above_the_form(browser: Browser, fields: dict[str, str], said: str) -> None:
    status, page = asked(browser, **fields)
    assert status == 400 and said in page and "<button>Simulate</button>" in page


@pytest.mark.parametrize("fields", [{"node": "n1"}, {"job": "two", "deadline": "30m"}, {"policy": "default"}, {}])
def test_each_question_is_answered(browser: Browser, fields: dict[str, str]) -> None:
    status, page = asked(browser, **fields)
    assert status == 200 and ("Then ends" in page) is bool(fields)


def test_who_is_not_logged_in_or_comes_from_elsewhere_is_told_nothing(browser: Browser) -> None:
    assert browser.post("/what-if", {"count": "4", "gpu_type": "V100"}).status == 403
    browser.cookies.clear()
    assert browser.get("/what-if").status == browser.post("/what-if", {"csrf": "x"}).status == 401


def test_what_takes_too_long_is_refused_with_what_to_do(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if_form, "BUDGET_S", -1.0)
    status, page = asked(browser, count="4", gpu_type="V100")
    assert status == 400 and "ask `reshape what-if` on your machine" in page
