"""A GPU that falls sick under a training, as its sidecar reads it: nothing more is placed on it until it is well."""

from __future__ import annotations

from coordinator.model import states as s
from coordinator.stores.bootstrap import FoundGpu, FoundNode
from coordinator.telemetry.gpu_faults import GpuFaults
from sidecar.protocol import GpuReading
from tests.fakes.shims import Behaviour
from tests.fakes.world import GPU_TYPE, World


def reading(gpu: str, problem: str = "") -> GpuReading:
    return GpuReading(gpu_id=gpu, healthy=not problem, problem=problem)


def test_a_gpu_that_its_sidecar_reads_as_sick_is_faulty_until_it_reads_it_as_well() -> None:
    world = World()
    one = Behaviour(iterations=4_000, sick=set())
    world.submit("one", [2], one, elastic=False)
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    sick, sound = world.job("one").gpu_ids
    one.sick = {sick}
    world.run(lambda w: w.gpu(sick).faulty, 30)
    assert (world.gpu(sick).doc["problem"], world.gpu(sound).state) == ("GPU is lost", s.IN_USE)
    assert world.states()["one"] == s.RUNNING, "what cannot be stopped trains on"
    one.sick = set()
    world.run(lambda w: not w.gpu(sick).faulty, 30)
    assert (world.gpu(sick).state, world.gpu(sick).doc["problem"]) == (s.IN_USE, "")


def test_a_gpu_that_was_sick_is_given_to_nobody_when_its_job_has_ended() -> None:
    world = World()
    one = Behaviour(iterations=30, sick=set())
    world.submit("one", [4], one, elastic=False)
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    one.sick = {"gpu-0"}
    world.run(lambda w: w.states()["one"] == s.COMPLETED and not w.gpu("gpu-1").job, 200)
    world.submit("two", [1, 2, 4], Behaviour(iterations=4_000))
    world.run(lambda w: w.states()["two"] == s.RUNNING, 60)
    assert world.gpu("gpu-0").faulty and "gpu-0" not in world.job("two").gpu_ids
    assert world.broken() == []


def test_a_sidecar_that_never_could_read_gpus_says_nothing_about_them() -> None:
    faults = GpuFaults()
    assert not faults.keep_readings([reading("a", "install nvidia-ml-py")]) and faults.changed() == {}


def test_news_are_kept_until_they_are_written_and_told_once() -> None:
    faults = GpuFaults()
    assert not faults.keep_readings([reading("a"), reading("b")])
    assert faults.keep_readings([reading("a", "GPU is lost"), reading("b")])
    assert not faults.keep_readings([reading("a", "GPU is lost"), reading("b")])
    assert faults.changed() == {"a": "GPU is lost"}
    assert faults.keep_readings([reading("a")])
    faults.written("a", "GPU is lost")
    assert faults.changed() == {"a": ""}, "what came meanwhile is not lost"
    faults.written("a", "")
    assert faults.changed() == {}


def test_a_job_that_can_be_stopped_shrinks_around_a_sick_gpu_and_keeps_the_others() -> None:
    world = World()
    one = Behaviour(iterations=4_000, sick=set())
    world.submit("one", [1, 2, 4], one)
    world.run(lambda w: w.states()["one"] == s.RUNNING and len(w.job("one").gpu_ids) == 4, 60)
    one.sick = {"gpu-1"}
    world.run(lambda w: w.states()["one"] == s.RUNNING and len(w.job("one").gpu_ids) == 2, 100)
    assert world.job("one").gpu_ids == ("gpu-0", "gpu-2")
    assert (world.gpu("gpu-1").job, world.gpu("gpu-1").faulty, world.gpu("gpu-3").state) == (None, True, s.IDLE)
    assert world.broken() == [] and world.job("one").doc["preempts"] in (None, 0)
    (why,) = [d for d in world.api.history.decisions("one", 10) if d["kind"] == "reshape"]
    assert why["sentence"] == "one goes from 4 to 2 GPUs on n1: 1 GPU of node n1 is faulty."


def test_a_job_whose_only_gpu_is_sick_moves_to_another_node() -> None:
    other = FoundNode("b", tuple(FoundGpu(f"b-{i}", GPU_TYPE, None, True) for i in range(2)))
    world = World(gpus=1, nodes=[other])
    one = Behaviour(iterations=4_000, sick=set())
    world.submit("one", [1], one)
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    first = world.job("one").gpu_ids[0]
    home = world.job("one").node
    one.sick = {first}
    world.run(lambda w: w.states()["one"] == s.RUNNING and w.job("one").node != home, 200)
    assert world.broken() == []


def test_a_job_that_must_not_be_stopped_says_that_it_trains_with_a_sick_gpu() -> None:
    world = World()
    one = Behaviour(iterations=4_000, sick=set())
    world.submit("one", [2], one, elastic=False)
    world.run(lambda w: w.states()["one"] == s.RUNNING, 60)
    one.sick = {"gpu-0"}
    world.pass_time(15)
    assert world.job("one").doc["message"].startswith("one trains on, although 1 GPU of node n1 is faulty: ")
    one.sick = set()
    world.pass_time(15)
    assert world.job("one").doc["message"] == "trains"
