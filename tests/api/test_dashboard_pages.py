"""What the dashboard shows is what the coordinator knows, readable by all and harmless whatever users wrote."""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from datetime import datetime
from html.parser import HTMLParser
from urllib.parse import quote, unquote
from zoneinfo import ZoneInfo

import pytest

from coordinator.api.job_output import TAIL
from coordinator.dashboard.pages import JOBS_PER_PAGE, Pages, coded
from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from tests.api.browser import Browser
from tests.api.caller import Caller
from tests.fakes.coordinator_api import serve
from tests.fakes.shims import Behaviour
from tests.fakes.world import World

LONG = Behaviour(iterations=4_000)
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def world() -> World:
    """A coordinator with a job that trains, and one that must wait."""
    world = World()
    world.submit("first", [4], LONG, elastic=False)
    world.run(lambda w: w.states()["first"] == s.RUNNING)
    world.submit("second", [2], LONG)
    world.run(lambda w: bool(w.job("second").doc.get("message")))
    return world


@pytest.fixture
def browser(world: World) -> Iterator[Browser]:
    with serve(world.api) as live:
        yield Browser.logged_in(live)


class Outline(HTMLParser):
    """Tags must be closed in order; keeps texts and images without words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.unlabelled: list[str] = []
        self.feed(text)
        assert self.open == []
        assert len(self.ids) == len(set(self.ids)), "an id stands twice"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if given.get("id") else []
        if (tag == "img" and "alt" not in given) or (tag == "svg" and not {"aria-label", "aria-hidden"} & given.keys()):
            self.unlabelled.append(self.get_starttag_text() or tag)
        if tag not in ("meta", "link", "img", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Is open and closed at once."""

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def seen(browser: Browser, path: str) -> str:
    """The text of a page, which is sound."""
    answer = browser.get(path)
    assert answer.status == 200, answer.raw
    outline = Outline(answer.raw.decode())
    assert outline.unlabelled == []
    return " ".join(" ".join(filter(None, outline.texts)).split())


def test_the_fleet_shows_each_gpu_with_its_job_and_the_holes(browser: Browser, world: World) -> None:
    text = seen(browser, "/")
    assert "4 of 4 GPUs in use" in text
    assert text.count("first") >= 4
    world.api.operator.cancel("first")
    world.run(lambda w: w.states().get("first") == s.CANCELLED and w.states()["second"] == s.RUNNING)
    text = seen(browser, "/")
    assert "2 of 4 GPUs in use 2 idle" in text
    assert "n1 4 × V100, emulated" in text


def test_a_gpu_that_is_promised_to_another_job_is_marked(world: World) -> None:
    world.submit("third", [1], LONG)
    world.api.operator.cancel("first")
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        for _ in range(30):
            world.tick()
            if 'class="gpu reserved' in browser.get("/").raw.decode():
                return
    raise AssertionError("no GPU was ever shown as reserved")


def test_the_queue_tells_why_a_job_waits_and_when_it_starts(browser: Browser, world: World) -> None:
    text = seen(browser, "/jobs?show=waiting")
    view = world.api.jobs.job("second")
    assert view["message"] in text
    assert "starts in about" in text
    assert "second" not in seen(browser, "/jobs?show=running")


def test_a_job_that_can_never_start_is_told_in_red(browser: Browser, world: World) -> None:
    world.submit("huge", [8, 16], LONG)
    world.tick()
    said = "cannot start: it needs 8 GPUs of one node, and the largest has 4"
    assert f'<small class="bad">{said}</small>' in browser.get("/jobs?show=waiting").raw.decode()
    assert f'<p class="bad">{said}</p>' in browser.get("/").raw.decode()
    assert browser.get("/jobs?show=waiting").raw.decode().count("cannot start") == 1


def test_ended_and_refused_jobs_have_pages_of_their_own(browser: Browser, world: World) -> None:
    world.users.insert("jobs", {"_id": "odd", "job_id": "odd", "state": "submitted", "num_gpus": "many"})
    world.api.operator.cancel("second")
    world.run(lambda w: w.states()["second"] == s.CANCELLED)
    assert "second cancelled" in seen(browser, "/jobs?show=ended")
    assert "odd" in seen(browser, "/jobs?show=refused")
    assert browser.get("/jobs?show=others").status == 404


