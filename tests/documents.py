"""Finds the blocks of code in all documents, and what becomes of each: `tests/e2e/test_documents.py` runs them.

A block of `sh` is typed by a reader, so it is run word for word. A block with `title="FILE"` is a file that the reader
writes. A comment on the line above a block says what else: `<!-- not run: WHY -->`, `<!-- run by: TEST -->`,
`<!-- exit code 1 -->`, `<!-- needs: MODULE -->` (a Python that has it). Nothing of this shows in a page. Not a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"(?P<indent>\s*)```(?P<language>\w*) *(?:title=\"(?P<title>[^\"]+)\")?(?P<rest>.*)")
MARK = re.compile(r"\s*<!-- (not run|run by|exit code|needs):? (.+) -->")
HEAVY = {
    "tensorflow",
    "torch",
    "transformers",
    "lightning",
    "jax",
}  # modules that take seconds of CPU to import
OTHERS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "manifests/README.md")


@dataclass(frozen=True)
class Block:
    """One block; `marks` are the comments above it, `heading` that of its section."""

    document: str
    heading: str
    line: int
    language: str
    title: str | None
    text: str
    marks: dict[str, str]

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether it is typed in its page's session."""
        return self.language == "sh" and not self.title and not self.marks.keys() & {"not run", "run by"}


def names() -> list[str]:
    """All documents for readers."""
    found = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md"), *map(ROOT.joinpath, OTHERS)]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def blocks(document: str) -> Iterator[Block]:
    """The blocks of one document, in order."""
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    begun: tuple[int, re.Match[str], dict[str, str]] | None = None
    marks: dict[str, str] = {}
    heading = ""
    for number, line in enumerate(lines, 1):
        fence, mark = FENCE.match(line), MARK.match(line)
        if begun is None and fence:
            begun, marks = (number, fence, marks), {}
        elif begun is None:
            heading = line.lstrip("# ") if line.startswith("#") else heading
            marks = {**marks, mark[1]: mark[2]} if mark else {}
        elif line.strip() == "```":
            first, head, above = begun
            text = "\n".join(one.removeprefix(head["indent"]) for one in lines[first : number - 1]) + "\n"
            yield Block(document, heading, first, head["language"], head["title"], text, above)
            begun = None


def with_commands() -> list[str]:
    """The documents of which something is run."""
    return [name for name in names() if any(block.is_run for block in blocks(name))]


def needed(document: str) -> set[str]:
    """The modules that its commands need beyond our own."""
    return {block.marks["needs"] for block in blocks(document) if "needs" in block.marks}
