"""`reshape setup` makes what is missing, keeps what is there, and renews a certificate before it ends."""

from __future__ import annotations

import base64
import copy
import itertools
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.errors import Conflict, Fatal
from launcher.admission import certificates, setup

NOW = 1_790_000_000.0
YEAR = 365 * 86_400


class Memory:
    """An API server that knows Secrets and one webhook configuration; `writes` are the names written."""

    def __init__(self) -> None:
        hooks = [{"name": n, "clientConfig": {"service": {"name": "reshape-webhook"}}} for n in ("a", "b")]
        self.objects: dict[tuple[str, str], dict[str, Any]] = {
            ("MutatingWebhookConfiguration", "reshape-inject"): {"webhooks": hooks}
        }
        self.writes: list[str] = []

    def get(self, kind: str, name: str, namespace: str | None = None) -> dict[str, Any] | None:
        return copy.deepcopy(self.objects.get((kind, name)))

    def create(self, doc: dict[str, Any]) -> dict[str, Any]:
        key = doc["kind"], doc["metadata"]["name"]
        if key in self.objects:
            raise Conflict("it is there")
        self.writes.append(key[1])
        self.objects[key] = copy.deepcopy(doc)
        return doc

    def patch(self, kind: str, name: str, changes: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
        self.writes.append(name)
        found = self.objects[kind, name]
        found.setdefault("data", {}).update(changes.get("data", {}))
        for change in changes.get("webhooks", ()):
            hook = next(h for h in found["webhooks"] if h["name"] == change["name"])
            hook["clientConfig"].update(change["clientConfig"])
        return found

    def secret(self, name: str) -> dict[str, str]:
        return {k: base64.b64decode(v).decode() for k, v in self.objects["Secret", name]["data"].items()}

    def trusted(self) -> str:
        hooks = self.objects["MutatingWebhookConfiguration", "reshape-inject"]["webhooks"]
        bundles = {hook["clientConfig"]["caBundle"] for hook in hooks}
        assert len(bundles) == 1
        return base64.b64decode(bundles.pop()).decode()


@pytest.fixture
def api() -> Memory:
    return Memory()


def run(api: Memory, now: float = NOW, **more: Any) -> str:
    return "\n".join(setup.set_up(api, now, **more))


def accepted(authority: str, certificate: str, key: str, tmp_path: Path) -> str:
    """A TLS handshake over memory, as the API server does it with this bundle; the name that it asked for."""
    (tmp_path / "pair.pem").write_text(certificate + key)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(tmp_path / "pair.pem")
    asking = ssl.create_default_context(cadata=authority)
    one, two = ssl.MemoryBIO(), ssl.MemoryBIO()
    name = setup.WEBHOOK_NAMES[0]
    client = asking.wrap_bio(two, one, server_hostname=name)
    server = serving.wrap_bio(one, two, server_side=True)
    for end in itertools.islice(itertools.cycle((client, server)), 6):
        with_patience(end.do_handshake)
    client.do_handshake()
    return name


def with_patience(step: Callable[[], object]) -> None:
    try:
        step()
    except ssl.SSLWantReadError:
        pass


def test_everything_is_made_once_and_then_kept(api: Memory) -> None:
    run(api)
    before = copy.deepcopy(api.objects)
    api.writes.clear()
    said = run(api)
    assert (api.objects, api.writes) == (before, [])
    assert "Secret reshape-keys is there." in said


def test_the_agents_secret_holds_the_agents_key_and_no_other(api: Memory) -> None:
    run(api)
    keys = api.secret("reshape-keys")
    assert set(keys) == {"master.key", "api.token", "agent.key"}
    assert len(set(keys.values())) == 3
    assert api.secret("reshape-agent") == {"agent.key": keys["agent.key"]}


def test_a_key_that_was_lost_is_made_and_the_others_stay(api: Memory) -> None:
    run(api)
    before = api.secret("reshape-keys")
    del api.objects["Secret", "reshape-keys"]["data"]["api.token"]
    assert "made api.token" in run(api)
    after = api.secret("reshape-keys")
    assert after.pop("api.token") != before.pop("api.token")
    assert after == before


def test_the_api_server_accepts_the_certificate(api: Memory, tmp_path: Path) -> None:
    run(api, now=certain_now())
    tls = api.secret("reshape-webhook-tls")
    assert accepted(api.trusted(), tls["tls.crt"], tls["tls.key"], tmp_path)


def test_near_its_end_it_is_renewed_and_until_then_both_are_trusted(api: Memory, tmp_path: Path) -> None:
    run(api, now=certain_now())
    old = api.secret("reshape-webhook-tls")
    run(api, now=certain_now() + 3 * YEAR - 80 * 86_400)
    new = api.secret("reshape-webhook-tls")
    assert new["tls.crt"] != old["tls.crt"]
    assert api.trusted() == new["ca.crt"] + old["ca.crt"]
    assert accepted(api.trusted(), old["tls.crt"], old["tls.key"], tmp_path)


def test_a_certificate_that_has_ended_is_trusted_no_more(api: Memory) -> None:
    run(api)
    run(api, now=NOW + 4 * YEAR)
    assert api.trusted() == api.secret("reshape-webhook-tls")["ca.crt"]


def test_a_damaged_certificate_is_replaced(api: Memory) -> None:
    run(api)
    api.objects["Secret", "reshape-webhook-tls"]["data"]["tls.crt"] = base64.b64encode(b"junk").decode()
    run(api)
    assert certificates.days_left(api.secret("reshape-webhook-tls")["tls.crt"], NOW)


def test_a_store_of_our_own_gets_a_password_and_another_one_is_left_alone(api: Memory) -> None:
    run(api)
    assert ("Secret", "reshape-store") not in api.objects
    run(api, mongodb="db:27017")
    store = api.secret("reshape-store")
    assert store["uri"] == (
        f"mongodb://{store['username']}:{store['password']}@db:27017/reshape?authSource=admin&replicaSet=reshape"
    )
    assert 6 <= len(store["keyfile"]) <= 1024


def test_no_secret_is_told(api: Memory) -> None:
    said = run(api, mongodb="db:27017")
    held = [value for kind, name in api.objects if kind == "Secret" for value in api.secret(name).values()]
    assert not [value for value in held if len(value) > 20 and value in said]


def test_without_the_manifests_it_says_what_to_do() -> None:
    empty = Memory()
    empty.objects.clear()
    with pytest.raises(Fatal, match="apply the manifests first"):
        run(empty)


def others_made(api: Memory, now: float = NOW, **content: str) -> certificates.IssuedCertificate:
    """The Secret of a certificate that is not ours, as cert-manager or a user makes it."""
    made = certificates.make(setup.WEBHOOK_NAMES, now)
    whole = {"ca.crt": made.authority, "tls.crt": made.certificate, "tls.key": made.key, **content}
    data = {key: base64.b64encode(text.encode()).decode() for key, text in whole.items()}
    api.objects["Secret", "reshape-webhook-tls"] = {"data": data}
    return made


def test_a_certificate_of_others_is_trusted_and_never_made_anew(api: Memory) -> None:
    made = others_made(api)
    said = run(api, now=NOW + 3 * YEAR - 80 * 86_400, keep_certificate=True)  # ours would be renewed now
    assert "reshape-webhook-tls" not in api.writes
    assert api.trusted() == made.authority
    assert "somebody else's" in said
    renewed = others_made(api, NOW + YEAR)
    run(api, now=NOW + YEAR, keep_certificate=True)
    assert api.trusted() == renewed.authority


@pytest.mark.parametrize(
    ("content", "now", "sentence"),
    [
        ({"ca.crt": ""}, NOW, "has no ca.crt: make it in reshape-system"),
        ({"tls.crt": "junk"}, NOW, "has ended or is damaged: renew it"),
        ({}, NOW + 4 * YEAR, "has ended or is damaged: renew it"),
    ],
)
def test_a_certificate_of_others_that_cannot_be_used_is_said(
    api: Memory, content: dict[str, str], now: float, sentence: str
) -> None:
    others_made(api, **content)
    with pytest.raises(Fatal, match=sentence):
        run(api, now=now, keep_certificate=True)
    assert "reshape-inject" not in api.writes


def test_a_certificate_of_others_that_is_not_there_yet_is_asked_for(api: Memory) -> None:
    with pytest.raises(Fatal, match=r"has no tls\.crt, tls\.key, ca\.crt"):
        run(api, keep_certificate=True)
    assert ("Secret", "reshape-webhook-tls") not in api.objects


def certain_now() -> float:
    """Real handshakes check the real date."""
    from coordinator.adapters.clock import SystemClock

    return SystemClock().wall()
