"""Our own parts, the store and the API server go away: jobs train on, and what was begun is finished once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster import steps_job
from tests.cluster.bed_kubectl import until
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import (
    LONG,
    PLAYBOOK,
    WARM_ANSIBLE,
    Witness,
    acting_launcher,
    again,
    alive,
    below,
    kill,
    lost_steps,
    main_pid,
    now,
    part,
    pause,
    processes,
    relaunched,
    running,
    scale,
    steps_on,
    theirs,
    times,
    trains,
    uid,
    violations,
    volcano_jobs,
)
from tests.cluster.installed import SYSTEM, Installed
from tests.frozen import frozen

Jobs = Callable[..., str]
API_AWAY_S = 8.0  # the bed marks nodes as lost after 12 s of silence, and their pods as not ready


def kill_its_process(on: Installed) -> None:
    kill(main_pid(on, part(on, "coordinator"), "coordinator"))


def delete_it(on: Installed) -> None:
    name = part(on, "coordinator")["metadata"]["name"]
    on.cluster.delete("pod", name, SYSTEM, "--grace-period=0", "--force", "--wait=false")


def begun(job: dict[str, Any], before: int) -> bool:
    """Whether its next reshape is under way, or was so quick that nobody saw it."""
    return bool(job["reshape"]) or job["generation"] > before


@pytest.mark.parametrize("fault", [kill_its_process, delete_it])
def test_a_coordinator_killed_in_the_middle_of_a_reshape_is_followed_by_the_standby(
    installed: Installed, jobs: Jobs, report: Report, fault: Callable[[Installed], None]
) -> None:
    on = installed
    job = jobs("handed-over", LONG, [2, 4], node="node-a")
    pod = trains(on, job, 4)
    steps_on(on, job)
    with report.scenario(f"coordinator killed in the middle of a reshape: {fault.__name__}") as figures:
        before = on.job(job)["generation"]
        on.client.reshape(job, 2)
        until("the reshape is under way, or done", lambda: begun(on.job(job), before), 10)
        began = now()
        fault(on)
        on.until_on(job, 2)
        figures["finished_after_s"] = now() - began
        steps_on(on, job)
        figures |= {
            "shapes": on.gpus.shapes(job), "pod_uid_unchanged": uid(alive(on, job)) == uid(pod),
            "steps_again": again(on, job), "lost_steps": lost_steps(on, job),
        }  # fmt: skip
        assert figures["shapes"] == [4, 2], figures
        assert figures["pod_uid_unchanged"], figures
        assert (figures["steps_again"], figures["lost_steps"]) == (0, 0), figures
        assert violations(on, job) == []


def test_a_launcher_killed_while_a_playbook_runs_leads_to_one_object(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    on = installed
    pid = acting_launcher(on)
    with report.scenario("launcher killed while a playbook runs") as figures:
        with frozen(running(pid, WARM_ANSIBLE)):  # else a playbook may come and go unseen
            job = jobs("replayed", LONG, [1])
            until("a playbook runs", lambda: running(pid, PLAYBOOK), 30)
        began = now()
        kill(pid)
        seen = Witness(on, job)
        seen.until("the job trains", lambda: on.job(job)["state"] == "running", 90)
        figures |= {
            "trains_after_s": now() - began, "volcano_jobs": len(volcano_jobs(on, job)), "pods": seen.look(),
            "launch": on.job(job)["launch"], "retries": on.job(job)["retries"],
        }  # fmt: skip
        assert (figures["volcano_jobs"], figures["pods"]) == (1, 1), figures
        assert (figures["launch"], figures["retries"]) == (1, 0), figures


def noted_node(on: Installed, job_id: str) -> str | None:
    """Return the node that a job is pinned to, from the store: the API is away."""
    with on.table("jobs") as jobs:
        job: dict[str, Any] = jobs.find_one({"job_id": job_id}) or {}
    return job.get("node")


def test_a_labelled_job_that_volcano_starts_while_we_are_away_waits_for_gpus_and_then_trains(
    installed: Installed, report: Report
) -> None:
    on, selector = installed, "app.kubernetes.io/component=coordinator"
    with report.scenario("coordinator away while Volcano starts a labelled job") as figures:
        scale(on, "coordinator", 0)
        try:
            until("no coordinator is left", lambda: not on.cluster.list("pods", SYSTEM, selector))
            with theirs(on, "while-away", [1]) as (job, name):
                pod = on.cluster.wait("pod", name, lambda found: found["spec"].get("nodeName"), steps_job.NAMESPACE)
                placed = pod["spec"]["nodeName"]
                until("the launcher has noted where it is", lambda: noted_node(on, job) == placed, 30)
                assert on.gpus.uses(job) == []
                scale(on, "coordinator", 2)
                began = now()
                until("it trains", lambda: on.gpus.uses(job), 90)
                after = on.cluster.get("pod", name, steps_job.NAMESPACE) or {}
                figures |= {
                    "trains_after_s": now() - began, "pod_uid_unchanged": uid(after) == uid(pod),
                    "gpus": on.gpus.shapes(job), "node": placed, "node_after": after["spec"].get("nodeName"),
                }  # fmt: skip
                assert (figures["pod_uid_unchanged"], figures["gpus"]) == (True, [1]), figures
        finally:
            scale(on, "coordinator", 2)


def test_a_store_that_is_away_for_less_than_the_lease_stops_no_training(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    on = installed
    job = jobs("store", LONG, [2])
    trains(on, job, 2)
    launch = on.job(job)["launch"]
    with report.scenario("store away for less than L - G") as figures:
        given = times(on)
        away = (given.lease_s - given.grace_s) / 2
        with frozen(below(main_pid(on, part(on, "store"), "nx"))):
            pause(away)
        steps_on(on, job, int(given.lease_s / steps_job.SPEEDS[2]))
        figures |= {"away_s": away, "training_processes": len(processes(on, job))}
        figures["launches"] = on.job(job)["launch"] - launch
        assert (figures["training_processes"], figures["launches"]) == (1, 0), figures


def test_an_api_server_that_is_away_stops_no_training_and_what_was_asked_meanwhile_is_done_after(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    on = installed
    job = jobs("api", LONG, [2], node="node-a")
    pod = trains(on, job, 2)
    with report.scenario("API server away") as figures:
        server = on.bed.processes.pid("kube-apiserver")
        assert server is not None
        client, late = on.client, f"asked-meanwhile-{uid(pod)[:6]}"
        with on.table("jobs") as table, frozen([server]):
            table.insert_one(steps_job.record(late, LONG, [2], on.shared, node="node-b"))
            pause(API_AWAY_S)
            assert client.job(job)["state"] == "running"
        began = now()
        try:
            trains(on, late, 2)
            figures["launched_after_s"] = now() - began
            steps_on(on, job)
            figures |= {
                "away_s": API_AWAY_S, "training_processes": len(processes(on, job)),
                "pod_uid_unchanged": uid(alive(on, job)) == uid(pod),
                "retries": on.job(late)["retries"],
            }  # fmt: skip
            assert (figures["training_processes"], figures["pod_uid_unchanged"], figures["retries"]) == (1, True, 0), (
                figures
            )
        finally:
            on.end(late)


def test_a_pod_that_is_lost_while_no_launcher_is_there_is_made_and_waits_and_its_job_goes_on(
    installed: Installed, report: Report
) -> None:
    """It was refused, and after 15 tries Volcano terminated the job."""
    on = installed
    selector = "app.kubernetes.io/component=launcher"
    with report.scenario("a pod lost while no launcher is there") as figures, theirs(on, "gated", [1]) as (job, name):
        trains(on, job, 1, 120)
        steps_on(on, job)
        try:
            scale(on, "launcher", 0)
            until("no launcher is left", lambda: not on.cluster.list("pods", SYSTEM, selector))
            before = on.job(job)
            on.cluster.delete("pod", name, steps_job.NAMESPACE)
            made = on.cluster.wait("pod", name, lambda pod: pod["spec"].get("schedulingGates"), steps_job.NAMESPACE)
            pause(5)
            waits = on.cluster.get("pod", name, steps_job.NAMESPACE) or {}
            figures["waits_without_a_node"] = (uid(waits), waits["spec"].get("nodeName")) == (uid(made), None)
            events = on.cluster.events(name.removesuffix("-trainer-0"), steps_job.NAMESPACE)
            figures["refused"] = sum(event.startswith("FailedCreate") for event in events)
        finally:
            scale(on, "launcher", 2)
        until("it is launched again", relaunched(on, job, before), 180)
        steps_on(on, job)
        figures["again"] = again(on, job)
        assert (figures["waits_without_a_node"], figures["refused"]) == (True, 0), figures
        assert violations(on, job) == []
