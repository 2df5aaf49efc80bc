"""Makes what an installation needs before it runs: keys, a certificate, a password. Called by `reshape setup`.

Promises: existing secrets are kept, so it may run at every `kubectl apply`; a certificate near its end is replaced,
with both authorities trusted until the launcher has read the new one; no secret is printed. Every step reports what
it did.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Protocol
from urllib.parse import quote

from coordinator.errors import Conflict, Fatal
from launcher.admission import certificates

Doc = dict[str, Any]

NAMESPACE = "reshape-system"
KEYS, AGENT, TLS, STORE = "reshape-keys", "reshape-agent", "reshape-webhook-tls", "reshape-store"
WEBHOOK = "reshape-inject"
WEBHOOK_NAMES = [f"reshape-webhook.{NAMESPACE}.svc", f"reshape-webhook.{NAMESPACE}.svc.cluster.local"]
RENEW_DAYS = 90
KEYFILE_BYTES = 512
MONGODB_USER = "reshape"


class SetupApi(Protocol):
    """The calls of `launcher.cluster.api.KubernetesApi` that are used."""

    def get(self, kind: str, name: str, namespace: str | None = None) -> Doc | None: ...

    def create(self, doc: Doc) -> Doc: ...

    def patch(self, kind: str, name: str, changes: Doc, namespace: str | None = None) -> Doc: ...


def set_up(api: SetupApi, now: float, mongodb: str | None = None, keep_certificate: bool = False) -> Iterator[str]:
    """Make what is missing; yield one sentence per step. `mongodb`: address of a MongoDB that gets a password.

    `keep_certificate`: the webhook's certificate is made by somebody else, so that `Fatal` says if it is not there.
    """
    keys = dict.fromkeys(("master.key", "api.token", "agent.key"), _random)
    made, said = _kept(api, KEYS, keys)
    yield said
    # Only the agents' key: an attacker on an agent must not learn the other two.
    yield _kept(api, AGENT, {"agent.key": lambda: made["agent.key"]})[1]
    if mongodb:
        yield _kept(api, STORE, _store(mongodb))[1]
    if keep_certificate:
        yield from _certificate_of_others(api, now)
    else:
        yield from _certificate(api, now)


def _kept(api: SetupApi, name: str, wanted: dict[str, Callable[[], str]]) -> tuple[dict[str, str], str]:
    """Make the missing entries of a Secret; return its content and a sentence about it."""
    found = read(api, name)
    have = found or {}
    missing = {key: make() for key, make in wanted.items() if not have.get(key)}
    if missing:
        _write(api, name, missing, new=found is None)
    whole = {**have, **missing}
    if not missing:
        return whole, f"Secret {name} is there."
    return whole, f"Secret {name}: made {', '.join(missing)}."


def read(api: SetupApi, name: str) -> dict[str, str] | None:
    """Return the content of a Secret of ours; None if there is none."""
    found = api.get("Secret", name, NAMESPACE)
    if found is None:
        return None
    return {key: base64.b64decode(text).decode() for key, text in (found.get("data") or {}).items()}


def _write(api: SetupApi, name: str, content: dict[str, str], new: bool) -> None:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in content.items()}
    if not new:
        api.patch("Secret", name, {"data": data}, NAMESPACE)
        return
    labels = {"app.kubernetes.io/part-of": "volcano-reshape", "app.kubernetes.io/managed-by": "reshape-setup"}
    about = {"name": name, "namespace": NAMESPACE, "labels": labels}
    try:
        api.create({"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque", "data": data})
    except Conflict as error:
        raise Conflict(f"Secret {name} was made by someone else meanwhile: run this again") from error


def _random() -> str:
    return secrets.token_hex(32)


def _store(address: str) -> dict[str, Callable[[], str]]:
    """Return makers of user, password and address of our MongoDB, and of its replica set's shared key."""
    password = _random()
    place = f"{address}/reshape?authSource=admin&replicaSet=reshape"
    return {
        "username": lambda: MONGODB_USER,
        "password": lambda: password,
        "keyfile": lambda: base64.b64encode(secrets.token_bytes(KEYFILE_BYTES)).decode(),
        "uri": lambda: f"mongodb://{MONGODB_USER}:{quote(password, '')}@{place}",
    }


def _certificate(api: SetupApi, now: float) -> Iterator[str]:
    found = read(api, TLS)
    have = found or {}
    left = certificates.days_left(have.get("tls.crt", ""), now)
    trusted = [have["ca.crt"]] if left is not None and left > 0 and have.get("ca.crt") else []
    if left is None or left < RENEW_DAYS or not trusted or not have.get("tls.key"):
        made = certificates.make(WEBHOOK_NAMES, now)
        trusted.insert(0, made.authority)
        _trust(api, "".join(trusted))  # first, so that the API server knows the authority before it is used
        fresh = {"ca.crt": made.authority, "tls.crt": made.certificate, "tls.key": made.key}
        _write(api, TLS, fresh, new=found is None)
        yield f"Secret {TLS}: made a certificate for {certificates.VALID_DAYS} days."
    else:
        yield f"Secret {TLS}: the certificate is good for another {left:.0f} days."
    yield _trust(api, "".join(trusted))


def _certificate_of_others(api: SetupApi, now: float) -> Iterator[str]:
    have = read(api, TLS) or {}
    if missing := [key for key in ("tls.crt", "tls.key", "ca.crt") if not have.get(key)]:
        raise Fatal(f"Secret {TLS} has no {', '.join(missing)}: make it in {NAMESPACE}, then run this again")
    left = certificates.days_left(have["tls.crt"], now)
    if left is None or left <= 0:
        raise Fatal(f"the certificate in Secret {TLS} has ended or is damaged: renew it, then run this again")
    yield f"Secret {TLS}: the certificate is somebody else's, and good for another {left:.0f} days."
    yield _trust(api, have["ca.crt"])


def _trust(api: SetupApi, authorities: str) -> str:
    """Write the authorities into our webhook configuration where they are missing."""
    found = api.get("MutatingWebhookConfiguration", WEBHOOK)
    if found is None:
        raise Fatal(f"there is no MutatingWebhookConfiguration {WEBHOOK}: apply the manifests first")
    bundle = base64.b64encode(authorities.encode()).decode()
    old = [hook["name"] for hook in found["webhooks"] if hook["clientConfig"].get("caBundle") != bundle]
    if old:
        changes = [{"name": name, "clientConfig": {"caBundle": bundle}} for name in old]
        api.patch("MutatingWebhookConfiguration", WEBHOOK, {"webhooks": changes})
        return f"Webhook {WEBHOOK}: wrote whom to trust."
    return f"Webhook {WEBHOOK} trusts the certificate."
