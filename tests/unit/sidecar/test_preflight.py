"""What is found wrong with a Python command before it is started; whatever is not certain passes."""

from __future__ import annotations

import asyncio
import os
import sys
import venv
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from sidecar.startup.preflight import PythonCommand, environment, python_command, startup_fault
from sidecar.startup.probe import is_own
from tests.fakes.shim_client import running_shim
from tests.patience import patient

ROOT = Path(__file__).resolve().parents[3]
PYTHON = sys.executable
TRAINS = "import os\nimport json as j, re\nfrom pathlib import Path\nprint('step=1')\n"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "helper.py").write_text("import sys\nsys.path.append('lib')\n")
    (tmp_path / "lib").mkdir()
    yield tmp_path
    assert not (tmp_path / "ran").exists(), "nothing of the training code was executed"


def said(
    home: Path,
    source: str | None,
    *command: str,
    env: dict[str, str] | None = None,
    within_s: float = 60,
    hooks: bool = False,
) -> str:
    """The verdict about train.py with this text, in its folder."""
    if source is not None:
        (home / "train.py").write_text(source)
    words = list(command) or [PYTHON, "train.py"]
    variables = environment(os.environ, env or {}, hooks)
    return asyncio.run(startup_fault(words, variables, str(home), patient(within_s)))


# what is asked


@pytest.mark.parametrize(
    ("command", "run"),
    [
        (["python", "t.py", "-m"], (["python"], "script", "t.py")),
        (["/a/b/python3.11", "-u", "t.py"], (["/a/b/python3.11", "-u"], "script", "t.py")),
        (["python", "-uB", "-W", "x", "-Xdev", "t.py"], (["python", "-uB", "-W", "x", "-X", "dev"], "script", "t.py")),
        (["python3", "-um", "pkg.train", "--x"], (["python3", "-u"], "module", "pkg.train")),
        (["python3", "-mtrain"], (["python3"], "module", "train")),
    ],
)  # fmt: skip
def test_script_or_module_are_told_from_options(command: list[str], run: tuple[list[str], str, str]) -> None:
    assert python_command(command) == PythonCommand(*run)


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "python nope.py"], ["torchrun", "nope.py"], ["python3"], ["python3", "-"],
        ["python3", "-i", "t.py"], ["python3", "-c", "import nope"], ["python3", "--version"], ["python3", "-W"],
        ["python3", "-m"], ["pythonic", "nope.py"], ["python3", "-h"], ["python3", ""],
    ],
)  # fmt: skip
def test_what_is_no_script_of_python_is_not_judged(tmp_path: Path, command: list[str]) -> None:
    assert python_command(command) is None
    assert said(tmp_path, None, *command) == ""


@pytest.mark.parametrize(
    ("first", "python"),
    [
        (f"#!{PYTHON}", [PYTHON]), ("#!/usr/bin/env python3", ["python3"]), ("#! /b/python -u", ["/b/python", "-u"]),
        ("#!/bin/bash", None),
        ("print()", None), ("#!/usr/bin/env -S python3 -u", None),
    ],
)  # fmt: skip
def test_a_script_that_is_a_program_names_its_python_itself(
    tmp_path: Path, first: str, python: list[str] | None
) -> None:
    (tmp_path / "go").write_text(f"{first}\nprint()\n")
    run = python_command(["./go", "--lr", "1"], str(tmp_path))
    assert run == (None if python is None else PythonCommand(python, "script", "./go"))


# what is certainly wrong


def test_a_script_that_is_not_there(home: Path) -> None:
    assert said(home, None, PYTHON, "-u", "nope.py") == f"no such file: nope.py (in {home}); correct the job's command"


def test_a_script_that_does_not_compile(home: Path) -> None:
    assert said(home, "import os\nfor x in:\n    pass\n").endswith("(train.py, line 2); correct it")
    assert said(home, "return 1\n").startswith("SyntaxError: 'return' outside function")
    assert said(home, "if 1:\nx = 1\n").startswith("IndentationError: ")


@pytest.mark.parametrize(
    "source",
    [
        "import nope_nope\n",
        "import os, nope_nope.deep\n",
        "from nope_nope import train\n",
        '"""Trains."""\nimport os\nos.environ["A"] = "1"\nLR = 1\nimport nope_nope\n',
        "try:\n    import tomllib\nexcept ImportError:\n    tomllib = None\nimport nope_nope\n",
        "import msgspec\ndef f(x=1):\n    return x\nimport nope_nope\n",
    ],
)
def test_a_module_that_is_not_there(home: Path, source: str) -> None:
    line = source[: source.index("nope_nope")].count("\n") + 1
    sentence = f"no module named nope_nope (train.py, line {line}); install it for {PYTHON}"
    assert said(home, source) == sentence


def test_a_module_to_run_that_is_not_there_or_wrong(home: Path) -> None:
    assert said(home, None, PYTHON, "-m", "nope_nope.train").startswith("no module named nope_nope for ")
    assert said(home, "import nope_nope\n", PYTHON, "-m", "train").startswith("no module named nope_nope (")
    assert said(home, TRAINS, PYTHON, "-m", "train") == ""
    assert said(home, None, PYTHON, "-m", "json.tool") == ""


def test_a_script_that_begins_with_its_python_is_judged(home: Path) -> None:
    (home / "go").write_text(f"#!{PYTHON}\nimport nope_nope\n")
    assert said(home, None, "./go").startswith("no module named nope_nope (./go, line 2)")


