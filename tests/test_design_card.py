"""Every package that the design names is declared, and is imported in the very place where it does its work."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# distribution, module, where it works
CARD = [
    ("kubernetes", "kubernetes", "launcher/cluster/api.py"),
    ("tornado", "tornado", "coordinator/http/app.py"),
    ("tornado", "tornado", "sidecar/endpoints/server.py"),
    ("pymongo", "pymongo", "coordinator/stores/mongo.py"),
    ("ansible-runner", "ansible_runner", "launcher/playbook.py"),
    ("nvidia-ml-py", "pynvml", "sidecar/resources/gpus.py"),
    ("tensorflow", "tensorflow", "examples/keras_digits.py"),
    ("pytest", "pytest", "tests/test_design_card.py"),
    ("mongomock", "mongomock", "tests/contract/conftest.py"),
]


def declared() -> set[str]:
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return {re.match(r"[A-Za-z0-9._-]+", each)[0].lower() for some in lists for each in some}  # type: ignore[index]


def imported(file: str) -> set[str]:
    """Top names of all modules that a file imports, anywhere in it and in whatever way."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "importlib.import_module":
            found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return {str(name).split(".")[0] for name in found}


@pytest.mark.parametrize(("distribution", "module", "file"), CARD)
def test_it_is_declared_and_imported_where_it_works(distribution: str, module: str, file: str) -> None:
    assert distribution in declared()
    assert module in imported(file)
