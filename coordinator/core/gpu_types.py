"""Names of GPU types, so that a mistyped one is found and not waited for. Pure.

A type is known if a node has it or had it, if a speed was measured or imported for it, or if it is one of NVIDIA's.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.fields import meant
from coordinator.core.records import show

KNOWN = frozenset(
    {
        "A2", "A10", "A16", "A30", "A40", "A100", "A800", "B100", "B200", "B300", "GB200", "GB300", "GH200", "H100",
        "H200", "H20", "H800", "K20", "K40", "K80", "L4", "L20", "L40", "L40S", "M4", "M40", "M60", "P4", "P6", "P40",
        "P100", "T4", "V100", "A2000", "A4000", "A4500", "A5000", "A5500", "A6000", "1080", "1080Ti", "2080", "2080Ti",
        "3060", "3060Ti", "3070", "3070Ti", "3080", "3080Ti", "3090", "3090Ti", "4060", "4060Ti", "4070", "4070Ti",
        "4080", "4090", "5070", "5070Ti", "5080", "5090",
    }
)  # fmt: skip
"""NVIDIA's, as `sidecar.gpus.short_type` shortens them. What is missing here is known once a node reports it."""


def problem(kind: object, here: Iterable[str]) -> str:
    """Why that is no GPU type, as a sentence; empty if it is one. `here`: those of the nodes and of the profiles."""
    known = {*here} - {""}
    if not isinstance(kind, str) or kind in KNOWN or kind in known:
        return ""
    like = meant(kind, KNOWN | known) or f"; known are {', '.join(sorted(known or KNOWN)[:5])} and others"
    return f"no node and no speed profile has the GPU type {show(kind)}{like}"
