"""What each scenario on the cluster measured: build/cluster-report.json, and a line each at the end of the run.

Used by cluster tests through the fixture `report`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Figures = dict[str, Any]


class Report:
    """Scenarios in the order they ended; the file is written anew after each, so that a stopped run leaves one."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.scenarios: list[dict[str, Any]] = []

    @contextmanager
    def scenario(self, name: str) -> Iterator[Figures]:
        """Fill the figures inside; a scenario that fails is reported with those it had by then."""
        figures: Figures = {}
        try:
            yield figures
        except pytest.skip.Exception:
            raise  # it was not played: nothing to report
        except BaseException:
            self._note({"name": name, "passed": False, "figures": figures})
            raise
        self._note({"name": name, "passed": True, "figures": figures})

    def lines(self) -> list[str]:
        return [
            f"{each['name']}: {'passed' if each['passed'] else 'FAILED'}"
            + "".join(f"  {name}={_short(value)}" for name, value in each["figures"].items())
            for each in self.scenarios
        ]

    def _note(self, scenario: dict[str, Any]) -> None:
        self.scenarios.append(scenario)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps({"scenarios": self.scenarios}, indent=2) + "\n")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
