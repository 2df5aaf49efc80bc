"""`make images`: what it refuses before anything is built, and what its list of an image's content says."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from reshape import __version__
from tests.test_tidy import ROOT

STATUS = """\
Package: libssl3
Status: install ok installed
Architecture: arm64
Version: 3.0.17-1~deb12u2
Description: Secure Sockets Layer
 Homepage: not a field

Package: gone
Status: deinstall ok config-files
Architecture: arm64
Version: 1
"""


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"ci_{name}", ROOT / ".ci" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def images() -> ModuleType:
    return loaded("images")


def test_an_architecture_that_the_machine_cannot_run_is_refused_with_what_to_install(
    images: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(images, "BINFMT", tmp_path)
    monkeypatch.setattr(images.shutil, "which", lambda _: "/usr/bin/buildah")
    other = next(name for name, machine in images.MACHINES.items() if machine != platform.machine())
    with pytest.raises(images.Refused, match=f"cannot run programs of {other}: install qemu-user-static"):
        images.known(f"amd64,{other}" if other != "amd64" else other)
    (tmp_path / f"qemu-{images.MACHINES[other]}").touch()
    assert images.known(other) == [other]


def test_an_architecture_that_nobody_knows_is_refused(images: ModuleType) -> None:
    with pytest.raises(images.Refused, match="Architecture riscv64 is not known: give some of amd64, arm64"):
        images.known("riscv64")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("registry.example.com:5000/ml/reshape", f"registry.example.com:5000/ml/reshape:{__version__}"),
        ("reshape:2", "reshape:2"),
    ],
)
def test_a_name_without_a_tag_gets_our_version(images: ModuleType, name: str, whole: str) -> None:
    assert images.with_tag(name) == whole


def test_the_list_names_distributions_packages_and_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbom = loaded("sbom")
    (tmp_path / "status").write_text(STATUS)
    monkeypatch.setattr(sbom, "DPKG", tmp_path / "status")
    document = sbom.document("reshape", "1")
    found = {each["purl"] for each in document["components"]}
    assert f"pkg:pypi/msgspec@{metadata.version('msgspec')}" in found
    assert "pkg:deb/debian/libssl3@3.0.17-1~deb12u2?arch=arm64" in found
    assert not [purl for purl in found if "gone" in purl]
    assert f"pkg:generic/python@{platform.python_version()}" in found
    assert len({each["bom-ref"] for each in document["components"]}) == len(document["components"])
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    assert document == sbom.document("reshape", "1")


def test_make_without_a_name_says_which_to_give() -> None:
    ended = subprocess.run(["make", "images"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "make images NAME=registry.example.com/ml/volcano-reshape" in ended.stderr
    command = [sys.executable, ROOT / ".ci" / "images.py", "n", "--architectures", "mips"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, "Architecture mips is not known" in ended.stderr) == (1, True)