# what may be all right


@pytest.mark.parametrize(
    "source",
    [
        TRAINS,
        "open('ran', 'w')\n",
        "import helper\nimport from_lib\n",
        "import sys\nsys.path.insert(0, 'lib')\nimport from_lib\n",
        "from sys import path\npath[0:0] = ['lib']\nimport from_lib\n",
        "import six\nfrom six_more import x\n",
        "try:\n    import nope_nope\nexcept ImportError:\n    pass\n",
        "try:\n    import nope_nope\nexcept ImportError:\n    import helper\nimport nope_too\n",
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import nope_nope\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import nope_nope\n",
        "def late():\n    import nope_nope\n",
        "if __name__ == '__main__':\n    import nope_nope\n",
        "class Late:\n    import helper\nimport nope_nope\n",
        "from . import nope_nope\n",
        "# -*- coding: latin-1 -*-\nx = 'é'\n",
    ],
)
def test_what_may_be_found_at_run_time_passes(home: Path, source: str) -> None:
    assert said(home, source) == ""


def test_modules_are_looked_for_as_that_python_does_in_the_jobs_environment(home: Path) -> None:
    (home / "lib" / "from_lib.py").write_text("open('ran', 'w')\n")
    assert said(home, "import from_lib\n").startswith("no module named from_lib")
    assert said(home, "import from_lib\n", env={"PYTHONPATH": str(home / "lib")}) == ""
    (home / "lib" / "train.py").write_text("import from_lib\n")
    assert said(home, None, PYTHON, "lib/train.py") == "", "the script's folder comes first"
    assert said(home, None, PYTHON, "-I", "lib/train.py") != "", "unless it is told not to"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python in an environment with a library and without us."""
    folder = tmp_path_factory.mktemp("bare") / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").touch()
    return str(folder / "bin" / "python")


def test_what_the_shim_brings_into_the_trainer_is_not_missed(home: Path, bare: str) -> None:
    page = (ROOT / "docs" / "how-to" / "pytorch.md").read_text()
    example = page.partition('```python title="train.py"\n')[2].partition("```")[0]
    assert example.startswith("import reshape_hooks\nimport torch\n")
    for source in (example, "from reshape_hooks import plain\n", "import torch, reshape_hooks.torch\n"):
        for command in ([bare, "train.py"], [bare, "-m", "train"]):
            assert said(home, source, *command, hooks=True) == ""
            assert said(home, source, *command).startswith("no module named reshape_hooks (")
    assert said(home, None, bare, "-m", "reshape_hooks.locks", hooks=True) == ""
    assert said(home, example, bare, "-I", "train.py", hooks=True) != "", "an option keeps our hooks out"
    assert said(home, "import reshape_hooks, nope_nope\n", bare, "train.py", hooks=True).startswith(
        "no module named nope"
    )


def test_a_module_to_run_is_found_where_the_jobs_environment_says(home: Path, bare: str) -> None:
    (home / "lib" / "elsewhere.py").write_text("import reshape_hooks, torch, nope_nope\n")
    (home / "lib" / "package").mkdir()
    (home / "lib" / "package" / "__main__.py").write_text("import reshape_hooks\n")
    env = {"PYTHONPATH": str(home / "lib")}
    assert said(home, None, bare, "-m", "package", env=env, hooks=True) == ""
    assert "no module named nope_nope" in said(home, None, bare, "-m", "elsewhere", env=env, hooks=True)
    assert said(home, None, bare, "-m", "elsewhere", hooks=True).startswith("no module named elsewhere for ")


def test_the_trainer_has_what_the_verdict_presumes(home: Path, bare: str) -> None:
    with running_shim(
        home, [bare, "-c", "import reshape_hooks; reshape_hooks.Elastic"], env={"PYTHONPATH": ""}, hooks=True
    ) as shim:
        shim.client.start(1)
        assert shim.client.wait("exited")["exit_code"] == 0, shim.output.read_text()


def test_our_own_modules_are_not_taken_for_the_jobs() -> None:
    assert environment({"PYTHONPATH": "/ours", "HOME": "/h"}, {"A": 1}) == {"HOME": "/h", "A": "1"}


def test_archives_and_folders_pass(home: Path) -> None:
    (home / "train.zip").write_bytes(b"PK\3\4\0\0")
    assert said(home, None, PYTHON, "train.zip") == ""
    assert said(home, None, PYTHON, "lib") == ""


def test_a_python_that_hangs_chatters_or_cannot_be_started_is_no_verdict(home: Path) -> None:
    (home / "python").write_text("#!/bin/sh\nexec sleep 1000\n")
    (home / "python").chmod(0o755)
    assert asyncio.run(startup_fault(["./python", "nope.py"], dict(os.environ), str(home), 0.3)) == ""
    (home / "python").write_text("#!/bin/sh\necho nonsense\nexit 0\n")
    assert said(home, None, "./python", "nope.py") == ""
    assert said(home, None, "./python3", "nope.py") == ""


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        ("/x/site-packages/b/__init__.cpython-311-x86_64-linux-gnu.so", True),
        ("/x/train.py", True),
        ("built-in", False),
    ],
)
def test_what_a_compiled_module_brings_along_is_not_judged(origin: str, own: bool) -> None:
    assert is_own(ModuleSpec("b", None, origin=origin)) is own
