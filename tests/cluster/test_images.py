"""Images: what `reshape containerize` builds is what its promises say, and a pod of it runs on a node."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from reshape import __version__
from tests.cluster import built_images, training_images
from tests.cluster.bed import Bed
from tests.cluster.bed_report import Report
from tests.cluster.built_images import ROOT, buildah
from tests.cluster.images import ARCHITECTURES

SHIM = "/opt/reshape/ours/sidecar/shim.py"


@pytest.fixture(scope="module")
def numpy_image(images: None) -> Path:
    tar = training_images.archive("numpy")
    built_images.have(training_images.name_of("numpy"), tar)
    return tar


def config(archive: Path) -> dict[str, object]:
    """What a container runtime reads of an image: user, folder, environment."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        inner = tar.extractfile(json.load(manifest)[0]["Config"])
        assert inner is not None
        return dict(json.load(inner)["config"])


def inside(name: str, script: str) -> str:
    """Run a script in a container of an image."""
    container = buildah("from", name)
    try:
        return buildah("run", container, "--", "sh", "-c", script)
    finally:
        buildah("rm", container)


def test_it_holds_code_dataset_and_packages_and_runs_as_nobody(numpy_image: Path) -> None:
    found = config(numpy_image)
    assert (found["User"], found["WorkingDir"]) == ("65532:65532", "/code")
    assert f"RESHAPE_DATASET={training_images.DATASET}" in found["Env"]  # type: ignore[operator]
    said = inside(training_images.name_of("numpy"), "RESHAPE_CHECKPOINTS=/tmp/c python numpy_digits.py --iterations 5")
    assert "step=5 total=5" in said


def test_shim_and_sidecar_are_in_it_and_the_training_does_not_see_them(numpy_image: Path) -> None:
    name = training_images.name_of("numpy")
    start = "/opt/reshape/bin/python -I -c 'import sidecar.endpoints.server as s; print(s.__file__)'"
    assert inside(name, start) == "/opt/reshape/ours/sidecar/endpoints/server.py"
    assert "--folder" in inside(name, f"/usr/bin/python3 -I -S {SHIM} --help")
    assert inside(name, "cd /; python -c 'import tornado' 2>&1 || true").endswith("No module named 'tornado'")
    assert inside(name, "cd /; python -c 'import sidecar' 2>&1 || true").endswith("No module named 'sidecar'")


def test_changed_code_is_a_matter_of_seconds(numpy_image: Path, tmp_path: Path, report: Report) -> None:
    """Packages are not installed again: their layer is the same one."""
    with report.scenario("rebuild an image with changed code") as figures:
        code = tmp_path / "code"
        code.mkdir()
        layers = []
        for text in ("print(1)\n", "print(2)\n"):
            (code / "train.py").write_text(text)
            began = time.monotonic()
            _containerize(code, tmp_path / "image.tar")
            figures["seconds"] = time.monotonic() - began
            with tarfile.open(tmp_path / "image.tar") as tar:
                manifest = tar.extractfile("manifest.json")
                assert manifest is not None
                layers.append(json.load(manifest)[0]["Layers"])
        assert layers[0][:-1] == layers[1][:-1]
        assert layers[0][-1] != layers[1][-1]


def _containerize(code: Path, archive: Path, base: str | None = None) -> subprocess.CompletedProcess[str]:
    wheels = built_images.wheels(".", "gpu")
    base = base or f"docker-archive:{built_images.archive('base')}"
    command = [sys.executable, "-m", "reshape", "containerize", "--name", "reshape.local/try:test", "--base", base]
    command += ["--code", str(code), "--wheels", str(wheels), "--archive", str(archive)]
    return subprocess.run(command, env=built_images.storage(), cwd=ROOT, capture_output=True, text=True, check=False)


def test_one_command_builds_ours_with_a_digest_and_a_list_of_what_is_in_it(images: None, report: Report) -> None:
    """`make images`, for this machine's architecture; the layers are those of the image that the bed uses."""
    built_images.have(built_images.name_of("base"), built_images.archive("base"))
    architecture = ARCHITECTURES[platform.machine()]
    options = ["--build-arg", f"BASE={built_images.name_of('base')}", *built_images.offline_options()]
    command = [sys.executable, str(ROOT / ".ci" / "images.py"), "reshape.local/many:1"]
    command += ["--architectures", architecture, "--", *options]
    with report.scenario("make images") as figures:
        began = time.monotonic()
        said = subprocess.run(command, env=built_images.storage(), capture_output=True, text=True, check=False)
        figures["seconds"] = time.monotonic() - began
        assert said.returncode == 0, said.stderr
        folder = ROOT / "build" / "images"
        digest = (folder / "digest").read_text().strip()
        assert said.stdout.endswith(f"--set image.repository=reshape.local/many --set image.digest={digest}\n")
        with tarfile.open(folder / "image.oci.tar") as tar:
            index = read_json(tar, "index.json")
            assert [each["digest"] for each in index["manifests"]] == [digest]
            listed = read_json(tar, f"blobs/{digest.replace(':', '/')}")
        assert [each["platform"]["architecture"] for each in listed["manifests"]] == [architecture]
        bill = json.loads((folder / f"sbom-{architecture}.cdx.json").read_text())
        found = {each["purl"] for each in bill["components"]}
        unconditional = re.findall(r"(?m)^([A-Za-z0-9._-]+)==(\S+) \\$", built_images.locked(".", "k8s", "otel"))
        figures |= {"locked": len(unconditional), "listed": len(found)}
        assert len(unconditional) > 40
        assert [name for name, version in unconditional if f"pkg:pypi/{name.lower()}@{version}" not in found] == []
        assert f"pkg:pypi/volcano-reshape@{__version__}" in found
        assert any(purl.startswith("pkg:deb/debian/python3@") for purl in found)


def read_json(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    assert member is not None
    return json.load(member)


def test_a_build_that_fails_says_so_and_leaves_no_archive(tmp_path: Path, images: None) -> None:
    ended = _containerize(tmp_path, tmp_path / "image.tar", base="docker-archive:/nowhere.tar")
    assert ended.returncode == 1
    assert "nowhere.tar" in ended.stdout
    assert ended.stderr.strip().splitlines()[-1].startswith("The image reshape.local/try:test was not built")
    assert not list(tmp_path.glob("image.tar*"))


def test_a_pod_of_it_trains_on_a_node(numpy_image: Path, bed: Bed, namespace: str) -> None:
    bed.provide(numpy_image, ["node-a"])
    trainer = {
        "name": "trainer",
        "image": training_images.name_of("numpy"),
        "imagePullPolicy": "Never",
        "command": ["python", "numpy_digits.py", "--iterations", "5"],
        "env": [{"name": "RESHAPE_CHECKPOINTS", "value": "/tmp/checkpoints"}],
    }
    spec = {"restartPolicy": "Never", "nodeName": "node-a", "containers": [trainer]}
    about = {"name": "train", "namespace": namespace}
    bed.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
    bed.cluster.wait("pod", "train", lambda pod: pod["status"].get("phase") == "Succeeded", namespace)
    assert "step=5 total=5" in bed.cluster.logs("train", namespace)