def test_a_job_has_a_page_with_all_that_is_known_of_it(browser: Browser) -> None:
    text = seen(browser, "/jobs/first")
    assert "Job first running" in text and "state running" not in text, "what the head says is not said again"
    assert "gpus 4 (emulated): gpu-0, gpu-1, gpu-2, gpu-3" in text
    assert browser.get("/jobs/nobody").status == 404


def test_what_users_wrote_is_shown_and_never_run(browser: Browser, world: World) -> None:
    world.users.insert("jobs", {"_id": EVIL, "job_id": EVIL, "state": "submitted", "message": EVIL, EVIL: 1})
    world.submit("<b>", [4], sla=EVIL)
    world.tick()
    for path in (
        "/",
        "/jobs?show=waiting",
        "/jobs?show=refused",
        f"/jobs?named={quote(EVIL)}",
        f"/jobs/{quote(EVIL, safe='')}",
    ):
        raw = browser.get(path).raw.decode()
        assert "<script>alert" not in raw
        assert "<b><" not in raw
    assert html.escape(EVIL) in browser.get("/jobs?show=refused").raw.decode()


def test_a_jobs_page_tells_what_was_decided_what_happened_and_what_it_wrote(browser: Browser, world: World) -> None:
    waits = seen(browser, "/jobs/second")
    assert "let job second wait" in waits
    assert "second waits" in waits
    world.machines.outputs["first"] = b"".join(b"step %d\n" % n for n in range(20_000))
    text = seen(browser, "/jobs/first")
    assert "start job first on 4 GPUs" in text
    assert "candidate" in text
    assert "started" in text
    assert "step 19999" in text
    assert "step 2000" not in text, "all of a long output was sent"
    assert "step 19999" in seen(browser, "/jobs/first"), "what was read before is not shown again"
    world.machines.outputs["first"] += b"step 20000\n"
    text = seen(browser, "/jobs/first")
    assert "step 19999 step 20000" in text
    raw = browser.get("/jobs/first").raw.decode()
    assert raw.count("<rect x=") == 2 * 4, "each GPU, reserved and then in use"


def test_of_a_huge_output_no_more_is_read_than_is_shown(browser: Browser, world: World) -> None:
    world.machines.outputs["first"] = b"step 1\n" * 20_000_000
    assert seen(browser, "/jobs/first").count("step 1") > 1_000
    for _ in range(3):
        world.machines.outputs["first"] += b"more\n" * 1_000_000
        assert "more more" in seen(browser, "/jobs/first")
    assert world.machines.output_read < 10 * TAIL


def test_all_of_an_output_is_downloaded_as_a_file(browser: Browser, world: World) -> None:
    world.machines.outputs["first"] = b"".join(b"step %d\n" % n for n in range(100_000))
    answer = browser.get("/jobs/first/log")
    assert answer.raw == world.machines.outputs["first"]
    assert answer.headers["Content-Disposition"] == 'attachment; filename="first.log"'
    assert browser.get("/jobs/nobody/log").status == 404


def test_beside_the_fleet_stand_the_queue_with_expected_starts_and_the_last_decisions(browser: Browser) -> None:
    text = seen(browser, "/")
    assert re.search(r"Queue 1 waits second .* GPUs.* starts in about", text)
    assert re.search(r"Last decisions [\d:]+ let job second wait", text)
    assert "GPU-hours" in text


def test_gpus_that_do_the_same_are_one_tile_that_says_whose_and_since_when(world: World) -> None:
    world.users.update("jobs", "first", {}, {"owner": "mia"})
    world.tick()
    with serve(world.api) as live:
        raw = Browser.logged_in(live).get("/").raw.decode()
        assert raw.count('<li class="gpu in-use n4') == 1
        assert re.search(r"<small>mia · \d\d:\d\d</small>", raw)


