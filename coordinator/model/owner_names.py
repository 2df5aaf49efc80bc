"""Names owners of jobs after users of a cluster. Pure.

The owner is the user name that Kubernetes knows, as `kubectl auth whoami` prints it: `system:serviceaccount:team:ci`,
`ada@example.org`. A name that is too long or holds other characters has those replaced by `_`, and is told apart from
all others by `~` and the beginning of its SHA-256; no name that is kept as it is holds a `~`.
"""

from __future__ import annotations

import hashlib
import re

from coordinator.model.tables import JobRow

LONGEST = 253
OWNER = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._@:/#+=~-]{{0,{LONGEST - 1}}}")
OWNER_WORDS = f"the name of a user, up to {LONGEST} letters, digits and any of . _ @ : / # + = ~ -"
ODD = re.compile(r"[^A-Za-z0-9._@:/#+=-]")
HASH_DIGITS = 16
ACCOUNT = re.compile(r"system:serviceaccount:([a-z0-9-]+):([a-z0-9.-]+)")


def owner_of_user(user: str) -> str:
    """Return the owner that a user's jobs have: one of its own for each user name."""
    if OWNER.fullmatch(user) and "~" not in user:
        return user
    digest = hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]
    readable = "_" + ODD.sub("_", user)
    return f"{readable[: LONGEST - HASH_DIGITS - 1]}~{digest}"


def namespace_of_user(user: str) -> str:
    """Return the namespace of a service account; empty for any other user."""
    found = ACCOUNT.fullmatch(user)
    return found[1] if found else ""


def owner_of_job(doc: JobRow, default_owner: str) -> str:
    """Return whose job it is: whom its document names, else the default owner, else its namespace's; or nobody's."""
    return str(doc.get("owner") or default_owner or doc.get("namespace") or "")
