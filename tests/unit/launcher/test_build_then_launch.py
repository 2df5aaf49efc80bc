"""`reshape containerize --submit`: image and job in one run of Ansible, in this order; buildah is a script here."""

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
    script.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n[ "$1" != push ] || [ ! -e {tmp_path}/broken ]\n')
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
    assert "RESHAPE_DATASET=/data/digits" in last[0]


def test_a_document_that_is_refused_is_refused_before_anything_is_built(
    tmp_path: Path, buildah: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve() as live:
        assert containerize(live, tmp_path, {"job_id": "train"}) == 1
        assert "command is missing" in capfd.readouterr().err
        assert containerize(live, tmp_path, {**DOC, "image": "other:1"}) == 1
        assert "without an image or with reg.example/me/train:1" in capfd.readouterr().err
    assert not buildah.exists()
