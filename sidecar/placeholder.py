"""Holds a GPU in the eyes of Kubernetes: the whole program of a placeholder pod, `python -m sidecar.placeholder HASH`.

It uses nothing of the GPU. SIGTERM is a question here (a preemption, a drain): the training that uses the GPU saves
meanwhile, and the launcher tells this process to end once that training is gone. A kubelet does not shorten a grace
period that has begun, so the process has to end by itself: at `POST /release` with the word whose SHA-256 is HASH.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

PORT = 8479
PATH = "/release"
WORD = "X-Reshape-Word"
TIMEOUT_S = 5.0  # for a caller that says nothing


def word_of(master_key: bytes, name: str) -> str:
    """Return the word that ends the placeholder of this name."""
    return hmac.new(master_key, f"placeholder\n{name}".encode(), hashlib.sha256).hexdigest()


def hash_of(word: str) -> str:
    return hashlib.sha256(word.encode()).hexdigest()


def make_server(address: tuple[str, int], wanted: str) -> HTTPServer:
    """Return a server that ends the process when it is told the word with this hash."""

    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_S

        def do_POST(self) -> None:
            """Answer, and end."""
            right = self.path == PATH and hmac.compare_digest(hash_of(self.headers.get(WORD, "")), wanted)
            self.send_response(204 if right else 403)
            self.end_headers()
            if right:
                self.wfile.flush()
                os._exit(0)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: anybody may call."""

    return HTTPServer(address, Handler)


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    make_server(("", PORT), sys.argv[1]).serve_forever()


if __name__ == "__main__":
    main()
