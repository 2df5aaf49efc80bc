"""`launcher.image_builder` beside a coordinator on one store: the real playbook, and a script in place of buildah.

The real one builds and pushes in tests/cluster/test_image_of_a_record.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator.adapters.clock import SystemClock
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.stores.elector import Elector, Holder
from launcher import image_builder
from launcher.image_builder import BuilderSettings, ImageBuilder
from reshape import shipped
from tests.e2e.up import of_folder, wait_for
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

REPOSITORY = "registry.example/trainings"
BUILDAH = """\
#!/bin/sh
echo "$@" >> {folder}/said
case $1 in
  build)
    for word in "$@"; do case $word in code=*) cat "${{word#code=}}"/train.py >> {folder}/built ;; esac; done
    while [ -e {folder}/hangs ]; do sleep 0.1; done
    [ ! -e {folder}/broken ] || {{ echo "No matching distribution for nosuch" >&2; echo "exit status 1" >&2; exit 1; }}
    shift 5; touch {folder}/image-$(echo "$1" | tr -c 'a-z0-9\\n' -) ;;
  inspect) [ -e {folder}/image-$(echo "$6" | tr -c 'a-z0-9\\n' -) ] ;;
  manifest) exit 1 ;;
esac
"""


class Place:
    """A coordinator, a builder on its store, and what the stand-in for buildah has been told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = folder / "code"
        (self.code / "digits").mkdir(parents=True)
        (self.code / "digits" / "train.py").write_text("print('first')\n")
        (folder / "bin").mkdir()
        buildah = folder / "bin" / "buildah"
        buildah.write_text(BUILDAH.format(folder=folder))
        buildah.chmod(0o755)
        self.world = World(config=replace(SHORT, image_repository=REPOSITORY))
        self.builder = self.another()

    def another(self, pid: int = 1) -> ImageBuilder:
        """Return a builder that has just been started."""
        settings = BuilderSettings("mongodb://x", REPOSITORY, str(self.code), retry_s=1e-9)
        clock = SystemClock()
        elector = Elector(
            self.world.users, clock, settings.term_s, Holder(f"machine-{pid}", pid, "0"), image_builder.TERM
        )
        work = self.folder / f"work-{pid}"
        work.mkdir()
        return ImageBuilder(self.world.users, clock, elector, settings, shipped.folder("playbooks"), work)

    def insert(self, job: str, **more: Any) -> None:
        given = {"base": "python:3.11", "code": "digits", **more}
        self.world.submit(job, [1], Behaviour(iterations=10), **given)
        self.world.tick()

    def doc(self, job: str) -> dict[str, Any]:
        return self.world.job(job).doc

    def said(self, verb: str) -> list[str]:
        said = self.folder / "said"
        return [line for line in said.read_text().splitlines() if line.startswith(verb)] if said.exists() else []

    def during_a_build(self, act: Callable[[], None]) -> None:
        """Let a turn of the builder hang in buildah, do something meanwhile, and wait until the turn has ended."""
        (self.folder / "hangs").touch()
        before = len(self.said("build "))
        turn = threading.Thread(target=self.builder.turn)
        turn.start()
        try:
            wait_for(lambda: len(self.said("build ")) > before, what="buildah builds")
            act()
            turn.join(60)
            assert not turn.is_alive(), "the build has ended with its job"
        finally:
            (self.folder / "hangs").unlink(missing_ok=True)
            turn.join()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return Place(tmp_path)


@pytest.mark.deep  # Ansible is started
def test_jobs_of_the_same_code_and_base_share_one_image_and_changed_code_gets_another(place: Place) -> None:
    place.insert("a", requirements=["numpy==2.1.0"])
    place.insert("b", requirements=["numpy==2.1.0"])
    place.builder.turn()
    image = place.doc("a")["image"]
    assert image.startswith(f"{REPOSITORY}:") and place.doc("b")["image"] == image
    assert place.doc("a")["code"] == "/code" and place.doc("a")["image_build"] is None
    assert len(place.said("build ")) == 1 and f"--tag {image}" in place.said("build ")[0]
    assert {*place.said("push")} == {f"push --quiet {image}"}
    (place.code / "digits" / "train.py").write_text("print('second')\n")
    place.insert("c", requirements=["numpy==2.1.0"])
    place.builder.turn()
    assert place.doc("c")["image"] not in (None, image)
    assert (place.folder / "built").read_text() == "print('first')\nprint('second')\n"
    place.world.run(lambda w: set(w.states().values()) == {s.COMPLETED})
    assert [*(place.folder / "work-1").iterdir()] == [], "no copy of code is left"


