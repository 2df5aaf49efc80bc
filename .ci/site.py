r"""Prepares a page of docs/ for the site as GitHub reads it; .ci/mkdocs.yml names it as a hook.

A list or table needs no blank line before it, `\|` in a cell's code is a bar, and a link to a file outside of docs/
leads to the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from typing import Any

LINK = re.compile(r"\]\((\.\./[^)\s#]*)")
FENCE = re.compile(r"\s*```")
ITEM = re.compile(r"([*-]|\d+\.) ")
ROW = re.compile(r"\|")
CODE = re.compile(r"`[^`]+`")
FOR_TESTS = re.compile(r"\s*<!-- ")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the text that is rendered; called by mkdocs for each page."""
    if page.parent is None:  # no other page beside it
        page.meta["hide"] = ["navigation"]
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    text = LINK.sub(lambda link: f"]({_target(folder, link[1], config.extra['repository'])}", markdown)
    return "\n".join(_separated([line for line in text.split("\n") if not FOR_TESTS.match(line)]))


def _target(folder: str, link: str, repository: str) -> str:
    path = posixpath.normpath(posixpath.join(folder, link))
    if path.startswith("docs/"):
        return link
    kind = "blob" if "." in posixpath.basename(path) else "tree"
    return f"{repository}/{kind}/main/{path}"


def _separated(lines: list[str]) -> Iterator[str]:
    """Yield the lines, with a blank one where a list or a table follows a line of text."""
    inside_fence = False
    for before, line in zip(["", *lines], lines):  # noqa: B905
        inside_fence ^= bool(FENCE.match(line))
        text = before.strip() and not before.startswith((" ", "#", "<"))
        starts = (ITEM.match(line) and not ITEM.match(before)) or (ROW.match(line) and not ROW.match(before))
        if not inside_fence and text and starts:
            yield ""
        yield CODE.sub(lambda code: code[0].replace("\\|", "|"), line) if ROW.match(line) else line
