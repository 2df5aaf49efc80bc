"""A node that is cut off: its GPUs serve nobody else before its trainer has fenced itself, and it stays stopped."""

from __future__ import annotations

from collections.abc import Callable

from tests.cluster.bed_kubectl import until
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import (
    KEPT,
    LONG,
    Witness,
    alive,
    cut_off,
    last_use,
    lonely_node,
    lost_steps,
    now,
    overlap_s,
    pause,
    processes,
    relaunched,
    steps_on,
    times,
    trains,
    unpin,
)
from tests.cluster.installed import Installed, answered

Jobs = Callable[..., str]


def test_a_job_on_a_node_that_is_cut_off_goes_on_elsewhere_and_never_twice(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    on = installed
    node = lonely_node(on)
    job = jobs("cut", LONG, [4], node=node, **KEPT)
    old = trains(on, job, 4)
    unpin(on, job)
    before, given = on.job(job), times(on)
    held = set(before["gpu_ids"])
    steps_on(on, job)
    with report.scenario("node cut off") as figures:
        seen, began = Witness(on, job), now()
        with cut_off(on, node):
            until("its GPUs are given up", lambda: not _booked(on, job) & held, given.wait_out_s + 30)
            figures["given_up_after_s"] = now() - began
            fenced = last_use(on, job)
            figures["fenced_after_s"] = fenced - began
            seen.until("the job goes on elsewhere", relaunched(on, job, before))
            figures["resumed_after_s"] = now() - began
            steps_on(on, job)
        figures |= {
            "overlap_of_owners": len(on.gpus.violations()), "overlap_s": overlap_s(on, job),
            "lost_steps": lost_steps(on, job), "retries": on.job(job)["retries"],
        }  # fmt: skip
        assert figures["fenced_after_s"] <= given.lease_s + given.kill_s, figures
        assert figures["given_up_after_s"] > figures["fenced_after_s"], figures
        assert figures["given_up_after_s"] > given.lease_s - given.grace_s, figures
        _comes_back(on, jobs, job, node, old["metadata"])
        figures["overlap_of_owners"] = len(on.gpus.violations())
        assert (figures["overlap_of_owners"], figures["overlap_s"], figures["lost_steps"]) == (0, 0, 0), figures
        assert figures["retries"] == 0, figures
        assert alive(on, job)["spec"]["nodeName"] != node


def _booked(on: Installed, job: str) -> set[str]:
    """The GPUs that the books say this job has."""
    found = answered("the books", lambda: on.client.gpus() or None)
    return {gpu["gpu_id"] for gpu in found if job in (gpu["job_id"], gpu["held_by"])}


def _comes_back(on: Installed, jobs: Jobs, job: str, node: str, old: dict[str, str]) -> None:
    """The old trainer stays stopped, its pod goes, and its GPUs serve another job."""
    on.bed.wait_ready()
    on.cluster.wait_gone("pod", old["name"], old["namespace"])
    assert len(processes(on, job)) == 2
    after = jobs("after", LONG, [4], node=node)
    trains(on, after, 4)
    steps_on(on, after)
    pause(1)
    assert len(processes(on, job)) == 2
