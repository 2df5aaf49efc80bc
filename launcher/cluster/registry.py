"""Reads from a registry what an image starts by itself: ENTRYPOINT and CMD of its configuration.

By the OCI distribution API, without a password. Only registries that the settings name are asked: whoever may write a
Slaml must not choose which addresses the launcher calls. Called by `controllers.slaml`, which never waits for it.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from coordinator.errors import Rejected, Transient

Doc = dict[str, Any]

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
KEPT_S = 60.0  # an answer, good or bad: a tag may move, and a registry be mended
AGAIN_S, MOST_ASKED = 30.0, 10  # a registry that cannot answer now is asked again; a Slaml waits meanwhile
BUSY, SERVER_ERROR = 429, 500
ANSWER_MAX = 4 * 1024 * 1024
DOCKER, ITS_ADDRESS = "docker.io", "registry-1.docker.io"
MANIFESTS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)
CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class ImageName:
    registry: str
    repository: str
    reference: str  # tag or digest

    @classmethod
    def parse(cls, text: str) -> ImageName:
        """Split a name as Docker does: without a registry it is Docker Hub's, without a tag `latest`."""
        name, _, digest = text.partition("@")
        first, slash, rest = name.partition("/")
        named = bool(slash) and (first == "localhost" or "." in first or ":" in first)
        registry, path = (first, rest) if named else (DOCKER, name)
        repository, _, tag = path.partition(":")
        if registry == DOCKER and "/" not in repository:
            repository = f"library/{repository}"
        return cls(registry, repository, digest or tag or "latest")

    @property
    def url(self) -> str:
        host = ITS_ADDRESS if self.registry == DOCKER else self.registry
        return f"{_scheme(host)}://{host}/v2/{self.repository}"


class ImageCommands:
    """What images start; each is read in a thread of its own. `answered` is called once one is known."""

    def __init__(self, registries: Collection[str], answered: Callable[[], None], again_s: float = AGAIN_S) -> None:
        self._registries, self._answered, self._again_s = registries, answered, again_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Doc | None]] = {}  # by image: until when, and the answer

    def command_of_image(self, image: str) -> Doc | None:
        """Return `{entrypoint, cmd}`, or `{why}` it is not known; None while it is being read."""
        registry = ImageName.parse(image).registry
        if registry not in self._registries:
            return {"why": f"RESHAPE_REGISTRIES of the launcher does not name {registry}"}
        with self._lock:
            until, answer = self._known.get(image, (0.0, None))
            if until > time.monotonic():
                return answer
            self._known = {name: kept for name, kept in self._known.items() if kept[0] > time.monotonic()}
            self._known[image] = (float("inf"), None)
        threading.Thread(target=self._read, args=(image,), name="read an image", daemon=True).start()
        return None

    def _read(self, image: str) -> None:
        answer = self._answer(image)
        with self._lock:
            self._known[image] = (time.monotonic() + KEPT_S, answer)
        self._answered()

    def _answer(self, image: str) -> Doc:
        why = ""
        for times in range(MOST_ASKED):  # a Slaml must not wait for ever, and none is refused for a short outage
            if times:
                time.sleep(self._again_s)
            try:
                return read(image)
            except Transient as error:
                log.warning("image %s: %s", image, error)
                why = str(error)
            except Rejected as error:
                return {"why": str(error)}
            except Exception:
                log.exception("image %s", image)
                return {"why": "its registry answered what is no image"}
        return {"why": why}


def read(image: str) -> Doc:
    """Return `{entrypoint, cmd}` of an image, lists of texts. `Rejected` or `Transient` with the reason."""
    name = ImageName.parse(image)
    try:
        return _started(_Session(name))
    except HTTPError as error:
        kind = Transient if error.code == BUSY or error.code >= SERVER_ERROR else Rejected
        raise kind(f"{name.registry} answered {error.code}") from None
    except (URLError, HTTPException, OSError) as error:
        why = getattr(error, "reason", None) or error
        raise Transient(f"{name.registry} does not answer ({why})") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise Rejected(f"{name.registry} answered what is no image") from None


def _started(session: _Session) -> Doc:
    manifest = session.get(f"manifests/{session.name.reference}")
    if "manifests" in manifest:  # one for each platform
        parts = manifest["manifests"]
        ours = [one for one in parts if (one.get("platform") or {}).get("os") == "linux"]
        manifest = session.get(f"manifests/{(ours or parts)[0]['digest']}")
    config = session.get(f"blobs/{manifest['config']['digest']}").get("config") or {}
    found = {"entrypoint": _words(config.get("Entrypoint")), "cmd": _words(config.get("Cmd"))}
    if not any(found.values()):
        raise Rejected("it starts nothing by itself")
    return found


class _Session:
    """Requests about one image, with the token that its registry hands out to anybody."""

    def __init__(self, name: ImageName) -> None:
        self.name, self._token = name, ""

    def get(self, path: str) -> Doc:
        url = f"{self.name.url}/{path}"
        try:
            return _ask(url, self._token)
        except HTTPError as refused:
            if refused.code != 401 or self._token:
                raise
            self._token = _token(refused.headers.get("WWW-Authenticate") or "")
        return _ask(url, self._token)


def _token(challenge: str) -> str:
    asked = dict(CHALLENGE.findall(challenge))
    realm = asked.pop("realm")
    if _scheme(urlsplit(realm).netloc) != urlsplit(realm).scheme:
        raise ValueError(realm)
    answer = _ask(f"{realm}?{urlencode(asked)}", "")
    return str(answer.get("token") or answer["access_token"])


def _ask(url: str, token: str) -> Doc:
    request = Request(url, headers={"Accept": f"{MANIFESTS}, application/json"})
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")  # blobs lie elsewhere, which gets none
    with urlopen(request, timeout=TIMEOUT_S) as answer:
        found = json.loads(answer.read(ANSWER_MAX))
    if not isinstance(found, dict):
        raise TypeError(url)
    return found


def _scheme(host: str) -> str:
    return "http" if host.partition(":")[0] in ("localhost", "127.0.0.1") else "https"


def _words(given: object) -> list[str]:
    return [str(word) for word in given] if isinstance(given, list) else []
