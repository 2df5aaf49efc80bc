"""The program of a placeholder pod: SIGTERM does not end it, the right word does, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from sidecar import placeholder
from tests.patience import eventually

WORD = placeholder.word_of(b"key", "reshape-gpu-1-0")
PROGRAM = """
import sys
from sidecar import placeholder
made = placeholder.make_server(("127.0.0.1", 0), sys.argv[1])
placeholder.PORT, placeholder.make_server = made.server_port, lambda *_: made
print(made.server_port, flush=True)
placeholder.main()
"""


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", PROGRAM, placeholder.hash_of(WORD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        yield made, int(made.stdout.readline())
        made.kill()


def asked(port: int, word: str, path: str = placeholder.PATH) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("POST", path, headers={placeholder.WORD: word})
    return connection.getresponse().status


def test_it_outlives_sigterm_and_wrong_words_and_ends_at_the_right_one(
    process: tuple[subprocess.Popen[str], int],
) -> None:
    made, port = process
    assert asked(port, "x") == 403
    made.send_signal(signal.SIGTERM)
    assert asked(port, WORD, "/elsewhere") == 403
    assert asked(port, placeholder.word_of(b"key", "another")) == 403
    assert made.poll() is None
    assert asked(port, WORD) == 204
    eventually(lambda: made.poll() == 0)
