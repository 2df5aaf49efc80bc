"""Writes down who made a Volcano Job, in a way that nobody else can. Pure.

The API server tells the webhook who asks for a new Volcano Job; its pods are made by Volcano later. So the webhook
notes the user in an annotation, with a proof that only holders of the master key can make. What a client writes there
is replaced, and an annotation without its proof counts as none: also one that got in while no webhook answered.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from coordinator.model.owner_names import owner_of_user
from launcher.names import OWNER, OWNER_PROOF


def owner_annotations(key: bytes, namespace: str, metadata: Mapping[str, Any], user: str) -> dict[str, str]:
    """Return the annotations of a new Volcano Job of this user. `metadata`: its own, of which the name may be lacking
    yet."""
    owner = owner_of_user(user)
    name = str(metadata.get("name") or metadata.get("generateName") or "")
    return {OWNER: owner, OWNER_PROOF: _proof_of_owner(key, namespace, name, owner)}


def proven_owner(key: bytes, metadata: Mapping[str, Any]) -> str | None:
    """Return who made a Volcano Job; None if the webhook has not noted that for this very job."""
    notes = metadata.get("annotations") or {}
    owner = str(notes.get(OWNER) or "")
    proof = str(notes.get(OWNER_PROOF) or "")
    namespace = str(metadata.get("namespace") or "")
    name = str(metadata.get("name") or "")
    names = [name]
    if (begins := str(metadata.get("generateName") or "")) and name.startswith(begins):
        names.append(begins)
    fits = [hmac.compare_digest(proof.encode(), _proof_of_owner(key, namespace, one, owner).encode()) for one in names]
    return owner if owner and any(fits) else None


def _proof_of_owner(key: bytes, namespace: str, name: str, owner: str) -> str:
    said = "\n".join(("owner of a Volcano Job", namespace, name, owner))
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()
