"""What `make install` leaves out where TensorFlow cannot be installed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci" / "install.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(lock: str) -> set[str]:
    return set(re.findall(r"(?m)^([A-Za-z0-9._-]+)==", lock))


def test_without_tensorflow_everything_that_only_it_needs_goes_and_the_rest_stays() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    smaller = install().without(lock, "tensorflow")
    gone = names(lock) - names(smaller)
    assert {"tensorflow", "keras", "h5py"} <= gone and "grpcio" not in gone
    assert not gone & {
        "numpy",
        "scikit-learn",
        "matplotlib",
        "ansible-runner",
        "tornado",
        "pymongo",
        "pytest",
        "hatchling",
    }
    assert all(line in lock for line in smaller.splitlines())


LOCK = """\
# head
a==1 \\
    --hash=sha256:0
    # via b
b==2 \\
    --hash=sha256:1
    # via volcano-reshape (pyproject.toml)
"""


def test_a_lock_without_tensorflow_stays_as_it_is() -> None:
    assert install().without(LOCK, "tensorflow") == LOCK
    assert names(install().without(LOCK, "b")) == set()
