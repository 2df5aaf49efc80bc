"""The dashboard lets in who came by a one-time link, for a bounded time, and takes forms from its own pages only."""

from __future__ import annotations

import re

import pytest

from coordinator.http.dashboard.base_page import POLICY
from coordinator.http.dashboard.handlers import ADDRESSES
from coordinator.http.dashboard.login import (
    LINK_S,
    MOST_LINKS,
    MOST_LINKS_OF_ONE,
    MOST_SESSIONS,
    MOST_SESSIONS_OF_ONE,
    SESSION_S,
    LinkUser,
    OneTimeLinks,
    Sessions,
    TokenSessions,
)
from tests.api.browser import Browser
from tests.api.caller import Caller
from tests.fakes.coordinator_api import Live, serve

PAGES = ("/", "/jobs", "/jobs/one", "/timeline", "/decisions", "/live?of=/")


@pytest.mark.parametrize("path", PAGES)
def test_who_is_not_logged_in_sees_nothing_but_how_to_log_in(live: Live, path: str) -> None:
    live.coordinator.broken = AssertionError("an unknown caller reached the books")
    answer = Browser(live).get(path)
    assert answer.status == 401
    assert "reshape dashboard" in answer.raw.decode()


def test_a_one_time_link_lets_one_browser_in_once(live: Live) -> None:
    path = Caller(live)("POST", "/v1/logins").doc["path"]
    first, second = Browser(live), Browser(live)
    assert first.get(path).status == 200
    assert first.get("/").status == 200
    assert "has been used, or is too old" in second.get(path).raw.decode()
    assert second.get(path).status == 401
    assert second.get("/").status == 401


def test_a_program_that_only_looks_at_a_link_does_not_use_it_up(live: Live) -> None:
    path = Caller(live)("POST", "/v1/logins").doc["path"]
    Caller(live, {})("HEAD", path)
    assert Browser(live).get(path).status == 200


def test_the_cookie_is_hidden_from_scripts_and_other_sites_and_ends(live: Live) -> None:
    answer = Browser(live).get(Caller(live)("POST", "/v1/logins").doc["path"])
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={int(SESSION_S)}"} <= set(re.split("; *", cookie))


def test_a_session_holds_until_its_end_and_only_under_the_token_that_it_began_with() -> None:
    sessions = Sessions("token")
    value = sessions.begin(1000.0)
    assert sessions.holds(value, 1000.0 + SESSION_S - 1)
    assert not sessions.holds(value, 1000.0 + SESSION_S)
    assert Sessions("token").holds(value, 1000.0), "it must hold over a restart of the coordinator"
    assert not Sessions("other").holds(value, 1000.0)
    later = f"{int(1e12):x}." + value.split(".", 1)[1]
    assert not any(sessions.holds(wrong, 1000.0) for wrong in (None, "", ".", "x", later, value[:-1], f"é.{value}"))


def test_without_a_token_there_are_no_sessions() -> None:
    nobody = Sessions("")
    assert not nobody.holds(nobody.begin(1000.0), 1000.0)
    with serve(token="") as live:
        assert Browser(live).get("/").status == 401


def test_links_end_after_some_minutes_and_the_oldest_give_way() -> None:
    links = OneTimeLinks()
    secret = links.make(0.0)
    assert not links.redeem(secret, LINK_S)
    first, *others = [links.make(0.0) for _ in range(MOST_LINKS + 1)]
    assert not links.redeem(first, 1.0)
    assert all(links.redeem(other, 1.0) for other in others)
    assert not links.redeem("", 1.0)


def test_a_form_of_somebody_else_is_refused(live: Live) -> None:
    browser = Browser.logged_in(live)
    other = Browser.logged_in(live)
    for fields in ({}, {"csrf": ""}, {"csrf": "é"}, {"csrf": other.proof}):
        assert browser.post("/logout", fields).status == 403
    elsewhere = browser.post("/logout", {"csrf": browser.proof}, Origin="http://127.0.0.1:1")
    assert elsewhere.status == 403
    assert browser.get("/").status == 200, "it was logged out by somebody else"


