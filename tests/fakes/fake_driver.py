"""Builds the fake NVIDIA driver (`fake_cuda.c`) for programs that are started with `environment`."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path

from tests.fakes import cuda

SOURCE = Path(__file__).with_name("fake_cuda.c")
GIB = 1 << 30
PYNVML = """
import os
from pathlib import Path
from tests.fakes.fake_pynvml import FakeGpu, FakeNvml

here, nvml = Path(HERE), FakeNvml([
    FakeGpu(gpu, name="NVIDIA H100", minor=60 + number) for number, gpu in enumerate(SHOWN)
])

def held():
    for file in here.glob("*.held"):
        try:
            gpu, size = file.read_text().split()
            os.kill(int(file.stem), 0)
        except (OSError, ValueError):
            continue
        yield int(file.stem), gpu, int(size)

def __getattr__(name):
    for gpu in nvml.gpus:
        gpu.sizes = {pid: size for pid, on, size in held() if on == gpu.uuid}
        gpu.pids, gpu.used = list(gpu.sizes), sum(gpu.sizes.values())
    return getattr(nvml, name)
"""


class FakeDriver:
    """A driver with two GPUs of one type and one of another, each with 80 GiB free."""

    def __init__(self, folder: Path, old: bool = False) -> None:
        """`old`: without the calls that came with driver 570."""
        self.folder = folder / "state"
        self.folder.mkdir(parents=True)
        libraries = folder / "libraries"
        library = cuda.compiled(SOURCE, libraries, *(["-DOLD"] if old else []))
        shutil.copy(library, libraries / "libnvidia-ml.so.1")
        self.gpus = [f"GPU-{uuid.uuid4()}" for _ in range(3)]
        for gpu, kind in zip(self.gpus, ("H100", "H100", "A100"), strict=True):
            self.put(f"{gpu}.name", kind)
            self.put(f"{gpu}.free", 80 * GIB)
        before = os.environ.get("LD_LIBRARY_PATH")
        path = os.pathsep.join([str(libraries), *([before] if before else [])])
        self.environment = {"LD_LIBRARY_PATH": path, "FAKE_CUDA": str(self.folder)}

    def pynvml(self, folder: Path, gpus: int) -> None:
        """Write a module `pynvml` into a folder, which shows the first `gpus` GPUs of this driver."""
        folder.mkdir()
        (folder / "pynvml.py").write_text(
            PYNVML.replace("SHOWN", repr(self.gpus[:gpus])).replace("HERE", repr(str(self.folder)))
        )

    def put(self, name: str, value: object) -> None:
        """Write a file of the fake, whole or not at all: `GPU.free`, or `fail.VERB` (-1: that call hangs)."""
        fresh = self.folder / f"{name}.new"
        fresh.write_text(f"{value}\n")
        fresh.replace(self.folder / name)

    def take_away(self, name: str) -> None:
        (self.folder / name).unlink()

    def state(self, pid: int) -> int:
        """The state of a process: 0 runs, 1 locked, 2 frozen."""
        return int((self.folder / f"{pid}.state").read_text())

    def held(self, pid: int) -> str:
        """The GPU that a process holds; empty if none."""
        file = self.folder / f"{pid}.held"
        return file.read_text().split()[0] if file.exists() else ""
