"""What people do with the pages beyond looking: sort, search, submit, run again; and what a page shows when nobody
answers, and of large fleets."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from coordinator.model import states as s
from tests.browser.chrome import WIDE, Chrome
from tests.browser.conftest import SCREENSHOTS
from tests.browser.scene import busy, centre, go, lab, log_in
from tests.browser.test_pages import CONTRASTS, LOOKS
from tests.fakes.coordinator_api import serve
from tests.fakes.world import World

NAMES = "[...document.querySelectorAll('.jobs tbody tr th a')].map((a) => a.textContent)"


def press(tab: Chrome, words: str) -> None:
    tab.do(f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{words}').click()")


def write(tab: Chrome, field: str, text: str) -> None:
    """Fill in a field as a person does, so that the page hears of it."""
    tab.do(f"document.querySelector('{field}').focus()")
    tab.do(f"document.querySelector('{field}').value = {text!r}")
    tab.do(f"document.querySelector('{field}').dispatchEvent(new Event('input', {{bubbles: true}}))")


def test_the_list_of_jobs_is_sorted_by_the_head_that_was_pressed_and_stays_so(tab: Chrome) -> None:
    tab.look(False, WIDE)
    world = busy()
    with serve(world.api) as live:
        log_in(tab, live)
        go(tab, live, "/jobs")
        press(tab, "Job")
        by_name = tab.do(NAMES)
        assert by_name == sorted(by_name)
        press(tab, "Job")
        assert tab.do(NAMES) == by_name[::-1]
        assert tab.do("document.querySelector('.jobs th').getAttribute('aria-sort')") == "descending"
        press(tab, "Progress")
        shares = tab.do("[...document.querySelectorAll('.jobs progress')].map((bar) => bar.value)")
        assert shares == sorted(shares) and len(shares) > 2
        press(tab, "Job")
        world.api.operator.cancel("vgg")
        world.run(lambda w: bool(w.users.get("jobs", "vgg")["closed"]))
        tab.until(f"!{NAMES}.includes('vgg')")
        assert tab.do(NAMES) == [name for name in by_name if name != "vgg"], "what is sent later is sorted, too"
        tab.open("about:blank")


def test_jobs_are_found_while_their_name_is_typed(tab: Chrome) -> None:
    tab.look(False, WIDE)
    with serve(busy().api) as live:
        log_in(tab, live)
        go(tab, live, "/jobs")
        tab.do("window.here = true")
        write(tab, "[name=named]", "resnet")
        tab.until(f"{NAMES}.length === 1")
        assert tab.do(NAMES) == ["resnet50-imagenet"]
        assert tab.do("window.here && document.activeElement.name") == "named", "nothing was loaded anew"
        assert tab.do("location.search") == "?show=running&named=resnet"
        write(tab, "[name=named]", "")
        tab.until(f"{NAMES}.length > 2")
        tab.open("about:blank")


def test_lines_of_the_output_are_searched_and_the_newest_is_followed(tab: Chrome) -> None:
    tab.look(False, WIDE)
    world = busy()
    with serve(world.api) as live:
        log_in(tab, live)
        go(tab, live, "/jobs/resnet50-imagenet")
        at_end = "(log => log.scrollTop + log.clientHeight >= log.scrollHeight - 2)(document.querySelector('.log'))"
        assert tab.do(at_end)
        write(tab, "#log-search", "step=39")
        shown = tab.do("document.querySelector('.log').textContent").split("\n")
        assert len(shown) == 11 and all("step=39" in line for line in shown)
        world.machines.outputs["resnet50-imagenet"] += b"step=39999 by hand\n"
        tab.until("document.querySelector('.log').textContent.includes('step=39999')")
        assert "11" not in tab.do("document.querySelector('#log-found').textContent").split(" ")[0]
        write(tab, "#log-search", "")
        tab.do("document.querySelector('.log').scrollTop = 0")
        tab.until("!document.querySelector('#log-follow').checked")
        world.machines.outputs["resnet50-imagenet"] += b"another line\n"
        tab.until("document.querySelector('.log').textContent.includes('another line')")
        assert tab.do("document.querySelector('.log').scrollTop") == 0, "who reads further up is left there"
        tab.do("document.querySelector('#log-follow').click()")
        assert tab.do(at_end)
        tab.open("about:blank")


def test_a_page_turns_grey_when_nobody_answers_and_says_since_when(tab: Chrome) -> None:
    tab.look(False, WIDE)
    with serve(World.training([1, 2]).api) as live:
        log_in(tab, live)
        go(tab, live, "/")
        assert not tab.do("document.body.classList.contains('gone')")
    tab.until("document.body.classList.contains('gone')")
    assert "The coordinator does not answer: this is how things stood at" in tab.text()
    assert tab.do("getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
    tab.screenshot(SCREENSHOTS / "gone-light.png")
    tab.open("about:blank")
    tab.complaints.clear()  # the browser's own, of the connection that is refused


def test_a_job_is_submitted_cancelled_and_run_again_in_the_browser(tab: Chrome) -> None:
    tab.look(False, WIDE)
    world = World.training([1, 2])
    with serve(world.api) as live:
        log_in(tab, live)
        go(tab, live, "/submit")
        write(tab, "[name=command]", "python train.py")
        write(tab, "[name=gpus]", "1,2")
        write(tab, "[name=name]", "mine")
        press(tab, "Submit")
        tab.until("location.pathname === '/jobs/mine' && document.readyState === 'complete'")
        world.run(lambda w: w.states()["mine"] == s.RUNNING)
        tab.until("document.querySelector('#head').textContent.includes('running')")
        tab.do("document.querySelector('#cancel').open = true")
        press(tab, "Stop this job for good")
        world.run(lambda w: bool(w.users.get("jobs", "mine")["closed"]))
        go(tab, live, "/jobs/mine")
        press(tab, "Run again")
        tab.until("!document.body.innerText.includes('Run again') && document.readyState === 'complete'")
        world.run(lambda w: w.states()["mine"] == s.RUNNING)
        tab.open("about:blank")


def test_all_times_are_shown_in_the_readers_zone_also_in_pictures(tab: Chrome) -> None:
    tab.look(False, WIDE)
    world = World.training([1, 2])
    here = datetime.fromtimestamp(world.clock.wall(), ZoneInfo("Asia/Kathmandu"))  # UTC+5:45
    with serve(world.api) as live:
        log_in(tab, live)
        tab("setTimezoneOverride", "Emulation", timezoneId="Asia/Kathmandu")
        go(tab, live, "/jobs/one")
        tab.until(f"document.querySelector('.event time').textContent.startsWith('{here:%Y-%m-%d %H:}')")
        assert f"{here:%Y-%m-%d %H:}" in tab.do("document.querySelector('#facts').textContent")
        go(tab, live, "/timeline")
        hour = f"{here:%H:}"
        assert hour in tab.do("[...document.querySelectorAll('.timeline .tick')].map((one) => one.textContent).join()")
        assert f"to {hour}" in tab.do("document.querySelector('.timeline .in-use title').textContent")
        tab("setTimezoneOverride", "Emulation", timezoneId="")
        tab.open("about:blank")


def test_a_stretch_of_the_timeline_that_is_drawn_over_is_shown_alone(tab: Chrome) -> None:
    tab.look(False, WIDE)
    with serve(busy().api) as live:
        log_in(tab, live)
        go(tab, live, "/timeline?last=60")
        begin, until = tab.do(
            "[...document.querySelectorAll('svg[data-from]')].map((p) => [+p.dataset.from, +p.dataset.until])[0]"
        )
        names = tab.do("+document.querySelector('svg[data-from]').dataset.left")
        left, width, top = tab.do(
            "(b => [b.left, b.width, b.top])(document.querySelector('.timeline').getBoundingClientRect())"
        )

        def drag(first: float, last: float) -> None:
            """Press at one place of the picture, from 0 to 1000, and let go at another."""
            for what, at in (("mousePressed", first), ("mouseMoved", (first + last) / 2), ("mouseReleased", last)):
                x = left + width * at / 1000
                y = top + 40
                tab("dispatchMouseEvent", "Input", type=what, x=x, y=y, button="left", buttons=1, clickCount=1)

        drag(400, 402)
        assert tab.do("location.search") == "?last=60", "a click is no stretch"
        drag(700, 400)  # backwards, too
        tab.until("location.search.includes('from=') && document.readyState === 'complete'")
        shown = tab.do("(p => [+p.dataset.from, +p.dataset.until])(document.querySelector('svg[data-from]'))")
        span = until - begin
        assert shown[0] == pytest.approx(begin + span * (400 - names) / (1000 - names), abs=0.01 * span)
        assert shown[1] == pytest.approx(begin + span * (700 - names) / (1000 - names), abs=0.01 * span)
        tab.screenshot(SCREENSHOTS / "timeline-zoomed-light.png")
        tab.do("[...document.querySelectorAll('.groups a')].find((a) => a.textContent === 'wider').click()")
        tab.until(f"+document.querySelector('svg[data-from]')?.dataset.from < {shown[0]}")
        tab.open("about:blank")


def test_what_gpus_did_in_a_day_is_drawn_with_a_table_behind_it(tab: Chrome) -> None:
    with serve(busy().api) as live:
        log_in(tab, live)
        go(tab, live, "/")
        assert tab.do("document.querySelectorAll('.day .held').length") > 80
        assert tab.do("document.querySelectorAll('.day .busy').length") > 80
        text = tab.do("document.querySelector('#use').textContent")
        assert "GPU-hours in use" in text and "hours measured" in text
        tab.do("document.querySelector('#use-table').open = true")
        assert tab.do("document.querySelectorAll('#use-table tbody tr').length") > 80
        tab.open("about:blank")


def test_gpus_that_a_reservation_keeps_look_other_than_idle_ones(tab: Chrome) -> None:
    world = busy()
    now = world.clock.wall()
    world.api.reservations.reserve({"gpus": 3, "from": now, "until": now + 3600, "user": "ada", "node": "n2"})
    world.tick()
    with serve(world.api) as live:
        log_in(tab, live)
        for look, (dark, screen) in LOOKS.items():
            tab.look(dark, screen)
            go(tab, live, "/")
            tab.screenshot(SCREENSHOTS / f"fleet-kept-{look}.png")
            assert tab.do("document.querySelector('.gpu.kept').innerText") == "3 for ada"
            assert tab.do(CONTRASTS) == []
        tab.open("about:blank")


def test_a_wrong_address_keeps_the_way_to_the_pages(tab: Chrome) -> None:
    tab.look(False, WIDE)
    with serve(World.training([1, 2]).api) as live:
        log_in(tab, live)
        tab.open(live.url + "/nowhere")
        assert "There is no page at this address" in tab.text()
        tab.do("document.querySelector('nav a[href=\"/jobs\"]').click()")
        tab.until("location.pathname === '/jobs' && document.readyState === 'complete'")
        tab.open("about:blank")
    assert {"404" in complaint for complaint in tab.complaints} == {True}
    tab.complaints.clear()


@pytest.mark.parametrize("size", ["96", "1000"])
def test_large_fleets_are_seen_at_a_glance(tab: Chrome, size: str) -> None:
    with serve({"96": lab, "1000": centre}[size]().api) as live:
        log_in(tab, live)
        for look, (dark, screen) in LOOKS.items():
            tab.look(dark, screen)
            go(tab, live, "/")
            assert tab.do("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), look
            assert tab.do(CONTRASTS) == []
            assert tab.do("document.querySelectorAll('.map rect.of').length") == int(size)
            assert tab.do("document.querySelectorAll('.map a[href^=\"/jobs/\"] rect.of').length") > int(size) // 2
            assert tab.do("document.querySelectorAll('.queue li').length") > 2
            tab.screenshot(SCREENSHOTS / f"fleet-{size}-{look}.png")
            for page in ("timeline", "jobs", "decisions", "what-if") if look in ("light", "phone-dark") else ():
                go(tab, live, f"/{page}")
                fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
                assert tab.do(fits), f"{page} {look}"
                tab.screenshot(SCREENSHOTS / f"{page}-{size}-{look}.png")
        go(tab, live, "/timeline")
        assert tab.do("document.querySelectorAll('.timeline .predicted').length") > 10
        tab.open("about:blank")
