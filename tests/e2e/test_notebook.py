"""Runs the cells of `docs/how-to/notebook.md` one after another as a notebook does, against a real `reshape up`, and
looks at what a notebook would show of each."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.e2e.up import ROOT, Up, running
from tests.patience import patient

PAGE = (ROOT / "docs/how-to/notebook.md").read_text("utf-8")
CELLS = re.findall(r"<!-- run by: tests/e2e/test_notebook\.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)

RUN = """
import ast, json, pathlib, sys
names, shown = {}, []
for cell in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    forms = {"text": repr(value)}
    for name in ("_repr_html_", "_repr_svg_"):
        if hasattr(value, name):
            forms[name] = getattr(value, name)()
    shown.append(forms)
pathlib.Path(sys.argv[2]).write_text(json.dumps(shown))
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("notebook") / "state", "2xV100") as found:
        yield found


def test_the_cells_of_the_page_run_and_show_tables_pictures_and_numbers(up: Up, tmp_path: Path) -> None:
    shown = run_cells(up, tmp_path)
    assert len(shown) == len(CELLS) == 6
    assert ast.literal_eval(shown[0]["text"])[0]["gpu_type"] == "V100"
    assert "from-notebook" in shown[1]["_repr_html_"]
    assert "completed" in shown[2]["_repr_html_"]
    assert "loss" in shown[3]["_repr_svg_"]
    assert ElementTree.fromstring(shown[3]["_repr_svg_"]).tag.endswith("svg")
    name, (iterations, loss) = ast.literal_eval(shown[4]["text"])
    assert (name, iterations, loss) == ("loss", 40, pytest.approx(0.4))
    assert ast.literal_eval(shown[5]["text"]) == {"sweep-1": pytest.approx(0.4), "sweep-2": pytest.approx(0.0488)}


def run_cells(up: Up, folder: Path) -> list[dict[str, Any]]:
    (folder / "cells.json").write_text(json.dumps(CELLS))
    environment = {**os.environ, "RESHAPE_STATE": str(up.state), "PYTHONPATH": str(ROOT), "RESHAPE_URL": ""}
    command = [sys.executable, "-P", "-c", RUN, "cells.json", "shown.json"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=patient(180))
    found: list[dict[str, Any]] = json.loads((folder / "shown.json").read_text())
    return found


@pytest.mark.skipif(shutil.which("jupyter") is None, reason="needs jupyter: pip install nbconvert ipykernel")
def test_jupyter_executes_the_page_as_a_notebook(up: Up, tmp_path: Path) -> None:
    cells = [
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": cell,
            "id": f"c{number}",
        }
        for number, cell in enumerate(CELLS)
    ]
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (tmp_path / "page.ipynb").write_text(json.dumps(book).replace("from-notebook", "from-jupyter"))
    environment = {**os.environ, "RESHAPE_STATE": str(up.state), "PYTHONPATH": str(ROOT), "RESHAPE_URL": ""}
    command = ["jupyter", "nbconvert", "--execute", "--to", "notebook", "--output", "done.ipynb", "page.ipynb"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=patient(240))
    done = json.loads((tmp_path / "done.ipynb").read_text())
    outputs = [output for cell in done["cells"] for output in cell["outputs"]]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert not any(output["output_type"] == "error" for output in outputs)
