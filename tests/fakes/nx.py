"""nx-27017, a MongoDB-wire server on SQLite, as a process of its own on a free loopback port.

For tests that need real pymongo over a real socket, and a server that can be killed. Usable without
pytest. Its known differences from MongoDB: number-like text keys meet equal numbers ("1" finds 1),
true equals 1, and lists cannot be compared.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from tests.patience import patient

START_SECONDS = patient(30.0)
TRIES = 3  # somebody else may take the free port before the server does


def start_nx(folder: Path, port: int | None = None) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server with its files in `folder` and wait until it answers.

    Returns the process and `mongodb://127.0.0.1:PORT`, to which the caller adds a database. Give the `port`
    to come back where a killed server was. RuntimeError with the end of the log if it does not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        chosen = port or _free_port()
        process = _spawn(folder, chosen)
        url = f"mongodb://127.0.0.1:{chosen}"
        if _answers(process, url):
            return process, url
        stop_nx(process)
    raise RuntimeError(f"nx-27017 did not start: {(folder / 'nx.out').read_text()[-2000:]}")


def stop_nx(process: subprocess.Popen[bytes], how: int = signal.SIGKILL) -> None:
    """End the server that `start_nx` gave, at once unless `how` says otherwise, and reap it."""
    process.send_signal(how)
    process.wait(START_SECONDS)


def _spawn(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "nx_27017.nx_27017", "--data-dir", str(folder / "databases")]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-file", str(folder / "nx.log"), "--pid-file", str(folder / "nx.pid")]
    with (folder / "nx.out").open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + START_SECONDS
    with pymongo.MongoClient[dict[str, object]](url, serverSelectionTimeoutMS=500) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.admin.command("ping")
                return True
            except PyMongoError:
                time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
