"""An open page hears of what has changed in it, once for all who look at it, and of nothing else."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from coordinator.dashboard.pages import Page, Pages
from coordinator.model import states as s
from tests.api.browser import Browser
from tests.fakes.coordinator_api import Live, serve
from tests.fakes.world import World
from tests.patience import eventually, patient


class Follower:
    """Reads one stream in a thread."""

    def __init__(self, live: Live, browser: Browser, address: str, version: str = "") -> None:
        self.parts: list[dict[str, str]] = []
        self.version = version
        self._connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=patient(60))
        self._connection.request(
            "GET", f"/live?of={quote(address)}&version={version}", headers={"Cookie": browser.cookie or ""}
        )
        self.response = self._connection.getresponse()
        assert self.response.status == 200
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self.response:
                if line.startswith(b"id: "):
                    self.version = line[4:].strip().decode()
                if line.startswith(b"data: "):
                    self.parts.append(json.loads(line[6:]))
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass

    def end(self) -> None:
        sock = self._connection.sock or self.response.fp.raw._sock  # type: ignore[union-attr]
        sock.shutdown(2)
        self._thread.join()


@contextmanager
def following(live: Live, browser: Browser, address: str, version: str = "") -> Iterator[Follower]:
    follower = Follower(live, browser, address, version)
    try:
        yield follower
    finally:
        follower.end()


def version_of(browser: Browser, path: str) -> str:
    return browser.get(path).raw.decode().partition('data-version="')[2].partition('"')[0]


def test_a_reshape_arrives_in_an_open_page_without_reloading() -> None:
    world = World.training([1, 2, 4])
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        with following(live, browser, "/", version_of(browser, "/")) as follower:
            world.api.operator.request("one", 2, None)
            world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING)
            eventually(lambda: any("<b>2<small> of 4" in p.get("summary", "") for p in follower.parts), "2 of 4 in use")


def test_only_parts_that_changed_are_sent() -> None:
    world = World.training([4])
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        with following(live, browser, "/", version_of(browser, "/")) as follower:
            world.submit("two", [4])
            world.tick()
            eventually(lambda: any("summary" in parts for parts in follower.parts), "one more waits")
            assert not any("fleet" in parts for parts in follower.parts), "the fleet is as it was"


def test_a_page_says_that_it_may_be_old_while_the_coordinator_cannot_work() -> None:
    world = World.training([4])
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        said = "What is shown may be old: The store does not answer: the disk is full."
        assert said not in browser.get("/jobs").raw.decode()
        with following(live, browser, "/", version_of(browser, "/")) as follower:
            world.c.trouble = "The store does not answer: the disk is full."
            eventually(lambda: any(said in p.get("trouble", "") for p in follower.parts), "an open page says so")
            assert said in browser.get("/jobs").raw.decode()
            world.c.trouble = ""
            eventually(lambda: follower.parts[-1].get("trouble", said).strip() == "", "and no more")


def test_a_reader_that_comes_back_gets_what_it_missed_and_nothing_it_has() -> None:
    world = World.training([4])
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        with following(live, browser, "/", "another") as late:
            eventually(lambda: late.parts, "the whole page")
            assert set(late.parts[0]) == {"trouble", "summary", "fleet", "use", "queue", "latest"}
            assert late.version == version_of(browser, "/")


def test_all_who_look_at_a_page_share_its_making(monkeypatch: Any) -> None:
    made: list[str] = []
    make = Pages.page

    def counted(pages: Pages, source: Any, address: str) -> Page:
        made.append(address)
        return make(pages, source, address)

    world = World.training([4])
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        version = version_of(browser, "/")
        followers = [Follower(live, browser, "/", version) for _ in range(20)]
        monkeypatch.setattr(Pages, "page", counted)
        for number in range(200):  # events come faster than pages are made
            world.c.event_log.append({"type": "noise", "job_id": f"j{number}"})
        world.submit("two", [4])
        world.tick()
        eventually(lambda: all(f.parts for f in followers), "all heard of it")
        assert len(made) < 20, "the page was made anew for each reader or each event"
        for follower in followers:
            follower.end()
        eventually(lambda: not live.app.settings["dashboard"].live._pages, "nothing is made for nobody")
        assert world.c.event_log._listeners == []


def test_a_page_whose_job_is_unknown_is_not_followed() -> None:
    with serve(World().api) as live:
        assert Browser.logged_in(live).get("/live?of=/jobs/none").status == 404


def test_each_who_looks_has_times_in_the_own_zone() -> None:
    world = World.training([1, 2, 4])
    here = {zone: datetime.fromtimestamp(world.clock.wall(), ZoneInfo(zone)) for zone in ("Asia/Tokyo", "Asia/Dhaka")}
    with serve(world.api) as live, ExitStack() as all_open:
        browser = Browser.logged_in(live)
        followers = {}
        for zone in here:
            browser.cookies["reshape-zone"] = zone
            followers[zone] = all_open.enter_context(following(live, browser, "/jobs/one"))
        for zone, follower in followers.items():
            eventually(lambda follower=follower: bool(follower.parts), what=f"the page for {zone}")
            assert f"{here[zone]:%Y-%m-%d %H:}" in follower.parts[0]["events"]
