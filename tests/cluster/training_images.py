"""Images of the example trainings, built as a user would build them: by `reshape containerize`, from a bare Debian.

`archive("numpy")` and `archive("keras")` are docker-archives of `reshape.local/train-numpy:test` and
`…/train-keras:test`; what has not changed is not built again. The code is in /code: `python numpy_digits.py`,
`python keras_digits.py`. The second one holds TensorFlow (2 GB): import it into one node only.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import built_images
from tests.cluster.bed import Bed
from tests.cluster.built_images import BUILT, IMAGES, ROOT, BuildFailed

PACKAGES = {"numpy": "numpy", "keras": "tensorflow"}
RECIPE = ("playbooks/containerize.yml", "playbooks/training.Containerfile", "requirements.lock")
DATASET = "/code/sklearn/datasets/data/digits.csv.gz"


def name_of(kind: str) -> str:
    """The image's name in a pod."""
    return f"reshape.local/train-{kind}:test"


def archive(kind: str) -> Path:
    """`numpy` or `keras`: its archive, built if it is not there or what goes into it has changed."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    tar, stamp = IMAGES / f"train-{kind}.tar", IMAGES / f"train-{kind}.key"
    with (IMAGES / f"train-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code = _code(kind)
        wanted = _key(kind, code)
        if tar.exists() and stamp.exists() and stamp.read_text() == wanted:
            return tar
        began = time.monotonic()
        stamp.unlink(missing_ok=True)
        _build(kind, code, tar)
        stamp.write_text(wanted)
        print(f"{name_of(kind)}: built in {time.monotonic() - began:.0f} s, {tar.stat().st_size / 1e6:.0f} MB")
        return tar


def provide(bed: Bed, kind: str, node: str) -> None:
    """The image is on that node; imported if it is not there or another one."""
    tar, there = archive(kind), bed.nodes[node].folder / f"imported-train-{kind}"
    wanted = str(tar.stat().st_mtime_ns)
    if not there.exists() or there.read_text() != wanted:
        bed.import_image(tar, [node])
        there.write_text(wanted)


def _code(kind: str) -> Path:
    """The examples with the hooks beside them, and the digits where they look for them."""
    folder = BUILT / "code" / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for script in (ROOT / "examples").glob("*.py"):
        shutil.copy2(script, folder)
    hooks = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sidecar" / "hooks", folder / "sidecar" / "hooks", ignore=hooks)
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise BuildFailed("the digits come with scikit-learn, which is not installed: make install")
    data = folder / Path(DATASET).relative_to("/code")
    data.parent.mkdir(parents=True)
    shutil.copy2(Path(found.origin).parent / "datasets" / "data" / data.name, data)
    (folder / "sklearn" / "__init__.py").touch()
    return folder


def _build(kind: str, code: Path, tar: Path) -> None:
    base = built_images.archive("base")
    requirements = code.with_suffix(".txt")
    requirements.write_text(PACKAGES[kind] + "\n")
    wheels = built_images.wheels(PACKAGES[kind], ".", "gpu")
    command = [sys.executable, "-m", "reshape", "containerize", "--name", name_of(kind), "--code", str(code)]
    command += ["--base", f"docker-archive:{base}", "--requirements", str(requirements), "--dataset", DATASET]
    command += ["--wheels", str(wheels), "--archive", str(tar)]
    done = subprocess.run(command, env=built_images.storage(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}")


def _key(kind: str, code: Path) -> str:
    """Of the sidecar only where pods run the one in the image: else each change of it would copy 2 GB."""
    sidecar = ["sidecar"] if kind == "numpy" else []
    parts = [kind.encode(), (IMAGES / "base.key").read_bytes() if (IMAGES / "base.key").exists() else b""]
    return built_images.digest_of([*parts, *built_images.contents([*RECIPE, *sidecar, str(code.relative_to(ROOT))])])


if __name__ == "__main__":
    for one in sys.argv[1:] or PACKAGES:
        archive(one)
