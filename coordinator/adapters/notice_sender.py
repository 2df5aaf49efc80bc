"""Tells one recipient: POSTs JSON to a webhook, or runs the command of whoever runs the coordinator.

No redirect is followed and no answer is read, so that a job cannot make the coordinator fetch anything. Errors never
hold the address, which may be a secret.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from typing import Any

from coordinator.errors import Fatal, Transient
from coordinator.model.notices import Recipient
from coordinator.webhooks import host

TIMEOUT_S = 10.0  # of a webhook
COMMAND_S = 60.0  # after which the command is killed
AGAIN = frozenset({408, 425, 429})  # answers of a webhook that may be others later, beside those from 500 on


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def send(recipient: Recipient, about: dict[str, Any]) -> None:
    """See `coordinator.events.notifier.Send`."""
    body = json.dumps(about).encode()
    if recipient.whose == "command":
        _run(recipient.target, body)
    else:
        _post(recipient.target, body)


def _post(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "volcano-reshape"}
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return
    except urllib.error.HTTPError as answer:
        answer.close()
        if answer.code in AGAIN or answer.code >= 500:
            raise Transient(f"it answers with {answer.code}") from None
        raise Fatal(f"it answers with {answer.code}") from None
    except urllib.error.URLError as error:
        cause = error.reason
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        raise Transient(f"{host(url)} cannot be reached ({why})") from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: of a host that is none
        why = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        raise Transient(f"{host(url)} does not answer as a webhook does ({why})") from None


def _run(command: str, body: bytes) -> None:
    """Run it by the shell, with the JSON on its standard input; what it prints is not kept."""
    process = subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.communicate(body, COMMAND_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise Transient(f"it had not ended after {COMMAND_S:.0f} s and was killed") from None
    if process.returncode:
        raise Transient(f"it ended with exit code {process.returncode}")
