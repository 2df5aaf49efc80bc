"""Reads objects from the API server over one connection: a kubectl for each look costs 0.1 s of CPU, and tests look
ten times a second. Called by bed_kubectl.py, where the kubeconfig has a token and a CA; else kubectl reads.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import yaml

from tests.cluster.bed_processes import BedError

Object = dict[str, Any]
LIMIT_S = 20.0  # a server that is away: whoever waits looks again


@dataclass
class Reader:
    """`resources` prints what `kubectl api-resources --no-headers` does."""

    server: str
    token: str
    authority: str
    resources: Callable[[], str]
    _kinds: dict[str, tuple[str, bool]] = field(default_factory=dict)  # any name of a kind -> path, is in a namespace
    _connection: http.client.HTTPSConnection | None = None

    def get(self, kind: str, name: str, namespace: str) -> Object | None:
        return self._ask(f"{self._path(kind, namespace)}/{quote(name)}")

    def list(self, kind: str, namespace: str | None, selector: str) -> list[Object]:
        found = self._ask(f"{self._path(kind, namespace)}?{urlencode({'labelSelector': selector})}") or {"items": []}
        about = {"apiVersion": found.get("apiVersion"), "kind": str(found.get("kind")).removesuffix("List")}
        return [{**about, **each} for each in found["items"]]

    def _path(self, kind: str, namespace: str | None) -> str:
        if kind not in self._kinds:
            self._kinds = _kinds(self.resources())
        if kind not in self._kinds:
            raise BedError(f"the API server knows no {kind}")
        path, namespaced = self._kinds[kind]
        group, _, plural = path.rpartition("/")
        return f"{group}/namespaces/{namespace}/{plural}" if namespaced and namespace is not None else path

    def _ask(self, path: str) -> Object | None:
        for again in (True, False):  # the server may have closed the connection meanwhile
            try:
                return self._answer(path)
            except (OSError, http.client.HTTPException) as error:
                self._connection = None
                if not again:
                    raise BedError(f"{self.server}{path}: {error!r}") from None
        return None

    def _answer(self, path: str) -> Object | None:
        if self._connection is None:
            trusted = ssl.create_default_context(cafile=self.authority)
            self._connection = http.client.HTTPSConnection(
                urlsplit(self.server).netloc, timeout=LIMIT_S, context=trusted
            )
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise BedError(f"{path}: {answer.status} {text[:500].decode(errors='replace')}")
        found: Object = json.loads(text)
        return found


def reader(kubeconfig: Path, resources: Callable[[], str]) -> Reader | None:
    """For this kubeconfig, or None where only kubectl knows how to sign in."""
    about = yaml.safe_load(kubeconfig.read_text())
    cluster, user = about["clusters"][0]["cluster"], about["users"][0]["user"]
    if len(about["contexts"]) > 1 or "token" not in user or "certificate-authority" not in cluster:
        return None
    return Reader(cluster["server"], user["token"], cluster["certificate-authority"], resources)


def _kinds(printed: str) -> dict[str, tuple[str, bool]]:
    """Name, name with group, singular and short names; where two kinds share one the first counts, as for kubectl."""
    found: dict[str, tuple[str, bool]] = {}
    for line in printed.splitlines():
        plural, *short, version, namespaced, kind = line.split()
        group = version.rpartition("/")[0]
        path = (f"/{'apis' if group else 'api'}/{version}/{plural}", namespaced == "true")
        names = [plural, kind.lower(), *",".join(short).split(",")]
        for name in [*names, f"{plural}.{group}", f"{kind.lower()}.{group}"]:
            found.setdefault(name, path)
    return found