def test_idle_gpus_that_a_reservation_keeps_say_for_whom() -> None:
    world = World()
    world.tick()
    now = world.clock.wall()
    world.api.reservations.reserve({"gpus": 2, "from": now, "until": now + 3600, "user": "ada"})
    world.tick()
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        assert "0 of 4 GPUs in use 2 idle 2 kept by reservations" in seen(browser, "/")
        raw = browser.get("/").raw.decode()
        assert raw.count('<li class="gpu kept n2"') == 1
        assert raw.count("<td>kept for ada</td>") == 2


def test_a_fleet_of_several_types_says_how_many_of_each_are_idle() -> None:
    world = World(nodes=[FoundNode("m", (FoundGpu("m-0", "A100", None, True),))])
    world.submit("first", [4], LONG, gpu_type="V100")
    world.run(lambda w: w.states()["first"] == s.RUNNING)
    with serve(world.api) as live:
        assert "1 idle : 1 A100, 0 V100" in seen(Browser.logged_in(live), "/")


def test_a_job_in_the_queue_that_has_no_expected_start_says_why(browser: Browser, world: World) -> None:
    world.api.operator.suspend("second")
    world.run(lambda w: bool(w.job("second").doc.get("suspended")))
    world.tick()
    assert '<p class="waits">suspended until it is resumed</p>' in browser.get("/").raw.decode()


def test_commands_within_a_sentence_are_shown_as_code_and_nothing_else_of_it_is_markup(
    browser: Browser, world: World
) -> None:
    world.api.operator.suspend("second")
    world.run(lambda w: "resume" in str(w.job("second").doc.get("message")))
    raw = browser.get("/jobs/second").raw.decode()
    assert raw.count("<code>reshape resume second</code> lets it start") > 1
    assert coded("`<b>` & <i>`") == "<code>&lt;b&gt;</code> &amp; &lt;i&gt;`"


def test_the_last_decisions_lead_to_themselves(browser: Browser) -> None:
    (found, *_) = re.findall(r'<a href="/decisions#(decision-[^"]+)">', browser.get("/").raw.decode())
    assert f'id="{unquote(found)}"' in browser.get("/decisions").raw.decode()


def test_lists_of_jobs_say_since_when_each_runs_and_how_long_it_ran(browser: Browser, world: World) -> None:
    assert re.search(r"Since Expected first .* \d\d:\d\d ends", seen(browser, "/jobs"))
    world.pass_time(130.0)
    world.api.operator.cancel("first")
    world.run(lambda w: bool(w.users.get("jobs", "first")["closed"]))
    assert re.search(r"first .* cancelled .* 2m ", seen(browser, "/jobs?show=ended"))


def test_of_many_nodes_a_map_is_shown_with_each_gpu() -> None:
    nodes = [FoundNode(f"m{n}", tuple(FoundGpu(f"m{n}-{i}", "A100", None, True) for i in range(8))) for n in range(12)]
    world = World(nodes=nodes)
    world.tick()
    with serve(world.api) as live:
        raw = Browser.logged_in(live).get("/").raw.decode()
        assert '<ul class="map">' in raw
        assert raw.count('<rect class="of" x=') >= 100
        assert raw.index("<b>m2</b>") < raw.index("<b>m10</b>"), "in their natural order"


def test_an_address_without_a_page_keeps_the_way_to_the_others(browser: Browser) -> None:
    lost = browser.get("/nowhere", Accept="text/html")
    assert lost.status == 404
    assert '<a href="/jobs"' in lost.raw.decode()
    assert "There is no page at this address" in lost.raw.decode()
    assert '<a href="/jobs"' in browser.get("/jobs/nobody", Accept="text/html").raw.decode()


def test_an_address_without_a_page_shows_nothing_of_us_to_strangers(browser: Browser) -> None:
    lost = Browser(browser.live).get("/nowhere", Accept="text/html")
    assert lost.status == 404
    assert "/jobs" not in lost.raw.decode()


