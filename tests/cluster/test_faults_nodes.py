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
    main_pid,
    now,
    overlap_s,
    processes,
    relaunched,
    running,
    steps_on,
    theirs,
    times,
    trains,
    unpin,
    violations,
)
from tests.cluster.installed import Installed, answered

Jobs = Callable[..., str]
COUNTS = "i=0; while :; do i=$((i + 1)); echo step=$i; sleep 0.5; done"  # neither saves nor resumes


def test_a_job_on_a_node_that_is_cut_off_goes_on_elsewhere_and_never_twice(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    """A user's own Volcano Job cannot: Volcano makes no other pod before the first one is gone. It waits for that.

    One that has not shown that it resumes trains on in its pod, as if nothing had been.
    """
    on, given = installed, times(installed)
    node = lonely_node(on)
    job = jobs("cut", LONG, [2], node=node, **KEPT)
    plain = jobs("cut-plain", LONG, [0], node=node, command=["sh", "-c", COUNTS], elastic=None)
    with report.scenario("node cut off") as figures, theirs(on, "cut-theirs", [2], node) as (waits, _):
        old = trains(on, job, 2)
        trains(on, waits, 2)
        until("the plain one trains", lambda: on.job(plain)["state"] == "running", 90)
        pod = alive(on, plain)
        process = running(main_pid(on, pod, "trainer"), COUNTS.encode())
        unpin(on, job)
        before, held = on.job(job), _booked(on, job) | _booked(on, waits)
        steps_on(on, job)
        seen, began = Witness(on, job), now()
        with cut_off(on, node):
            until(
                "the GPUs are given up",
                lambda: not (_booked(on, job) | _booked(on, waits)) & held,
                given.wait_out_s + 30,
            )
            figures["given_up_after_s"] = now() - began
            figures["fenced_after_s"] = max(last_use(on, job), last_use(on, waits)) - began
            seen.until("the job goes on elsewhere", relaunched(on, job, before))
            figures["resumed_after_s"] = now() - began
            steps_on(on, job)
            assert on.job(waits)["message"].startswith("waits until its earlier pod"), on.job(waits)
        assert figures["fenced_after_s"] <= given.lease_s + given.kill_s, figures
        assert figures["given_up_after_s"] > max(figures["fenced_after_s"], given.lease_s - given.grace_s), figures
        until("the plain one says that it is not heard from", lambda: "not heard from" in on.job(plain)["message"])
        on.bed.wait_ready()
        until("it is heard from again", lambda: "not heard from" not in on.job(plain)["message"], 90)
        assert running(main_pid(on, alive(on, plain), "trainer"), COUNTS.encode()) == process != [], on.job(plain)
        assert alive(on, plain)["metadata"]["uid"] == pod["metadata"]["uid"] and on.job(plain)["state"] == "running"
        on.cluster.wait_gone("pod", old["metadata"]["name"], old["metadata"]["namespace"])
        until("the other one trains again", lambda: len(processes(on, waits)) == 2, 90)
        steps_on(on, waits)
        figures |= {
            "training_processes": len(processes(on, job)), "overlap_of_owners": len(violations(on, job, waits)),
            "overlap_s": overlap_s(on, job) + overlap_s(on, waits), "lost_steps": lost_steps(on, job),
            "retries": on.job(job)["retries"] + on.job(waits)["retries"] - before["retries"],
        }  # fmt: skip
        assert (figures["training_processes"], figures["overlap_of_owners"], figures["overlap_s"]) == (2, 0, 0), figures
        assert (figures["lost_steps"], figures["retries"]) == (0, 0), figures
        assert alive(on, job)["spec"]["nodeName"] != node


def _booked(on: Installed, job: str) -> set[str]:
    """The GPUs that the books say this job has."""
    found = answered("the books", lambda: on.client.gpus() or None)
    return {gpu["gpu_id"] for gpu in found if job in (gpu["job_id"], gpu["held_by"])}
