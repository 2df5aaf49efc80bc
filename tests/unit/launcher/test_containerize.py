"""What `reshape containerize` hands to its playbook, and what it says where it cannot work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from coordinator.errors import Fatal, Rejected
from launcher import containerize
from launcher.containerize import Image


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(containerize, "search_path", lambda: str(folder))
    return folder


def image(tmp_path: Path, **more: object) -> Image:
    return Image(**{"name": "a:1", "base": "b", "code": tmp_path, **more})  # type: ignore[arg-type]


def test_values_are_text_and_never_templates(tmp_path: Path) -> None:
    class Loader(yaml.SafeLoader):
        pass

    seen = []
    Loader.add_constructor("!unsafe", lambda loader, node: seen.append(loader.construct_mapping(node)) or seen[0])
    text = containerize._values(image(tmp_path, dataset="{{ lookup('pipe', 'id') }}"), tmp_path / "a.tar.new")
    values = yaml.load(text, Loader)
    assert values["dataset"] == "{{ lookup('pipe', 'id') }}"
    assert seen == [values]
    assert values["archive"] == str(tmp_path / "a.tar.new")
    assert "tornado==" in values["sidecar_packages"]


@pytest.mark.parametrize("field", ["name", "base", "dataset"])
def test_a_value_of_two_lines_is_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(Rejected, match="one line each"):
        containerize._values(image(tmp_path, **{field: "a\nb"}), None)


def test_without_buildah_it_says_what_to_install(tmp_path: Path, programs: Path) -> None:
    fake(programs, "ansible-playbook", "exit 0")
    with pytest.raises(Fatal, match="apt-get install buildah"):
        containerize.build(image(tmp_path), tmp_path / "p.yml")


def test_without_ansible_it_says_what_to_install(tmp_path: Path, programs: Path) -> None:
    with pytest.raises(Fatal, match="pip install"):
        containerize.build(image(tmp_path), tmp_path / "p.yml")


def test_an_archive_of_a_failed_build_keeps_the_one_before(tmp_path: Path, programs: Path) -> None:
    fake(programs, "buildah", "exit 0")
    fake(programs, "ansible-playbook", "exit 2")
    (tmp_path / "a.tar").write_text(json.dumps("before"))
    with pytest.raises(Fatal, match="was not built"):
        containerize.build(image(tmp_path, archive=tmp_path / "a.tar"), tmp_path / "p.yml")
    assert (tmp_path / "a.tar").read_text() == json.dumps("before")
