"""Records with a base and no image: out of the queue until their image is there, and why; nothing is built here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.config import Config
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.schema.image_fields import NOT_HERE
from coordinator.scheduling import intake
from tests.fakes.shims import Behaviour
from tests.fakes.world import SHORT, World

OF_IMAGES = replace(SHORT, image_repository="registry.example/trainings")
BASED = {"base": "python:3.11", "code": "digits"}


def world_with(config: Config = OF_IMAGES, **more: Any) -> World:
    world = World(config=config)
    world.submit("one", [1], Behaviour(iterations=10), **BASED, **more)
    world.tick()
    return world


def build(world: World, **changes: Any) -> None:
    """Write into its document as `reshape builder` does."""
    doc = world.job("one").doc
    world.users.update("jobs", "one", {"version": doc["version"]}, changes)


def message(world: World) -> str:
    return str(world.job("one").doc["message"])


def test_a_job_waits_for_its_image_though_gpus_are_idle_and_starts_once_that_is_there() -> None:
    world = world_with()
    world.pass_time(20)
    assert (world.states(), message(world)) == (
        {"one": s.SUBMITTED},
        "one waits for its image, which `reshape builder` builds in its turn.",
    )
    version = world.job("one").doc["version"]
    world.pass_time(20)
    assert world.job("one").doc["version"] == version, "it is neither decided about nor written at each turn"
    build(world, image_build={"image": "registry.example/trainings:1"})
    world.pass_time(5)
    assert message(world) == "one waits while its image registry.example/trainings:1 is built."
    assert 'reshape_pending_jobs{reason="image"} 1.0' in world.api.status.metrics().decode()
    build(world, image="registry.example/trainings:1", code="/code", image_build=None)
    world.run(lambda w: w.states() == {"one": s.COMPLETED})


def test_a_job_whose_image_cannot_be_built_fails_with_the_last_reason_after_as_many_retries_as_a_launch_has() -> None:
    world = world_with()
    build(world, image_build={"failures": OF_IMAGES.retries, "why": "task 'build the image' failed: no such package"})
    world.pass_time(15)
    assert world.states() == {"one": s.SUBMITTED}
    assert message(world).endswith("could not be built (task 'build the image' failed: no such package); tries again.")
    build(world, image_build={"failures": OF_IMAGES.retries + 1, "why": "no such package | exit status 1"})
    world.run(lambda w: w.states() == {"one": s.FAILED}, 10)
    assert message(world) == "its image could not be built: no such package | exit status 1"


def test_what_a_user_writes_about_the_build_does_not_count() -> None:
    world = world_with(image_build={"failures": 99, "why": "mine"})
    world.pass_time(5)
    assert world.states() == {"one": s.SUBMITTED} and "mine" not in message(world)


def test_one_that_waits_for_another_job_too_says_that_first() -> None:
    world = world_with(depends_on=["before"])
    world.pass_time(20)
    assert message(world) == "one waits until before is completed; there is no before yet."


def test_a_cancelled_one_ends_at_once() -> None:
    world = world_with()
    world.api.operator.cancel("one")
    world.run(lambda w: w.states() == {"one": s.CANCELLED}, 10)


@pytest.mark.parametrize("config", [SHORT, replace(OF_IMAGES, many_pods=False)])
def test_where_no_repository_is_configured_or_no_image_used_the_refusal_names_what_to_do(config: Config) -> None:
    world = world_with(config)
    assert world.job("one").doc["problems"] == [NOT_HERE]
    with pytest.raises(Rejected, match="no image was built on that"):
        world.api.submissions.submit({"command": "train", "optional_num_gpus": [1], **BASED})


def test_over_http_it_is_accepted_as_one_that_is_inserted() -> None:
    world = world_with()
    assert world.api.submissions.submit({"command": "train", "optional_num_gpus": [1], **BASED})["state"] == s.SUBMITTED


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"code": None}, "it is not said what its image is built of"),
        ({"base": "docker-archive:/etc/shadow"}, "base must be the name of an image in a registry"),
        ({"base": "oci:/srv"}, "base must be the name of an image in a registry"),
        ({"base": "python:3.11 --isolation"}, "base must be the name of an image in a registry"),
        ({"code": "../other"}, "code must not go up"),
        ({"requirements": 7}, "requirements must be the path of a file or a list of packages"),
    ],
)
def test_what_an_image_cannot_be_built_of_is_refused(change: dict[str, Any], sentence: str) -> None:
    doc = {"state": "submitted", "job_id": "a", "command": "train", "optional_num_gpus": [1], **BASED}
    assert intake.problems(doc, builds_images=True) == []
    assert sentence in "; ".join(intake.problems({**doc, **change}, builds_images=True))


@pytest.mark.parametrize("given", ["trainings", "registry.example/a:1", "https://registry.example/a", "a b/c"])
def test_a_repository_that_is_none_stops_the_start(given: str) -> None:
    with pytest.raises(ValueError, match="without a tag"):
        Config(image_repository=given)
