"""Begins the log of a service as RESHAPE_LOG (level) and RESHAPE_LOG_FORMAT (text, json) ask for it."""

from __future__ import annotations

import os

from coordinator.errors import Rejected
from sidecar.startup import log_format


def begin(level: str = "INFO") -> None:
    """`level`: without RESHAPE_LOG. `Rejected` with the variable that is wrong."""
    try:
        log_format.set_up(os.environ.get("RESHAPE_LOG", level), os.environ.get(log_format.VARIABLE, "text"))
    except ValueError as error:
        raise Rejected(f"{error}.") from None
