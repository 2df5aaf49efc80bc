"""What a node says of itself, and what outlives a pod: R(w, t), cordons, a silent agent, a job's log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reshape.client import CoordinatorRefused
from reshape.client.job_output import patiently, pieces
from tests.cluster.bed_network import NODES
from tests.cluster.bed_report import Report
from tests.cluster.faults_tools import (
    KEPT,
    LONG,
    alive,
    lost_steps,
    main_pid,
    now,
    ready,
    relaunched,
    steps_on,
    trains,
    volcano_jobs,
)
from tests.cluster.installed import Installed, answered
from tests.cluster.steps_job import NAMESPACE
from tests.cluster.test_faults_pods import evict
from tests.cluster.test_moves import MOVES_S, Scene
from tests.frozen import frozen

Jobs = Callable[..., str]

READERS = "app.kubernetes.io/component=log-reader"


def node(on: Installed, name: str) -> dict[str, object]:
    return next(each for each in on.client.nodes() if each["node"] == name)


def log(on: Installed, job_id: str) -> bytes:
    """As `reshape logs` prints it."""
    return b"".join(patiently(pieces(on.client, job_id, follow=False)))


def test_each_node_says_how_busy_it_is_and_hears_which_jobs_it_has(installed: Installed, jobs: Jobs) -> None:
    on = installed
    job = jobs("busy", LONG, [1], **KEPT)
    where = trains(on, job, 1)["spec"]["nodeName"]
    told = answered(
        "its agent says what it was told", lambda: (node(on, where)["told"] or {}).get("jobs") and node(on, where)
    )
    assert told["told"]["jobs"] == told["jobs"] >= 1
    assert 0 < told["memory_use"] < 1 and 0 <= told["cpu_use"] <= 1
    assert any(0 < node(on, each)["cpu_use"] <= 1 for each in NODES), "something is going on here"


def test_a_drained_job_goes_to_another_node_and_its_log_goes_on_and_outlives_it(
    installed: Installed, jobs: Jobs, report: Report
) -> None:
    on = installed
    job = jobs("drained", LONG, [1], **KEPT)
    with report.scenario("node drained, log kept") as figures:
        pod = trains(on, job, 1)
        steps_on(on, job)
        before, source, first = on.job(job), pod["spec"]["nodeName"], log(on, job)
        assert first.count(b"begins after step 0") == 1
        on.cluster.kubectl("cordon", source)
        try:
            answered("the cordon is known", lambda: not node(on, source)["schedulable"], 15)
            began = now()
            evict(on, pod["metadata"]["name"])
            answered("it trains elsewhere", relaunched(on, job, before), 60)
            figures["resumed_after_s"] = now() - began
            steps_on(on, job)
            assert alive(on, job)["spec"]["nodeName"] != source
        finally:
            on.cluster.kubectl("uncordon", source)
        second = log(on, job)
        assert second.startswith(first) and second.count(b"begins after step") == 2
        figures |= {"lost_steps": lost_steps(on, job), "retries": on.job(job)["retries"] - before["retries"]}
        assert (figures["lost_steps"], figures["retries"]) == (0, 0), figures
        on.end(job)
        for each in volcano_jobs(on, job):  # else they could be looked at for their time
            on.cluster.delete("jobs.batch.volcano.sh", each["metadata"]["name"], NAMESPACE, "--wait=false")
        answered("no pod of it is left", lambda: not on.pods(job))
        began = now()
        whole = log(on, job)
        figures["log_of_the_past_after_s"] = now() - began
        assert whole.startswith(second)
        (reader,) = on.cluster.list("pods", NAMESPACE, READERS)
        answered("its reader is gone", lambda: not on.cluster.list("pods", NAMESPACE, READERS), 60)

        def secrets() -> set[str]:
            return {each["metadata"]["name"] for each in on.cluster.list("secrets", NAMESPACE)}

        answered("its secret is gone, too", lambda: reader["metadata"]["name"] not in secrets())
        answered("it takes pods again", lambda: node(on, source)["schedulable"], 15)


def test_a_log_without_a_claim_is_said_to_be_gone(installed: Installed, jobs: Jobs) -> None:
    on = installed
    job = jobs("forgotten", 5, [1])
    on.until(job, "completed")
    with pytest.raises(CoordinatorRefused, match="went with its pod; give such jobs a checkpoint_claim"):
        answered("its pod has ended", lambda: log(on, job) and None, 30)


def test_a_silent_agent_keeps_a_job_from_moving_to_its_node_until_it_is_heard_again(
    installed: Installed, report: Report
) -> None:
    on, scene = installed, Scene(installed)
    try:
        with report.scenario("move frozen by a silent agent") as figures:
            job = scene.insert("frozen", "--flat", "5")
            pod, here = on.pod(job), on.job(job)["node"]
            (there,) = NODES.keys() - {here}
            (agent,) = [each for each in ready(on, "agent") if each["spec"]["nodeName"] == there]
            with frozen([main_pid(on, agent, "agent")]):
                answered("its node is silent", lambda: not node(on, there)["heard"], 30)
                for name in ("one", "two"):
                    scene.insert(name, node=here)
                why = f"{there} (score 0) has not been heard of lately"
                answered("it stays, and says why", lambda: any(why in text for text in on.explained(job)), MOVES_S)
                assert (on.job(job)["node"], on.job(job)["moves"]) == (here, 0)
                began = now()
            moved = scene.moved(job, 1, on.job(job), pod)
            figures["moved_after_s"] = now() - began
            assert moved.nodes == (here, there)
    finally:
        scene.close()
