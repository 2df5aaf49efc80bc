"""Every command that a document shows is run as it stands there, page by page, by a shell in a new home folder.

A reader looks at what a command did before the next block, so between blocks this waits until no job is being changed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from reshape.client import Client, CoordinatorUnreachable
from tests import documents
from tests.depth import deep
from tests.documents import ROOT, Block
from tests.e2e.up import ENDED, Up, wait_for
from tests.interpreters import python_with

CHANGES = ("initializing", "initialized", "adjusting", "restarting")
WITHIN_S = 120.0


def pages() -> Iterator[object]:
    for name in documents.with_commands():
        heavy = documents.needed(name) & documents.HEAVY
        yield deep(name, name=name) if heavy else pytest.param(name, id=name)


class Reader:
    """A shell in which one page is typed."""

    def __init__(self, home: Path, variables: Mapping[str, str]) -> None:
        self.home, self.folder = home, home / "volcano-reshape"
        self.folder.mkdir(parents=True)
        for name in ("examples", "reshape_hooks", "manifests"):  # of the checkout in which the reader stands
            (self.folder / name).symlink_to(ROOT / name)
        self.said = ""
        self._shell = subprocess.Popen(
            ["bash"], cwd=self.folder, env=dict(variables), text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def types(self, block: Block) -> int:
        """Runs a block, up to the first command that fails unless it shall fail; its exit code."""
        (self.home / "block").write_text(block.text)
        stops = "+e" if "exit code" in block.marks else "-e"  # then the shell itself ends, with that code
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'set {stops}; . "{self.home}/block" </dev/null; echo "@@ $?"\n')
        self._shell.stdin.flush()
        for line in self._shell.stdout:
            if line.startswith("@@ "):
                return int(line.split()[1])
            self.said += line
        return self._shell.wait()

    def ends(self) -> None:
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()
        self._shell.wait(WITHIN_S)


def at_rest(state: Path) -> bool:
    """Whether a reader would see nothing change by the next look: jobs train, wait for a reason, or have ended."""
    try:
        jobs = Client.find(state).jobs()
    except (CoordinatorUnreachable, OSError, ValueError):
        return True
    done = ("running", *ENDED)
    return all(j["state"] in done or (j["state"] == "submitted" and j.get("message")) for j in jobs)


def variables(document: str, home: Path) -> dict[str, str]:
    """Those of a login with the virtual environment active; a training counts as running at its first step only."""
    pythons = [Path(str(python_with(module))).parent for module in sorted(documents.needed(document))]
    path = [*map(str, dict.fromkeys([*pythons, Path(sys.executable).parent])), os.environ["PATH"]]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RESHAPE_")}
    ours = {"HOME": str(home), "PATH": os.pathsep.join(path), "RESHAPE_FIRST_STEP_TIMEOUT_S": "900"}
    return kept | ours


@pytest.mark.parametrize("document", list(pages()))
def test_every_command_of_the_page_does_what_it_says(document: str, tmp_path: Path) -> None:
    for module in documents.needed(document):
        if python_with(module) is None:
            pytest.skip(f"{module} is not installed")
    home = tmp_path / "home"
    reader = Reader(home, variables(document, home))
    try:
        for block in documents.blocks(document):
            if block.title:
                (reader.folder / block.title).write_text(block.text)
            elif block.is_run:
                code = reader.types(block)
                assert code == int(block.marks.get("exit code", 0)), f"{block.place}: {reader.said[-3000:]}"
                wait_for(lambda: at_rest(home / ".reshape"), WITHIN_S, f"nothing changes after {block.place}")
    finally:
        reader.ends()
        with contextlib.suppress(CoordinatorUnreachable, OSError):
            ended(home)


def ended(home: Path) -> None:
    """Stops what the page has started, as `reshape down` and the end of each job would."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("RESHAPE_")}
    down = [sys.executable, "-m", "reshape", "--state", str(home / ".reshape"), "down"]
    subprocess.run(down, env=environment, capture_output=True, check=False)
    Up(home / ".reshape", "1xV100").clear()