def test_the_cookie_is_sent_by_https_only_where_a_proxy_with_tls_is_before_us(live: Live) -> None:
    path = Caller(live)("POST", "/v1/logins").doc["path"]
    answer = Caller(live, {"X-Forwarded-Proto": "https"})("GET", path)
    assert "Secure" in re.split("; *", answer.headers["Set-Cookie"])


def test_forms_are_taken_behind_a_proxy_with_tls(live: Live) -> None:
    browser = Browser.logged_in(live)
    origin = live.url.replace("http://", "https://")
    assert browser.post("/logout", {"csrf": browser.proof}, Origin=origin).status == 200


def test_logging_out_ends_the_session_of_this_browser(live: Live) -> None:
    browser = Browser.logged_in(live)
    assert browser.post("/logout", {"csrf": browser.proof}, Origin=live.url).status == 200
    assert browser.get("/").status == 401


@pytest.mark.parametrize("path", [*PAGES[:5], "/login?once=x", "/static/dashboard.js", "/static/none", "/jobs/none"])
def test_every_page_forbids_what_is_not_ours(live: Live, path: str) -> None:
    live.coordinator.submit({"job_id": "one", "command": ["true"], "optional_num_gpus": [1]})
    answer = Browser.logged_in(live).get(path)
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["Referrer-Policy"] == "same-origin"
    text = answer.raw.decode().replace("w3.org", "")
    assert "unsafe" not in POLICY
    assert not re.search(
        r"<style|\sstyle=|\son\w+=|<script(?! src=\"/static/)|https?://", text.replace("w3.org", "")
    ), text


def test_files_are_kept_by_the_browser_as_long_as_they_are_the_same(live: Live) -> None:
    found = re.findall(r'"(/static/[^"]+)"', Browser.logged_in(live).get("/").raw.decode())
    names = ("dashboard.css", "curve.css", "dashboard.js", "icon.svg")
    assert {path.partition("?")[0] for path in found} == {f"/static/{name}" for name in names}
    for path in found:
        assert "immutable" in Browser(live).get(path).headers["Cache-Control"]
        assert Browser(live).get(path.partition("?")[0]).headers["Cache-Control"] == "no-store"


def test_no_address_of_the_dashboard_is_one_of_the_api() -> None:
    assert not [pattern for pattern, _ in ADDRESSES if pattern.startswith("/v1")]


def test_links_of_one_user_of_a_shared_machine_push_out_no_others_and_let_no_other_in() -> None:
    links = OneTimeLinks()
    ann = links.make(0.0, LinkUser(1001))
    bens = [links.make(0.0, LinkUser(1002)) for _ in range(MOST_LINKS)]
    assert not links.redeem(ann, 1.0, 1002) and not links.redeem(ann, 1.0), "nobody else, and it is not used up"
    assert links.redeem(ann, 1.0, 1001)
    assert [links.redeem(link, 1.0, 1002) for link in bens].count(LinkUser(1002)) == MOST_LINKS_OF_ONE


def test_a_session_of_a_shared_machine_is_one_users() -> None:
    sessions = Sessions("token")
    value = sessions.begin(1000.0, 1001)
    assert sessions.user_of(value, 1000.0) == 1001
    assert sessions.user_of(value, 1000.0 + SESSION_S) is None
    assert sessions.user_of(sessions.begin(1000.0), 1000.0) is None, "one for nobody is no user's"
    assert sessions.user_of(value.replace(".1001.", ".1002."), 1000.0) is None


def test_sessions_of_a_clusters_users_end_and_those_of_one_push_out_no_others() -> None:
    sessions = TokenSessions()
    ann = sessions.begin("hers", "ann", 0.0)
    bens = [sessions.begin(f"his-{number}", "ben", 1.0) for number in range(MOST_SESSIONS)]
    assert [bool(sessions.token_of(one, 2.0)) for one in bens].count(True) == MOST_SESSIONS_OF_ONE
    assert sessions.token_of(ann, SESSION_S - 1) == "hers"
    assert sessions.token_of(ann, SESSION_S) == sessions.token_of(None, 0.0) == sessions.token_of("", 0.0) == ""
    sessions.end(bens[-1])
    assert sessions.token_of(bens[-1], 2.0) == ""
