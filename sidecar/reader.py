"""Serves the log of a job whose pod is gone, until it is told to end: `python -m sidecar.reader --keys K`.

Promise: answers `/v1/output` to the holder of the launch key, as a sidecar does, and nothing else; changes nothing. The
launcher starts it in a separate pod that mounts the job's checkpoints read-only
(`launcher/cluster/pods/log_reader.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from sidecar.__main__ import begin_log, listen
from sidecar.config import ConfigError, SidecarSettings, read
from sidecar.endpoints.server import make_reader


def main() -> int:
    parser = argparse.ArgumentParser(prog="sidecar.reader", description="Shows the log of a job whose pod is gone.")
    parser.add_argument("--keys", type=Path, required=True, help="holds launch.json and launch.key")
    options = parser.parse_args()
    begin_log()
    try:
        asyncio.run(serve(read(options.keys, address=os.environ.get("POD_IP", ""))))
    except ConfigError as error:
        print(f"sidecar.reader: {error}", file=sys.stderr)  # noqa: T201 (the pod's log)
        return 1
    return 0


async def serve(settings: SidecarSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` if it cannot listen on the address."""
    sockets, url = listen(settings.launch)
    server, end = make_reader(settings), asyncio.Event()
    server.add_sockets(sockets)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    logging.getLogger("sidecar").info("listens on %s", url)
    await end.wait()


if __name__ == "__main__":
    sys.exit(main())
