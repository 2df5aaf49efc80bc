"""The real HTTP edge on a loopback socket, around a coordinator in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.caller import Caller
from tests.fakes.coordinator_api import Live, serve


@pytest.fixture
def live() -> Iterator[Live]:
    with serve() as running:
        yield running


@pytest.fixture
def call(live: Live) -> Caller:
    return Caller(live)
