"""A trainer's end is reported once the driver has given its GPUs back, and after a bounded wait in any case."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from sidecar.protocol import GpuHolder
from sidecar.resources import gpu_release
from sidecar.resources.gpu_release import ReleaseProof
from sidecar.resources.gpus import SLACK, EmulatedProbe, Footprint, NoProbe, NvmlProbe
from tests.fakes.fake_pynvml import FakeGpu, FakeNvml

FOREIGN = 77  # computes on the GPU before our trainer and after it


class Looks(NvmlProbe):
    """Changes a GPU before each look."""

    def __init__(self, gpu: FakeGpu, *states: tuple[int, list[int]]) -> None:
        super().__init__(FakeNvml([gpu]))
        self.gpu, self.states, self.looks = gpu, list(states), 0

    def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
        self.looks += 1
        if self.states:
            self.gpu.used, self.gpu.pids = self.states.pop(0)
        return super().footprints(gpu_ids)


def held(
    probe: NvmlProbe | EmulatedProbe | NoProbe, started: bool = True, holder: GpuHolder | None = None
) -> list[str]:
    """What a trainer's GPU still holds at the end, after its start and its wait for the proof."""

    async def life() -> list[str]:
        with ThreadPoolExecutor(1) as thread:
            proof = ReleaseProof(probe, thread)
            if started:
                await proof.begin(["GPU-1"])
            return await proof.wait(holder)

    return asyncio.run(life())


def test_it_waits_until_the_processes_are_gone_and_the_memory_is_back() -> None:
    before, used = (1 << 30, [FOREIGN]), (9 << 30, [FOREIGN, 5])
    probe = Looks(FakeGpu("GPU-1"), before, used, (9 << 30, [FOREIGN]), ((1 << 30) + SLACK, [FOREIGN]))
    assert held(probe) == []
    assert probe.looks == 4


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ((0, [6, 5]), "GPU GPU-1 is still in use by process 5, 6"),
        ((1 << 30, []), "GPU GPU-1 still holds 1024 MiB more than before its trainer began"),
    ],
)
def test_after_a_bounded_wait_it_says_what_is_held(
    monkeypatch: pytest.MonkeyPatch, after: tuple[int, list[int]], said: str
) -> None:
    monkeypatch.setattr(gpu_release, "RELEASE_S", 1.0)
    assert held(Looks(FakeGpu("GPU-1"), (0, []), after)) == [said]


def test_a_reading_that_does_not_end_within_the_wait_takes_nothing_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpu_release, "RELEASE_S", 1.0)
    answered = threading.Event()

    class Slow(Looks):
        def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
            if not self.states:
                answered.wait(2.0)
            return super().footprints(gpu_ids)

    assert held(Slow(FakeGpu("GPU-1"), (0, []), (0, [5]))) == ["GPU GPU-1 is still in use by process 5"]


def test_without_a_reading_from_before_the_start_it_does_not_wait() -> None:
    probe = Looks(FakeGpu("GPU-1", pids=[5]))
    assert held(probe, started=False) == []
    assert probe.looks == 0
    assert held(EmulatedProbe()) == held(NoProbe()) == []


def test_a_gpu_that_was_lost_is_not_waited_for() -> None:
    gpu = FakeGpu("GPU-1")
    probe = Looks(gpu)
    probe.footprints(["GPU-1"])

    async def life() -> list[str]:
        with ThreadPoolExecutor(1) as thread:
            proof = ReleaseProof(probe, thread)
            await proof.begin(["GPU-1"])
            gpu.lost = True
            return await proof.wait()

    assert asyncio.run(life()) == []


def test_a_driver_that_hangs_delays_neither_start_nor_end_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_release, "READ_S", 0.05)
    monkeypatch.setattr(gpu_release, "RELEASE_S", 0.05)
    hangs = threading.Event()

    class Hangs(NvmlProbe):
        def footprints(self, gpu_ids: Sequence[str]) -> dict[str, Footprint]:
            hangs.wait()
            return {}

    async def life() -> list[str]:
        with ThreadPoolExecutor(1) as thread:
            proof = ReleaseProof(Hangs(), thread)
            await proof.begin(["GPU-1"])
            first = await proof.wait()  # nothing was read
            proof._before = {"GPU-1": Footprint(0, frozenset())}
            second = await proof.wait()
            hangs.set()
            return first + second

    assert asyncio.run(life()) == [
        "NVML did not answer when its trainer had ended: check the NVIDIA driver of this machine"
    ]


@pytest.mark.parametrize("pid", [50, 7])  # of a container, whose pids are not the machine's
def test_a_process_that_holds_a_state_for_the_next_trainer_is_not_waited_for(pid: int) -> None:
    before, ended = (1 << 30, [FOREIGN]), (9 << 30, [FOREIGN, 50])
    probe = Looks(FakeGpu("GPU-1"), before, ended)
    assert held(probe, holder=GpuHolder(pid, "GPU-1")) == []
    assert probe.looks == 2


def test_a_trainer_beside_a_process_that_holds_a_state_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_release, "RELEASE_S", 0.2)
    before, ended = (1 << 30, [FOREIGN]), (9 << 30, [FOREIGN, 50, 5])
    probe = Looks(FakeGpu("GPU-1"), before, ended)
    assert held(probe, holder=GpuHolder(50, "GPU-1")) == ["GPU GPU-1 is still in use by process 5"]
    elsewhere = Looks(FakeGpu("GPU-1"), before, (9 << 30, [FOREIGN]))
    assert held(elsewhere, holder=GpuHolder(50, "GPU-2")) != []
