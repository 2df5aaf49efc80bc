"""A gang seen as one: when it runs, has stopped, has obeyed; what breaks it; where its pods meet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from coordinator.model.gang import find_failure, merged_report, rendezvous
from sidecar.protocol import Checkpoint, GpuReading, Heartbeat, Usage
from tests.unit.coordinator.situations import seen


@dataclass(frozen=True)
class Of:
    """The pods of one gang."""

    beats: dict[int, Heartbeat]

    def merged_report(self, wanted: int | None = None, ended: set[int] | None = None) -> Heartbeat | None:
        return merged_report(self.beats, wanted or len(self.beats), ended or set())


def gang(*told: Any, **more: Any) -> Of:
    """Each a trainer's state, or a dict of what its shim says."""
    pods = [{"trainer": one} if isinstance(one, str) else one for one in told]
    return Of({k: msgspec.structs.replace(seen(**{**more, **pod}), member=k) for k, pod in enumerate(pods)})


def exited(code: int, **more: Any) -> dict[str, Any]:
    return {"trainer": "exited", "exit_code": code, "exit_at": 90.0, **more}


@pytest.mark.parametrize(
    ("told", "as_one"),
    [
        (("running", "running"), "running"),
        (("running", "stopping"), "stopping"),
        (("running", exited(0)), "stopping"),
        (("running", "none"), "stopping"),
        ((exited(143), "stopping"), "stopping"),
        ((exited(143), exited(143)), "exited"),
        ((exited(0), "none"), "exited"),
        (("none", "none"), "none"),
    ],
)
def test_it_trains_until_no_pod_does_and_runs_only_while_each_does(told: tuple[Any, ...], as_one: str) -> None:
    found = gang(*told).merged_report()
    assert found is not None
    assert found.shim.trainer == as_one


def test_nothing_is_known_until_each_pod_has_reported_but_for_those_that_certainly_ended() -> None:
    two = gang("running", "running")
    assert two.merged_report(wanted=3) is None
    assert two.merged_report(wanted=3, ended={2}) is not None
    assert two.merged_report(wanted=2, ended={0, 1}) is None
    alone = two.merged_report(ended={0})
    assert alone is not None and alone.member == 1, "times and progress are those of the first that is left"


def test_a_command_is_obeyed_once_each_pod_has_obeyed_it_and_the_highest_generation_counts() -> None:
    found = gang({"generation": 2, "verb": "stop"}, {"generation": 1}).merged_report()
    assert found is not None
    assert (found.shim.command_id, found.shim.generation) == ("", 2)
    found = gang("running", "running", generation=3).merged_report()
    assert found is not None and found.shim.command_id == "one:3:start"


def test_what_each_pod_uses_is_added_and_progress_is_that_of_rank_0() -> None:
    pods = gang({"trainer": "running", "gpu_ids": ["a"], "steps": 7}, {"trainer": "running", "gpu_ids": ["b"]}).beats
    usage = Usage(cpu_cores=1.5, memory=10)
    pods = {
        k: msgspec.structs.replace(beat, usage=usage, gpus=[GpuReading(beat.shim.gpu_ids[0])])
        for k, beat in pods.items()
    }
    found = merged_report(pods, 2)
    assert found is not None
    assert (found.usage.cpu_cores, found.usage.memory, found.progress.iterations) == (3.0, 20, 7)
    assert found.shim.gpu_ids == [g.gpu_id for g in found.gpus] == ["a", "b"]


def test_the_newest_checkpoint_that_any_pod_has_seen_counts() -> None:
    pods = gang(exited(143), exited(143)).beats
    pods[1] = msgspec.structs.replace(pods[1], checkpoint=Checkpoint("g1-s12", 12, 1))
    found = merged_report(pods, 2)
    assert found is not None and found.checkpoint == Checkpoint("g1-s12", 12, 1)


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ((exited(0), exited(0)), 0),
        ((exited(0), exited(3)), 3),
        ((exited(143, stop_asked=True), exited(1)), 1),
        ((exited(143, stop_asked=True), exited(-9, stop_asked=True)), -9),
        ((exited(0, stop_asked=True), exited(143, stop_asked=True)), 143),
        ((exited(-6, exit_at=61.0), exited(1, exit_at=60.0)), 1),
    ],
)
def test_the_exit_code_is_that_of_who_ended_worst_or_first(told: tuple[Any, ...], code: int) -> None:
    found = gang(*told).merged_report()
    assert found is not None and found.shim.exit_code == code


