"""`make bench-cluster EXPERIMENT=elastic-w1`: an experiment with GPUs in pods of a real Kubernetes with Volcano.

What `reshape paper NAME --live` does on emulated nodes of this machine, on the test bed: each policy is that of the
coordinators there, each job a pod with a sidecar, and a launch, a termination and the store cost what they cost there.
Prints paper, simulation and live beside each other, and keeps all of it in build/bench-cluster/. The GPUs are emulated.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.policies import POLICIES
from reshape.client import CoordinatorRefused
from reshape.services.temporary_system import RunFailed
from reshape_papers.live_paper import outcome, scaling
from reshape_papers.live_paper.runner import LivePlan, LiveSystem, train, written
from reshape_papers.live_paper.scaling import Contender
from reshape_papers.workloads import build
from simulator.scenario import NoWorkload, Workload
from tests.cluster import installed, steps_job, training_images
from tests.cluster.bed import Bed
from tests.cluster.bed_network import NODES
from tests.cluster.bed_processes import BedError
from tests.cluster.built_images import BuildFailed
from tests.cluster.installed import Installed, answered

View = dict[str, Any]

BUILD = Path("build") / "bench-cluster"
SCALE = 0.02
"""Times the paper's: with it an average job trains for half a minute or more, and two cores start the pods in time."""
IMAGE = training_images.name_of("numpy")
CODE = "python", "numpy_digits.py"
USUAL = {"RESHAPE_COOLDOWN_FACTOR": "10", "RESHAPE_FIRST_STEP_TIMEOUT_S": "30"}
"""Defaults that the test bed changes."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the bed goes, too
    BUILD.mkdir(parents=True, exist_ok=True)
    try:
        workload = _workload(options)
        with _installed(workload) as on, tempfile.TemporaryDirectory() as folder:
            place = Pods(on).running
            result = train([workload], options.scale, Path(folder), place=place)
    except (BedError, BuildFailed, NoWorkload, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing is left running", file=sys.stderr)
        return 130
    result["stands_in"].append("real: Kubernetes, Volcano, a pod with a sidecar for each job; all on this machine")
    print(outcome.as_table(result))
    for path in written(result, BUILD):
        print(f"wrote {path}", file=sys.stderr)
    return 0


def _workload(options: argparse.Namespace) -> Workload:
    """Return the draw, or a part of it. Raises `NoWorkload` for an experiment whose jobs do not train on GPUs."""
    name = options.experiment
    found = build(name, options.seed, None)
    scaling.check(found)
    if scaling.uses_cpu(found):
        raise NoWorkload(f"{name} trains on CPUs, which pods here share: take reshape paper {name} --live.")
    if len(found.nodes) != len(NODES):
        raise NoWorkload(f"{name} has {len(found.nodes)} nodes and the test bed {len(NODES)}: take elastic-w1.")
    setups = tuple(each for each in found.policy_setups if not options.only or each.name in options.only)
    if not setups:
        known = ", ".join(each.name for each in found.policy_setups)
        raise NoWorkload(f"--only {' '.join(options.only)}: {name} has the policies {known}.")
    return replace(found, jobs=found.jobs[: options.jobs], policy_setups=setups)


class Pods:
    """The place where each job is a pod of the test bed."""

    def __init__(self, on: Installed) -> None:
        self._on = on

    @contextmanager
    def running(self, plan: LivePlan, contender: Contender, folder: Path) -> Iterator[LiveSystem]:
        """Have the coordinators act as this contender; nothing of its jobs is left afterwards."""
        given = variables(contender)
        self._on.set_coordinator(*(f"{name}={value}" for name, value in given.items()))
        twice = len(self._on.gpus.violations())
        try:
            yield LiveSystem(
                self._on.client, lambda: len(self._on.gpus.violations()) - twice, lambda job: None, self.document,
                self._last_event(),
            )  # fmt: skip
        finally:
            self._on.end(*(job.id for job in plan.jobs))
            for job in plan.jobs:
                with suppress(CoordinatorRefused):  # it has not come
                    self._on.client.remove(job.id)
            self._on.set_coordinator(*(f"{name}-" for name in given))

    def document(self, doc: View) -> View:
        """Return the job document of the live run as one of the test bed."""
        words = doc["command"]
        return {
            **doc, "image": IMAGE, "command": [*CODE, *words[len(CODE) :]], "namespace": steps_job.NAMESPACE,
            "queue": steps_job.QUEUE, "checkpoint_claim": steps_job.CLAIM, "pod": steps_job.pod(self._on.shared),
        }  # fmt: skip

    def _last_event(self) -> int:
        with self._on.table("events") as events:
            return max((int(each["_id"]) for each in events.find({}, {"_id": 1})), default=0)


def variables(contender: Contender) -> dict[str, str]:
    """Return the environment in which coordinators of a cluster act as `reshape up --policy` does."""
    of_policy = POLICIES[contender.policy].config | POLICIES[contender.policy].settings
    return {
        **USUAL, **{f"RESHAPE_{field.upper()}": scaling.text(value) for field, value in of_policy.items()},
        **contender.variables,
    }  # fmt: skip


@contextmanager
def _installed(workload: Workload) -> Iterator[Installed]:
    """Bring up a test bed whose nodes have the GPUs of the experiment, and end it afterwards."""
    bed = Bed()
    if bed.is_up():
        raise BedError("the test bed is up with other GPUs: end it first with make cluster-down")
    bed.up()
    try:
        on = installed.install(bed, _manifests(workload))
        bed.provide(training_images.archive("numpy"))
        answered("all GPUs are known", lambda: len(on.client.gpus()) == sum(len(n.gpus) for n in workload.nodes), 120)
        yield on
    finally:
        bed.down()


def _manifests(workload: Workload) -> Path:
    """Write those of the test bed with other GPUs; return their folder."""
    gpus = "\n".join(f"{here}={len(n.gpus)}x{n.gpu_type}" for here, n in zip(NODES, workload.nodes, strict=True))
    emulated = {
        "name": "reshape-emulated-gpus", "namespace": installed.SYSTEM, "behavior": "merge",
        "literals": [f"gpus={gpus}"],
    }  # fmt: skip
    folder = BUILD.resolve()
    base = os.path.relpath(installed.MANIFESTS, folder)
    (folder / "kustomization.yaml").write_text(json.dumps({"resources": [base], "configMapGenerator": [emulated]}))
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_experiment", description=__doc__)
    parser.add_argument("experiment", help="such as elastic-w1 or elastic-w3; an unknown one lists all")
    parser.add_argument("--scale", type=float, default=SCALE, help=f"times all times of the paper (default {SCALE:g})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default 0)")
    parser.add_argument("--jobs", type=int, metavar="N", help="only the first N jobs, for a look")
    parser.add_argument("--only", nargs="+", default=(), metavar="POLICY", help="only these policies")
    return parser


if __name__ == "__main__":
    sys.exit(main())
