"""The main path on a real cluster: a job gives GPUs to a newcomer and gets them back, in its living pod.

What happened is read from the trainings' own log of the GPUs and from the API server. The same scene with the pod
deleted and made again (device mode recreate) is played in the same run, to compare.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.cluster import steps_job
from tests.cluster.bed_kubectl import Object
from tests.cluster.bed_report import Report
from tests.cluster.installed import Installed, answered, command_line
from tests.cluster.plays import ENDLESS, Play, identity, in_order
from tests.patience import patient

Played = Callable[[str, str], Play]
DOWN, UP = 0, 1


@pytest.mark.parametrize(("name", "which", "counts"), [("down", DOWN, (4, 2)), ("up", UP, (2, 4))])
def test_a_job_is_reshaped_in_its_living_pod(
    played: Played, installed: Installed, report: Report, name: str, which: int, counts: tuple[int, int]
) -> None:
    living, again = played("shared", "shared"), played("recreate", "shared")
    with report.scenario(f"reshape {name} on pods") as figures:
        gap, recreated = living.gaps[which], again.gaps[which]
        before, after = living.pods[which], living.pods[which + 1]
        figures |= {"gap_s": gap.seconds, "recreate_gap_s": recreated.seconds, "R2": gap.seconds / recreated.seconds}
        figures |= {"pod_uid_unchanged": before["metadata"]["uid"] == after["metadata"]["uid"]}
        figures |= {"restart_count": identity(after)[2], "steps_monotonic": in_order(living.steps)}
        assert (gap.before, gap.after) == (recreated.before, recreated.after) == counts
        assert identity(before) == identity(after)
        assert identity(after)[2] == 0
        assert in_order(living.steps), "each step was done once"
        assert in_order(again.steps), "each step was done once"
        assert gap.seconds < recreated.seconds
        assert installed.gpus.violations() == []


def test_a_newcomer_comes_up_while_its_victim_still_trains(played: Played, report: Report) -> None:
    """Early initialization. A newcomer that is to be recreated has none: the rest is the same."""
    early, late = played("shared", "shared"), played("shared", "recreate")
    with report.scenario("GPUs idle for a newcomer") as figures:
        figures |= {"gpu_idle_s": early.idle_s, "without_early_initialization_s": late.idle_s}
        figures |= {"R4": early.idle_s / late.idle_s}
        assert early.first(early.newcomer, "initialized") < early.first(early.job, "stop sent")
        assert late.first(late.newcomer, "launching") > late.first(late.job, "stop sent")
        assert early.idle_s < late.idle_s


# door (b)


@pytest.fixture
def name(installed: Installed) -> Iterator[str]:
    """Of a Volcano Job, which is deleted afterwards."""
    name = f"mine-{uuid.uuid4().hex[:6]}"
    yield name
    print(installed.words("coordinator"), installed.words("launcher"))
    installed.cluster.delete("vcjob", name, steps_job.NAMESPACE)


def phase(installed: Installed, name: str) -> str:
    found = installed.cluster.get("vcjob", name, steps_job.NAMESPACE) or {}
    return str(found.get("status", {}).get("state", {}).get("phase"))


def test_a_users_own_volcano_job_trains_and_completes(installed: Installed, report: Report, name: str) -> None:
    job_id = f"{steps_job.NAMESPACE}.{name}"
    made = steps_job.volcano(name, 40, [1, 2], installed.shared)
    with report.scenario("a user's Volcano Job") as figures:
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        installed.cluster.apply(made)
        answered("its first step", lambda: installed.gpus.uses(job_id), 60)
        figures["apply_to_first_step_s"] = installed.gpus.uses(job_id)[0]["boottime_out"] - began
        before = installed.pod(job_id)
        installed.cluster.apply(made)
        installed.until(job_id, "completed")
        answered("Volcano completes it", lambda: phase(installed, name) == "Completed", 60)
        assert identity(installed.pod(job_id)) == identity(before)
        assert in_order(installed.gpus.steps(job_id))
        assert installed.gpus.steps(job_id)[-1] == 40


def test_a_volcano_job_that_nobody_labelled_is_left_alone(installed: Installed, name: str) -> None:
    made = steps_job.volcano(name, 3, [1], installed.shared, queue="default")
    del made["metadata"]["annotations"]
    made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["env"] = []
    installed.cluster.apply(made)
    answered("it completes", lambda: phase(installed, name) == "Completed", 60)
    (pod,) = installed.cluster.list("pods", steps_job.NAMESPACE, f"volcano.sh/job-name={name}")
    assert pod["spec"]["containers"][0]["command"] == steps_job.command(3)
    assert not [each for each in pod["metadata"].get("annotations", {}) if "reshape" in each]
    assert not pod["spec"].get("initContainers")


# door (c), and the command line


@pytest.fixture
def trains(installed: Installed) -> Iterator[str]:
    """A job on two GPUs of a node of its own."""
    job_id = installed.insert("trains", ENDLESS, [1, 2], node="node-b")
    try:
        installed.until_on(job_id, 2)
        yield job_id
    finally:
        print(installed.words("coordinator"), installed.words("launcher"))
        installed.end(job_id)


def test_an_operator_reshapes_through_the_pods_own_address(installed: Installed, trains: str) -> None:
    pod = installed.pod(trains)
    assert wish(pod, 1, "not-the-token") == 401
    assert wish(pod, 1, None) == 401
    launch = pod["metadata"]["annotations"]["volcano-reshape.io/launch"]
    assert wish(pod, 1, installed.secret(launch, "operator.token", steps_job.NAMESPACE)) == 202
    installed.until_on(trains, 1)
    assert identity(installed.pod(trains)) == identity(pod)
    assert in_order(installed.gpus.steps(trains))

    assert trains in command_line(installed, "jobs")
    assert "1" in command_line(installed, "explain", trains)
    assert "step=1 " in command_line(installed, "logs", trains)


def wish(pod: Object, gpus: int, token: str | None) -> int:
    """The status that the sidecar answers."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    url = f"http://{pod['status']['podIP']}:8477/v1/reshape"
    request = urllib.request.Request(url, json.dumps({"gpus": gpus}).encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=patient(10)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
