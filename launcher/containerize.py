"""Builds the image of a training by playbooks/containerize.yml (`reshape containerize`).

Promises: values reach the playbook as text, never as template; the image carries the shim and the sidecar of this very
version, so that its pod may be a single container; an archive appears whole or not at all; without a tag it gets one
that is made of all that goes into it, by which an unchanged image is found again. Called by the command line, and by
`image_builder.py`, which plays it itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from coordinator.errors import Fatal, Rejected
from launcher.playbook import NOT_INSTALLED, as_text, search_path
from sidecar import protocol

SIDECAR = Path(protocol.__file__).parent
HOOKS = SIDECAR.with_name("reshape_hooks")
TAG_LENGTH = 16
SIDECAR_PACKAGES = ("msgspec", "prometheus-client", "tornado")
NVML = "nvidia-ml-py"  # only where it is installed here
NO_BUILDAH = "buildah was not found: install it (Debian and Ubuntu: apt-get install buildah), then try again"


@dataclass(frozen=True, slots=True)
class Image:
    """The content of an image. Paths are of this machine."""

    name: str
    """Without a tag it gets one that is made of its content."""
    base: str
    """An image's name, or docker-archive:FILE."""
    code: Path
    requirements: Path | None = None
    """A list of packages, as pip takes it."""
    packages: tuple[str, ...] = ()
    """Lines of such a list, besides those in the file."""
    dataset: str | None = None
    """A path or address that the training finds in RESHAPE_DATASET."""
    wheels: Path | None = None
    """A folder of wheels, the only place to install from."""
    archive: Path | None = None
    push: bool = False
    """Whether it goes to the registry of its name."""


def build(
    image: Image,
    playbook: Path,
    record: str = "",
    coordinator: Mapping[str, str] | None = None,
    unchanged: bool = False,
) -> None:
    """Build the image and hand it over; the programs print to the terminal. `Fatal` if one of them fails.

    `record`: a job document, as JSON, that is submitted last; `coordinator`: the variables that name where to;
    `unchanged`: whether an image of that name, where there is one, is this very image (`tagged`).
    """
    path = search_path()
    if (ansible := shutil.which("ansible-playbook", path=path)) is None:
        raise Fatal(NOT_INSTALLED)
    if shutil.which("buildah", path=path) is None:
        raise Fatal(NO_BUILDAH)
    new = image.archive and image.archive.with_name(image.archive.name + ".new")
    if new:
        new.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        values, job = Path(folder, "values.yml"), Path(folder, "job.json")
        job.write_text(record, encoding="utf-8")
        given = variables(image, new, job if record else None, unchanged)
        values.write_text(as_text(given), encoding="utf-8")
        command = [ansible, "--inventory", "localhost,", "--extra-vars", f"@{values}", str(playbook)]
        environment = {**os.environ, **(coordinator or {}), **_settings(path)}
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode:
        wanted = "built" + ", pushed" * image.push + " and its job submitted" * bool(record)
        raise Fatal(f"The image {image.name} was not {wanted}: see the task above that failed.")
    if new and image.archive:
        new.replace(image.archive)


def tagged(image: Image, playbooks: Path) -> str:
    """Return the name of the image with a tag that changes whenever anything that is built into it does.

    What a registry puts behind the name of `base`, or pip behind that of a package, is not looked at.
    """
    digest = hashlib.sha256()
    for part in _content(image, playbooks):
        digest.update(len(part).to_bytes(8, "big") + part)
    return f"{image.name}:{digest.hexdigest()[:TAG_LENGTH]}"


def has_tag(name: str) -> bool:
    """True if an image's name ends in a tag or a digest."""
    return bool(re.search(r"[:@][^/]*$", name))


def _content(image: Image, playbooks: Path) -> Iterator[bytes]:
    archive = image.base.partition("docker-archive:")[2]
    yield from (text.encode() for text in (image.base, image.dataset or "", package_list(image), *_packages()))
    yield from _bytes(playbooks / "training.Containerfile")
    yield from _bytes(Path(archive)) if archive else ()
    for folder in (image.code, SIDECAR, HOOKS):
        yield from _files(folder)


def _files(folder: Path) -> Iterator[bytes]:
    """Yield path, rights and content of all files below, in a fixed order, but for what Python and git keep there."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if {"__pycache__", ".git"} & {*name.parts}:
            continue
        kind = str(path.readlink()) if path.is_symlink() else "/" if path.is_dir() else ""
        yield f"{name}\0{kind}\0{path.lstat().st_mode & 0o111:o}".encode("utf-8", "surrogateescape")
        if not kind:
            yield from _bytes(path)


def _bytes(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise Rejected(f"{path} cannot be read to build an image with it: {error.strerror}.") from None


def package_list(image: Image) -> str:
    """Return the list of packages of the image, as pip takes it."""
    try:
        written = image.requirements.read_text(encoding="utf-8") if image.requirements else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"{image.requirements} cannot be read as a list of packages: {error}.") from None
    return written + "".join(f"{line}\n" for line in image.packages)


def variables(
    image: Image, archive: Path | None = None, record: Path | None = None, unchanged: bool = False
) -> dict[str, str]:
    """Return the values that playbooks/containerize.yml takes. Parameters as of `build`."""
    if any("\0" in str(value) or "\n" in str(value) for value in (image.name, image.base, image.dataset)):
        raise Rejected("An image's name, base and dataset are one line each.")
    return {
        "image": image.name,
        "base": image.base,
        "names_dataset": _names_dataset(image.dataset),
        "code": _full(image.code),
        "packages": package_list(image),
        "unchanged": "yes" if unchanged else "",
        "wheels": _full(image.wheels),
        "archive": _full(archive),
        "push": "yes" if image.push else "",
        "record": _full(record),
        "ansible_python_interpreter": sys.executable,
        "sidecar": str(SIDECAR),
        "hooks": str(HOOKS),
        "sidecar_packages": " ".join(_packages()),
    }


def _names_dataset(dataset: str | None) -> str:
    """Return the line of a Containerfile that says where the data set is; empty without one."""
    quoted = re.sub(r'([\\"$])', r"\\\1", dataset or "")
    return f'ENV RESHAPE_DATASET="{quoted}"\n' if dataset else ""


def _full(path: Path | None) -> str:
    return str(path.resolve()) if path else ""


def _packages() -> list[str]:
    """Return the requirements of the sidecar, pinned to the versions that are installed here."""
    found = [f"{name}=={metadata.version(name)}" for name in SIDECAR_PACKAGES]
    try:
        found.append(f"{NVML}=={metadata.version(NVML)}")
    except metadata.PackageNotFoundError:
        pass
    return found


def _settings(path: str) -> dict[str, str]:
    return {
        "PATH": path,
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_INVENTORY_UNPARSED_WARNING": "false",
        "ANSIBLE_NOCOWS": "true",
        "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml",
    }
