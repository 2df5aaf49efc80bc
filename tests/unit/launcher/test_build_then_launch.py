"""`reshape containerize --submit`: image and job in one run of Ansible, in this order; buildah is a script here.

The real one builds and pushes in tests/cluster/test_image_of_a_record.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reshape.cli.main import run
from tests.fakes.coordinator_api import TOKEN, Live, serve

DOC = {"job_id": "train", "command": ["python", "t.py"], "optional_num_gpus": [1], "dataset": "/data/digits"}


def containerize(live: Live, folder: Path, doc: dict[str, object]) -> int:
    (folder / "job.json").write_text(json.dumps(doc))
    where = ["--url", live.url, "--token", TOKEN]
    what = ["--name", "reg.example/me/train:1", "--base", "python:3.11", "--code", str(folder), "--push"]
    return run([*where, "containerize", *what, "--submit", str(folder / "job.json")])


@pytest.fixture
def buildah(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Notes its words; fails to push while there is a file `broken` beside the notes."""
    (tmp_path / "bin").mkdir()
    script, notes = tmp_path / "bin" / "buildah", tmp_path / "notes"
    lines = f'echo "$@" >> {notes}', f'[ "$1" != build ] || cat "$4" > {notes}.recipe'
    script.write_text("\n".join(("#!/bin/sh", *lines, f'[ "$1" != push ] || [ ! -e {tmp_path}/broken ]', "")))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return notes


@pytest.mark.deep  # Ansible is started twice
def test_the_image_is_built_and_pushed_and_then_its_job_is_submitted(
    tmp_path: Path, buildah: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve() as live:
        (tmp_path / "broken").touch()
        assert containerize(live, tmp_path, DOC) == 1
        assert "was not built, pushed and its job submitted" in capfd.readouterr().err
        assert live.coordinator.documents == {}, "without its image there is no job"
        (tmp_path / "broken").unlink()
        assert containerize(live, tmp_path, DOC) == 0
        assert list(live.coordinator.documents) == ["train"]
    last = buildah.read_text().splitlines()[-2:]
    assert [words.split()[0] for words in last] == ["build", "push"]
    assert Path(f"{buildah}.recipe").read_text().endswith('\nENV RESHAPE_DATASET="/data/digits"\n')


def test_a_document_that_is_refused_is_refused_before_anything_is_built(
    tmp_path: Path, buildah: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve() as live:
        assert containerize(live, tmp_path, {"job_id": "train"}) == 1
        assert "command is missing" in capfd.readouterr().err
        assert containerize(live, tmp_path, {**DOC, "image": "other:1"}) == 1
        assert "without an image or with reg.example/me/train:1" in capfd.readouterr().err
    assert not buildah.exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image": None}, "the image has no name: write `image` into the job document"),
        ({"base": None}, "no base image is given: write `base` into the job document"),
        ({"code": None}, "nothing to run is given: write the folder of the training"),
        ({"base": 7}, "base must be a text, not 7"),
        ({"code": "nowhere"}, "code must be a folder of this machine, which is copied into the image, not 'nowhere'"),
        ({"requirements": "nowhere.txt"}, "requirements must be a file of packages, or a list of them"),
        ({"requirements": 7}, "requirements must be a file of packages, or a list of them"),
    ],
)
def test_a_record_that_lacks_what_an_image_is_made_of_is_refused_with_what_to_write(
    tmp_path: Path, buildah: Path, capfd: pytest.CaptureFixture[str], change: dict[str, object], sentence: str
) -> None:
    (tmp_path / "home").mkdir()
    doc = {**DOC, "image": "reg.example/me/train", "base": "python:3.11", "code": "home", **change}
    (tmp_path / "job.json").write_text(json.dumps({field: value for field, value in doc.items() if value is not None}))
    with serve() as live:
        command = ["--url", live.url, "--token", TOKEN, "containerize", "--submit", str(tmp_path / "job.json")]
        assert run(command) == 1
    assert sentence in capfd.readouterr().err
    assert not buildah.exists()
