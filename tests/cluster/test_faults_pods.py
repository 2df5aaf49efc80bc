"""Pods that go under us: one relaunch, from the checkpoint, and no GPU is given away before its trainer has ended."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cluster.bed_kubectl import until
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import (
    KEPT,
    LONG,
    Witness,
    again,
    alive,
    kill,
    kubelet_away,
    last_use,
    lost_steps,
    main_pid,
    now,
    overlap_s,
    pause,
    relaunched,
    steps_on,
    theirs,
    times,
    trains,
    uid,
    violations,
    volcano_jobs,
)
from tests.cluster.installed import Installed
from tests.cluster.steps_job import NAMESPACE

Jobs = Callable[..., str]


def evict(on: Installed, pod: str) -> None:
    """As `kubectl drain` does."""
    about = {"name": pod, "namespace": NAMESPACE}
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about})
    on.cluster.kubectl("create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", "-f", "-", text=body)


def delete(on: Installed, pod: str) -> None:
    on.cluster.delete("pod", pod, NAMESPACE, "--wait=false")


def break_shim(on: Installed, pod: str) -> None:
    """The first process of the trainer's container is killed: the pod is Failed."""
    found = on.cluster.get("pod", pod, NAMESPACE)
    assert found is not None
    kill(main_pid(on, found, "trainer"))


@pytest.mark.parametrize("fault", [delete, evict, break_shim], ids=["PodDeleted", "PodEvicted", "PodFailed"])
def test_a_pod_that_goes_is_made_again_once(
    installed: Installed, jobs: Jobs, report: Report, fault: Callable[[Installed, str], None]
) -> None:
    """Volcano fires its policy at the same time: it ends the Volcano Job, and makes no pod of its own."""
    on, name = installed, fault.__name__
    job = jobs(f"gone-{name.replace('_', '-')}", LONG, [2], **KEPT)
    pod = trains(on, job, 2)
    before, old = on.job(job), volcano_jobs(on, job)[-1]["metadata"]["name"]
    steps_on(on, job)
    with report.scenario(f"pod gone: {name}") as figures:
        seen, began = Witness(on, job), now()
        fault(on, pod["metadata"]["name"])
        after = seen.until("the job is relaunched", relaunched(on, job, before))
        figures["relaunched_after_s"] = now() - began
        steps_on(on, job)
        status = (on.cluster.get("jobs.batch.volcano.sh", old, NAMESPACE) or {})["status"]
        figures |= {
            "pods": seen.look(), "launches": after["launch"] - before["launch"],
            "retries": after["retries"] - before["retries"],
            "volcano_version": status.get("version"), "volcano_phase": status["state"]["phase"],
            "steps_again": again(on, job), "lost_steps": lost_steps(on, job), "overlap_s": overlap_s(on, job),
        }  # fmt: skip
        assert (figures["pods"], figures["launches"], figures["retries"]) == (2, 1, 0), figures
        assert figures["volcano_phase"] in ("Terminating", "Terminated"), figures
        assert (figures["lost_steps"], figures["overlap_s"]) == (0, 0), figures
        assert fault is break_shim or figures["steps_again"] == 0, figures
        assert violations(on, job) == []


@pytest.mark.parametrize("action", ["", "RestartJob"])
def test_a_users_volcano_job_whose_pod_goes_has_one_other_pod(
    installed: Installed, report: Report, action: str
) -> None:
    """Volcano makes it, by itself or by the policy of its user; it is the job's next launch."""
    on, policies = installed, [{"event": "PodEvicted", "action": action}] if action else []
    with (
        report.scenario(f"pod of a user's Volcano Job gone, policy: {action or 'none'}") as figures,
        theirs(on, "theirs-gone", [2], policies=policies) as (job, name),
    ):
        trains(on, job, 2)
        before = on.job(job)
        steps_on(on, job)
        seen, began = Witness(on, job), now()
        delete(on, name)
        after = seen.until("the job is relaunched", relaunched(on, job, before))
        figures["relaunched_after_s"] = now() - began
        steps_on(on, job)
        figures |= {
            "pods": seen.look(), "launches": after["launch"] - before["launch"],
            "retries": after["retries"] - before["retries"], "steps_again": again(on, job),
            "lost_steps": lost_steps(on, job), "overlap_s": overlap_s(on, job),
        }  # fmt: skip
        assert (figures["launches"], figures["retries"], figures["overlap_s"]) == (1, 0, 0), figures
        assert (figures["steps_again"], figures["lost_steps"]) == (0, 0), figures
        assert violations(on, job) == []


def test_a_pod_deleted_by_force_trains_on_and_keeps_its_gpus_until_it_has_surely_ended(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    """Its object vanishes at once, while its kubelet is away and its trainer runs on."""
    on = installed
    job = jobs("forced", LONG, [4], node="node-a", **KEPT)
    pod = trains(on, job, 4)
    before = on.job(job)
    next_one = jobs("next", LONG, [4], node="node-a", **KEPT)
    with report.scenario("pod deleted by force while the kubelet is away") as figures:
        with kubelet_away(on, "node-a"):
            on.cluster.delete("pod", pod["metadata"]["name"], NAMESPACE, "--grace-period=0", "--force")
            on.cluster.wait_gone("pod", pod["metadata"]["name"], NAMESPACE)
            steps_on(on, job, 40)
            assert (on.job(job)["launch"], on.job(job)["state"]) == (before["launch"], "running")
            assert {g["gpu_id"] for g in on.client.gpus() if g["held_by"] == job} == set(before["gpu_ids"])
        until("its trainer is ended by the kubelet", lambda: now() - last_use(on, job) > 2 * times(on).grace_s)
        ended = last_use(on, job)
        seen = Witness(on, job)
        seen.until("the job is relaunched", relaunched(on, job, before))
        steps_on(on, job)
        first = min(u["boottime_in"] for u in on.gpus.uses(job) if u["boottime_in"] > ended)
        figures |= {
            "used_again_after_s": first - ended, "overlap_s": overlap_s(on, job), "pods": seen.look(),
            "retries": on.job(job)["retries"], "next_waits": on.job(next_one)["state"] == "submitted",
        }  # fmt: skip
        assert figures["used_again_after_s"] > times(on).wait_out_s - 2, figures  # it had reported until about then
        assert (figures["overlap_s"], figures["pods"], figures["retries"]) == (0, 1, 0), figures
        assert violations(on, job) == []


def test_a_kubelet_that_is_killed_and_comes_back_finds_its_pods_training(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    on = installed
    job = jobs("kubelet", LONG, [2], node="node-b", **KEPT)
    pod, launch = trains(on, job, 2), on.job(job)["launch"]
    with report.scenario("kubelet killed") as figures:
        with kubelet_away(on, "node-b"):
            steps_on(on, job, 20)
            pause(1)
        on.bed.wait_ready()
        steps_on(on, job, 20)
        after = alive(on, job)
        figures |= {
            "pod_uid_unchanged": uid(after) == uid(pod),
            "restart_count": sum(each["restartCount"] for each in after["status"]["containerStatuses"]),
            "training_processes": len({(u["generation"], u["pid"]) for u in on.gpus.uses(job)}),
            "launches": on.job(job)["launch"] - launch,
        }  # fmt: skip
        assert figures == {
            "pod_uid_unchanged": True, "restart_count": 0, "training_processes": 1, "launches": 0,
        }, figures  # fmt: skip
