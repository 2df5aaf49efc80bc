"""Fills the environment of our image: `image.py FOLDER`, run inside the build by that environment's own Python.

Promises: the versions and hashes of requirements.lock; of Ansible's collections only kubernetes.core; everything
compiled, because the containers cannot write; our own packages are found below FOLDER/ours.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from subset import blocks_of, name_of

HERE = Path(__file__).resolve().parent
COLLECTION = "ansible_collections/kubernetes/core/"
LOCKED = ("--no-cache-dir", "--require-hashes", "--no-deps", "-r")
LEFT_OUT = ("numpy/**/tests", "scipy/**/tests", "ansible_test")


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def locked(*wanted: str) -> str:
    """Return the part of the lock for these extras and distributions."""
    done = subprocess.run([sys.executable, HERE / "subset.py", *wanted], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def split(lock: str, name: str) -> tuple[str, str]:
    """Return the lock without the distribution `name`, and the block of that distribution."""
    alone = "".join(block for block in blocks_of(lock) if name_of(block) == name)
    return "".join(block for block in blocks_of(lock) if name_of(block) != name), alone


def install(site: Path, scratch: Path) -> None:
    """Install all distributions into `site`; files that the image does not keep go to `scratch`."""
    rest, ansible = split(locked(".", "k8s"), "ansible")  # 500 MB of collections, of which we use one
    (scratch / "rest").write_text(rest, encoding="utf-8")
    (scratch / "ansible").write_text(ansible, encoding="utf-8")
    pip("install", "--no-compile", *LOCKED, str(scratch / "rest"))
    pip(
        "download",
        "--no-cache-dir",
        "--require-hashes",
        "--no-deps",
        "-r",
        str(scratch / "ansible"),
        "-d",
        str(scratch),
    )
    for wheel in scratch.glob("ansible-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if name.startswith(COLLECTION)])


def main(folder: Path) -> int:
    site = Path(sysconfig.get_path("purelib"))
    with tempfile.TemporaryDirectory() as scratch:
        install(site, Path(scratch))
    for pattern in LEFT_OUT:
        for found in list(site.glob(pattern)):
            shutil.rmtree(found, ignore_errors=True)
    (site / "ours.pth").write_text(f"{folder / 'ours'}\n", encoding="utf-8")
    # Some collections hold templates that are named like Python files: what does not compile is not imported.
    compileall.compile_dir(site, quiet=2, workers=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
