"""The example trainings of many processes, each under a shim as in a pod of its own, told where to meet by us.

With more or fewer of them they go on at the very step, as if there had been one process all the time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.model.gang import rendezvous
from reshape_hooks.locks import violations
from tests.fakes.shim_client import ShimProcess, running_shim
from tests.interpreters import python_with
from tests.patience import eventually

ROOT = Path(__file__).parents[2]
TOTAL = 120
SLOW_S, FAST_S = 0.1, 0.004  # a step: while there is something to do in time, and after that
START_S = 60.0  # TensorFlow, three times on two cores


def trained_by(script: str, module: str) -> object:
    missing = pytest.mark.skipif(python_with(module) is None, reason=f"no {module} here")
    return pytest.param((python_with(module), script), marks=[missing, pytest.mark.deep], id=module)


TRAINERS = [trained_by("torch_digits.py", "torch"), trained_by("keras_gang.py", "tensorflow")]


class Gang:
    """Its pods, all of which have a shim already; a generation trains on the first so many."""

    def __init__(self, folder: Path, command: list[str], pods: list[ShimProcess]) -> None:
        self.folder, self.command, self.pods = folder, command, pods
        self.generation, self.size = os.getpid() % 1000, 0  # its ports are not those of a test beside this one

    def start(self, size: int, step_s: float = SLOW_S) -> None:
        self.generation, self.size = self.generation + 1, size
        for member, pod in enumerate(self.pods[:size]):
            where = rendezvous(["127.0.0.1"] * size, member, self.generation, 1)
            pace = {"RESHAPE_EMULATED_SPEED": json.dumps({size: step_s})}
            answer = pod.client.start(self.generation, [f"gpu-{member}"], env={**where, **pace})
            assert answer["ok"], answer

    def until(self, step: int) -> None:
        """Rank 0 has done it."""
        eventually(lambda: self.steps(0)[-1:] >= [step] or self.pods[0].client.status()["exit_code"], "a step", START_S)
        assert self.steps(0)[-1:] >= [step], self.said(0)[-3000:]

    def stop(self) -> list[int]:
        """Rank 0 hears of it last, when it has trained on or ended with the others. The exit codes."""
        self.generation += 1
        *first, last = reversed(self.pods[: self.size])
        for pod in first:
            pod.client.stop(self.generation, grace_s=20.0)
        step = self.steps(0)[-1]
        eventually(lambda: self.steps(0)[-1] > step or last.client.status()["exit_code"], "a step more")
        last.client.stop(self.generation, grace_s=20.0)
        return self.ended()

    def ended(self) -> list[int]:
        found = [pod.client.wait("exited") for pod in self.pods[: self.size]]
        assert [status["exit_note"] for status in found] == [""] * self.size  # nobody had to be killed
        return [status["exit_code"] for status in found]

    def said(self, member: int) -> str:
        output = self.pods[member].output
        return output.read_text() if output.exists() else ""

    def steps(self, member: int) -> list[int]:
        return [int(step) for step in re.findall(r"^step=(\d+) ", self.said(member), re.M)]

    def losses(self) -> dict[int, float]:
        return {int(step): float(loss) for step, loss in re.findall(r"^step=(\d+) .*loss=(\S+)", self.said(0), re.M)}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits where the examples look, without the rest of scikit-learn, which the system's Python has not.

    Shared, so that these tests run one after another: each starts TensorFlow three times at once.
    """
    folder = tmp_path_factory.mktemp("gang")
    found = importlib.util.find_spec("sklearn")
    assert found is not None and found.origin is not None
    data = folder / "packages" / "sklearn" / "datasets" / "data"
    data.mkdir(parents=True)
    shutil.copy(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", data)
    (folder / "packages" / "sklearn" / "__init__.py").touch()
    return folder / "packages"


@pytest.fixture(params=TRAINERS)
def gang(request: pytest.FixtureRequest, tmp_path: Path, packages: Path) -> Iterator[Gang]:
    """Three pods, and a fourth that trains alone."""
    python, script = request.param
    shared = {"PYTHONPATH": f"{ROOT}:{packages}", "RESHAPE_GPU_LOCKS": str(tmp_path / "locks")}
    command = [python, str(ROOT / "examples" / script), "--iterations", str(TOTAL), "--save-every", "10"]
    pods: list[ShimProcess] = []
    for member in range(4):
        kept = tmp_path / ("checkpoints" if member < 3 else "alone")
        env = {**shared, "RESHAPE_CHECKPOINTS": str(kept)}
        begun = running_shim(tmp_path / f"pod-{member}", command, env=env, job_id="gang")
        pods.append(begun.__enter__())
        request.addfinalizer(lambda begun=begun: begun.__exit__(None, None, None))
    yield Gang(tmp_path, command, pods)


def test_two_ranks_then_three_then_two_train_as_one_process_would(gang: Gang) -> None:
    for size, until in ((2, 12), (3, 26)):
        gang.start(size)
        gang.until(until)
        assert gang.stop() == [143] * size
        last = {gang.steps(member)[-1] for member in range(size)}
        assert len(last) == 1, f"they did not stop at one step: {last}"
        assert gang.said(0).splitlines()[-1].startswith(f"checkpoint=g{gang.generation - 1}-s{last.pop()} ")
    gang.start(2, FAST_S)
    gang.pods[3].client.start(1, ["gpu-x"])
    assert gang.ended() == [0, 0]
    assert gang.steps(0) == list(range(1, TOTAL + 1)), "a step was repeated or left out"
    assert gang.pods[3].client.wait("exited")["exit_code"] == 0
    alone = Gang(gang.folder, gang.command, gang.pods[3:]).losses()
    assert gang.losses() == pytest.approx(alone, rel=0.02, abs=0.002)  # floats are added up in another order
    assert violations(gang.folder / "locks") == []


def test_when_one_rank_is_killed_the_others_end_soon_and_all_go_on_from_the_last_checkpoint(gang: Gang) -> None:
    gang.start(2)
    gang.until(15)
    os.kill(gang.pods[1].client.status()["trainer_pid"], signal.SIGKILL)
    assert gang.ended()[0] not in (0, 143)
    done = gang.steps(0)[-1]
    kept = done // 10 * 10
    gang.start(2)
    gang.until(done + 2)
    assert gang.stop() == [143, 143]
    for member in range(2):
        assert re.findall(r" begins_at=(\d+) ", gang.said(member))[1:] in ([str(kept)], [str(kept - 10)])
