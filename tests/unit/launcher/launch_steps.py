"""What steps of a launch do, and what they write down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from launcher.cluster.controllers.launch import Step, WriteLaunch


def actions(steps: Iterable[Step]) -> list[Step]:
    """The steps that do more than write into the launch's document."""
    return [step for step in steps if not isinstance(step, WriteLaunch)]


def changes(steps: Iterable[Step]) -> dict[str, Any]:
    """All fields that they write into the launch's document."""
    found: dict[str, Any] = {}
    for step in steps:
        found |= step.changes if isinstance(step, WriteLaunch) else {}
    return found
