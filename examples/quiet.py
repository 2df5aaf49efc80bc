"""Imports TensorFlow without its messages on standard error, and without packages that no training here needs."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@contextlib.contextmanager
def quiet_errors() -> Iterator[None]:
    """Hold standard error back, and show it if the block fails.

    By file descriptor: TensorFlow's native code writes there before its log level counts.
    """
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def without(*packages: str) -> Iterator[None]:
    """Hide packages from the imports of the block.

    Keras imports scikit-learn and Matplotlib where they are installed, which takes a third of its start.
    """
    hidden = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None: as if it were not installed
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
