"""A sidecar beside a training does what comes round at each heartbeat together, and starts without what few ask for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sidecar import core
from sidecar.core import BEFORE_BEAT_S
from sidecar.protocol import ShimStatus

BEAT_S, NOW = 5.0, 1000.0


@pytest.mark.parametrize(
    ("due_at", "wanted"),
    [
        (NOW + 4.0, 4.0 - BEFORE_BEAT_S),
        (NOW + BEFORE_BEAT_S, BEAT_S),  # this is that moment
        (NOW, BEAT_S - BEFORE_BEAT_S),
        (NOW - 60.0, BEAT_S),  # none can be sent
    ],
)
def test_measured_is_just_before_the_next_heartbeat(due_at: float, wanted: float) -> None:
    assert core.until_beat(core.SidecarState(BEAT_S, 1, due_at=due_at), NOW) == pytest.approx(wanted)


@pytest.mark.parametrize(("early_s", "sent"), [(BEFORE_BEAT_S / 2, True), (2 * BEFORE_BEAT_S, False)])
def test_the_heartbeat_is_sent_with_what_was_measured_just_before_it_is_due(early_s: float, sent: bool) -> None:
    state = core.SidecarState(BEAT_S, 1, shim=ShimStatus(shim_pid=7), due_at=NOW)
    state, instructions = core.step(state, core.TimerFired(NOW - early_s))
    assert [type(one) for one in instructions] == ([core.SendHeartbeat] if sent else [])
    assert state.due_at == (NOW - early_s + BEAT_S if sent else NOW)


def test_a_sidecar_starts_without_what_renders_metrics_and_without_compiling_formats() -> None:
    code = (
        "import sys, sidecar.__main__\n"
        "from sidecar.output.formats import TABLE\n"
        "print('prometheus_client' in sys.modules, any('pattern' in vars(row) for row in TABLE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
