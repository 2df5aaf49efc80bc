"""Jobs whose pod cannot be made anew: they are reshaped, and never sent back into the queue."""

from __future__ import annotations

from typing import Any

import pytest

from adaptive_scheduler.snapshot import ClusterSnapshot
from coordinator.errors import Rejected
from coordinator.model import states as s
from coordinator.model.records import JobRecord
from tests.fakes.shims import Behaviour
from tests.fakes.world import World
from tests.unit.coordinator.situations import job, mine, seen, waits, world, written

BARE = {"namespace": "team", "name": "one", "uid": "u-1", "kind": "pod", "keeps_pod": True}
KEPT: dict[str, Any] = {"origin": "volcano", "volcano": BARE}
LASTING = {"checkpoint_claim": "kept"}  # so that only its pod keeps it in place


def test_it_gives_gpus_to_a_newcomer_and_gets_them_back() -> None:
    world = World.training([2, 4], **KEPT, **LASTING)
    world.submit("two", [2], Behaviour(iterations=20))
    world.run(lambda w: w.states().get("two") == s.COMPLETED and len(w.job("one").gpu_ids) == 4)
    assert world.job("one").launch == 1


@pytest.mark.parametrize("of_user", [{}, {"preemption": "any"}])
def test_others_may_shrink_it_and_no_more(of_user: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    world = World.training([4], **KEPT, **LASTING, **of_user)
    snapshots = list[ClusterSnapshot]()
    build = world.c.loop._snapshots.build

    def noted(*given: Any, **more: Any) -> ClusterSnapshot:
        snapshots.append(build(*given, **more))
        return snapshots[-1]

    monkeypatch.setattr(world.c.loop._snapshots, "build", noted)
    world.pass_time(5)
    (shown,) = snapshots[-1].jobs
    assert (shown.keeps_pod, shown.stays, shown.preemption, shown.pinned) == (True, True, "shrink", shown.node)


def test_it_is_not_suspended_and_says_why() -> None:
    world = World.training([2], **KEPT, **LASTING)
    with pytest.raises(Rejected, match="its pod would have to go, and it cannot be made anew"):
        world.api.operator.suspend("one")


def test_one_whose_processes_are_gone_has_failed() -> None:
    world = World.training([2], **KEPT, **LASTING)
    world.machines.kill_shim("one")
    world.run(lambda w: w.states()["one"] == s.FAILED)
    assert world.job("one").doc["message"].endswith("its pod cannot be made anew")
    assert world.job("one").launch == 1


def test_a_trainer_that_crashed_is_started_again_in_its_pod() -> None:
    world = World.training([2], **KEPT, **LASTING)
    world.machines.end_trainer("one", 3)
    world.run(lambda w: w.job("one").generation > 1 and w.states()["one"] == s.RUNNING)
    assert world.job("one").launch == 1


def test_a_batch_job_that_others_manage_is_not_suspended_and_goes_on_in_the_pod_that_they_make() -> None:
    managed = {"origin": "volcano", "volcano": {**BARE, "kind": "batch Job"}}
    world = World.training([2], **managed, **LASTING)
    with pytest.raises(Rejected, match="it cannot be made anew"):
        world.api.operator.suspend("one")
    world.machines.kill_shim("one")
    world.run(lambda w: w.job("one").launch == 2 and w.states()["one"] == s.RUNNING)


def test_one_that_is_held_waits_in_its_pod_for_its_user() -> None:
    ended = seen("exited", 2, exit_code=1, exit_at=60.0, output_tail="no such file")
    restart = {"kind": "restart", "from": ["a"], "to": ["a"], "generation": 2}
    again = job(s.RESTARTING, "a", op=restart, generation=2, retries=3, iters_done=20, elastic=True, **KEPT, **LASTING)
    held = written(world(again, ended, mine("a")), "hold")
    assert (held["state"], held.get("suspended")) == (s.RESTARTING, None)
    assert "it keeps its 1 GPU, as its pod cannot be made anew. Mend this" in str(held["message"])
    waits(world(JobRecord({**again.doc, **held}), ended, mine("a")), "it is held until its user resumes it")
