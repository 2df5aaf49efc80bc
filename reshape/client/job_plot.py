"""A picture of how a job's training went, for notebooks: its value and its speed by iterations, and its GPUs.

The coordinator draws it, the same as on the dashboard's page of the job, so nothing has to be installed here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class JobPlot:
    """Picture that `Client.plot` returns. `svg`: the picture; `curve`: its numbers, as `Client.curve` returns them."""

    def __init__(self, curve: Mapping[str, Any], svg: str) -> None:
        self.curve = curve
        self.svg = svg

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the picture into an SVG file, which browsers and editors open. Raises `OSError` if it cannot."""
        Path(file).write_text(self.svg, encoding="utf-8")

    def _repr_svg_(self) -> str:
        """Return the picture; a notebook calls this."""
        return self.svg

    def __repr__(self) -> str:
        """Return the same in a line, for a terminal."""
        told = [part for part in (self._value(), self._speed(), self._gpus()) if part]
        return f"<Plot of job {self.curve['job_id']}: {', '.join(told) or 'no step was seen in its output yet'}>"

    def _value(self) -> str:
        values = self.curve["values"]
        if not values:
            return ""
        (_, first) = values[0]
        (iterations, last) = values[-1]
        name = self.curve["value_name"] or "value"
        return f"{name} {first:.4g} to {last:.4g} in {iterations:.0f} iterations"

    def _speed(self) -> str:
        speeds = self.curve["speeds"]
        return f"{speeds[-1][1]:.3g} s per iteration" if speeds else ""

    def _gpus(self) -> str:
        counts = [str(count) for _, count in self.curve["gpus"]]
        return f"on {' then '.join(counts)} GPU{'s' * (counts != ['1'])}" if counts else ""