def test_the_timeline_shows_the_time_that_was_chosen_a_line_for_now_and_what_is_predicted() -> None:
    world = World.training([1, 2, 4], LONG)
    world.pass_time(30.0)
    world.c.forecaster.update()
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        raw = browser.get("/timeline?last=60").raw.decode()
        assert '<g class="now">' in raw
        assert re.search(r"<title>gpu-0: one, predicted, ", raw)
        now = float(raw.partition('<g class="now"><line x1="')[2].partition('"')[0])
        first = min(float(x) for x in re.findall(r'in-use"><title>gpu-0[^<]*</title><rect x="([\d.]+)"', raw))
        assert now - first < 0.02 * (1000 - 130), "half a minute of an hour and a half"


def test_the_timeline_goes_back_and_forth_in_time() -> None:
    world = World.training([1, 2, 4], Behaviour(iterations=100_000))
    for _ in range(5):
        world.pass_time(300.0)
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        raw = browser.get("/timeline?last=10").raw.decode()
        earlier = html.unescape(raw.partition('rel="prev" href="')[2].partition('"')[0])
        before = browser.get(earlier).raw.decode()
        assert '<g class="now">' not in before, "the past has no forecast"
        assert "gpu-0: one, in use" in before
        assert 'rel="next"' in before and ">now</a>" in before


def test_the_timeline_shows_the_time_that_an_address_names_and_is_shown_closer_and_wider() -> None:
    world = World.training([1, 2, 4], LONG)
    world.pass_time(60.0)
    now = int(world.clock.wall())

    def shown(raw: str) -> list[int]:
        return [int(found) for found in re.findall(r'data-(?:from|until)="(\d+)"', raw)]

    def follow(raw: str, words: str) -> list[int]:
        (link,) = re.findall(f'<a href="([^"]*)">{words}</a>', raw)
        return shown(browser.get(html.unescape(link)).raw.decode())

    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        raw = browser.get(f"/timeline?from={now - 40}&until={now + 40}").raw.decode()
        assert shown(raw) == [now - 40, now + 40]
        assert '<g class="now">' in raw
        assert follow(raw, "closer") == [now - 20, now + 20]
        assert follow(raw, "wider") == [now - 80, now + 80]
        for odd in ("from=x&until=y", f"from={now}&until={now}", "from=1&until=99999999999", "from=-5&until=7"):
            begin, end = shown(browser.get(f"/timeline?last=10&{odd}").raw.decode())
            assert end - begin == 900, "what makes no sense shows the last ten minutes"


@pytest.mark.parametrize("zone", ["", "Nowhere/At_all", "../../etc/passwd", "Asia", "x" * 9_000, "Asia/Kathmandu"])
def test_pages_have_their_times_in_the_zone_that_the_browser_names(zone: str) -> None:
    world = World.training([1, 2], LONG)
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        browser.cookies["reshape-zone"] = zone
        raw = browser.get("/jobs/one").raw.decode()
    known = ZoneInfo(zone) if zone == "Asia/Kathmandu" else None
    started = datetime.fromtimestamp(world.job("one").doc["start_ts"], known)
    assert f"<dd>{started:%Y-%m-%d %H:%M:%S}</dd>" in raw


def test_events_are_told_in_groups_by_what_came_of_them() -> None:
    world = World.training([1, 2, 4])
    world.api.operator.request("one", 2, None)
    world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING)
    with serve(world.api) as live:
        text = seen(Browser.logged_in(live), "/jobs/one")
        events = text.rpartition("Events ")[2]
        assert re.search(r"reshaped 4 to 2 GPUs, stood still for [\d.]+ s \d steps", events)
        assert events.index("reshaped") < events.index("started") < events.index("submitted")


def test_the_head_of_a_job_tells_how_much_its_deadline_leaves() -> None:
    world = World.training([1, 2, 4], sla="2h")
    with serve(world.api) as live:
        text = seen(Browser.logged_in(live), "/jobs/one")
        assert re.search(r"deadline [\d :-]+, 1 h \d+ min to spare", text)


