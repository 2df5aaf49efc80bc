"""Keras on TensorFlow is reshaped in its living pod on a cluster: from an image that `reshape containerize` built, and
as a script that knows nothing of us, in an image with nothing of ours."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reshape.client import CoordinatorRefused
from tests.cluster import steps_job, training_images
from tests.cluster.bed_kubectl import Object, until
from tests.cluster.bed_report import Report
from tests.cluster.built_images import ROOT
from tests.cluster.faults_tools import main_pid, running
from tests.cluster.installed import Installed, answered, command_line
from tests.cluster.plays import ENDLESS, gaps, identity, in_order, play, steps_on

NODE = "node-b"  # one is enough: the image is large
SCRIPT = "tests/e2e/ordinary/keras_fit.py"
CONFIG_MAP = "plain-keras"
SHAPES = [2, 1, 2]
IMPORTS_S = 120.0  # of TensorFlow, by several processes at once
TIGHT = "600Mi"  # for TensorFlow and a training: 490 MiB; a second process wants 225 MiB more, and 256 MiB free


@pytest.fixture
def image(installed: Installed) -> str:
    installed.bed.provide(training_images.archive("keras"), [NODE])
    return training_images.name_of("keras")


def test_keras_on_tensorflow_gives_gpus_and_gets_them_back_without_losing_a_step(
    installed: Installed, image: str, report: Report
) -> None:
    document = {
        "image": image, "job_type": "digits-keras",
        "command": ["python", "keras_digits.py", "--iterations", str(ENDLESS)], "checkpoint_claim": None,
    }  # fmt: skip
    with report.scenario("Keras on TensorFlow is reshaped") as figures:
        seen = play(installed, steps_job.QUEUE, steps_job.QUEUE, NODE, **document)
        figures |= {"gap_down_s": seen.gaps[0].seconds, "gap_up_s": seen.gaps[1].seconds, "steps": len(seen.steps)}
        assert {identity(pod) for pod in seen.pods} == {identity(seen.pods[0])}
        assert [(gap.before, gap.after) for gap in seen.gaps] == [(4, 2), (2, 4)]
        assert in_order(seen.steps)
        assert installed.gpus.violations() == []


class Script:
    """A user's script with a plain `fit`, submitted as a user does; `memory` is what its container may use."""

    def __init__(self, on: Installed, memory: str | None, tmp_path: Path) -> None:
        self.on, self.job = on, f"plain-fit-{uuid.uuid4().hex[:6]}"
        self.lines, self.end = (on.shared / "gpu-locks" / f"{self.job}.{word}" for word in ("lines", "end"))
        pod = steps_job.pod(on.shared)
        pod["volumes"][0]["configMap"] = {"name": CONFIG_MAP}
        pod["containers"][0]["resources"] = {"limits": {"memory": memory}} if memory else {}
        files = [f"/gpu-locks/{file.name}" for file in (self.lines, self.end)]
        document = tmp_path / f"{self.job}.json"
        document.write_text(json.dumps({
            "job_id": self.job, "image": training_images.name_of("tensorflow"), "job_type": steps_job.JOB_TYPE,
            "command": ["python3", "/steps/keras_fit.py", *files], "optional_num_gpus": [1, 2], "iterations": ENDLESS,
            "namespace": steps_job.NAMESPACE, "queue": steps_job.QUEUE, "node": NODE, "pod": pod,
        }))  # fmt: skip
        command_line(on, "submit", "-f", str(document))

    def saves(self) -> None:
        """Wait until it has shown that it does."""
        answered(f"{self.job} saves when asked", lambda: self.on.job(self.job).get("resumes") == "hook", IMPORTS_S)

    def waiting(self) -> list[int]:
        """The interpreters that wait, as their container numbers them; one that has become the trainer uses GPUs."""
        found = []
        for pid in running(main_pid(self.on, self.pod, "trainer"), b"keras_fit.py"):
            with suppress(OSError):
                about = Path(f"/proc/{pid}")
                if b"RESHAPE_WAIT=" in (about / "environ").read_bytes():
                    status = (about / "status").read_text().splitlines()
                    found += [int(line.split()[-1]) for line in status if line.startswith("NSpid:")]
        return [pid for pid in found if pid not in self.trainers()]

    def trainers(self) -> list[int]:
        """The processes that have used GPUs, in order, as their container numbers them."""
        return list(dict.fromkeys(use["pid"] for use in self.on.gpus.uses(self.job)))

    @property
    def pod(self) -> Object:
        return self.on.pod(self.job)

    def says(self, words: str) -> str:
        """What its shim says of the interpreter that waits, once it begins with these words."""

        def said() -> str:
            with suppress(OSError):  # it does not answer now
                return str(sidecar(self.pod)["shim"].get("warm", ""))
            return ""

        return until(f"{self.job}: {words}", lambda: found if (found := said()).startswith(words) else None, IMPORTS_S)

    def reshape(self, gpus: int) -> None:
        """An operator's request; taken as soon as nothing else of the job is being written down."""

        def asked() -> bool:
            try:
                return bool(self.on.client.reshape(self.job, gpus))
            except CoordinatorRefused as refusal:
                if refusal.status != 409:
                    raise
                return False

        until(f"job {self.job} may have {gpus} GPUs", asked, 60)
        steps_on(self.on, self.job, gpus)


