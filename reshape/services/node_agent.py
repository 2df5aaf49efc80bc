"""`reshape agent`: the node agent of one node, until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path

from coordinator.errors import Rejected
from sidecar.resources.agent import AgentError, NodeAgent


def run(*, node: str, coordinator: str, keys: Path, emulated: Path | None, heartbeat: float) -> int:
    """Serve until a signal. Raises `Rejected` with a sentence for wrong settings."""
    logging.basicConfig(level=os.environ.get("RESHAPE_LOG", "INFO"), format="%(asctime)s %(name)s %(message)s")
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    try:
        key = (keys / "agent.key").read_text().strip().encode()
        agent = NodeAgent(node, coordinator, key, heartbeat, emulated)
    except OSError as error:
        raise Rejected(
            f"The key {error.filename} cannot be read: {error.strerror}; `reshape setup` makes it."
        ) from None
    except AgentError as error:
        raise Rejected(str(error)) from None
    agent.run(end)
    return 0