def test_the_values_that_a_job_reports_are_drawn_and_told(world: World) -> None:
    world.submit("curve", [4], falling := Behaviour(iterations=4_000, value=2.0, value_name="loss"))
    world.api.operator.cancel("first")
    world.run(lambda w: w.states()["curve"] == s.RUNNING)
    for _ in range(10):
        world.pass_time(5.0)
        falling.value = (falling.value or 0.0) * 0.9
    points = world.api.jobs.curve("curve")["values"]
    assert len(points) > 1
    with serve(world.api) as live:
        raw = Browser.logged_in(live).get("/jobs/curve").raw.decode()
        assert ">loss</text>" in raw
        assert raw.count("<polyline") == 2, "its loss and its speed"
        assert "4 GPUs from iteration" in raw
        assert f"<td>{points[0][0]:.0f}</td>" in raw


def test_the_curve_of_a_job_is_still_there_when_it_has_ended() -> None:
    falling = Behaviour(iterations=120, value=2.0, value_name="loss")
    world = World.training([1, 2, 4], falling)
    world.pass_time(6.0)
    world.api.operator.request("one", 2, None)
    world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING)
    world.run(lambda w: w.states()["one"] == s.COMPLETED and bool(w.users.get("jobs", "one")["closed"]))
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        raw = browser.get("/jobs/one").raw.decode()
        assert "from 4 to 2 GPUs after" in raw
        assert raw.count("<polyline") == 2
        curve = Caller(live)("GET", "/v1/jobs/one/curve").doc
        assert [gpus for _, gpus in curve["gpus"]] == [4, 2]
        assert curve["values"][-1][0] > 100
        answer = Caller(live)("GET", "/v1/jobs/one/curve.svg")
        picture = Outline(answer.raw.decode())
        assert answer.headers["Content-Type"].startswith("image/svg+xml")
        assert picture.unlabelled == []
        assert "loss" in picture.texts


def test_the_timeline_shows_each_gpu_and_marks_a_reshape() -> None:
    world = World.training([1, 2, 4])
    world.api.operator.request("one", 2, None)
    world.run(lambda w: len(w.job("one").gpu_ids) == 2 and w.states()["one"] == s.RUNNING)
    world.pass_time(30.0)
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        text = seen(browser, "/timeline?last=10")
        assert [f"gpu-{n}" in text for n in range(4)] == [True] * 4
        assert re.search(r"job one down, [\d.]+ s gap", text)
        assert "stopped" in text, "that its GPUs stood still is shown"
        assert seen(browser, "/timeline?last=soon&page=x")


def test_the_decisions_page_shows_the_newest_with_their_rejected_candidates(browser: Browser) -> None:
    text = seen(browser, "/decisions")
    assert text.index("let job second wait") < text.index("start job first on 4 GPUs")
    world = World.training([1, 2, 4])
    with serve(world.api) as live:
        text = seen(Browser.logged_in(live), "/decisions")
        rejected = [
            c["rejected"] for d in world.api.history.decisions("one", 10) for c in d["candidates"] if c["rejected"]
        ]
        assert rejected
        assert all(reason in text for reason in rejected)


