"""What `reshape containerize` hands to its playbook, and what it says where it cannot work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from coordinator.errors import Fatal, Rejected
from launcher import containerize
from launcher.containerize import Image
from launcher.playbook import as_text


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
    text = as_text(
        containerize.variables(image(tmp_path, dataset="{{ lookup('pipe', 'id') }}"), tmp_path / "a.tar.new")
    )
    values = yaml.load(text, Loader)
    assert values["names_dataset"] == "ENV RESHAPE_DATASET=\"{{ lookup('pipe', 'id') }}\"\n"
    assert seen == [values]
    assert values["archive"] == str(tmp_path / "a.tar.new")
    assert "tornado==" in values["sidecar_packages"]


@pytest.mark.parametrize("field", ["name", "base", "dataset"])
def test_a_value_of_two_lines_is_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(Rejected, match="one line each"):
        containerize.variables(image(tmp_path, **{field: "a\nb"}))


def test_a_tag_changes_with_all_that_goes_into_an_image_and_with_nothing_else(tmp_path: Path) -> None:
    code, playbooks = tmp_path / "code", Path(__file__).parents[3] / "playbooks"
    (code / "sub").mkdir(parents=True)
    (code / "train.py").write_text("print(1)")
    packages, base = tmp_path / "requirements.txt", tmp_path / "base.tar"
    packages.write_text("numpy\n")
    base.write_bytes(b"1")

    def tag(**more: object) -> str:
        made = image(tmp_path, **{"code": code, "base": f"docker-archive:{base}", "requirements": packages, **more})
        return containerize.tagged(made, playbooks)

    seen = [tag()]
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "train.pyc").touch()
    assert tag() == tag(push=True, archive=tmp_path / "a.tar", wheels=tmp_path) == seen[0]
    assert containerize.has_tag(seen[0]) and seen[0].startswith("a:1:")
    changes = [
        lambda: (code / "train.py").write_text("print(2)"),
        lambda: (code / "train.py").chmod(0o755),
        lambda: (code / "train.py").rename(code / "sub" / "train.py"),
        lambda: (code / "link").symlink_to("sub"),
        lambda: packages.write_text("numpy==2\n"),
        lambda: base.write_bytes(b"2"),
    ]
    for change in changes:
        change()
        seen.append(tag())
    seen += [tag(dataset="/data"), tag(packages=("torch",)), tag(base="other")]
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("name", "tagged"),
    [("a", False), ("host:5000/a", False), ("host:5000/a/b:1", True), ("a:1", True), ("a@sha256:00", True)],
)
def test_an_image_has_a_tag_or_gets_one(name: str, tagged: bool) -> None:
    assert containerize.has_tag(name) is tagged


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