@pytest.mark.deep
def test_a_failed_build_is_said_with_its_last_lines_and_retried_until_the_job_fails(place: Place) -> None:
    (place.folder / "broken").touch()
    place.insert("a")
    place.builder.turn()
    place.world.pass_time(15)
    message = "task 'build the image' failed: No matching distribution for nosuch | exit status 1"
    assert f"could not be built ({message}); tries again." in place.doc("a")["message"]
    for _ in range(SHORT.retries):
        place.builder.turn()
    place.world.run(lambda w: w.states() == {"a": s.FAILED}, 10)
    assert place.doc("a")["message"] == f"its image could not be built: {message}"
    place.builder.turn()
    assert len(place.said("build ")) == SHORT.retries + 1
    (place.folder / "broken").unlink()
    place.insert("b")
    place.builder.turn()
    place.world.run(lambda w: w.states() == {"a": s.FAILED, "b": s.COMPLETED})


@pytest.mark.deep
def test_a_cancelled_job_ends_its_build_and_that_of_the_next_one_begins(place: Place) -> None:
    place.insert("a")
    place.insert("b", requirements=["numpy"])

    def cancel() -> None:
        wait_for(lambda: place.world.tick() or "is built" in place.doc("a")["message"], what="it says so")
        place.world.api.operator.cancel("a")
        place.world.run(lambda w: w.states()["a"] == s.CANCELLED, 10)
        wait_for(lambda: len(place.said("build ")) == 2, what="the next build")
        (place.folder / "hangs").unlink()

    place.during_a_build(cancel)
    assert place.doc("a").get("image") is None and place.doc("b")["image"]


@pytest.mark.deep
def test_a_stopped_builder_ends_its_build_and_the_next_one_begins_it_anew(place: Place) -> None:
    place.insert("a")
    place.during_a_build(place.builder.stop)
    assert of_folder(place.folder / "work-1") == {}
    assert place.doc("a").get("image") is None and "failures" not in place.doc("a")["image_build"]
    place.builder._elector.resign()
    place.another(2).turn()
    assert place.doc("a")["image"]


@pytest.mark.deep
def test_only_one_builder_builds(place: Place) -> None:
    place.insert("a")
    second = place.another(2)
    place.builder._elector.try_to_lead()
    second.turn()
    assert place.said("build ") == []
    place.builder.turn()
    assert place.doc("a")["image"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"code": "/etc"}, "lies outside of"),
        ({"code": "out"}, "lies outside of"),
        ({"code": "nowhere"}, "is no folder below"),
        ({"requirements": "/etc/passwd"}, "lies outside of"),
        ({"requirements": "nowhere.txt"}, "are no file below"),
        ({"code": "odd"}, "cannot be copied"),
    ],
)
def test_what_lies_elsewhere_or_cannot_be_read_is_not_built_in(place: Place, more: dict[str, str], why: str) -> None:
    (place.code / "out").symlink_to("/etc")
    (place.code / "odd").mkdir()
    (place.code / "odd" / "link").mkdir()
    os.mkfifo(place.code / "odd" / "pipe")
    place.insert("a", **more)
    place.builder.turn()
    assert why in place.doc("a")["image_build"]["why"]
    assert place.said("build ") == []


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("RESHAPE_STORE", "sqlite:///x", "must be the mongodb:// URL"),
        ("RESHAPE_IMAGE_REPOSITORY", "trainings", "must be that of the coordinators"),
        ("RESHAPE_IMAGE_REPOSITORY", "", "is missing"),
        ("RESHAPE_IMAGE_CODE", "relative", "must be the full path of a folder"),
        ("RESHAPE_IMAGE_WHEELS", "/nowhere", "must be the full path of a folder"),
        ("RESHAPE_RETRY_S", "0", "above 0"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_its_name(place: Place, name: str, value: str, sentence: str) -> None:
    right = {
        "RESHAPE_STORE": "mongodb://h/n", "RESHAPE_IMAGE_REPOSITORY": REPOSITORY, "RESHAPE_IMAGE_CODE": str(place.code),
    }  # fmt: skip
    assert image_builder.read(right).image_code == str(place.code)
    with pytest.raises(Rejected, match=f"{name} .*{sentence}"):
        image_builder.read({**right, name: value})
