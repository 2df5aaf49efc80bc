"""Builds the image of a training by playbooks/containerize.yml (`reshape containerize`).

Promises: values reach the playbook as text, never as template; the image carries the shim and the sidecar of this very
version, so that its pod may be a single container; an archive appears whole or not at all. Called by the command line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from coordinator.errors import Fatal, Rejected
from launcher.playbook import NOT_INSTALLED, as_text, search_path
from sidecar import protocol

SIDECAR = Path(protocol.__file__).parent
SIDECAR_PACKAGES = ("msgspec", "prometheus-client", "tornado")
NVML = "nvidia-ml-py"  # only where it is installed here
NO_BUILDAH = "buildah was not found: install it (Debian and Ubuntu: apt-get install buildah), then try again"


@dataclass(frozen=True, slots=True)
class Image:
    """The content of an image. Paths are of this machine."""

    name: str
    base: str
    """An image's name, or docker-archive:FILE."""
    code: Path
    requirements: Path | None = None
    dataset: str | None = None
    """A path or address that the training finds in RESHAPE_DATASET."""
    wheels: Path | None = None
    """A folder of wheels, the only place to install from."""
    archive: Path | None = None
    push: bool = False
    """Whether it goes to the registry of its name."""


def build(image: Image, playbook: Path, record: str = "", coordinator: Mapping[str, str] | None = None) -> None:
    """Build the image and hand it over; the programs print to the terminal. `Fatal` if one of them fails.

    `record`: a job document, as JSON, that is submitted last; `coordinator`: the variables that name where to.
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
        values.write_text(_values(image, new, job if record else None), encoding="utf-8")
        command = [ansible, "--inventory", "localhost,", "--extra-vars", f"@{values}", str(playbook)]
        environment = {**os.environ, **(coordinator or {}), **_settings(path)}
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if ended.returncode:
        wanted = "built" + ", pushed" * image.push + " and its job submitted" * bool(record)
        raise Fatal(f"The image {image.name} was not {wanted}: see the task above that failed.")
    if new and image.archive:
        new.replace(image.archive)


def _values(image: Image, archive: Path | None, record: Path | None = None) -> str:
    if any("\0" in str(value) or "\n" in str(value) for value in (image.name, image.base, image.dataset)):
        raise Rejected("An image's name, base and dataset are one line each.")
    values = {
        "image": image.name,
        "base": image.base,
        "dataset": image.dataset or "",
        "code": _full(image.code),
        "requirements": _full(image.requirements),
        "wheels": _full(image.wheels),
        "archive": _full(archive),
        "push": "yes" if image.push else "",
        "record": _full(record),
        "ansible_python_interpreter": sys.executable,
        "sidecar": str(SIDECAR),
        "hooks": str(SIDECAR.with_name("reshape_hooks")),
        "sidecar_packages": " ".join(_packages()),
    }
    return as_text(values)


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
