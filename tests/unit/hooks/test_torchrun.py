"""torchrun asks its processes to stop, and not the loaders' workers that these have started."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace

from reshape_hooks.adapters.torchrun import _close_one


def test_a_process_is_asked_to_stop_and_what_it_has_started_is_not() -> None:
    script = "trap 'exit 143' TERM; sleep 600 >&- & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        passed_on: list[int] = []
        _close_one(SimpleNamespace(proc=process), passed_on.append, signal.SIGTERM)
        assert process.wait() == 143
        os.kill(worker, 0)  # raises where it has ended
        _close_one(SimpleNamespace(proc=process), passed_on.append, signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)
    assert passed_on == [signal.SIGKILL]
