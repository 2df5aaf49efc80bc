"""Opens an address in the user's browser, where there is a screen to show it on. Called by the command line."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def forwarding_hint(address: str, environment: Mapping[str, str]) -> str:
    """Return how a browser elsewhere reaches an address of this machine, for work over SSH; else empty."""
    place = urlsplit(address)
    parts = environment.get("SSH_CONNECTION", "").split()
    if len(parts) != 4 or place.hostname not in LOOPBACK or place.port is None:
        return ""
    user = f"{environment['USER']}@" if environment.get("USER") else ""
    other = "" if parts[3] == "22" else f" -p {parts[3]}"
    return (
        f"\nYou are here by SSH: run this on the machine with the browser first, and keep it running:\n"
        f"  ssh -N{other} -L {place.port}:{place.hostname}:{place.port} {user}{parts[2]}"
    )


def open_privately(address: str) -> bool:
    """Open the address by way of a file that only this user reads: arguments of programs can be read by all.

    False where there is no terminal or no screen.
    """
    screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not screen or not sys.stdout.isatty():
        return False
    page = Path(tempfile.mkdtemp(prefix="reshape-")) / "dashboard.html"
    page.write_text(f'<meta http-equiv="refresh" content="0;url={html.escape(address)}">', "utf-8")
    return webbrowser.open(page.as_uri())
