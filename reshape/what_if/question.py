"""Asks what happens as things stand, and with changes: the whole of `reshape what-if` and of the client's `what_if`."""

from __future__ import annotations

from typing import Any

from coordinator.forecasts.what_if import WhatIf, compare
from reshape.what_if.live import LiveSource, live_state


def ask(source: LiveSource, **changes: Any) -> WhatIf:
    """`changes`: as `compare` takes them."""
    return compare(live_state(source), **changes)
