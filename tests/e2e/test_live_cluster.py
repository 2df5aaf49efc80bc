"""Several emulated nodes on this machine, and what the four systems decide on them carried out with real processes.

One test each: a converged job moves to another node, an overdue one yields to a lighter one, a job with a target
ends when its measured value is there, and a job on GPUs moves to a node where it trains faster.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from coordinator.stores.opening import open_store
from tests.e2e.up import ROOT, TRAINERS, Up, digits, running, wait_for

CURVE = str(TRAINERS / "curve.py")
SPEEDS = [
    {"job_type": "digits-numpy", "gpu_type": kind, "num_gpus": 1, "seconds_per_iteration": seconds}
    for kind, seconds in (("K80", 0.25), ("A100", 0.05))
]
OVERHEADS = {"job_type": "curve", "k8s_init": 2, "k8s_term": 1, "proc_init": 0.2, "proc_term": 0.1, "ckpt": 0.1}
STEP = re.compile(r"^step=(\d+) ", re.MULTILINE)


def on_cpu(job_id: str, steps: int, *options: str, **more: Any) -> dict[str, Any]:
    command = [sys.executable, CURVE, "--steps", str(steps), *options]
    return {
        "job_id": job_id, "state": "submitted", "job_type": "curve", "command": command, "num_gpus": 0,
        "env": {"PYTHONPATH": str(ROOT)}, "elastic": True, **more,
    }  # fmt: skip


def told(up: Up, job_id: str) -> str:
    """All that the job's trainings have printed, over all its launches."""
    text, offset = b"", 0
    while (more := up.client.logs(job_id, offset))[0]:
        text, offset = text + more[0], more[1]
    return text.decode()


def steps(up: Up, job_id: str) -> list[int]:
    return [int(number) for number in STEP.findall(told(up, job_id))]


def events(up: Up, job_id: str, kind: str) -> list[dict[str, Any]]:
    store = open_store(f"sqlite:///{up.state / 'reshape.sqlite'}")
    try:
        return [e for e in store.events_after(0, 10_000) if e["type"] == kind and e.get("job_id") == job_id]
    finally:
        store.close()


def test_a_converged_job_moves_to_a_node_where_it_disturbs_less_and_loses_no_step(tmp_path: Path) -> None:
    fast = {"RESHAPE_SYSTEMS": "elastic,specon", "RESHAPE_SPECON_INTERVAL_S": "1"}
    with running(tmp_path / "s", ["c=cpu:2", "d=cpu:2"], **fast) as up:
        up.client.import_profiles("overheads", [OVERHEADS])
        up.client.submit(on_cpu("flat", 400, "--flat", "20", iterations=400))
        up.until("flat", "running")
        assert up.job("flat")["node"] == "c"
        for name in ("one", "two"):
            up.client.submit(on_cpu(name, 2_000, iterations=2_000, node="c"))
        moved = wait_for(lambda: events(up, "flat", "moved"), what="the converged job has moved")[0]
        assert (moved["from_node"], moved["to_node"]) == ("c", "d")
        assert {up.job(name)["node"] for name in ("one", "two")} == {"c"}
        done = up.until("flat", "completed")
        assert steps(up, "flat") == list(range(1, 401)), "each step was done once, in order"
        assert done["launch"] == 2
        why = up.client.decision(moved["decision_id"])
        assert why["kind"] == "move"
        chosen = [c for c in why["candidates"] if not c["rejected"]]
        assert [c["node"] for c in chosen] == ["d"]
        assert chosen[0]["makespan_s"] < why["unchanged_makespan_s"]


def test_an_overdue_job_yields_to_a_lighter_one_whose_deadline_hangs_on_it_and_goes_on_afterwards(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "s", ["c=cpu:1"], RESHAPE_SYSTEMS="elastic,deadline") as up:
        up.client.submit(on_cpu("heavy", 240, resources={"cores": 1.0}, estimate="3s", sla="2m"))
        up.until("heavy", "running")
        up.client.submit(on_cpu("light", 40, resources={"cores": 0.5}, estimate=4, sla="18s"))
        waits = wait_for(lambda: events(up, "heavy", "yielded"), what="the overdue job has yielded")
        assert waits
        up.until("light", "completed")
        heavy = up.until("heavy", "completed")
        assert steps(up, "heavy") == list(range(1, 241))
        assert (heavy["launch"], heavy["preempts"]) == (2, 1)


def test_a_job_with_a_target_ends_with_a_checkpoint_when_its_measured_value_is_there(tmp_path: Path) -> None:
    with running(tmp_path / "s", ["c=cpu:1"]) as up:
        aims = {"target": {"value": 0.1, "name": "accuracy"}}
        up.client.submit(on_cpu("aims", 1_000, "--measure", "accuracy", **aims))
        done = up.until("aims", "completed")
        assert 100 <= done["iters_done"] < 1_000
        assert done["checkpoint"]["step"] == steps(up, "aims")[-1]
        assert "0.1" in done["message"], done["message"]


def test_a_job_on_gpus_moves_to_a_node_where_it_trains_faster_once_that_is_free(tmp_path: Path) -> None:
    with running(tmp_path / "s", ["a=1xK80", "b=1xA100"]) as up:
        up.client.import_profiles("speed_profiles", SPEEDS)
        up.client.submit(digits("first", 160, [1], gpu_type="A100"))
        up.until("first", "running")
        up.client.submit(digits("second", 200, [1]))
        assert up.until("second", "running")["node"] == "a"
        up.until("first", "completed")
        moved = wait_for(lambda: events(up, "second", "moved"), what="the job has moved to the faster GPU")[0]
        assert (moved["from_node"], moved["to_node"]) == ("a", "b")
        up.until("second", "completed")
        assert up.steps("second") == list(range(1, 201))
        assert up.violations() == []


MOVING = (
    "after:claim", "after:launch", "before:stop", "after:stop", "before:grant", "after:grant", "after:remove",
    "after:start",
)  # fmt: skip


def test_a_move_comes_to_its_end_though_each_step_of_it_is_a_crash(tmp_path: Path) -> None:
    ends = {name: tmp_path / f"end-{name}" for name in ("first", "second")}
    with running(tmp_path / "s", ["a=1xK80", "b=1xA100"]) as up:
        up.client.import_profiles("speed_profiles", SPEEDS)
        for name, more in (("first", {"gpu_type": "A100"}), ("second", {})):
            doc = {
                "job_id": name,
                "job_type": "digits-numpy",
                "iterations": 100_000,
                "num_gpus": 1,
                "elastic": True,
                **more,
            }
            up.client.submit({**doc, "command": [sys.executable, str(TRAINERS / "until_told.py"), str(ends[name])]})
            up.until(name, "running")
        assert up.job("second")["node"] == "a"
        up.stop()
        ends["first"].touch()
        for seam in MOVING:
            up.start(seam)
            wait_for(lambda: up.gone, what=f"{seam} is reached")
        up.start()
        wait_for(lambda: up.job("second")["moves"] == 1, what="the job has moved")
        ends["second"].touch()
        done = up.until("second", "completed")
        assert (done["launch"], up.shapes("second")) == (2, [1, 1])
        found = up.steps("second")
        assert found == list(range(1, len(found) + 1)), "no step was lost or done twice"
        assert up.violations() == []
