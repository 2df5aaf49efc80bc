"""Which of a training's own files have changed since it was started."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from sidecar import source_watch
from sidecar.source_watch import PodSourceWatch, SourceWatch
from tests.interpreters import python_of
from tests.patience import eventually


def project(folder: Path) -> SourceWatch:
    (folder / "parts").mkdir()
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "model.py").write_text("from . import layers\nWIDTH = 8\n")
    (folder / "parts" / "layers.py").write_text("DEPTH = 2\n")
    (folder / "data.py").write_text("SIZE = 320\n")
    (folder / "other.py").write_text("print('no part of it')\n")
    (folder / "train.py").write_text("import os, data as d\nfrom parts.model import (\n    WIDTH,\n)\n")
    watch = SourceWatch(["python", "-u", "train.py", "out.txt"], str(folder))
    watch.begin(0.0)
    return watch


def test_a_script_and_the_modules_that_it_imports_are_known_by_their_content(tmp_path: Path) -> None:
    watch = project(tmp_path)
    assert watch.edited() == []
    for name in ("train.py", "data.py", "parts/model.py", "parts/layers.py"):
        file = tmp_path / name
        before = file.read_text()
        file.write_text(before + "half a li")
        assert watch.edited() == [file.name], name
        file.write_text(before)
        assert watch.edited() == [], "it is as it was"


def test_what_no_script_imports_and_what_is_only_saved_again_does_not_count(tmp_path: Path) -> None:
    watch = project(tmp_path)
    (tmp_path / "other.py").write_text("changed\n")
    (tmp_path / "out.txt").write_text("results\n")
    os.utime(tmp_path / "data.py", (1, 1))
    assert watch.edited() == []


def test_a_file_that_is_gone_counts(tmp_path: Path) -> None:
    watch = project(tmp_path)
    (tmp_path / "data.py").unlink()
    assert watch.edited() == ["data.py"]


def test_a_sidecar_that_comes_later_knows_what_was_changed_since_the_launch(tmp_path: Path) -> None:
    project(tmp_path)
    for file in tmp_path.rglob("*.py"):
        os.utime(file, (1, 1))
    launch = tmp_path / "launch.json"
    launch.write_text("{}")
    os.utime(launch, (2, 2))
    (tmp_path / "data.py").write_text("SIZE = 640\n")
    later = SourceWatch(["python", "train.py"], str(tmp_path), launch)
    later.begin(60.0)
    assert later.edited() == ["data.py"]


def test_a_command_without_a_script_has_nothing_to_watch(tmp_path: Path) -> None:
    watch = SourceWatch(["python", "-c", "import data"], str(tmp_path))
    watch.begin(0.0)
    assert watch.edited() == []


def test_a_module_that_is_run_is_watched(tmp_path: Path) -> None:
    project(tmp_path)
    (tmp_path / "parts" / "__main__.py").write_text("from parts import model\n")
    watch = SourceWatch(["python", "-m", "parts"], str(tmp_path))
    watch.begin(0.0)
    (tmp_path / "parts" / "layers.py").write_text("DEPTH = 3\n")
    assert watch.edited() == ["layers.py"]


@pytest.mark.parametrize("version", ["3.8", "3.11"])
def test_in_a_pod_it_is_told_by_a_process_of_any_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    project(tmp_path)
    monkeypatch.chdir(tmp_path)  # a socket's path is limited to 108 bytes
    watch = PodSourceWatch(tmp_path)

    def tells(names: list[str]) -> bool:
        with contextlib.suppress(TimeoutError):
            return watch.edited() == names
        return False

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(source_watch.SOCKET)
        listener.listen()
        command = [python_of(version), "-I", "-S", source_watch.__file__, str(listener.fileno())]
        trainer = {source_watch.TRAINER: json.dumps([0, str(tmp_path), "python", "train.py"])}
        told = {"stdin": subprocess.PIPE, "pass_fds": [listener.fileno()], "env": os.environ | trainer}
        with subprocess.Popen(command, **told) as watching:
            eventually(lambda: tells([]), "it has begun")
            (tmp_path / "parts" / "layers.py").write_text("DEPTH = 3\n")
            eventually(lambda: tells(["layers.py"]), "it is edited")
            watching.communicate()
    assert watching.returncode == 0, "it ends with the shim"
    with pytest.raises(OSError, match="refused"):
        watch.edited()
