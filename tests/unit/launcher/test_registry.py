"""What an image starts, read from a registry that speaks the protocol, on a real socket."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from coordinator.errors import Rejected, Transient
from launcher.cluster.registry import ImageCommands, ImageName, read
from tests.fakes.http_thread import serving_in_thread
from tests.patience import eventually

Doc = dict[str, Any]


class Registry(BaseHTTPRequestHandler):
    """One repository `me/train`; its blobs lie on another host, for which `localhost` stands."""

    pages: dict[str, Doc]
    asked: list[tuple[str, str | None]]
    busy: int  # requests that are answered so, before all others

    def do_GET(self) -> None:
        if self.busy:
            Registry.busy -= 1
            self._answer(429, {})
            return
        token, port = self.headers.get("Authorization"), self.server.server_address[1]
        self.asked.append((self.path, token))
        if self.path.startswith("/v2/") and token != "Bearer for-anybody":
            asks = f'Bearer realm="http://127.0.0.1:{port}/token",service="r",scope="repository:me/train:pull"'
            self._answer(401, {}, ("WWW-Authenticate", asks))
        elif self.path.startswith("/v2/me/train/blobs/"):
            self._answer(307, {}, ("Location", f"http://localhost:{port}/stored"))
        elif self.path.startswith("/token?"):
            self._answer(200, {"token": "for-anybody"})
        elif self.path in self.pages:
            self._answer(200, self.pages[self.path])
        else:
            self._answer(404, {})

    def _answer(self, code: int, doc: Doc, *headers: tuple[str, str]) -> None:
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(doc).encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[type[Registry]]:
    Registry.asked, Registry.busy = [], 0
    Registry.pages = {
        "/v2/me/train/manifests/1": {"manifests": [
            {"digest": "sha256:w", "platform": {"os": "windows"}}, {"digest": "sha256:l", "platform": {"os": "linux"}},
        ]},
        "/v2/me/train/manifests/sha256:l": {"config": {"digest": "sha256:c"}},
        "/stored": {"config": {"Entrypoint": ["python"], "Cmd": ["train.py"]}},
    }  # fmt: skip
    yield Registry


@pytest.fixture
def host(registry: type[Registry]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), registry)
    with serving_in_thread(server):
        yield f"127.0.0.1:{server.server_address[1]}"


def test_the_configuration_of_the_linux_image_is_read_and_only_its_registry_sees_the_token(
    host: str, registry: type[Registry]
) -> None:
    assert read(f"{host}/me/train:1") == {"entrypoint": ["python"], "cmd": ["train.py"]}
    assert [token for path, token in registry.asked if path == "/stored"] == [None]


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ({"/stored": {"config": {}}}, "it starts nothing by itself"),
        ({"/v2/me/train/manifests/sha256:l": {"config": "odd"}}, "answered what is no image"),
        ({"/v2/me/train/manifests/1": {"manifests": []}}, "answered what is no image"),
    ],
)
def test_what_cannot_be_read_is_said(host: str, registry: type[Registry], pages: Doc, words: str) -> None:
    registry.pages |= pages
    with pytest.raises(Rejected, match=words):
        read(f"{host}/me/train:1")


def test_a_missing_image_and_a_registry_that_is_away_are_told_apart(host: str) -> None:
    with pytest.raises(Rejected, match="answered 404"):
        read(f"{host}/me/other:1")
    with pytest.raises(Transient, match=r"127\.0\.0\.1:1 does not answer"):
        read("127.0.0.1:1/me/train:1")


@pytest.mark.parametrize("lasts", [2, 100])
def test_a_registry_that_cannot_answer_now_is_asked_again_but_not_for_ever(
    host: str, registry: type[Registry], lasts: int
) -> None:
    answered = threading.Event()
    images, registry.busy = ImageCommands((host,), answered.set, again_s=0.0), lasts
    assert images.command_of_image(f"{host}/me/train:1") is None
    eventually(answered.is_set)
    good = {"entrypoint": ["python"], "cmd": ["train.py"]}
    assert images.command_of_image(f"{host}/me/train:1") == (good if lasts == 2 else {"why": f"{host} answered 429"})


def test_only_a_registry_that_is_named_is_asked_and_each_answer_is_kept(host: str, registry: type[Registry]) -> None:
    answered = threading.Event()
    images = ImageCommands((host,), answered.set)
    assert images.command_of_image("elsewhere.example/x:1") == {
        "why": "RESHAPE_REGISTRIES of the launcher does not name elsewhere.example"
    }
    assert images.command_of_image(f"{host}/me/train:1") is None
    eventually(answered.is_set)
    count = len(registry.asked)
    assert images.command_of_image(f"{host}/me/train:1") == {"entrypoint": ["python"], "cmd": ["train.py"]}
    assert len(registry.asked) == count


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python", ImageName("docker.io", "library/python", "latest")),
        ("ddocker122/model-training:latest", ImageName("docker.io", "ddocker122/model-training", "latest")),
        ("docker.io/a/b:2", ImageName("docker.io", "a/b", "2")),
        ("registry.example:5000/team/img:v1", ImageName("registry.example:5000", "team/img", "v1")),
        ("localhost/img@sha256:0a", ImageName("localhost", "img", "sha256:0a")),
    ],
)
def test_a_name_is_split_as_docker_does(text: str, name: ImageName) -> None:
    assert ImageName.parse(text) == name
