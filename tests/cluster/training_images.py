"""Images of the example trainings, built as a user would build them: by `reshape containerize`.

`archive("numpy")`, `archive("keras")` and `archive("torch")` are archives of `reshape.local/train-numpy:test` and so
on; what has not changed is not built again. All examples are in /code, such as `python mnist.py train`.
The first has its packages from a list; the others stand on an image that holds their framework, as most users' do. That
of Keras is an archive of its own, too: `archive("tensorflow")` holds Python and TensorFlow and nothing of ours. They
take some 1.3 GB of each node's disk. `python -m tests.cluster.training_images` builds all.
"""

from __future__ import annotations

import fcntl
import importlib.util
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import built_images
from tests.cluster.built_images import BUILT, IMAGES, ROOT, BuildFailed

FRAMEWORKS = {"keras": "tensorflow", "torch": "torch"}  # kind -> the image below it, in frameworks/
STOCK = "tensorflow"
KINDS = ("numpy", *FRAMEWORKS, STOCK)
# TensorFlow for CPUs only is half as large; it needs what the TensorFlow of the lock needs.
CPU_ONLY = r"tensorflow-cpu==\1 --hash=sha256:2b847d217b02ee7731ed91431daf3250daa0196c3c94614d23be27232e6e5b6c\n"
RECIPE = ("playbooks/containerize.yml", "playbooks/training.Containerfile", "requirements.lock")
RECIPES = "tests/cluster/frameworks"
DATASET = "/code/sklearn/datasets/data/digits.csv.gz"


def name_of(kind: str) -> str:
    """The image's name in a pod."""
    return built_images.name_of(kind if kind == STOCK else f"train-{kind}")


def archive(kind: str) -> Path:
    """Of one of KINDS: its archive, built if it is not there or what goes into it has changed."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    tar, stamp = IMAGES / f"train-{kind}.tar", IMAGES / f"train-{kind}.key"
    with (IMAGES / f"train-{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code = None if kind == STOCK else _code(kind)
        wanted = _key(kind, code)
        if tar.exists() and stamp.exists() and stamp.read_text() == wanted:
            return tar
        began = time.monotonic()
        stamp.unlink(missing_ok=True)
        _build(kind, code, tar)
        stamp.write_text(wanted)
        print(f"{name_of(kind)}: built in {time.monotonic() - began:.0f} s, {tar.stat().st_size / 1e6:.0f} MB")
        return tar


def _code(kind: str) -> Path:
    """The examples with the hooks beside them, and the digits where they look for them."""
    folder = BUILT / "code" / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for scripts in ("*.py", "zoo/*.py", "slaml/*.py"):
        for script in (ROOT / "examples").glob(scripts):
            shutil.copy2(script, folder)
    hooks = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "reshape_hooks", folder / "reshape_hooks", ignore=hooks)
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise BuildFailed("the digits come with scikit-learn, which is not installed: make install")
    data = folder / Path(DATASET).relative_to("/code")
    data.parent.mkdir(parents=True)
    shutil.copy2(Path(found.origin).parent / "datasets" / "data" / data.name, data)
    (folder / "sklearn" / "__init__.py").touch()
    return folder


def _build(kind: str, code: Path | None, tar: Path) -> None:
    if code is None:
        _export(_framework(kind), tar)
        return
    if kind in FRAMEWORKS:
        base, more = _framework(FRAMEWORKS[kind]), []
    else:
        base, more = f"docker-archive:{built_images.archive('base')}", [*_packages(code), "--archive", str(tar)]
    command = [sys.executable, "-m", "reshape", "containerize", "--name", name_of(kind), "--code", str(code)]
    command += ["--base", base, "--dataset", DATASET, "--wheels", str(built_images.wheels(".", "gpu")), *more]
    done = subprocess.run(command, env=built_images.storage(), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
    if kind in FRAMEWORKS:
        _export(name_of(kind), tar)


def _packages(code: Path) -> list[str]:
    built_images.wheels("numpy")
    requirements = code.with_suffix(".txt")
    requirements.write_text("numpy\n")
    return ["--requirements", str(requirements)]


def _framework(name: str) -> str:
    """An image that holds the framework, made here and now."""
    built_images.have(built_images.name_of("base"), built_images.archive("base"))
    context, image, volumes = BUILT / "frameworks" / name, built_images.name_of(name), []
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir(parents=True)
    if name == "tensorflow":
        lock = re.sub(r"(?ms)^tensorflow==(\S+).*?(?=^[a-z0-9])", CPU_ONLY, built_images.locked(name))
        (context / "lock.txt").write_text(lock)
        volumes = ["--volume", f"{built_images.downloaded(lock)}:/wheels:ro"]
    recipe = [
        "-f",
        str(ROOT / RECIPES / f"{name}.Containerfile"),
        "--build-arg",
        f"BASE={built_images.name_of('base')}",
    ]
    built_images.buildah("build", "--quiet", "--layers", *volumes, *recipe, "-t", image, str(context))
    return image


def _export(name: str, tar: Path) -> None:
    """Compressed: it is large, and each node keeps the archive's layers beside what it unpacks of them."""
    new = tar.with_suffix(".new")
    new.unlink(missing_ok=True)
    built_images.buildah("push", "--quiet", "--compression-format=zstd", name, f"oci-archive:{new}:{name}")
    new.replace(tar)


def _key(kind: str, code: Path | None) -> str:
    """Of the sidecar only where pods run the one in the image: else each change of it would copy a framework."""
    below = FRAMEWORKS.get(kind, kind)
    more = ["sidecar"] if kind == "numpy" else [f"{RECIPES}/{below}.Containerfile"]
    if code:
        more.append(str(code.relative_to(ROOT)))
    base = IMAGES / "base.key"
    parts = [f"{kind} {CPU_ONLY}".encode(), base.read_bytes() if base.exists() else b""]
    return built_images.digest_of([*parts, *built_images.contents([*RECIPE, *more])])


if __name__ == "__main__":
    for one in sys.argv[1:] or KINDS:
        archive(one)
