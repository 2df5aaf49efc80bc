"""Keras on TensorFlow, in an image that `reshape containerize` built, is reshaped in its living pod on a cluster."""

from __future__ import annotations

import pytest

from tests.cluster import steps_job, training_images
from tests.cluster.bed_report import Report
from tests.cluster.installed import Installed
from tests.cluster.plays import ENDLESS, identity, in_order, play

NODE = "node-b"  # one is enough: the image is large


@pytest.mark.timeout(400, func_only=True)
def test_keras_on_tensorflow_gives_gpus_and_gets_them_back_without_losing_a_step(
    installed: Installed, report: Report
) -> None:
    training_images.provide(installed.bed, "keras", NODE)
    document = {
        "image": training_images.name_of("keras"), "job_type": "digits-keras",
        "command": ["python", "keras_digits.py", "--iterations", str(ENDLESS)], "checkpoint_claim": None,
    }  # fmt: skip
    with report.scenario("Keras on TensorFlow is reshaped") as figures:
        seen = play(installed, steps_job.QUEUE, steps_job.QUEUE, NODE, **document)
        figures |= {"gap_down_s": seen.gaps[0].seconds, "gap_up_s": seen.gaps[1].seconds, "steps": len(seen.steps)}
        assert {identity(pod) for pod in seen.pods} == {identity(seen.pods[0])}
        assert [(gap.before, gap.after) for gap in seen.gaps] == [(4, 2), (2, 4)]
        assert in_order(seen.steps)
        assert installed.gpus.violations() == []
