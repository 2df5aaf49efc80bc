"""`reshape builder` as a process on a server that speaks MongoDB's wire, killed and stopped while it builds.

A script stands in for buildah; tests/unit/launcher/test_image_builder.py has what is built.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest

from tests.e2e.up import ROOT, WITHIN_S, of_folder, wait_for
from tests.fakes.nx import start_nx, stop_nx
from tests.patience import patient

BUILDAH = """\
#!/bin/sh
case $1 in
  build) touch {folder}/builds; while [ -e {folder}/hangs ]; do sleep 0.1; done ;;
  inspect | manifest) exit 1 ;;
esac
"""
ACCEPTED = {
    "_id": "a",
    "job_id": "a",
    "uid": "u",
    "closed": False,
    "state": "submitted",
    "base": "python:3.11",
    "code": ".",
    "command": ["python", "train.py"],
    "optional_num_gpus": [1],
    "submit_ts": 1.0,
    "version": 1,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    process, url = start_nx(tmp_path / "nx")
    yield f"{url}/images"
    stop_nx(process)


def builder(url: str, work: Path) -> subprocess.Popen[str]:
    """Start a builder of its own; `work`: where it and all that it starts have their files."""
    work.mkdir(parents=True)
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(work),
        "RESHAPE_STORE": url,
        "RESHAPE_TERM_S": "2",
        "RESHAPE_IMAGE_REPOSITORY": "registry.example/trainings",
        "RESHAPE_IMAGE_CODE": str(work.parent / "code"),
        "PATH": f"{work.parent / 'bin'}:{os.environ['PATH']}",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "reshape", "builder"], env=variables, cwd="/", stderr=subprocess.PIPE, text=True
    )


@pytest.mark.deep
def test_a_killed_or_stopped_builder_leaves_no_process_and_the_next_one_builds_what_it_has_left(
    tmp_path: Path, server: str
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "buildah").write_text(BUILDAH.format(folder=tmp_path))
    (tmp_path / "bin" / "buildah").chmod(0o755)
    hangs, builds = tmp_path / "hangs", tmp_path / "builds"
    with pymongo.MongoClient[dict[str, Any]](server) as client:
        jobs = client.get_default_database()["jobs"]
        jobs.insert_one(dict(ACCEPTED))
        for number, how in enumerate((signal.SIGKILL, signal.SIGTERM)):
            hangs.touch()
            builds.unlink(missing_ok=True)
            work = tmp_path / f"work-{number}"
            process = builder(server, work)
            wait_for(builds.exists, what="buildah builds")
            process.send_signal(how)
            _, said = process.communicate(timeout=patient(WITHIN_S))
            assert process.returncode == (-signal.SIGKILL if how == signal.SIGKILL else 0), said
            wait_for(lambda folder=work: of_folder(folder) == {}, what="all that it started has ended")
        hangs.unlink()
        process = builder(server, tmp_path / "work-last")
        wait_for(lambda: (jobs.find_one({"_id": "a"}) or {}).get("image"), what="its image is there")
        process.terminate()
        process.communicate(timeout=patient(WITHIN_S))
        found = jobs.find_one({"_id": "a"}) or {}
    assert found["image"].startswith("registry.example/trainings:") and found["code"] == "/code"
    assert "failures" not in (found["image_build"] or {})


def test_a_builder_without_its_settings_says_which() -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RESHAPE_")}
    command = [sys.executable, "-P", "-m", "reshape", "builder"]
    done = subprocess.run(
        command, env=variables | {"PYTHONPATH": str(ROOT)}, cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, "RESHAPE_STORE is missing." in done.stderr) == (1, True)
