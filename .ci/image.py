"""Fills the environment of our image: `image.py FOLDER`, run inside the build by that environment's own Python.

Promises: the versions and hashes of requirements.lock; everything compiled, because the containers cannot write; our
own packages are found below FOLDER/ours.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Tests, a second Kubernetes client that is for asyncio, and what only installs packages.
LEFT_OUT = ("numpy/**/tests", "scipy/**/tests", "ansible_test", "kubernetes/aio", "pip", "setuptools", "pkg_resources")


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def locked(*wanted: str) -> str:
    """Return the part of the lock for these extras and distributions."""
    done = subprocess.run([sys.executable, HERE / "subset.py", *wanted], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def install() -> None:
    """Install all distributions into the environment of this Python."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".lock") as lock:
        lock.write(locked(".", "k8s", "otel"))
        lock.flush()
        pip("install", "--no-compile", "--no-cache-dir", "--require-hashes", "--no-deps", "-r", lock.name)


def main(folder: Path) -> int:
    site = Path(sysconfig.get_path("purelib"))
    install()
    for pattern in LEFT_OUT:
        for found in list(site.glob(pattern)):
            shutil.rmtree(found, ignore_errors=True)
    (site / "ours.pth").write_text(f"{folder / 'ours'}\n", encoding="utf-8")
    # Ansible holds templates that are named like Python files: what does not compile is not imported.
    compileall.compile_dir(site, quiet=2, workers=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
