"""One file with base, code, packages and data set becomes an image and its job, in one command; unchanged ones do not.

By the real buildah, which pushes to a registry on a real socket; the job goes to a coordinator behind the real API. A
record that is inserted gets its image by the builder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.adapters.clock import SystemClock
from coordinator.scheduling.intake import problems
from coordinator.stores.elector import Elector, Holder
from launcher import image_builder
from reshape import shipped
from tests.cluster import built_images
from tests.cluster.built_images import ROOT, buildah
from tests.fakes.coordinator_api import TOKEN, Live, serve
from tests.fakes.image_registry import ImageRegistry, registry
from tests.fakes.store import MemoryStore


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImageRegistry]:
    with registry(tmp_path) as found:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        yield found


def containerize(live: Live, record: Path) -> str:
    wheels = built_images.wheels(".", "gpu")
    built_images.wheels("numpy")
    where = ["--url", live.url, "--token", TOKEN]
    command = [sys.executable, "-P", "-m", "reshape", *where, "containerize", "--submit", str(record), "--push"]
    environment = {**built_images.storage(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--wheels", str(wheels)], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout


def test_one_file_becomes_an_image_and_its_job_and_what_has_not_changed_is_used_again(
    tmp_path: Path, kept: ImageRegistry
) -> None:
    base, home, record = f"docker-archive:{built_images.archive('base')}", tmp_path / "home", tmp_path / "job.json"
    home.mkdir()
    (home / "train.py").write_text(f"import numpy\nprint('step=1 total=1')  # {tmp_path}\n")  # no layer of another run
    doc = {
        "command": ["python", "train.py"], "optional_num_gpus": [1], "base": base, "code": "home",
        "requirements": ["numpy"], "image": f"{kept.host}/me/train", "dataset": "https://data.example/digits.npz",
    }  # fmt: skip

    def submit(live: Live, job_id: str) -> str:
        record.write_text(json.dumps({"job_id": job_id, **doc}))
        containerize(live, record)
        there = live.coordinator.submitted[job_id]
        assert problems({"state": "submitted", **there}) == [], "a coordinator takes it"
        kept_of_it = {field: there[field] for field in ("base", "requirements", "dataset", "code")}
        assert kept_of_it == {"base": base, "requirements": ["numpy"], "dataset": doc["dataset"], "code": "/code"}
        return str(there["image"])

    with serve() as live:
        first = submit(live, "first")
        uploaded = len(kept.uploaded)
        assert first.startswith(f"{kept.host}/me/train:") and uploaded
        assert submit(live, "again") == first and len(kept.uploaded) == uploaded, "neither built nor pushed"
        buildah("tag", first, f"{first}-kept")  # so that its layers stay
        buildah("rmi", first)
        assert submit(live, "elsewhere") == first and len(kept.uploaded) == uploaded, "the registry has it"
        assert not buildah("images", "--quiet", "--filter", f"reference={first}"), "nor built, then"
        (home / "train.py").write_text(f"import numpy\nprint('step=1 total=1 changed')  # {tmp_path}\n")
        changed = submit(live, "changed")
        assert changed != first
        new = [path for path in kept.uploaded[uploaded:] if "/blobs/" in path]
        assert 1 <= len(new) <= 3, f"the code's layer and its configuration only, not the packages: {new}"
    container = buildah("from", f"docker://{changed}")
    try:
        assert "changed" in buildah("run", container, "--", "python", "train.py")
        assert "data.example" not in buildah("inspect", container), "an address may hold a signature"
    finally:
        buildah("rm", container)
        buildah("rmi", "--force", changed, f"{first}-kept")


def test_an_inserted_record_gets_its_image_and_one_that_cannot_be_built_the_words_of_pip(
    tmp_path: Path, kept: ImageRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, code, work = built_images.name_of("base"), tmp_path / "code", tmp_path / "work"
    built_images.have(base, built_images.archive("base"))
    built_images.wheels("numpy")
    for name in ("BUILDAH_ISOLATION", "CONTAINERS_STORAGE_CONF"):
        monkeypatch.setenv(name, built_images.storage()[name])
    (code / "home").mkdir(parents=True)
    work.mkdir()
    (code / "home" / "train.py").write_text(f"import numpy\nprint('step=1 total=1')  # {tmp_path}\n")
    store, clock = MemoryStore(), SystemClock()
    settings = image_builder.BuilderSettings(
        "mongodb://none/none", f"{kept.host}/me/trainings", str(code), str(built_images.wheels(".", "gpu"))
    )
    elector = Elector(store, clock, settings.term_s, Holder.of_process(os.getpid()), image_builder.TERM)
    accepted = {"uid": "u", "closed": False, "state": "submitted", "base": base, "code": "home"}
    for job, packages in (("first", "numpy"), ("second", "numpy"), ("third", "no-such-package-at-all")):
        store.insert("jobs", {"_id": job, "job_id": job, **accepted, "requirements": [packages]})
    image_builder.ImageBuilder(store, clock, elector, settings, shipped.folder("playbooks"), work).turn()
    first, second, third = (store.get("jobs", job) or {} for job in ("first", "second", "third"))
    image = first.get("image")
    assert image and second["image"] == image, first.get("image_build")
    assert [path for path in kept.uploaded if "/manifests/" in path] == [f"/v2/me/trainings/manifests/{image[-16:]}"]
    container = buildah("from", f"docker://{image}")
    try:
        assert "step=1" in buildah("run", container, "--", "python", "train.py")
    finally:
        buildah("rm", container)
        buildah("rmi", "--force", image)
    assert third.get("image") is None and "no-such-package-at-all" in third["image_build"]["why"]
