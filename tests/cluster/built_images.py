"""The images of the test bed, built by buildah into build/cluster/images/*.tar: `python -m tests.cluster.built_images`.

Promises: no registry; what has not changed is not built again (a hash of all that goes in is kept beside each archive);
a change of our own code costs one thin layer; wheels come by the host's pip, so a build needs no network of its own.
Called by the bed before it starts, and by hand.

* `reshape.local/base:test`: Debian with Python 3.11 and nothing else, stands for a user's image.
* `reshape.local/reshape:test`: ours, from the Containerfile that users build.
* `reshape.local/nx:test`: nx-27017, which speaks MongoDB's protocol, in place of MongoDB.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "build" / "cluster"
IMAGES = BUILT / "images"
DEBIAN = "bookworm"
PACKAGES = "python3,python3-venv"
NOT_NEEDED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale", "var/log")
NX = """\
FROM reshape.local/base:test AS environment
RUN python3 -m venv /opt/nx && /opt/nx/bin/pip install --quiet --no-index --no-deps -f /wheels nx-27017 neosqlite \
 pymongo dnspython
FROM reshape.local/base:test
COPY --from=environment /opt/nx /opt/nx
USER 65532:65532
ENV PATH=/opt/nx/bin:/usr/bin:/bin PYTHONUNBUFFERED=1
ENTRYPOINT ["nx-27017"]
"""


class BuildFailed(Exception):
    """A program that builds images failed; says which and its last words."""


def name_of(kind: str) -> str:
    """The image's name in a pod."""
    return f"reshape.local/{kind}:test"


def archive(kind: str) -> Path:
    """`base`, `reshape` or `nx`: its archive, built if it is not there or what goes into it has changed."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with (IMAGES / f"{kind}.lock").open("w") as lock:  # two runs at once build it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _archive(kind)


def _archive(kind: str) -> Path:
    build, key = {"base": (_base, _base_key), "reshape": (_reshape, _reshape_key), "nx": (_nx, _nx_key)}[kind]
    tar, stamp, wanted = IMAGES / f"{kind}.tar", IMAGES / f"{kind}.key", key()
    if tar.exists() and stamp.exists() and stamp.read_text() == wanted:
        return tar
    began = time.monotonic()
    stamp.unlink(missing_ok=True)
    build()
    export(name_of(kind), tar)
    stamp.write_text(wanted)
    print(f"{name_of(kind)}: built in {time.monotonic() - began:.0f} s, {tar.stat().st_size / 1e6:.0f} MB")
    return tar


def storage() -> dict[str, str]:
    """The environment in which buildah, by hand or by a playbook, works on the storage below build/cluster."""
    file = BUILT / "storage.conf"
    lines = ('driver = "overlay"', f'graphroot = "{BUILT}/buildah"', f'runroot = "{BUILT}/buildah-run"')
    _write(file, "[storage]\n" + "\n".join(lines) + "\n")
    return {**os.environ, "BUILDAH_ISOLATION": "chroot", "CONTAINERS_STORAGE_CONF": str(file)}


def _write(file: Path, text: str) -> None:
    """Write it if it differs: another build may read it now."""
    if not file.exists() or file.read_text() != text:
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(text)
        new.replace(file)


def buildah(*arguments: str, stdin: str | None = None) -> str:
    """Run it on that storage; what it printed."""
    return _run(["buildah", *arguments], storage(), stdin)


def wheels(*wanted: str) -> Path:
    """A folder that holds the locked wheels of these extras and distributions; downloaded by the host's pip."""
    return downloaded(locked(*wanted))


def locked(*wanted: str) -> str:
    """What requirements.lock says of these extras and distributions, and of all that they need."""
    return _run([sys.executable, str(ROOT / ".ci" / "subset.py"), *wanted])


def downloaded(text: str) -> Path:
    """A folder that holds the wheels that this part of a lock names."""
    folder = BUILT / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    lock = BUILT / f"wheels-{digest_of([text.encode()])[:12]}.lock"
    if not lock.exists():
        new = lock.with_suffix(".new")
        new.write_text(text)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", str(folder)]
        _run([*pip, "-r", str(new)])
        new.replace(lock)
    return folder


def export(name: str, tar: Path) -> None:
    """Write a built image as an archive, all or nothing."""
    new = tar.with_suffix(".new")
    new.unlink(missing_ok=True)
    buildah("push", "--quiet", name, f"docker-archive:{new}:{name}")
    new.replace(tar)


def _base() -> None:
    folder = BUILT / "debian"
    shutil.rmtree(folder, ignore_errors=True)
    _run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, str(folder)])
    for name in NOT_NEEDED:
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(folder), "/")
    buildah("config", "--env", "PATH=/usr/local/bin:/usr/bin:/bin", "--cmd", "python3", container)
    buildah("commit", "--quiet", "--rm", container, name_of("base"))
    shutil.rmtree(folder)


def have(name: str, tar: Path) -> None:
    """That image is in buildah's storage, which somebody may have emptied since it was built."""
    if not buildah("images", "--quiet", "--filter", f"reference={name}"):
        buildah("pull", "--quiet", f"docker-archive:{tar}")


def _reshape() -> None:
    have(name_of("base"), archive("base"))
    ours = ("--layers", "--build-arg", f"BASE={name_of('base')}", "-f", str(ROOT / "Containerfile"))
    buildah("build", "--quiet", *ours, *offline_options(), "-t", name_of("reshape"), str(ROOT))


def _nx() -> None:
    have(name_of("base"), archive("base"))
    buildah("build", "--quiet", "--layers", *offline_options(), "-t", name_of("nx"), "-f", "-", str(IMAGES), stdin=NX)


def offline_options() -> list[str]:
    """Options that let pip, inside a build, find its wheels in a folder of the host and nowhere else."""
    folder, settings = wheels(".", "k8s", "otel", "hatchling", "nx-27017"), BUILT / "pip.conf"
    _write(settings, "[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n")
    return ["--volume", f"{folder}:/wheels:ro", "--volume", f"{settings}:/etc/pip.conf:ro"]


def _base_key() -> str:
    return digest_of([f"{DEBIAN} {PACKAGES} {NOT_NEEDED}".encode()])


def _reshape_key() -> str:
    kept = (ROOT / ".containerignore").read_text().splitlines()
    names = [line[1:] for line in kept if line.startswith("!")]
    return digest_of([_base_key().encode(), *contents(["Containerfile", ".containerignore", *names])])


def _nx_key() -> str:
    return digest_of([_base_key().encode(), NX.encode(), *contents(["requirements.lock"])])


def contents(names: Iterable[str]) -> Iterable[bytes]:
    """Names and bytes of all files below, in a fixed order."""
    for top in names:
        path = ROOT / top
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in (f for f in files if f.is_file() and "__pycache__" not in f.parts):
            yield f"\0{file.relative_to(ROOT)}\0{file.stat().st_mode & 0o111}\0".encode()
            yield file.read_bytes()


def digest_of(parts: Iterable[bytes]) -> str:
    """One name for all these bytes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _run(command: list[str], environment: dict[str, str] | None = None, stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}".strip()
        raise BuildFailed(f"{' '.join(command[:2])} failed: {words}")
    return done.stdout.strip()


if __name__ == "__main__":
    for one in sys.argv[1:] or ("base", "reshape", "nx"):
        archive(one)
