"""Says what may be the address of a webhook, and what of it people may read. Pure.

It may hold a secret, as those of chats do: only its host is ever shown, and no sentence repeats it.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

WEBHOOK = re.compile(r"https?://[^\s@\\/?#]+(?:[/?#][^\s\\]*)?", re.ASCII)
WEBHOOK_WORDS = (
    "the address of a webhook, http://HOST/... or https://HOST/..., without a user or password before the host"
)


def host(url: str) -> str:
    """Return the part of a webhook's address that is no secret."""
    return urlsplit(url).hostname or "a webhook"


def is_webhook(value: object) -> bool:
    """Return whether this is an address that may be told: http or https, with a host, without a login."""
    if not isinstance(value, str) or WEBHOOK.fullmatch(value) is None:
        return False
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port or an IPv6 address that is none
        return False
