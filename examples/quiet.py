"""Keeps TensorFlow's messages on standard error during its import out of the training's log."""

from __future__ import annotations

import contextlib
import os
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