# what breaks it


@pytest.mark.parametrize(
    ("told", "ended", "why", "own"),
    [
        (("running", "running"), {1}, "pod 1 is gone", False),
        (("running", exited(1, output_tail="x\nno memory\n")), {9}, "in pod 1 ended with exit code 1: no memory", True),
        (("running", exited(-9)), set(), "the training process in pod 1 was killed by signal 9", True),
        (("running", exited(127, exit_note="no such file")), set(), "no such file in pod 1", True),
        (("running", exited(143, stop_asked=True, fenced=True)), set(), "longer than its lease", False),
        (("running", exited(143, stop_asked=True)), set(), "the training in pod 1 was stopped", False),
        (("running", {"trainer": "none", "generation": 0}), set(), "pod 1 began afresh", False),
    ],
)
def test_one_that_ended_badly_or_is_gone_breaks_it(told: Any, ended: set[int], why: str, own: bool) -> None:
    found = find_failure(gang(*told).beats, 2, ended)
    assert found is not None
    assert why in found.why
    assert found.own is own


def test_all_stop_together_when_one_of_them_is_asked_to_and_that_is_no_fault() -> None:
    evicted = exited(143, stop_asked=True)
    found = find_failure(gang(evicted, exited(143)).beats, 2)
    assert found is not None and not found.own
    found = find_failure(gang({"trainer": "stopping", "stop_asked": True}, exited(143)).beats, 2)
    assert found is not None and not found.own
    found = find_failure(gang("running", exited(143)).beats, 2)
    assert found is not None and found.own, "nobody was asked"


def test_one_that_finished_first_or_has_not_started_yet_breaks_nothing() -> None:
    assert find_failure(gang("running", exited(0)).beats, 2) is None
    assert find_failure(gang("running", "running", exited(1)).beats, 2) is None, "the third is not wanted any more"
    stopped = exited(143, generation=3, verb="stop", stop_asked=True)
    for waits in (stopped, {"trainer": "none", "generation": 0, "verb": ""}):
        pods = gang({"trainer": "running", "generation": 3}, waits).beats
        assert find_failure(pods, 2, starting="one:3:start") is None
    pods = gang({"trainer": "running", "generation": 3}, exited(1, generation=3)).beats
    assert find_failure(pods, 2, starting="one:3:start") is not None


# where they meet


def test_each_pod_is_told_its_rank_and_all_of_them_the_same_places() -> None:
    hosts = ["10.0.0.1", "10.0.0.2", "fd00::3"]
    told = [rendezvous(hosts, k, 5, 2) for k in range(3)]
    configs = [json.loads(one["TF_CONFIG"]) for one in told]
    assert [c["task"] for c in configs] == [{"type": "worker", "index": k} for k in range(3)]
    assert len({str(c["cluster"]) for c in configs}) == 1
    workers = configs[0]["cluster"]["worker"]
    assert [w.rpartition(":")[0] for w in workers] == ["10.0.0.1", "10.0.0.2", "[fd00::3]"]
    assert {(one["MASTER_ADDR"], one["WORLD_SIZE"], one["PET_NNODES"]) for one in told} == {("10.0.0.1", "3", "3")}
    assert [(one["RANK"], one["PET_NODE_RANK"]) for one in told] == [("0", "0"), ("1", "1"), ("2", "2")]
    assert told[0]["PET_NPROC_PER_NODE"] == "2"
    ports = {one["MASTER_PORT"] for one in told} | {w.rpartition(":")[2] for w in workers}
    assert len(ports) == 4, "even where pods share the address of their machine"


def test_no_generation_meets_at_the_places_of_the_one_before() -> None:
    def ports(generation: int) -> set[str]:
        one = rendezvous(["h"] * 8, 0, generation, 1)
        workers = json.loads(one["TF_CONFIG"])["cluster"]["worker"]
        return {one["MASTER_PORT"], *(w.rpartition(":")[2] for w in workers)}

    for generation in (1, 2, 500, 10**9):
        assert not ports(generation) & ports(generation + 1)
        assert all(20_000 <= int(port) < 30_000 for port in ports(generation))
