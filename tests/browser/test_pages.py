"""Every page in a real browser: without a complaint, readable in light, in dark and on a phone, with names for all that
can be used. Leaves a screenshot of each in build/screenshots."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.browser.chrome import LARGE, PHONE, TABLET, WIDE, Chrome
from tests.browser.conftest import SCREENSHOTS
from tests.browser.scene import EVIL, busy, go, log_in
from tests.fakes.coordinator_api import Live, serve

PAGES = {
    "fleet": "/",
    "timeline": "/timeline",
    "jobs": "/jobs",
    "waiting": "/jobs?show=waiting",
    "ended": "/jobs?show=ended",
    "refused": "/jobs?show=refused",
    "job": "/jobs/resnet50-imagenet",
    "job-reshaped": "/jobs/bert-large-finetune-squad",
    "job-waiting": "/jobs/later-0",
    "decisions": "/decisions",
    "what-if": "/what-if",
    "submit": "/submit",
}
LOOKS = {"light": (False, WIDE), "dark": (True, WIDE), "phone": (False, PHONE), "phone-dark": (True, PHONE)}
LOOKS |= {"tablet": (False, TABLET), "tablet-dark": (True, TABLET)}
LOOKS |= {"large": (False, LARGE), "large-dark": (True, LARGE)}
NAMED = {"link", "button", "textbox", "searchbox", "combobox", "checkbox", "image", "img", "region", "progressbar"}

# Text and what lies behind it, of all that is shown; the worst contrasts (WCAG asks for 4.5).
CONTRASTS = """
(() => {
  const numbers = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const [r, g, b, a = 1] = numbers(getComputedStyle(one).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return numbers(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3);
  };
  const found = [];
  for (const one of document.querySelectorAll("main *, header *")) {
    const said = [...one.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join("");
    if (!said || one.closest("svg, select, .skip, [hidden]") || !one.checkVisibility()) continue;
    const [a, b] = [light(numbers(getComputedStyle(one).color)), light(behind(one))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < 4.5) found.push(`${said.slice(0, 30)} (${one.tagName}.${one.className}): ${contrast.toFixed(1)}`);
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def live(browser: Chrome) -> Iterator[Live]:
    with serve(busy().api) as running:
        log_in(browser, running)
        yield running


@pytest.mark.parametrize(("page", "look"), [*itertools.product(PAGES, LOOKS)])
def test_a_page_is_sound_and_readable(tab: Chrome, live: Live, page: str, look: str) -> None:
    tab.look(*LOOKS[look])
    go(tab, live, PAGES[page])
    tab.screenshot(SCREENSHOTS / f"{page}-{look}.png")
    assert tab.do("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), (
        "wider than the screen"
    )
    assert tab.do(CONTRASTS) == []
    unnamed = [node for node in tab.tree() if node["role"] in NAMED and not node["name"]]
    assert unnamed == []
    assert tab.do("window.ran") is None, "a page ran what a user wrote"


def test_pictures_have_a_table_behind_them_that_says_the_same(tab: Chrome, live: Live) -> None:
    tab.look(*LOOKS["light"])
    go(tab, live, "/timeline")
    assert tab.do("document.querySelector('#timeline-table').open = true")
    assert tab.do("document.querySelectorAll('#timeline-table td').length") > 10
    assert "bert-large-finetune-squad down" in tab.text()


def test_a_strange_name_can_be_followed_to_its_page(tab: Chrome, live: Live) -> None:
    go(tab, live, "/jobs?show=refused")
    tab.do("[...document.querySelectorAll('.jobs a')].find((a) => a.textContent.includes('script')).click()")
    tab.until("location.pathname.startsWith('/jobs/') && document.readyState === 'complete'")
    assert EVIL in tab.do("document.querySelector('h1').textContent")
    assert tab.do("window.ran") is None


def test_the_list_of_jobs_says_whose_each_is(tab: Chrome, live: Live) -> None:
    tab.look(*LOOKS["light"])
    go(tab, live, "/jobs")
    rows = tab.do("[...document.querySelectorAll('.jobs tbody tr')].map((row) => row.innerText)")
    assert "mia" in next(row for row in rows if "resnet50" in row)
    assert "mia" not in next(row for row in rows if "bert" in row)


def test_names_of_rows_stay_in_sight_where_a_picture_is_wider_than_the_screen(tab: Chrome, live: Live) -> None:
    tab.look(*LOOKS["phone"])
    for page, picture in (("/timeline", ".timeline"), ("/jobs/resnet50-imagenet", ".timeline"), ("/what-if", ".gantt")):
        go(tab, live, page)
        scrolled = f"document.querySelector('.scroll:has({picture})')"
        for place in (1e6, 0, 1e6):
            tab.do(f"{scrolled}.scrollLeft = {place}")
            tab.until(
                f"document.querySelector('{picture} .names').getBoundingClientRect().left"
                f" - {scrolled}.getBoundingClientRect().left < 20"
            )
            assert tab.do(f"document.querySelector('{picture} .names .name').getBoundingClientRect().left") >= 0


def test_what_if_opens_with_what_is_expected_and_with_examples_to_click(tab: Chrome, live: Live) -> None:
    tab.look(*LOOKS["light"])
    go(tab, live, "/what-if")
    assert "later-0" in tab.do("document.querySelector('.gantt').textContent")
    tab.do("[...document.querySelectorAll('.examples button')].find((b) => b.textContent === '2 more V100').click()")
    tab.until("document.querySelector('#answer') !== null")
    assert tab.do("document.querySelectorAll('.gantt').length") == 2
    assert tab.do("document.querySelector('.questions [name=count]').value") == "+2"


def test_a_document_that_was_refused_is_not_called_submitted(tab: Chrome, live: Live) -> None:
    tab.look(*LOOKS["light"])
    go(tab, live, "/jobs?show=refused")
    assert set(tab.do("[...document.querySelectorAll('.state')].map((one) => one.textContent)")) == {"not accepted"}
    go(tab, live, "/jobs/odd")
    assert tab.do("document.querySelector('#head .state').textContent") == "not accepted"


@pytest.mark.parametrize("look", LOOKS)
def test_what_if_is_asked_by_a_form_and_answered_beside_now(tab: Chrome, live: Live, look: str) -> None:
    tab.look(*LOOKS[look])
    go(tab, live, "/what-if")
    tab.do("document.querySelector('.questions [name=count]').value = '+8'")
    tab.do("document.querySelector('.questions [name=gpu_type]').value = 'V100'")
    tab.do("document.querySelector('.questions > button').click()")
    tab.until("document.querySelector('#answer') !== null && document.getElementById('live').textContent === 'live'")
    text = tab.text()
    assert "Then starts" in text and "later-0" in text and "Makespan" in text
    assert tab.do("document.querySelector('.questions [name=count]').value") == "+8", "what was asked stays"
    assert tab.do("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert tab.do(CONTRASTS) == []
    tab.screenshot(SCREENSHOTS / f"what-if-answer-{look}.png")


def test_the_way_in_is_shown_to_who_is_not_logged_in(tab: Chrome, live: Live) -> None:
    tab("clearBrowserCookies", "Network")
    for look, (dark, size) in LOOKS.items():
        tab.look(dark, size)
        tab.open(live.url + "/jobs")
        assert "reshape dashboard" in tab.text()
        tab.screenshot(SCREENSHOTS / f"login-{look}.png")
    assert {"401" in complaint for complaint in tab.complaints} == {True}
    tab.complaints.clear()
