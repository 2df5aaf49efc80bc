"""Each text that docs/how-to/troubleshooting.md explains is one that the code can say."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
CODE = ("adaptive_scheduler", "coordinator", "launcher", "reshape", "reshape_hooks", "sidecar")
TEXTS = re.findall(r"^\| `([^`]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@cache
def sentences() -> str:
    """Return all texts of the code, one in a line, with the gaps of formatted ones left out."""
    found = []
    for package in CODE:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(part.value for part in node.values if isinstance(part, ast.Constant)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_the_page_explains_texts() -> None:
    assert len(TEXTS) > 20
    assert len(set(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("text", TEXTS)
def test_the_code_says_each_text_that_the_page_explains(text: str) -> None:
    assert text in sentences()
