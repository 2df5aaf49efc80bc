"""One HTTP request at a time against the live application, and its answer."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.coordinator_api import TOKEN, Live
from tests.patience import patient

GOOD = {"command": ["true"], "optional_num_gpus": [1, 2]}


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    raw: bytes

    @property
    def doc(self) -> Any:
        return json.loads(self.raw)

    @property
    def sentence(self) -> str:
        error = self.doc["error"]
        assert set(error) == {"sentence", "problems", "id"}
        return error["sentence"]


@dataclass
class Caller:
    """Sends one request per connection; with the right token unless told otherwise."""

    live: Live
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": f"Bearer {TOKEN}"})

    def __call__(self, method: str, path: str, body: Any = None, **headers: str | None) -> Answer:
        merged = {**self.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            merged.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.live.port, timeout=patient(20))
        try:
            connection.request(method, path, body, {k: v for k, v in merged.items() if v is not None})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()
