"""Opens an address in the user's browser, where there is a screen to show it on. Called by the command line."""

from __future__ import annotations

import html
import os
import sys
import tempfile
import webbrowser
from pathlib import Path


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
