"""Tells which devices of a pod are accelerators that this project does not share out. Pure; called by `inject`.

A pod that holds such a device by Kubernetes' own books, such as a part of a GPU, an AMD GPU or a virtual one, would
get GPUs of ours besides, or hold one that the coordinator takes for free.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WHOLE_GPU = "nvidia.com/gpu"
# By the names of device plugins: NVIDIA (MIG, time slices), HAMi, Volcano's vGPU, AMD, Intel, Habana, Huawei, Google's
# and Amazon's chips, Alibaba, Tencent, Cambricon, Hygon, Iluvatar, Metax, Moore Threads. NICs and others are no matter.
ACCELERATORS = re.compile(
    r"(?i)[^/]+/[^/]*(gpu|mig-|vcuda|cuda|ascend|npu|tpu|neuron|gaudi|dcu|mlu)[^/]*|gpu\.intel\.com/.+"
)


def other_accelerator(container: Mapping[str, Any]) -> str | None:
    """Return the name of an accelerator that a container asks for, other than a whole NVIDIA GPU, or None."""
    resources = container.get("resources") or {}
    names = {str(name) for kind in ("limits", "requests") for name in resources.get(kind) or {}}
    return min((name for name in names if name != WHOLE_GPU and ACCELERATORS.fullmatch(name)), default=None)


def claims_devices(container: Mapping[str, Any]) -> bool:
    """True if a container asks for devices by a ResourceClaim (DRA), which may be GPUs."""
    return bool((container.get("resources") or {}).get("claims"))