def sidecar(pod: Object) -> dict[str, Any]:
    """What the sidecar of a pod says."""
    with urllib.request.urlopen(f"http://{pod['status']['podIP']}:8477/v1/status", timeout=10) as answer:
        return dict(json.load(answer))


@pytest.fixture
def scripts(installed: Installed, tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """`scripts(memory)` submits one; all are ended afterwards."""
    installed.bed.provide(training_images.archive(training_images.STOCK), [NODE])
    about = {"name": CONFIG_MAP, "namespace": steps_job.NAMESPACE}
    code = {"keras_fit.py": (ROOT / SCRIPT).read_text()}
    installed.cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "data": code})
    made: list[Script] = []

    def submit(memory: str | None = None) -> Script:
        made.append(Script(installed, memory, tmp_path))
        return made[-1]

    yield submit
    print(installed.words("coordinator"), installed.words("launcher"))
    installed.end(*(each.job for each in made))


def test_an_unchanged_script_in_a_stock_image_is_reshaped_warm_in_its_living_pod(
    installed: Installed, scripts: Callable[..., Script], report: Report
) -> None:
    """Beside it runs the same script with too little memory for a second interpreter: it is reshaped as well, cold."""
    on, warm, cold = installed, scripts(), scripts(TIGHT)
    both = {warm: "ready", cold: "there is too little memory for a waiting interpreter"}
    with report.scenario("an unchanged Keras script is reshaped") as figures:
        for each in both:
            each.saves()
        before, waited = {each: each.pod for each in both}, list[int]()
        for gpus in SHAPES[1:]:
            figures["warm"], figures["cold"] = (each.says(words) for each, words in both.items())
            waited += warm.waiting()
            assert cold.waiting() == []
            for each in both:
                each.reshape(gpus)
        after, shown = {each: each.pod for each in both}, {each: on.job(each.job)["restart"] or "" for each in both}
        for each in both:
            each.end.touch()
            on.until(each.job, "completed", IMPORTS_S)
        for name, each in (("warm", warm), ("cold", cold)):
            found = gaps(on.gpus, each.job)
            figures |= {f"{name}_gap_down_s": found[0].seconds, f"{name}_gap_up_s": found[1].seconds}
        assert "was cold" not in shown[warm] and f"its last start was cold ({both[cold]})" in shown[cold]
        assert warm.trainers()[1:] == waited, "each time the process that waited is the one that trains"
        for each in both:
            assert identity(after[each]) == identity(before[each]) and identity(after[each])[2] == 0
            assert on.gpus.shapes(each.job) == SHAPES
            assert in_order(on.gpus.steps(each.job))
            *epochs, last = each.lines.read_text().split()
            assert epochs == [str(n) for n in range(1, len(epochs) + 1)] and last == "end"
            assert on.job(each.job)["reshapes"] == 2 and not on.job(each.job).get("lost")
        assert on.gpus.violations() == []
