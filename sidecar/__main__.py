"""Runs one sidecar until it is told to end: `python -m sidecar --folder F [--keys K]`.

Promises: it listens before doing anything else and writes its URL into F/sidecar.url, unless it has its own container;
a startup error is one sentence on stderr and exit status 1, after which the shim or the kubelet retries. In a pod it
listens on the pod's address, POD_IP.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from tornado.netutil import bind_sockets

from sidecar.config import URL, ConfigError, LaunchFile, SidecarSettings, read
from sidecar.endpoints.server import make_server
from sidecar.service import Sidecar
from sidecar.startup import log_format


def main() -> int:
    parser = argparse.ArgumentParser(prog="sidecar", description="Serves beside one job's shim.")
    parser.add_argument("--folder", type=Path, required=True, help="holds launch.json, launch.key and shim.sock")
    parser.add_argument("--keys", type=Path, help="holds launch.json, launch.key and operator.token instead")
    options = parser.parse_args()
    begin_log()
    try:
        asyncio.run(serve(read(options.folder, options.keys, os.environ.get("POD_IP", ""))))
    except ConfigError as error:
        print(f"sidecar: {error}", file=sys.stderr)  # noqa: T201 (read by the person who started it)
        return 1
    return 0


def begin_log() -> None:
    """Set up the log. A bad format must not keep a training from starting, so fall back to text."""
    log_format.set_up("INFO", "json" if os.environ.get(log_format.VARIABLE) == "json" else "text")


async def serve(settings: SidecarSettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `ConfigError` if it cannot listen on the address."""
    log_format.identify(job=settings.launch.job_id, launch=settings.launch.launch)
    sockets, url = listen(settings.launch)
    sidecar = Sidecar(settings, url)
    server = make_server(sidecar)
    server.add_sockets(sockets)
    if not settings.apart:
        write_url(settings.folder / URL, sidecar.url)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, sidecar.end)
    logging.getLogger("sidecar").info("listens on %s", sidecar.url)
    await sidecar.run()


def listen(launch: LaunchFile) -> tuple[list[socket.socket], str]:
    """Return listening sockets and their URL. Raises `ConfigError` if it cannot listen on the address."""
    try:
        sockets = bind_sockets(launch.port, address=launch.host)
    except OSError as error:
        raise ConfigError(f"cannot listen on {launch.host} port {launch.port}: {error.strerror}") from None
    host = f"[{launch.host}]" if ":" in launch.host else launch.host
    return sockets, f"http://{host}:{sockets[0].getsockname()[1]}"


def write_url(path: Path, url: str) -> None:
    """Write the file atomically: others may be reading it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(url + "\n")
    fresh.replace(path)


if __name__ == "__main__":
    gc.freeze()  # everything loaded stays: scanning it once more at exit took a sixth of a start's CPU
    sys.exit(main())
