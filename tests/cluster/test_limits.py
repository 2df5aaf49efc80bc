"""CPU limits on a real cluster: a training that hardly grows is held in its living pod while a young one trains there.

What is in force is read from the container's control group on its node, what was decided from the coordinator's
events, what became of the pod from the API server. One play is looked at by several tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.adapters.clock import SystemClock
from tests.cluster import steps_job, training_images
from tests.cluster.bed_kubectl import Object, until
from tests.cluster.bed_report import Report
from tests.cluster.built_images import name_of
from tests.cluster.faults_tools import kill, main_pid, ready, volcano_jobs
from tests.cluster.installed import SYSTEM, Installed, answered, command_line
from tests.cluster.plays import ENDLESS, identity
from tests.frozen import frozen

Doc = dict[str, Any]

FLAT = ["--seconds", "0.05", "--flat", "10"]  # its loss hardly changes any more after a few seconds
HAS: Doc = {"requests": {"cpu": "200m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
GROUPS = Path("/sys/fs/cgroup")
SLOWED_S, SOON_S = 120.0, 30.0
NEAR = 0.02  # cores, by which a limit may differ from what was wanted
COORDINATORS = (SYSTEM, "app.kubernetes.io/component=coordinator")
wall = SystemClock().wall


def curve(*options: str, python: str = "python3") -> list[str]:
    return [python, "/steps/curve.py", "--steps", str(ENDLESS), *options]


def quota(pid: int) -> float | None:
    """Cores that the control group of a process may use at most."""
    rows = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    if (GROUPS / "cgroup.controllers").exists():
        words = (GROUPS / rows[0][2].lstrip("/") / "cpu.max").read_text().split()
    else:
        (folder,) = [GROUPS / "cpu" / path.lstrip("/") for _, names, path in rows if "cpu" in names.split(",")]
        words = [(folder / f"cpu.cfs_{each}_us").read_text().strip() for each in ("quota", "period")]
    return int(words[0]) / int(words[1]) if words[0].isdecimal() else None


def limit(on: Installed, node: str) -> float:
    """Cores: 1 / (beta x jobs) = a quarter of the node, as pods of others are not seen to use what they request."""
    (view,) = [each for each in on.client.nodes() if each["node"] == node]
    return float(view["cores"]) / 4


def same(cores: object, wanted: float) -> bool:
    return isinstance(cores, int | float) and abs(cores - wanted) <= NEAR


def changed(pid: int, cores: float, within_s: float = SOON_S) -> float:
    """When the quota became that, by the same clock as events."""
    until(f"the quota is {cores}", lambda: same(quota(pid), cores), within_s)
    return wall()


def told(on: Installed, job_id: str, cores: float | None) -> float:
    """When that limit, or its end, was first told of a job."""
    kind = "limited" if cores else "released"

    def first() -> float:
        with on.table("events") as events:
            found = list(events.find({"job_id": job_id, "type": kind}))
        meant = [each for each in found if (each["cores"] is None if cores is None else same(each["cores"], cores))]
        return min((float(each["at"]) for each in meant), default=0.0)

    return answered(f"job {job_id} is {kind}", first, SOON_S)


def slowed(on: Installed, job_id: str) -> Object:
    """Its pod, once its growth has slowed and its list is that of converging jobs."""
    on.until(job_id, "running")
    flat = lambda: on.job(job_id)["growth_efficiency"].get("list") == "CL"  # noqa: E731
    answered(f"growth of job {job_id} has slowed", flat, SLOWED_S)
    return on.pod(job_id)


class Scene:
    """Jobs trained on the cores of one node each; none of them runs afterwards."""

    def __init__(self, on: Installed) -> None:
        self.on, self.made = on, list[str]()

    def __enter__(self) -> Scene:
        return self

    def __exit__(self, *_: object) -> None:
        self.on.end(*self.made)

    def begin(self, name: str, command: list[str], node: str, resources: Doc | None = None, **more: Any) -> str:
        """No operation moves it: nothing says that its checkpoints last."""
        pod, on = steps_job.pod(self.on.shared), self.on
        pod["containers"][0] |= {"resources": resources} if resources else {}
        self.made.append(on.insert(name, ENDLESS, [0], node=node, command=command, pod=pod, job_type=name, **more))
        return self.made[-1]


@pytest.fixture(scope="module")
def play(installed: Installed) -> Doc:
    """On one node a job that grows slowly, on the other one that cannot be limited; a young one comes to each."""
    on = installed
    with Scene(on) as scene:
        slow = scene.begin("slow", curve(*FLAT), "node-a", HAS)
        whole = curve(*FLAT, "--calm", python="/opt/reshape/bin/python")
        fixed = scene.begin("fixed", whole, "node-b", single_container=True, image=name_of("reshape"))
        made: Doc = {"before": slowed(on, slow)}
        slowed(on, fixed)
        pid = main_pid(on, made["before"], "trainer")
        made["at first"] = quota(pid), on.job(slow)["usage"]
        young = scene.begin("young", steps_job.command(ENDLESS), "node-a")
        scene.begin("young", steps_job.command(ENDLESS), "node-b")
        made["limit"] = limit(on, "node-a")
        held_at = changed(pid, made["limit"], SLOWED_S)
        made["limited"] = on.cluster.get("pod", made["before"]["metadata"]["name"], steps_job.NAMESPACE)
        made["use"] = answered(
            "it uses no more than its sidecar says it may", lambda: held(on, slow, made["limit"]), SOON_S
        )
        on.client.cancel(young)
        released_at = changed(pid, 2.0)
        made |= {"limited after": held_at - told(on, slow, made["limit"]), "after": on.pod(slow)}
        made["released after"] = released_at - told(on, slow, None)
        answered("it is known that the other cannot be limited", lambda: on.job(fixed)["unlimitable"], SOON_S)
        made["jobs"] = {"slow": on.job(slow), "fixed": on.job(fixed)}
        made["explained"] = on.explained(slow)
        made["shown"] = command_line(on, "job", slow)
        (volcano,) = volcano_jobs(on, fixed)
        made["events"] = on.cluster.events(volcano["metadata"]["name"], steps_job.NAMESPACE)
    return made


def held(on: Installed, job_id: str, cores: float) -> Doc | None:
    """Its use, once it is held and uses no more."""
    use: Doc = on.job(job_id)["usage"]
    return use if use.get("limited_by") == "pod resize" and (use["cpu_cores"] or 9.0) <= 1.3 * cores else None


def trainer(pod: Object) -> Object:
    (found,) = [each for each in pod["spec"]["containers"] if each["name"] == "trainer"]
    return dict(found["resources"])


def test_a_job_that_grows_slowly_is_limited_in_its_living_pod(play: Doc, report: Report) -> None:
    before, limited = play["before"], play["limited"]
    with report.scenario("a CPU limit by pod resize") as figures:
        figures |= {"decision_to_cgroup_s": play["limited after"], "limit_cores": play["limit"]}
        figures |= {"cores_before": play["at first"][1]["cpu_cores"], "cores_limited": play["use"]["cpu_cores"]}
        figures |= {"pod_uid_unchanged": before["metadata"]["uid"] == limited["metadata"]["uid"]}
        figures |= {"restart_count": identity(limited)[2], "qos_class": limited["status"]["qosClass"]}
        assert play["at first"][0] is None, "alone it was never held"
        assert identity(limited) == identity(before)
        assert limited["status"]["qosClass"] == before["status"]["qosClass"] == "Burstable"
        assert {**trainer(limited)["requests"], "cpu": ""} == {**HAS["requests"], "cpu": ""}
        assert trainer(limited)["limits"]["memory"] == HAS["limits"]["memory"], "memory is never touched"


def test_it_is_released_when_the_other_has_ended(play: Doc, report: Report) -> None:
    with report.scenario("a CPU limit is lifted") as figures:
        figures |= {"decision_to_cgroup_s": play["released after"], "restart_count": identity(play["after"])[2]}
        assert identity(play["after"]) == identity(play["before"])
        assert trainer(play["after"])["requests"] == HAS["requests"], "what it had"
        assert trainer(play["after"])["limits"] == {"cpu": "2", **HAS["limits"]}, "it had none: all cores of its node"


def test_what_it_uses_and_how_well_it_grows_is_shown_by_resource(play: Doc) -> None:
    use, growth = play["use"], play["jobs"]["slow"]["growth_efficiency"]
    assert use["memory"] > 0 and use["block_io"] is not None and use["network_io"] is not None
    assert {"cpu", "memory"} <= growth["per_unit"].keys()
    assert "efficiency:" in play["shown"] and "memory:" in play["shown"]


def test_each_limit_is_explained(play: Doc) -> None:
    said = "\n".join(play["explained"])
    free = 4 * play["limit"]
    assert f"of the {free:g} cores of node-a" in said and "is limited to 0." in said
    assert "is no longer limited on node-a" in said


def test_a_pod_that_would_change_its_class_is_said_once_to_be_not_limitable(play: Doc) -> None:
    why = "its pod asks for neither CPU nor memory"
    assert play["jobs"]["fixed"]["unlimitable"].startswith(why)
    assert [why in each for each in play["events"] if each.startswith("NotLimitable")] == [True]
    assert play["jobs"]["fixed"]["state"] == "running"


def test_a_limit_whose_coordinator_is_gone_is_lifted_first_thing_by_the_next_launcher(
    installed: Installed, report: Report
) -> None:
    on = installed
    with report.scenario("a CPU limit past its expiry") as figures, Scene(on) as scene:
        slow = scene.begin("slow", curve(*FLAT), "node-a", HAS)
        pid = main_pid(on, slowed(on, slow), "trainer")
        scene.begin("young", steps_job.command(ENDLESS), "node-a")
        cores = limit(on, "node-a")
        changed(pid, cores, SLOWED_S)
        before = identity(on.pod(slow))
        launchers = [main_pid(on, each, "launcher") for each in ready(on, "launcher")]
        with frozen([main_pid(on, each, "coordinator") for each in on.cluster.list("pods", *COORDINATORS)]):
            with on.table("jobs") as table:
                end = table.find_one({"_id": slow})["limit_ts"]
            until("its end is near", lambda: wall() > end - 1, 20)
            assert same(quota(pid), cores) or wall() > end, "until then it holds"
            for each in launchers:
                kill(each)
            figures["lifted_after_its_end_s"] = changed(pid, 2.0, 60) - end
        # One that has lost its lease meanwhile ends and is started again: until then nobody could end these trainings.
        answered("a coordinator acts again", lambda: on.job(slow))
        assert identity(on.pod(slow)) == before


@pytest.fixture
def images(installed: Installed) -> dict[str, str]:
    """Those of both frameworks, by kind, on node-b only: they are large."""
    for kind in training_images.FRAMEWORKS:
        installed.bed.provide(training_images.archive(kind), ["node-b"])
    return {kind: training_images.name_of(kind) for kind in training_images.FRAMEWORKS}


def test_a_tensorflow_job_makes_room_for_a_pytorch_job(
    installed: Installed, images: dict[str, str], report: Report
) -> None:
    on, node = installed, "node-b"
    with report.scenario("a TensorFlow job is limited for a PyTorch job") as figures, Scene(on) as scene:

        def begin(kind: str, script: str) -> str:
            command = ["python", script, "--iterations", str(ENDLESS), "--evaluate-every", "5"]
            about = {"image": images[kind], "env": {"RESHAPE_EMULATED_SPEED": '{"0": 0.05}'}}
            return scene.begin(kind, command, node, {"requests": {"cpu": "100m"}}, **about)

        slow = begin("keras", "keras_digits.py")
        before = slowed(on, slow)
        pid = main_pid(on, before, "trainer")
        assert quota(pid) is None, "alone it is never held"
        young = begin("torch", "torch_digits.py")
        cores = limit(on, node)
        held_at = changed(pid, cores, SLOWED_S)
        figures["decision_to_cgroup_s"] = held_at - told(on, slow, cores)
        on.client.cancel(young)
        changed(pid, 2.0)
        assert identity(on.pod(slow)) == identity(before)
        assert on.job(slow)["usage"]["memory"] > 0
