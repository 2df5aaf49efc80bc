"""The generated pages of docs/reference: found stale by `make check`, written by `make reference`, and complete."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = (
    "coordinator",
    "adaptive_scheduler",
    "sidecar",
    "reshape",
    "launcher",
    "reshape_hooks",
    "reshape_papers",
    "simulator",
)
INTERNAL = {  # between our own processes, or of tests
    "RESHAPE_WAIT", "RESHAPE_IMPORTS", "RESHAPE_COLD", "RESHAPE_FAILPOINT", "RESHAPE_COMPLETE", "RESHAPE_FETCH",
    "RESHAPE_REPORTS", "RESHAPE_OUTPUT", "RESHAPE_SEEDS_OF", "RESHAPE_TRAINER",
}  # fmt: skip


def reference(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / ".ci" / "reference.py"), *options]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_make_reference_mends_what_make_check_finds_stale(tmp_path: Path) -> None:
    """On a copy of what it reads and writes, so that a failure changes nothing here."""
    for folder in (*CODE, ".ci", "docs", "manifests", "playbooks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    assert reference(tmp_path, "--check").returncode == 0
    page = tmp_path / "docs/reference/events.md"
    page.write_text(page.read_text().replace("`submitted`", "`sent`"))
    (tmp_path / "docs/reference/metrics.md").unlink()
    found = reference(tmp_path, "--check")
    assert found.returncode == 1
    assert found.stderr.startswith("docs/reference/metrics.md, docs/reference/events.md: not as the code says.")
    assert reference(tmp_path).returncode == 0
    assert reference(tmp_path, "--check").returncode == 0


def test_every_variable_that_the_code_reads_stands_on_the_page_of_settings() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
    texts = (path.read_text(encoding="utf-8") for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    read = {name for text in texts for name in re.findall(r"[\"'](RESHAPE_[A-Z_]*[A-Z])[\"']", text)}
    assert {"RESHAPE_STORE", "RESHAPE_LOG", "RESHAPE_WARM"} <= read, "the pattern is out of date"
    assert sorted(name for name in read - INTERNAL if f"`{name}`" not in page) == []
