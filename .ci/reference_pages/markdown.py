"""Tables in Markdown, and the docstrings and comments behind the fields of a class."""

from __future__ import annotations

import ast
import inspect
import io
import tokenize
from collections.abc import Iterable, Iterator


def row(*cells: str) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a whole table, with a line break at its end."""
    head = list(head)
    return "\n".join([row(*head), row(*("---" for _ in head)), *(row(*cells) for cells in rows)]) + "\n"


def field_docs(kind: type) -> dict[str, str]:
    """Return the text that stands behind each field of a class in its source; empty where none does."""
    (body,) = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            found[node.target.id] = str(text).strip()
    return found


def field_comments(kind: type) -> dict[str, str]:
    """Return the comment that stands behind each field of a class in its source."""
    return dict(_comments(inspect.getsource(kind)))


def _comments(source: str) -> Iterator[tuple[str, str]]:
    name = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and not token.line[: token.start[1]].strip():
            name = token.string
        elif token.type == tokenize.COMMENT and token.line[: token.start[1]].strip():
            yield name, token.string.lstrip("# ")
