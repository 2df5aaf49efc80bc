"""What the shim writes is what `sidecar.protocol.ShimStatus` reads: it cannot import that, so this compares them."""

from __future__ import annotations

import msgspec
import pytest

from sidecar import shim
from sidecar.protocol import HAD_TO_KILL, VERSION, ShimStatus
from tests.fakes.shim_client import running_shim, trainer


class Strict(ShimStatus, forbid_unknown_fields=True):
    """Every field that is not known is an error."""


def read(status: dict[str, object]) -> ShimStatus:
    return msgspec.convert(status, Strict, strict=True)


def lives(folder, command, stop=None, **launch):
    """Every status of one trainer, from before its start to its end: answers and pushes."""
    with running_shim(folder, command, **launch) as process:
        client = process.client
        seen = [client.status(), client.start(1, ["A"], lease_deadline=1e9)["status"]]
        if stop is not None:
            seen.append(client.stop(2, grace_s=stop)["status"])
        last = client.wait("exited")
        return [*seen, *(event["status"] for event in client.events if event["event"] == "status"), last]


@pytest.mark.parametrize("name", ["counts", "ignores_sigterm"])
def test_a_stopped_trainer_is_told_in_the_words_of_the_protocol(tmp_path, name):
    seen = [read(status) for status in lives(tmp_path, trainer(name), stop=0.5)]
    assert {status.trainer for status in seen} == {"none", "running", "stopping", "exited"}
    assert all(status.version == VERSION and status.shim_pid > 1 for status in seen)


def test_one_that_the_shim_had_to_kill_is_told_by_the_words_of_the_protocol():
    assert shim.HAD_TO_KILL == HAD_TO_KILL


@pytest.mark.parametrize("name", ["crashes_at_once", "exits_early"])
def test_a_trainer_that_ends_by_itself_is_told_in_the_words_of_the_protocol(tmp_path, name):
    assert read(lives(tmp_path, trainer(name))[-1]).trainer == "exited"


def test_a_trainer_that_cannot_start_is_told_in_the_words_of_the_protocol(tmp_path):
    assert read(lives(tmp_path, ["no-such-program"])[-1]).exit_code == 127


def test_every_field_name_is_known_on_both_sides(tmp_path):
    known = {field.name for field in msgspec.structs.fields(ShimStatus)}
    for status in lives(tmp_path, trainer("exits_early")):
        assert set(status) == known


def test_before_a_start_both_sides_mean_the_same_by_nothing():
    defaults = msgspec.structs.asdict(ShimStatus())
    assert {name: defaults[name] for name in shim.FRESH} == shim.FRESH


def test_output_that_is_not_text_does_not_break_the_line(tmp_path):
    noise = ["sh", "-c", r"printf '\377\000\033[0m\n\"\\ \342\202'; exit 3"]
    status = read(lives(tmp_path, noise)[-1])
    assert status.exit_code == 3 and "\ufffd" in status.output_tail