def test_a_page_of_ended_jobs_reads_only_those(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        doc = {"job_id": f"old-{number:02}", "state": s.COMPLETED, "closed": True, "finish_ts": 1000.0 + number}
        world.users.insert("jobs", {"_id": f"old-{number:02}", **doc})
    read: list[str] = []
    get = type(world.store).get
    monkeypatch.setattr(type(world.store), "get", lambda *a: (read.append(a[2]), get(*a))[1])
    found = world.api.jobs.jobs_page("ended", "old", 10, 5)
    assert [view["job_id"] for view in found["jobs"]] == [f"old-{number}" for number in (19, 18, 17, 16, 15)]
    assert (found["total"], len(read)) == (30, 5)
    monkeypatch.setattr(type(world.store), "scan", lambda *_: pytest.fail("all names were read again"))
    assert len(world.api.jobs.jobs_page("ended", "", 0, 200)["jobs"]) == 30


def test_a_job_that_has_just_ended_is_listed_at_once(world: World) -> None:
    assert world.api.jobs.jobs_page("ended", "", 0, 10)["total"] == 0
    world.api.operator.cancel("second")
    world.run(lambda w: bool(w.job("second").doc.get("closed")))
    assert [view["job_id"] for view in world.api.jobs.jobs_page("ended", "", 0, 10)["jobs"]] == ["second"]


def test_a_page_of_decisions_reads_only_those(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(world.store), "list", lambda *_: pytest.fail("a whole table was read"))
    found, more = world.api.history.decided(0, 1)
    assert [view["job_id"] for view in found] == ["second"]
    assert more


def test_thousands_of_jobs_are_shown_a_page_at_a_time(world: World) -> None:
    count = 2 * JOBS_PER_PAGE + 50
    for number in range(count):
        world.submit(f"many-{number:04}", [2])
    world.decide()
    with serve(world.api) as live:
        browser = Browser.logged_in(live)
        pages = [browser.get(f"/jobs?show=waiting&page={n}").raw.decode() for n in (1, 2, 3)]
        shown = [re.findall(r'href="/jobs/(many-\d+|second)"', page) for page in pages]
        every = [*(f"many-{number:04}" for number in range(count)), "second"]
        assert [name for page in shown for name in page] == every
        assert [len(page) for page in shown] == [JOBS_PER_PAGE, JOBS_PER_PAGE, 51]
        assert f"jobs 201 to 400 of {count + 1}" in seen(browser, "/jobs?show=waiting&page=2")
        assert "many-0007" in seen(browser, "/jobs?show=waiting&named=0007")
        assert "many-0008" not in seen(browser, "/jobs?show=waiting&named=0007")
        assert browser.get("/jobs?show=waiting&page=99999999999999999999").status == 200


def test_a_page_of_200_jobs_takes_little_of_a_processor(world: World) -> None:
    """The promise is 100 ms; here twice that, as the machine may be busy."""
    for number in range(200):
        world.submit(f"many-{number}", [2])
    world.decide()
    world.api.jobs.jobs_page("waiting", "", 0, 200)  # works out the expected times, as each turn of the loop does
    pages = Pages(lambda zone: str)
    taken = []
    for _ in range(5):
        began = time.thread_time()
        page = pages.page(world.api, "/jobs?show=waiting")
        taken.append(time.thread_time() - began)
    assert page.parts["jobs"].count("<tr>") == 201
    assert min(taken) < 0.2, taken


def test_a_store_that_does_not_answer_is_told_on_a_page(browser: Browser, world: World) -> None:
    world.store.down = True
    answer = browser.get("/jobs?show=ended")
    assert answer.status == 503
    assert answer.headers["Content-Type"].startswith("text/html")


def test_jobs_are_found_by_their_owner_too_also_ended_ones() -> None:
    world = World(gpus=2)
    world.submit("first", [1], LONG, owner="mia")
    world.submit("other", [1], LONG, owner="jan")
    world.pass_time(10.0)
    with serve(world.api) as live:
        browser = Browser.logged_in(live)

        def found(address: str) -> list[str]:
            return re.findall(r"</i>([^<]*)</a>", browser.get(address).raw.decode())

        assert found("/jobs?named=mi") == ["first"]
        assert found("/jobs?named=o") == ["other"]
        world.api.operator.cancel("first")
        world.run(lambda w: bool(w.users.get("jobs", "first")["closed"]))
        assert found("/jobs?show=ended&named=mia") == ["first"]
        assert found("/jobs?show=ended&named=jan") == []


def test_a_large_fleet_stands_in_the_timeline_in_natural_order_and_names_jobs_once() -> None:
    found = [
        FoundNode(f"node-{n}", tuple(FoundGpu(f"node-{n}-{i}", "A100", None, True) for i in range(8)))
        for n in range(12)
    ]
    world = World(gpus=0, nodes=found)
    world.submit("wide", [8], LONG)
    world.pass_time(60.0)
    with serve(world.api) as live:
        raw = Browser.logged_in(live).get("/timeline?last=10").raw.decode()
    names = re.findall(r'<text class="name"[^>]*>node-(\d+)-', raw)
    assert [int(name) for name in names] == [node for node in range(8) for _ in range(8)]
    assert 'class="timeline dense"' in raw
    assert len(re.findall(r'label in-use"[^>]*>wide<', raw)) == 1, "eight rows beside one another are named once"
    assert len(re.findall(r'in-use"><title>node-\d+-\d: wide', raw)) == 8
