"""Gives a training that does not seed itself the same random numbers at each start.

Promises: in each generation of a job, `random`, NumPy and PyTorch begin with the same numbers, different in each job
and rank, so that what a script draws before it trains (weights, a split) is drawn alike; a stream that the script has
seeded or drawn from is left as it is. Begins when a framework is imported: other scripts are unaffected. `streams` and
`restore` keep the streams in a checkpoint. Called by `on_import` and the hooks, from Python 3.8 on; NumPy and PyTorch
only where the script imports them.
"""

from __future__ import annotations

import importlib
import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:  # each Python of a job that imports `random` loads this file
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

_fresh: dict[str, Any] = {}  # `random`, `numpy.random` -> its state when imported
_begun: list[bool] = []


def number() -> int:
    """Return the seed of this job and rank, below 2**32; a rehearsal gives all its runs the same one."""
    name = os.environ.get("RESHAPE_SEEDS_OF") or os.environ.get("RESHAPE_JOB_ID", "")
    return zlib.crc32(f"{name} {os.environ.get('RANK', '0')}".encode())


def adapt(module: ModuleType) -> None:
    """Seed PyTorch and all streams; for the other modules, remember their unused state."""
    if module.__name__ == "torch":
        if not in_worker():
            module.manual_seed(number())
        begin()
    else:
        _fresh[module.__name__] = _state(module)
        if _begun:
            _seed(module)


def begin() -> None:
    """Seed `random` and NumPy, if imported and unused, and otherwise once the script imports them.

    A framework's adapter calls it when the framework is imported, and seeds the framework's own streams by `number`.
    """
    if not _begun and not in_worker():
        _begun.append(True)
        for name in _fresh:
            _seed(sys.modules[name])


def streams(devices: bool = False) -> dict[str, Any]:
    """Return the picklable state of each stream that the script has imported; with `devices`, also of GPUs."""
    have = {name: sys.modules[name] for name in ("random", "numpy.random", "torch") if name in sys.modules}
    states: dict[str, Any] = {}
    if "random" in have:
        states["random"] = have["random"].getstate()
    if "numpy.random" in have:
        states["numpy.random"] = have["numpy.random"].get_state()
    if "torch" in have:
        states["torch"] = have["torch"].get_rng_state()
        if devices and have["torch"].cuda.is_available():
            states["cuda"] = have["torch"].cuda.get_rng_state_all()
    return states


def restore(states: Mapping[str, Any]) -> None:
    """Restore the streams to what `streams` returned. An additional GPU draws from its own stream.

    Imports what the script had imported at the save and has not imported again yet, as within its loop.
    """
    if "random" in states:
        importlib.import_module("random").setstate(states["random"])
    if "numpy.random" in states:
        importlib.import_module("numpy.random").set_state(states["numpy.random"])
    if "torch" in states:
        torch = importlib.import_module("torch")
        torch.set_rng_state(states["torch"])
        for device, state in enumerate(states.get("cuda", ())[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(state, device)


def in_worker() -> bool:
    """Return whether this is a process of `multiprocessing`: their parent lets them draw different numbers."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.current_process().name != "MainProcess"


def _seed(module: ModuleType) -> None:
    if _state(module) == _fresh[module.__name__]:
        module.seed(number())
    if module.__name__ == "numpy.random":
        _seed_generators(module)


def _seed_generators(numpy_random: Any) -> None:
    """Let each `default_rng()` without a seed give different numbers, but the same ones in each generation."""
    made, given = numpy_random.default_rng, []

    def default_rng(seed: Any = None) -> Any:
        if seed is None:
            given.append(True)
            seed = numpy_random.SeedSequence(number(), spawn_key=(len(given),))
        return made(seed)

    default_rng.__doc__ = made.__doc__
    numpy_random.default_rng = default_rng


def _state(module: Any) -> Any:
    if module.__name__ == "random":
        return module.getstate()
    _, key, position, *_ = module.get_state()
    return key.tobytes(), position
