"""A browser of the simplest kind: keeps cookies, logs in by a one-time link, sends forms. Not a test."""

from __future__ import annotations

import re
from http.cookies import SimpleCookie
from urllib.parse import urlencode

from tests.api.caller import Answer, Caller
from tests.fakes.coordinator_api import Live

FORM = "application/x-www-form-urlencoded"


class Browser:
    def __init__(self, live: Live) -> None:
        self.live = live
        self.cookies: dict[str, str] = {}
        self._call = Caller(live, {})

    @classmethod
    def logged_in(cls, live: Live) -> Browser:
        browser = cls(live)
        assert browser.get(Caller(live)("POST", "/v1/logins").doc["path"]).status == 200
        return browser

    def get(self, path: str, **headers: str) -> Answer:
        return self._keep(self._call("GET", path, Cookie=self.cookie, **headers))

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        body = urlencode(fields).encode()
        return self._keep(self._call("POST", path, body, Cookie=self.cookie, Content_Type=FORM, **headers))

    @property
    def cookie(self) -> str | None:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items()) or None

    @property
    def proof(self) -> str:
        """What the forms of this session carry."""
        found = re.search(r'name="csrf" value="(\w+)"', self.get("/").raw.decode())
        assert found
        return found[1]

    def _keep(self, answer: Answer) -> Answer:
        for line in answer.headers.get_all("Set-Cookie") or ():
            for name, morsel in SimpleCookie(line).items():
                self.cookies[name] = morsel.value
                if not morsel.value:
                    del self.cookies[name]
        return answer
